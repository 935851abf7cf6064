"""`auto` tries a GPU on a known answer before it takes it, and says why it took another backend."""

import dataclasses
import errno
import json
import re

import pytest

pytest.importorskip("mlx.core")

import cherenkov.backends as registry
from cherenkov import Model
from cherenkov.backends import create, doubt_of, kernel_trial, mlx_probe
from cherenkov.backends.kernel_trial import misfit
from cherenkov.backends.launches import EmulationLauncher
from cherenkov.errors import DiskError
from cherenkov_cli.main import run
from tests.kernels.emulated import EMULATION, Emulated


class Faulty:
    """A GPU that gets one number of one kernel wrong, or does not compile it."""

    def __init__(self, name, *, tiles=False, error=""):
        self.name, self.tiles, self.error = name, tiles, error
        self.good, self.launches = EmulationLauncher(EMULATION, tiles=tiles), []

    def __call__(self, launch):
        self.launches.append(launch.kernel.name)
        made = self.good(launch)
        if launch.kernel.name == self.name:
            if self.error:
                raise RuntimeError(self.error)
            made[-1] = made[-1].at[..., 0].add(1)
        return made


@pytest.mark.parametrize("tiles", [False, True])
def test_a_right_one(tiles):
    assert not misfit(Faulty("none", tiles=tiles))


@pytest.mark.parametrize(
    ("kernel", "tiles", "numbers"),
    [("affine_gemv", False, 256), ("tile_gemv", True, 256), ("argmax", False, 1)],
)
def test_a_wrong_one(kernel, tiles, numbers):
    said = misfit(Faulty(kernel, tiles=tiles))
    assert said == f"kernel {kernel} gives 1 wrong of {numbers} numbers"


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """Puts a GPU in front of all other backends; the function that does takes its launcher."""

    class Pretended(Emulated):
        name = "metal"
        launcher: Faulty

        def __init__(self, _options=None):
            super().__init__()
            self._launch = self.launcher

    def put(launcher):
        Pretended.launcher = launcher
        return launcher

    probe, make = mlx_probe.probe, registry._make
    here = mlx_probe.Probe(True, "pretended")
    monkeypatch.setattr(mlx_probe, "probe", lambda n: here if n == "metal" else probe(n))
    monkeypatch.setattr(
        registry, "_make", lambda n, o: Pretended(o) if n == "metal" else make(n, o)
    )
    monkeypatch.setattr(registry, "_DOUBTS", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return put


def test_a_right_one_is_taken_after_one_trial(gpu):
    launcher = gpu(Faulty("none"))
    notes = []
    assert [create(on_event=notes.append).name for _ in range(3)] == ["metal"] * 3
    assert launcher.launches == TRIAL
    assert notes == []


ERROR = "affine_gemv.metal:7:3: error: no matching function"
FAULTS = {
    "wrong": (Faulty("argmax"), "kernel argmax gives 1 wrong of 1 numbers"),
    "refused": (
        Faulty("affine_gemv", error=f"unable to build\n{ERROR}\nmore"),
        f"backend metal: trial: {ERROR}; backend mlx does without our kernels",
    ),
}


@pytest.mark.parametrize(("launcher", "said"), FAULTS.values(), ids=FAULTS)
def test_the_next_is_taken(gpu, glow_store, launcher, said):
    gpu(launcher)
    notes = []
    with Model.load(glow_store, on_event=notes.append) as model:
        assert not model.backend_name.startswith("metal")
    (note,) = notes
    assert note.level == "warning"
    assert note.message == f"backend metal is not taken: {said}"


TRIAL = ["affine_gemv", "argmax", "argmax"]


def launched_next_time(launcher):
    """What another process runs before it takes a backend."""
    registry._DOUBTS.clear()
    launcher.launches.clear()
    create()
    return list(launcher.launches)


def test_what_has_passed_is_not_tried_again(gpu, monkeypatch):
    launcher = gpu(Faulty("none"))
    assert launched_next_time(launcher) == TRIAL
    assert launched_next_time(launcher) == []
    other = dict(kernel_trial.KERNELS)
    other["route"] = dataclasses.replace(other["route"], body=other["route"].body + " ")
    with monkeypatch.context() as patch:
        patch.setattr(kernel_trial, "KERNELS", other)
        assert launched_next_time(launcher) == TRIAL
    with monkeypatch.context() as patch:
        patch.setattr(kernel_trial.metadata, "version", lambda _: "0.99")
        assert launched_next_time(launcher) == TRIAL
    assert launched_next_time(launcher) == []


def test_what_has_failed_is_tried_again(gpu):
    launcher = gpu(Faulty("argmax"))
    assert launched_next_time(launcher) == launched_next_time(launcher) == TRIAL


@pytest.mark.parametrize("obstacle", ["cache", "cache/cherenkov/trials"])
def test_nowhere_to_note_it(gpu, tmp_path, obstacle):
    launcher = gpu(Faulty("none"))
    (tmp_path / obstacle).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / obstacle).write_text("a file")
    assert launched_next_time(launcher) == launched_next_time(launcher) == TRIAL


def test_a_full_disk(gpu, monkeypatch):
    def full(path, _data):
        raise DiskError(path, "write", errno.ENOSPC)

    launcher = gpu(Faulty("none"))
    monkeypatch.setattr(kernel_trial, "write_file", full)
    assert launched_next_time(launcher) == launched_next_time(launcher) == TRIAL


def test_whoever_asks_by_name_gets_it_untried(gpu):
    launcher = gpu(Faulty("argmax"))
    notes = []
    made = create("metal", on_event=notes.append)
    assert made.name == "metal"
    assert launcher.launches == notes == []
    assert doubt_of(made)


def test_no_other_backend_is_in_doubt():
    assert not doubt_of(create("reference"))


def test_doctor_shows_it(gpu, capsys):
    gpu(Faulty("argmax"))
    assert run(["doctor"]) == 0
    out = capsys.readouterr().out
    assert re.search(
        r"^  metal +in doubt +kernel argmax gives 1 wrong of 1 numbers", out, re.MULTILINE
    )
    assert "taken: metal" not in out
    assert run(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (entry,) = (b for b in found["backends"] if b["name"] == "metal")
    assert entry["usable"]
    assert entry["doubt"] == "kernel argmax gives 1 wrong of 1 numbers"
