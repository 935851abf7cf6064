"""One sample of this engine with experts that stream, in a process of its own. Prints one JSON line.

streaming_engine.py '{"model": …, "threads": 2, "prompt": 32, "decode": 64, "pool": 0.3, "options": {…}}'

Decoding is measured twice: from the first token on, with an empty pool and cold files, and once more with another prompt.
"""

import json
import random
import resource
import string
import sys
import time

from cherenkov import Model


def answer(model: Model, seed: int, job: dict) -> dict:
    """Rates and counters of an answer."""
    prompt = "".join(random.Random(seed).choices(string.ascii_letters, k=job["prompt"]))
    before, cpu = model.experts.stats.copy(), time.process_time()
    model.generate(prompt, max_tokens=job["decode"] + 1, raw=True, ignore_eos=True)
    stats, run = model.experts.stats.since(before), model.last_run
    assert run is not None
    assert run.output_tokens == job["decode"] + 1
    used = stats.hits + stats.misses
    return {
        "decode": job["decode"] / run.decode_s,
        "first_s": run.prefill_s,
        "hit_rate": stats.hits / used,
        "missing_bytes": stats.misses
        * model.experts.pool.layout.stride_bytes
        / (job["decode"] + 1),
        "read_bytes": stats.read_bytes / (job["decode"] + 1),
        "stall_s": stats.stall_s / (job["decode"] + 1),
        "cpu_s": (time.process_time() - cpu) / (job["decode"] + 1),
    }


def main() -> None:
    job = json.loads(sys.argv[1])
    context = job["prompt"] + job["decode"] + 8
    options = {"threads": job["threads"], "pool": job["pool"], **job.get("options", {})}
    with Model.load(job["model"], context_tokens=context, **options) as model:
        result = {
            "cold": answer(model, 1, job),
            "warm": answer(model, 2, job),
            "slots": model.experts.slots,
            "engine": model.backend_name,
        }
    result["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(result))


main()
