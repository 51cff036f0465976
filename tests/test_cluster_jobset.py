"The Pathways JobSet: valid for Kubernetes, and xpk's but for the differences that the notebook defends."
import json
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from grpo_tutorials.cluster.jobset import DEFENDED, JobSet, differences, flat, jobs, pathways
from grpo_tutorials.cluster.recipe import PROXY_IMAGE, SERVER_IMAGE, gemma4_e4b, proxy_args

yaml = pytest.importorskip("yaml")
MANIFEST = Path(__file__).parent / "data/xpk_v6e32.yaml"
IMAGE = "us-docker.pkg.dev/example-project/maxtext/rl:1"


def built(**flags) -> JobSet:
    recipe = gemma4_e4b("rl-test", "gs://example-bucket/runs", "gs://example-bucket/gemma4-e4b/0/items", **flags)
    return pathways(recipe, IMAGE, SERVER_IMAGE, PROXY_IMAGE)


def theirs() -> dict: return yaml.safe_load(MANIFEST.read_text())


@pytest.mark.parametrize("version", ["1.30", "1.33"])
def test_every_job_is_valid_for_kubernetes(version):
    import kubernetes_validate
    for job in jobs(built().as_dict()) + jobs(theirs()): kubernetes_validate.validate(job, version, strict=True)


@pytest.mark.parametrize("old, new", [('"backoffLimit"', '"backofLimit"'), ('"hostNetwork": true', '"hostNetwork": "yes"'), ('"completions": 8', '"completions": "8"')])
def test_the_validation_is_strict(old, new):
    import kubernetes_validate
    text = json.dumps(jobs(built().as_dict())[1])
    assert old in text
    with pytest.raises(kubernetes_validate.ValidationError): kubernetes_validate.validate(json.loads(text.replace(old, new)), "1.33", strict=True)


def test_it_is_xpks_but_for_the_differences_that_are_defended():
    found = differences(built().as_dict(), theirs())
    assert [k for k in found if not any(fnmatchcase(k, p) for p, _ in DEFENDED)] == []
    for pattern, why in DEFENDED: assert any(fnmatchcase(k, pattern) for k in found) and why, f"{pattern} differs no more"
    assert len(flat(theirs())) > 100 and len(found) < len(flat(theirs())) / 2


def test_the_manifest_of_xpk_is_of_the_same_recipe():
    text = MANIFEST.read_text()
    assert text.startswith("# xpk 1.16.0") and "scripts/xpk_manifest" in text.splitlines()[0]
    head = theirs()["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert head["initContainers"][0]["args"][3:] == proxy_args(gemma4_e4b())
    recipe = gemma4_e4b("rl-test", "gs://example-bucket/runs", "gs://example-bucket/gemma4-e4b/0/items")
    from grpo_tutorials.cluster.recipe import command
    assert command(recipe) in head["containers"][0]["command"][2]


def test_a_difference_is_found_wherever_it_is():
    for change in (lambda s: s["coordinator"].update(replicatedJob="worker"), lambda s: s["replicatedJobs"][1]["template"]["spec"].update(parallelism=7), lambda s: s.pop("successPolicy"),
                   lambda s: s["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["initContainers"][0]["args"].pop(),
                   lambda s: s["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["initContainers"].pop()):
        ours = json.loads(json.dumps(built().as_dict()))
        change(ours["spec"])
        assert [k for k in differences(ours, theirs()) if not any(fnmatchcase(k, p) for p, _ in DEFENDED)]


def test_the_token_is_an_address(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret_value")
    text = built().to_yaml()
    assert "hf_secret_value" not in text and "secretKeyRef" in text


def test_a_smaller_slice():
    from dataclasses import replace
    recipe = replace(gemma4_e4b("rl-test", "gs://example-bucket/runs", "gs://example-bucket/x", rollout_data_parallelism=4), topology="4x4")
    workers = pathways(recipe, IMAGE, SERVER_IMAGE, PROXY_IMAGE).as_dict()["spec"]["replicatedJobs"][1]["template"]["spec"]
    assert workers["completions"] == 4 and workers["template"]["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"
