from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from cherenkov.config import Settings, explain, load_settings, places
from cherenkov.errors import ConfigError, DiskError


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in [n for n in os.environ if n.startswith(("CHERENKOV_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write(home: Path, text: str | bytes) -> Path:
    path = home / ".config" / "cherenkov" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def source_of(key: str, **arguments) -> str:
    return next(o.source for o in explain(**arguments) if o.key == key)


def test_defaults(home):
    settings = load_settings()
    assert settings.data_dir == home / ".local/share/cherenkov"
    assert settings.model_dump(exclude={"data_dir"}) == {
        "backend": "auto",
        "isa": "",
        "threads": 0,
        "precision": "",
        "context_tokens": None,
        "memory_gb": None,
        "pool": "adaptive",
        "experts": None,
        "miss_experts": None,
        "cut_weak": 0.0,
        "check_records": "first",
        "readers": 0,
        "lookahead": "auto",
        "sequences": 1,
        "prefix_cache_mib": 0,
        "drafts": 2,
        "speculate": "auto",
    }


def test_order_of_sources(home, monkeypatch):
    assert (load_settings().threads, source_of("threads")) == (0, "built-in")
    path = write(home, "threads = 1\nbackend = 'reference'")
    assert (load_settings().threads, source_of("threads")) == (1, str(path))
    monkeypatch.setenv("CHERENKOV_THREADS", "2")
    assert (load_settings().threads, source_of("threads")) == (2, "CHERENKOV_THREADS")
    assert load_settings(threads=3).threads == 3
    assert source_of("threads", threads=3) == "argument"
    assert load_settings().backend == "reference"


def test_settings_are_frozen_and_closed(home):
    with pytest.raises(ValidationError):
        load_settings().threads = 3
    with pytest.raises(ValidationError):
        Settings(data_dir=home, tread=3)


def test_xdg_folders_and_their_origins(home, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "d"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "c"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "x"))
    assert load_settings().data_dir == home / "d" / "cherenkov"
    assert [(p.name, p.path.relative_to(home).as_posix(), p.source) for p in places()] == [
        ("config", "c/cherenkov/config.toml", "XDG_CONFIG_HOME"),
        ("server", "c/cherenkov/cherenkov.toml", "XDG_CONFIG_HOME"),
        ("data", "d/cherenkov", "XDG_DATA_HOME"),
        ("stores", "d/cherenkov/stores", "in data"),
        ("cache", "x/cherenkov", "XDG_CACHE_HOME"),
    ]


@pytest.mark.parametrize("value", ["relative/folder", ""])
def test_relative_xdg_folders_are_ignored(home, monkeypatch, value):
    monkeypatch.setenv("XDG_DATA_HOME", value)
    assert load_settings().data_dir == home / ".local/share/cherenkov"
    assert source_of("data_dir") == "built-in"


def test_data_dir_expands_home_and_arguments_may_be_relative(home, monkeypatch):
    monkeypatch.chdir(home)
    assert load_settings(data_dir="~/x").data_dir == home / "x"
    assert load_settings(data_dir="x").data_dir == home / "x"
    assert load_settings(data_dir=Path("x")).data_dir == home / "x"
    monkeypatch.setenv("CHERENKOV_DATA_DIR", "x")
    with pytest.raises(ConfigError, match=r"data_dir = 'x' \(CHERENKOV_DATA_DIR\): must be an abs"):
        load_settings()


@pytest.mark.parametrize(
    ("value", "pool"),
    [("adaptive", "adaptive"), ("max", "max"), ("2.5", 2.5), (4, 4.0), (0.001, 0.001)],
)
def test_pool(value, pool):
    assert load_settings(pool=value).pool == pool


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("pool", v) for v in ("big", "0", -1, True, float("nan"), float("inf"), None, [1])],
        *[("threads", v) for v in ("many", -1, 1.5, True, 10**9, None)],
        *[("context_tokens", v) for v in (0, -5, "x", False)],
        *[("check_records", v) for v in ("perhaps", 2, True)],
        *[("readers", v) for v in (-1, 9, True, "many")],
        *[("lookahead", v) for v in ("perhaps", 2, True)],
        *[("drafts", v) for v in (-1, 4, True, "many", 1.5)],
        *[("speculate", v) for v in ("perhaps", 2, True)],
        *[("backend", v) for v in (3, None)],
        *[("isa", v) for v in ("sse9", "AVX2", 2, None)],
        *[("precision", v) for v in ("float16", 16, None)],
        *[("data_dir", v) for v in (3, None, "a\0b")],
    ],
)
def test_bad_values_name_key_value_and_source(key, value):
    with pytest.raises(ConfigError) as caught:
        load_settings(**{key: value})
    assert caught.value.key == key
    assert caught.value.source == "argument"
    assert "\n" not in str(caught.value)


def test_a_size_with_a_unit_is_told_how_to_write_it():
    with pytest.raises(ConfigError, match=r"pool = '4MB' \(argument\): .*a number of GB alone"):
        load_settings(pool="4MB")


def test_sources_are_named(home, monkeypatch):
    monkeypatch.setenv("CHERENKOV_THREADS", "many")
    with pytest.raises(ConfigError, match=r"threads = 'many' \(CHERENKOV_THREADS\): must be"):
        load_settings()
    monkeypatch.delenv("CHERENKOV_THREADS")
    path = write(home, "threads = 'many'")
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert caught.value.source == str(path)


def test_the_environment_chooses_by_name(monkeypatch):
    monkeypatch.setenv("CHERENKOV_CHECK_RECORDS", "never")
    assert load_settings().check_records == "never"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"precision": "fp8"}, r"must be 'float32', 'bf16', 'int16' or 'int8'$"),
        ({"threads": "two"}, r"must be a valid integer$"),
        ({"drafts": 4}, r"must be less than or equal to 3$"),
    ],
)
def test_reasons_are_short(given, words):
    with pytest.raises(ConfigError, match=words):
        load_settings(**given)


def test_unknown_keys_get_a_hint(home, monkeypatch):
    with pytest.raises(ConfigError, match=r"tread = 3 \(argument\): no such setting; did you mean"):
        load_settings(tread=3)
    monkeypatch.setenv("CHERENKOV_BACKENDS", "x")
    with pytest.raises(ConfigError, match=r"\(CHERENKOV_BACKENDS\): .*did you mean backend"):
        load_settings()
    monkeypatch.delenv("CHERENKOV_BACKENDS")
    write(home, "[limit]\nmemory = 3")
    with pytest.raises(ConfigError, match=r"limit = .*config.toml\): no such setting; known are"):
        load_settings()
    write(home, "[limits]\nmemory_gb = 3")
    with pytest.raises(ConfigError, match=r"belongs in cherenkov\.toml"):
        load_settings()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"threads =", "is not valid TOML"),
        (b"\xff", "is not valid TOML"),
        (b"a = " + b"[" * 20_000, "is not valid TOML"),
        (b"#" * 70_000, "larger than 64 KiB"),
    ],
)
def test_bad_files(home, text, reason):
    write(home, text)
    with pytest.raises(ConfigError, match=reason) as caught:
        load_settings()
    assert "\n" not in str(caught.value)


def test_a_folder_in_place_of_the_file(home):
    (home / ".config/cherenkov/config.toml").mkdir(parents=True)
    with pytest.raises(DiskError, match="cannot read"):
        load_settings()


def test_no_home(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(ConfigError, match="set HOME"):
        load_settings()


def test_importing_the_package_loads_nothing_heavy():
    heavy = ("pydantic", "numpy", "click", "rich", "tokenizers", "jinja2", "mlx", "torch")
    code = f"import sys, cherenkov; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert out.stdout.strip() == "[]"
