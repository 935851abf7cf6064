"""Checkpoint folders: safetensors, config, tokenizer, chat template."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.tiny.shapes import LM

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from tests.tiny.configs import Json
    from tests.tiny.weights import Tensors

__all__ = ["write_hf", "write_safetensors"]


def write_hf(
    folder: Path,
    config: Json,
    tensors: Tensors,
    *,
    files: int = 1,
    per_expert: bool = False,
    shard_name: str = "shard_",
    mtp_prefix: str = "mtp.",
) -> Path:
    """Write a full checkpoint folder: config, weights, tokenizer, chat template.

    Args:
        folder: made if missing.
        config: config.json; without `text_config`, names start with `model.` instead of `model.language_model.`.
        tensors: from `weights`.
        files: number of safetensors files; more than one come with an index.
        per_expert: one tensor per expert and projection instead of fused ones.
        shard_name: `shard_` or `shards.`, in front of the number of an n-gram shard.
        mtp_prefix: what the draft head's names start with.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    prefix = LM if "text_config" in config else "model."
    named: Tensors = {}
    for name, value in tensors.items():
        new = name.replace(LM, prefix, 1).replace(".shard_", f".{shard_name}")
        new = mtp_prefix + new.removeprefix("mtp.") if new.startswith("mtp.") else new
        named |= dict(_experts(new, value)) if per_expert and ".experts." in new else {new: value}
    _write_shards(folder, named, files)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    _write_tokenizer(folder)
    return folder


def _experts(name: str, value: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    stem, kind = name.rsplit(".", 1)
    for index, matrix in enumerate(value):
        if kind == "down_proj":
            yield f"{stem}.{index}.down_proj.weight", matrix
        else:
            gate, up = np.split(matrix, 2)
            yield f"{stem}.{index}.gate_proj.weight", gate
            yield f"{stem}.{index}.up_proj.weight", up


def _write_shards(folder: Path, tensors: Tensors, files: int) -> None:
    names = sorted(tensors)
    where: dict[str, str] = {}
    for part in range(files):
        file = (
            f"model-{part + 1:05}-of-{files:05}.safetensors" if files > 1 else "model.safetensors"
        )
        mine = names[part::files]
        write_safetensors(folder / file, {n: tensors[n] for n in mine})
        where |= dict.fromkeys(mine, file)
    if files > 1:
        index = {"metadata": {}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Float32 arrays as BF16 (their lower halves must be zero), int64 arrays as they are."""
    header: Json = {"__metadata__": {"format": "pt"}}
    chunks: list[bytes] = []
    offset = 0
    for name, value in tensors.items():
        if value.dtype == np.float32:
            bits = np.ascontiguousarray(value).view("<u4")
            if np.any(bits & 0xFFFF):
                raise ValueError(f"{name}: not a BF16 value")
            data, kind = (bits >> 16).astype("<u2").tobytes(), "BF16"
        else:
            data, kind = value.astype("<i8").tobytes(), "I64"
        end = offset + len(data)
        header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [offset, end]}
        chunks.append(data)
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(chunks))


_TEMPLATE = """\
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def _write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer: ids 0 to 255 are bytes in the alphabet's order, three special tokens follow."""
    alphabet = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_end|>", "<|im_start|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
