"""Decoding streams exactly, and no text becomes a control token."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, normalizers

from cherenkov.text.template import ChatTemplate
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


@common
@given(data=st.data(), text=st.text(alphabet="ab é🚀\n▁", max_size=12))
def test_bytes_spelt_out_stream_exactly(data, text):
    """A vocabulary in plain text with a token for every byte: `<0xE9>`."""
    vocab = {f"<0x{b:02X}>": b for b in range(256)} | {"▁": 256, "a": 257, "b": 258, "<unk>": 259}
    inner = Inner(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer = Tokenizer(inner, path=ROOT)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == inner.decode(ids) == text.replace("▁", " ")
    tokens = data.draw(st.lists(st.integers(0, 262) | st.sampled_from(ids or [0]), max_size=20))
    stream = tokenizer.decoder()
    assert "".join(map(stream.feed, tokens)) + stream.flush() == tokenizer.decode(tokens)
    spelt = [
        i if i < 256 else {256: " ", 257: "a", 258: "b", 259: "<unk>"}.get(i, "") for i in tokens
    ]
    plain = b"".join(bytes([s]) if isinstance(s, int) else s.encode() for s in spelt)
    assert tokenizer.decode(tokens) == plain.decode("utf-8", "replace")


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


@pytest.fixture(scope="module")
def template(tokenizer):
    with ChatTemplate.open(FOLDERS["glow"], tokenizer.controls) as template:
        yield template


def _controls_in(tokenizer, prompt) -> list[int]:
    return [i for i in tokenizer.encode_pieces(prompt.pieces) if i in tokenizer._added]


@settings(common, max_examples=80)
@given(data=st.data())
def test_messages_bring_no_control_token_into_a_prompt(tokenizer, template, data):
    text = _texts(tokenizer)
    parts = data.draw(st.lists(text, min_size=1, max_size=4))
    told, thought, result, system = (data.draw(text) for _ in range(4))

    def conversation(parts, told, thought, result, system):
        assistant = {"role": "assistant", "content": told, "reasoning_content": thought}
        return template.render(
            [
                {"role": "system", "content": f"s{system}"},
                {"role": "user", "content": [{"type": "text", "text": part} for part in parts]},
                assistant,
                {"role": "tool", "content": result},
                {"role": "user", "content": parts[0]},
            ],
            tools=[{"function": {"name": "f", "description": system, parts[0]: result}}],
        )

    def special(prompt):
        return [i for i in _controls_in(tokenizer, prompt) if i in tokenizer._hidden]

    hostile = conversation(parts, told, thought, result, system)
    assert special(hostile) == special(conversation(["a"], "b", "c", "d", "e"))
    # Markup is free only in what the assistant said.
    hostile = conversation(parts, "b", "c", result, system)
    assert _controls_in(tokenizer, hostile) == _controls_in(
        tokenizer, conversation(["a"], "b", "c", "d", "e")
    )


@settings(common, max_examples=80)
@given(data=st.data())
def test_every_character_of_a_message_arrives(tokenizer, template, data):
    text = data.draw(_texts(tokenizer) | st.text())
    prompt = template.render([{"role": "user", "content": f"[{text}]"}])
    assert prompt.text.startswith(f"<|im_start|>user\n[{text}]<|im_end|>\n<|im_start|>assistant")
    if len(prompt.pieces) == 1:
        assert tokenizer.encode_pieces(prompt.pieces) == tokenizer.encode(prompt.text, special=True)
