"""The server under load, and against itself: what batching, the prefix cache and the wire are worth.

    python benchmarks/serve.py                                  # everything, minutes
    python benchmarks/serve.py --only turns load hang-ups --seconds 20
    python benchmarks/serve.py --only batch overhead prefix --rounds 5

- `turns`: an agent's conversation of ten turns on the demo model: what of each prompt was not read again, and the time to
  the first token, beside the same prompt on a server that keeps nothing.
- `load`: 64 clients for some minutes: errors, order, growth of threads, descriptors and memory.
- `hang-ups`: 200 clients that go away at random moments, then one that stays.
- `batch`: four streams at once on a random model, against one; also under a memory limit, where experts are read from disk;
  once with prompts of their own, and once with one prompt, whose experts the streams share.
- `overhead`: one stream through the server, against the library, with the same model in the same process.
- `prefix`: the first token after a prompt of 2,000 tokens that was read before, against one that was not.

Beside llama.cpp's `llama-server`, if `benchmarks/peers.py` has installed it. Writes
`benchmarks/results/<date>-<machine>-serve.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import wire
from http_client import Answer, Refusal, ask, get, stream
from limited import forget, limit, within
from machine import clean_environment, load_average
from peers import Peers, default_folder, gguf_of, model_files
from random_model import GEOMETRIES
from report import table
from results import measurement, new_run, save

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS = ("turns", "load", "hang-ups", "batch", "overhead", "prefix")
_ROOT = Path(__file__).resolve().parent.parent
_TOKENS = 48
_STREAMS = 4
_SHORT = 4  # rounds of short answers for one of the others
_CLIENTS = 64
_HANG_UPS = 200
_LIMIT_MB = 1000
_POOL_GB = 0.45
_LONG_TOKENS = 2000
_NO_END = {"0": -100}  # the random model ends where it happens to
QUESTIONS = (
    "What is the capital of France?",
    "Which planet is the largest?",
    "What does a compiler do?",
    "How many legs has a spider?",
    "What is a prime number?",
    "Who are you?",
    "What is 12 plus 30?",
    "What is the capital of Japan?",
    "Why is the sky blue?",
    "Thank you. What did I ask first?",
)
_RULES = "You are a careful assistant that answers in one sentence. " * 12


# --- servers


class Server:
    """A server that is ready, as a child process."""

    def __init__(self, command: list[str], ready: str, *, quiet: bool = True) -> None:
        self.process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env=clean_environment(PYTHONPATH=str(_ROOT)),
        )
        self._ready = ready
        self._quiet = quiet
        self.url = ""

    def __enter__(self) -> Self:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if not self._quiet:
                print(line, end="", file=sys.stderr)
            if found := re.search(self._ready, line):
                self.url = f"http://{found[1]}"
                break
        else:
            raise SystemExit(f"the server did not start: exit code {self.process.wait()}")
        # It says a line for every request: a full pipe would stop it.
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        asyncio.run(self._wait())
        return self

    def _read(self) -> None:
        assert self.process.stderr is not None
        for _ in self.process.stderr:
            pass

    async def _wait(self) -> None:
        for _ in range(600):
            with contextlib.suppress(Refusal, OSError):
                await get(self.url, "/health")
                return
            await asyncio.sleep(0.1)
        raise SystemExit("the server is not ready after a minute")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reading.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def figures(self) -> dict[str, int]:
        """Threads, open descriptors and resident memory."""
        proc = Path(f"/proc/{self.process.pid}")
        status = dict(
            line.split(":", 1) for line in (proc / "status").read_text("utf-8").splitlines()
        )
        return {
            "threads": int(status["Threads"]),
            "descriptors": len(list((proc / "fd").iterdir())),
            "resident_kb": int(status["VmRSS"].split()[0]),
        }


def ours(model: str, *options: str, group: Path | None = None) -> Server:
    command = [sys.executable, "-m", "cherenkov", "serve", model, "--port", "0", *options]
    return Server(
        command if group is None else within(group, command), r"listening at http://([\d.:]+)"
    )


def theirs(peers: Peers, gguf: Path) -> Server:
    port = 20000 + os.getpid() % 20000
    command = [str(peers.llama_build / "bin/llama-server"), "-m", str(gguf), "--port", str(port)]
    command += ["-t", "2", "-np", str(_STREAMS), "-c", str(_STREAMS * 512), "--no-webui"]
    return Server(command, rf"(127\.0\.0\.1:{port})")


# --- parts


def turns(_args: argparse.Namespace) -> dict[str, Any]:
    async def converse(url: str, prompts: list[Any] | None) -> list[Answer]:
        found, messages = [], [{"role": "system", "content": _RULES}]
        for i, question in enumerate(QUESTIONS):
            messages = prompts[i] if prompts else [*messages, {"role": "user", "content": question}]
            asked.append(messages)
            body = {"model": "demo", "messages": messages, "max_tokens": 40}
            found.append(await stream(url, "/v1/chat/completions", body))
            messages = [*messages, {"role": "assistant", "content": found[-1].text}]
        return found

    asked: list[Any] = []
    with ours("demo", "--ctx", "2048") as server:
        warm = asyncio.run(converse(server.url, None))
    with ours("demo", "--ctx", "2048", "--prefix-cache-mb", "0") as server:
        cold = asyncio.run(converse(server.url, list(asked)))
    rows, kept = [], []
    for i, (one, other) in enumerate(zip(warm, cold, strict=True)):
        assert one.text == other.text, "cached and fresh answers are the same"
        prompt = one.usage["prompt_tokens"]
        kept.append(
            {
                "prompt": prompt,
                "cached": one.cached,
                "first_s": one.first_s,
                "cold_s": other.first_s,
            }
        )
        rows.append(
            [
                str(i + 1),
                str(prompt),
                str(one.cached),
                f"{one.first_s * 1e3:.0f}",
                f"{other.first_s * 1e3:.0f}",
            ]
        )
    print(table(["turn", "prompt", "not read again", "first token, ms", "without cache, ms"], rows))
    return {"turns": kept}


def load(args: argparse.Namespace) -> dict[str, Any]:
    async def client(url: str, number: int, until: float, counts: dict[str, int]) -> None:
        question = QUESTIONS[number % len(QUESTIONS)]
        body = {
            "model": "demo",
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 24,
            "temperature": 0.8,
            "seed": number % len(QUESTIONS),
        }
        while time.monotonic() < until:
            answer = await stream(url, "/v1/chat/completions", body)
            wanted = texts.setdefault(number % len(QUESTIONS), answer.text)
            counts["answers"] += 1
            counts["wrong"] += answer.text != wanted
            counts["tokens"] += answer.usage["completion_tokens"]

    async def crowd(url: str, seconds: float) -> dict[str, int]:
        counts = {"answers": 0, "wrong": 0, "tokens": 0}
        until = time.monotonic() + seconds
        await asyncio.gather(*(client(url, i, until, counts) for i in range(_CLIENTS)))
        return counts

    texts: dict[int, str] = {}
    with ours("demo", "--ctx", "512", "--queue-depth", "128") as server:
        asyncio.run(crowd(server.url, max(5.0, args.seconds / 6)))
        before = server.figures()
        counts = asyncio.run(crowd(server.url, args.seconds))
        after = server.figures()
    growth = after["resident_kb"] / before["resident_kb"] - 1
    print(
        f"{_CLIENTS} clients, {args.seconds:.0f} s: {counts['answers']} answers, {counts['wrong']} wrong, "
        f"{counts['tokens'] / args.seconds:.0f} tokens/s; threads {before['threads']} → {after['threads']}, "
        f"descriptors {before['descriptors']} → {after['descriptors']}, memory {growth:+.1%}"
    )
    return {
        "clients": _CLIENTS,
        "seconds": args.seconds,
        **counts,
        "before": before,
        "after": after,
    }


def hang_ups(_args: argparse.Namespace) -> dict[str, Any]:
    async def leave(url: str, chance: random.Random) -> None:
        body = {
            "model": "demo",
            "messages": [
                {"role": "user", "content": chance.choice(QUESTIONS) * chance.randint(1, 9)}
            ],
            "max_tokens": 60,
        }
        await asyncio.sleep(chance.random() * 4)
        with contextlib.suppress(Refusal):
            await stream(url, "/v1/chat/completions", body, hang_up_after=chance.random())

    async def crowd(url: str) -> tuple[float, str]:
        chance = random.Random(1)
        await asyncio.gather(*(leave(url, chance) for _ in range(_HANG_UPS)))
        body = {"model": "demo", "messages": [{"role": "user", "content": QUESTIONS[0]}]}
        begun = time.perf_counter()
        answer = await ask(url, "/v1/chat/completions", {**body, "max_tokens": 8})
        took = time.perf_counter() - begun
        assert answer["choices"][0]["message"]["content"]
        return took, await get(url, "/metrics")

    with ours("demo", "--ctx", "512") as server:
        took, figures = asyncio.run(crowd(server.url))
    under_way = {
        name: float(value)
        for name, value in re.findall(
            r"^(cherenkov_\w*(?:active|queued)\w*)\s+([\d.]+)$", figures, re.MULTILINE
        )
    }
    print(f"{_HANG_UPS} hang-ups, then an answer in {took:.2f} s; under way after it: {under_way}")
    return {"hang_ups": _HANG_UPS, "then_s": took, "under_way": under_way}


def _prompts(count: int, length: int, seed: int) -> list[list[int]]:
    return np.random.default_rng(seed).integers(10, 8000, (count, length)).tolist()


def _streams(url: str, prompts: list[Any]) -> float:
    """Tokens a second of all streams together, while all of them are under way."""
    shared = {"max_tokens": _TOKENS, "ignore_eos": True, "temperature": 1.0}
    return wire.together(url, [{**shared, "prompt": p, "seed": i} for i, p in enumerate(prompts)])


def batch(args: argparse.Namespace) -> dict[str, Any]:
    files = model_files(args.peers, "m2", GEOMETRIES["m2"], engines=["llama.cpp"])
    options = [
        "--ctx",
        "512",
        "--max-batch",
        str(_STREAMS),
        "--prefix-cache-mb",
        "0",
        "--threads",
        "2",
    ]
    found: dict[str, Any] = {}
    with ours(str(files.store), *options) as server:
        found["resident"] = _rounds(args, server.url)
    llama = args.peers.llama_build / "bin/llama-server"
    if llama.exists():
        with theirs(args.peers, gguf_of(args.peers, files, "Q4_0")) as server:
            found["llama.cpp"] = _rounds(args, server.url)
    if args.limit:
        with limit(_LIMIT_MB) as group:
            forget(files.store)
            with ours(
                str(files.store), *options, "--pool-gb", str(_POOL_GB), group=group
            ) as server:
                found[f"{_LIMIT_MB} MB"] = _rounds(args, server.url)
    rows = [
        [
            where,
            *(
                f"{figures[k]['median']:.3g}"
                for k in ("one", "four", "ratio", "alike", "alike_ratio")
            ),
        ]
        for where, figures in found.items()
    ]
    head = ["", "one, tok/s", "four, tok/s", "ratio", "four of one prompt", "ratio"]
    print(table(head, rows))
    return found


def _rounds(args: argparse.Namespace, url: str) -> dict[str, Any]:
    samples: dict[str, list[float]] = {
        k: [] for k in ("one", "four", "ratio", "alike", "alike_ratio")
    }
    _streams(url, _prompts(1, 32, 99))
    for number in range(args.rounds):
        prompts = _prompts(_STREAMS, 32, number)
        one = _streams(url, prompts[:1])
        four = _streams(url, prompts)
        alike = _streams(url, prompts[:1] * _STREAMS)
        for name, value in (
            ("one", one),
            ("four", four),
            ("ratio", four / one),
            ("alike", alike),
            ("alike_ratio", alike / one),
        ):
            samples[name].append(value)
    return {name: measurement(values, "tok/s") for name, values in samples.items()}


def overhead(args: argparse.Namespace) -> dict[str, Any]:
    files = model_files(args.peers, "m2", GEOMETRIES["m2"], engines=["llama.cpp"])
    return wire.overhead(files.store, _SHORT * args.rounds)


def prefix(args: argparse.Namespace) -> dict[str, Any]:
    files = model_files(args.peers, "m2", GEOMETRIES["m2"], engines=["llama.cpp"])
    cold, warm, part = [], [], []

    async def first(url: str, prompt: list[int]) -> Answer:
        body = {"prompt": prompt, "max_tokens": 2, "logit_bias": _NO_END}
        return await stream(url, "/v1/completions", body)

    with ours(str(files.store), "--ctx", "4096", "--threads", "2") as server:
        for number in range(args.rounds):
            (prompt,) = _prompts(1, _LONG_TOKENS + 20, 1000 + number)
            fresh = asyncio.run(first(server.url, prompt[:_LONG_TOKENS]))
            again = asyncio.run(first(server.url, prompt))
            assert (fresh.cached, again.cached) == (0, _LONG_TOKENS)
            cold.append(fresh.first_s)
            warm.append(again.first_s)
            part.append(again.first_s / fresh.first_s)
    print(
        f"first token after {_LONG_TOKENS} tokens: {statistics.median(cold):.2f} s, and with 20 more behind them "
        f"{statistics.median(warm) * 1e3:.0f} ms ({statistics.median(part):.1%})"
    )
    return {
        "cold": measurement(cold, "s"),
        "warm": measurement(warm, "s"),
        "part": measurement(part, "part"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=180.0, help="of load")
    parser.add_argument("--peers-dir", type=Path, default=default_folder())
    parser.add_argument("--no-limit", dest="limit", action="store_false", help="no control groups")
    parser.add_argument("--output", default="")
    args = parser.parse_args()
    args.peers = Peers(args.peers_dir)
    run = new_run("serve", {"rounds": args.rounds, "seconds": args.seconds, "tokens": _TOKENS})
    run["load"] = measurement([load_average()], "processes")
    measures: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "turns": turns,
        "load": load,
        "hang-ups": hang_ups,
        "batch": batch,
        "overhead": overhead,
        "prefix": prefix,
    }
    for name in args.only:
        print(f"\n{name}", flush=True)
        run[f"serve_{name.replace('-', '_')}"] = measures[name](args)
    print(f"\n{save(run, args.output)}")


if __name__ == "__main__":
    main()
