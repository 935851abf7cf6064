"""Record golden vectors from transformers. Needs torch; nothing else in this repository does.

    python -m venv oracle
    oracle/bin/pip install torch==2.13.0 transformers==5.24.0 tokenizers jinja2   # a CPU build of torch is enough
    oracle/bin/python -m tests.golden.record                  # everything, from the repository root
    oracle/bin/python -m tests.golden.record plain glow-4bit  # or some of it

Seeds are those of `tests/tiny/configs.py`. They were chosen so that no choice (of experts, or of index blocks at
the budget's cut-off) is closer than 5e-5 of the best score: a tie has no right answer in `torch.topk`. The script
refuses to record otherwise. `vectors/oracle.json` tells versions, seeds, checksums of the weights, and how far the
oracle is from itself in chunks, token by token, and in float64.
"""

from __future__ import annotations

import json
import platform
import sys
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer

from tests import tiny
from tests.golden import glow, prompts
from tests.golden.oracle import Draft, Margins, Result, Trunk, arithmetic, watched
from tests.golden.recorded import FOUR_BIT, QUANTISED, VECTORS

if TYPE_CHECKING:
    from collections.abc import Sequence

DRAFTS = 2
Arrays = dict[str, np.ndarray]


class Model:
    """One set of weights in float32 and float64, with its draft head if it has one."""

    def __init__(self, text: dict[str, Any], tensors: dict[str, Any]) -> None:
        drafts = bool(text.get("mtp_num_hidden_layers"))
        self.trunk = Trunk(text, tensors)
        self.draft = Draft(self.trunk, tensors) if drafts else None
        with arithmetic(double=True):
            self.exact = Trunk(text, tensors)
            self.exact_draft = Draft(self.exact, tensors) if drafts else None


def main(names: Sequence[str]) -> None:
    """Record the named models, or all of them."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    VECTORS.mkdir(exist_ok=True)
    path = VECTORS / "oracle.json"
    notes = json.loads(path.read_text()) if path.exists() else {"models": {}}
    notes["command"] = "python -m tests.golden.record"
    notes["versions"] = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    for name in names or [*tiny.TINY, *QUANTISED, "glow-bf16", "glow-4bit"]:
        record = record_glow if name.startswith("glow") else record_tiny
        arrays, notes["models"][name] = record(name)
        np.savez_compressed(VECTORS / f"{name}.npz", **arrays)
        path.write_text(json.dumps(notes, indent=1) + "\n")
        print(name, json.dumps(notes["models"][name]["prompts"]))


def record_tiny(name: str) -> tuple[Arrays, dict[str, Any]]:
    """A seeded model: every third position in full, all of them by their sixteen largest logits."""
    one = tiny.TINY[name.removesuffix(FOUR_BIT)]
    tensors = tiny.weights(one.text, one.seed)
    if name.endswith(FOUR_BIT):
        tensors = tiny.four_bit(one.text, tensors)
    model = Model(one.text, tensors)
    arrays: Arrays = {}
    notes: dict[str, Any] = {
        "seed": one.seed,
        "fingerprint": tiny.fingerprint(tensors),
        "prompts": {},
    }
    for prompt, ids in tiny.prompts(one).items():
        stride = 1 if prompt == "crossing" else 4
        found, notes["prompts"][prompt] = record(
            model, ids, _spread(len(ids), 6), top=16, stride=stride, least_margin=5e-5
        )
        arrays |= {f"{prompt}/{k}": v for k, v in found.items()}
    return arrays, notes


def record_glow(name: str) -> tuple[Arrays, dict[str, Any]]:
    """The demonstration checkpoint, from its BF16 or its 4-bit weights."""
    tensors = glow.half_precision() if name == "glow-bf16" else glow.dequantised()
    text = json.loads((glow.FOUR_BIT / "config.json").read_text())["text_config"]
    model = Model(text, tensors)
    arrays: Arrays = {}
    notes: dict[str, Any] = {"fingerprint": tiny.fingerprint(tensors), "prompts": {}}
    tokenizer = Tokenizer.from_file(str(glow.FOUR_BIT / "tokenizer.json"))
    for prompt, ids in _glow_prompts(tokenizer).items():
        full = np.unique([*range(127, len(ids), 128), len(ids) - 1])
        found, notes["prompts"][prompt] = record(
            model, ids, full, top=64, stride=16, least_margin=1e-5
        )
        arrays |= {f"{prompt}/{k}": v for k, v in found.items()}
    arrays["chat/greedy"] = np.array(
        _greedy(model.trunk, arrays["chat/ids"].tolist(), 24), np.int32
    )
    notes["greedy"] = tokenizer.decode(arrays["chat/greedy"].tolist(), skip_special_tokens=False)
    return arrays, notes


def _glow_prompts(tokenizer: Tokenizer) -> dict[str, list[int]]:
    template = jinja2.Environment().from_string((glow.FOUR_BIT / "chat_template.jinja").read_text())
    question = [{"role": "user", "content": prompts.QUESTION}]
    chat = template.render(messages=question, add_generation_prompt=True, enable_thinking=False)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    first, second = map(encode, prompts.SEGMENTS)
    return {
        "chat": encode(chat),
        "prose": encode(prompts.PROSE)[: prompts.PROSE_TOKENS],
        "segments": [*first, 0, *second],
        "single": first[1:2],
    }


def record(
    model: Model, ids: list[int], full: np.ndarray, *, top: int, stride: int, least_margin: float
) -> tuple[Arrays, dict[str, Any]]:
    """Run one prompt every way there is.

    Args:
        model: float32, float64, draft head.
        ids: the prompt.
        full: positions whose logits are kept whole.
        top: how many of the largest logits are kept at every position.
        stride: states are kept at every `stride`-th of their last axes.
        least_margin: refuse to record if a choice is closer than this.
    """
    with watched() as margins:
        whole = model.trunk.run(ids)
        drafts = _drafts(model.draft, ids)
    if min(margins.blocks, margins.experts) < least_margin:
        raise SystemExit(f"a choice is too close to call ({margins}): take another seed or text")
    arrays = {"ids": np.array(ids, np.int32), **_logits("", whole.logits, full, top)}
    for length, rows in drafts.items():
        arrays |= _logits(
            f"draft/{length}/", rows, np.arange(DRAFTS if length == len(ids) else 0), top
        )
    arrays["stride"] = np.array(stride)
    arrays |= {f"state/{k}": _sampled(v, stride) for k, v in whole.states.items()}
    return arrays, _notes(model, ids, whole, drafts, margins)


def _drafts(draft: Draft | None, ids: list[int]) -> dict[int, torch.Tensor]:
    """By length of the prefix that they follow."""
    lengths = sorted({len(ids) // 4 or 1, len(ids) // 2 or 1, len(ids)})
    return {n: draft.drafts(ids[:n], DRAFTS) for n in lengths} if draft else {}


def _notes(
    model: Model, ids: list[int], whole: Result, drafts: dict[int, torch.Tensor], margins: Margins
) -> dict[str, Any]:
    third = max(1, len(ids) // 3)
    chunked = model.trunk.run(ids, [third, len(ids) - third] if len(ids) > third else [third])
    stepped = model.trunk.run(ids, [1] * len(ids))
    with arithmetic(double=True):
        exact = model.exact.run(ids)
        exact_drafts = _drafts(model.exact_draft, ids)
    notes = {
        "tokens": len(ids),
        "largest_logit": whole.logits.abs().max().item(),
        "chunked": _apart(whole.logits, chunked.logits),
        "stepwise": _apart(whole.logits, stepped.logits),
        "float64": _apart(whole.logits, exact.logits),
        "state_stepwise": max(
            (float(np.abs(v - stepped.states[k]).max()) for k, v in whole.states.items()),
            default=0.0,
        ),
        "expert_margin": margins.experts,
        "queries_past_budget": margins.sparse_queries,
    }
    if margins.sparse_queries:
        notes["block_margin"] = margins.blocks
    if drafts:
        notes["drafts_float64"] = max(_apart(drafts[n], exact_drafts[n]) for n in drafts)
    return {k: float(f"{v:.3g}") if isinstance(v, float) else v for k, v in notes.items()}


def _greedy(trunk: Trunk, ids: list[int], count: int) -> list[int]:
    grown = list(ids)
    for _ in range(count):
        grown.append(int(trunk.run(grown).logits[-1].argmax()))
    return grown[len(ids) :]


def _logits(prefix: str, rows: torch.Tensor, full: np.ndarray, top: int) -> Arrays:
    best = rows.topk(top, dim=-1)
    return {
        f"{prefix}full_at": full.astype(np.int32),
        f"{prefix}full": rows[torch.from_numpy(full)].numpy(),
        f"{prefix}top_ids": best.indices.numpy().astype(np.uint16),
        f"{prefix}top": best.values.numpy(),
        f"{prefix}logsumexp": rows.logsumexp(-1).numpy(),
        f"{prefix}largest": rows.abs().max().numpy(),
    }


def _sampled(state: np.ndarray, stride: int) -> np.ndarray:
    """Every `stride`-th channel; of a head's matrix, also every `stride`-th key."""
    cut = state[..., ::stride]
    return cut[..., ::stride, :] if cut.ndim == 3 else cut


def _spread(length: int, step: int) -> np.ndarray:
    return np.unique([*range(0, length, step), *range(max(0, length - 2), length)])


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a.double() - b.double()).abs().max().item()


if __name__ == "__main__":
    main(sys.argv[1:])
