"""The server's settings: TOML in sections, and what overrides it.

Each setting is taken from the first of these that has it: flags of the command, `CHERENKOV_<SECTION>_<KEY>` in the
environment, the file (`--config`, or `cherenkov.toml` in the configuration folder), the library's setting of the same
meaning (`CHERENKOV_POOL`, or `pool` in `config.toml`), the built-in default. A key that nobody knows is an error, with a
suggestion.
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from cherenkov.config import (
    SERVER_FILE,
    Origin,
    Settings,
    config_folder,
    explain,
    places,
    read_table,
    reason_of,
    server_variables,
)
from cherenkov.errors import ConfigError
from cherenkov.sampling import LEAST_REPETITION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "Defaults",
    "Experts",
    "LimitSettings",
    "SamplingDefaults",
    "ServerConfig",
    "ServerSettings",
    "inherited",
    "load_config",
    "written",
]

_SECTION_LISTS = {"server.cors_origins", "server.allowed_hosts"}
"""Settings that are lists; in the environment their items stand with commas between."""
_OF_THE_LIBRARY = {
    "memory_gb": "limits.memory_gb",
    "context_tokens": "limits.context_tokens",
    "prefix_cache_mib": "limits.prefix_cache_mib",
    "sequences": "limits.active_requests",
    "experts": "experts.resident_bits",
    "miss_experts": "experts.miss_bits",
    "cut_weak": "experts.cut_weak",
    "pool": "experts.pool_gb",
    "drafts": "server.drafts",
    "speculate": "server.speculate",
}
"""Settings of the library that the server has too, by their keys here. What is set for `run` and `chat` holds here as well."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value_for_a_number(cls, value: Any, info: Any) -> Any:
        kind = cls.model_fields[info.field_name].annotation
        if isinstance(value, bool) and kind is not bool:
            raise ValueError("must not be true or false")
        return value


class ServerSettings(_Section):
    """What is served, where, and to whom."""

    model: str = "demo"
    """`demo`, or the folder of a store or checkpoint."""
    model_dir: str = ""
    """The folder of a store, instead of `model`."""
    served_name: str = ""
    """What clients call the model; empty takes the model's own name."""
    root: str = ""
    """Folder for prepared models; empty takes the user's data folder."""
    host: str = "127.0.0.1"
    """Address to listen on. Any but a loopback address needs `api_key_file`, or `no_auth`."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port; 0 takes a free one."""
    api_key_file: str = ""
    """File with one key a line; whoever has none is refused."""
    no_auth: bool = False
    """Let anybody in, from anywhere."""
    any_model: bool = False
    """Answer whatever model a request names."""
    lenient: bool = False
    """Leave away what cannot be honoured in a request, rather than refuse it."""
    cors_origins: list[str] = []
    """Web pages that may call, as exact origins: `https://app.example`."""
    allowed_hosts: list[str] = []
    """Names, beside loopback ones, that requests may call this server."""
    drafts: Annotated[int, Field(ge=0, le=3)] = 2
    """Tokens to guess ahead in a step, at most. They change nothing in what is said."""
    speculate: Literal["auto", "mtp", "ngram", "off"] = "auto"
    """Who guesses: the model's draft head, the text so far, whichever promises more, or nobody."""
    log_json: bool = False
    """Log lines as JSON."""

    @field_validator("cors_origins", mode="after")
    @classmethod
    def _exact(cls, value: list[str]) -> list[str]:
        for origin in value:
            scheme, found, rest = origin.partition("://")
            if not found or scheme not in {"http", "https"} or not rest or "/" in rest:
                raise ValueError(f"{origin!r} is no origin such as https://app.example")
        return value


class LimitSettings(_Section):
    """How much at once."""

    memory_gb: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Memory of the whole process, in GB; 0 takes what the machine has free."""
    context_tokens: Annotated[int, Field(ge=0, le=262144)] = 0
    """Longest prompt and answer; 0 takes the library's default."""
    prefix_cache_mib: Annotated[int, Field(ge=0, le=1 << 20)] = 512
    """Memory for what was read before; 0 reads everything anew."""
    cache_max_entries: Annotated[int, Field(ge=1, le=1024)] = 64
    """Points that can be gone on from."""
    cache_idle_seconds: Annotated[float, Field(ge=0)] = 900.0
    """A point that was not used for so long goes; 0 for never."""
    prefix_cache_dir: str = ""
    """Where points go that no longer fit in memory; empty for nowhere."""
    prefix_cache_disk_mib: Annotated[int, Field(ge=0)] = 1024
    """How much of the disk they may take."""
    active_requests: Annotated[int, Field(ge=1, le=64)] = 4
    """Answers under way at once (`--max-batch`)."""
    active_state_mib: Annotated[int, Field(ge=0)] = 0
    """Memory of all answers under way; 0 takes what the model's plan reserves."""
    prefill_quantum: Annotated[int, Field(ge=0, le=4096)] = 0
    """Most tokens of a prompt in a step; 0 takes what the model's plan gives."""
    prefill_chunk_seconds: Annotated[float, Field(ge=0, le=60)] = 2.0
    """How long a chunk of a prompt should hold up others; 0 always takes the quantum."""
    max_sessions: Annotated[int, Field(ge=0, le=1024)] = 16
    """Sessions that are kept."""
    session_history_mib: Annotated[int, Field(ge=1, le=2048)] = 16
    """Messages of all sessions together."""
    session_idle_seconds: Annotated[float, Field(ge=0)] = 900.0
    """A session that was idle for so long goes; 0 for never."""
    queued_requests: Annotated[int, Field(ge=1, le=1024)] = 64
    """Requests that may wait for their turn (`--queue-depth`)."""
    http_readers: Annotated[int, Field(ge=1, le=4096)] = 256
    """Requests being served at once, waiting ones included."""
    connections: Annotated[int, Field(ge=1, le=65536)] = 1024
    """Open connections; beyond that, those that sent no request yet are closed, the oldest first."""
    request_bytes: Annotated[int, Field(ge=1024, le=16 << 20)] = 4 << 20
    """Longest body."""
    response_bytes: Annotated[int, Field(ge=1024, le=16 << 20)] = 4 << 20
    """Text of an answer that memory is reserved for."""
    header_bytes: Annotated[int, Field(ge=1024, le=1 << 20)] = 32 << 10
    """All headers of a request together."""
    max_output_tokens: Annotated[int, Field(ge=1, le=262144)] = 262144
    """Most tokens that a request may ask for."""
    header_seconds: Annotated[float, Field(gt=0, le=3600)] = 10.0
    """How long a connection may take for the headers of a request."""
    body_seconds: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """How long a request may take for its body."""
    write_seconds: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """How long a client may not read what it is sent."""
    idle_seconds: Annotated[float, Field(gt=0, le=3600)] = 15.0
    """How long a connection may be idle between requests."""
    shutdown_seconds: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """How long answers may go on after the first signal to stop."""


class SamplingDefaults(_Section):
    """How tokens are chosen, unless a request says."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=-1)] = -1
    """-1 takes one from the operating system for every request."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=LEAST_REPETITION, le=10)] = 1.0

    def options(self) -> dict[str, Any]:
        """As options of the library."""
        return self.model_dump() | {"seed": None if self.seed < 0 else self.seed}


class Defaults(_Section):
    """What holds unless a request says."""

    max_tokens: Annotated[int, Field(ge=0)] = 0
    """Most tokens to answer with; 0 goes on until the model stops or the context is full."""
    no_eos: bool = False
    """Go on to the most tokens, whatever the model says."""
    stream: bool = False
    """Answer in pieces."""
    include_usage: bool = False
    """End a stream with what it took."""
    thinking: bool = False
    """Let the model think first."""
    sampling: SamplingDefaults = SamplingDefaults()


class Experts(_Section):
    """The routed experts."""

    resident_bits: Annotated[int, Field(ge=0, le=16)] = 0
    """3 or 2: experts that `prepare` made from the store's; 0 takes those of the store."""
    miss_bits: Annotated[int, Field(ge=0, le=3)] = 0
    """3 or 2: how experts are read that a layer misses; 0 as the others. The answer then depends on the cache."""
    cut_weak: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Missing experts of less weight than this are left out of the sum; 0 for none. The answer then depends on the disk."""
    pool_gb: float | Literal["adaptive", "max"] = "adaptive"
    """Memory for experts: a size, `adaptive` or `max`."""
    build_missing_store: bool = True
    """Make a store of a checkpoint that has none, before serving; else only a store is served."""


class ServerConfig(_Section):
    """Everything that can be set. Frozen; make one with `load_config`."""

    server: ServerSettings = ServerSettings()
    limits: LimitSettings = LimitSettings()
    defaults: Defaults = Defaults()
    experts: Experts = Experts()

    @property
    def selector(self) -> str:
        """What `Model.load` is asked for."""
        return self.server.model_dir or self.server.model


def load_config(
    flags: Mapping[str, object] | None = None, path: str | Path | None = None
) -> tuple[ServerConfig, list[Origin]]:
    """Gather the settings in force.

    Args:
        flags: settings that override all others, as `section.key`.
        path: of the file; None takes the one in the configuration folder, if it is there.

    Returns:
        The settings, and where each of them comes from, in the order of the sections.

    Raises:
        ConfigError: if a key is unknown, or a value makes no sense; names key, value and source.
        DiskError: if the file cannot be read.
    """
    gathered = {key: Origin(key, default, "built-in") for key, default in _leaves(ServerConfig, "")}
    asked = [Origin(key, value, "flag") for key, value in (flags or {}).items()]
    library = _from_library()
    for origin in (*library, *_from_file(path), *_from_environment(gathered), *asked):
        if origin.key not in gathered:
            raise _unknown(origin, list(gathered))
        gathered[origin.key] = origin
    config = _validate(gathered)
    _check_exclusive(gathered)
    return config, [Origin(k, _value(config, k), o.source) for k, o in gathered.items()]


def written(origins: Sequence[Origin], library: Sequence[Origin] = ()) -> str:
    """Settings as TOML, each with where it comes from; those of the library, which have a file of their own, as comments."""
    lines: list[str] = []
    section = ""
    for origin in origins:
        here, _, key = origin.key.rpartition(".")
        if here != section:
            section = here
            lines += ([""] if lines else []) + [f"[{section}]"]
        lines.append(_line(key, origin))
    if library:
        lines += ["", f"# Shared with run and chat: from {places()[0].path} or CHERENKOV_<KEY>"]
        lines += [f"# {_line(origin.key, origin)}" for origin in library]
    return "\n".join(lines)


def _line(key: str, origin: Origin) -> str:
    value = str(origin.value) if isinstance(origin.value, Path) else origin.value
    setting = f"{key} = {json.dumps(value, ensure_ascii=False)}"
    return f"{setting:<40} # {origin.source}"


def inherited(options: Mapping[str, object] | None = None) -> list[Origin]:
    """The library's other settings, which hold for the server too.

    Args:
        options: of `Model.load`, that flags gave.

    Raises:
        ConfigError: if one makes no sense.
    """
    return [
        Origin(o.key, o.value, "flag" if o.source == "argument" else o.source)
        for o in explain(**dict(options or {}))
        if o.key not in _OF_THE_LIBRARY
    ]


def _leaves(kind: type[BaseModel], prefix: str) -> Iterator[tuple[str, object]]:
    """Every setting by its dotted key, with its default."""
    for name, field in kind.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _leaves(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field.default


def _from_library() -> list[Origin]:
    """What the user has set for the library."""
    return [
        Origin(_OF_THE_LIBRARY[origin.key], origin.value, origin.source)
        for origin in explain()
        if origin.key in _OF_THE_LIBRARY and origin.source != "built-in"
    ]


def _from_file(path: str | Path | None) -> list[Origin]:
    place = config_folder() / SERVER_FILE if path is None else Path(path)
    table = read_table(place)
    if table is None:
        if path is not None:
            raise ConfigError("config", str(path), "there is no such file", source="flag")
        return []
    return [Origin(key, value, str(place)) for key, value in _flattened(table, "")]


def _flattened(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _from_environment(known: Mapping[str, Origin]) -> list[Origin]:
    names = {f"CHERENKOV_{key.replace('.', '_').upper()}": key for key in known}
    origins = []
    for variable, text in sorted(server_variables().items()):
        key = names.get(variable)
        if key is None:
            raise _unknown(Origin(variable, text, "environment"), list(names))
        items = [item.strip() for item in text.split(",") if item.strip()]
        origins.append(Origin(key, items if key in _SECTION_LISTS else text, variable))
    return origins


def _validate(gathered: Mapping[str, Origin]) -> ServerConfig:
    tree: dict[str, Any] = {}
    for key, origin in gathered.items():
        *sections, last = key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[last] = origin.value
    try:
        return ServerConfig.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        steps = [str(step) for step in first["loc"]]
        key = next(k for n in range(len(steps), 0, -1) if (k := ".".join(steps[:n])) in gathered)
        reason = reason_of(first["msg"])
        origin = gathered[key]
        raise ConfigError(key, origin.value, reason, source=origin.source) from None


def _check_exclusive(gathered: Mapping[str, Origin]) -> None:
    model, folder = gathered["server.model"], gathered["server.model_dir"]
    if folder.value and model.source != "built-in" and model.source == folder.source:
        raise ConfigError(
            "server.model_dir", folder.value, "set this or server.model", source=folder.source
        )


def _unknown(origin: Origin, known: list[str]) -> ConfigError:
    near = difflib.get_close_matches(origin.key, known, n=1, cutoff=0.5)
    word = origin.key.rpartition(".")[2]
    last = [k for k in known if k.rpartition(".")[2] == word]
    if not last and word in _OF_THE_LIBRARY:
        last = [_OF_THE_LIBRARY[word]]
    elif not last and word in Settings.model_fields:
        hint = (
            f"no such setting here: it stands in {places()[0].path}, or in CHERENKOV_{word.upper()}"
        )
        return ConfigError(origin.key, origin.value, hint, source=origin.source)
    hint = f"did you mean {(last or near)[0]}?" if last or near else f"known are {', '.join(known)}"
    return ConfigError(origin.key, origin.value, f"no such setting; {hint}", source=origin.source)


def _value(config: ServerConfig, key: str) -> object:
    value: object = config
    for step in key.split("."):
        value = getattr(value, step)
    return value
