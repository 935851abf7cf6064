"""Prompts, against what transformers makes of the same conversations."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from cherenkov.errors import TemplateError
from cherenkov.text.template import ChatTemplate
from cherenkov.text.tokenizer import Tokenizer
from tests.golden.conversations import CONTEXTS, FORGED

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "cherenkov" / "demo"
PUBLISHED = ROOT / "../shared/reference/qwen3.8"
NOTES: dict[str, Any] = json.loads((Path(__file__).parent / "vectors" / "chat.json").read_text())


def digest(value: Any) -> str:
    text = value if isinstance(value, str) else " ".join(map(str, value))
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture(scope="module")
def glow():
    tokenizer = Tokenizer.open(DEMO)
    with ChatTemplate.open(DEMO, tokenizer.controls) as template:
        yield tokenizer, template


@pytest.fixture(scope="module")
def published():
    path = PUBLISHED / "qwen3.8.chat_template.jinja"
    if not path.exists():
        pytest.skip(f"the published template is not at {path}")
    source = path.read_text(encoding="utf-8")
    if digest(source) != NOTES["template_sha256"]:
        pytest.skip(f"{path} is not the template that was recorded")
    tokenizer = Tokenizer.open(PUBLISHED)
    with ChatTemplate(source, tokenizer.controls) as template:
        yield tokenizer, template


def rendered(template: ChatTemplate, context: dict[str, Any]) -> Any:
    """The prompt, or the template's own words if it refuses."""
    try:
        return template.render(**context)
    except TemplateError as error:
        return str(error).removeprefix("the chat template refused the messages: ")


def test_there_are_enough():
    for name in ("glow", "published"):
        assert set(NOTES[name]) == {*CONTEXTS, *FORGED}
        assert sum("ids" in found for found in NOTES[name].values()) >= 40


@pytest.mark.parametrize("name", CONTEXTS)
def test_glow_as_transformers(glow, name):
    tokenizer, template = glow
    found, expected = rendered(template, CONTEXTS[name]), NOTES["glow"][name]
    if "refused" in expected:
        assert found == expected["refused"]
        return
    assert found.text == expected["text"]
    assert tokenizer.encode_pieces(found.pieces) == expected["ids"]
    assert tokenizer.encode(found.text, special=True) == expected["ids"]


@pytest.mark.parametrize("name", CONTEXTS)
def test_published_as_transformers(published, name):
    tokenizer, template = published
    found, expected = rendered(template, CONTEXTS[name]), NOTES["published"][name]
    if "refused" in expected:
        assert digest(found) == expected["refused"]["sha256"]
        return
    ids = tokenizer.encode_pieces(found.pieces)
    assert (len(found.text), len(ids)) == (expected["text"]["length"], expected["ids"]["length"])
    assert digest(found.text) == expected["text"]["sha256"]
    assert digest(ids) == expected["ids"]["sha256"]


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("which", ["glow", "published"])
def test_forged_tokens_are_the_same_text_but_no_tokens(request, which, name):
    tokenizer, template = request.getfixturevalue(which)
    found, expected = rendered(template, FORGED[name]), NOTES[which][name]["text"]
    assert digest(found.text) == (digest(expected) if which == "glow" else expected["sha256"])
    ids = tokenizer.encode_pieces(found.pieces)
    assert tokenizer.decode(ids, special=True) == found.text
    plain = rendered(template, harmless(FORGED[name]))
    controls = [i for i in ids if i in tokenizer._added]
    assert controls == [i for i in tokenizer.encode_pieces(plain.pieces) if i in tokenizer._added]


def harmless(context: dict[str, Any]) -> dict[str, Any]:
    """The same conversation without what was forged."""
    messages = [m | ({"content": "x"} if "<" in m["content"] else {}) for m in context["messages"]]
    return {**context, "messages": messages}
