"""Rules that the repository keeps, which no linter knows."""

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata, util
from itertools import chain
from pathlib import Path

import pytest

import cherenkov

ROOT = Path(__file__).parents[2]
PACKAGES = ("cherenkov", "cherenkov_cli", "cherenkov_server")
TREES = (*PACKAGES, "tests", "kernels", "docs", "benchmarks", "notebooks", ".ci", ".github")
MODULE_LINES = 500
FUNCTION_LINES = 60
LONG_FUNCTIONS: dict[str, str] = {}
"""`module.py:function` -> why it may be longer than the rule says."""
FILE_BYTES = 1_000_000
LARGE_FILES = {"cherenkov/demo/model.safetensors"}
LARGE_FOLDERS = ("tests/golden/vectors/",)


def modules(*folders):
    paths = chain.from_iterable((ROOT / folder).rglob("*.py") for folder in folders)
    return [path.relative_to(ROOT) for path in sorted(paths)]


def files():
    top = (path for path in ROOT.iterdir() if path.is_file() and path.name != ".git")
    inside = chain.from_iterable((ROOT / tree).rglob("*") for tree in TREES)
    skipped = {"__pycache__", "build", ".ipynb_checkpoints"}
    return [
        path.relative_to(ROOT)
        for path in chain(top, inside)
        if path.is_file() and not skipped & set(path.parts) and path.suffix not in {".so", ".pyc"}
    ]


def texts():
    for path in files():
        if str(path) in LARGE_FILES or str(path).startswith(LARGE_FOLDERS):
            continue
        try:
            yield path, (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def tree(path):
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path))


LIBRARY = modules(*PACKAGES)
SOURCES = modules(*PACKAGES, "tests", "benchmarks")
each_module = pytest.mark.parametrize("path", LIBRARY, ids=str)


# --- size and names


def test_modules_are_short():
    long = {str(p): n for p in SOURCES if (n := (ROOT / p).read_text().count("\n")) > MODULE_LINES}
    assert not long


def test_functions_are_short():
    long = {}
    for path in LIBRARY:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES:
                    long[f"{path}:{node.name}"] = lines
    assert set(long) == set(LONG_FUNCTIONS)


def test_files_are_named_for_what_they_hold():
    vague = re.compile(r"(^|_)(utils?|helpers?|common|misc|managers?)(_|\.|$)")
    assert not [str(p) for p in files() if any(vague.search(part) for part in p.parts)]


def test_nothing_is_left_to_do():
    marks = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK:")))
    assert not [str(path) for path, text in texts() if marks.search(text)]


def test_no_path_of_one_machine():
    machine = re.compile(r"(?<![\w.}/])/(home|root|work|Users)/\w")
    found = [f"{path}: {m[0]}" for path, text in texts() if (m := machine.search(text))]
    assert not found


def test_no_merge_is_half_done():
    mark = re.compile(r"^(<{7}|={7}|>{7})( |$)", re.MULTILINE)
    assert not [str(path) for path, text in texts() if mark.search(text)]


def test_files_are_small():
    large = {str(p) for p in files() if (ROOT / p).stat().st_size > FILE_BYTES}
    assert {p for p in large if not p.startswith(LARGE_FOLDERS)} <= LARGE_FILES


# --- what modules may do


@each_module
def test_public_names_are_listed_and_documented(path):
    body = tree(path).body
    if not [node for node in body if not isinstance(node, ast.Expr)]:
        return  # a docstring alone: a package that is only a place
    names = [
        t.id
        for n in body
        if isinstance(n, ast.Assign)
        for t in n.targets
        if isinstance(t, ast.Name)
    ]
    assert "__all__" in names
    dotted = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    module = importlib.import_module(dotted)
    assert inspect.getdoc(module)
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), f"{dotted}.{name}"


def calls(path):
    return [node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]


@each_module
def test_only_the_configuration_reads_the_environment(path):
    if str(path) == "cherenkov/config.py":
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"environ", "environb", "getenv", "getenvb", "expandvars"}
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            assert not {"environ", "getenv"} & {alias.name for alias in node.names}


@each_module
def test_only_one_module_renames_files(path):
    if str(path) == "cherenkov/packing/durable.py":
        return
    for call in calls(path):
        function = call.func
        if not isinstance(function, ast.Attribute):
            continue
        assert function.attr not in {"rename", "renames", "move", "link_to"}
        if function.attr == "replace":  # of str, two arguments; of dataclasses, keywords
            assert len(call.args) > 1 or call.keywords, f"line {call.lineno}"


@each_module
def test_errors_are_not_swallowed(path):
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ExceptHandler):
            broad = node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"}
            assert not (broad and all(isinstance(s, ast.Pass) for s in node.body))


# --- importing


def imported(statement):
    code = f"import sys; before = set(sys.modules); {statement}; import json\nprint(json.dumps(sorted(set(sys.modules) - before)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in json.loads(run.stdout)}


HEAVY = {"torch", "transformers", "mlx", "litestar", "uvicorn", "click", "rich"}


def test_importing_the_package_brings_nothing():
    third_party = imported("import cherenkov") - set(sys.stdlib_module_names) - {"cherenkov"}
    assert not third_party


def test_importing_everything_brings_no_interface_and_no_accelerator():
    names = ", ".join(name for name in cherenkov.__all__ if name != "__version__")
    found = imported(f"from cherenkov import {names}")
    assert "numpy" in found
    assert not found & HEAVY


def test_public_names_resolve():
    for name in cherenkov.__all__:
        assert getattr(cherenkov, name) is not None
    assert set(cherenkov.__all__) <= set(dir(cherenkov))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = cherenkov.nothing


def test_versions_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dynamic"] == ["version"]
    assert f"[{cherenkov.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    wanted = {"server", "cli", "mlx", "cuda", "all", "test", "dev"}
    assert wanted <= set(project["optional-dependencies"])


def test_the_installed_package_is_the_one_under_test():
    """A source tree in front of the installation would hide its native kernels."""
    try:
        installed = metadata.files("cherenkov") or []
    except metadata.PackageNotFoundError:
        pytest.skip("cherenkov is not installed here: it runs from its source")
    if any(str(file).startswith("cherenkov/_native") for file in installed):
        assert util.find_spec("cherenkov._native") is not None


# --- words


def test_the_readme_holds_the_two_commands_that_are_checked():
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"^python3 -m venv .*$", readme, re.MULTILINE)
    assert len(commands) == 2
    assert 'cherenkov run demo "What is the capital of France?"' in commands[0]
    assert commands[1].endswith(".venv/bin/pytest -q -n auto")
    assert "grep -m 1 bin/pytest README.md" in (ROOT / ".ci" / "run").read_text()


def test_links_lead_somewhere():
    pages = [p for p in files() if p.suffix == ".md"]
    broken = []
    for page in pages:
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if not re.match(r"[a-z]+:", target):
                path, _, anchor = target.partition("#")
                found = (ROOT / page).parent / path if path else ROOT / page
                if not found.exists() or (anchor and not has_heading(found, anchor)):
                    broken.append(f"{page}: {target}")
    assert not broken


def has_heading(page, anchor):
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
    return anchor in slugs


def test_functions_that_pages_point_at_exist():
    """A link whose text is code, to a module: the code must be defined there."""
    missing = []
    for page in [p for p in files() if p.suffix == ".md"]:
        text = (ROOT / page).read_text(encoding="utf-8")
        for name, target in re.findall(r"\[`([\w.]+)(?:\(\))?`\]\(([^)\s]+\.py)\)", text):
            if name.endswith(".py"):
                continue
            module = (ROOT / page).parent / target
            source = module.read_text(encoding="utf-8") if module.exists() else ""
            last = name.rpartition(".")[2]
            if not re.search(
                rf"^\s*(?:async )?(?:def|class) {last}\b|^{last}\b.*=", source, re.MULTILINE
            ):
                missing.append(f"{page}: {name} in {target}")
    assert not missing
