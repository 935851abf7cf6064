"""The examples of the README, run as they stand there."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SAID = [
    "17 plus 25 is 42.",
    "The capital of France is Paris.",
    "The capital of France is Paris.",
]


def test_there_are_as_many_as_it_says():
    assert len(EXAMPLES) == len(SAID)


@pytest.mark.parametrize(("example", "said"), [*zip(EXAMPLES, SAID, strict=False)])
def test_example(example, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert out.startswith(said)
    if "session" in example:
        assert re.search(r"42\. \([1-9]\d* of \d+ tokens were read before\)", out)
    if "slots" in example:
        fit, all_of_them = map(int, re.search(r"(\d+) of (\d+) experts fit", out).groups())
        assert 0.15 < fit / all_of_them < 0.25  # "a fifth"
        misses, hits = map(int, re.search(r"(\d+) misses, (\d+) hits", out).groups())
        assert misses
        assert hits
