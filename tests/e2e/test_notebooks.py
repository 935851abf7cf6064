"""The notebooks, run cell by cell as they stand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
RUNNER = """
import json, sys
cells = json.load(open(sys.argv[1], encoding="utf-8"))["cells"]
names = {"__name__": "__main__"}
for i, cell in enumerate(cells):
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), f"cell {i}", "exec"), names)
"""
WITHOUT_PLOTS = "import sys; sys.modules['matplotlib'] = None\n"
SAID = {
    "1-first-tokens": ("The capital of France is Paris.", "cached"),
    "2-tools": ("('get_weather', {'city': 'Paris'})", "unknown function subtract", "a second tool"),
    "3-what-experts-do": ("most used in each layer", "goes with", "found in memory"),
    "4-long-context": ("bytes for each token", "but the context holds 256", "Paris"),
}


def run(path, before=""):
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", before + RUNNER, path],
        cwd=ROOT,
        env={**os.environ, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_those_that_we_know():
    assert [path.stem for path in NOTEBOOKS] == sorted(SAID)
    index = (ROOT / "notebooks/README.md").read_text()
    assert all(f"({path.name})" in index for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook(path):
    out = run(path)
    for words in SAID[path.stem]:
        assert words in out


def test_without_matplotlib_there_are_no_plots():
    out = run(ROOT / "notebooks/3-what-experts-do.ipynb", WITHOUT_PLOTS)
    assert "matplotlib is not installed: no plots" in out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_without_outputs(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in notebook["cells"]:
        assert isinstance(cell["source"], list)
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
    assert notebook["cells"][0]["cell_type"] == "markdown"
