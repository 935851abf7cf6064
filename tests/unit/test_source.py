"""Checkpoints in every dialect: found, measured, and understood the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cherenkov.architectures import family_of
from cherenkov.checkpoint.affine import bf16_to_float32, dequantise, float32_to_bf16
from cherenkov.checkpoint.matrices import StoredMatrix
from cherenkov.checkpoint.names import canonical, canonical_module, is_vision
from cherenkov.checkpoint.shards import Stored, fingerprint, has_draft_head
from cherenkov.checkpoint.source import Dialect, open_checkpoint
from tests.checkpoints import opened, small, to_mlx, write_mlx, write_raw
from tests.tiny import TINY, weights

if TYPE_CHECKING:
    from pathlib import Path

    from cherenkov.checkpoint.source import Checkpoint

PLAIN = TINY["plain"]
TENSORS = weights(PLAIN.text, PLAIN.seed)


def values(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Everything a checkpoint holds, as float32 (or int64), under the inventory's names."""
    found: dict[str, np.ndarray] = {}
    for name, source in checkpoint.dense.items():
        if isinstance(source, StoredMatrix):
            found[name] = dequantise(source.read(0, source.rows))
        else:
            raw = source.read()
            found[name] = bf16_to_float32(raw) if source.dtype == "BF16" else raw
            found[name] = np.squeeze(found[name])
    for layer in checkpoint.experts:
        for e, blocks in enumerate(layer.blocks):
            for part, block in zip("gud", blocks, strict=True):
                found[f"{layer.prefix}.{e}.{part}"] = dequantise(block.read())
    for table in checkpoint.ngrams:
        rows = sum(shard.rows for shard in table.shards)
        found[table.prefix] = dequantise(table.read(0, rows))
    return found


def same(a: Checkpoint, b: Checkpoint) -> None:
    left, right = values(a), values(b)
    assert left.keys() == right.keys()
    for name in left:
        assert np.array_equal(left[name], right[name]), name


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (
            "model.language_model.layers.0.mlp.gate.weight",
            "language_model.model.layers.0.mlp.gate.weight",
        ),
        ("model.layers.0.mlp.gate.weight", "language_model.model.layers.0.mlp.gate.weight"),
        ("language_model.model.embed_tokens.scales", "language_model.model.embed_tokens.scales"),
        ("lm_head.weight", "language_model.lm_head.weight"),
        ("language_model.lm_head.weight", "language_model.lm_head.weight"),
        ("mtp.fc_hidden.weight", "mtp.fc_hidden.weight"),
        ("model.mtp.fc_hidden.weight", "mtp.fc_hidden.weight"),
        ("language_model.mtp.fc_hidden.weight", "mtp.fc_hidden.weight"),
        ("model.language_model.mtp.fc_hidden.weight", "mtp.fc_hidden.weight"),
        (
            "model.layers.1.x.ngram_embedding.shards.12.weight",
            "language_model.model.layers.1.x.ngram_embedding.shard_12.weight",
        ),
        ("something.else", "something.else"),
    ],
)
def test_names(theirs: str, ours: str) -> None:
    assert canonical(theirs) == ours


def test_module_names_and_vision() -> None:
    assert canonical_module("lm_head") == "language_model.lm_head"
    assert canonical_module("model.layers.3.mlp.gate") == "language_model.model.layers.3.mlp.gate"
    assert is_vision("model.visual.blocks.0.attn.qkv.weight")
    assert is_vision("vision_tower.patch_embed.proj.weight")
    assert not is_vision("model.layers.0.mlp.gate.weight")


@pytest.mark.parametrize(
    "layout",
    [
        {"files": 3},
        {"per_expert": True},
        {"shard_name": "shards."},
        {"mtp_prefix": "model.mtp."},
        {"mtp_prefix": "language_model.mtp."},
        {"mtp_prefix": "model.language_model.mtp.", "files": 2, "per_expert": True},
    ],
    ids=str,
)
def test_hugging_face_layouts_hold_the_same(layout: dict[str, Any], tmp_path: Path) -> None:
    first, _ = small(tmp_path / "a")
    other, _ = small(tmp_path / "b", **layout)
    a, b = opened(first), opened(other)
    assert (b.trunk, b.draft) == (Dialect.HUGGING_FACE, Dialect.HUGGING_FACE)
    assert [note.level for note in b.notes] == ["info"]
    same(a, b)


def test_whole_table_and_text_only_prefix(tmp_path: Path) -> None:
    folder, config = small(tmp_path / "a")
    tensors = dict(TENSORS)
    shards = sorted(n for n in tensors if ".ngram_embedding.shard_" in n)
    whole = np.concatenate([tensors.pop(n) for n in shards])
    tensors[shards[0].replace(".shard_0.", ".")] = whole
    text = {
        n.replace("model.language_model.", "language_model.model."): v for n, v in tensors.items()
    }
    raw = {
        n: v if v.dtype == np.int64 else (v.view(np.uint32) >> 16).astype(np.uint16)
        for n, v in text.items()
    }
    (tmp_path / "b").mkdir()
    write_raw(tmp_path / "b" / "model.safetensors", raw)
    same(opened(folder), opened(tmp_path / "b", config))


@pytest.mark.parametrize("name", list(TINY))
def test_every_tiny_model_opens(name: str, tmp_path: Path) -> None:
    folder, _ = small(tmp_path, name)
    checkpoint = opened(folder)
    assert not [note for note in checkpoint.notes if note.level == "warning"]
    assert not checkpoint.pre_norms_complete


@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("small_quantised", [False, True])
@pytest.mark.parametrize("gate_bits", [8, 16])
@pytest.mark.parametrize("spelling", ["model.", "language_model.model."])
def test_mlx_layouts(
    group: int, small_quantised: bool, gate_bits: int, spelling: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "group": group,
        "small_quantised": small_quantised,
        "gate_bits": gate_bits,
    }
    folder = write_mlx(tmp_path, PLAIN.config, TENSORS, spelling=spelling, **options)
    checkpoint = opened(folder)
    assert (checkpoint.trunk, checkpoint.draft) == (Dialect.MLX, Dialect.MLX)
    assert checkpoint.expert_format == (4, group)
    assert [note.level for note in checkpoint.notes] == ["info"]
    gate = checkpoint.dense["language_model.model.layers.0.mlp.gate.weight"]
    assert (gate.bits if isinstance(gate, StoredMatrix) else 16) == gate_bits
    inject = checkpoint.dense[
        "language_model.model.layers.0.attn_hyper_connection.block_inject_weight"
    ]
    assert isinstance(inject, StoredMatrix)
    assert inject.bits == (4 if small_quantised else 16)


def test_draft_head_in_a_file_of_its_own(tmp_path: Path) -> None:
    together = write_mlx(tmp_path / "a", PLAIN.config, TENSORS)
    apart = write_mlx(tmp_path / "b", PLAIN.config, TENSORS, draft_file=True)
    same(opened(together), opened(apart))
    assert has_draft_head(apart)
    (apart / "mtp.safetensors").unlink()
    assert not has_draft_head(apart)


def test_a_raw_draft_head_beside_a_converted_trunk(tmp_path: Path) -> None:
    """Each part is read by its own conventions."""
    converted = to_mlx(TENSORS)
    trunk = {n: v for n, v in converted.items() if not n.startswith("mtp.")}
    draft = {
        n: (v.view(np.uint32) >> 16).astype(np.uint16)
        for n, v in TENSORS.items()
        if n.startswith("mtp.")
    }
    write_raw(tmp_path / "model.safetensors", trunk)
    write_raw(tmp_path / "mtp.safetensors", draft)
    checkpoint = opened(tmp_path, PLAIN.config)
    assert (checkpoint.trunk, checkpoint.draft) == (Dialect.MLX, Dialect.HUGGING_FACE)
    assert checkpoint.expert_format == (4, 64)
    norm = next(
        s
        for s in checkpoint.inventory.dense
        if s.name == "mtp.hyper_connection_mixer.hc_norm.weight"
    )
    assert checkpoint.addend(norm) == 1
    assert checkpoint.comes_quantised("language_model.model.embed_tokens")
    assert not checkpoint.comes_quantised("mtp.fc_hidden")


@pytest.mark.parametrize("folded", [False, True])
def test_pre_norms_are_judged_by_their_values(folded: bool, tmp_path: Path) -> None:
    folder = write_mlx(tmp_path, PLAIN.config, TENSORS, folded_pre_norms=folded)
    checkpoint = opened(folder)
    assert checkpoint.pre_norms_complete == folded
    (note,) = checkpoint.notes
    assert ("as they are" if folded else "as distances") in note.message
    assert note.level == "info"


def test_large_raw_pre_norms_in_hugging_face_files_are_doubted_but_kept(tmp_path: Path) -> None:
    tensors = dict(TENSORS)
    for name in ("mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"):
        tensors[name] = np.full_like(tensors[name], 0.6875)
    raw = {
        n: v if v.dtype == np.int64 else (v.view(np.uint32) >> 16).astype(np.uint16)
        for n, v in tensors.items()
    }
    write_raw(tmp_path / "model.safetensors", raw)
    checkpoint = opened(tmp_path, PLAIN.config)
    assert not checkpoint.pre_norms_complete
    assert [note.level for note in checkpoint.notes] == ["warning"]


def test_norms_that_contradict_their_dialect_are_doubted(tmp_path: Path) -> None:
    """A converter that forgot to add the 1 to the trunk's norms, and one that added it to raw files."""
    raw = {n: v - 1 if "hc_norm" in n else v for n, v in TENSORS.items()}
    folder = write_mlx(tmp_path / "mlx", PLAIN.config, raw)
    (warning,) = (n for n in opened(folder).notes if n.level == "warning")
    assert "the norms look raw" in warning.message
    complete = {n: v + 1 if "norm" in n and "linear" not in n else v for n, v in TENSORS.items()}
    tensors = {
        n: v if v.dtype == np.int64 else float32_to_bf16(v.astype(np.float32))
        for n, v in complete.items()
    }
    (tmp_path / "hf").mkdir()
    write_raw(tmp_path / "hf" / "model.safetensors", tensors)
    checkpoint = opened(tmp_path / "hf", PLAIN.config)
    assert checkpoint.pre_norms_complete
    (warning,) = (n for n in checkpoint.notes if n.level == "warning")
    assert "the norms look complete" in warning.message


def test_vision_is_ignored_and_strangers_are_mentioned(tmp_path: Path) -> None:
    folder, config = small(tmp_path)
    extra = {
        "model.visual.patch_embed.proj.weight": np.zeros((2, 3), np.uint16),
        "model.language_model.layers.0.rotary.inv_freq": np.zeros(4, np.float32),
    }
    stored = opened(folder).dense["language_model.model.embed_tokens"]
    assert isinstance(stored, StoredMatrix)
    file = stored.weight.file
    write_raw(folder / "model.safetensors", {n: file.read(n) for n in file.tensors} | extra)
    notes = opened(folder, config).notes
    assert [n.message for n in notes if n.level == "warning"] == [
        "1 tensors are not used: model.language_model.layers.0.rotary.inv_freq"
    ]


def test_a_draft_head_that_nobody_wants(tmp_path: Path) -> None:
    folder, config = small(tmp_path)
    without = family_of(config).without_draft(config)
    checkpoint = open_checkpoint(folder, family_of(without).inventory(without), without)
    assert [n.message for n in checkpoint.notes] == ["the draft head is left out: 31 tensors"]


def test_configuration_that_contradicts_the_files_is_mentioned(tmp_path: Path) -> None:
    folder = write_mlx(tmp_path, PLAIN.config, TENSORS, group=32)
    config = json.loads((folder / "config.json").read_text())
    for key in ("quantization", "quantization_config"):
        config[key]["group_size"] = 64
    (warning,) = (n for n in opened(folder, config).notes if n.level == "warning")
    assert "4-bit in groups of 32, though config.json says 4-bit in groups of 64" in warning.message


def test_tables_are_read_across_shards(tmp_path: Path) -> None:
    folder, _ = small(tmp_path)
    (table,) = opened(folder).ngrams
    height = table.shards[0].rows
    whole = dequantise(table.read(0, 4 * height))
    assert np.array_equal(
        dequantise(table.read(height - 3, 2 * height + 5)), whole[height - 3 : 2 * height + 5]
    )


def test_fingerprint_follows_the_files(tmp_path: Path) -> None:
    folder, _ = small(tmp_path)
    before = fingerprint(folder)
    assert before == fingerprint(folder)
    (folder / "notes.txt").write_text("not a model file")
    assert before == fingerprint(folder)
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    assert before != fingerprint(folder)


def test_stored_tensors_know_their_file(tmp_path: Path) -> None:
    folder, _ = small(tmp_path)
    stored = opened(folder).dense["language_model.model.layers.0.linear_attn.A_log"]
    assert isinstance(stored, Stored)
    assert (stored.dtype, stored.shape) == ("BF16", (4,))
    assert stored.name == "model.language_model.layers.0.linear_attn.A_log"
