"""The examples of the page on conversations, run in order as they stand there."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/conversations.md").read_text(encoding="utf-8")


def test_conversations(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 5
    try:
        for example in examples:
            exec(compile(example, "docs/conversations.md", "exec"), names)
    finally:
        if "model" in names:
            names["model"].close()
    out = capsys.readouterr().out
    for words in ("Paris", "get_weather {'city': 'Paris'}", "18", "42.", "messages", " tokens\n"):
        assert words in out
