"""How this engine's time grows with the context. Prints one JSON line: seconds and tokens per second by context.

cherenkov_contexts.py '{"model": …, "threads": 2, "contexts": [1024, …], "decode": 32, "options": {…}}'
"""

import json
import random
import string
import sys

from cherenkov import Model


def main() -> None:
    job = json.loads(sys.argv[1])
    longest = max(job["contexts"]) + job["decode"] + 1
    letters = random.Random(3).choices(string.ascii_letters, k=longest)
    result = {}
    with Model.load(
        job["model"], threads=job["threads"], context_tokens=longest, **job["options"]
    ) as model:
        for count in [512, *job["contexts"]]:  # the first brings the experts into memory
            prompt = "".join(letters[:count])
            model.generate(prompt, max_tokens=job["decode"] + 1, raw=True, ignore_eos=True)
            run = model.last_run
            assert run is not None
            result[str(count)] = {
                "prefill": count / run.prefill_s,
                "decode": job["decode"] / run.decode_s,
            }
    print(json.dumps({str(count): result[str(count)] for count in job["contexts"]}))


main()
