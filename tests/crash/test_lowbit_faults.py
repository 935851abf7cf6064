"""Making experts of fewer bits: killed anywhere, out of space, or raced, what counts is right and the next call goes on."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cherenkov.errors import CapacityError, DiskError
from cherenkov.packing.durable import FolderLock
from cherenkov.packing.lower import lower
from cherenkov.packing.pack import pack
from cherenkov.packing.verify import verify
from cherenkov.packing.workspace import Workspace
from tests.checkpoints import opened, tree
from tests.tiny import TINY, weights, write_hf

pytestmark = pytest.mark.crash
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest store there is."""
    config = TINY["plain"].config
    config["text_config"] |= {
        "num_hidden_layers": 1,
        "layer_types": ["linear_attention"],
        "num_experts": 8,
        "num_experts_per_tok": 1,
        "ple_layer_ids": [1],
        "mtp_num_hidden_layers": 0,
        "mtp": {},
    }
    folder = tmp_path_factory.mktemp("base")
    source = write_hf(folder / "tiny", config, weights(config["text_config"], 1))
    return pack(opened(source), folder / "store")


def test_fifty_kills_and_each_is_resumed(base: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("lowbit_points.py"))]
    done = subprocess.run(
        [*command, str(base), str(tmp_path), "1"],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    summary: dict[str, Any] = json.loads(done.stdout)
    assert summary["problems"] == []
    assert summary["points"] >= 50
    assert summary["resumed"] >= 10  # how much was on disk when it was killed is up to the threads
    assert summary["usable"] >= 5  # killed after a manifest was written


def test_a_file_that_may_not_grow_leaves_nothing_behind(base: Path, tmp_path: Path) -> None:
    store = pack_copy(base, tmp_path)
    before = tree(store)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(DiskError) as caught:
            lower(store, [3, 2])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    assert tree(store) == before
    lower(store, [3, 2])
    assert verify(store).ok


def test_only_one_process_at_a_time(base: Path, tmp_path: Path) -> None:
    store = pack_copy(base, tmp_path)
    lock = FolderLock(Workspace(store, {}).lock, store)
    with lock, pytest.raises(CapacityError, match="is preparing it"):
        lower(store, [3])
    lower(store, [3])


def pack_copy(base: Path, folder: Path) -> Path:
    store = folder / "store"
    store.mkdir()
    for name, data in tree(base).items():
        (store / name).write_bytes(data)
    return store
