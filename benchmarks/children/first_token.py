"""Load a model in a fresh process and answer. Prints "first" at the first piece of text, then one JSON line."""

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
        run = model.last_run
        assert run is not None
        decode = (run.output_tokens - 1) / run.decode_s
    print(json.dumps({"load_s": loaded - start, "answer_s": first - loaded, "decode": decode}))


main()
