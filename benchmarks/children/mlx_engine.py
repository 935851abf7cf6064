"""One sample of mlx-vlm, in its own interpreter. Prints one JSON line. Arguments as for cherenkov_engine.py.

MLX's CPU backend has no setting for threads: the result stands under "own".
"""

import json
import resource
import sys
import time

import mlx.core as mx
import numpy as np
from mlx_vlm import load


def main() -> None:
    job = json.loads(sys.argv[1])
    start = time.perf_counter()
    offload = {k: job[k] for k in ("expert_cache_gb",) if k in job}
    model, _ = load(job["model"], **offload)
    language = model.language_model
    result: dict = {"load_s": time.perf_counter() - start}
    ids = np.random.default_rng(1).integers(5, 261, max(job["prompt"], job["prefill"]))

    def step(tokens: mx.array, cache: list) -> mx.array:
        out = language(tokens, cache=cache)
        best = mx.argmax(getattr(out, "logits", out)[:, -1], -1)
        mx.eval(best)
        return best

    def prefill(count: int) -> tuple[list, mx.array, float]:
        cache = language.make_cache()
        begin = time.perf_counter()
        best = step(mx.array(ids[None, :count]), cache)
        return cache, best, time.perf_counter() - begin

    def decode(count: int) -> float:
        cache, best, _ = prefill(job["prompt"])
        begin = time.perf_counter()
        for _ in range(count):
            best = step(best[:, None], cache)
        return time.perf_counter() - begin

    out = result["own"] = {}
    decode(2)
    if job["decode"]:
        out["decode"] = job["decode"] / decode(job["decode"])
    if job["prefill"]:
        out["prefill"] = job["prefill"] / prefill(job["prefill"])[2]
    result["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(result))


main()
