"""The tools that conversations may use, as a client would describe them."""

from __future__ import annotations

from typing import Any

__all__ = ["TOOLS"]


def _tool(
    name: str, about: str, properties: dict[str, Any], required: list[str] | None = None
) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required or list(properties),
    }
    function = {"name": name, "description": about, "parameters": parameters}
    return {"type": "function", "function": function}


def _text(about: str) -> dict[str, str]:
    return {"type": "string", "description": about}


TOOLS = {
    "get_weather": _tool(
        "get_weather", "Get the current weather in a city", {"city": _text("City name")}
    ),
    "get_time": _tool("get_time", "Get the local time in a city", {"city": _text("City name")}),
    "calculator": _tool(
        "calculator", "Evaluate an arithmetic expression", {"expression": _text("Expression")}
    ),
    "set_timer": _tool(
        "set_timer",
        "Start a timer",
        {"minutes": {"type": "integer", "description": "Length in minutes"}},
    ),
    "search_books": _tool(
        "search_books",
        "Search the library for books",
        {"query": _text("Search words"), "limit": {"type": "integer"}},
        ["query"],
    ),
    "send_message": _tool(
        "send_message",
        "Send a message to a person",
        {"to": _text("Recipient"), "text": _text("Message text")},
    ),
    "translate": _tool(
        "translate",
        "Translate text into a language",
        {"text": _text("Text"), "language": _text("Target language")},
    ),
    "lookup_word": _tool(
        "lookup_word", "Look a word up in the dictionary", {"word": _text("Word")}
    ),
    "turn_light": _tool(
        "turn_light",
        "Turn a light on or off",
        {"room": _text("Room"), "on": {"type": "boolean"}},
    ),
}
