"""Settings, and the only reader of the environment.

Each setting is taken from the first of these that has it: arguments, `CHERENKOV_<KEY>` in the environment,
`cherenkov/config.toml` in the user's configuration folder, the built-in default. A key that nobody knows is an error
wherever it stands, since a misspelt setting that is silently ignored is worse than none.

The server has settings of its own (`cherenkov_server.config`), in sections. Their variables begin with the name of one
(`CHERENKOV_SERVER_PORT`); they are read here, and judged there.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from cherenkov.errors import ConfigError, DiskError

__all__ = [
    "ModelOptions",
    "Origin",
    "Place",
    "Settings",
    "cache_folder",
    "config_folder",
    "explain",
    "load_settings",
    "places",
    "prepare_mlx",
    "read_table",
    "reason_of",
    "server_variables",
]

PREFIX = "CHERENKOV_"
FILE_LIMIT_BYTES = 64 << 10
SERVER_FILE = "cherenkov.toml"
"""The server's settings, in the folder of ours; see `cherenkov_server.config`."""
_SHOULD = re.compile(r"^[A-Z][a-z]+ should ")
_SERVER_SECTIONS = ("SERVER_", "LIMITS_", "DEFAULTS_", "EXPERTS_")


class Settings(BaseModel):
    """Everything that can be set. Frozen; make one with `load_settings`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data_dir: Path
    """Where prepared models are kept."""
    backend: str = "auto"
    """Compute backend, by name, or `auto` for the fastest that works here."""
    isa: Literal["", "avx512_bf16", "avx512_vnni", "avx2", "portable"] = ""
    """Instruction set of the native backend; empty for the best that the CPU has."""
    threads: int = Field(default=0, ge=0, le=1024)
    """Compute threads; 0 for one a core."""
    precision: Literal["", "float32", "bf16", "int16", "int8"] = ""
    """Precision of activations inside matrix products; empty for the backend's choice."""
    context_tokens: int | None = Field(default=None, ge=1)
    """Longest sequence; None for the model's or the library's default."""
    memory_gb: float | None = Field(default=None, gt=0, lt=1e9, allow_inf_nan=False)
    """Memory of the whole process; None for what is free."""
    pool: str | float = "adaptive"
    """Memory for experts: `adaptive`, `max`, or GB."""
    experts: int | None = Field(default=None, ge=2, le=16)
    """Bits of the routed experts; None for those of the store, 3 or 2 for what was made from them."""
    miss_experts: int | None = Field(default=None, ge=2, le=3)
    """Bits in which experts are read that a layer misses; None for those of the others. The answer then depends on the cache."""
    cut_weak: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)
    """Missing experts of less weight than this are left out of the sum. The answer then depends on the disk; 0 for none."""
    check_records: Literal["first", "always", "never"] = "first"
    """Compare the checksum of a record that is read: the first time, each time, or never."""
    readers: int = Field(default=0, ge=0, le=8)
    """Experts that are read from disk at a time; 0 for the library's choice."""
    lookahead: Literal["auto", "on", "off"] = "auto"
    """Read what the next layer will likely need: while that is faster, always, or never."""
    drafts: int = Field(default=2, ge=0, le=3)
    """Tokens to guess ahead in a step, at most."""
    speculate: Literal["auto", "mtp", "ngram", "off"] = "auto"
    """Guess with the model's draft head, from the text so far, whichever promises more, or not at all."""

    sequences: int = Field(default=1, ge=1, le=64)
    """Answers that may be under way at once, for whose states memory is planned: an engine's `max_batch`."""
    prefix_cache_mib: int = Field(default=0, ge=0, le=1 << 20)
    """Memory that is planned for what an engine has read before."""

    @field_validator(
        "threads",
        "readers",
        "context_tokens",
        "experts",
        "miss_experts",
        "drafts",
        "sequences",
        "prefix_cache_mib",
        "memory_gb",
        mode="before",
    )
    @classmethod
    def _not_a_truth_value(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError("must be a whole number")
        return value

    @field_validator("cut_weak", mode="before")
    @classmethod
    def _no_truth_value(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError("must be a number")
        return value

    @field_validator("pool", mode="before")
    @classmethod
    def _pool(cls, value: object) -> object:
        if value in ("adaptive", "max"):
            return value
        try:
            size = float(value) if isinstance(value, str | int | float) else 0.0
        except (ValueError, OverflowError):
            size = 0.0
        if isinstance(value, bool) or not 0 < size < 1e9:
            raise ValueError('must be "adaptive", "max", or a number of GB alone, such as 0.5')
        return size

    @field_validator("data_dir", mode="after")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        if "\0" in str(value):
            raise ValueError("must be a path")
        try:
            expanded = value.expanduser()
        except RuntimeError as error:
            raise ValueError(str(error)) from error
        if not expanded.is_absolute():
            raise ValueError("must be an absolute path")
        return expanded


class ModelOptions(TypedDict, total=False):
    """Options of `Model.load`: the settings of these names.

    backend: `auto`, `native`, `mlx`, `metal`, `cuda`, `reference`.
    context_tokens: longest sequence, in tokens.
    memory_gb: memory of the whole process.
    pool: memory for experts: `"adaptive"`, `"max"`, or GB.
    experts: bits of the routed experts: 3 or 2 for those that `prepare` made from the store's.
    miss_experts: 3 or 2: bits in which to read experts that a layer misses. The answer then depends on the cache.
    cut_weak: leave missing experts of less weight than this out. The answer then depends on the disk.
    threads: compute threads, 0 for one a core.
    precision: of activations inside matrix products: `float32`, `bf16`, `int16`, `int8`.
    isa: instruction set of the native backend.
    check_records: compare the checksum of a record that is read: `first` time, `always`, `never`.
    readers: experts that are read from disk at a time, 1 to 8.
    lookahead: read what the next layer will likely need: `auto` (while that is faster), `on`, `off`.
    sequences: answers that may be under way at once, for whose states memory is planned: `max_batch` of an engine.
    prefix_cache_mib: memory that is planned for what an engine has read before.
    drafts: tokens to guess ahead in a step, at most: 0 to 3. They change nothing in what is said.
    speculate: guess with the model's draft head (`mtp`), from the text so far (`ngram`), whichever promises more
        (`auto`), or not at all (`off`).
    """

    backend: str
    context_tokens: int | None
    memory_gb: float | None
    pool: str | float | None
    experts: int | None
    miss_experts: int | None
    cut_weak: float | None
    threads: int | None
    precision: str | None
    isa: str | None
    check_records: str | None
    readers: int | None
    lookahead: str | None
    sequences: int | None
    prefix_cache_mib: int | None
    drafts: int | None
    speculate: str | None
    data_dir: str | os.PathLike[str] | None


@dataclass(frozen=True, slots=True)
class Origin:
    """One setting in force, and what set it: `built-in`, a file, an environment variable, or `argument`."""

    key: str
    value: object
    source: str


@dataclass(frozen=True, slots=True)
class Place:
    """A path that the program uses, and what decided it."""

    name: str
    path: Path
    source: str


def cache_folder() -> Path:
    """Where things are kept that can be made again."""
    home, _ = _base_folder("XDG_CACHE_HOME", ".cache")
    return home / "cherenkov"


def prepare_mlx() -> None:
    """Set what MLX reads from the environment when it starts; what the user has set stays.

    Each kernel that reads the pool counts all of it towards a command buffer, which MLX would hand over after
    every such kernel: by default at 40 to 50 million elements. On NVIDIA a GPU that gets work in small portions begins
    sooner, while the host prepares the next.
    """
    os.environ.setdefault("MLX_MAX_MB_PER_BUFFER", "1000000")
    os.environ.setdefault("MLX_ENABLE_TF32", "0")  # float32 means float32
    os.environ.setdefault("MLX_MAX_OPS_PER_BUFFER", "200" if sys.platform == "darwin" else "20")


def load_settings(**arguments: object) -> Settings:
    """Gather the settings in force.

    Args:
        arguments: settings that override all others, by key.

    Raises:
        ConfigError: if a key is unknown or a value makes no sense; names key, value and source.
        DiskError: if the configuration file is there but cannot be read.
    """
    return _validate(_gather(arguments))


def explain(**arguments: object) -> list[Origin]:
    """Every setting in force with its source, in order of keys. Raises as `load_settings`."""
    gathered = _gather(arguments)
    settings = _validate(gathered)
    return [Origin(key, getattr(settings, key), gathered[key].source) for key in sorted(gathered)]


def places(**arguments: object) -> list[Place]:
    """Every path that the program uses, with what decided it. Raises as `load_settings`."""
    data = next(origin for origin in explain(**arguments) if origin.key == "data_dir")
    assert isinstance(data.value, Path)
    config = _config_file()
    return [
        config,
        Place("server", config.path.with_name(SERVER_FILE), config.source),
        Place("data", data.value, data.source),
        Place("stores", data.value / "stores", "in data"),
        Place("cache", cache_folder(), _base_folder("XDG_CACHE_HOME", ".cache")[1]),
    ]


def _gather(arguments: dict[str, object]) -> dict[str, Origin]:
    """The settings by key, unchecked values, each from the strongest source that has it."""
    gathered = {
        key: Origin(key, field.default, "built-in") for key, field in Settings.model_fields.items()
    }
    home, source = _base_folder("XDG_DATA_HOME", ".local/share")
    gathered["data_dir"] = Origin("data_dir", home / "cherenkov", source)
    for origin in (*_from_file(), *_from_environment(), *_from_arguments(arguments)):
        if origin.key not in Settings.model_fields:
            raise _unknown(origin)
        gathered[origin.key] = origin
    return gathered


def _validate(gathered: dict[str, Origin]) -> Settings:
    try:
        return Settings.model_validate({key: origin.value for key, origin in gathered.items()})
    except ValidationError as error:
        first = error.errors()[0]
        origin = gathered[str(first["loc"][0])]
        reason = reason_of(first["msg"])
        raise ConfigError(origin.key, origin.value, reason, source=origin.source) from None


def reason_of(message: str) -> str:
    """Why a value was refused: of Pydantic's words those that say it, to stand behind a setting's or parameter's name."""
    reason = _SHOULD.sub("must ", message.removeprefix("Value error, "))
    for end in (" after validation", ", unable to parse"):
        reason = reason.partition(end)[0]
    return reason.replace("must be '', ", "must be ")  # empty stands for the default


def _unknown(origin: Origin) -> ConfigError:
    known = sorted(Settings.model_fields)
    if isinstance(origin.value, dict) and f"{origin.key.upper()}_" in _SERVER_SECTIONS:
        reason = f"is a section of the server's settings: it belongs in {SERVER_FILE}, beside this"
        return ConfigError(origin.key, origin.value, reason, source=origin.source)
    near = difflib.get_close_matches(origin.key.lower(), known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    return ConfigError(origin.key, origin.value, f"no such setting; {hint}", source=origin.source)


def _from_arguments(arguments: dict[str, object]) -> list[Origin]:
    origins = [Origin(key, value, "argument") for key, value in arguments.items()]
    return [_resolved(o) if o.key == "data_dir" else o for o in origins]


def _resolved(origin: Origin) -> Origin:
    """A folder given as an argument may be relative to the current one, as in every command."""
    if isinstance(origin.value, str | Path) and not str(origin.value).startswith("~"):
        return Origin(origin.key, Path.cwd() / origin.value, origin.source)
    return origin


def _from_environment() -> list[Origin]:
    return [
        Origin(name.removeprefix(PREFIX).lower(), value, name)
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIX) and not _is_the_servers(name)
    ]


def server_variables() -> dict[str, str]:
    """Variables of the environment that belong to the server, by name."""
    return {name: value for name, value in os.environ.items() if _is_the_servers(name)}


def _is_the_servers(name: str) -> bool:
    return name.startswith(PREFIX) and name.removeprefix(PREFIX).startswith(_SERVER_SECTIONS)


def _from_file() -> list[Origin]:
    path = _config_file().path
    return [Origin(key, value, str(path)) for key, value in (read_table(path) or {}).items()]


def read_table(path: Path) -> dict[str, Any] | None:
    """What a configuration file holds; None if there is no such file.

    Raises:
        ConfigError: if it is no TOML, or larger than 64 KiB.
        DiskError: if it cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DiskError.wrap(error, path, "read") from error
    if len(data) > FILE_LIMIT_BYTES:
        raise ConfigError(path.name, str(path), "larger than 64 KiB", source="file")
    try:
        table: dict[str, Any] = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            path.name, str(path), f"is not valid TOML: {reason}", source="file"
        ) from error
    return table


def config_folder() -> Path:
    """Where configuration files lie."""
    return _config_file().path.parent


def _config_file() -> Place:
    home, source = _base_folder("XDG_CONFIG_HOME", ".config")
    return Place("config", home / "cherenkov" / "config.toml", source)


def _base_folder(variable: str, below_home: str) -> tuple[Path, str]:
    """A base folder of the XDG specification, which says to ignore relative values."""
    value = os.environ.get(variable, "")
    if value and Path(value).is_absolute():
        return Path(value), variable
    try:
        return Path.home() / below_home, "built-in"
    except RuntimeError as error:
        raise ConfigError(
            "HOME", None, "there is no home folder: set HOME", source="environment"
        ) from error
