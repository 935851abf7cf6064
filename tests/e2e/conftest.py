"""What tests of whole answers share, unless a file has its own."""

import pytest

from cherenkov import Model
from cherenkov.errors import BackendError


@pytest.fixture(scope="module")
def model(glow_store):
    """Glow on the CPU kernels, in a pool so small that experts are read all the time."""
    try:
        loaded = Model.load(
            glow_store, backend="native", context_tokens=256, pool=0.004, sequences=4
        )
    except BackendError as error:
        pytest.skip(str(error))
    with loaded:
        yield loaded
