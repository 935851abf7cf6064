"""What checking expert records costs, by how often it is done and how many experts fit in memory.

    python benchmarks/record_checks.py STORE [--tokens 64] [--rounds 5]

Modes alternate within a round. Figures are CPU seconds of the process per decoded token, since reading and checking
happen on the thread that decodes, and medians over the rounds.
"""

import argparse
import statistics
import time

from cherenkov import Model, Sampling

MODES = ("never", "first", "always")


def decode_cost(model: Model, tokens: int) -> float:
    """CPU seconds per token of an answer."""
    stream = model.stream(
        "Tell me about the sea.", max_tokens=tokens, ignore_eos=True, sampling=Sampling(seed=1)
    )
    next(stream)
    begun = time.process_time()
    for _ in stream:
        pass
    return (time.process_time() - begun) / (tokens - 1)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    print(
        f"{'resident':>8}  {'misses':>7}  "
        + "  ".join(f"{m:>10}" for m in MODES)
        + "   always/never  first/never"
    )
    for share in (1.0, 0.5, 0.25, 0.1):
        models = {}
        for mode in MODES:
            probe = Model.load(asked.store, context_tokens=512)
            total = (
                probe.experts.layers
                * probe.experts.experts
                * probe.experts.pool.layout.stride_bytes
            )
            probe.close()
            models[mode] = Model.load(
                asked.store,
                context_tokens=512,
                pool=total * share / 1e9,
                check_records=mode,
                threads=1,
                speculate="off",
            )
            decode_cost(models[mode], asked.tokens)  # warm
        costs = {mode: [] for mode in MODES}
        for _ in range(asked.rounds):
            for mode, model in models.items():
                costs[mode].append(decode_cost(model, asked.tokens))
        middle = {mode: statistics.median(values) for mode, values in costs.items()}
        run = models["never"].last_run
        missed = run.experts.misses / (run.experts.hits + run.experts.misses)
        print(
            f"{share:8.0%}  {missed:7.1%}  "
            + "  ".join(f"{middle[m] * 1e3:7.3f} ms" for m in MODES)
            + f"   {middle['always'] / middle['never']:12.3f}  {middle['first'] / middle['never']:11.3f}",
            flush=True,
        )
        for model in models.values():
            model.close()


if __name__ == "__main__":
    main()
