"""Normalisers that could make gigabytes of a short prompt are told from those of real tokenizers."""

import json

import pytest
from tokenizers import Regex, normalizers

from cherenkov.errors import UnsupportedModel
from cherenkov.text.normalisers import UNBOUNDED, growth
from cherenkov.text.tokenizer import Tokenizer

N = normalizers


@pytest.mark.parametrize(
    ("normaliser", "times"),
    [
        (None, 1),
        (N.NFC(), 1),
        (N.Sequence([N.NFKC(), N.Lowercase(), N.Strip(), N.StripAccents()]), 1),
        (N.Replace(" ", "▁"), 1),
        (N.Replace("ab", "x"), 1),
        (N.Replace("ab", "xyzxy"), 3),
        (N.Replace("a", ""), 0),
        (N.Replace(Regex("a+"), "xy"), 3),  # may match nothing, between any two characters
        (N.Sequence([N.Replace("a", "b" * 10), N.Replace("b", "c" * 10)]), 100),
        (N.Sequence([N.Sequence([N.Replace("a", "a" * 1000)])] * 9), UNBOUNDED),
        (N.ByteLevel(), UNBOUNDED),  # not one of those that are known to be tame
    ],
)
def test_growth(normaliser, times):
    assert growth(normaliser) == times


def test_what_cannot_be_told_is_unbounded():
    class Odd:
        def __init__(self, state):
            self._state = state

        def __getstate__(self):
            return self._state

    for state in (b"{}", b"[]", b"nonsense", b'{"type":"Replace"}', b'{"type":"Sequence"}', 5):
        assert growth(Odd(state)) == UNBOUNDED
    assert growth(object()) == UNBOUNDED


def _with(demo_folder, folder, **changes):
    document = json.loads((demo_folder / "tokenizer.json").read_text())
    for key, value in changes.items():
        document[key] = value
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder


def test_a_tokenizer_that_blows_texts_up_is_refused(demo_folder, tmp_path):
    bomb = [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}] * 3
    folder = _with(demo_folder, tmp_path, normalizer={"type": "Sequence", "normalizers": bomb})
    with pytest.raises(UnsupportedModel, match="normaliser may make texts far longer") as caught:
        Tokenizer.open(folder)
    assert "\n" not in str(caught.value)


def test_one_that_adds_a_little_is_fine(demo_folder, tmp_path):
    little = {"type": "Replace", "pattern": {"String": "ß"}, "content": "ss"}
    Tokenizer.open(_with(demo_folder, tmp_path, normalizer=little))


def test_tokens_are_not_dropped_at_random(demo_folder, tmp_path):
    """A setting for training: the same text would not give the same tokens."""
    document = json.loads((demo_folder / "tokenizer.json").read_text())
    document["model"]["dropout"] = 0.9
    tokenizer = Tokenizer.open(_with(demo_folder, tmp_path, model=document["model"]))
    text = "The capital of France is Paris, said the old clockmaker. " * 5
    assert tokenizer.encode(text) == Tokenizer.open(demo_folder).encode(text)
