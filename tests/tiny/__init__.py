"""Tiny seeded qwen4_exp checkpoints: configurations, weights and files. NumPy and `tokenizers` only.

    tiny = TINY["plain"]
    folder = write_hf(tmp_path / tiny.name, tiny.config, weights(tiny.text, tiny.seed))

Every configuration varies keys that real checkpoints may vary, and every folder is a full checkpoint.
"""

from tests.tiny.configs import EOS, IM_END, IM_START, TINY, Tiny, prompts
from tests.tiny.files import write_hf, write_safetensors
from tests.tiny.quantised import four_bit
from tests.tiny.shapes import shapes
from tests.tiny.weights import Tensors, fingerprint, weights

__all__ = [
    "EOS",
    "IM_END",
    "IM_START",
    "TINY",
    "Tensors",
    "Tiny",
    "fingerprint",
    "four_bit",
    "prompts",
    "shapes",
    "weights",
    "write_hf",
    "write_safetensors",
]
