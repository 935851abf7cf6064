"""Record rendered conversations from transformers: text and token ids. Needs transformers; no other test does.

    python -m venv oracle
    oracle/bin/pip install transformers==5.24.0 tokenizers jinja2
    oracle/bin/python -m tests.golden.record_chat                    # from the repository root: Glow's template
    oracle/bin/python -m tests.golden.record_chat FOLDER TEMPLATE    # and, as hashes, a published one

A folder holds `tokenizer.json` and `tokenizer_config.json`; the template is a Jinja file. Of what is published only
lengths and hashes are kept.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import tokenizers
import transformers

from tests.golden.conversations import CONTEXTS, FORGED

if TYPE_CHECKING:
    from collections.abc import Callable

VECTORS = Path(__file__).parent / "vectors" / "chat.json"
DEMO = Path(__file__).parents[2] / "cherenkov" / "demo"


def digest(value: str | list[int]) -> str:
    """SHA-256 of a text, or of ids in decimal with spaces between."""
    text = value if isinstance(value, str) else " ".join(map(str, value))
    return hashlib.sha256(text.encode()).hexdigest()


def kept(value: str | list[int]) -> Any:
    """Our own may be kept as it is."""
    return value


def hashed(value: str | list[int]) -> Any:
    """Of what is not ours, what it takes to recognise it."""
    return {"length": len(value), "sha256": digest(value)}


def recorded(folder: Path, keep: Callable[[str | list[int]], Any]) -> dict[str, Any]:
    """What transformers makes of every context; of one that it refuses, the template's own words."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    found = {}
    for name, context in (CONTEXTS | FORGED).items():
        options = dict(context)
        messages, tools = options.pop("messages"), options.pop("tools", None)
        options["enable_thinking"] = options.pop("thinking", False)
        options["add_generation_prompt"] = options.pop("answer", True)
        try:
            text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **options)
        except jinja2.TemplateError as error:
            found[name] = {"refused": keep(str(error))}
            continue
        found[name] = {"text": keep(text)}
        if name in CONTEXTS:
            found[name]["ids"] = keep(
                tokenizer.apply_chat_template(
                    messages, tools=tools, tokenize=True, return_dict=False, **options
                )
            )
    return found


def main(arguments: list[str]) -> None:
    """Record Glow, and a published template if one is given."""
    notes = json.loads(VECTORS.read_text()) if VECTORS.exists() else {}
    notes["made_by"] = {m.__name__: m.__version__ for m in (transformers, tokenizers, jinja2)}
    notes["glow"] = recorded(DEMO, kept)
    if arguments:
        source, template = map(Path, arguments)
        with tempfile.TemporaryDirectory() as folder:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(source / name, folder)
            shutil.copy(template, Path(folder) / "chat_template.jinja")
            notes["published"] = recorded(Path(folder), hashed)
        notes["template_sha256"] = digest(template.read_text(encoding="utf-8"))
    VECTORS.write_text(lines(notes) + "\n", encoding="utf-8")


def lines(notes: dict[str, Any]) -> str:
    """JSON with one line a context."""
    parts = []
    for key, value in notes.items():
        inner = (
            [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()]
            if isinstance(value, dict)
            else []
        )
        text = "{\n" + ",\n".join(inner) + "\n}" if inner else json.dumps(value)
        parts.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}"


if __name__ == "__main__":
    main(sys.argv[1:])
