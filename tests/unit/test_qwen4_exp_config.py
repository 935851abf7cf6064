"""The geometry that is read from config.json, and what is refused by key."""

import copy
import json
from pathlib import Path

import pytest

from cherenkov.architectures import family_of, known
from cherenkov.architectures.qwen4_exp.config import parse
from cherenkov.errors import UnsupportedModel

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT.parent / "shared" / "reference" / "qwen3.8"
SMALL = {
    "model_type": "qwen4_exp_text",
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "indexer_n_heads": 2,
    "indexer_head_dim": 16,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
    "eos_token_id": [3, 5],
    "ple_layer_ids": [2],
    "ngram_vocab_size_base": 50,
    "heads_per_ngram": 2,
    "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25},
}


def small(**changes):
    config = copy.deepcopy(SMALL)
    config.update(changes)
    return config


def refusal(config):
    with pytest.raises(UnsupportedModel) as caught:
        parse(config)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    assert caught.value.key is not None
    assert caught.value.key in message
    return caught.value


def test_small_config():
    c = parse(SMALL)
    assert c.attention == (False, False, False, True)
    assert (c.streams, c.wide, c.channels) == (4, 256, 2 * 2 * 16 + 4 * 32)
    assert (c.lowrank, c.taps, c.ple_taps, c.ngram) == (320, 4, 4, 3)
    assert (c.eos, c.rotary_dim, c.gate, c.normalise) == ((3, 5), 8, "silu", True)
    assert c.ple_layers == (1,)
    assert c.ngram_rows == ((53, 59, 61, 67),)
    assert c.table_rows(0) == 256
    assert c.ngram_dim == 16
    assert not (c.draft)
    assert not (c.tied)
    assert not (c.biased)


def test_text_config_may_stand_alone_or_nested():
    nested = {"model_type": "qwen4_exp", "text_config": SMALL, "vision_config": {"hidden_size": 9}}
    assert parse(nested) == parse(SMALL)
    assert family_of(nested) is family_of(SMALL)


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({"eos_token_id": 7}, "eos", (7,)),
        ({"output_gate_type": "sigmoid"}, "gate", "sigmoid"),
        ({"output_gate_type": None}, "gate", "silu"),
        ({"norm_topk_prob": False}, "normalise", False),
        ({"attention_bias": True}, "biased", True),
        ({"tie_word_embeddings": True}, "tied", True),
        ({"hc_count": 2}, "streams", 2),
        (
            {"full_attention_interval": 2, "ple_layer_ids": []},
            "attention",
            (False, True, False, True),
        ),
        (
            {
                "layer_types": [
                    "linear_attention",
                    "linear_attention",
                    "indexed_attention",
                    "qwen_sparse_attention",
                ]
            },
            "attention",
            (False, False, True, True),
        ),
        ({"ple_layer_ids": None}, "ple_layers", ()),
        ({"ple_layer_ids": [3, 1, 1]}, "ple_layers", (0, 2)),
        ({"ngram_size": 2, "ple_embed_dim": 48}, "ngram_dim", 24),
        ({"mtp_num_hidden_layers": 1}, "draft", True),
        ({"mtp": {"num_hidden_layers": 1}}, "draft", True),
        ({"mtp_num_hidden_layers": 0, "mtp": {"num_hidden_layers": 1}}, "draft", False),
        ({"mtp_num_hidden_layers": 1, "mtp": {"rope_theta": 5.0}}, "draft_theta", 5.0),
        (
            {"rope_parameters": {"rope_theta": 1e4}, "partial_rotary_factor": 0.5},
            "rotary_dim",
            16,
        ),
        ({"rope_parameters": None, "rope_theta": 9, "partial_rotary_factor": 0.5}, "theta", 9.0),
    ],
)
def test_what_may_vary(changes, field, expected):
    assert getattr(parse(small(**changes)), field) == expected


def test_hash_heads_of_several_layers_have_distinct_primes():
    c = parse(small(ple_layer_ids=[1, 2, 3], ngram_vocab_size_base=20))
    primes = [p for rows in c.ngram_rows for p in rows]
    assert primes == [23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71]


REQUIRED = [
    key
    for key in SMALL
    if key
    not in {"model_type", "head_dim", "ple_layer_ids", "ngram_vocab_size_base", "heads_per_ngram"}
]


@pytest.mark.parametrize("key", [k for k in REQUIRED if k != "rope_parameters"])
def test_missing_key_is_named(key):
    config = small()
    del config[key]
    assert refusal(config).key == key


def test_missing_rotary_base_is_named():
    assert refusal(small(rope_parameters={})).key == "rope_theta"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[
            (key, value)
            for key in REQUIRED
            for value in (0.5, -1, "x", {"a": 1}, [[1]], True, 10**12, float("nan"))
            if key not in {"rope_parameters", "eos_token_id"}
        ],
        *[("eos_token_id", value) for value in (100, -1, "x", {}, [1, "x"], [True], [], None)],
        *[("layer_types", v) for v in ("x", [], ["linear_attention"] * 3, [{}] * 4, ["moe"] * 4)],
        *[("output_gate_type", value) for value in ("gelu", ["silu"], {"a": 1}, 3)],
        *[("ple_layer_ids", value) for value in ("x", [0], [5], [True], [1.5], [4], [[1]])],
        *[("ngram_vocab_size_base", value) for value in (0, 10**12, "x")],
        *[("ngram_size", value) for value in (1, 65, 10**9)],
        *[("hc_count", value) for value in (0, 1, 10**30)],
        *[("rms_norm_eps", value) for value in (0, -1e-6, float("inf"), float("nan"), "x")],
        ("hidden_act", "gelu"),
        ("norm_topk_prob", 1),
        ("attention_bias", "no"),
        ("tie_word_embeddings", 0),
        ("rope_parameters", [1]),
        ("rope_scaling", {"type": "yarn", "factor": 4}),
        ("mtp_num_hidden_layers", 2),
        ("mtp", 7),
        ("indexer_kv_heads", 2),
        ("max_position_embeddings", 0),
        ("make_ngram_vocab_size_divisible_by", 0),
        ("full_attention_interval", 0),
        ("ple_embed_dim", 63),
        # what the kernels have no room for
        *[("linear_conv_kernel_dim", value) for value in (1, 17)],
        *[("ple_conv_kernel_size", value) for value in (1, 17)],
        *[("indexer_budget", value) for value in ((1 << 29) + 4, 1 << 31)],
        ("indexer_compress_ratio", (1 << 29) + 1),
    ],
)
def test_bad_value_is_refused_by_key(key, value):
    assert refusal(small(**{key: value})).key == key


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"num_attention_heads": 3}, "num_attention_heads"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads"),
        ({"indexer_budget": 10}, "indexer_budget"),
        ({"indexer_head_dim": 4}, "partial_rotary_factor"),
        ({"head_dim": 12}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_theta": 1, "rope_type": "yarn"}}, "rope_type"),
        (
            {"rope_parameters": {"rope_theta": 1, "partial_rotary_factor": 1e29}},
            "partial_rotary_factor",
        ),
        (
            {"rope_parameters": {"rope_theta": 1, "partial_rotary_factor": None}},
            "partial_rotary_factor",
        ),
        ({"rope_parameters": {"rope_theta": "1"}}, "rope_theta"),
        (
            {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": True},
            "mtp_use_dedicated_embeddings",
        ),
        (
            {"mtp": {"num_hidden_layers": 1, "mtp_use_hidden_state_from_layer": 3}},
            "mtp_use_hidden_state_from_layer",
        ),
        ({"mtp": {"num_hidden_layers": 1, "layer_types": ["linear_attention"]}}, "layer_types"),
        ({"mtp": {"num_hidden_layers": 1, "layer_types": [["x"]]}}, "layer_types"),
    ],
)
def test_relations_between_keys(changes, key):
    assert refusal(small(**changes)).key == key


def test_section_is_named_with_its_key():
    message = str(refusal(small(rope_parameters={"rope_theta": 1, "rope_type": "yarn"})))
    assert "text_config" not in message
    assert "rope_parameters.rope_type" in message
    nested = {"text_config": small(hidden_size=0)}
    assert "text_config.hidden_size = 0" in str(refusal(nested))


def test_hostile_sizes_answer_at_once():
    """Each of these would search for primes for hours, were they not refused first."""
    most = 1 << 32
    wide = 63 * 1024
    many = small(
        num_hidden_layers=4096,
        full_attention_interval=5000,
        ple_layer_ids=list(range(1, 4097)),
        ngram_size=64,
        heads_per_ngram=1024,
        ple_embed_dim=wide,
        ngram_vocab_size_base=most,
    )
    assert refusal(many).key == "heads_per_ngram"
    most_allowed = small(
        heads_per_ngram=256, ngram_size=5, ple_embed_dim=1024, ngram_vocab_size_base=most
    )
    assert min(parse(most_allowed).ngram_rows[0]) > most
    assert refusal(small(num_hidden_layers=10**12)).key == "num_hidden_layers"


def test_long_hostile_text_is_cut():
    assert len(str(refusal(small(output_gate_type="x" * 10**6)))) < 200


def test_the_largest_that_the_kernels_have_room_for():
    most = small(
        linear_conv_kernel_dim=16,
        ple_conv_kernel_size=16,
        indexer_budget=1 << 29,
        indexer_compress_ratio=1 << 29,
    )
    c = parse(most)
    assert (c.taps, c.ple_taps, c.budget, c.block) == (16, 16, 1 << 29, 1 << 29)


def test_long_context_and_large_tables_are_only_numbers():
    c = parse(small(max_position_embeddings=1 << 32, num_experts=1 << 32, vocab_size=1 << 32))
    assert c.max_context == c.experts == 1 << 32


@pytest.mark.parametrize("kind", [None, 7, ["qwen4_exp"], "llama", "qwen4_exp_vision"])
def test_other_families_are_named(kind):
    with pytest.raises(UnsupportedModel, match="qwen4_exp") as caught:
        family_of({"model_type": kind})
    assert caught.value.key == "model_type"
    assert repr(kind) in str(caught.value)


def test_without_draft():
    family = family_of({"model_type": "qwen4_exp"})
    nested = {
        "model_type": "qwen4_exp",
        "text_config": small(mtp_num_hidden_layers=1, mtp={"num_hidden_layers": 1}),
    }
    before = copy.deepcopy(nested)
    assert parse(nested).draft
    assert not parse(family.without_draft(nested)).draft
    assert nested == before
    alone = small(mtp={"num_hidden_layers": 1})
    assert not parse(family.without_draft(alone)).draft


def test_sizes_count_what_a_sequence_holds():
    sizes = family_of(SMALL).sizes(small(mtp_num_hidden_layers=1))
    c = parse(small(mtp_num_hidden_layers=1))
    delta = 3 * (3 * c.channels + 4 * 16 * 32)
    ple = 3 * 3 * c.wide
    assert sizes.fixed_state_bytes == 4 * (delta + ple)
    per_token = 2 * (2 * 2 * 32 + 16 + 16 / 4)  # one trunk layer and the draft head
    assert sizes.state_bytes(100, 4, 0, 0) == 4 * (delta + ple) + int(400 * per_token)
    pending = 3 * (2 * 16 + 4 * (32 + 1))  # of each position that a backend keeps aside
    assert sizes.state_bytes(100, 4, 8, 0) == sizes.state_bytes(100, 4, 0, 0) + 8 * 4 * pending
    back = 3 * c.channels + 1 * c.wide
    assert sizes.state_bytes(100, 4, 0, 2) == sizes.state_bytes(100, 4, 0, 0) + 2 * 4 * back
    assert (sizes.vocab, sizes.top_k, sizes.stop_ids) == (100, 2, (3, 5))


def test_known_names_lead_to_a_family():
    assert "qwen4_exp" in known()
    for name in known():
        assert family_of({"model_type": name}).name


def test_demonstration_model():
    c = parse(json.loads((ROOT / "cherenkov" / "demo" / "config.json").read_text()))
    assert (c.layers, sum(c.attention), c.experts, c.top_k, c.draft) == (8, 2, 64, 4, True)
    assert c.gate == "sigmoid"
    assert c.table_rows(0) == 160_384


def published(name):
    path = PUBLISHED / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return parse(json.loads(path.read_text()))


@pytest.mark.parametrize(
    "name", ["qwen38-flash-next.real.config.json", "qwen38-flash-next.MLX-4bit-g64.config.json"]
)
def test_published_geometry(name):
    c = published(name)
    assert (c.layers, sum(c.attention), c.attention[3], c.draft) == (48, 12, True, True)
    assert (c.hidden, c.vocab, c.max_context) == (2560, 248_320, 262_144)
    assert (c.experts, c.top_k, c.inter, c.shared_inter) == (512, 10, 640, 640)
    assert (c.heads, c.kv_heads, c.head_dim, c.rotary_dim) == (24, 2, 256, 64)
    assert (c.index_heads, c.index_dim, c.block, c.budget) == (4, 128, 4, 2048)
    assert (c.streams, c.lowrank, c.ple_layers) == (4, 320, (1,))
    assert (c.ngram_rows[0][0], c.ngram_rows[0][-1]) == (20_000_003, 20_000_171)
    assert (sum(c.ngram_rows[0]), c.table_rows(0)) == (320_001_446, 320_001_536)


def test_published_fixture():
    c = published("qwen38-flash-next-0.2B-A0.2B.fixture.config.json")
    assert c.attention == (False, False, False, True)
    assert (c.experts, c.top_k, c.ngram_dim) == (8, 4, 16)
