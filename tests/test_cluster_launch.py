"""From seven variables to a job: MaxText's own script and ours make the same calls, everything that can be known to be wrong is said in
one line before anything is called, and the token is nowhere. The programs of the cloud are fakes that write down what they are called with."""
import json
import os
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from grpo_tutorials.cli import app
from grpo_tutorials.cluster import launch
from grpo_tutorials.cluster.launch import OPTIONAL, OWN, PROGRAMS, Faults, by_gcluster, by_jobset, read_job

ROOT = Path(__file__).resolve().parent.parent
DOOR = ROOT / "scripts/run_gemma4_e4b_rl.sh"
VALUES = {v.name: v.example for v in OWN}
CLEAN = {k: v for k, v in os.environ.items() if k not in {x.name for x in OWN + OPTIONAL} | {"HF_TOKEN"}}
TOKEN = "hf_this_must_not_be_seen"


@pytest.fixture
def cloud(tmp_path):
    "Fakes for gcluster, kubectl and gcloud; `says(words, status)` makes a call that contains these words fail."
    folder, record, rules = tmp_path / "bin", tmp_path / "calls.jsonl", tmp_path / "rules.json"
    folder.mkdir()
    rules.write_text("[]")
    for name in PROGRAMS:
        fake = folder / name
        fake.write_text(f"""#!{sys.executable} -SE
import json, os, sys
line = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
stdin = "" if line[0] != "kubectl" or "-" not in line else sys.stdin.read()
open({str(record)!r}, "a").write(json.dumps(dict(argv=line, stdin=stdin, token=os.environ.get("HF_TOKEN"))) + "\\n")
for words, status, out in json.load(open({str(rules)!r})):
    if all(w in " ".join(line) for w in words):
        print(out, file=sys.stderr if status else sys.stdout)
        sys.exit(status)
print("ya29.secret" if "print-access-token" in line else "1" if "deployment" in line else "True")
""")
        fake.chmod(0o755)

    class Cloud:
        path = f"{folder}{os.pathsep}{os.path.dirname(shutil.which('bash'))}{os.pathsep}/usr/bin{os.pathsep}/bin"
        bin = folder
        def says(self, words, status=1, out="no"): rules.write_text(json.dumps(json.loads(rules.read_text()) + [[words.split(), status, out]]))
        @property
        def calls(self): return [json.loads(l) for l in record.read_text().splitlines()] if record.exists() else []
        @property
        def argv(self): return [c["argv"] for c in self.calls]
        def process(self, *args, **env): return subprocess.run([sys.executable, "-m", "grpo_tutorials", "tpu", *args], env={**CLEAN, "PATH": self.path, **env}, capture_output=True, text=True, cwd=tmp_path, timeout=120)

        def run(self, *args, **env):
            "In this process: quicker, but what the fakes print is not seen."
            gone = {v.name: None for v in OWN + OPTIONAL} | {"HF_TOKEN": None}
            r = CliRunner(env={**gone, "PATH": self.path, **env}).invoke(app, ["tpu", *args])
            if r.exception and not isinstance(r.exception, SystemExit): raise r.exception
            return SimpleNamespace(returncode=r.exit_code, stdout=r.stdout, stderr=r.stderr)
        def door(self, *args, **env): return subprocess.run(["bash", str(DOOR), *args], env={**CLEAN, "PATH": self.path, "VIRTUAL_ENV": sys.prefix, **env}, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    return Cloud()


def reference() -> Path:
    try: return Path(distribution("maxtext").locate_file("maxtext/trainers/post_train/rl/scripts/run_gemma4_e4b_rl.sh"))
    except PackageNotFoundError: pytest.fail("the maxtext wheel is not installed: scripts/setup all")


def errors(done) -> list[str]:
    "Every line of stderr is an error of one line."
    lines = done.stderr.splitlines()
    assert lines and all(l.startswith("error: ") and len(l) > 20 for l in lines) and "Traceback" not in done.stderr, done.stderr
    return [l.removeprefix("error: ") for l in lines]


# ---------------------------------------------------------------- golden

def test_word_by_word_what_maxtexts_script_calls(cloud):
    subprocess.run(["bash", str(reference())], env={**CLEAN, "PATH": cloud.path, **VALUES}, check=True, capture_output=True)
    theirs = cloud.argv
    assert [s.argv for s in by_gcluster(read_job(VALUES))] == theirs, "no difference is wanted here"
    assert len(theirs) == 4 and len(shlex.split(theirs[-1][-1].removeprefix("--command="))) == 14 + 3 + 70


def test_also_with_every_variable_set(cloud):
    digest = "@sha256:" + "a" * 64
    env = {**VALUES, "TOPOLOGY": "4x4", "PATHWAYS_SERVER_IMAGE": "gcr.io/p/server" + digest, "PATHWAYS_PROXY_SERVER_IMAGE": "gcr.io/p/proxy:2", "RUN_NAME": "x" * 22, "BASE_OUTPUT_DIRECTORY": "gs://my.bucket_1/a=b/c"}
    subprocess.run(["bash", str(reference())], env={**CLEAN, "PATH": cloud.path, **env}, check=True, capture_output=True)
    job = read_job(env, changes=["rollout_data_parallelism=4"])     # half the chips, so half the replicas: the reference would submit a job that fails
    ours = [s.argv for s in by_gcluster(job)]
    assert [[w.replace("rollout_data_parallelism=4", "rollout_data_parallelism=8") for w in a] for a in ours] == cloud.argv


def test_the_door_submits_the_same(cloud):
    subprocess.run(["bash", str(reference())], env={**CLEAN, "PATH": cloud.path, **VALUES}, check=True, capture_output=True)
    theirs = cloud.argv
    done = cloud.door(**VALUES, HF_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    ours = cloud.argv[len(theirs):]
    assert [a for a in ours if a[0] == "gcluster"] == theirs
    assert all(a[0] == "gcloud" for a in ours[:-4]) and "console.cloud.google.com" in done.stdout


# ---------------------------------------------------------------- the token

@pytest.mark.parametrize("backend", ["gcluster", "jobset"])
def test_the_token_is_in_no_argument_no_log_and_no_environment(cloud, backend):
    for command in (["submit"], ["status"], ["logs"]):
        done = cloud.process(*command, "--backend", backend, **VALUES, HF_TOKEN=TOKEN)
        assert done.returncode == 0, done.stderr
        assert TOKEN not in done.stdout + done.stderr and "ya29.secret" not in done.stdout + done.stderr
    assert cloud.calls and TOKEN not in json.dumps(cloud.calls) and all(c["token"] is None for c in cloud.calls)


def test_the_jobset_takes_it_from_a_secret(cloud):
    yaml = pytest.importorskip("yaml")
    done = cloud.run("submit", "--backend", "jobset", **VALUES)
    assert done.returncode == 0, done.stderr
    [create] = [c for c in cloud.calls if "create" in c["argv"] and "-" in c["argv"]]
    manifest = yaml.safe_load(create["stdin"])
    assert manifest == yaml.safe_load(by_jobset(read_job(VALUES))[0].stdin)
    env = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN"}}} in env


def test_a_token_among_the_flags_is_refused(cloud):
    done = cloud.run("submit", "--set", f"hf_access_token={TOKEN}", **VALUES)
    assert done.returncode == 2 and TOKEN not in done.stderr + done.stdout and cloud.argv == [] and "secret" in errors(done)[0]


def test_the_secrets_command_keeps_it_out_of_the_arguments():
    line = launch.secret_command(read_job(VALUES))
    assert line.startswith('printf %s "$HF_TOKEN" | kubectl') and "--from-file=HF_TOKEN=/dev/stdin" in line and line.count("HF_TOKEN\"") == 1


# ---------------------------------------------------------------- bad input (H03, H04, H06)

PLACEHOLDERS = ["your-{}", "gs://your-bucket/x", "changeme", "TODO", "null", "<{}>", "<your value>", "gs://<BUCKET>/x", "${{{}}}", "$OTHER"]


@pytest.mark.parametrize("name", list(VALUES))
def test_a_variable_that_is_not_there(cloud, name):
    for text in (None, "", "  ", *(p.format(name) for p in PLACEHOLDERS), VALUES[name] + " ", "a b", VALUES[name] + "\n", "a\tb", "\u00e9", "'x'", "-"):
        env = {k: v for k, v in VALUES.items() if k != name} | ({} if text is None else {name: text})
        with pytest.raises(Faults) as e: read_job(env)
        assert len(e.value.lines) == 1 and e.value.lines[0].startswith(f"{name} is ") and "\n" not in e.value.lines[0], (text, e.value.lines)


@pytest.mark.parametrize("door", [True, False])
@pytest.mark.parametrize("env", [{}, {"PROJECT_ID": ""}, {"PROJECT_ID": "<PROJECT_ID>"}], ids=str)
def test_nothing_is_called_and_all_are_named(cloud, env, door):
    done = (cloud.door if door else lambda **e: cloud.process("submit", **e))(**env)
    lines = errors(done)
    assert done.returncode == 2 and done.stdout == "" and cloud.argv == []
    assert [l.split()[0] for l in lines] == list(VALUES)


@pytest.mark.parametrize("name, text, words", [
    ("ZONE", "us-central", "zone or region"), ("ZONE", "us-east5-b,us-east5-c", "zone or region"), ("RUN_NAME", "x" * 23, "at most 22"), ("RUN_NAME", "my_run", "RFC 1035"), ("RUN_NAME", "run-", "RFC 1035"),
    ("RUN_NAME", "1run", "RFC 1035"), ("RUN_NAME", "My-Run", "RFC 1035"), ("BASE_OUTPUT_DIRECTORY", "my-bucket", "gs://"), ("BASE_OUTPUT_DIRECTORY", "s3://my-bucket", "gs://"), ("BASE_OUTPUT_DIRECTORY", "gs://B", "cannot be a bucket"),
    ("MAXTEXT_CKPT_PATH", "gs://my-bucket", "whole bucket"), ("MAXTEXT_CKPT_PATH", "./ckpt", "gs://"), ("DOCKER_IMAGE", "maxtext_base_image", "not an image reference"), ("DOCKER_IMAGE", "us-docker.pkg.dev/p/r/i", "without a tag"),
    ("DOCKER_IMAGE", "us-docker.pkg.dev/p/i:1", "PROJECT/REPOSITORY/IMAGE"), ("PROJECT_ID", "My-Project", "project's ID"), ("CLUSTER_NAME", "my_cluster", "small letters"), ("TOPOLOGY", "4x9", "v6e slice"), ("TOPOLOGY", "32", "v6e slice"),
    ("COMPUTE_TYPE", "v6e-32", "COMPUTE_TYPE"), ("PATHWAYS_SERVER_IMAGE", "server", "not an image reference"), ("PATHWAYS_PROXY_SERVER_IMAGE", "gcr.io/p/proxy", "without a tag"), ("GKE_NAMESPACE", "My Space", "GKE_NAMESPACE"),
])
def test_a_value_that_cannot_be_right(cloud, name, text, words):
    done = cloud.run("submit", **{**VALUES, name: text})
    [line] = errors(done)
    assert done.returncode == 2 and name in line and words in line and cloud.argv == [] and done.stdout == ""


def test_several_faults_are_several_lines(cloud):
    done = cloud.run("submit", "--set", "rl.num_generation=8", "--set", "scan_layers=true", "--set", "oops", **{**VALUES, "ZONE": "<ZONE>", "RUN_NAME": ""})
    assert done.returncode == 2 and [l.split()[0] for l in errors(done)] == ["ZONE", "RUN_NAME", "unknown", "--set", "scan_layers"] and cloud.argv == []


@pytest.mark.parametrize("backend, gone", [("gcluster", ["gcluster"]), ("gcluster", ["gcloud"]), ("jobset", ["kubectl"]), ("jobset", ["kubectl", "gcloud"])])
def test_a_program_that_is_missing(cloud, tmp_path, backend, gone):
    for name in gone: (cloud.bin / name).unlink()
    done = cloud.run("submit", "--backend", backend, **VALUES, PATH=str(cloud.bin))
    assert done.returncode == 2 and [l.split()[0] for l in errors(done)] == gone and cloud.argv == []


@pytest.mark.parametrize("backend, words, line", [
    ("gcluster", "auth print-access-token", "gcloud auth login"), ("gcluster", "buckets describe gs://example-bucket", "there is no bucket gs://example-bucket"), ("gcluster", "storage ls", "MAXTEXT_CKPT_PATH"),
    ("gcluster", "images describe", "DOCKER_IMAGE"), ("jobset", "auth print-access-token", "gcloud auth login"), ("jobset", "get-contexts", "get-credentials example-cluster"), ("jobset", "can-i create", "may not create JobSets"),
    ("jobset", "get secret", "no secret hf-token"),
])
def test_what_a_program_says_no_to(cloud, backend, words, line):
    cloud.says(words)
    done = cloud.run("submit", "--backend", backend, **VALUES)
    [said] = errors(done)
    assert done.returncode == 2 and line in said and done.stdout == ""
    assert not [a for a in cloud.argv if "submit" in a or "-f" in a or a[:2] == ["gcluster", "job"]], "something was submitted"


def test_the_cluster_says_no(cloud):
    cloud.says("job submit", 7, "quota exceeded")
    done = cloud.process("submit", **VALUES)
    assert done.returncode == 1 and done.stderr.splitlines()[0] == "quota exceeded" and "exit status 7" in done.stderr.splitlines()[-1]


def test_a_pointing_that_fails_ends_it(cloud):
    cloud.says("config set cluster", 3)
    assert cloud.run("submit", **VALUES).returncode == 1 and not [a for a in cloud.argv if "submit" in a]


def test_the_seeds_line_pasted_as_it_stands_is_a_syntax_error(cloud):
    done = subprocess.run(["bash", "-c", "export PROJECT_ID=<PROJECT_ID>"], capture_output=True)
    assert done.returncode != 0
    page = "".join("".join(c["source"]) for nb in (ROOT / "nbs/cluster").glob("*.ipynb") for c in json.loads(nb.read_text())["cells"])
    for line in (page + DOOR.read_text()).splitlines():
        if line.lstrip("# ").startswith("export ") and "=" in line: subprocess.run(["bash", "-n", "-c", line.lstrip("# ")], check=True)


# ---------------------------------------------------------------- check, render, status, logs

def test_check_and_render_call_nothing(cloud):
    for args in (["check"], ["render"], ["render", "--backend", "jobset"], ["render", "--image"], ["check", "--backend", "jobset", "--json"], ["render", "--json"]):
        done = cloud.run(*args, **VALUES, HF_TOKEN=TOKEN)
        assert done.returncode == 0 and done.stderr == "" and TOKEN not in done.stdout, (args, done.stderr)
        assert cloud.run(*args, "--example").returncode == 0
    assert cloud.argv == []


def test_what_is_rendered_is_what_is_submitted(cloud, tmp_path):
    text = cloud.run("render", **VALUES).stdout
    (tmp_path / "job.sh").write_text(text)
    subprocess.run(["bash", "-eu", str(tmp_path / "job.sh")], env={**CLEAN, "PATH": cloud.path}, check=True)
    assert cloud.argv == [s.argv for s in by_gcluster(read_job(VALUES))]
    assert json.loads(cloud.run("render", "--json", **VALUES).stdout)["commands"] == cloud.argv


def test_templates_ours(cloud):
    text = cloud.run("render", "--templates", "ours", **VALUES).stdout
    assert "/opt/grpo_tutorials/chat_templates/gemma4.json" in text and "gemma-3-27b" not in text
    assert cloud.run("render", "--templates", "mine", **VALUES).returncode == 2
    dockerfile = (ROOT / "scripts/image/Dockerfile").read_text()
    assert "/opt/grpo_tutorials/chat_templates/" in dockerfile


def test_check_names_faults_in_json_too(cloud):
    done = cloud.run("check", "--json", **{**VALUES, "ZONE": ""})
    assert done.returncode == 2 and json.loads(done.stdout)["problems"] == errors(done)


def test_check_cluster(cloud):
    done = cloud.run("check", "--cluster", **VALUES)
    assert done.returncode == 0 and "Kueue" in done.stdout and all(a[0] == "kubectl" and a[1] == "--context=gke_example-project_us-east5-b_example-cluster" for a in cloud.argv)
    cloud.says("kueue-controller-manager", 1, "deployments.apps not found")
    done = cloud.run("check", "--cluster", **VALUES)
    assert done.returncode == 1 and "NOT GOOD: deployments.apps not found" in done.stdout
    done = cloud.run("check", "--cluster", "--json", **VALUES)
    assert done.returncode == 1 and [c["good"] for c in json.loads(done.stdout)["cluster"]] == [False, True, True]
    (cloud.bin / "kubectl").unlink()
    done = cloud.run("check", "--cluster", **VALUES, PATH=str(cloud.bin))
    assert done.returncode == 2 and errors(done)[0].startswith("kubectl is not on the PATH")


def test_status_and_logs(cloud):
    few = {k: VALUES[k] for k in ("PROJECT_ID", "CLUSTER_NAME", "ZONE", "RUN_NAME")}
    for args, want in ((["status"], ["gcluster job list"]), (["logs"], ["gcluster job logs rl-test --main-only=false"]),
                       (["status", "--backend", "jobset"], ["get jobset rl-test", "get pods -l jobset.sigs.k8s.io/jobset-name=rl-test"]),
                       (["logs", "--backend", "jobset"], ["logs -f -l jobset.sigs.k8s.io/jobset-name=rl-test --all-containers=true --max-log-requests=64"])):
        before = len(cloud.argv)
        done = cloud.run(*args, **few)
        assert done.returncode == 0 and "https://console.cloud.google.com/" in done.stderr
        assert len(cloud.argv[before:]) == len(want) and all(w in " ".join(a) for w, a in zip(want, cloud.argv[before:]))
    done = cloud.run("logs", **{k: v for k, v in few.items() if k != "RUN_NAME"})
    assert done.returncode == 2 and errors(done)[0].startswith("RUN_NAME is not set")
    cloud.says("get jobset", 1, "not found")
    assert cloud.run("status", "--backend", "jobset", **few).returncode == 1


def test_wrong_calls(cloud):
    for args, words in ((["submit", "--backend", "helm"], "gcluster or jobset"), (["nope"], "no such command"), (["convert", "up", "--out", "x"], "to-maxtext"), (["check", "--set", "x=1", "--example"], "unknown flag")):
        done = cloud.run(*args, **VALUES)
        assert done.returncode == 2 and words in errors(done)[0] and cloud.argv == []


# ---------------------------------------------------------------- the scripts and the image

@pytest.mark.parametrize("script", ["scripts/run_gemma4_e4b_rl.sh", "scripts/xpk_manifest"])
def test_shellcheck(script):
    program = shutil.which("shellcheck") or str(Path(sys.executable).parent / "shellcheck")
    assert Path(program).exists(), "shellcheck is not installed: scripts/setup all"
    done = subprocess.run([program, str(ROOT / script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert os.access(ROOT / script, os.X_OK)


def test_the_door_is_thin_and_finds_the_environment_itself(cloud, tmp_path):
    text = DOOR.read_text()
    assert "gcluster" not in text and "exec" in text and len([l for l in text.splitlines() if l and not l.startswith("#")]) < 20
    lost = tmp_path / "clone/scripts"
    lost.mkdir(parents=True)
    shutil.copy(DOOR, lost)
    done = subprocess.run(["bash", str(lost / DOOR.name)], env={"PATH": f"{cloud.bin}:/usr/bin:/bin", "HOME": str(tmp_path)}, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and (errors(done)[0].startswith("no environment") or len(errors(done)) == 7)


def test_the_dockerfile_copies_what_there_is_and_moves_nothing_below():
    lines = [l for l in (ROOT / "scripts/image/Dockerfile").read_text().replace("\\\n", " ").splitlines() if l and not l.startswith("#")]
    assert lines[0] == "ARG BASE_IMAGE=maxtext_base_image" and lines[1] == "FROM ${BASE_IMAGE}"
    let_in = {l[1:] for l in (ROOT / "scripts/image/Dockerfile.dockerignore").read_text().splitlines() if l.startswith("!")}
    for line in lines:
        if line.startswith("COPY "):
            for source in line.split()[1:-1]:
                assert list(ROOT.glob(source)), source
                assert source.split("/")[0] in let_in, f"{source} is kept from the builder"
        if "pip install" in line: assert "--no-deps" in line
    assert any("import maxtext" in l for l in lines)


def test_the_image_cannot_be_built_under_a_digest():
    with pytest.raises(ValueError, match="give a tag"): launch.image_steps(read_job({**VALUES, "DOCKER_IMAGE": "gcr.io/p/i@sha256:" + "0" * 64}))


def test_examples_are_right():
    job = read_job(VALUES)
    assert read_job({**VALUES, **{v.name: v.example for v in OPTIONAL}}) == job
    assert launch.console(job)["log"].count(" ") == 0 and "rl-test-" in launch.console(job)["log"]


def test_the_transcripts_are_what_the_commands_print():
    done = subprocess.run([sys.executable, str(ROOT / "scripts/transcripts"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- programs that do not answer, tokens in the wrong place

def fake(cloud, name, body):
    file = cloud.bin / name
    file.write_text(body)
    file.chmod(0o755)


@pytest.fixture
def impatient(monkeypatch):
    "A second in place of the minute that a question is given."
    run = subprocess.run
    def quick(*args, timeout=None, **options): return run(*args, timeout=timeout and 1, **options)
    monkeypatch.setattr(launch.subprocess, "run", quick)


@pytest.mark.parametrize("backend, name, body, words", [
    ("gcluster", "gcloud", "#!/bin/sh\nexec sleep 30\n", "gcloud did not answer in 60 seconds"), ("gcluster", "gcloud", "#!/bin/sh\nkill -9 $$\n", "gcloud was ended by signal 9"),
    ("gcluster", "gcloud", '#!/bin/sh\ncase "$*" in *buckets*) exec sleep 30;; esac\n', "gcloud did not answer in 60 seconds"), ("jobset", "kubectl", "#!/bin/sh\nexec sleep 30\n", "kubectl did not answer"),
    ("gcluster", "gcloud", "#!/no/such/program\n", "gcloud is on the PATH and cannot be started"), ("gcluster", "gcloud", "\x7fELF", "gcloud is on the PATH and cannot be started"),
    ("gcluster", "gcluster", "#!/no/such/program\n", "gcluster is on the PATH and cannot be started"), ("jobset", "kubectl", "\x7fELF", "kubectl is on the PATH and cannot be started"),
])
def test_a_program_that_does_not_answer_has_not_said_no(cloud, impatient, backend, name, body, words):
    fake(cloud, name, body)
    done = cloud.run("submit", "--backend", backend, **VALUES, PATH=str(cloud.bin) if "/bin/sh" not in body else cloud.path)
    [line] = errors(done)
    assert done.returncode == 2 and words in line and not [a for a in cloud.argv if "submit" in a or "-f" in a]


@pytest.mark.parametrize("body", ["#!/bin/sh\nprintf '\\377\\376' >&2; exit 3\n", "#!/bin/sh\nprintf '\\377\\376'\n", "#!/bin/sh\necho '3 3'\n", "#!/bin/sh\nkill -9 $$\n", "#!/bin/sh\nexec sleep 30\n"])
def test_an_odd_answer_about_the_cluster_is_not_good_health(cloud, impatient, body):
    fake(cloud, "kubectl", body)
    done = cloud.run("check", "--cluster", "--json", **VALUES)
    assert done.returncode == 1 and not any(c["good"] for c in json.loads(done.stdout)["cluster"])


@pytest.mark.parametrize("name", [*VALUES, "HF_TOKEN_SECRET", "TOPOLOGY", "GKE_NAMESPACE"])
def test_a_token_in_the_wrong_variable_is_not_repeated(cloud, name):
    token = "hf_" + "aB3" * 12
    for text in (token, f"gs://example-bucket/{token}"):
        done = cloud.run("check", "--json", **{**VALUES, name: text})
        assert done.returncode == 2 and token not in done.stdout + done.stderr and name in done.stderr


@pytest.mark.parametrize("change", ["tokenizer_path=/x/{}", "hf_name={}", "rl.num_generations={}", "{}", "HF_TOKEN={}", 'vllm_hf_overrides={{"architectures": ["MaxTextForCausalLM"], "hf_token": "{}"}}'])
def test_a_token_in_a_flag_is_not_rendered(cloud, change):
    token = "hf_" + "aB3" * 12
    for backend in ("gcluster", "jobset"):
        done = cloud.run("render", "--backend", backend, "--set", change.format(token), **VALUES)
        assert done.returncode == 2 and token not in done.stdout + done.stderr and len(errors(done)) >= 1


def test_programs_inherit_no_token():
    token = "hf_" + "aB3" * 12
    left = launch.without_secrets({"HF_TOKEN": "x", "HUGGINGFACE_TOKEN": "x", "HF_HUB_TOKEN": "x", "HUGGING_FACE_HUB_TOKEN": "x", "MINE": f"a {token}", "PATH": "/bin", "HF_HOME": "/h"})
    assert left == {"PATH": "/bin", "HF_HOME": "/h"}


def test_an_image_with_tag_and_digest_is_asked_for_by_its_digest():
    digest = "@sha256:" + "0" * 64
    job = read_job({**VALUES, "DOCKER_IMAGE": VALUES["DOCKER_IMAGE"] + digest})
    [asked] = [s.argv for s in launch.questions(job, "gcluster") if "artifacts" in s.argv]
    assert VALUES["DOCKER_IMAGE"].rpartition(":")[0] + digest in asked


def test_names_in_the_cluster_may_be_longer_than_a_node_pool():
    for name in ("GKE_NAMESPACE", "KUEUE_QUEUE", "HF_TOKEN_SECRET"):
        for good in ("9-lives", "a" * 63): assert read_job({**VALUES, name: good})
        for bad in ("a" * 64, "my_ns", "-a", "a-", "A"):
            with pytest.raises(Faults, match=name): read_job({**VALUES, name: bad})


def test_the_door_is_found_whatever_cd_would_say(cloud, tmp_path):
    (tmp_path / "scripts").mkdir()
    done = subprocess.run(["bash", f"scripts/{DOOR.name}"], env={**CLEAN, "PATH": cloud.path, "CDPATH": str(tmp_path), "VIRTUAL_ENV": sys.prefix}, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 2 and [l.split()[0] for l in errors(done)] == list(VALUES) and done.stdout == ""
