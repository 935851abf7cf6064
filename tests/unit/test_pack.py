"""Preparing: what lands in a store, byte by byte, from every dialect."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cherenkov.architectures import family_of
from cherenkov.checkpoint.affine import (
    bf16_to_float32,
    dequantise,
    float32_to_bf16,
    quantise,
)
from cherenkov.checkpoint.source import open_checkpoint
from cherenkov.errors import ConfigError
from cherenkov.events import Note, Progress
from cherenkov.experts.rows import RowTable
from cherenkov.packing.pack import pack
from cherenkov.packing.store import PackedStore
from cherenkov.packing.verify import verify
from tests.checkpoints import opened, small, to_mlx, tree, write_mlx, write_raw
from tests.tiny import TINY, weights

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = TINY["plain"]
TENSORS = weights(PLAIN.text, PLAIN.seed)
TRUNK = "language_model.model."


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("hf") / "plain")[0]


@pytest.fixture(scope="module")
def store(source: Path, tmp_path_factory: pytest.TempPathFactory) -> PackedStore:
    return PackedStore.open(pack(opened(source), tmp_path_factory.mktemp("store") / "plain"))


def hf(name: str) -> np.ndarray:
    """A tensor as the Hugging Face checkpoint has it."""
    prefix = "" if name.startswith(("mtp.", "lm_head")) else "model.language_model."
    return TENSORS[prefix + name]


def test_files_of_a_store(source: Path, store: PackedStore) -> None:
    files = tree(store.path)
    assert set(files) == {
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "dense.bin",
        "experts.bin",
        "ngram.bin",
        "manifest.json",
        "integrity.json",
    }
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert files[name] == (source / name).read_bytes()
    assert [p.name for p in store.path.parent.iterdir()] == [store.path.name]


def test_manifest_has_the_published_keys(store: PackedStore) -> None:
    text = json.loads((store.path / "manifest.json").read_text())
    assert list(text) == ["version", "source_dir", "dense", "experts", "ngram"]
    assert text["version"] == 1
    assert list(text["dense"][0]) == ["name", "dtype", "shape", "offset", "nbytes"]
    assert text["experts"] == {
        "layers": 5,
        "experts": 8,
        "inter": 64,
        "hidden": 64,
        "group": 64,
        "record_bytes": 3 * 2048 + 6 * 128,
        "record_stride": 16384,
        "layer_prefixes": [
            *(f"{TRUNK}layers.{i}.mlp.switch_mlp" for i in range(4)),
            "mtp.layers.0.mlp.switch_mlp",
        ],
        "gate_w": 0,
        "up_w": 2048,
        "down_w": 4096,
        "gate_s": 6144,
        "gate_b": 6272,
        "up_s": 6400,
        "up_b": 6528,
        "down_s": 6656,
        "down_b": 6784,
    }
    ngram = text["ngram"]
    assert (ngram["dim"], ngram["group"], ngram["row_bytes"]) == (16, 16, 12)
    hashes = "layers.1.ple.ple_embedding."
    assert ngram["head_offsets"] == hf(hashes + "ngram_heads_offsets").tolist()
    assert ngram["head_vocab_sizes"] == hf(hashes + "ngram_heads_vocab_sizes").tolist()
    assert ngram["layer_multipliers"] == hf(hashes + "layer_multipliers").tolist()


def test_dense_is_sorted_aligned_and_padded_with_zeros(store: PackedStore) -> None:
    entries = store.manifest.dense
    assert [e.name for e in entries] == sorted(e.name for e in entries)
    data = (store.path / "dense.bin").read_bytes()
    end = 0
    for entry in entries:
        assert entry.offset == -(-end // 64) * 64
        assert not any(data[end : entry.offset])
        end = entry.offset + entry.nbytes
    assert len(data) == end


def test_dense_roles(store: PackedStore) -> None:
    dense = store.dense()
    layer = "layers.0."
    # matrices are quantised
    for name, theirs in {
        f"{TRUNK}embed_tokens": "embed_tokens.weight",
        f"{TRUNK}{layer}linear_attn.in_proj_a": f"{layer}linear_attn.in_proj_a.weight",
        f"{TRUNK}{layer}attn_hyper_connection.block_inject_weight": f"{layer}attn_hyper_connection.block_inject_weight.weight",
        "language_model.lm_head": "lm_head.weight",
        "mtp.fc_hidden": "mtp.fc_hidden.weight",
    }.items():
        values = hf(theirs)
        matrix = dense.matrix(name, values.shape)
        assert (matrix.bits, matrix.group) == (4, 64)
        expected = quantise(float32_to_bf16(values), 4, 64)
        for part, other in zip((matrix.codes, matrix.scales, matrix.biases), expected, strict=True):
            assert np.array_equal(part, other)
    # routers, convolutions, plain norms and decay parameters stay as they are
    for name in (
        "mlp.gate.weight",
        "mlp.shared_expert_gate.weight",
        "linear_attn.conv1d.weight",
        "linear_attn.norm.weight",
        "linear_attn.A_log",
        "linear_attn.dt_bias",
    ):
        values = hf(layer + name)
        assert np.array_equal(dense.vector(f"{TRUNK}{layer}{name}", values.shape), values)
    assert dense.entry(f"{TRUNK}{layer}linear_attn.conv1d.weight").shape == (128, 4, 1)
    # zero-centred norms are completed, in BF16; the two pre-norms are not
    for name in ("attn_hyper_connection.hc_norm.weight", "mlp_hyper_connection.hc_norm.weight"):
        folded = bf16_to_float32(float32_to_bf16(hf(layer + name) + np.float32(1)))
        assert np.array_equal(dense.vector(f"{TRUNK}{layer}{name}", folded.shape), folded)
        assert dense.entry(f"{TRUNK}{layer}{name}").dtype == "BF16"
    for name in ("mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"):
        assert np.array_equal(dense.vector(name, hf(name).shape), hf(name))


def test_records(store: PackedStore) -> None:
    layout, raw = store.expert_layout, store.experts_path.read_bytes()
    offsets = layout.offsets()
    for layer, prefix in ((0, "layers.0."), (3, "layers.3."), (4, "mtp.layers.0.")):
        both, down = hf(prefix + "mlp.experts.gate_up_proj"), hf(prefix + "mlp.experts.down_proj")
        for expert in (0, 7):
            start = store.record_index(layer, expert) * layout.stride_bytes
            record = raw[start : start + layout.stride_bytes]
            matrices = {"gate": both[expert, :64], "up": both[expert, 64:], "down": down[expert]}
            for name, values in matrices.items():
                parts = quantise(float32_to_bf16(values), 4, 64)
                for part, kind in zip(parts, "wsb", strict=True):
                    at = offsets[f"{name}_{kind}"]
                    assert record[at : at + part.nbytes] == part.tobytes()
            assert not any(record[layout.record_bytes :])


def test_ngram_rows(store: PackedStore) -> None:
    names = sorted(n for n in TENSORS if ".ngram_embedding.shard_" in n)
    table = np.concatenate([TENSORS[n] for n in names])
    codes, scales, biases = quantise(float32_to_bf16(table), 4, 16)
    raw = np.fromfile(store.ngram_paths[0], np.uint8).reshape(-1, 12)
    assert np.array_equal(raw[:, :8], codes.view(np.uint8))
    assert np.array_equal(raw[:, 8:10], scales.view(np.uint8))
    assert np.array_equal(raw[:, 10:], biases.view(np.uint8))


@pytest.mark.parametrize("name", list(TINY))
def test_every_tiny_model_packs_and_verifies(name: str, tmp_path: Path) -> None:
    folder, config = small(tmp_path / "source", name)
    path = pack(opened(folder), tmp_path / "store", threads=2)
    report = verify(path)
    assert report.verifiable
    assert report.ok, report.problems
    store = PackedStore.open(path)
    inventory = family_of(config).inventory(config)
    assert len(store.ngram_layouts) == len(inventory.ngrams)
    assert store.records == sum(spec.experts for spec in inventory.experts)
    (store.dense().raw(e.name) for e in store.manifest.dense)


@pytest.mark.parametrize("name", ["plain", "thirty-twos", "two-ple"])
def test_bits_16_keeps_every_value(name: str, tmp_path: Path) -> None:
    tiny = TINY[name]
    tensors = weights(tiny.text, tiny.seed)
    folder, _ = small(tmp_path / "source", name)
    store = PackedStore.open(pack(opened(folder), tmp_path / "store", bits=16))
    assert verify(store.path).ok
    dense = store.dense()
    embedding = tensors["model.language_model.embed_tokens.weight"]
    assert np.array_equal(
        dequantise(dense.matrix(f"{TRUNK}embed_tokens", embedding.shape)), embedding
    )
    norm = tensors["model.language_model.hyper_connection_mixer.hc_norm.weight"]
    entry = f"{TRUNK}hyper_connection_mixer.hc_norm.weight"
    assert dense.entry(entry).dtype == "F32"
    assert np.array_equal(dense.vector(entry, norm.shape), norm + np.float32(1))
    both = tensors["model.language_model.layers.0.mlp.experts.gate_up_proj"][1]
    layout = store.expert_layout
    record = np.fromfile(
        store.experts_path, np.uint8, layout.stride_bytes, offset=layout.stride_bytes
    )
    gate = record[: layout.codes_bytes * 2].view(np.uint16).reshape(both.shape)
    assert np.array_equal(bf16_to_float32(gate), both)
    for index, layer in enumerate(sorted(tiny.text["ple_layer_ids"])):
        shards = [
            n
            for n in tensors
            if f"layers.{layer - 1}.ple.ple_embedding.ngram_embedding.shard_" in n
        ]
        table = np.concatenate([tensors[n] for n in sorted(shards)])
        rows = RowTable(store.ngram_paths[index], store.ngram_layouts[index])
        assert np.array_equal(rows.gather(np.arange(len(table))[:, None]), table)
        rows.close()


def test_bits_8(source: Path, tmp_path: Path) -> None:
    store = PackedStore.open(pack(opened(source), tmp_path / "store", bits=8))
    assert (store.expert_layout.bits, store.expert_layout.group) == (8, 64)
    values = hf("embed_tokens.weight")
    matrix = store.dense().matrix(f"{TRUNK}embed_tokens", values.shape)
    assert matrix.bits == 8
    assert np.abs(dequantise(matrix) - values).max() < 0.05
    assert verify(store.path).ok


@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("small_quantised", [False, True])
def test_mlx_is_copied_and_not_quantised_again(
    group: int, small_quantised: bool, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"group": group, "small_quantised": small_quantised, "gate_bits": 8}
    folder = write_mlx(tmp_path / "mlx", PLAIN.config, TENSORS, **options)
    converted = to_mlx(TENSORS, **options)
    store = PackedStore.open(pack(opened(folder), tmp_path / "store"))
    assert store.manifest.experts.layout.group == group
    dense = store.dense()
    for name, value in converted.items():
        if ".switch_mlp." in name or ".ngram_embedding." in name:
            continue
        assert np.array_equal(dense.raw(name).reshape(-1), value.reshape(-1)), name
    layout, raw = store.expert_layout, store.experts_path.read_bytes()
    start = store.record_index(4, 5) * layout.stride_bytes
    for part, kind in ((".weight", "w"), (".scales", "s"), (".biases", "b")):
        for matrix in ("gate", "up", "down"):
            value = converted[f"mtp.layers.0.mlp.switch_mlp.{matrix}_proj{part}"][5]
            at = start + layout.offsets()[f"{matrix}_{kind}"]
            assert raw[at : at + value.nbytes] == value.tobytes()


def test_both_dialects_give_the_same_experts(source: Path, tmp_path: Path) -> None:
    """Quantising ourselves and copying what a converter quantised come to the same bytes."""
    folder = write_mlx(tmp_path / "mlx", PLAIN.config, TENSORS, small_quantised=True)
    a = tree(pack(opened(source), tmp_path / "a"))
    b = tree(pack(opened(folder), tmp_path / "b"))
    assert a["experts.bin"] == b["experts.bin"]
    assert a["dense.bin"] == b["dense.bin"]
    # the table stays BF16 in MLX files: its rows of 16 are too short for MLX to quantise
    assert PackedStore.open(tmp_path / "b").ngram_layouts[0].bits == 16


def test_experts_of_8_bits_are_copied_too(tmp_path: Path) -> None:
    converted = to_mlx(TENSORS)
    for name in [n for n in converted if n.endswith("_proj.weight") and ".switch_mlp." in n]:
        module = name.removesuffix(".weight")
        fused = module.replace(TRUNK, "model.language_model.").rpartition(".switch_mlp.")
        if fused[2] == "down_proj":
            values = TENSORS[f"{fused[0]}.experts.down_proj"]
        else:
            half = np.split(TENSORS[f"{fused[0]}.experts.gate_up_proj"], 2, axis=1)
            values = half[fused[2] == "up_proj"]
        parts = quantise(float32_to_bf16(values), 8, 64)
        for end, part in zip((".weight", ".scales", ".biases"), parts, strict=True):
            converted[module + end] = part
    (tmp_path / "source").mkdir()
    write_raw(tmp_path / "source" / "model.safetensors", converted)
    checkpoint = opened(tmp_path / "source", PLAIN.config)
    with pytest.raises(ConfigError, match="already quantised to 8 bits"):
        pack(checkpoint, tmp_path / "store", bits=4)
    store = PackedStore.open(pack(checkpoint, tmp_path / "store"))
    assert store.expert_layout.bits == 8
    assert store.dense().matrix(f"{TRUNK}embed_tokens", (300, 64)).bits == 4
    codes = converted[f"{TRUNK}layers.2.mlp.switch_mlp.up_proj.weight"][1]
    layout = store.expert_layout
    start = store.record_index(2, 1) * layout.stride_bytes + layout.offsets()["up_w"]
    assert store.experts_path.read_bytes()[start : start + codes.nbytes] == codes.tobytes()


def test_folded_pre_norms_are_stored_raw(tmp_path: Path) -> None:
    folder = write_mlx(tmp_path / "mlx", PLAIN.config, TENSORS, folded_pre_norms=True)
    dense = PackedStore.open(pack(opened(folder), tmp_path / "store")).dense()
    name = "mtp.pre_fc_norm_hidden.weight"
    folded = bf16_to_float32(float32_to_bf16(hf(name) + np.float32(1)))
    assert np.array_equal(dense.vector(name, folded.shape), folded - np.float32(1))


def test_a_missing_draft_head_is_taken_out_of_the_configuration(
    source: Path, tmp_path: Path
) -> None:
    config = json.loads((source / "config.json").read_text())
    without = family_of(config).without_draft(config)
    checkpoint = open_checkpoint(source, family_of(without).inventory(without), config)
    store = PackedStore.open(pack(checkpoint, tmp_path / "store"))
    assert store.config["text_config"]["mtp_num_hidden_layers"] == 0
    assert store.config["text_config"]["mtp"]["num_hidden_layers"] == 0
    assert store.manifest.experts.layers == 4
    assert not any(name.startswith("mtp.") for name in store.dense())
    assert json.loads((source / "config.json").read_text()) == config


def test_threads_and_layout_do_not_change_the_bytes(source: Path, tmp_path: Path) -> None:
    other, _ = small(tmp_path / "other", files=3, per_expert=True, shard_name="shards.")
    a = tree(pack(opened(source), tmp_path / "a", threads=1))
    b = tree(pack(opened(source), tmp_path / "b", threads=5))
    c = tree(pack(opened(other), tmp_path / "c"))
    assert a == b
    for name in ("dense.bin", "experts.bin", "ngram.bin"):
        assert a[name] == c[name]


def test_large_matrices_are_cut_into_rows(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tree(pack(opened(source), tmp_path / "a"))
    monkeypatch.setattr("cherenkov.packing.plan._PIECE_BYTES", 1500)
    monkeypatch.setattr("cherenkov.packing.plan._RECORDS", 3)
    monkeypatch.setattr("cherenkov.packing.plan._BLOCKS", 2)
    events: list[Any] = []
    cut = tree(pack(opened(source), tmp_path / "b", on_event=events.append))
    assert whole == cut


def test_progress_adds_up(source: Path, tmp_path: Path) -> None:
    events: list[Any] = []
    path = pack(opened(source), tmp_path / "store", on_event=events.append)
    progress = [e for e in events if isinstance(e, Progress)]
    assert progress[-1].done_bytes == progress[-1].total_bytes
    store = PackedStore.open(path)
    written = sum(p.stat().st_size for p in (store.experts_path, *store.ngram_paths))
    written += sum(e.nbytes for e in store.manifest.dense)
    assert progress[-1].total_bytes == written


def test_the_same_again_is_reused(source: Path, tmp_path: Path) -> None:
    path = pack(opened(source), tmp_path / "store")
    before = {p: p.stat().st_mtime_ns for p in path.iterdir()}
    events: list[Any] = []
    assert pack(opened(source), tmp_path / "store", on_event=events.append) == path
    assert {p: p.stat().st_mtime_ns for p in path.iterdir()} == before
    (note,) = (e.message for e in events if isinstance(e, Note) and "already" in e.message)
    assert "the weights were not" in note  # looked at
    assert note.endswith(f"(cherenkov verify {path})")


def test_an_empty_folder_and_missing_parents_are_fine(source: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert verify(pack(opened(source), tmp_path / "empty")).ok
    assert verify(pack(opened(source), tmp_path / "a" / "b" / "store")).ok
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "empty"]
