"The frame holds: settings, packaging, floors, what is not run, and what must not stand in the tree."

import ast
import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import frame  # noqa: E402

PACKAGE = ROOT / "grpo_tutorials"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, NBDEV = PYPROJECT["project"], PYPROJECT["tool"]["nbdev"]
EXTRAS = PROJECT["optional-dependencies"]
NOTEBOOKS = frame.notebooks()
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if "__pycache__" not in p.parts)
OURS = "grpo_tutorials"

# What each floor may import from. Engines never import one another: their own floor is not below them.
BELOW = {
    "core": set(),
    "tasks": {"core"},
    "models": {"core", "tasks"},
    "engines": {"core", "tasks", "models"},
    "cluster": {"core", "tasks", "models"},
    "cli": {"core", "tasks", "models", "engines", "cluster"},
}
SAME_FLOOR = {"core", "tasks", "models", "cluster", "cli"}   # rooms of one floor may use each other, but for the engines
HEAVY = ("torch", "jax", "jaxlib", "flax", "tunix", "qwix", "trl", "peft", "transformers", "tokenizers", "datasets", "matplotlib",
         "pandas", "sympy", "math_verify", "IPython", "nbdev", "fastcore")


# ---------------------------------------------------------------- pyproject.toml and settings.ini

def settings() -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "settings.ini", encoding="utf-8")
    return dict(parser["DEFAULT"])


def as_text(value) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


def twin() -> dict[str, str]:
    "What settings.ini has to say, read off pyproject.toml."
    urls, baseurl = PROJECT["urls"], PROJECT["urls"]["Documentation"]
    host, path = re.fullmatch(r"(https://[^/]+)(/.*?)/?", baseurl).groups()
    user, repo = re.fullmatch(r"https://github\.com/([^/]+)/([^/]+?)/?", urls["Repository"]).groups()
    squeezed = lambda requirements: " ".join(str(Requirement(r)).replace(" ", "") for r in requirements)
    return {
        "repo": repo, "lib_name": PROJECT["name"], "user": user, "git_url": urls["Repository"], "doc_host": host, "doc_baseurl": path,
        "description": PROJECT["description"], "keywords": " ".join(k.replace(" ", "-") for k in PROJECT["keywords"]),
        "author": PROJECT["authors"][0]["name"], "min_python": PROJECT["requires-python"].removeprefix(">="),
        "license": {"Apache-2.0": "apache2"}[PROJECT["license"]],
        "requirements": squeezed(PROJECT["dependencies"]), "dev_requirements": squeezed(EXTRAS["dev"]),
        "console_scripts": " ".join(f"{k}={v}" for k, v in PROJECT["scripts"].items()),
        **{k: as_text(v) for k, v in NBDEV.items()},
    }


@pytest.mark.parametrize("key", sorted(twin()))
def test_settings_ini_is_the_twin_of_pyproject(key):
    ini = settings()
    assert key in ini, f"settings.ini lacks {key} = {twin()[key]}"
    value = " ".join(sorted(ini[key].split())) if key.endswith("requirements") else ini[key]
    want = " ".join(sorted(twin()[key].split())) if key.endswith("requirements") else twin()[key]
    if key.endswith("requirements"):
        same = lambda text: sorted(str(Requirement(r)) for r in text.split())
        assert same(value) == same(want)
    else: assert value == want


def test_the_version_is_one():
    stated = re.search(r'^__version__ = "([^"]+)"', (PACKAGE / "__init__.py").read_text(), re.M)[1]
    assert settings()["version"] == stated
    assert PROJECT["dynamic"] == ["version"] and PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": f"{OURS}.__version__"}
    assert version(OURS) == stated, "the installed package is another version: scripts/setup"


def test_nbdev_reads_the_same_settings_from_pyproject():
    from nbdev.config import get_config

    cfg, ini = get_config(ROOT), settings()
    for key in ("title", "description", "branch", "git_url", "doc_host", "doc_baseurl", "user", "repo", "min_python", "tst_flags", "readme_nb"):
        assert as_text(cfg[key]) == ini[key], key
    for key in ("lib_path", "nbs_path", "doc_path"): assert cfg.get(key) == ROOT / ini[key], key
    for key in ("recursive", "custom_sidebar", "jupyter_hooks", "clean_ids", "clear_all", "put_version_in_init", "update_pyproject"):
        assert str(cfg[key]) == ini[key], key


# ---------------------------------------------------------------- dependencies

def requirements(*extras: str) -> list[Requirement]:
    "The requirements of the base install and of some extras, with extras that name extras followed."
    found = [Requirement(r) for r in [*PROJECT["dependencies"], *(r for e in extras for r in EXTRAS[e])]]
    inner = [e for r in found if r.name == OURS for e in sorted(r.extras)]
    return [r for r in found if r.name != OURS] + (requirements(*inner) if inner else [])


def pins(path: Path) -> dict[str, str]:
    "`{canonical name: version}` of a file of pins; every line is one."
    lines = [l.strip() for l in path.read_text().splitlines() if l.strip() and not l.startswith("#")]
    out = {}
    for line in lines:
        m = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!]+)", line)
        assert m, f"{path.name}: {line!r} is not NAME==VERSION"
        key = re.sub(r"[-_.]+", "-", m[1]).lower()
        assert key not in out, f"{path.name}: {m[1]} stands there twice"
        out[key] = m[2]
    return out


def canonical(r: Requirement) -> str: return re.sub(r"[-_.]+", "-", r.name).lower()


def test_everything_that_setup_installs_is_pinned_within_its_range():
    fixed = pins(ROOT / "scripts/constraints.txt")
    for r in requirements("cpu", "dev"):
        if canonical(r) == "setuptools": continue   # builds the package; pip's business
        assert canonical(r) in fixed, f"scripts/constraints.txt does not pin {r.name}"
        assert r.specifier.contains(fixed[canonical(r)]), f"{r} and the pin {fixed[canonical(r)]} disagree"


def test_the_second_environment_agrees_with_the_first():
    first, second = pins(ROOT / "scripts/constraints.txt"), pins(ROOT / "scripts/nbdev2.txt")
    assert second["nbdev"] == "2.4.14"
    for r in requirements(): assert r.specifier.contains(second[canonical(r)])
    for key in ("numpy", "jinja2", "typer", "rich", "tokenizers", "matplotlib", "math-verify"): assert first[key] == second[key], key


def test_extras():
    names = lambda *extras: {canonical(r) for r in requirements(*extras)}
    assert {"math", "tunix", "trl", "sandbox", "pod", "cpu", "tpu", "cuda", "unsloth", "dev"} <= EXTRAS.keys()
    assert names("cpu") == names("tunix", "trl", "math", "sandbox", "pod")
    assert "torch" not in names("tunix") | names("dev") | names(), "the first tutorial needs no torch"
    assert names() == {"numpy", "jinja2", "typer", "rich", "array-api-compat"}, "the base install is light"


def texts() -> list[Path]:
    "Every text file of the tree that a clone would have: what git does not ignore."
    skip = {".git", "__pycache__", "build", "dist", "_docs", "_proc", ".ipynb_checkpoints", ".pytest_cache", ".hypothesis", "runs"}
    out = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(d for d in folders if d not in skip and not d.startswith(".venv") and not d.endswith(".egg-info"))
        out += [Path(folder) / f for f in sorted(files) if Path(f).suffix in (".py", ".ipynb", ".md", ".toml", ".ini", ".txt", ".json", ".jsonl",
                ".jinja", ".yml", ".yaml", ".css", ".csv", ".sh", "") and not f.startswith((".venv", ".DS_Store"))]
    return [p for p in out if not p.is_symlink() and b"\0" not in p.read_bytes()[:4096]]


@pytest.mark.parametrize("path", [p for p in texts() if p.suffix in (".py", ".ipynb", ".md")], ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_extra_that_is_named_exists(path):
    if path == Path(__file__): return
    text = path.read_text(encoding="utf-8")
    named = {e.strip() for m in re.findall(OURS + r"\[([a-z0-9_, -]+)\]", text) for e in m.split(",")}
    if path.suffix == ".py": named |= {c for c in needed(ast.parse(text))}
    assert named <= EXTRAS.keys(), f"names the extra {sorted(named - EXTRAS.keys())}, which pyproject.toml lacks"


def needed(tree: ast.AST) -> set[str]:
    "The extras in calls of `need(module, extra)`."
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", getattr(n.func, "attr", "")) == "need"]
    given = [(c.args[1] if len(c.args) > 1 else next((k.value for k in c.keywords if k.arg == "extra"), None)) for c in calls]
    return {g.value for g in given if isinstance(g, ast.Constant)}


# ---------------------------------------------------------------- the package

def packages() -> set[str]:
    return {".".join(p.parent.relative_to(ROOT).parts) for p in MODULES if p.name == "__init__.py"} | {f"{OURS}.chat_templates"}


def test_every_subpackage_is_listed_for_setuptools():
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == packages()
    bare = {p.parent for p in MODULES} - {p.parent for p in MODULES if p.name == "__init__.py"}
    assert not bare, f"modules in a folder without __init__.py: {bare}"


def test_every_subpackage_can_be_found():
    for name in sorted(packages()): assert find_spec(name), f"{name} cannot be imported: scripts/setup"


def data_files() -> dict[str, Path]:
    "What has to be in the wheel beside the modules: path in the wheel -> file of the tree."
    templates = {f"{OURS}/chat_templates/{p.name}": p for p in (ROOT / "chat_templates").iterdir() if p.suffix in (".json", ".jinja")}
    shipped = {p.relative_to(ROOT).as_posix(): p for p in PACKAGE.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")}
    return templates | shipped


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    "The wheel, built from a copy of the sources, so that nothing of an earlier build gets in."
    src, out = tmp_path_factory.mktemp("src"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"): shutil.copy(ROOT / name, src)
    for name in (OURS, "chat_templates"): shutil.copytree(ROOT / name, src / name, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index",
                    "-w", str(out), str(src)], check=True, stdin=subprocess.DEVNULL)
    return next(out.glob("*.whl"))


def test_the_wheel_has_all_modules_and_data_and_nothing_else(wheel):
    want = {p.relative_to(ROOT).as_posix() for p in MODULES} | {f"{OURS}/chat_templates/__init__.py"} | data_files().keys()
    with zipfile.ZipFile(wheel) as z:
        have = {n for n in z.namelist() if ".dist-info/" not in n}
        assert have == want
        for name, path in data_files().items(): assert z.read(name) == path.read_bytes(), f"{name} differs from the tree"
        info = {n.split(".dist-info/")[1] for n in z.namelist() if ".dist-info/" in n}
    assert {"licenses/LICENSE", "licenses/NOTICE", "entry_points.txt", "METADATA"} <= info


def test_templates_and_checkpoints_are_data():
    assert any(n.startswith(f"{OURS}/chat_templates/") for n in data_files())
    for folder in sorted(p for p in (PACKAGE / "models/checkpoints").glob("*") if p.is_dir()):
        have = {p.name for p in folder.iterdir()}
        assert {"config.json", "model.safetensors", "tokenizer.json", "recipe.json"} <= have, f"{folder.name} has only {sorted(have)}"
        assert sum(p.stat().st_size for p in folder.rglob("*")) <= 3 * 2**20, f"{folder.name} is over 3 MB"


def test_the_wheel_alone_can_be_used(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as z: z.extractall(tmp_path)
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import {OURS}; assert {OURS}.__file__.startswith({str(tmp_path)!r}), {OURS}.__file__
from importlib.resources import files
names = [f.name for f in files("{OURS}.chat_templates").iterdir()]
assert any(n.endswith(".json") for n in names), names
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, stdin=subprocess.DEVNULL)


# ---------------------------------------------------------------- floors

def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path, top_only: bool = False) -> set[str]:
    "The absolute names that a module imports, anywhere in it or only where importing the module runs them."
    tree, inside = ast.parse(path.read_text(encoding="utf-8")), module_name(path).split(".")
    base = inside if path.name == "__init__.py" else inside[:-1]
    out = set()
    for node in walk_top(tree) if top_only else ast.walk(tree):
        if isinstance(node, ast.Import): out |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = base[: len(base) - node.level + 1] if node.level else []
            stem = ".".join([*start, *([node.module] if node.module else [])])
            out |= {stem} | {f"{stem}.{a.name}" for a in node.names}
    return out


def walk_top(tree: ast.AST):
    "The nodes of a module that run when it is imported: bodies of functions do not."
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)): yield from walk_top(node)


def room(name: str) -> tuple[str, str]:
    "The floor and the room of a module: grpo_tutorials.engines.tunix is (engines, tunix)."
    parts = name.split(".")[1:]
    return (parts[0] if parts else ""), (parts[1] if len(parts) > 1 else "")


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_floors(path):
    floor, own = room(module_name(path))
    if floor in ("_modidx", "__main__"): return
    used = {room(n) for n in imports(path) if n.split(".")[0] == OURS} - {("", "")}
    if not floor: assert not used, f"`import {OURS}` must stay instant, and imports {used}"
    else: assert floor in BELOW, f"a new floor, {floor}: say in this file what it may stand on"
    for f, r in used:
        if f not in BELOW: continue   # chat_templates, __version__
        fine = f in BELOW.get(floor, ()) or (f == floor and (r == own or floor in SAME_FLOOR or not r))
        assert fine, f"{module_name(path)} imports {f}.{r}: an arrow goes down only" + (", and engines never import one another" if f == floor else "")


@pytest.mark.parametrize("path", [p for p in MODULES if room(module_name(p))[0] in ("", "core", "tasks")], ids=module_name)
def test_core_and_tasks_import_numpy_at_most(path):
    if path.name == "_modidx.py": return
    names = {n.split(".")[0] for n in imports(path, top_only=True)} - {""}
    extra = names - sys.stdlib_module_names - {"numpy", OURS}
    assert not extra, f"imports {sorted(extra)} at module level: import it inside the function that needs it"


def test_light_imports_bring_nothing_heavy():
    names = [module_name(p) for p in MODULES if room(module_name(p))[0] in ("", "core", "tasks")]
    code = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
    heavy = sorted(set({HEAVY!r}) & set(sys.modules))
    assert not heavy, f"importing {{name}} brought {{heavy}}"
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_module_has_its_notebook():
    "Nothing in the package is written by hand, but for what Python itself asks for."
    for path in MODULES:
        if path.name in ("__init__.py", "__main__.py", "_modidx.py"): continue
        head = path.read_text(encoding="utf-8")
        m = re.search(r"AUTOGENERATED! DO NOT EDIT! File to edit: (\S+\.ipynb)", head)
        assert m, f"{path.name} is not exported from a notebook"
        assert (path.parent / m[1]).resolve().exists(), f"{path.name} says it comes from {m[1]}, which is not there"


# ---------------------------------------------------------------- notebooks

def cells(nb: Path) -> list[dict]: return json.loads(nb.read_text(encoding="utf-8"))["cells"]


def source(cell: dict) -> str: return "".join(cell["source"])


NOT_RUN = tomllib.loads((ROOT / "tests/not_run.toml").read_text(encoding="utf-8"))
LARGE = NOT_RUN.pop("large_outputs")
each_notebook = pytest.mark.parametrize("nb", NOTEBOOKS, ids=frame.name)


@each_notebook
def test_cells_that_are_not_run_stand_in_the_list(nb):
    reasons, listed = frame.left_out(nb), NOT_RUN.get(frame.name(nb), {"cells": 0})
    assert len(reasons) == listed["cells"], (f'{frame.told(reasons) or "every cell is run"}: write into tests/not_run.toml\n'
        f'["{frame.name(nb)}"]\ncells = {len(reasons)}\nwhy = "..."')
    if reasons: assert listed.get("why", "").strip(), "say why"


def test_the_list_names_no_notebook_that_is_gone():
    for name in NOT_RUN: assert (ROOT / name).exists(), name
    for name in LARGE: assert (ROOT / name).exists(), name


@each_notebook
def test_cells_that_install_or_call_the_shell_are_not_run(nb):
    "A test must not install or download."
    from nbdev.test import nb_test_cells

    for cell in nb_test_cells(nb, frame.flags()):
        for line in cell.source.splitlines():
            assert not re.match(r"\s*(%pip|%conda|!|%%bash|%%sh|%%capture.*\n\s*!)", line), f"runs `{line}`: mark the cell `#| eval: false`"


@each_notebook
def test_notebook_is_clean_and_small(nb):
    data = json.loads(nb.read_text(encoding="utf-8"))
    assert set(data["metadata"]) <= {"kernelspec", "language_info"}, f"metadata {sorted(data['metadata'])}: nbdev-clean"
    most, of = max(((len(json.dumps(o, ensure_ascii=False).encode()) / 1000, i) for i, c in enumerate(data["cells"]) for o in c.get("outputs", [])), default=(0, 0))
    assert most <= LARGE.get(frame.name(nb), 60), f"cell {of} shows {most:.0f} KB: draw smaller, print less, or list it under large_outputs in tests/not_run.toml"
    for cell in data["cells"]:
        if cell["cell_type"] != "code": continue
        assert cell["execution_count"] is None, "nbdev-clean"
        for out in cell["outputs"]:
            assert out["output_type"] != "error", f"kept the error {out.get('ename')}"
            if out["output_type"] == "stream" and out["name"] == "stderr": assert "Warning" not in "".join(out["text"]), "kept a warning"


@each_notebook
def test_notebook_begins_with_its_title(nb):
    first = cells(nb)[0]
    assert first["cell_type"] == "markdown" and re.match(r"# .+\n+> .+", source(first)), "the first cell is `# Title` and `> one line`"


@each_notebook
def test_the_front_page_lists_it(nb):
    index = ROOT / "nbs/index.ipynb"
    if nb == index: return
    assert f"]({nb.relative_to(frame.NBS).as_posix()})" in "\n".join(source(c) for c in cells(index)), "nbs/index.ipynb has no link to it"


def test_links_between_files_of_the_tree_hold():
    pages = [(nb, "\n".join(source(c) for c in cells(nb) if c["cell_type"] == "markdown")) for nb in NOTEBOOKS]
    pages += [(p, p.read_text(encoding="utf-8")) for p in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]]
    broken = []
    for page, text in pages:
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:|#", target) or "<" in target: continue
            if not (page.parent / target.split("#")[0]).resolve().exists(): broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken, "links to nothing:\n" + "\n".join(broken)


def test_the_sidebar_has_every_notebook_once():
    def hrefs(contents): return [h for c in contents for h in ([c] if isinstance(c, str) else hrefs(c["contents"]))]
    shown = hrefs(frame.sidebar()["website"]["sidebar"]["contents"])
    assert sorted(shown) == sorted(frame.plain(nb.relative_to(frame.NBS).as_posix()) for nb in NOTEBOOKS)


def test_plain_names():
    assert frame.plain("core/03_answers.ipynb") == "core/answers.ipynb"
    assert frame.plain("../tutorials/01_colab_gsm8k_lora.ipynb") == "../tutorials/colab_gsm8k_lora.ipynb"
    assert frame.plain("index.ipynb") == "index.ipynb"
    assert frame.from_root("[a](core/00_scale.ipynb) [b](../docs/x.md) [c](https://x.org/y) [d](#e)") == \
        "[a](nbs/core/00_scale.ipynb) [b](docs/x.md) [c](https://x.org/y) [d](#e)"


# ---------------------------------------------------------------- the tester itself

def write_notebook(path: Path, *sources: str) -> Path:
    made = [{"cell_type": "code", "id": f"c{i}", "metadata": {}, "execution_count": None, "outputs": [], "source": s} for i, s in enumerate(sources)]
    path.write_text(json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


def nbdev_test(nb: Path) -> subprocess.CompletedProcess:
    (nb.parent / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.nbdev]\ntst_flags = "notest"\nnbs_path = "."\n')
    return subprocess.run([frame.tool("nbdev-test"), "--n-workers", "0", str(nb)], cwd=nb.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def test_a_failing_cell_fails(tmp_path):
    assert nbdev_test(write_notebook(tmp_path / "good.ipynb", "assert True")).returncode == 0
    assert nbdev_test(write_notebook(tmp_path / "bad.ipynb", "assert False")).returncode != 0


def test_a_cell_can_opt_in_to_a_notebook_that_is_off(tmp_path):
    "The pinned nbdev runs `eval: true` cells of a notebook whose front matter says `eval: false` (older ones ran none)."
    nb = write_notebook(tmp_path / "off.ipynb", "#| eval: true\nassert False", "assert False")
    data = json.loads(nb.read_text())
    data["cells"].insert(0, {"cell_type": "raw", "id": "fm", "metadata": {}, "source": "---\neval: false\n---"})
    nb.write_text(json.dumps(data))
    assert nbdev_test(nb).returncode != 0
    data["cells"][1]["source"] = "#| eval: true\nassert True"
    nb.write_text(json.dumps(data))
    assert nbdev_test(nb).returncode == 0, "the cell without a directive is left out"


# ---------------------------------------------------------------- scripts

def test_scripts_can_be_called_and_ci_calls_the_test_script():
    for name in ("setup", "demo", "test", "docs", "readme"):
        path = ROOT / "scripts" / name
        assert os.access(path, os.X_OK), f"chmod +x scripts/{name}"
        subprocess.run(["bash", "-n", str(path)], check=True)
    lines = [l for l in (ROOT / ".ci/run").read_text().splitlines() if l and not l.startswith("#")]
    assert len(lines) == 1 and lines[0].endswith("scripts/test"), lines


@pytest.mark.parametrize("call", [["setup", "jax"], ["setup", "tunix", "trl"], ["test", "--only", "nothing"], ["test", "--slow"]], ids=" ".join)
def test_a_wrong_call_is_refused_in_one_line(call):
    done = subprocess.run(["bash", str(ROOT / "scripts" / call[0]), *call[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done


# ---------------------------------------------------------------- what must not stand in the tree

def test_no_path_of_one_machine_and_no_registry_host():
    # Written in two halves, so that this file does not find itself.
    word = r"(?<![\w./~-])"
    places = [word + "/wo" + r"rk/", word + "/ro" + r"ot/", word + "/ho" + r"me/\w", word + "/Us" + r"ers/\w", r"[A-Z]:\\Us" + "ers", r"\.py" + "env/"]
    hosts = ["py" + r"pi\.org", "pythonhosted" + r"\.org", "download\\.py" + r"torch\.org", "registry\\.npm" + r"js\.org", "deb\\.deb" + r"ian\.org"]
    found = []
    for path in texts():
        for n, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            found += [f"{path.relative_to(ROOT)}:{n}: {m[0]}" for p in places + hosts if (m := re.search(p, line))]
    assert not found, "\n".join(found[:20])
