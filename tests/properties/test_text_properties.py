"""Decoding streams exactly, and no text becomes a control token."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cherenkov.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
FOLDERS = {"glow": ROOT / "cherenkov" / "demo", "published": ROOT / "../shared/reference/qwen3.8"}
common = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module", params=FOLDERS)
def tokenizer(request):
    folder = FOLDERS[request.param]
    if not (folder / "tokenizer.json").exists():
        pytest.skip(f"the published tokenizer is not at {folder}")
    return Tokenizer.open(folder)


def _ids(tokenizer):
    anywhere = st.integers(0, tokenizer.size + 300)
    controls = st.sampled_from(sorted(tokenizer._added))
    bytes_ = st.sampled_from([i for i in range(tokenizer.size) if _is_odd(tokenizer, i)][:4000])
    return st.lists(st.one_of(anywhere, controls, bytes_), max_size=40)


def _is_odd(tokenizer, token: int) -> bool:
    try:
        tokenizer.token_bytes(token).decode()
    except UnicodeDecodeError:
        return True
    return False


@pytest.fixture(scope="module")
def ids(tokenizer):
    return _ids(tokenizer)


@common
@given(data=st.data())
def test_streaming_equals_decoding_at_once_and_the_library(tokenizer, ids, data):
    tokens = data.draw(ids)
    special = data.draw(st.booleans())
    stream = tokenizer.decoder(special=special)
    pieces = [stream.feed(token) for token in tokens]
    text = "".join(pieces) + stream.flush()
    assert text == tokenizer.decode(tokens, special=special)
    assert text == tokenizer._inner.decode(tokens, skip_special_tokens=not special)


@common
@given(data=st.data())
def test_every_split_of_the_stream_agrees(tokenizer, ids, data):
    tokens = data.draw(ids)
    at = data.draw(st.integers(0, len(tokens)))
    stream = tokenizer.decoder()
    first = "".join(map(stream.feed, tokens[:at]))
    rest = "".join(map(stream.feed, tokens[at:])) + stream.flush()
    whole = tokenizer.decode(tokens)
    assert whole == first + rest
    # Nothing waits but a started character, of three bytes at most.
    assert len(tokenizer.decode(tokens[:at])) - len(first) <= 1


def _texts(tokenizer):
    spellings = st.sampled_from([*tokenizer.controls.special, *tokenizer.controls.markup])
    broken = spellings.flatmap(lambda s: st.integers(0, len(s)).map(lambda i: s[:i]))
    tails = spellings.flatmap(lambda s: st.integers(0, len(s)).map(lambda i: s[i:]))
    return st.lists(st.one_of(st.text(max_size=6), spellings, broken, tails), max_size=8).map(
        "".join
    )


@common
@given(data=st.data())
def test_no_text_becomes_a_control_token(tokenizer, data):
    text = data.draw(_texts(tokenizer))
    ids = tokenizer.encode(text)
    assert not set(ids) & set(tokenizer._added)
    assert "".join(tokenizer.controls.pieces(text)) == text
    if len(tokenizer.controls.pieces(text)) == 1:
        assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)
        assert ids == tokenizer.encode(text, special=True)
