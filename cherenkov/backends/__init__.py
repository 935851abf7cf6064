"""Compute backends, found by name. `auto` takes the fastest that works here: a GPU is tried first, on a known answer.

To add one: a module with a class that implements `cherenkov.backends.base.Backend`, and a line in `_HOME`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from cherenkov.backends import mlx_probe
from cherenkov.backends.base import Backend, Options
from cherenkov.errors import BackendError, CherenkovError, ConfigError
from cherenkov.events import Listener, Note, ignore

__all__ = ["Availability", "available", "create", "doubt_of"]

_HOME = {
    "metal": ("cherenkov.backends.metal", "Metal"),
    "cuda": ("cherenkov.backends.cuda", "Cuda"),
    "native": ("cherenkov.backends.native", "Native"),
    "mlx": ("cherenkov.backends.mlx", "Mlx"),
    "reference": ("cherenkov.backends.reference", "Reference"),
}
"""In order of preference."""
_DOUBTS: dict[str, str] = {}
"""What trials found, once a process."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can run here; `reason` says why not, or what it would use."""

    name: str
    usable: bool
    reason: str


def available() -> list[Availability]:
    """Every backend, in the order in which `auto` tries them."""
    return [_probe(name) for name in _HOME]


def create(
    name: str = "auto", options: Options | None = None, on_event: Listener = ignore
) -> Backend[Any, Any]:
    """Make a backend.

    Args:
        name: one of the registry's names, or `auto`.
        options: threads, precision and instruction set.
        on_event: told of backends that `auto` does not take although they start.

    Raises:
        ConfigError: if there is no backend of that name.
        BackendError: if it cannot run here, or not with these options.
    """
    options = options or Options()
    if name == "auto":
        return _first(options, on_event)
    if name not in _HOME:
        raise ConfigError("backend", name, f"choose auto, {', '.join(_HOME)}")
    probe = _probe(name)
    if not probe.usable:
        raise BackendError(name, "start", probe.reason)
    return _make(name, options)


def doubt_of(backend: Backend[Any, Any]) -> str:
    """Why `auto` does not take a backend that starts: what its trial found. Empty if it would."""
    if backend.name not in _DOUBTS:
        try:
            found = backend.trial()
        except CherenkovError as error:
            found = str(error)
        _DOUBTS[backend.name] = found
    return _DOUBTS[backend.name]


def _first(options: Options, on_event: Listener) -> Backend[Any, Any]:
    for name in _HOME:
        if not _probe(name).usable:
            continue
        made = _make(name, options)
        doubt = doubt_of(made)
        if not doubt:
            return made
        made.close()
        on_event(Note(f"backend {name} is not taken: {doubt}", "warning"))
    raise BackendError("auto", "start", "none works here")


def _make(name: str, options: Options) -> Backend[Any, Any]:
    module, kind = _HOME[name]
    made = getattr(importlib.import_module(module), kind)(options)
    assert isinstance(made, Backend)
    return made


def _probe(name: str) -> Availability:
    if name == "reference":
        return Availability(name, usable=True, reason="NumPy float32, the oracle; slow")
    if name != "native":
        found = mlx_probe.probe(name)
        return Availability(name, usable=found.usable, reason=found.reason)
    native = importlib.import_module("cherenkov.backends.native")
    missing: str = native.unavailable()
    if missing:
        return Availability(name, usable=False, reason=missing)
    return Availability(name, usable=True, reason=f"C++, {', '.join(native.instruction_sets())}")
