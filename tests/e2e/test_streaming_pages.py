"""The examples of the pages on streaming, policies and the engine, run as they stand there."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    "streaming.md": r"^\d+% found, \d+\.\d\d s waited$",
    "policies.md": r"^optimum 0\.\d+$",
    "engine.md": r"Paris",
}


@pytest.mark.parametrize("name", PAGES)
def test_example(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text("utf-8"), re.DOTALL)
    assert len(examples) == 1
    exec(compile(examples[0], name, "exec"), {})
    assert re.search(PAGES[name], capsys.readouterr().out, re.MULTILINE)
