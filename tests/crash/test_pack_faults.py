"""Preparing is all or nothing: killed, out of space, refused by the system, or raced by another process."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cherenkov.checkpoint import affine
from cherenkov.errors import Cancelled, CapacityError, CherenkovError, DiskError
from cherenkov.events import Progress
from cherenkov.packing import durable
from cherenkov.packing.pack import pack
from cherenkov.packing.verify import verify
from tests.checkpoints import opened, tree
from tests.tiny import TINY, weights, write_hf

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.crash
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest checkpoint that has every kind of part."""
    config = TINY["plain"].config
    config["text_config"] |= {
        "num_hidden_layers": 1,
        "layer_types": ["linear_attention"],
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "ple_layer_ids": [1],
        "mtp_num_hidden_layers": 0,
        "mtp": {},
    }
    folder = tmp_path_factory.mktemp("source") / "tiny"
    return write_hf(folder, config, weights(config["text_config"], 1))


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: what is tested is the order of calls, not the disk."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def run_faults(source: Path, folder: Path, fault: str, calls: str, step: int = 1) -> dict[str, Any]:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: system calls cannot be made to fail")
    command = [sys.executable, str(Path(__file__).with_name("fault_points.py"))]
    done = subprocess.run(
        [*command, str(source), str(folder), fault, calls, str(step)],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    summary: dict[str, Any] = json.loads(done.stdout)
    if summary["problems"][:1] == [f"{calls} 1: broken child"]:
        pytest.skip("strace may not attach to processes here")
    return summary


MAIN = "write,fsync,rename,ftruncate,unlink,rmdir,mkdir"
"""What the calling thread does; the converting threads only call pwrite64."""


@pytest.mark.parametrize(("calls", "least"), [(MAIN, 40), ("pwrite64", 40)])
def test_killed_at_every_system_call(calls: str, least: int, source: Path, scratch: Path) -> None:
    summary = run_faults(source, scratch, "signal=SIGKILL", calls)
    assert summary["problems"] == []
    assert summary["points"] >= least
    assert summary["absent"] >= least - 10


@pytest.mark.parametrize(
    ("calls", "step", "least"),
    [("write,fsync,rename,ftruncate,mkdir", 1, 30), ("pwrite64", 4, 10)],
)
def test_every_system_call_may_fail(
    calls: str, step: int, least: int, source: Path, scratch: Path
) -> None:
    summary = run_faults(source, scratch, "error=EIO", calls, step)
    assert summary["problems"] == []
    assert summary["points"] >= least


# --- no space


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system needs root to mount it")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_space_is_checked_first(source: Path, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(900 << 10))
    with pytest.raises(DiskError, match=r"no space: .* to write \+ .* reserve > .* free") as caught:
        pack(opened(source), small_disk / "store")
    assert caught.value.errno == errno.ENOSPC
    assert [p.name for p in small_disk.iterdir()] == ["filler"]


def test_space_that_runs_out_meanwhile(source: Path, small_disk: Path) -> None:
    def fill(values: Any, bits: int, group: int) -> Any:
        with (small_disk / "filler").open("ab", buffering=0) as file:
            while shutil.disk_usage(small_disk).free:
                file.write(bytes(4096))
        return affine.quantise(values, bits, group)

    with pytest.raises(DiskError) as caught:
        pack(opened(source), small_disk / "store", quantise=fill, threads=1)
    assert caught.value.errno == errno.ENOSPC
    assert "\n" not in str(caught.value)
    assert [p.name for p in small_disk.iterdir()] == ["filler"]


def test_files_that_may_not_grow(source: Path, tmp_path: Path) -> None:
    """A limit on the length of files, such as old file systems and quotas have."""
    checkpoint = opened(source)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        with pytest.raises(DiskError) as caught:
            pack(checkpoint, tmp_path / "deep" / "store")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG
    assert not list(tmp_path.iterdir())


def test_what_was_done_is_kept_when_the_next_attempt_lacks_space(
    source: Path, small_disk: Path
) -> None:
    def stop(event: object) -> None:
        if isinstance(event, Progress):
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        pack(opened(source), small_disk / "store", on_event=stop, at_risk_bytes=0)
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free - 4096))
    with pytest.raises(DiskError, match="no space"):
        pack(opened(source), small_disk / "store")
    (small_disk / "filler").unlink()
    assert verify(pack(opened(source), small_disk / "store")).ok


def test_a_folder_that_cannot_be_written(source: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    if os.geteuid() == 0:
        mount = ["mount", "-t", "tmpfs", "-o", "ro", "none", str(locked)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("root may write everywhere, and nothing can be mounted here")
    else:
        locked.chmod(0o555)
    try:
        for target in (locked / "store", locked / "deep" / "store"):
            with pytest.raises(DiskError) as caught:
                pack(opened(source), target)
            assert caught.value.errno in {errno.EROFS, errno.EACCES}
            assert not list(locked.iterdir())
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", str(locked)], check=True)


def test_a_parent_that_is_a_file(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError):
        pack(opened(source), tmp_path / "file" / "store")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


# --- two processes

HOLDER = """
import json, sys, time
from pathlib import Path
from cherenkov.architectures import family_of
from cherenkov.checkpoint.source import open_checkpoint
from cherenkov.events import Progress
from cherenkov.packing.pack import pack
source, target = Path(sys.argv[1]), Path(sys.argv[2])
def stay(event):
    if isinstance(event, Progress):
        print("holding", flush=True)
        time.sleep(600)
config = json.loads((source / "config.json").read_text())
checkpoint = open_checkpoint(source, family_of(config).inventory(config), config)
pack(checkpoint, target, on_event=stay, at_risk_bytes=0)
"""


@pytest.fixture
def holder(source: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process in the middle of preparing `tmp_path / "store"`."""
    command = [sys.executable, "-c", HOLDER, str(source), str(tmp_path / "store")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        yield process
        process.kill()


def test_the_second_process_says_who_is_at_work(
    source: Path, tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(CapacityError, match=f"process {holder.pid} is preparing it"):
        pack(opened(source), tmp_path / "store")
    assert (tmp_path / ".store.partial").exists()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert verify(pack(opened(source), tmp_path / "store")).ok
    assert [p.name for p in tmp_path.iterdir()] == ["store"]


def test_the_second_process_may_wait(
    source: Path, tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    timer = threading.Timer(0.5, holder.kill)
    timer.start()
    path = pack(opened(source), tmp_path / "store", wait_for_other=True)
    timer.join()
    assert verify(path).ok


def test_many_threads_prepare_the_same(source: Path, tmp_path: Path) -> None:
    """All but one wait, and find the work done."""
    expected = tree(pack(opened(source), tmp_path / "expected"))
    failures: list[CherenkovError] = []

    def work() -> None:
        try:
            pack(opened(source), tmp_path / "store", wait_for_other=True, threads=1)
        except CherenkovError as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert tree(tmp_path / "store") == expected
    assert sorted(p.name for p in tmp_path.iterdir()) == ["expected", "store"]


def test_written_files_are_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    durable.write_file(tmp_path / "a", b"one")
    durable.write_file(tmp_path / "a", b"two")
    assert tree(tmp_path) == {"a": b"two"}
    with pytest.raises(DiskError):
        durable.write_file(tmp_path / "missing" / "a", b"three")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    (tmp_path / "other").mkdir()
    with pytest.raises(DiskError):
        durable.publish_folder(tmp_path / "other", tmp_path / "full")
    with pytest.raises(DiskError):
        durable.free_bytes(tmp_path / "missing")
