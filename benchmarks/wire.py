"""What the server adds to the library for one stream.

Where a process happens to place a model's weights is worth several per cent of its speed, and so is the minute. So one
process holds one model and answers both ways, in turns: library, server, server, library. Either way another process, which
does nothing else, reads the pieces of text as they come and notes when.
"""

from __future__ import annotations

import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import numpy as np
from machine import clean_environment
from results import measurement

__all__ = ["overhead"]

_ROOT = Path(__file__).resolve().parent.parent
_CHILD = Path(__file__).resolve().parent / "children" / "served_model.py"
_TOKENS = 96
_OPTIONS = {"max_tokens": _TOKENS, "temperature": 1.0, "seed": 0}
_NO_END = {0: -100}  # the random model ends where it happens to
_SETTINGS = {"limits.context_tokens": 512, "limits.prefix_cache_mib": 0}
_TEXT = re.compile(rb'"text":"[^"]')


def overhead(store: Path, rounds: int) -> dict[str, Any]:
    """One stream through the server, against the library."""
    job = {
        "model": str(store),
        "settings": _SETTINGS,
        "threads": 2,
        "options": {**_OPTIONS, "logit_bias": _NO_END},
    }
    child = subprocess.Popen(
        [sys.executable, str(_CHILD), json.dumps(job)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        env=clean_environment(PYTHONPATH=str(_ROOT)),
    )
    assert child.stdin is not None
    assert child.stdout is not None
    ask, said = child.stdin, child.stdout
    url = said.readline().decode().strip()
    library, server, ratios, connections = [], [], [], []
    for number in range(rounds + 1):
        prompt = np.random.default_rng(number).integers(10, 8000, 32).tolist()
        first = _alone(ask, said, prompt)
        before = _times(ask, said)
        through = [_through(url, prompt) for _ in range(2)]
        after = _times(ask, said)
        alone = [first, _alone(ask, said, prompt)]
        if number:  # the first round warms up
            library += alone
            server += through
            ratios.append(sum(through) / sum(alone) - 1)
            took = after["connections"] - before["connections"]
            connections.append(1e6 * took / (2 * _TOKENS))
    ask.close()
    child.wait()
    print(
        f"one stream: library {statistics.median(library) * 1e3:.2f} ms a token, through the server "
        f"{statistics.median(server) * 1e3:.2f}, overhead {statistics.median(ratios):.1%} "
        f"({rounds} rounds, {min(ratios):.1%} to {max(ratios):.1%}); "
        f"{statistics.median(connections):.0f} µs of it in the thread of the connections"
    )
    return {
        "library": measurement(library, "s"),
        "server": measurement(server, "s"),
        "overhead": measurement(ratios, "part"),
        "connections": measurement(connections, "us"),
    }


def _times(ask: IO[bytes], said: IO[bytes]) -> dict[str, float]:
    ask.write(b"times\n")
    found: dict[str, float] = json.loads(said.readline())
    return found


def _alone(ask: IO[bytes], said: IO[bytes], prompt: list[int]) -> float:
    """Seconds a piece of text, by the library."""
    ask.write(json.dumps(prompt).encode() + b"\n")
    times: list[float] = []
    count, piece = 0, b""
    while not piece.endswith(b"\x1d"):
        piece = os.read(said.fileno(), 65536)
        count += piece.count(b"\x1e")
        if b"\x1e" in piece:
            times.append(time.perf_counter())
    return (times[-1] - times[0]) / (count - 1)


def _through(url: str, prompt: list[int]) -> float:
    """Seconds a piece of text, by the server."""
    body = {**_OPTIONS, "prompt": prompt, "logit_bias": _NO_END, "stream": True}
    data = json.dumps(body).encode()
    host, _, port = url[7:].partition(":")
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    times: list[float] = []
    pieces = []
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(head.encode() + data)
        while piece := connection.recv(65536):
            pieces.append(piece)
            if _TEXT.search(piece):
                times.append(time.perf_counter())
    count = len(_TEXT.findall(b"".join(pieces)))
    return (times[-1] - times[0]) / (count - 1)
