"""One sample of transformers, in its own interpreter. Prints one JSON line. Arguments as for cherenkov_engine.py."""

import json
import resource
import sys
import time

import torch
from transformers import Qwen4ExpForConditionalGeneration


def main() -> None:
    job = json.loads(sys.argv[1])
    start = time.perf_counter()
    dtype = getattr(torch, job["dtype"])
    model = Qwen4ExpForConditionalGeneration.from_pretrained(job["model"], dtype=dtype).eval()
    result: dict = {"load_s": time.perf_counter() - start}
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 261, (1, max(job["prompt"], job["prefill"])), generator=generator)

    def answer(prompt: int, tokens: int) -> float:
        begin = time.perf_counter()
        given = ids[:, :prompt]
        model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return time.perf_counter() - begin

    with torch.inference_mode():
        for threads in job["threads"]:
            torch.set_num_threads(threads)
            out = result[str(threads)] = {}
            answer(job["prompt"], 4)
            if job["decode"]:
                first = answer(job["prompt"], 1)
                whole = answer(job["prompt"], job["decode"] + 1)
                out["decode"] = job["decode"] / (whole - first)
            if job["prefill"]:
                out["prefill"] = job["prefill"] / answer(job["prefill"], 1)
    result["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(result))


main()
