"""Load a model in a fresh process and answer twice. Prints "first" at the first piece of text, then one JSON line.

The first answer finds no expert in memory; the second finds those that the first needed, as every later one does.
"""

import json
import sys
import time

from cherenkov import Model


def main() -> None:
    job = json.loads(sys.argv[1])
    start = time.perf_counter()
    with Model.load(job["model"], threads=job["threads"], **job["options"]) as model:
        loaded = time.perf_counter()
        pieces = model.stream(
            "What is the capital of France?", max_tokens=job["tokens"], ignore_eos=True
        )
        next(pieces)
        print("first", flush=True)
        first = time.perf_counter()
        for _ in pieces:
            pass
        rates = {"cold": _rate(model)}
        model.generate("What is the capital of Italy?", max_tokens=job["tokens"], ignore_eos=True)
        rates["decode"] = _rate(model)
    print(json.dumps({"load_s": loaded - start, "answer_s": first - loaded} | rates))


def _rate(model: Model) -> float:
    """Tokens a second of the last answer, from its first token on."""
    run = model.last_run
    assert run is not None
    return (run.output_tokens - 1) / run.decode_s


main()
