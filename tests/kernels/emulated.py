"""Kernels on the CPU: the backend that metal and cuda are, with the emulator in the GPU's place."""

import getpass
import tempfile
from pathlib import Path

from cherenkov.backends.base import Options
from cherenkov.backends.fused import Fused
from cherenkov.backends.launches import EmulationLauncher
from cherenkov.backends.shader_builds import Emulation

__all__ = ["CACHE", "EMULATION", "Emulated"]

# Outside the source tree, and kept from one run to the next: compiling takes a second a kernel.
CACHE = Path(tempfile.gettempdir()) / f"cherenkov-kernels-{getpass.getuser()}"
EMULATION = Emulation(place=CACHE)


class Emulated(Fused):
    name = "emulated"

    def __init__(self, *, tiles=False):
        launcher = EmulationLauncher(EMULATION, tiles=tiles)
        super().__init__(launcher, Options(precision="float32"))
