"""`integrity.json` that is whole by its own checksum, and yet says what no program of ours would."""

from __future__ import annotations

import json

import pytest

from cherenkov.errors import CorruptModel
from cherenkov.packing.integrity import Integrity, NgramBlocks, checksum

DOCUMENT = Integrity(
    tool="cherenkov 0",
    fingerprint="f",
    records=(1, 2),
    dense={"a": 3},
    ngrams=(NgramBlocks("ngram.bin", 16, (4, 5)),),
    files={"manifest.json": 6},
)
SUM = f"{9:016x}"


def forged(**changes):
    """The document with some parts replaced, sealed as whoever writes such a thing would seal it."""
    document = json.loads(DOCUMENT.to_bytes())
    del document["self"]
    for key, value in changes.items():
        document[key] = value
        if value is None:
            del document[key]
    body = json.dumps(document, separators=(",", ":")).encode()[:-1]
    return body + b',"self":"' + f"{checksum(body):016x}".encode() + b'"}\n'


def test_what_is_sound_is_read():
    assert Integrity.from_bytes("i", forged()) == DOCUMENT
    assert Integrity.from_bytes("i", forged(experts=[SUM])).records == (9,)


NOT_SUMS = [
    "",
    "9",
    "0x00000000000000ff",
    SUM.replace("9", "G"),
    "-" + SUM[1:],
    SUM + "0",
    SUM + "\n",
    9,
    None,
]
NOT_NAMES = ["", ".", "..", "a/b", "/etc/passwd", "../x", "a\0b", "a\nb", "half\ud800"]


@pytest.mark.parametrize(
    "changes",
    [
        *({"experts": [SUM, bad]} for bad in NOT_SUMS),
        *({"dense": {"a": bad}} for bad in NOT_SUMS),
        *({"files": {"a": bad}} for bad in NOT_SUMS),
        *({"ngrams": [{"file": "n", "block_rows": 1, "blocks": [bad]}]} for bad in NOT_SUMS),
        *({"files": {name: SUM}} for name in NOT_NAMES),
        *({"ngrams": [{"file": name, "block_rows": 1, "blocks": []}]} for name in NOT_NAMES),
        *(
            {"ngrams": [{"file": "n", "block_rows": rows, "blocks": []}]}
            for rows in (0, -1, 1.5, True, "16", None, [1])
        ),
        *({key: None} for key in ("tool", "fingerprint", "options", "files", "dense", "experts")),
        *({key: 5} for key in ("files", "dense", "ngrams", "experts", "options")),
        {"ngrams": [5]},
    ],
    ids=lambda changes: ascii(changes)[:70],
)
def test_what_is_not_is_refused(changes):
    with pytest.raises(CorruptModel, match="i: malformed") as caught:
        Integrity.from_bytes("i", forged(**changes))
    assert str(caught.value).isprintable()


def test_what_it_says_is_cut_short():
    for changes in ({"experts": ["x" * 10**6]}, {"files": {"a/" * 10**6: SUM}}):
        with pytest.raises(CorruptModel) as caught:
            Integrity.from_bytes("i", forged(**changes))
        assert len(str(caught.value)) < 300
