"""Checkpoints that are damaged, foreign or hostile: one line that says what, where and what to do."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cherenkov.checkpoint.safetensors import SafetensorsFile
from cherenkov.errors import CorruptModel, ModelError, ModelNotFound, UnsupportedModel
from tests.checkpoints import opened, small, to_mlx, write_mlx, write_raw
from tests.tiny import TINY, weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PLAIN = TINY["plain"]
TENSORS = weights(PLAIN.text, PLAIN.seed)
INDEX = "model.safetensors.index.json"
LAYER = "model.language_model.layers.0."


def refused(folder: Path, kind: type[ModelError], message: str, config: Any = None) -> str:
    with pytest.raises(kind, match=message) as caught:
        opened(folder, config)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return small(tmp_path / "model", files=3)[0]


def edit_index(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index)
    (folder / INDEX).write_text(json.dumps(index))


def rewrite(folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> Path:
    """The tiny checkpoint in one file, changed."""
    folder.mkdir(exist_ok=True)
    tensors = {
        n: v if v.dtype == np.int64 else (v.view(np.uint32) >> 16).astype(np.uint16)
        for n, v in TENSORS.items()
    }
    change(tensors)
    write_raw(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(PLAIN.config))
    return folder


# --- shards and their index


@pytest.mark.parametrize(
    "name",
    [
        "../model-00001-of-00003.safetensors",
        "/etc/passwd",
        "sub/model.safetensors",
        "..",
        ".",
        "",
        "a\\b",
        "nul\0byte",
    ],
)
def test_shard_names_must_be_bare(name: str, folder: Path) -> None:
    def change(index: dict[str, Any]) -> None:
        index["weight_map"] = dict.fromkeys(index["weight_map"], name)

    edit_index(folder, change)
    refused(folder, CorruptModel, "names a file outside the folder")


def test_links_may_only_lead_into_the_cache(folder: Path, tmp_path: Path) -> None:
    shard = folder / "model-00002-of-00003.safetensors"
    secret = tmp_path / "secret.safetensors"
    shard.rename(secret)
    shard.symlink_to(secret)
    refused(folder, CorruptModel, "a link that leads out of the folder")
    shard.unlink()
    shard.symlink_to(shard)
    refused(folder, CorruptModel, r"link|followed|missing")


def test_the_hugging_face_cache_is_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "hub" / "blobs").mkdir(parents=True)
    snapshot = tmp_path / "hub" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(tmp_path / "hub" / "blobs" / f"{number:x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number:x}")
    assert opened(snapshot).notes
    (tmp_path / "alias").symlink_to(snapshot)
    assert opened(tmp_path / "alias").notes


def test_a_missing_shard(folder: Path) -> None:
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003" in refused(folder, CorruptModel, "the file is missing")


def test_a_missing_index(folder: Path) -> None:
    (folder / INDEX).unlink()
    refused(folder, CorruptModel, "index.json: missing")


def test_shards_cut_short_at_every_border(folder: Path) -> None:
    path = folder / "model-00002-of-00003.safetensors"
    data = path.read_bytes()
    file = SafetensorsFile.open(path)
    borders = {0, 4, 8, 9, len(data) - 1}
    borders |= {t.offset for t in file.tensors.values()}
    borders |= {t.offset + 1 for t in file.tensors.values() if t.nbytes}
    for size in sorted(borders - {len(data)}):
        path.write_bytes(data[:size])
        refused(folder, CorruptModel, "cut short|too short|past the end")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda i: i["weight_map"].update(extra="model-00001-of-00003.safetensors"),
            "extra: listed in the index but absent",
        ),
        (
            lambda i: i["weight_map"].pop("lm_head.weight"),
            "lm_head.weight: not listed in the index",
        ),
        (lambda i: i["weight_map"].update({"lm_head.weight": 3}), "weight_map: not a map"),
        (lambda i: i.pop("weight_map"), "weight_map: not a map"),
        (lambda i: i.update(weight_map=[]), "weight_map: not a map"),
    ],
)
def test_the_index_must_agree(change: Any, message: str, folder: Path) -> None:
    edit_index(folder, change)
    refused(folder, CorruptModel, message)


def test_a_tensor_that_the_index_puts_elsewhere(folder: Path) -> None:
    def change(index: dict[str, Any]) -> None:
        places = index["weight_map"]
        name = places["lm_head.weight"]
        places["lm_head.weight"] = next(n for n in places.values() if n != name)

    edit_index(folder, change)
    refused(folder, CorruptModel, "lm_head.weight: listed in the index but absent")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"weight_map":{"a":"b","a":"b"}}', "appears twice"),
        (b"[" * 100_000, "too deeply"),
        (b'{"n":' + b"9" * 5000 + b"}", "bad JSON"),
        (b'{"\xff":1}', "not UTF-8"),
        (b'{"weight_map":', "not JSON"),
    ],
)
def test_hostile_indexes(text: bytes, message: str, folder: Path) -> None:
    (folder / INDEX).write_bytes(text)
    refused(folder, CorruptModel, message)


def test_an_index_of_absurd_length(folder: Path) -> None:
    os.truncate(folder / INDEX, 65 << 20)
    refused(folder, CorruptModel, "too long")


def test_two_tensors_that_mean_the_same(tmp_path: Path) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors["language_model.lm_head.weight"] = tensors["lm_head.weight"]

    refused(rewrite(tmp_path, change), CorruptModel, "means the same as lm_head.weight")


# --- tensors that the configuration implies


@pytest.mark.parametrize("name", sorted(TENSORS))
def test_every_tensor_is_needed(name: str, tmp_path: Path) -> None:
    folder = rewrite(tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(CorruptModel) as caught:
        opened(folder)
    assert caught.value.item is not None


@pytest.mark.parametrize(
    "name",
    [
        f"{LAYER}linear_attn.in_proj_qkv.weight",
        f"{LAYER}linear_attn.A_log",
        f"{LAYER}linear_attn.conv1d.weight",
        f"{LAYER}mlp.experts.gate_up_proj",
        f"{LAYER}mlp.gate.weight",
        f"{LAYER}attn_hyper_connection.hc_norm.weight",
        "mtp.pre_fc_norm_hidden.weight",
        "model.language_model.layers.1.ple.ple_embedding.layer_multipliers",
    ],
)
def test_every_shape_counts(name: str, tmp_path: Path) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[name] = tensors[name][:-1]

    text = refused(rewrite(tmp_path, change), CorruptModel, "wrong shape")
    assert name in text
    assert "expected [" in text


def test_shards_of_a_table_must_add_up(tmp_path: Path) -> None:
    prefix = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_"

    def unequal(tensors: dict[str, np.ndarray]) -> None:
        tensors[f"{prefix}0.weight"] = tensors[f"{prefix}0.weight"][:-1]

    def narrow(tensors: dict[str, np.ndarray]) -> None:
        for i in range(4):
            tensors[f"{prefix}{i}.weight"] = tensors[f"{prefix}{i}.weight"][:, :-1]

    def one_more(tensors: dict[str, np.ndarray]) -> None:
        tensors[f"{prefix}4.weight"] = tensors[f"{prefix}0.weight"]

    for change in (unequal, one_more):
        refused(rewrite(tmp_path, change), CorruptModel, "do not make up the table")
    refused(rewrite(tmp_path, narrow), CorruptModel, "wrong shape")


# --- encodings that are not read


def test_not_a_model(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", ModelNotFound, "no such folder", PLAIN.config)
    refused(tmp_path, ModelNotFound, "not a model folder", PLAIN.config)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    refused(tmp_path, UnsupportedModel, "a GGUF model", PLAIN.config)


def test_fp8(tmp_path: Path) -> None:
    name = f"{LAYER}linear_attn.in_proj_qkv.weight"

    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[name] = np.zeros(tensors[name].shape, np.int8)

    assert name in refused(rewrite(tmp_path, change), UnsupportedModel, "FP8 weights")


@pytest.mark.parametrize("suffix", ["weight_scale_inv", "qweight", "weight_packed"])
def test_other_quantisers(suffix: str, tmp_path: Path) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[f"{LAYER}linear_attn.in_proj_qkv.{suffix}"] = np.zeros(3, np.float32)

    assert suffix in refused(rewrite(tmp_path, change), UnsupportedModel, "quantised")


@pytest.mark.parametrize("method", ["fp8", "compressed-tensors", "awq"])
def test_quantisation_methods_are_named(method: str, folder: Path) -> None:
    config = PLAIN.config | {"quantization_config": {"quant_method": method}}
    refused(folder, UnsupportedModel, f"quantised with {method}", config)


@pytest.mark.parametrize("mode", ["mxfp4", "nvfp4", "mxfp8"])
def test_quantisation_modes_are_named(mode: str, tmp_path: Path) -> None:
    folder = write_mlx(tmp_path, PLAIN.config, TENSORS)
    config = json.loads((folder / "config.json").read_text())
    whole = config | {"quantization": config["quantization"] | {"mode": mode}}
    refused(folder, UnsupportedModel, f"'{mode}' of every module", whole)
    config["quantization"]["model.layers.0.mlp.gate"] = {"mode": mode, "bits": 4}
    refused(folder, UnsupportedModel, f"'{mode}' of model.layers.0.mlp.gate", config)


def test_scales_without_biases(tmp_path: Path) -> None:
    converted = to_mlx(TENSORS)
    converted.pop("language_model.lm_head.biases")
    write_raw(tmp_path / "model.safetensors", converted)
    refused(tmp_path, UnsupportedModel, "lm_head.weight is quantised in a way", PLAIN.config)


def test_float32_matrices(tmp_path: Path) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors["lm_head.weight"] = TENSORS["lm_head.weight"]

    refused(rewrite(tmp_path, change), UnsupportedModel, "lm_head.weight is stored as F32")


def test_widths_that_experts_cannot_have(tmp_path: Path) -> None:
    from cherenkov.checkpoint.affine import float32_to_bf16, quantise

    converted = to_mlx(TENSORS)
    name = "language_model.model.layers.0.mlp.switch_mlp.gate_proj"
    values = TENSORS[f"{LAYER}mlp.experts.gate_up_proj"][:, :64]
    for bits, message in ((8, "4-bit in groups of 64 and 8-bit"), (2, "2-bit in groups of 64")):
        parts = quantise(float32_to_bf16(np.ascontiguousarray(values)), bits, 64)
        for end, part in zip((".weight", ".scales", ".biases"), parts, strict=True):
            converted[name + end] = part
        write_raw(tmp_path / "model.safetensors", converted)
        refused(tmp_path, UnsupportedModel, message, PLAIN.config)


@pytest.mark.parametrize("part", ["weight", "scales", "biases"])
def test_affine_parts_must_fit_each_other(part: str, tmp_path: Path) -> None:
    converted = to_mlx(TENSORS)
    name = f"language_model.model.layers.1.ple.key_proj.{part}"
    converted[name] = converted[name][:-1]
    write_raw(tmp_path / "model.safetensors", converted)
    refused(tmp_path, CorruptModel, "wrong shape", PLAIN.config)


def test_codes_of_an_impossible_width(tmp_path: Path) -> None:
    converted = to_mlx(TENSORS)
    name = "language_model.model.layers.1.ple.key_proj.weight"
    converted[name] = np.ascontiguousarray(converted[name][:, :-1])
    write_raw(tmp_path / "model.safetensors", converted)
    refused(tmp_path, CorruptModel, "wrong shape", PLAIN.config)
