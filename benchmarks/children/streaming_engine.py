"""One sample of this engine with experts that stream, in a process of its own. Prints one JSON line.

streaming_engine.py '{"model": …, "threads": 2, "prompt": 32, "decode": 64, "pool": 0.3, "options": {…}}'

Decoding is measured twice: from the first token on, with an empty pool and cold files, and once more with another prompt.
With `"ways": ["off", "on"]` and `"rounds": 3`, one model for each way of reading ahead answers in turn, and there is a list of
samples for each way instead.
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
    count, marks, experts = job["decode"], [], model.experts
    end = experts.end_step

    def marking() -> None:
        end()
        marks.append((experts.stats.copy(), time.process_time()))

    experts.end_step = marking
    model.generate(prompt, max_tokens=count + 1, raw=True, ignore_eos=True)
    experts.end_step, run = end, model.last_run
    assert run is not None
    assert run.output_tokens == len(marks) == count + 1  # the prompt is one step
    stats = marks[-1][0].since(marks[0][0])
    missing = stats.misses + stats.useful_predictions  # what had to come, whoever asked first
    return {
        "decode": count / run.decode_s,
        "first_s": run.prefill_s,
        "hit_rate": 1 - missing / (stats.hits + stats.misses),
        "missing_bytes": missing * experts.pool.layout.stride_bytes / count,
        "read_bytes": stats.read_bytes / count,
        "stall_s": stats.stall_s / count,
        "cpu_s": (marks[-1][1] - marks[0][1]) / count,
    }


def compare(job: dict) -> dict:
    """Samples of each way, after an answer that fills the pool. All ways answer the same."""
    context = job["prompt"] + job["decode"] + 8
    options = {"threads": job["threads"], "pool": job["pool"], "context_tokens": context}
    models = {way: Model.load(job["model"], lookahead=way, **options) for way in job["ways"]}
    found = {way: [] for way in models}
    for number in range(job["rounds"] + 1):
        turn = number % len(models)
        for way in job["ways"][turn:] + job["ways"][:turn]:
            sample = answer(models[way], number + 1, job)
            if number:
                found[way].append(sample)
    experts = models[job["ways"][0]].experts
    return {"ways": found, "share": experts.slots / (experts.layers * experts.experts)}


def main() -> None:
    job = json.loads(sys.argv[1])
    if "ways" in job:
        print(json.dumps(compare(job)))
        return
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
