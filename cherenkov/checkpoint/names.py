"""What checkpoints call their tensors, and what we call them.

Canonical names are MLX's: `language_model.model.…`, `language_model.lm_head`, `mtp.…`. Hugging Face files say
`model.language_model.…` or, for text-only models, `model.…`; draft heads come under four prefixes.
"""

from __future__ import annotations

import re

__all__ = ["canonical", "canonical_module", "expert_name", "is_vision", "shard_name"]

_PREFIXES = (
    ("model.language_model.mtp.", "mtp."),
    ("language_model.model.mtp.", "mtp."),
    ("language_model.mtp.", "mtp."),
    ("model.mtp.", "mtp."),
    ("mtp.", "mtp."),
    ("model.language_model.lm_head.", "language_model.lm_head."),
    ("language_model.lm_head.", "language_model.lm_head."),
    ("lm_head.", "language_model.lm_head."),
    ("model.language_model.", "language_model.model."),
    ("language_model.model.", "language_model.model."),
    ("model.", "language_model.model."),
)
_VISION = ("vision_tower.", "model.vision_tower.", "visual.", "model.visual.")
_SHARDS = re.compile(r"\.ngram_embedding\.shards\.(\d+)(?=\.|$)")


def is_vision(name: str) -> bool:
    """Whether a tensor belongs to the image encoder, which is not used."""
    return name.startswith(_VISION) or ".visual." in name


def canonical(name: str) -> str:
    """The canonical name of a tensor; a name of no known form is returned as it is."""
    for theirs, ours in _PREFIXES:
        if name.startswith(theirs):
            name = ours + name[len(theirs) :]
            break
    return _SHARDS.sub(r".ngram_embedding.shard_\1", name)


def canonical_module(name: str) -> str:
    """The canonical name of a module, such as a configuration uses for its exceptions."""
    return canonical(name + ".").removesuffix(".")


def expert_name(prefix: str) -> str:
    """Where Hugging Face keeps the experts that MLX keeps under `….switch_mlp`."""
    return prefix.removesuffix("switch_mlp") + "experts"


def shard_name(prefix: str, index: int) -> str:
    """Canonical name of a row shard of an n-gram table."""
    return f"{prefix}.shard_{index}"
