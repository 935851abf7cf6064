"""One stream with the library alone: one_stream.py JOB. A prompt (JSON, token ids) a line in, tokens a second out."""

import json
import sys
import time

from cherenkov import Model
from cherenkov.chat.options import Settings
from cherenkov.chat.responder import Prompt


def main() -> None:
    job = json.loads(sys.argv[1])
    with Model.load(job["model"], context_tokens=512, sequences=4, threads=job["threads"]) as model:
        responder = model.responder
        for line in sys.stdin:
            prompt = Prompt(tuple(json.loads(line)), opened=False)
            options = {
                "max_tokens": job["tokens"],
                "temperature": 1.0,
                "seed": 0,
                "logit_bias": {job["bias"]: -100.0},
            }
            decoder, times = model.tokenizer.decoder(), []
            for step in responder.steps(prompt, Settings().updated(options)):
                decoder.feed(step.token)
                times.append(time.perf_counter())
            print((len(times) - 1) / (times[-1] - times[0]), flush=True)


main()
