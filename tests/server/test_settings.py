"""The server's settings: where they come from, and what is refused."""

import re
import resource
import tomllib
from pathlib import Path

import pytest

from cherenkov.config import load_settings
from cherenkov.errors import ConfigError, DiskError
from cherenkov.units import MIB
from cherenkov_server.config import inherited, load_config, written
from cherenkov_server.loading import limits_of, model_options, name_of
from cherenkov_server.serve import affordable, read_keys

EXAMPLE = Path(__file__).parents[2] / "cherenkov.example.toml"


def origin(origins, key):
    return next((o.value, o.source) for o in origins if o.key == key)


def test_what_overrides_what(tmp_path, monkeypatch):
    file = tmp_path / "one.toml"
    file.write_text("[server]\nport = 1\nhost = '::1'\n[limits]\nqueued_requests = 7\n")
    monkeypatch.setenv("CHERENKOV_SERVER_PORT", "2")
    monkeypatch.setenv("CHERENKOV_SERVER_HOST", "localhost")
    monkeypatch.setenv("CHERENKOV_SERVER_CORS_ORIGINS", "https://a.example, https://b.example")
    config, origins = load_config({"server.port": 3}, file)
    assert (config.server.port, config.server.host) == (3, "localhost")
    assert config.limits.queued_requests == 7
    assert config.server.cors_origins == ["https://a.example", "https://b.example"]
    assert origin(origins, "server.port") == (3, "flag")
    assert origin(origins, "server.host") == ("localhost", "CHERENKOV_SERVER_HOST")
    assert origin(origins, "limits.queued_requests") == (7, str(file))
    assert origin(origins, "limits.active_requests") == (4, "built-in")


def test_the_file_in_the_configuration_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert load_config()[0].server.port == 8080
    (tmp_path / "cherenkov").mkdir()
    (tmp_path / "cherenkov" / "cherenkov.toml").write_text("[server]\nport = 1234\n")
    assert load_config()[0].server.port == 1234


def test_variables_of_the_server_are_not_the_library_s(monkeypatch):
    monkeypatch.setenv("CHERENKOV_LIMITS_QUEUED_REQUESTS", "9")
    monkeypatch.setenv("CHERENKOV_DEFAULTS_SAMPLING_TOP_K", "5")
    monkeypatch.setenv("CHERENKOV_EXPERTS_POOL_GB", "max")
    load_settings()
    config, _ = load_config()
    assert config.limits.queued_requests == 9
    assert config.defaults.sampling.top_k == 5
    assert config.experts.pool_gb == "max"
    monkeypatch.setenv("CHERENKOV_SERVER_PRT", "9")
    with pytest.raises(ConfigError, match="did you mean CHERENKOV_SERVER_PORT"):
        load_config()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\nprt = 1\n", r"server\.prt = 1 .*did you mean server\.port\?"),
        ("[server]\npool = 1\n", r"did you mean experts\.pool_gb\?"),
        ("threads = 1\n", r"config\.toml, or in CHERENKOV_THREADS$"),
        ("port = 1\n", r"did you mean server\.port\?"),
        ("[limit]\nmax_sessions = 1\n", r"did you mean limits\.max_sessions\?"),
        ("[server]\nport = 70000\n", "less than or equal to 65535"),
        ("[server]\nport = 'x'\n", r"server\.port"),
        ("[server]\nport = true\n", "must not be true or false"),
        ("[server]\nmodel = 5\n", r"server\.model"),
        ("[server]\nmodel = 'a'\nmodel_dir = 'b'\n", r"set this or server\.model"),
        ("[server]\ncors_origins = ['example.com']\n", "no origin"),
        ("[server]\ncors_origins = ['*']\n", "no origin"),
        ("[experts]\npool_gb = 'huge'\n", r"experts\.pool_gb"),
        ("[defaults.sampling]\ntop_p = 0\n", r"defaults\.sampling\.top_p"),
        ("[server\n", "is not valid TOML"),
        ("x = '" + "a" * 70_000 + "'", "larger than 64 KiB"),
    ],
)
def test_what_makes_no_sense(tmp_path, text, words):
    file = tmp_path / "one.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        load_config(path=file)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="there is no such file"):
        load_config(path=tmp_path / "none.toml")
    with pytest.raises(DiskError):
        load_config(path=tmp_path)


def test_the_example_holds_every_setting_with_its_default():
    """As it stands it changes nothing, and no setting is missing."""
    table = tomllib.loads(EXAMPLE.read_text())
    config, origins = load_config(path=EXAMPLE)
    assert config == load_config(path=None)[0]
    listed = re.findall(r"^(?:# )?([a-z_]+) = ", EXAMPLE.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(o.key.rpartition(".")[2] for o in origins)
    assert set(table) <= {"server", "limits", "defaults", "experts"}


def test_written_settings_can_be_read_again(tmp_path):
    config, origins = load_config({"server.port": 9, "server.cors_origins": ["https://a.example"]})
    file = tmp_path / "one.toml"
    file.write_text(written(origins))
    assert load_config(path=file)[0] == config
    assert re.search(r"^port = 9 +# flag$", written(origins), re.MULTILINE)


def test_what_the_library_is_asked_for():
    config, _ = load_config(
        {
            "server.model": "/models/m",
            "limits.context_tokens": 100,
            "limits.memory_gb": 2,
            "experts.resident_bits": 3,
            "experts.pool_gb": "1.5",
            "limits.active_requests": 8,
        }
    )
    assert model_options(config) == {
        "context_tokens": 100,
        "memory_gb": 2.0,
        "experts": 3,
        "pool": 1.5,
        "cut_weak": 0.0,
        "sequences": 8,
        "prefix_cache_mib": 512,
        "drafts": 2,
        "speculate": "auto",
    }
    assert limits_of(config).max_batch == 8
    assert limits_of(config).prefix_cache_bytes == 512 * MIB
    assert name_of(config) == "m"
    assert model_options(load_config()[0])["pool"] == "adaptive"


def test_what_is_set_for_the_library_holds_here_too(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "cherenkov"
    folder.mkdir()
    (folder / "config.toml").write_text("pool = 0.5\ncut_weak = 0.1\nthreads = 3\n")
    monkeypatch.setenv("CHERENKOV_SPECULATE", "ngram")
    config, origins = load_config()
    assert origin(origins, "experts.pool_gb") == (0.5, str(folder / "config.toml"))
    assert origin(origins, "server.speculate") == ("ngram", "CHERENKOV_SPECULATE")
    asked = model_options(config)
    assert (asked["pool"], asked["cut_weak"], asked["speculate"]) == (0.5, 0.1, "ngram")
    (folder / "cherenkov.toml").write_text("[experts]\npool_gb = 'adaptive'\ncut_weak = 0\n")
    asked = model_options(load_config()[0])
    assert load_settings(**asked).pool == "adaptive"
    assert load_settings(**asked).cut_weak == 0


def test_the_library_s_other_settings_are_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("CHERENKOV_LOOKAHEAD", "off")
    config, origins = load_config()
    library = inherited({"threads": 3})
    assert not {o.key for o in library} & {"pool", "drafts", "memory_gb"}
    text = written(origins, library)
    assert re.search(r"^# threads = 3 +# flag$", text, re.MULTILINE)
    assert re.search(r'^# lookahead = "off" +# CHERENKOV_LOOKAHEAD$', text, re.MULTILINE)
    file = tmp_path / "one.toml"
    file.write_text(text)
    assert load_config(path=file)[0] == config
    with pytest.raises(ConfigError, match="threads"):
        inherited({"threads": -1})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "models.example"])
def test_other_machines_need_a_key(tmp_path, host):
    with pytest.raises(ConfigError, match="--api-key-file, or say --no-auth"):
        read_keys(load_config({"server.host": host})[0])
    read_keys(load_config({"server.host": host, "server.no_auth": True})[0])
    file = tmp_path / "keys"
    file.write_text("# ours\n\nsecret\n")
    keys = read_keys(load_config({"server.host": host, "server.api_key_file": str(file)})[0])
    assert keys.owner({b"x-api-key": b"secret"})


def test_files_of_keys(tmp_path):
    read_keys(load_config()[0])
    file = tmp_path / "keys"
    config = load_config({"server.api_key_file": str(file)})[0]
    with pytest.raises(DiskError):
        read_keys(config)
    file.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="holds no key"):
        read_keys(config)
    file.write_bytes(b"\xff\n")
    with pytest.raises(ConfigError, match="ASCII"):
        read_keys(config)


@pytest.mark.parametrize(
    ("soft", "hard", "found", "raised"),
    [
        (40, 40, 8, 40),
        (8, 8, 1, 8),
        (1024, 4096, 1024, 2080),
        (64, resource.RLIM_INFINITY, 1024, 2080),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 1024, resource.RLIM_INFINITY),
    ],
)
def test_no_more_connections_than_descriptors(monkeypatch, soft, hard, found, raised):
    limits = [soft, hard]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, asked: limits.__setitem__(0, asked[0]))
    assert affordable(1024) == found
    assert limits[0] == raised
