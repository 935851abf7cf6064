"""What every test may use: Glow's store, made once, and the BF16 form where it is at hand."""

import os
import signal
from pathlib import Path

# Small products do not gain from OpenBLAS's threads, and on busy cores they lose tenfold. Before NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import pytest

# Nothing here depends on time, and busy machines take their time.
hypothesis.settings.register_profile(
    "patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("patient")

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def demo_folder():
    """The checkpoint that ships with the package."""
    import importlib.resources

    with importlib.resources.as_file(importlib.resources.files("cherenkov") / "demo") as folder:
        yield folder


@pytest.fixture(scope="session")
def glow_bf16():
    """Glow in Hugging Face layout, BF16."""
    folder = SHARED / "demo-model" / "glow-bf16"
    if not folder.is_dir():
        pytest.skip(f"no {folder}: the BF16 form of the demo model is not shipped")
    return folder


@pytest.fixture(scope="session")
def glow_store(tmp_path_factory):
    """Glow's packed store."""
    from cherenkov import prepare

    return prepare("demo", tmp_path_factory.mktemp("glow") / "store")


@pytest.fixture(scope="session", autouse=True)
def _interruptible():
    """What runs in the background of a shell ignores Ctrl-C, which some tests send to themselves."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory):
    """Keep settings and stores of whoever runs the tests out of the tests, and the tests out of theirs."""
    base = tmp_path_factory.mktemp("home")
    patch = pytest.MonkeyPatch()
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        patch.setenv(name, str(base / name.lower()))
    yield
    patch.undo()
