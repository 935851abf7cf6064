"""What the memory plan believes of a sequence, against the arrays that are really made."""

from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest

from cherenkov.architectures import family_of
from cherenkov.architectures.qwen4_exp.config import parse
from cherenkov.architectures.qwen4_exp.trunk import Qwen4Exp
from cherenkov.backends.base import DeltaNet
from cherenkov.backends.native import Native, unavailable
from cherenkov.backends.reference import Reference
from tests.tiny import TINY


class Layer:
    """A layer whose mixer has sizes, and no weights."""

    def __init__(self, config, attention):
        names = ("key_heads", "value_heads", "key_dim", "value_dim", "taps")
        sizes = {name: getattr(config, name) for name in names}
        rest = [field for field in DeltaNet.__dataclass_fields__ if field not in sizes]
        self.mixer = None if attention else DeltaNet(**sizes, **dict.fromkeys(rest))


class Weights:
    """As much of the weights as an empty sequence asks for."""

    def __init__(self, config):
        self.embedding = None
        self.draft = SimpleNamespace(fuse=None, layer=None, head=None) if config.draft else None
        self.layers = [Layer(config, attention) for attention in config.attention]


def arrays(state):
    parts = chain(state.layers, state.ple.values(), [state.draft] if state.draft else [])
    for part in parts:
        fields = (getattr(part, name) for name in part.__dataclass_fields__)
        yield from (value for value in fields if isinstance(value, np.ndarray))


BACKENDS = [Reference] if unavailable() else [Reference, Native]


@pytest.mark.parametrize("context", [1, 63, 200])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", sorted(TINY))
def test_a_sequence_takes_what_the_plan_says(name, backend, context):
    raw = TINY[name].config
    config = parse(raw)
    ops = backend()
    network = Qwen4Exp(config, ops, Weights(config), None, {})
    made = sum(array.nbytes for array in arrays(network.new_state(context)))
    family = family_of(raw | {"model_type": "qwen4_exp"})
    planned = family.sizes(raw).state_bytes(
        context, ops.cache_itemsize, ops.delta_kept, ops.most_back
    )
    # A last block that is never full costs the plan, not the state; one block key is always there.
    slack = (sum(config.attention) + config.draft) * config.index_dim * 4
    assert abs(planned - made) <= slack
    ops.close()
