"""What the server adds to the library for one stream; and a client that is hardly there, for several.

Where a process happens to place a model's weights is worth several per cent of its speed, and so is the minute. So one
process holds one model and answers both ways, in turns: library, server, server, library. Either way another process, which
does nothing else, reads the pieces of text as they come and notes when. What counts is the median time between two pieces: a
neighbour of the machine who wants a core for a while is no part of it. The mean is told as well.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from machine import clean_environment
from results import measurement

__all__ = ["overhead", "together"]

_ROOT = Path(__file__).resolve().parent.parent
_CHILD = Path(__file__).resolve().parent / "children" / "served_model.py"
_TOKENS = 24
_OPTIONS = {"max_tokens": _TOKENS, "temperature": 1.0, "seed": 0}
_NO_END = {0: -100}  # the random model ends where it happens to
_SETTINGS = {"limits.context_tokens": 512, "limits.prefix_cache_mib": 0}
_TEXT = re.compile(rb'"text":\s?"[^"]')


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
    library, server, ratios, means, connections = [], [], [], [], []
    for number in range(rounds + 1):
        prompt = np.random.default_rng(number).integers(10, 8000, 32).tolist()
        first = _alone(ask, said, prompt)
        before = _times(ask, said)
        through = [_through(url, prompt) for _ in range(2)]
        after = _times(ask, said)
        alone = [first, _alone(ask, said, prompt)]
        if number:  # the first round warms up
            library += [statistics.median(one) for one in alone]
            server += [statistics.median(one) for one in through]
            ratios.append(sum(server[-2:]) / sum(library[-2:]) - 1)
            means.append(sum(map(sum, through)) / sum(map(sum, alone)) - 1)
            took = after["connections"] - before["connections"]
            connections.append(took / 2)
    ask.close()
    child.wait()
    quarter = statistics.quantiles(ratios, n=4)
    print(
        f"one stream: library {statistics.median(library) * 1e3:.2f} ms a token, through the server "
        f"{statistics.median(server) * 1e3:.2f}, overhead {statistics.median(ratios):.1%} "
        f"({rounds} rounds, quartiles {quarter[0]:.1%} and {quarter[2]:.1%}; of means {statistics.median(means):.1%}); "
        f"{statistics.median(connections) * 1e3:.1f} ms of a request in the thread of the connections"
    )
    return {
        "library": measurement(library, "s"),
        "server": measurement(server, "s"),
        "overhead": measurement(ratios, "part"),
        "overhead_of_means": measurement(means, "part"),
        "connections": measurement(connections, "s"),
    }


def _times(ask: IO[bytes], said: IO[bytes]) -> dict[str, float]:
    ask.write(b"times\n")
    found: dict[str, float] = json.loads(said.readline())
    return found


def _alone(ask: IO[bytes], said: IO[bytes], prompt: list[int]) -> list[float]:
    """Seconds between pieces of text, by the library."""
    ask.write(json.dumps(prompt).encode() + b"\n")
    times: list[float] = []
    piece = b""
    while not piece.endswith(b"\x1d"):
        piece = os.read(said.fileno(), 65536)
        times += [time.perf_counter()] * piece.count(b"\x1e")
    return [after - before for before, after in pairwise(times)]


def _through(url: str, prompt: list[int]) -> list[float]:
    """Seconds between pieces of text, by the server."""
    (one,) = _heard(url, [{**_OPTIONS, "prompt": prompt, "logit_bias": _NO_END}])
    return [after - before for before, after in pairwise(one.times)]


def together(url: str, bodies: list[dict[str, Any]]) -> float:
    """Tokens a second of several completions that are asked for at once.

    What counts is the time when all of them are under way: from the last first piece of text to the first last one.
    """
    answers = _heard(url, bodies)
    begun, ended = max(a.times[0] for a in answers), min(a.times[-1] for a in answers)
    assert ended > begun, "there is a time when all are under way"
    tokens = 0.0
    for one in answers:
        pieces = sum(begun < t <= ended for t in one.times)
        tokens += pieces * (one.tokens - 1) / (len(one.times) - 1)  # some tokens are no text yet
    return tokens / (ended - begun)


@dataclass(slots=True)
class _Heard:
    """A stream: when its pieces of text came, all its bytes, and how many tokens it took."""

    times: list[float] = field(default_factory=list)
    bytes: bytearray = field(default_factory=bytearray)
    tokens: int = 0


def _heard(url: str, bodies: list[dict[str, Any]]) -> list[_Heard]:
    """Streams of completions, read by a client that only notes when something comes: it takes no time from the server."""
    host, _, port = url.removeprefix("http://").partition(":")
    waiting = selectors.DefaultSelector()
    answers = []
    for body in bodies:
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        data = json.dumps(asked).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        connection = socket.create_connection((host, int(port)), timeout=60)
        answers.append(_Heard())
        waiting.register(connection, selectors.EVENT_READ, (connection, answers[-1]))
        connection.sendall(head.encode() + data)
    while waiting.get_map():
        for key, _ in waiting.select():
            connection, answer = key.data
            piece = connection.recv(65536)
            answer.times += [time.perf_counter()] * len(_TEXT.findall(piece))
            answer.bytes += piece
            if not piece:
                waiting.unregister(connection)
                connection.close()
    for answer in answers:
        made = re.search(rb'"completion_tokens":\s?(\d+)', answer.bytes)
        if made is None:
            raise SystemExit(f"the stream has no end: {bytes(answer.bytes[-300:])!r}")
        answer.tokens = int(made[1])
    return answers
