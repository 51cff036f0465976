"""The frame that the notebooks hang in: what scripts/test, scripts/readme and scripts/docs do with all of them.

usage: frame.py clean            export and clean the notebooks; fails, naming the files, where that changed one
       frame.py readme [--write] README.md is what nbs/index.ipynb says; --write makes it so
       frame.py run [NB ...]     run notebooks from the top with nbdev-test, each in a process of its own
       frame.py left-out         the cells that no test runs, and why
       frame.py site DIR         the notebooks as pages in DIR, for Quarto or smalldocs

It runs in the environment of scripts/setup (.venv): nbdev 3 and nbconvert.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NBS = ROOT / "nbs"

# The floors from the ground up, as the sidebar shows them. Running starts from the top: the long ones go first.
FLOORS = {
    "tutorials": "Tutorials",
    "core": "Core: the ideas",
    "tasks": "Tasks: what is learned",
    "models": "Models: what is trained",
    "engines": "Engines: who trains",
    "cluster": "Cluster: from one machine to a pod",
}
RUN_ORDER = ("tutorials", "cluster", "engines", "models", "", "core", "tasks")


# ---------------------------------------------------------------- the notebooks

def notebooks(folder: Path = NBS) -> list[Path]:
    "Every notebook under `folder`, in reading order."
    hidden = lambda p: any(part.startswith((".", "_")) for part in p.relative_to(folder).parts)
    return sorted(p for p in folder.rglob("*.ipynb") if not hidden(p))


def name(nb: Path) -> str:
    "How a notebook is called in lists and messages: its path from the root of the clone."
    return nb.resolve().relative_to(ROOT).as_posix()


def flags() -> list[str]:
    "The directives that mark a cell as not for tests."
    from nbdev.config import get_config

    return get_config(NBS).tst_flags.split()


def left_out_cells(nb: Path) -> list:
    "The code cells that nbdev-test does not run, by its own word."
    from nbdev.process import NBProcessor
    from nbdev.test import nb_test_cells

    run = {cell.id for cell in nb_test_cells(nb, flags())}
    return [c for c in NBProcessor(nb, rm_directives=False, process=True).nb.cells if c.cell_type == "code" and c.id not in run]


def left_out(nb: Path) -> list[str]:
    "Why each of those cells is left out, a reason a cell."
    return [reason(cell, flags()) for cell in left_out_cells(nb)]


def reason(cell, skip: Iterable[str]) -> str:
    "The directive or tag that keeps a cell from running."
    directives = getattr(cell, "directives_", {}) or {}
    marked = [f for f in skip if f in directives]
    if marked: return ", ".join(marked)
    if directives.get("eval", "").strip().lower() == "false": return "eval: false"
    if "skip-execution" in cell.metadata.get("tags", []): return "skip-execution"
    return "its notebook is not run"


def told(reasons: list[str]) -> str:
    "`2 cells left out (eval: false), 1 (cuda)`, or nothing."
    if not reasons: return ""
    counts = [f"{n} ({why})" for why, n in Counter(reasons).items()]
    return f"cells left out: {', '.join(counts)}"


# ---------------------------------------------------------------- export and clean change nothing

def fingerprint(*folders: Path) -> dict[str, str]:
    "The hash of every source file under `folders`: what Python and Jupyter leave behind does not count."
    out = {}
    for folder in folders:
        for p in sorted(folder.rglob("*")):
            parts = p.relative_to(ROOT).parts
            if not p.is_file() or any(x in ("__pycache__", ".ipynb_checkpoints", "runs") for x in parts): continue
            if p.suffix == ".pyc" or p in (NBS / "nbdev.yml", NBS / "sidebar.yml"): continue
            out[p.relative_to(ROOT).as_posix()] = hashlib.sha256(p.read_bytes()).hexdigest()
    return out


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    "The files that are new, gone or different."
    return sorted(f for f in before.keys() | after.keys() if before.get(f) != after.get(f))


def tool(command: str) -> str:
    "A command of this environment, whether or not it is activated."
    return str(Path(sys.executable).parent / command)


def clean() -> int:
    "Export, clean, and name what that changed."
    folders = NBS, ROOT / "grpo_tutorials"
    before = fingerprint(*folders)
    for command in ("nbdev-export", "nbdev-clean"):
        subprocess.run([tool(command)], cwd=ROOT, check=True, stdin=subprocess.DEVNULL)
        after = fingerprint(*folders)
        if files := changed(before, after):
            print(f"{command} changed:\n  " + "\n  ".join(files))
            print("The notebook is the source: look at the change, keep it (it is made) and commit it.")
            return 1
    print(f"{len(notebooks())} notebooks, {sum(f.endswith('.py') for f in before)} modules: nothing changed")
    return 0


# ---------------------------------------------------------------- README

def readme() -> str:
    "README.md as nbs/index.ipynb has it: its prose, its shown cells and what they printed."
    import nbformat
    from nbconvert import MarkdownExporter

    nb = nbformat.read(NBS / "index.ipynb", as_version=4)
    shown = []
    for cell in nb.cells:
        lines = cell.source.split("\n")
        directives = [l[2:].split(":")[0].strip() for l in lines if l.startswith("#|")]
        if "hide" in directives: continue
        cell.source = "\n".join(l for l in lines if not l.startswith("#|"))
        for out in cell.get("outputs", []):
            if any(mime.startswith("image/") for mime in out.get("data", {})):
                raise ValueError("nbs/index.ipynb shows a picture: README.md cannot hold it, so link a committed file instead")
        shown.append(cell)
    nb.cells, nb.metadata["language_info"] = shown, {"name": "python"}
    text, _ = MarkdownExporter().from_notebook_node(nb)
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in text.strip().split("\n")))
    return "<!-- Made from nbs/index.ipynb by scripts/readme: edit the notebook. -->\n\n" + from_root(text) + "\n"


def from_root(text: str) -> str:
    "Links that start in nbs/ as links that start at the root of the clone."
    def link(m: re.Match) -> str:
        target = m[1]
        if re.match(r"[a-z]+:|#|/", target): return m[0]
        return f"]({os.path.normpath(os.path.join('nbs', target))})"
    return re.sub(r"\]\(([^)\s]+)\)", link, text)


def check_readme(write: bool) -> int:
    path, text = ROOT / "README.md", readme()
    if write: path.write_text(text, encoding="utf-8")
    if path.read_text(encoding="utf-8") == text:
        print("README.md is what nbs/index.ipynb says")
        return 0
    print("README.md is not what nbs/index.ipynb says: edit the notebook, then call scripts/readme")
    return 1


# ---------------------------------------------------------------- running

def run_one(nb: Path, env: dict[str, str]) -> tuple[Path, bool, float, str]:
    "One notebook from the top, in a process of its own: nothing of another notebook reaches it."
    start = time.monotonic()
    done = subprocess.run([tool("nbdev-test"), "--n-workers", "0", str(nb)], cwd=ROOT, env=env, text=True, errors="replace",
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    # nbdev-test also exits 0 where it found nothing to run, so its word is asked for too.
    return nb, done.returncode == 0 and "Success." in done.stdout, time.monotonic() - start, done.stdout


def run(nbs: list[Path], jobs: int) -> int:
    "Run notebooks `jobs` at a time; say of each how long it took and what it left out."
    order = lambda nb: (RUN_ORDER.index(f) if (f := nb.relative_to(NBS).parts[0]) in RUN_ORDER else RUN_ORDER.index(""), nb)
    cpus = os.cpu_count() or 1
    env = {"OMP_NUM_THREADS": str(max(1, cpus // jobs)), **os.environ}
    before, start, failed = set(fingerprint(NBS)), time.monotonic(), []
    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(run_one, nb, env) for nb in sorted(nbs, key=order)]):
            nb, ok, seconds, said = done.result()
            print(f"  {'ok  ' if ok else 'FAIL'} {seconds:6.1f} s  {name(nb)}  {told(left_out(nb))}".rstrip(), flush=True)
            if not ok:
                failed.append(name(nb))
                print(said, flush=True)
    if new := sorted(f for f in set(fingerprint(NBS)) - before if not f.endswith(".ipynb")):
        print("left behind in the tree, where a notebook should write to a temporary folder:\n  " + "\n  ".join(new))
        return 1
    print(f"{len(nbs) - len(failed)} of {len(nbs)} notebooks ran to the end in {time.monotonic() - start:.0f} s")
    if failed: print("failed: " + ", ".join(failed))
    return 1 if failed or not nbs else 0


# ---------------------------------------------------------------- the site

def plain(path: str) -> str:
    "A notebook's path without the numbers that only order it: core/03_answers.ipynb is core/answers.ipynb."
    return re.sub(r"(^|/)\d+[a-zA-Z0-9]*_(?=[^/]*\.ipynb)", r"\1", path)


def sidebar() -> dict:
    "The sidebar: the front page, a section a floor, then what stands alone."
    pages = [p.relative_to(NBS).as_posix() for p in notebooks()]
    section = lambda f: {"section": FLOORS.get(f, f.capitalize()), "contents": [plain(p) for p in pages if p.startswith(f + "/")]}
    folders = sorted({p.split("/")[0] for p in pages if "/" in p}, key=lambda f: list(FLOORS).index(f) if f in FLOORS else len(FLOORS))
    top = [p for p in pages if "/" not in p and p != "index.ipynb"]
    contents = ["index.ipynb", *map(section, folders), {"section": "Command line", "contents": top}]
    return {"website": {"sidebar": {"contents": [c for c in contents if c == "index.ipynb" or c["contents"]]}}}


def site(folder: Path) -> int:
    "The notebooks as pages for Quarto or smalldocs in `folder`: processed by nbdev, under plain names, with a sidebar."
    import shutil
    from multiprocessing import get_context

    import yaml

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for p in (NBS / "_quarto.yml", NBS / "styles.css"): shutil.copy2(p, folder)
    (folder / "nbdev.yml").write_text(yaml.safe_dump(about(), sort_keys=False, allow_unicode=True), encoding="utf-8")
    (folder / "sidebar.yml").write_text(yaml.safe_dump(sidebar(), sort_keys=False, allow_unicode=True), encoding="utf-8")
    jobs = [(nb, folder / plain(nb.relative_to(NBS).as_posix())) for nb in notebooks()]
    with get_context("spawn").Pool(min(4, os.cpu_count() or 1), maxtasksperchild=1) as pool: pool.starmap(page, jobs, chunksize=1)
    return 0


def about() -> dict:
    "What the pages say of the project, from pyproject.toml."
    from nbdev.config import get_config

    cfg = get_config(ROOT)
    return {"project": {"output-dir": cfg.doc_path.name},
            "website": {"title": cfg.title, "description": cfg.description, "site-url": cfg.doc_host + cfg.doc_baseurl,
                        "repo-url": cfg.git_url, "repo-branch": cfg.branch}}


def page(nb: Path, dst: Path) -> None:
    "One notebook as a page: signatures with their source folded, no hidden cells, links by plain names."
    from fastcore.nbio import dict2nb, write_nb
    from nbdev.config import get_config
    from nbdev.processors import FilterDefaults

    os.chdir(ROOT)   # nbdev looks for its settings from here
    cfg, data, skip = get_config(ROOT), json.loads(nb.read_text(encoding="utf-8")), {cell.id for cell in left_out_cells(nb)}
    data["cells"] = [made for cell in data["cells"] for made in staged(cell, skip, cfg.lib_path.name)]
    data = dict2nb(data)
    data["path_"] = str(nb)
    FilterDefaults()(data)
    for cell in data.cells:
        for out in cell.get("outputs", []):     # signatures: the page says of which module it is, and an abstract type is known by its name
            for kind, text in out.get("data", {}).items():
                if kind.startswith("text/"): out["data"][kind] = [re.sub(r"\b(__main__|collections\.abc|typing)\.(?=[A-Z])", "", line) for line in ([text] if isinstance(text, str) else text)]
        if cell.cell_type == "raw": cell.source = re.sub(r"^output-file: .*\n", "", cell.source, flags=re.M)   # its name is plain already
        if cell.cell_type != "markdown": continue
        text = re.sub(r"\]\(([^)\s]+\.ipynb)", lambda m: f"]({plain(m[1])}", cell.source)
        cell.source = re.sub(r"\]\((?:\.\./)+((?:docs|scripts|tests)/[^)\s]*|[A-Z]+(?:\.md)?)\)", rf"]({cfg.git_url}/blob/{cfg.branch}/\1)", text)
    dst.parent.mkdir(parents=True, exist_ok=True)
    write_nb(data, dst)


def staged(cell: dict, skip: set[str], package: str) -> list[dict]:
    "A cell as nbdev is to see it for a page, and what is put beside it."
    text = "".join(cell["source"])
    code = lambda source: {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": source}
    if cell["cell_type"] != "code": return [cell]
    exported = re.search(r"^#\|\s*exports?\b", text, re.M)
    # To show signatures nbdev runs the cells with exports, which is right, and every cell that imports something, which
    # is not: some are for hardware, some need what the cells between them made.
    if cell.get("id") in skip or not (exported or "default_exp" in text or "show_doc(" in text): text = "#| eval: false\n" + text
    # A signature may name a class of a later cell: the installed module has them all.
    if m := re.search(r"^#\|\s*default_exp\s+(\S+)", text, re.M): return [cell, code(f"#| hide\nfrom {package}.{m[1]} import *")]
    # nbdev shows an exported symbol by its signature: this is a course, so the source is one click away.
    if re.search(r"^#\|\s*export\s*$", text, re.M) and re.search(r"^(class|def|async def|@)", text, re.M):
        body = re.sub(r"^#\|.*\n", "", text, flags=re.M).strip("\n")
        return [cell, code("#| code-fold: true\n#| code-summary: Source\n#| eval: false\n" + body)]
    return [{**cell, "source": text}]


# ---------------------------------------------------------------- the command line

def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = parser.add_subparsers(dest="command", required=True)
    sub.add_parser("clean")
    sub.add_parser("readme").add_argument("--write", action="store_true")
    r = sub.add_parser("run")
    r.add_argument("nb", nargs="*", type=Path)
    r.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1))
    sub.add_parser("left-out")
    sub.add_parser("site").add_argument("folder", type=Path)
    args = parser.parse_args(argv)
    match args.command:
        case "clean": return clean()
        case "readme": return check_readme(args.write)
        case "site": return site(args.folder.resolve())
        case "run":
            if gone := [str(p) for p in args.nb if not p.exists()]: parser.error(f"no such notebook: {', '.join(gone)}")
            found = [nb for p in args.nb or [NBS] for nb in (notebooks(p.resolve()) if p.is_dir() else [p.resolve()])]
            return run(found, max(1, args.jobs))
        case _:
            for nb in notebooks():
                if why := left_out(nb): print(f"{name(nb)}  {told(why)}")
            return 0


if __name__ == "__main__":
    sys.exit(main())
