"The recipe: MaxText's own class takes every rendered flag, and the strict check catches what that class lets through."
import os
import re
import shlex
import subprocess
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from grpo_tutorials.cluster.recipe import (ABOVE, AT_LEAST, AT_MOST, BELOW, CHOICES, FLAGS, FURTHER, KNOWN, TEMPLATES, VARIABLES, XLA, check_gs, check_image, check_location, check_run_name, command,
                                           flag_args, gemma4_e4b, head_label, layout, problems, proxy_args, typed, validate)

pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")      # MaxText's own
SCRIPT = "maxtext/trainers/post_train/rl/scripts/run_gemma4_e4b_rl.sh"
PLACES = ("rl-test", "gs://example-bucket/runs", "gs://example-bucket/gemma4-e4b/0/items")


def wheel(name: str) -> Path:
    "A file of the maxtext wheel; scripts/setup brings it, so its absence is a failure and not a reason to skip."
    try: found = distribution("maxtext").locate_file(name)
    except PackageNotFoundError: pytest.fail("the maxtext wheel is not installed: scripts/setup all")
    return Path(found)


@pytest.fixture(scope="module")
def config():
    "Load flags with MaxText's real configuration class."
    yml = wheel("maxtext/configs/post_train/rl.yml")
    from maxtext.configs import pyconfig, types     # pytest is imported: its errors are raised and do not end the process

    def load(args): return pyconfig.initialize_pydantic(["train_rl", str(yml), *args], config_class=types.RLConfig)
    return load


def get(loaded, name):
    for part in name.split("."): loaded = getattr(loaded, part)
    return loaded


def plain(x): return getattr(x, "value", x)


# ---------------------------------------------------------------- against MaxText

def test_every_flag_is_loaded_by_maxtext_with_our_value(config):
    recipe = gemma4_e4b(*PLACES)
    loaded = config(flag_args(recipe))
    assert len(recipe.flags) == 70
    for name, value in recipe.flags.items(): assert plain(get(loaded, name)) == value, name


def test_ours_and_further_flags_are_loaded_too(config):
    recipe = gemma4_e4b(*PLACES, templates="ours", **FURTHER)
    loaded = config(flag_args(recipe))
    for name, value in recipe.flags.items(): assert plain(get(loaded, name)) == value, name
    assert problems(recipe) == []


@pytest.mark.parametrize("change", [{"scan_layers": True}, {"rl.num_generations": 0}, {"remat_policy": "fulll"}, {"checkpoint_period": 0}, {"rollout_tensor_parallelism": 4}, {"eval_split": "nope"}], ids=str)
def test_what_maxtext_lets_through_is_caught(config, change):
    recipe = gemma4_e4b(*PLACES, **change)
    config(flag_args(recipe))                  # no error there
    assert len(problems(recipe)) == 1 and next(iter(change)).split("_parallelism")[0].split("rollout")[0] in problems(recipe)[0]


def test_a_nested_typing_error_passes_there_and_not_here(config):
    config([*flag_args(gemma4_e4b(*PLACES)), "rl.num_generation=8"])
    with pytest.raises(ValueError, match="did you mean rl.num_generations"): gemma4_e4b(**{"rl.num_generation": 8})


def test_the_reference_script_has_these_flags_and_variables():
    text = wheel(SCRIPT).read_text()
    said = re.search(r'MAXTEXT_COMMAND="(.*?)"\n\n', text, re.S)[1].replace("\\\n", " ").replace('\\"', '"')
    words = shlex.split(said.replace("$RUN_NAME", "rl-test").replace("$BASE_OUTPUT_DIRECTORY", PLACES[1]).replace("$MAXTEXT_CKPT_PATH", PLACES[2]))
    assert [w.split("=")[0] for w in words[:14]] == [v.name for v in VARIABLES] and words[14:17] == ["python3", "-m", "maxtext.trainers.post_train.rl.train_rl"]
    assert words[17:] == flag_args(gemma4_e4b(*PLACES))
    xla = re.search(r'XLA_FLAGS="(.*?)"\n', text, re.S)[1].replace("\\\n", " ").split()
    assert xla == proxy_args(gemma4_e4b()) and len(xla) == len(XLA) == 19


def test_the_images_are_the_references():
    from grpo_tutorials.cluster.recipe import PROXY_IMAGE, SERVER_IMAGE
    text = wheel(SCRIPT).read_text()
    assert f"PATHWAYS_SERVER_IMAGE:-{SERVER_IMAGE}}}" in text and f"PATHWAYS_PROXY_SERVER_IMAGE:-{PROXY_IMAGE}}}" in text


def test_the_templates_of_the_reference_are_in_the_wheel_and_ours_in_the_package():
    for k in ("data_template_path", "chat_template_path"): assert wheel(gemma4_e4b().flags[k]).is_file()
    ours = Path(__file__).resolve().parent.parent / "chat_templates"
    for path in TEMPLATES["ours"].values(): assert (ours / Path(path).name).is_file(), path


def test_maxtext_reads_our_templates_from_an_absolute_path(tmp_path):
    "Its loaders return None for a file that they do not like, so look at what they return."
    pytest.importorskip("datasets")
    wheel("maxtext/input_pipeline/instruction_data_processing.py")
    text = wheel("maxtext/input_pipeline/instruction_data_processing.py").read_text()
    scope = {"os": os, "json": __import__("json"), "__file__": str(wheel("maxtext/input_pipeline/instruction_data_processing.py"))}
    for name in ("load_data_template_from_file", "load_chat_template_from_file"):      # the module itself needs grain, jax and transformers
        exec(re.search(rf"^def {name}\(.*?(?=^def |\Z)", text, re.M | re.S)[0], scope)
    ours = Path(__file__).resolve().parent.parent / "chat_templates"
    assert set(scope["load_data_template_from_file"](str(ours / "openmathinstruct2_rl.json"))) == {"SYSTEM_PROMPT", "TEMPLATE"}
    assert "<|turn>" in scope["load_chat_template_from_file"](str(ours / "gemma4.json"))


# ---------------------------------------------------------------- the check

def test_the_reference_is_right():
    assert validate(gemma4_e4b(*PLACES)) == gemma4_e4b(*PLACES)
    assert problems(gemma4_e4b(), places=False) == [] and len(problems(gemma4_e4b())) == 3


@pytest.mark.parametrize("name", sorted(AT_LEAST))
def test_below_the_least(name):
    recipe = gemma4_e4b(*PLACES, **{name: AT_LEAST[name][0] - 1})
    assert any(p.startswith(f"{name} is ") for p in problems(recipe)), problems(recipe)


@pytest.mark.parametrize("name", sorted(AT_MOST))
def test_above_the_most(name):
    high = AT_MOST[name]
    for value in (high + 1,) if type(KNOWN[name]) is int else (high + .5, float("nan"), float("inf")): assert any(name in p for p in problems(gemma4_e4b(*PLACES, **{name: value}))), value


@pytest.mark.parametrize("name", sorted({**ABOVE, **BELOW}))
def test_an_edge_that_is_not_within(name):
    for value in (float("nan"), -1.0, 0.0) if name in ABOVE else (): assert any(name in p for p in problems(gemma4_e4b(*PLACES, **{name: value}))), value
    if name in BELOW: assert any(p.startswith(f"{name} is 1.0: it must be below 1") for p in problems(gemma4_e4b(*PLACES, **{name: 1.0})))


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_not_among_the_choices(name):
    assert any(p.startswith(f"{name} is ") for p in problems(gemma4_e4b(*PLACES, **{name: "nope"})))


@pytest.mark.parametrize("change, words", [
    ({"max_target_length": 512}, "no token is left"), ({"max_target_length": 4000}, "must divide max_target_length"), ({"sa_block_kv_compute": 300}, "sa_block_kv_compute"),
    ({"max_num_batched_tokens": 8}, "less than one token"), ({"train_micro_batch_size": 3}, "must divide batch_size"), ({"rollout_micro_batch_size": 0}, "must divide batch_size"),
    ({"rl.num_generations": 4}, "give train_micro_batch_size=2"), ({"rl.num_generations": 12}, "give train_micro_batch_size=2"), ({"num_trainer_slices": 1}, "num_trainer_slices"),
    ({"checkpoint_period": 501}, "before the first checkpoint"), ({"enable_checkpointing": False}, "nothing to convert"), ({"learning_rate_schedule_steps": 0}, "learning_rate_schedule_steps"),
    ({"learning_rate_schedule_steps": 400}, "100 of 500"), ({"tokenizer_path": "google/gemma-4-E4B-it"}, "instruction-tuned"), ({"tokenizer_path": "google/gemma-3-1b"}, "tokenizer_path"),
    ({"chat_template_path": " "}, "chat_template_path is empty"), ({"data_template_path": "x.yaml"}, "takes any other for none"), ({"enable_dp_attention": False}, "vllm_additional_config"),
    ({"model_name": "gemma4-e2b"}, "tokenizer_path"), ({"vllm_additional_config": {}}, "maxtext_config"), ({"vllm_hf_overrides": {}}, "MaxTextForCausalLM"), ({"train_split": "train_9M"}, "train_split"),
    ({"train_split": "train_2M"}, "not the files of train_2M"), ({"hf_train_files": "data/x.parquet"}, "hf://"), ({"hf_train_files": "hf://datasets/openai/gsm8k/x"}, "not files of"),
    ({"eval_dataset_name": "openai/gsm8k", "eval_split": "validation"}, "train, test"), ({"ici_tensor_parallelism": 3}, "must divide the trainer's 16"), ({"trainer_devices_fraction": 0.75}, "together at most 1"),
    ({"rollout_data_parallelism": -1, "rollout_tensor_parallelism": -1}, "sampler has 16"), ({"rollout_data_parallelism": 0}, "sampler has 16"), ({"chips_per_vm": 8}, "has 4 chips"), ({"run_name": "x" * 23}, "at most 22"),
    ({"rl.num_generations": 10**9}, "at most 1024"), ({"kv_cache_buffer": 0}, "at least 1"), ({"max_prefill_predict_length": 16}, "longer questions are dropped"), ({"decode_sampling_top_k": 1}, "the same"),
    ({"data_shuffle_seed": -1}, "data_shuffle_seed"), ({"eval_batch_size": 0}, "eval_batch_size"), ({"kv_cache_buffer": 131_072}, "tokens at most"), ({"batch_size": 4096, "rollout_micro_batch_size": -1}, "950000 questions"),
    ({"num_batches": 8000, "learning_rate_schedule_steps": -1}, "give num_batches=7421"), ({"num_test_batches": 1000}, "give num_test_batches=390"), ({"reward_exact_answer": 0.0}, "more than a wrong one"),
    ({"penalty_incorrect_answer": 1.0}, "at most 0"), ({"reward_exact_format_match": -1.0}, "at least 0"), ({"solution_end_token": "<answer>"}, "four different"), ({"solution_start_token": ""}, "is empty"),
    ({"reasoning_start_token": "none"}, "YAML"), ({"hf_name": "no"}, "YAML"), ({"hf_name": "1e3"}, "YAML"), ({"hf_name": "x y"}, "no blanks"), ({"hf_name": "x\u200b"}, "cannot be printed"), ({"hf_subset": "maine"}, "did you mean main"),
    ({"data_template_path": "/my templates/x.json"}, "no blanks"), ({"data_template_path": "~/x.json"}, "full path"), ({"data_template_path": "templates/x.json"}, "full path"), ({"chat_template_path": "x.jinja"}, "full path"),
    ({"data_template_path": "maxtext/examples/chat_templates/openmathinstruct_rl.json"}, "did you mean openmathinstruct2_rl.json"), ({"chat_template_path": "/opt/grpo_tutorials/chat_templates/gema4.json"}, "did you mean gemma4.json"),
    ({"data_template_path": "maxtext/examples/chat_templates/gsm8k_rl.json"}, "turn markers of its own"), ({"data_template_path": "/opt/grpo_tutorials/chat_templates/gemma4.json"}, "no such template"),
    ({"tokenizer_path": "google/gemma-4-e4b-IT/"}, "instruction-tuned"), ({"trainer_devices_fraction": 0.25}, "no chip left over"), ({"rollout_tensor_parallelism": 4}, "give rollout_data_parallelism=4"),
    ({"vllm_additional_config": {"maxtext_config": {**KNOWN["vllm_additional_config"]["maxtext_config"], "modle_name": "x"}}}, "did you mean model_name"),
    ({"vllm_additional_config": {"maxtext_config": {**KNOWN["vllm_additional_config"]["maxtext_config"], "weight_dtype": "float32"}}}, "weight_dtype"),
    ({"vllm_additional_config": {"maxtext_config": {**KNOWN["vllm_additional_config"]["maxtext_config"], "model_call_mode": "train"}}}, "inference"),
    ({"base_output_directory": "gs://example-bucket/a/../b"}, ". and .."), ({"run_name": "none"}, "YAML"), ({"base_output_directory": "/local"}, "gs://"), ({"load_parameters_path": "gs://example-bucket"}, "whole bucket"),
], ids=str)
def test_more_than_one_number(change, words):
    found = problems(gemma4_e4b(*PLACES).change(**change))
    assert any(words in p for p in found) and all("\n" not in p for p in found), found


@pytest.mark.parametrize("change, words", [
    ({"topology": "4x9"}, "v6e slice"), ({"topology": "2x2"}, "one host"), ({"topology": ""}, "TOPOLOGY"), ({"compute_type": "ct5p-hightpu-4t"}, "COMPUTE_TYPE"), ({"compute_type": "ct6e-standard-8t"}, "chips_per_vm"), ({"compute_type": "ct6e-standard-04t"}, "COMPUTE_TYPE"),
    ({"num_slices": 2}, "one slice"), ({"priority": "urgent"}, "priority"), ({"restarts": -1}, "restarts"), ({"variables": {}}, "JAX_RANDOM_WEIGHTS is missing"), ({"xla": {}}, "xla_tpu_scoped_vmem_limit_kib is missing"),
], ids=str)
def test_the_slice_and_the_plumbing(change, words): assert any(words in p for p in problems(replace(gemma4_e4b(*PLACES), **change)))


def test_tunix_computes_all_rows_on_every_chip_where_they_do_not_divide():
    "What the check of the micro-batch is for, in Tunix's own code."
    from tunix.sft.sharding_utils import get_sharding
    mesh = type("Mesh", (), {"shape": {"fsdp": 8}})()
    import numpy as np
    import tunix.sft.sharding_utils as module
    made = []
    real, module.shd.NamedSharding = module.shd.NamedSharding, lambda m, spec: made.append(spec)
    try: [get_sharding(np.zeros((rows, 3)), mesh, module.shd.PartitionSpec("fsdp")) for rows in (8, 4)]
    finally: module.shd.NamedSharding = real
    assert made == [module.shd.PartitionSpec("fsdp"), module.shd.PartitionSpec()]


def test_unknown_names_and_kinds_are_refused_at_once():
    recipe = gemma4_e4b()
    for flags, words in (({"batchsize": 1}, "batch_size"), ({"rl.num_generation": 8}, "rl.num_generations"), ({"rl.lossalgo": "x"}, "rl.loss_algo"), ({"batch_size": 1.5}, "whole number"), ({"debug": "maybe"}, "True or False"),
                         ({"hf_access_token": "hf_secret"}, "secret"), ({"learning_rate": "fast"}, "a number"), ({"vllm_hf_overrides": "[]"}, "JSON object")):
        with pytest.raises(ValueError, match=re.escape(words)) as e: recipe.change(**flags)
        assert "hf_secret" not in str(e.value)
    with pytest.raises(ValueError, match="did you mean JAX_PLATFORMS"): replace(recipe, variables={"JAX_PLATFORM": "cpu"})
    with pytest.raises(ValueError, match="unknown XLA flag"): replace(recipe, xla={"xla_nope": "1"})
    with pytest.raises(ValueError, match="maxtext or ours"): gemma4_e4b(templates="mine")


def test_a_missing_flag_is_named():
    recipe = gemma4_e4b(*PLACES)
    for name in recipe.flags: assert problems(replace(recipe, flags={k: v for k, v in recipe.flags.items() if k != name})) == [p for p in problems(replace(recipe, flags={k: v for k, v in recipe.flags.items() if k != name})) if name in p]


def test_words_survive_the_shell(tmp_path):
    recipe = gemma4_e4b("rl-test", "gs://example-bucket/runs", "gs://example-bucket/x", **{"solution_start_token": "<it's \"$HOME\">", "vllm_additional_config": {"a": "b c"}})
    done = subprocess.run(["bash", "-c", command(recipe).replace("python3 -m maxtext.trainers.post_train.rl.train_rl", "printf '%s\\n'")], capture_output=True, text=True, cwd=tmp_path, env={**os.environ})
    assert done.stdout.splitlines() == flag_args(recipe)


def test_typed_reads_what_it_writes():
    from grpo_tutorials.cluster.recipe import spelled
    for name, value in KNOWN.items():
        if name != "vllm_hf_overrides": assert typed(name, spelled(name, value)) == value, name


# ---------------------------------------------------------------- names (H03, H04)

def test_run_names():
    ok = lambda n: not raises(check_run_name, n)
    assert [ok(n) for n in ("my_run", "run-", "1run", "My-Run", "a b", "ok-run-1", "")] == [False, False, False, False, False, True, False]
    assert [len(head_label(n)) for n in ("x" * 22, "x" * 23, "rl-20261130-1350")] == [63, 65, 51]
    assert [ok(n) for n in ("x" * 22, "x" * 23, "rl-20261130-1350", "a", "-a", "a\n", "a.b", "é")] == [True, False, True, True, False, False, False, False]
    assert [ok(n) for n in ("none", "null", "true", "no", "off", "nan", "n", "no-1")] == [False] * 5 + [True] * 3


def raises(f, *args):
    try: f(*args)
    except ValueError as e: return "\n" not in str(e).replace("\\n", "")
    return False


def test_buckets_places_and_images():
    for good in ("gs://my-bucket", "gs://my-bucket/", "gs://my-bucket/a/b_c-1.0", "gs://0abc/x", "gs://my.bucket.example.com/x", f"gs://{'a' * 40}.{'b' * 40}/x"): check_gs("B", good)
    for bad in ("", "my-bucket", "gs:/my-bucket", "gs://", "gs://a", "gs://My-bucket", "gs://-ab", "gs://ab-/x", "gs://a..b", "gs://1.2.3.4/x", "gs://goog-x/y", "gs://my-bucket/a b", "gs://my bucket/a", "gs://my-bucket/a;b",
                "gs://my-bucket/$x", "gs://my-bucket//a", "gs://my-bucket/'a'", "gs://a.-b/x", "gs://a-.b/x", "gs://my-google/x", "gs://my-bucket/../x", "gs://my-bucket/./x", f"gs://{'a' * 64}.com/x", f"gs://my-bucket/{'x' * 1100}", "GS://my-bucket", " gs://my-bucket", "s3://my-bucket"): assert raises(check_gs, "B", bad), bad
    for good in ("us-central1", "us-central1-a", "europe-west12-c", "us-east5-b", "us-central1-ai1a"): check_location("ZONE", good)
    for bad in ("", "us", "us-central1-", "us-central1-aa", "us-central", "US-CENTRAL1", "us-central1-a ", "us_central1"): assert raises(check_location, "ZONE", bad), bad
    digest = "@sha256:" + "0" * 64
    for good in ("gcr.io/p/i:1", "us-docker.pkg.dev/p/r/i:tag_1.0", "us-docker.pkg.dev/p/r/i" + digest, "registry.example.com:5000/p/i:1", "us-docker.pkg.dev/example.com/p/r/i:1", "us-docker.pkg.dev/p/r/a/i:1" + digest): check_image("I", good)
    for bad in ("", "i", "i:1", "maxtext_base_image:latest", "gcr.io/p/i", "gcr.io/p/i:", "gcr.io/p/I:1", "us-docker.pkg.dev/p/i:1", "https://gcr.io/p/i:1", "gcr.io/p/i:1 ", "gcr.io/p/i@sha256:00", "gcr.io//i:1", "p/i:1", "localhost:5000/i:1", "127.0.0.1:5000/i:1", "127.0.0.1/i:1",
                "host.docker.internal/i:1", "gcr.io/p//i:1", "gcr.io/p/i-:1", ".gcr.io/p/i:1", "gcr..io/p/i:1", "gcr.io/i:1", "gcr.io:x/p/i:1", "gcr.io/p/i:-1", "gcr.io/p/i@md5:" + "0" * 64, "gcr.io/p/i" + digest.upper(), "us-docker.pkg.dev/" + "p/" * 200 + "i:1"):
        assert raises(check_image, "I", bad), bad


def test_the_layout():
    assert str(layout(gemma4_e4b())) == "32 chips on 8 hosts: trainer 16 (fsdp 8 x tp 2), sampler 16 (dp 8 x tp 2)"
    assert layout(gemma4_e4b(trainer_devices_fraction=0.25, sampler_devices_fraction=0.75, rollout_data_parallelism=12)).trainer == 8
    assert sorted(f.name for f in FLAGS) == sorted(set(f.name for f in FLAGS))


# ---------------------------------------------------------------- what a command line can hold

@pytest.mark.parametrize("name, text, words", [
    ("rl.num_generations", "8_0", "whole number"), ("rl.num_generations", "\u0668", "whole number"), ("rl.num_generations", "", "whole number"), ("rl.num_generations", "9" * 5000, "whole number"), ("learning_rate", "1_0e-7", "a number"),
    ("vllm_additional_config", "[" * 100_000, "JSON object"), ("vllm_additional_config", "{bad", "JSON object"), ("scan_layers", "no", "True or False"), ("x" * 500, "1", "unknown flag"),
])
def test_a_value_of_another_kind_is_one_short_line(name, text, words):
    with pytest.raises(ValueError, match=words) as e: typed(name, text)
    assert len(str(e.value)) < 300 and "\n" not in str(e.value)


def test_a_token_is_refused_wherever_it_stands_and_not_repeated():
    token = "hf_" + "aB3" * 12
    for name, value in (("hf_token", token), ("HF_TOKEN", token), ("tokenizer_path", token), ("tokenizer_path", f"/x/{token}"), ("hf_name", token), ("rl.num_generations", token), (token, "1"),
                        ("vllm_hf_overrides", {"architectures": ["MaxTextForCausalLM"], "hf_token": token})):
        with pytest.raises(ValueError, match="Kubernetes secret") as e: typed(name, value)
        assert token not in str(e.value)


@pytest.mark.parametrize("change", [dict(restarts="1"), dict(restarts=True), dict(priority=None), dict(topology=None), dict(compute_type=6), dict(num_slices=1.0), dict(variables={"NUM_SLICES": 1}), dict(xla={"xla_tpu_scoped_vmem_limit_kib": 65536})], ids=str)
def test_a_part_of_another_kind_is_refused_at_once(change):
    with pytest.raises(ValueError, match="give"): replace(gemma4_e4b(*PLACES), **change)


def test_what_maxtext_refuses_is_refused_here(config):
    "The converse of the strict check: nothing passes here that would end the job when it reads its flags."
    for change in ({"kv_cache_buffer": 0}, {"reasoning_start_token": ""}, {"solution_end_token": "none"}, {"run_name": "no"}, {"trainer_devices_fraction": 0.0}, {"rollout_data_parallelism": 0}, {"num_trainer_slices": 1}):
        recipe = gemma4_e4b(*PLACES).change(**change)
        with pytest.raises(Exception): config(flag_args(recipe))
        assert problems(recipe), change
    assert config(flag_args(gemma4_e4b("none", *PLACES[1:]))).run_name == ""          # a name that is lost without an error
