"""Run Mixture-of-Experts language models far larger than memory.

>>> from cherenkov import Model
>>> with Model.load("demo") as model:
...     print(model.generate("What is the capital of France?"))

Names resolve on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from cherenkov.version import __version__

if TYPE_CHECKING:
    from cherenkov.chat.replies import (
        Finished,
        ReasoningDelta,
        Reply,
        TextDelta,
        ToolCallEvent,
        Usage,
    )
    from cherenkov.chat.session import Session
    from cherenkov.engine import Engine
    from cherenkov.errors import CherenkovError
    from cherenkov.experts.store import ExpertStore
    from cherenkov.inspection import inspect
    from cherenkov.model import Model
    from cherenkov.preparation import prepare, verify
    from cherenkov.sampling import Sampling

__all__ = [
    "CherenkovError",
    "Engine",
    "ExpertStore",
    "Finished",
    "Model",
    "ReasoningDelta",
    "Reply",
    "Sampling",
    "Session",
    "TextDelta",
    "ToolCallEvent",
    "Usage",
    "__version__",
    "inspect",
    "prepare",
    "verify",
]

_HOME = {
    "CherenkovError": "cherenkov.errors",
    "Engine": "cherenkov.engine",
    "ExpertStore": "cherenkov.experts.store",
    "Finished": "cherenkov.chat.replies",
    "Model": "cherenkov.model",
    "ReasoningDelta": "cherenkov.chat.replies",
    "Reply": "cherenkov.chat.replies",
    "Sampling": "cherenkov.sampling",
    "Session": "cherenkov.chat.session",
    "TextDelta": "cherenkov.chat.replies",
    "ToolCallEvent": "cherenkov.chat.replies",
    "Usage": "cherenkov.chat.replies",
    "inspect": "cherenkov.inspection",
    "prepare": "cherenkov.preparation",
    "verify": "cherenkov.preparation",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'cherenkov' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
