"""Small checkpoints in every dialect that is read, made from the seeded weights of `tests.tiny`."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from cherenkov.architectures import family_of
from cherenkov.checkpoint.affine import float32_to_bf16, quantise
from cherenkov.checkpoint.source import open_checkpoint
from tests.tiny import TINY, weights, write_hf

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from cherenkov.checkpoint.source import Checkpoint

__all__ = ["opened", "small", "to_mlx", "tree", "write_mlx", "write_raw"]

FOLDED = (
    "hc_norm",
    "q_norm",
    "k_norm",
    "q_layernorm",
    "k_layernorm",
    "norm_key",
    "norm_query",
    "norm_conv",
)
ROUTERS = ("mlp.gate", "shared_expert_gate")
SMALL = ("in_proj_a", "in_proj_b", "index_qk_proj", "block_inject_weight")
"""Matrices that some converters quantise and others leave in BF16."""

_KINDS = {
    "<f4": "F32",
    "<u2": "BF16",
    "<u4": "U32",
    "<i8": "I64",
    "<f2": "F16",
    "|u1": "U8",
    "|i1": "F8_E4M3",
}


def small(folder: Path, name: str = "plain", **layout: Any) -> tuple[Path, dict[str, Any]]:
    """A Hugging Face folder of the tiny model `name`, and its configuration."""
    tiny = TINY[name]
    return write_hf(folder, tiny.config, weights(tiny.text, tiny.seed), **layout), tiny.config


def opened(folder: Path, config: Mapping[str, Any] | None = None) -> Checkpoint:
    """The checkpoint in `folder`, checked against what its configuration implies."""
    config = config or json.loads((folder / "config.json").read_text())
    return open_checkpoint(folder, family_of(config).inventory(config), config)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`."""
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def write_raw(
    path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> None:
    """A safetensors file; uint16 arrays are BF16, int8 arrays FP8."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, value in tensors.items():
        end = offset + value.nbytes
        header[name] = {
            "dtype": _KINDS[value.dtype.str],
            "shape": list(value.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in tensors.values():
            file.write(np.ascontiguousarray(value).tobytes())


def to_mlx(
    tensors: Mapping[str, NDArray[Any]],
    *,
    group: int = 64,
    small_quantised: bool = False,
    gate_bits: int = 16,
    folded_pre_norms: bool = False,
) -> dict[str, NDArray[Any]]:
    """What an MLX conversion of Hugging Face tensors holds, by MLX's names."""
    out: dict[str, NDArray[Any]] = {}

    def matrix(name: str, value: NDArray[np.float32], bits: int = 4, size: int = group) -> None:
        if bits == 16 or value.shape[-1] % size:
            out[name + ".weight"] = float32_to_bf16(value)
            return
        parts = quantise(float32_to_bf16(value), bits, size)
        out.update(
            {
                name + end: part
                for end, part in zip((".weight", ".scales", ".biases"), parts, strict=True)
            }
        )

    for theirs, value in tensors.items():
        name = theirs.replace("model.language_model.", "language_model.model.", 1)
        name = "language_model." + name if name.startswith("lm_head") else name
        module = name.removesuffix(".weight")
        if name.endswith("experts.gate_up_proj"):
            prefix = name.replace("experts.gate_up_proj", "switch_mlp.")
            for part, half in zip(
                ("gate_proj", "up_proj"), np.split(value, 2, axis=1), strict=True
            ):
                matrix(prefix + part, half)
        elif name.endswith("experts.down_proj"):
            matrix(name.replace("experts.", "switch_mlp."), value)
        elif ".ngram_embedding." in name:
            matrix(module, value, size=32)
        elif value.dtype == np.int64:
            out[name] = value
        elif "conv1d" in name:
            out[name] = float32_to_bf16(np.ascontiguousarray(value.transpose(0, 2, 1)))
        elif module.endswith(FOLDED) or ("pre_fc_norm" in name and folded_pre_norms):
            out[name] = float32_to_bf16(value + np.float32(1))
        elif module.endswith(ROUTERS):
            matrix(module, value, bits=gate_bits, size=64)
        elif value.ndim == 2 and (small_quantised or not module.endswith(SMALL)):
            matrix(module, value)
        else:
            out[name] = float32_to_bf16(value)
    return out


def write_mlx(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, NDArray[Any]],
    *,
    spelling: str = "model.",
    draft_file: bool = False,
    **options: Any,
) -> Path:
    """An MLX folder. `spelling` begins the names of modules that config.json makes exceptions for."""
    folder.mkdir(parents=True, exist_ok=True)
    converted = to_mlx(tensors, **options)
    draft = {name: value for name, value in converted.items() if name.startswith("mtp.")}
    main = {name: value for name, value in converted.items() if not (draft_file and name in draft)}
    write_raw(folder / "model.safetensors", main, {"format": "mlx"})
    if draft_file:
        write_raw(folder / "mtp.safetensors", draft, {"format": "mlx"})
    scheme: dict[str, Any] = {"group_size": options.get("group", 64), "bits": 4}
    for name in converted:
        module = name.removesuffix(".scales")
        short = spelling + module.removeprefix("language_model.model.")
        if module != name and ".ngram_embedding." in name:
            scheme[short] = {"group_size": 32, "bits": 4}
        elif module != name and module.endswith(ROUTERS):
            scheme[short] = {"group_size": 64, "bits": options["gate_bits"]}
    changed = copy.deepcopy(dict(config)) | {"quantization": scheme, "quantization_config": scheme}
    (folder / "config.json").write_text(json.dumps(changed))
    return folder
