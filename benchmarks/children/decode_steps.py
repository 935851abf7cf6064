"""Decode the demo model: decode_steps.py STEPS OPTIONS. Warm first, so that steps differ in nothing but their number."""

import json
import sys

from cherenkov import Model

WARM = 24


def main() -> None:
    steps, options = int(sys.argv[1]), json.loads(sys.argv[2])
    with Model.load("demo", threads=1, context_tokens=256, **options) as model:
        for count in (WARM, steps):
            model.generate("What is the capital of France?", max_tokens=count, ignore_eos=True)


main()
