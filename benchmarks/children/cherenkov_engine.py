"""One sample of this engine, in a process of its own. Prints one JSON line.

cherenkov_engine.py '{"model": …, "threads": [1, 2], "prompt": 32, "decode": 64, "prefill": 512, …}'
"""

import json
import random
import resource
import string
import sys
import time

from cherenkov import Model


def text_of(tokens: int, seed: int) -> str:
    """A prompt of exactly so many tokens, for the random models' tokenizer of single letters."""
    return "".join(random.Random(seed).choices(string.ascii_letters, k=tokens))


def answer(model: Model, prompt: str, tokens: int) -> tuple[float, float]:
    """Seconds to the first token, and seconds of the rest."""
    model.generate(prompt, max_tokens=tokens, raw=True, ignore_eos=True)
    run = model.last_run
    assert run is not None
    assert run.output_tokens == tokens
    return run.prefill_s, run.decode_s


def measure(model: Model, job: dict) -> dict:
    """Prefill and decode rates; the answers are given twice, so that every expert they need is resident."""
    out = {}
    short, long = text_of(job["prompt"], 1), text_of(job["prefill"], 2)
    if job["decode"]:
        answer(model, short, job["decode"] + 1)
        before = model.experts.stats.copy()
        _, decode_s = answer(model, short, job["decode"] + 1)
        out["decode"] = job["decode"] / decode_s
        out["misses"] = model.experts.stats.since(before).misses
    if job["prefill"]:
        answer(model, long, 1)
        prefill_s, _ = answer(model, long, 1)
        out["prefill"] = job["prefill"] / prefill_s
    return out


def main() -> None:
    job = json.loads(sys.argv[1])
    options = {k: job[k] for k in ("precision", "isa", "backend", "pool") if job.get(k)}
    result = {}
    for threads in job["threads"]:
        start = time.perf_counter()
        context = max(job["prompt"] + job["decode"], job["prefill"]) + 8
        with Model.load(job["model"], threads=threads, context_tokens=context, **options) as model:
            load_s = time.perf_counter() - start
            result[str(threads)] = measure(model, job)
            result["engine"] = model.backend_name
            result["load_s"] = load_s
    result["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(result))


main()
