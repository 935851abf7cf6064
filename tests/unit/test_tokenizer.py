from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Inner

from cherenkov.errors import CorruptModel, RequestError, UnsupportedModel
from cherenkov.text import tokenizer as module
from cherenkov.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "cherenkov" / "demo"
REAL = ROOT / "../shared/reference/qwen3.8"


@pytest.fixture(scope="module")
def glow():
    return Tokenizer.open(DEMO)


@pytest.fixture(scope="module")
def real():
    if not (REAL / "tokenizer.json").exists():
        pytest.skip(f"the published tokenizer is not at {REAL}")
    return Tokenizer.open(REAL)


def test_text_survives(glow):
    text = "The capital of France — naïve 🚀 \r\n\t你好"
    assert glow.decode(glow.encode(text)) == text


def test_a_long_text_has_the_tokens_of_any_other(glow):
    text = "naïve 🚀 12345 <|im_end|> words\n" * 3000
    assert len(text) > module._LONG_TEXT
    assert glow.encode(text) == [i for p in glow.controls.pieces(text) for i in glow.encode(p)]
    plain = text.replace("<|im_end|>", "")
    assert glow.encode(plain) == glow._inner.encode(plain, add_special_tokens=False).ids


def test_tokens_that_nobody_has_are_not_remembered(glow):
    glow.decode(range(glow.size))
    known = len(glow._bytes)
    assert glow.decode(range(10**6, 10**6 + 1000)) == ""
    assert len(glow._bytes) == known


def test_control_tokens_only_when_asked(glow):
    text = "<|im_start|>user\nhi<|im_end|>\n<think></think>"
    asked = glow.encode(text, special=True)
    assert asked[0] == glow.id_of("<|im_start|>")
    assert asked.count(glow.id_of("<think>")) == 1
    plain = glow.encode(text)
    assert not set(plain) & {i for i in range(glow.size) if i in glow._added}
    assert glow.decode(plain) == text


def test_plain_text_encodes_the_same_either_way(glow):
    text = "a < b, <b>bold</b> <|x|> 12 > 3"
    assert glow.encode(text) == glow.encode(text, special=True)


def test_special_tokens_are_shown_only_when_asked(glow):
    ids = glow.encode("<|im_start|>a<think>", special=True)
    assert glow.decode(ids) == "a<think>"
    assert glow.decode(ids, special=True) == "<|im_start|>a<think>"
    streamed = glow.decoder(special=True)
    assert "".join(map(streamed.feed, ids)) + streamed.flush() == "<|im_start|>a<think>"


@pytest.mark.parametrize("padding", [8191, 8134, 10**6, 2**32, 2**70, -1])
def test_padding_ids_are_nothing(glow, padding):
    assert padding >= glow.size or padding < 0
    word = glow.encode("word")
    assert glow.decode([padding, *word, padding]) == "word"


def test_stop_ids_of_the_demo(glow):
    assert glow.stop_ids == {0, 2}


def test_lone_surrogates_are_refused(glow):
    with pytest.raises(RequestError, match=r"not valid Unicode: it holds U\+D800") as caught:
        glow.encode("ab\ud800")
    assert caught.value.param == "prompt"


def test_decoder_holds_back_half_a_character_and_no_more(glow):
    rocket = [glow.id_of(c) for c in "ðŁļĢ"]  # F0 9F 9A 80 in the byte alphabet
    assert None not in rocket
    stream = glow.decoder()
    assert [stream.feed(i) for i in rocket] == ["", "", "", "🚀"]
    assert stream.feed(rocket[0]) == ""
    assert stream.feed(glow.encode("a")[0]) == "\ufffda"
    stream.feed(rocket[0])
    stream.feed(rocket[1])
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""
    assert stream.feed(glow.encode("a")[0]) == "a"


def test_published_vectors(real):
    vectors = json.loads((REAL / "qwen_248k.token_vectors.json").read_text())
    assert len(vectors) >= 10
    for vector in vectors:
        assert real.encode(vector["text"], special=True) == vector["ids"]


def test_published_stop_ids_and_decode(real):
    assert real.stop_ids == {248044, 248046}
    assert real.decode([9419, 248046, 248319]) == "Hello"


# --- folders that are not what they should be ---


def _copy(tmp_path: Path, **texts: str) -> Path:
    shutil.copy(DEMO / "tokenizer.json", tmp_path)
    for name, text in texts.items():
        (tmp_path / f"{name}.json").write_text(text)
    return tmp_path


def test_stop_ids_come_from_every_source(tmp_path):
    folder = _copy(
        tmp_path,
        generation_config='{"eos_token_id": [5, 6]}',
        config='{"eos_token_id": 7, "text_config": {"eos_token_id": [8]}}',
    )
    assert Tokenizer.open(folder).stop_ids == {0, 2, 5, 6, 7, 8}


def test_no_configuration_is_fine(tmp_path):
    assert Tokenizer.open(_copy(tmp_path)).stop_ids == {0, 2}


@pytest.mark.parametrize("value", ['"x"', "[1, true]", "1.5", "-1", "[[1]]", "NaN"])
def test_bad_stop_ids_are_refused(tmp_path, value):
    with pytest.raises(CorruptModel, match=r"generation_config.json: eos_token_id"):
        Tokenizer.open(_copy(tmp_path, generation_config=f'{{"eos_token_id": {value}}}'))


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_bad_configuration_is_refused(tmp_path, text):
    with pytest.raises(CorruptModel, match=r"config\.json"):
        Tokenizer.open(_copy(tmp_path, config=text))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"model":{"type":"BPE","vocab":{},"merges":[["a","b"]]}}',
        b'{"version":"9.0","added_tokens":[],"model":{"type":"Nonesuch"}}',
    ],
)
def test_malformed_tokenizer_files(tmp_path, data):
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(CorruptModel) as caught:
        Tokenizer.open(tmp_path)
    assert "\n" not in str(caught.value)
    assert caught.value.path.endswith("tokenizer.json")


def test_missing_folder_file_and_odd_files(tmp_path):
    with pytest.raises(CorruptModel, match=r"tokenizer\.json: the file is missing"):
        Tokenizer.open(tmp_path)
    with pytest.raises(CorruptModel, match="missing"):
        Tokenizer.open(tmp_path / "absent")
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(CorruptModel, match="not a regular file"):
        Tokenizer.open(tmp_path)


def test_oversized_tokenizer(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TOKENIZER_LIMIT_BYTES", 1000)
    with pytest.raises(CorruptModel, match="at most 1000 bytes"):
        Tokenizer.open(_copy(tmp_path))


def _small(**changes) -> Inner:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Inner(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    for key, value in changes.items():
        setattr(inner, key, value)
    return inner


def test_other_decoders_are_refused(tmp_path):
    inner = _small(decoder=decoders.Metaspace())
    with pytest.raises(UnsupportedModel, match=r"Metaspace.*supported: ByteLevel; ByteFallback"):
        Tokenizer(inner, path=tmp_path)
    inner = _small(decoder=decoders.Sequence([decoders.ByteFallback(), decoders.CTC()]))
    with pytest.raises(UnsupportedModel, match="decoder Sequence"):
        Tokenizer(inner, path=tmp_path)
    inner = Inner(models.WordLevel(vocab={"a": 0}, unk_token="a"))
    with pytest.raises(UnsupportedModel, match="decoder NoneType"):
        Tokenizer(inner, path=tmp_path)


def _fallback(normalizer=None, *, strip: bool = False) -> Inner:
    """A vocabulary in plain text, with a token for every byte."""
    words = ["▁", "a", "b", "▁a", "<think>", "é"]
    vocab = {"<unk>": 0} | {f"<0x{b:02X}>": b + 1 for b in range(256)}
    vocab |= {word: 257 + i for i, word in enumerate(words)}
    inner = Inner(
        models.BPE(vocab=vocab, merges=[("▁", "a")], byte_fallback=True, unk_token="<unk>")
    )
    inner.normalizer = normalizer or normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    inner.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=False)])
    inner.add_tokens([AddedToken("<think>", normalized=False)])
    return inner


def test_bytes_spelt_out_are_bytes(tmp_path):
    tokenizer = Tokenizer(_fallback(), path=tmp_path)
    text = " a b\n é 🚀  <0x41> a"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer._inner.decode(ids) == text
    rocket = [0xF0, 0x9F, 0x9A, 0x80]
    stream = tokenizer.decoder()
    assert [stream.feed(b + 1) for b in rocket] == ["", "", "", "🚀"]
    assert stream.feed(0xC3 + 1) == ""
    assert stream.feed(tokenizer.id_of("▁a")) == "\ufffd a"
    assert tokenizer.decode([5000, 258, tokenizer.id_of("<|im_end|>")]) == "a"
    assert tokenizer.encode("<think> <|im_end|>", special=True) == [
        tokenizer.id_of(t) for t in ("<think>", "▁", "<|im_end|>")
    ]
    assert tokenizer.decode(tokenizer.encode("<think> <|im_end|>")) == "<think> <|im_end|>"
    assert tokenizer.stop_ids == {tokenizer.id_of("<|im_end|>")}


def test_tokenizers_that_add_spaces_are_refused(tmp_path):
    """They would add one to every piece of a text that was taken apart."""
    prepend = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    with pytest.raises(UnsupportedModel, match="adds a space before every text"):
        Tokenizer(_fallback(prepend), path=tmp_path)
    with pytest.raises(UnsupportedModel, match="decoder Sequence"):
        Tokenizer(_fallback(prepend, strip=True), path=tmp_path)


def test_a_normaliser_cannot_make_control_tokens(tmp_path):
    inner = _small(normalizer=normalizers.Lowercase())
    inner.add_special_tokens([AddedToken("<|end|>", special=True, normalized=True)])
    inner.save(str(tmp_path / "tokenizer.json"))
    end = inner.token_to_id("<|end|>")
    assert end in inner.encode("<|END|>").ids  # what must not happen
    tokenizer = Tokenizer.open(tmp_path)
    assert end not in tokenizer.encode("<|END|>")
    assert end not in tokenizer.encode("<|END|>", special=True)
    assert end in tokenizer.encode("<|end|>", special=True)


def test_truncation_and_padding_in_the_file_are_ignored(tmp_path):
    inner = _small()
    inner.enable_truncation(4)
    inner.enable_padding(length=16)
    tokenizer = Tokenizer(inner, path=tmp_path)
    assert len(tokenizer.encode("abcdefgh")) == 8


def test_failures_inside_encode_are_ours(tmp_path):
    inner = Inner(models.WordLevel(vocab={"a": 0}, unk_token="[UNK]"))
    inner.decoder = decoders.ByteLevel()
    with pytest.raises(CorruptModel, match="tokenizer is malformed"):
        Tokenizer(inner, path=tmp_path).encode("b")
