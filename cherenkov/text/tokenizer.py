"""Text to token ids and back, over the `tokenizers` package.

Decoding is ours: a token is a string of bytes, and a text is those bytes read as UTF-8. That makes streaming exact:
`Decoder` gives out characters as they complete, and the pieces always join to what decoding at once gives. It is also
what the `tokenizers` package gives, but for one case: where tokens of single bytes follow one another and are not valid
as a whole, that package replaces every one of them, which it can only know at their end.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import tokenizers

from cherenkov.checkpoint.documents import is_there, read_bytes, read_object
from cherenkov.checkpoint.shards import vetted
from cherenkov.errors import CorruptModel, RequestError, UnsupportedModel
from cherenkov.text.controls import Controls
from cherenkov.text.normalisers import growth
from cherenkov.text.token_bytes import KNOWN, byte_fallback, spelling_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

__all__ = ["Decoder", "Tokenizer"]

TOKENIZER_LIMIT_BYTES = 128 << 20
CONFIG_LIMIT_BYTES = 16 << 20
_MOST_GROWTH = 16
_LONG_TEXT = 1 << 16
"""Characters, from which on a text takes so long that other threads must be able to run meanwhile."""
STOP_NAMES = ("<|im_end|>", "<|endoftext|>")


class Tokenizer:
    """The tokenizer of one model folder.

    Attributes:
        controls: the spellings that would become control tokens.
        stop_ids: tokens that end an answer, from their names, `generation_config.json` and `config.json`.
        size: count of tokens, added ones included. Model vocabularies may be padded beyond it.
    """

    def __init__(
        self, inner: tokenizers.Tokenizer, *, path: Path, stop_ids: Iterable[int] = ()
    ) -> None:
        """Wrap a `tokenizers.Tokenizer`; use `Tokenizer.open` for a model folder."""
        spelling = spelling_of(inner.decoder)
        if spelling is None:
            kind = type(inner.decoder).__name__
            raise UnsupportedModel(f"{path}: a tokenizer with decoder {kind}", known=KNOWN)
        if growth(inner.normalizer) > _MOST_GROWTH:
            raise UnsupportedModel(
                f"{path}: a tokenizer whose normaliser may make texts far longer"
            )
        self._spelling = spelling
        if getattr(inner.model, "dropout", None):
            inner.model.dropout = None  # for training: the same text would not give the same tokens
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        self._path = path
        self._added = inner.get_added_tokens_decoder()
        self._hidden = {i for i, token in self._added.items() if token.special}
        self._bytes: dict[int, bytes] = {}
        self.size: int = inner.get_vocab_size(with_added_tokens=True)
        self.controls = Controls(
            special=tuple(t.content for t in self._added.values() if t.special),
            markup=tuple(t.content for t in self._added.values() if _is_markup(t)),
        )
        if spelling is byte_fallback and self.decode(self.encode("a")) != "a":
            raise UnsupportedModel(f"{path}: a tokenizer that adds a space before every text")
        named = (self.id_of(name) for name in STOP_NAMES)
        self.stop_ids = frozenset(stop_ids) | {i for i in named if i is not None}

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """Open the tokenizer of a checkpoint or store.

        Args:
            folder: holds `tokenizer.json`, and `config.json` and `generation_config.json` if there are any.

        Raises:
            CorruptModel: if a file is missing, too large or malformed.
            UnsupportedModel: if it is unknown how the tokenizer spells bytes, or it adds spaces to texts.
            DiskError: if a file cannot be read.
        """
        path = Path(folder) / "tokenizer.json"
        data = read_bytes(vetted(path.parent, path.name), TOKENIZER_LIMIT_BYTES)
        with _malformed(path):
            inner = _literal_controls(_parse(data), data)
        return cls(inner, path=path, stop_ids=_configured_stops(Path(folder)))

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of `text`.

        Args:
            text: any Unicode text.
            special: let spellings of control tokens become control tokens. Without it no text can.

        Raises:
            RequestError: if the text is no valid Unicode (lone surrogates, as from undecodable arguments).
        """
        if not isinstance(text, str):
            raise RequestError(f"the text is of type {type(text).__name__}, not text", param="text")
        return self.encode_pieces([text] if special else self.controls.pieces(text))

    def encode_pieces(self, pieces: Iterable[str]) -> list[int]:
        """Token ids of pieces of text, each on its own, in which control spellings are control tokens.

        Raises:
            RequestError: as `encode`.
        """
        ids: list[int] = []
        for piece in pieces:
            try:
                piece.encode()
            except UnicodeEncodeError as error:
                found = f"U+{ord(piece[error.start]):04X}"
                raise RequestError(
                    f"the text is not valid Unicode: it holds {found} and may not have been UTF-8",
                    param="prompt",
                ) from None
            with _malformed(self._path):
                ids += self._encoded(piece)
        return ids

    def _encoded(self, piece: str) -> list[int]:
        """The ids of a piece. What encodes one text holds the interpreter's lock, what encodes a list lets go of it."""
        if len(piece) < _LONG_TEXT:
            found: list[int] = self._inner.encode(piece, add_special_tokens=False).ids
        else:
            found = self._inner.encode_batch_fast([piece], add_special_tokens=False)[0].ids
        return found

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of token ids. Ids that the tokenizer does not have (padding) are nothing.

        Args:
            ids: token ids.
            special: spell special tokens out instead of leaving them away.

        Raises:
            RequestError: if they are no whole numbers.
        """
        if not isinstance(ids, Iterable) or isinstance(ids, str | bytes):
            raise RequestError(f"the tokens are a {type(ids).__name__}, not a list", param="ids")
        ids = list(ids)
        if not all(isinstance(i, Integral) for i in ids):
            raise RequestError("token ids must be whole numbers", param="ids")
        return b"".join(self.token_bytes(i, special=special) for i in ids).decode(
            "utf-8", "replace"
        )

    def decoder(self, *, special: bool = False) -> Decoder:
        """A fresh streaming decoder; `special` as for `decode`."""
        return Decoder(self, special=special)

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """The bytes that one token stands for: none for padding, and for special tokens unless asked."""
        if token in self._hidden and not special:
            return b""
        known = self._bytes.get(token)
        if known is None:
            known = self._spell(token)
            if known:  # ids that nobody has are without end: only what there is is remembered
                self._bytes[token] = known
        return known

    def id_of(self, token: str) -> int | None:
        """The id of a token by its spelling, or None."""
        found: int | None = self._inner.token_to_id(token)
        return found

    def _spell(self, token: int) -> bytes:
        if token in self._added:
            content: str = self._added[token].content
            return content.encode()
        text = self._inner.id_to_token(token) if 0 <= token < 1 << 32 else None
        return b"" if text is None else self._spelling(text)


class Decoder:
    """Turns a stream of token ids into text, whole characters only.

    The pieces of `feed` and the last one of `flush` join to `Tokenizer.decode` of the same ids. A character that no
    further byte can complete comes out at once as U+FFFD, so nothing stalls.
    """

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The text that `token` completes; empty while a character is still open."""
        return self._utf8.decode(self._tokenizer.token_bytes(token, special=self._special))

    def flush(self) -> str:
        """The rest: U+FFFD if the stream ended inside a character. The decoder is then as new."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


def _is_markup(token: Any) -> bool:
    return not token.special and token.content.startswith("<") and token.content.endswith(">")


def _parse(data: bytes) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_buffer(data)


def _literal_controls(inner: tokenizers.Tokenizer, data: bytes) -> tokenizers.Tokenizer:
    """The tokenizer with added tokens matched as they are spelt, never after normalisation.

    Otherwise a normaliser could make a control token out of text that does not look like one.
    """
    tokens = inner.get_added_tokens_decoder().values()
    if not any(t.normalized and (t.special or _is_markup(t)) for t in tokens):
        return inner
    tree = json.loads(data)
    for token in tree["added_tokens"]:
        token["normalized"] = False
    return _parse(json.dumps(tree).encode())


def _configured_stops(folder: Path) -> set[int]:
    """End-of-sequence ids that the folder's configuration files name."""
    stops: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if not is_there(path):
            continue
        config = read_object(vetted(folder, name), CONFIG_LIMIT_BYTES)
        stops |= _eos_ids(path, config.get("eos_token_id"))
        text_config = config.get("text_config")
        if isinstance(text_config, dict):
            stops |= _eos_ids(path, text_config.get("eos_token_id"))
    return stops


def _eos_ids(path: Path, value: object) -> set[int]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for i in ids:
        if isinstance(i, bool) or not isinstance(i, int) or i < 0:
            raise CorruptModel(
                path, "must be a token id or a list of them", item="eos_token_id", found=repr(value)
            )
    return set(ids)


@contextmanager
def _malformed(path: Path) -> Iterator[None]:
    """Every failure of the Rust side, panics included (they derive from BaseException), as CorruptModel."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            reason = " ".join(str(error).split())[:200]
            raise CorruptModel(path, f"the tokenizer is malformed: {reason}") from error
        raise
