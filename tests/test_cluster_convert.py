"The two conversions: every setting is one that MaxText's programs know, and what is easily forgotten is caught."
import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from grpo_tutorials.cluster.convert import MODULES, faults, given, to_huggingface, to_maxtext


pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")      # MaxText's own


def source(module: str) -> str:
    try: return Path(distribution("maxtext").locate_file(module.replace(".", "/") + ".py")).read_text()
    except PackageNotFoundError: pytest.fail("the maxtext wheel is not installed: scripts/setup all")


LINES = {"to-maxtext": to_maxtext("gs://my-bucket/gemma4-e4b"), "to-huggingface": to_huggingface("gs://my-bucket/x/checkpoints/actor/500/model_params", "out/folder")}


@pytest.mark.parametrize("way", LINES)
def test_both_programs_know_every_setting(way):
    text, line = source(MODULES[way]), LINES[way]
    assert line[:4] == ["python3", "-m", MODULES[way], "maxtext/configs/base.yml"] and faults(line) == []
    for word in line[4:]:
        if word.startswith("--"): assert f'"{word.split("=")[0]}"' in text or f'"{word[2:].split("=")[0]}"' in text, word


@pytest.mark.parametrize("way", LINES)
def test_maxtexts_configuration_takes_the_rest(way, tmp_path):
    yml = distribution("maxtext").locate_file("maxtext/configs/base.yml")
    from maxtext.configs import pyconfig
    args = [w for w in LINES[way][4:] if not w.startswith("--")]
    loaded = pyconfig.initialize_pydantic([way, str(yml), *args])
    assert loaded.model_name == "gemma4-e4b" and loaded.scan_layers is False and loaded.base_output_directory.rstrip("/") in {"gs://my-bucket/gemma4-e4b", "out/folder"}
    with pytest.raises(Exception, match="scan_layers"): pyconfig.initialize_pydantic([way, str(yml), *[a.replace("scan_layers=False", "scan_layers=True") for a in args]])


def test_the_default_that_is_guarded_against_is_there():
    assert '"gemma4-e4b": "google/gemma-4-E4B-it"' in source("maxtext.utils.globals")
    assert re.search(r"hf_tokenizer_id = FLAGS.hf_model_path or HF_IDS", source(MODULES["to-huggingface"]))


@pytest.mark.parametrize("words, says", [
    ("model_name=gemma4-e4b --hf_model_path=google/gemma-4-E4B", "scan_layers is not given, so True"), ("model_name=gemma4-e4b scan_layers=True --hf_model_path=google/gemma-4-E4B", "scan_layers is True"),
    ("model_name=gemma4-e4b scan_layers=False", "--hf_model_path is not given"), ("model_name=gemma4-e4b scan_layers=False --hf_model_path=google/gemma-4-E4B-it", "instruction-tuned"),
    ("model_name=gemma4-e4b scan_layers=False --hf_model_path google/gemma-4-E4B-it/", "instruction-tuned"), ("model_name=gemma4-e4b scan_layers=False hf_model_path=google/gemma-4-E4B hf_access_token=hf_secret", "HF_TOKEN"),
    ("scan_layers=False --hf_model_path=google/gemma-4-E4B", "model_name"), ("model_name=gemma3-4b scan_layers=False --hf_model_path=x", "model_name"),
])
def test_what_is_easily_forgotten(words, says):
    [line] = faults(words.split())
    assert says in line and "hf_secret" not in line


def test_wrong_calls():
    for f in (lambda: to_maxtext("gs://my-bucket/x", scan_layers=True), lambda: to_maxtext("gs://my-bucket/x", hf_model_path="google/gemma-4-E4B-it"), lambda: to_maxtext("gs://my-bucket/x", model="gemma9"), lambda: to_maxtext("<OUT>"),
              lambda: to_maxtext("a b"), lambda: to_maxtext(""), lambda: to_maxtext("s3://b/x"), lambda: to_huggingface("", "x"), lambda: to_huggingface("gs://my-bucket/x", "gs://B/x")):
        with pytest.raises(ValueError) as e: f()
        assert "\n" not in str(e.value)


def test_the_other_model_of_the_family():
    assert given(to_maxtext("out", model="gemma4-e2b"))["hf_model_path"] == "google/gemma-4-E2B"


@pytest.mark.parametrize("path, says", [("", "hf_model_path is ''"), ("google/gemma-4-E2B", "is not gemma4-e4b"), ("google/gemma-4-e4b-IT/", "instruction-tuned"), ("my model", "without blanks"), ("<MODEL>", "without blanks"),
                                        ("hf_" + "aB3" * 12, "others can read it")])
def test_a_model_that_cannot_be_meant(path, says):
    for call in (lambda: to_maxtext("out", hf_model_path=path), lambda: to_huggingface("gs://my-bucket/x", "out", hf_model_path=path)):
        with pytest.raises(ValueError, match=re.escape(says)) as e: call()
        assert "\n" not in str(e.value) and "aB3" not in str(e.value)
    with pytest.raises(ValueError, match="whole bucket"): to_huggingface("gs://my-bucket", "out")
