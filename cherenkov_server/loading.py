"""From settings to an engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cherenkov.engine import Engine, Limits
from cherenkov.errors import ConfigError
from cherenkov.events import ignore
from cherenkov.model import Model
from cherenkov.preparation import expanded, is_store
from cherenkov.units import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cherenkov.events import Listener
    from cherenkov_server.config import ServerConfig

__all__ = ["engine_of", "limits_of", "model_options", "name_of"]


def engine_of(
    config: ServerConfig, options: Mapping[str, Any] | None = None, on_event: Listener = ignore
) -> Engine:
    """An engine that loads its model once it is started.

    Args:
        config: the settings.
        options: of `Model.load`, beside those that the settings hold.
        on_event: told of progress and choices.
    """
    asked = model_options(config) | dict(options or {})

    def load() -> Model:
        if not config.experts.build_missing_store and not is_store(expanded(config.selector)):
            raise ConfigError(
                "experts.build_missing_store",
                False,
                f"{config.selector} is no store: make one with cherenkov prepare",
                source="settings",
            )
        return Model.load(config.selector, on_event=on_event, **asked)

    return Engine(load, limits_of(config))


def name_of(config: ServerConfig) -> str:
    """What clients call the model, unless the settings name it: the last part of its path."""
    return Path(config.selector).name or "model"


def model_options(config: ServerConfig) -> dict[str, Any]:
    """Options of `Model.load` that the settings hold; 0 and nothing leave it to the library."""
    limits, experts = config.limits, config.experts
    options = {
        "data_dir": config.server.root,
        "memory_gb": limits.memory_gb,
        "context_tokens": limits.context_tokens,
        "experts": experts.resident_bits,
        "miss_experts": experts.miss_bits,
        "sequences": limits.active_requests,
        "prefix_cache_mib": limits.prefix_cache_mib,
    }
    given = {name: value for name, value in options.items() if value}
    given |= {"drafts": config.server.drafts, "speculate": config.server.speculate}
    return given | {"pool": experts.pool_gb, "cut_weak": experts.cut_weak}


def limits_of(config: ServerConfig) -> Limits:
    """What the engine may take on."""
    limits = config.limits
    return Limits(
        max_batch=limits.active_requests,
        queue_depth=limits.queued_requests,
        active_state_bytes=limits.active_state_mib * MIB,
        prefill_quantum=limits.prefill_quantum,
        prefill_chunk_s=limits.prefill_chunk_seconds,
        stall_s=limits.write_seconds,
        max_sessions=limits.max_sessions,
        session_history_bytes=limits.session_history_mib * MIB,
        session_idle_s=limits.session_idle_seconds,
        prefix_cache_bytes=limits.prefix_cache_mib * MIB,
        prefix_cache_entries=limits.cache_max_entries,
        prefix_cache_idle_s=limits.cache_idle_seconds,
        prefix_cache_dir=limits.prefix_cache_dir or None,
        prefix_cache_disk_bytes=limits.prefix_cache_disk_mib * MIB,
        response_bytes=limits.response_bytes,
    )
