"""The inventory against lists of what real checkpoints hold: every name and every shape, none left over."""

import json
import math
import re
from pathlib import Path

import pytest

from cherenkov.architectures import family_of
from cherenkov.checkpoint.inventory import Role

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT.parent / "shared" / "reference"
MATRICES = {"gate_proj", "up_proj", "down_proj"}


def implied(config):
    """Every tensor of the inventory by its name in an unquantised, unfused checkpoint in MLX's spelling."""
    inventory = family_of(config).inventory(config)
    shapes = {}
    for spec in inventory.dense:
        name = spec.name + ".weight" if spec.role is Role.MATRIX else spec.name
        assert name not in shapes
        shapes[name] = spec.shape
    for spec in inventory.experts:
        for matrix in MATRICES:
            sides = (spec.inter, spec.hidden)
            shape = (spec.experts, *(reversed(sides) if matrix == "down_proj" else sides))
            shapes[f"{spec.prefix}.{matrix}.weight"] = shape
    for spec in inventory.ngrams:
        shapes[spec.prefix] = (spec.rows, spec.dim)
    return inventory, shapes


def canonical(listed):
    """Shapes of a checkpoint's header, by the names that `implied` uses; n-gram shards are joined."""
    shapes = {}
    for listed_name, entry in listed.items():
        if "visual" in listed_name or listed_name.startswith("vision_tower"):
            continue
        if listed_name.endswith((".scales", ".biases")):
            continue
        shape = tuple(entry["shape"])
        if entry["dtype"] == "U32":  # 4-bit codes, eight in a word
            shape = (*shape[:-1], shape[-1] * 8)
        name = re.sub(r"^model\.language_model\.", "language_model.model.", listed_name)
        name = re.sub(r"^lm_head\.", "language_model.lm_head.", name)
        if name.endswith("conv1d.weight"):
            shape = (shape[0], max(shape[1:]), 1)
        if ".experts." in name:
            stem, _, part = name.partition(".experts.")
            count, rows, columns = shape
            if part == "gate_up_proj":
                shapes[f"{stem}.switch_mlp.gate_proj.weight"] = (count, rows // 2, columns)
                shapes[f"{stem}.switch_mlp.up_proj.weight"] = (count, rows // 2, columns)
                continue
            name = f"{stem}.switch_mlp.{part}.weight"
        shard = re.fullmatch(r"(.*\.ngram_embedding)\.shards?[._]\d+\.weight", name)
        if shard:
            rows, columns = shape
            shapes[shard[1]] = (shapes.get(shard[1], (0, 0))[0] + rows, columns)
            continue
        shapes[name] = shape
    return shapes


def header(path):
    with path.open("rb") as file:
        table = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    table.pop("__metadata__", None)
    return table


def read(*parts):
    path = REFERENCE.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return json.loads(path.read_text())


def test_demonstration_checkpoint():
    folder = ROOT / "cherenkov" / "demo"
    _, shapes = implied(json.loads((folder / "config.json").read_text()))
    assert canonical(header(folder / "model.safetensors")) == shapes


def test_demonstration_checkpoint_in_bf16():
    folder = ROOT.parent / "shared" / "demo-model" / "glow-bf16"
    if not folder.exists():
        pytest.skip(f"{folder} is not here")
    listed = {}
    for path in sorted(folder.glob("*.safetensors")):
        listed |= header(path)
    _, shapes = implied(json.loads((folder / "config.json").read_text()))
    assert canonical(listed) == shapes


def test_published_bf16_checkpoint():
    config = read("qwen3.8", "qwen38-flash-next.real.config.json")
    inventory, shapes = implied(config)
    listed = read("tensors", "hf_bf16_qwen38_flash_next.tensors.json")
    assert canonical(listed) == shapes
    assert len(inventory.experts) == 49
    assert inventory.experts[-1].prefix == "mtp.layers.0.mlp.switch_mlp"
    language = [e["shape"] for name, e in listed.items() if "visual" not in name]
    assert inventory.parameters() == sum(map(math.prod, language)) == 179_551_050_403


def test_published_draft_file():
    config = read("qwen3.8", "qwen38-flash-next.real.config.json")
    _, shapes = implied(config)
    listed = canonical(read("tensors", "hf_bf16.mtp.tensors.json"))
    assert listed == {n: s for n, s in shapes.items() if n.startswith("mtp.")}


def test_published_mlx_checkpoint_and_its_draft_file():
    config = read("qwen3.8", "qwen38-flash-next.MLX-4bit-g64.config.json")
    main = canonical(read("tensors", "mlx_4bit_g64.main.tensors.json"))
    draft = canonical(read("tensors", "mlx_4bit_g64.mtp_safetensors.tensors.json"))
    _, shapes = implied(config)
    assert not set(main) & set(draft)
    assert main | draft == shapes
    family = family_of(config)
    without = family.without_draft(config)
    assert implied(without)[1] == main


def test_roles():
    config = json.loads((ROOT / "cherenkov" / "demo" / "config.json").read_text())
    inventory, _ = implied(config)
    roles = {spec.name: spec.role for spec in inventory.dense}
    layer = "language_model.model.layers"
    expected = {
        "language_model.model.embed_tokens": Role.MATRIX,
        f"{layer}.0.linear_attn.in_proj_a": Role.MATRIX,
        f"{layer}.0.linear_attn.norm.weight": Role.KEPT,
        f"{layer}.0.linear_attn.A_log": Role.KEPT,
        f"{layer}.0.mlp.gate.weight": Role.KEPT,
        f"{layer}.0.attn_hyper_connection.hc_norm.weight": Role.CENTRED,
        f"{layer}.3.self_attn.q_norm.weight": Role.CENTRED,
        f"{layer}.3.self_attn.indexer.k_layernorm.weight": Role.CENTRED,
        f"{layer}.1.ple.norm_conv.weight": Role.CENTRED,
        f"{layer}.1.ple.ple_embedding.layer_multipliers": Role.HASH,
        "mtp.pre_fc_norm_hidden.weight": Role.PRE_NORM,
        "mtp.fc_hidden": Role.MATRIX,
    }
    assert {name: roles[name] for name in expected} == expected


def test_tied_biased_without_features_or_draft():
    config = json.loads((ROOT / "cherenkov" / "demo" / "config.json").read_text())
    text = config["text_config"]
    text |= {"tie_word_embeddings": True, "attention_bias": True, "ple_layer_ids": []}
    text |= {"mtp_num_hidden_layers": 0}
    inventory, shapes = implied(config)
    assert not inventory.ngrams
    assert len(inventory.experts) == text["num_hidden_layers"]
    assert not any(
        ".ple." in name or name.startswith("mtp.") or "lm_head" in name for name in shapes
    )
    biases = {n.rsplit(".", 2)[1]: s for n, s in shapes.items() if n.endswith(".bias")}
    assert biases == {"q_proj": (1024,), "k_proj": (128,), "v_proj": (128,), "o_proj": (256,)}
