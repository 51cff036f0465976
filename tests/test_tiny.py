"""The shipped checkpoints: what they weigh, what they say, and that Tunix and transformers read the same model from them."""
import random
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from grpo_tutorials.core.chat import encode_prompt, load_tokenizer
from grpo_tutorials.models import tiny
from grpo_tutorials.models.lora import read_header
from grpo_tutorials.tasks import gsm8k, sudoku

FOLDER = tiny.checkpoint("gsm8k")
CODE = tiny.checkpoint("sudoku")


@pytest.mark.parametrize("task", tiny.RECIPES)
def test_shipped_folder_is_whole_small_and_its_recipes(task):
    folder = tiny.checkpoint(task)
    made = tiny.verify(folder)
    assert sum(f.stat().st_size for f in folder.iterdir()) <= 3 * 2 ** 20
    recipe = tiny.recipe_of(task)
    assert tiny.Recipe(**made["recipe"]) == recipe                      # the page's recipe is the one that was cooked
    assert made["corpus"] == tiny.corpus(import_module(f"grpo_tutorials.tasks.{task}").demonstrations(recipe.demonstrations, recipe.seed))      # and today's demonstrations went into it
    header = read_header(folder / "model.safetensors")
    assert {kind for kind, _ in header.values()} == {"BF16"}
    assert sum(int(np.prod(s)) for name, (_, s) in header.items() if not name.endswith("layer_scalar")) == made["parameters"] < 1.2e6      # Gemma 4 keeps a constant a layer beside them
    assert tiny.model_config(folder)["dtype"] == "bfloat16"


def test_recipe_leaves_something_to_learn():
    "Half wrong in four kinds of six, by habit and not for want of the right way."
    m = tiny.verify(FOLDER)["measured"]
    assert m["n"] == 512 and m["greedy"] < 0.5 and 0.3 < m["sampled"] < 0.5
    habits = {k: m["kinds"][k] for k in gsm8k.HABITS}
    assert len(habits) == 4 and all(k["greedy"] < 0.5 and k["sampled"] > 0.15 for k in habits.values())
    assert all(m["kinds"][k]["greedy"] > 0.8 for k in set(gsm8k.KINDS) - set(gsm8k.HABITS))


def test_measured_again_it_is_what_the_recipe_says():
    pytest.importorskip("torch")
    made = tiny.verify(FOLDER)
    again, samples = tiny.measure(FOLDER, replace(tiny.recipe_of("gsm8k"), held_out=128))
    few = random.Random(0).sample(samples, 3)
    assert all(s["completion"] for s in few)
    for how in ("greedy", "sampled"):           # 128 of the 512: four standard errors of the difference
        p = made["measured"][how]
        assert abs(again[how] - p) < 4 * (p * (1 - p) * (1 / 128 - 1 / 512)) ** 0.5


def test_tokens():
    tok = load_tokenizer(FOLDER)
    added = tok.backend.get_added_tokens_decoder()
    special = {t.content for t in added.values() if t.special}
    assert special == set(tiny.SPECIAL)
    assert {t.content for t in added.values()} - special == {"<reasoning>", "</reasoning>", "<answer>", "</answer>"}
    assert [tok.encode(t)[0] for t in tiny.SPECIAL] == list(range(6)) and tok.eos_ids == (tiny.END_OF_TURN,)
    assert len(tok) == tiny.model_config(FOLDER)["vocab_size"]
    for row in gsm8k.word_problems("test", 300, seed=1):
        prompt, right = encode_prompt(row["prompt"], tok), tok.encode(gsm8k.solution_completion(row))
        assert prompt.count(2) == 1 and prompt[0] == 2 and len(prompt) <= 48
        assert len(right) + 1 <= tiny.recipe_of("gsm8k").max_tokens
        assert tok.decode(right, skip_special_tokens=True) == gsm8k.solution_completion(row)
    for text in ("naïve ½ 🙂", "a\tb\n\n c", "1,234.5"): assert tok.decode(tok.encode(text)) == text


def test_transformers_renders_and_encodes_the_same():
    transformers = pytest.importorskip("transformers")
    theirs, ours = transformers.AutoTokenizer.from_pretrained(FOLDER), load_tokenizer(FOLDER)
    messages = gsm8k.word_problems("test", 1)[0]["prompt"]
    ids = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids == encode_prompt(messages, ours)
    assert (theirs.eos_token_id, theirs.bos_token_id, theirs.pad_token_id, theirs.padding_side) == (5, 2, 0, "left")
    assert theirs.decode(ours.encode("<answer>4</answer><end_of_turn>"), skip_special_tokens=True) == "<answer>4</answer>"


def test_tunix_and_transformers_agree():
    "On logits, in float32, over whole texts that are not padded."
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    pytest.importorskip("tunix")
    import jax.numpy as jnp
    from transformers import AutoModelForCausalLM
    from tunix.models.gemma3 import model as gemma3, params_safetensors
    c, tok = tiny.model_config(FOLDER), load_tokenizer(FOLDER)
    config = gemma3.ModelConfig(
        num_layers=c["num_hidden_layers"], num_embed=c["vocab_size"], embed_dim=c["hidden_size"], hidden_dim=c["intermediate_size"], num_heads=c["num_attention_heads"],
        head_dim=c["head_dim"], num_kv_heads=c["num_key_value_heads"], sliding_window_size=c["sliding_window"], local_base_frequency=10_000, global_base_frequency=1_000_000, param_dtype=jnp.float32)
    mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    ours = params_safetensors.create_model_from_safe_tensors(str(FOLDER), config, mesh, dtype=jnp.float32)
    theirs = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    for row in gsm8k.word_problems("test", 4, seed=2):
        x = np.array([encode_prompt(row["prompt"], tok) + tok.encode(gsm8k.solution_completion(row))])
        n = x.shape[1]
        with jax.set_mesh(mesh): a = np.asarray(ours(jnp.asarray(x), jnp.arange(n)[None], None, jnp.tril(jnp.ones((1, n, n), bool)))[0])
        with torch.no_grad(): b = theirs(input_ids=torch.tensor(x)).logits.numpy()
        assert np.abs(a - b).max() < 1e-4


def test_a_smaller_one_is_built_the_same_twice(tmp_path):
    pytest.importorskip("torch")
    recipe = replace(tiny.smaller(tiny.recipe_of("gsm8k")), steps=30, held_out=4)
    losses = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        losses[name] = []
        tiny.build(out=tmp_path / name, seed=seed, recipe=recipe, progress=lambda step, steps, loss: losses[name].append(loss))
    made = {k: tiny.verify(tmp_path / k) for k in "abc"}
    assert made["a"] == made["b"] and made["a"]["sha256"] != made["c"]["sha256"]
    assert losses["a"] == losses["b"] and np.mean(losses["a"][-5:]) < np.mean(losses["a"][:5]) - 1
    assert (tmp_path / "a/tokenizer.json").read_bytes() == (tmp_path / "b/tokenizer.json").read_bytes()
    tiny.check_model(tmp_path / "a")
    (tmp_path / "a/model.safetensors").write_bytes((tmp_path / "c/model.safetensors").read_bytes())
    with pytest.raises(ValueError, match="not those of its recipe.json"): tiny.verify(tmp_path / "a")


def test_an_interrupted_build_leaves_the_old_folder(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "old").mkdir()
    (tmp_path / "old/kept").touch()
    def stop(step, steps, loss):
        if step == 3: raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): tiny.build(out=tmp_path / "old", recipe=tiny.smaller(tiny.recipe_of("gsm8k")), progress=stop)
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")] == ["old", "old/kept"]


# The one that writes programs

def test_programs_start_where_grpo_has_something_to_reinforce():
    "Some solve, fewer than one in ten; most can be played; hardly two are the same; all of them end."
    m = tiny.verify(CODE)["measured"]
    assert m["n"] == 256 and 0.02 < m["sampled"] < 0.10 and m["format"] > 0.4 and m["distinct"] > 200 and m["truncated"] < 1 / 3


def test_lines_as_tokens():
    tok, recipe = load_tokenizer(CODE), tiny.recipe_of("sudoku")
    added = tok.backend.get_added_tokens_decoder()
    assert {t.content for t in added.values() if t.special} == set(tiny.SPECIAL)
    assert {t.content for t in added.values() if not t.special} == {*sudoku.PROMPT.split("\n"), tiny.FENCE}
    assert len(tok) == tiny.model_config(CODE)["vocab_size"] == recipe.vocab
    fence, = tok.encode(tiny.FENCE)
    assert tok.eos_ids == (tiny.END_OF_TURN, fence)
    prompt = encode_prompt(sudoku.messages(), tok)
    assert prompt[0] == 2 and prompt.count(2) == 1 and len(prompt) <= 32
    lengths = []
    for s in sudoku.strategies(600, 5):                                                   # not those that it was trained on
        ids = tok.encode(s.text)
        assert tok.decode(ids) == tok.decode(ids, skip_special_tokens=True) == s.text
        assert (ids[-1] == fence) == s.text.endswith("\n```") and fence not in ids[:-1]
        lengths.append(len(ids) + 1)
    assert max(lengths) <= recipe.max_tokens and np.median(lengths) < 40
    for text in ("naïve ½ 🙂", "a\tb\n\n c", "\n```python", "x\n  \n```\n"): assert tok.decode(tok.encode(text)) == text


def test_transformers_reads_the_same_lines():
    transformers = pytest.importorskip("transformers")
    theirs, ours = transformers.AutoTokenizer.from_pretrained(CODE), load_tokenizer(CODE)
    ids = theirs.apply_chat_template([sudoku.messages()], add_generation_prompt=True, return_dict=True)["input_ids"][0]
    assert ids == encode_prompt(sudoku.messages(), ours)
    for s in sudoku.strategies(50, 6): assert theirs(s.text, add_special_tokens=False)["input_ids"] == ours.encode(s.text)
    assert transformers.GenerationConfig.from_pretrained(CODE).eos_token_id == list(ours.eos_ids)


def test_it_is_a_gemma_4_with_shared_layers():
    "As large Gemma 4s store it: no keys and values of their own in the last layers, an embedding for each layer."
    c, names = tiny.model_config(CODE), set(read_header(CODE / "model.safetensors"))
    assert (c["model_type"], c["architectures"], c["num_kv_shared_layers"], c["hidden_size_per_layer_input"]) == ("gemma4_text", ["Gemma4ForCausalLM"], 2, 8)
    own = {n.split(".")[2] for n in names if "k_proj" in n}
    assert own == {"0", "1"} and c["layer_types"] == ["sliding_attention", "full_attention"] * 2 and any("embed_tokens_per_layer" in n for n in names)


def test_a_fence_ends_a_program():
    pytest.importorskip("torch")
    with tiny.one_thread():
        generate = tiny.completer(CODE, 80)
        answers = generate([sudoku.messages()] * 48, False, 3)
    assert answers == generate([sudoku.messages()] * 48, False, 3)
    assert sum(generate.cut) <= 8 and len(generate.cut) == 96
    ended = [a for a in answers if a.endswith("\n```")]
    assert len(ended) > 30 and all("\n```" not in a[:-4] for a in answers) and not any("<" + "end_of_turn>" in a for a in answers)


def test_programs_measured_again():
    pytest.importorskip("torch")
    made = tiny.verify(CODE)
    again, _ = tiny.measure(CODE, replace(tiny.recipe_of("sudoku"), held_out=128), seed=1)
    for key in ("sampled", "format"):
        p = made["measured"][key]
        assert abs(again[key] - p) < 4 * (p * (1 - p) * (1 / 128 + 1 / 256)) ** 0.5


def test_a_smaller_programmer_is_built_the_same_twice(tmp_path):
    pytest.importorskip("torch")
    recipe = replace(tiny.smaller(tiny.recipe_of("sudoku")), steps=12, held_out=4, max_tokens=20)
    made = [tiny.verify(tiny.build("sudoku", out=tmp_path / name, recipe=recipe)) for name in "ab"]
    assert made[0] == made[1] and made[0]["recipe"]["family"] == "gemma4"
    with pytest.raises(ValueError, match="choose one of gemma3, gemma4"): tiny.new_model(replace(recipe, family="gemma5"), 300)
