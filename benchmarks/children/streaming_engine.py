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
    """Rates and counters of an answer; the first token, which is the prompt's, is not counted."""
    prompt = "".join(random.Random(seed).choices(string.ascii_letters, k=job["prompt"]))
    before, cpu, count = model.experts.timeline.steps, time.process_time(), job["decode"]
    model.generate(prompt, max_tokens=count + 1, raw=True, ignore_eos=True)
    cpu, run = time.process_time() - cpu, model.last_run
    assert run is not None
    assert run.output_tokens == count + 1
    points = {point.step: point for point in model.experts.timeline.points()}
    begun, over = points[before + 1], points[before + 1 + count]  # the prompt is one step
    gained = {name: getattr(over, name) - getattr(begun, name) for name in over._fields}
    read = sum(gained[f"{kind}_bytes"] for kind in ("demand", "prefill", "prediction"))
    missing = gained["misses"] * model.experts.pool.layout.stride_bytes
    return {
        "decode": count / run.decode_s,
        "first_s": run.prefill_s,
        "hit_rate": gained["hits"] / (gained["hits"] + gained["misses"]),
        "missing_bytes": missing / count,
        "read_bytes": read / count,
        "stall_s": gained["stall_s"] / count,
        "cpu_s": cpu / (count + 1),  # with the prompt's
    }


def main() -> None:
    job = json.loads(sys.argv[1])
    context = job["prompt"] + job["decode"] + 8
    options = {"threads": job["threads"], "pool": job["pool"], **job.get("options", {})}
    with Model.load(job["model"], context_tokens=context, **options) as model:
        result = {
            "cold": answer(model, 1, job),
            "warm": answer(model, 2, job),
            "share": model.experts.slots / (model.experts.layers * model.experts.experts),
            "slots": model.experts.slots,
            "engine": model.backend_name,
        }
    result["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(result))


main()
