"""Doubles for tests of what stands on this library."""

from __future__ import annotations

from cherenkov.testing.characters import Characters
from cherenkov.testing.scripted import Pause, Script, ScriptedModel

__all__ = ["Characters", "Pause", "Script", "ScriptedModel"]
