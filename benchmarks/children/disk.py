"""How fast this disk gives records in random order, read as the engine reads them. Prints one JSON line.

disk.py '{"file": …, "stride": 442368, "threads": 3, "bytes": 1000000000}'
"""

import json
import random
import sys
import time
from pathlib import Path

import numpy as np

from cherenkov.backends.pages import huge_pages
from cherenkov.experts.reader import RecordReader

_SLOTS = 32


def main() -> None:
    job = json.loads(sys.argv[1])
    path, stride = Path(job["file"]), job["stride"]
    records = list(range(path.stat().st_size // stride))
    random.Random(1).shuffle(records)
    records = records[: max(_SLOTS, job["bytes"] // stride)]
    memory = huge_pages(_SLOTS * stride).reshape(_SLOTS, stride)
    memory[:] = np.uint8(1)  # pages that exist
    reader = RecordReader(path, stride, len(records), None, threads=job["threads"])
    reads = reader.start(memory)
    cpu, begun = time.process_time(), time.perf_counter()
    waiting, left = records[_SLOTS:], len(records)
    reads.submit(records[:_SLOTS], list(range(_SLOTS)), True)
    while left:
        for slot, status, _ in reads.landed(True):
            assert status == 0
            left -= 1
            if waiting:
                reads.submit([waiting.pop()], [slot], True)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    size = len(records) * stride
    reads.close()
    reader.close()
    print(json.dumps({"rate": size / seconds / 1e9, "cpu_s_per_gb": cpu / (size / 1e9)}))


main()
