"""`cherenkov serve`: answer OpenAI's clients."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import click

from cherenkov.errors import CherenkovError
from cherenkov_cli.completion import files, folders, models
from cherenkov_cli.options import engine_options, load_settings_of
from cherenkov_cli.show import Reporter, one_line, say

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["command"]

_NEEDED = ("litestar", "uvicorn")
_KEYS = {
    "model": "server.model",
    "host": "server.host",
    "port": "server.port",
    "served_name": "server.served_name",
    "api_key_file": "server.api_key_file",
    "no_auth": "server.no_auth",
    "any_model": "server.any_model",
    "lenient": "server.lenient",
    "cors_origin": "server.cors_origins",
    "allowed_host": "server.allowed_hosts",
    "log_json": "server.log_json",
    "memory_gb": "limits.memory_gb",
    "max_ctx": "limits.context_tokens",
    "max_batch": "limits.active_requests",
    "queue_depth": "limits.queued_requests",
    "prefix_cache_mb": "limits.prefix_cache_mib",
    "prefix_cache_dir": "limits.prefix_cache_dir",
    "max_tokens": "defaults.max_tokens",
    "no_eos": "defaults.no_eos",
    "drafts": "server.drafts",
    "speculate": "server.speculate",
    "experts": "experts.resident_bits",
    "miss_experts": "experts.miss_bits",
    "cut_weak": "experts.cut_weak",
    "pool_gb": "experts.pool_gb",
}
_OF_THE_LIBRARY = ("backend", "threads", "precision", "cpu_isa")


@click.command("serve", short_help="Answer OpenAI's clients over HTTP.")
@click.argument("model", required=False, shell_complete=models)
@click.option(
    "--config",
    metavar="FILE",
    shell_complete=files,
    help="Settings in TOML; see cherenkov.example.toml.",
)
@click.option("--print-config", is_flag=True, help="Show the settings and where they come from.")
@click.option("--host", metavar="ADDRESS", help="Default: 127.0.0.1, this machine alone.")
@click.option("--port", type=int, metavar="N", help="Default: 8080; 0 takes a free one.")
@click.option("--served-name", metavar="NAME", help="What clients call the model.")
@click.option(
    "--api-key-file",
    metavar="FILE",
    shell_complete=files,
    help="Keys of those who may call, one a line.",
)
@click.option("--no-auth", is_flag=True, help="Let anybody in, from other machines too.")
@click.option("--cors-origin", multiple=True, metavar="ORIGIN", help="A web page that may call.")
@click.option("--allowed-host", multiple=True, metavar="NAME", help="A name of this server.")
@click.option("--any-model", is_flag=True, help="Answer whatever model a request names.")
@click.option("--lenient", is_flag=True, help="Leave away what cannot be honoured in a request.")
@click.option("--max-batch", type=int, metavar="N", help="Answers under way at once.")
@click.option("--queue-depth", type=int, metavar="N", help="Requests that may wait.")
@click.option("--max-tokens", type=int, metavar="N", help="Of an answer, unless a request says.")
@click.option("--no-eos", is_flag=True, help="Go on to the most tokens, unless a request says.")
@click.option("--prefix-cache-mb", type=int, metavar="MIB", help="Memory for what was read before.")
@click.option(
    "--prefix-cache-dir",
    metavar="DIR",
    shell_complete=folders,
    help="Where it goes when that is full.",
)
@click.option("--memory-gb", type=float, metavar="GB", help="Memory of the whole process.")
@click.option("--log-json", is_flag=True, help="Log lines as JSON.")
@click.option("--ctx", "max_ctx", type=int, metavar="TOKENS", help="The same as --max-ctx.")
@engine_options
def command(config: str | None, print_config: bool, quiet: bool, **given: Any) -> int:
    """Serve MODEL to OpenAI's clients, until a signal comes.

    MODEL is demo, or the folder of a store or checkpoint. The first SIGINT or SIGTERM lets answers end, the second does not
    wait.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise CherenkovError(
            f"the server needs {' and '.join(missing)}: pip install 'cherenkov[server]'"
        )
    from cherenkov_server.config import inherited, load_config, written

    settings, origins = load_config(_flags(given), config)
    options = load_settings_of({name: given[name] for name in _OF_THE_LIBRARY})
    library = inherited(options)  # refused before the address is taken
    if print_config:
        click.echo(written(origins, library))
        return 0
    from cherenkov_server.loading import engine_of, name_of
    from cherenkov_server.serve import read_keys, serve

    read_keys(settings)  # refused before anything is loaded
    with Reporter(quiet=quiet) as report:
        engine = engine_of(settings, options, report)
        return serve(
            settings,
            engine,
            name=name_of(settings),
            say=lambda text: say(f"cherenkov: {one_line(text)}"),
        )


def _flags(given: Mapping[str, Any]) -> dict[str, object]:
    """Settings that flags give, by their keys."""
    flags: dict[str, object] = {}
    for name, key in _KEYS.items():
        value = given.get(name)
        if value is None or value is False or value == ():  # 0 is a value
            continue
        flags[key] = list(value) if isinstance(value, tuple) else value
    return flags
