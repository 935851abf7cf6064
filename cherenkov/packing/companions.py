"""The small files that travel with the weights: configuration, tokenizer, template, licence."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

from cherenkov.checkpoint.documents import LIMIT_BYTES, is_there, read_bytes
from cherenkov.checkpoint.shards import vetted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cherenkov.checkpoint.source import Checkpoint

__all__ = ["companions"]

_NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    *(f"{stem}{end}" for stem in ("LICENSE", "NOTICE") for end in ("", ".txt", ".md")),
)


def companions(checkpoint: Checkpoint) -> dict[str, bytes]:
    """Name and content of every small file of the store, config.json first.

    Raises:
        CorruptModel: if one is no regular file of the folder, or longer than 64 MiB.
        DiskError: if the system refuses to read.
    """
    found = {"config.json": _config(checkpoint)}
    for name in _NAMES:
        if is_there(checkpoint.folder / name):
            found[name] = read_bytes(vetted(checkpoint.folder, name), LIMIT_BYTES)
    return found


def _config(checkpoint: Checkpoint) -> bytes:
    """config.json as it came, unless it promises a draft head that the store will not have."""
    original = checkpoint.folder / "config.json"
    drafted = any(spec.name.startswith("mtp.") for spec in checkpoint.inventory.dense)
    config = checkpoint.config if drafted else _without_draft(checkpoint.config)
    if is_there(original):
        data = read_bytes(vetted(checkpoint.folder, "config.json"), LIMIT_BYTES)
        if json.loads(data) == config:
            return data
    return json.dumps(config, indent=2).encode() + b"\n"


def _without_draft(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with every count of draft layers at 0."""
    changed = copy.deepcopy(dict(config))
    for section in (changed, changed.get("text_config")):
        if not isinstance(section, dict):
            continue
        if section.get("mtp_num_hidden_layers"):
            section["mtp_num_hidden_layers"] = 0
        nested = section.get("mtp")
        if isinstance(nested, dict) and nested.get("num_hidden_layers"):
            nested["num_hidden_layers"] = 0
    return changed
