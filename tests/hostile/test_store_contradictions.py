"""Stores whose parts contradict each other: refused when they are opened, whatever their checksums say."""

import json
import shutil

import numpy as np
import pytest

from cherenkov import Model
from cherenkov.errors import CorruptModel, UnsupportedModel

HASH = "language_model.model.layers.1.ple.ple_embedding."


@pytest.fixture
def forged(glow_store, tmp_path):
    """A copy of Glow's store without checksums, as a stranger may hand it out."""
    copy = shutil.copytree(glow_store, tmp_path / "store")
    (copy / "integrity.json").unlink()
    return copy


def rewrite(store, name, values):
    """Put other integers into a dense tensor."""
    entries = json.loads((store / "manifest.json").read_text())["dense"]
    (entry,) = (e for e in entries if e["name"] == name)
    with (store / "dense.bin").open("r+b") as file:
        file.seek(entry["offset"])
        found = np.frombuffer(file.read(entry["nbytes"]), np.int64).copy()
        found[: len(values)] = values
        file.seek(entry["offset"])
        file.write(found.tobytes())


def refusal(store):
    with pytest.raises(CorruptModel) as caught, Model.load(store, backend="reference"):
        pass
    assert len(str(caught.value)) < 500
    return str(caught.value)


def test_a_damaged_ngram_table_is_found_when_the_model_is_opened(glow_store, tmp_path):
    copy = shutil.copytree(glow_store, tmp_path / "store")
    with (copy / "ngram.bin").open("r+b") as file:
        file.seek(12_345)
        byte = file.read(1)[0]
        file.seek(12_345)
        file.write(bytes([byte ^ 4]))
    message = refusal(copy)
    assert "ngram.bin" in message
    assert "block 0" in message
    assert "checksum does not match" in message


@pytest.mark.parametrize(
    ("name", "values", "head"),
    [
        ("ngram_heads_vocab_sizes", [0], 0),
        ("ngram_heads_vocab_sizes", [20_011, -5], 1),
        ("ngram_heads_vocab_sizes", [(1 << 63) - 1], 0),
        ("ngram_heads_offsets", [-1], 0),
        ("ngram_heads_offsets", [160_384], 0),
        ("ngram_heads_offsets", [0, 1 << 62], 1),
    ],
)
def test_a_hash_that_leaves_its_table(forged, name, values, head):
    rewrite(forged, HASH + name, values)
    assert f"n-gram table 0, head {head}: the hash of an n-gram head leaves" in refusal(forged)


@pytest.mark.parametrize(
    ("key", "value", "item"),
    [
        ("num_hidden_layers", 4, "experts.layers"),
        ("mtp_num_hidden_layers", 0, "experts.layers"),
        ("num_experts", 63, "experts.experts"),
        ("moe_intermediate_size", 128, "experts.inter"),
        ("ple_layer_ids", [], "n-gram tables"),
        ("ngram_vocab_size_base", 30_000, "n-gram table 0"),
        ("heads_per_ngram", 8, "n-gram table 0"),
    ],
)
def test_a_configuration_of_another_model(forged, key, value, item):
    path = forged / "config.json"
    config = json.loads(path.read_text())
    text = config["text_config"]
    text[key] = value
    if key == "num_hidden_layers":
        text["layer_types"] = text["layer_types"][:value]
    if key == "mtp_num_hidden_layers":
        text["mtp"]["num_hidden_layers"] = value
    path.write_text(json.dumps(config))
    message = refusal(forged)
    assert f"{item}: manifest.json contradicts config.json" in message


def test_a_configuration_with_other_widths_names_the_tensor(forged):
    path = forged / "config.json"
    config = json.loads(path.read_text())
    config["text_config"]["linear_num_key_heads"] = 1
    path.write_text(json.dumps(config))
    assert "layers.0.linear_attn." in refusal(forged)


def test_a_configuration_of_another_family(forged):
    path = forged / "config.json"
    path.write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(UnsupportedModel, match="llama"):
        Model.load(forged)
