"""Memory, planned before anything is loaded: what a model takes, what there is, and what to do if it is too much."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cherenkov.architectures import family_of
from cherenkov.errors import CapacityError, ConfigError
from cherenkov.experts.rows import memory_bytes
from cherenkov.trail import MOST_BEHIND
from cherenkov.units import GB, MIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cherenkov.architectures import Sizes
    from cherenkov.backends.base import Backend
    from cherenkov.packing.manifest import Manifest

__all__ = [
    "DEFAULT_CONTEXT",
    "Demand",
    "Memory",
    "Plan",
    "available_memory",
    "demand_of",
    "gigabytes",
    "make_plan",
    "memory_of",
    "smallest_plan",
    "within",
]

DEFAULT_CONTEXT = 8192
"""Tokens of context when nobody asks for another number, within what the model was made for."""
PREFILL_ROWS = 512
"""Rows of a prompt that go through the model at once when every expert is in memory: more would not be faster."""
_WIDER_ROWS = (2048, 1536, 1024)
"""When experts are read from disk, a prompt in fewer chunks reads each of them less often."""
_WIDER_SHARE = 8
"""Those rows may take so much of the memory that is left: one part in eight."""
_RESERVE_BYTES = {"adaptive": 512 * MIB, "max": 128 * MIB}
"""Left to the interpreter and to the rest of the machine when the pool takes what remains: so much, or a share of what
there is where that is less."""
_RESERVE_SHARE = {"adaptive": 4, "max": 16}
_SAMPLER_BYTES = 24
"""For each entry of the vocabulary: logits, probabilities and their order."""
_TOKEN_BYTES = 80
"""For each token: its id, in a few places, its text, and what events and messages hold of that."""
_WORKING_BYTES = 96 * MIB
"""The interpreter, libraries and tokenizer of an idle process."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the machine or of the control group we live in, whichever is less."""

    total_bytes: int
    available_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Demand:
    """What a store asks for; and for how many sequences at once, and how much of what was read before is to be kept."""

    sizes: Sizes
    dense_bytes: int
    ngram_bytes: int
    stride_bytes: int
    records: int
    cache_itemsize: int = 4
    delta_kept: int = 0
    most_back: int = 0
    matrices_back: int = 0
    sequences: int = 1
    prefix_bytes: int = 0

    def state_bytes(self, context_tokens: int) -> int:
        """What a model keeps of one sequence of so many tokens."""
        return self.sizes.state_bytes(
            context_tokens,
            self.cache_itemsize,
            self.delta_kept,
            self.most_back,
            self.matrices_back,
        )

    def sequence_bytes(self, context_tokens: int) -> int:
        """Memory of one answer under way, its prompt included: state, sampler, tokens and text."""
        beside = _SAMPLER_BYTES * self.sizes.vocab + _TOKEN_BYTES * context_tokens
        return self.state_bytes(context_tokens) + beside


@dataclass(frozen=True, slots=True)
class Plan:
    """How memory will be used. `total_bytes` is the sum of the parts, and what the process may grow to."""

    dense_bytes: int
    ngram_bytes: int
    state_bytes: int
    scratch_bytes: int
    pool_bytes: int
    working_bytes: int
    slots: int
    context_tokens: int
    chunk_rows: int
    available_bytes: int
    sequences: int = 1
    prefix_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Everything."""
        return (
            self.dense_bytes
            + self.ngram_bytes
            + self.state_bytes
            + self.prefix_bytes
            + self.scratch_bytes
            + self.pool_bytes
            + self.working_bytes
        )

    @property
    def _states(self) -> str:
        each = f"state of {self.context_tokens} tokens"
        return each if self.sequences == 1 else f"{self.sequences} times {each}"

    def sum(self) -> str:
        """The sum, for people."""
        parts = (
            ("dense", self.dense_bytes),
            ("n-grams", self.ngram_bytes),
            (self._states, self.state_bytes),
            ("prefix cache", self.prefix_bytes),
            ("scratch", self.scratch_bytes),
            (f"pool of {self.slots} experts", self.pool_bytes),
            ("program", self.working_bytes),
        )
        terms = " + ".join(f"{name} {format_bytes(size)}" for name, size in parts if size)
        return f"{terms} = {format_bytes(self.total_bytes)}"


def demand_of(
    config: Mapping[str, Any], manifest: Manifest, backend: Backend[Any, Any] | None = None
) -> Demand:
    """What a store with this configuration and manifest asks of memory, on a backend or on one that keeps it as it is."""
    # Experts of fewer bits go with the dense weights of the store that they were made from.
    stored, itemsize, kept, back = max(4, manifest.experts.layout.bits), 4, 0, 0
    widening = 1.0
    if backend is not None:
        itemsize, kept, back = backend.cache_itemsize, backend.delta_kept, backend.most_back
        widening = (backend.matrix_bits or stored) / stored
    return Demand(
        sizes=family_of(config).sizes(config),
        dense_bytes=int(manifest.dense_bytes * max(1.0, widening)),
        ngram_bytes=sum(memory_bytes(section.layout) for section in manifest.ngrams),
        stride_bytes=manifest.experts.layout.stride_bytes,
        records=manifest.experts.records,
        cache_itemsize=itemsize,
        delta_kept=kept,
        most_back=back,
        matrices_back=0 if backend is None else backend.matrices_back,
    )


def smallest_plan(demand: Demand) -> Plan:
    """The least memory that a model can run in: one token of context, and the experts of one token."""
    return _assemble(demand, Memory(0, 0, "nowhere"), 1, _smallest(demand))


def make_plan(
    demand: Demand,
    memory: Memory,
    *,
    context_tokens: int | None = None,
    pool: str | float = "adaptive",
    sequences: int = 1,
    prefix_bytes: int = 0,
) -> Plan:
    """Decide how much each part gets.

    Args:
        demand: what the model needs.
        memory: what there is.
        context_tokens: longest sequence, or None for the default.
        pool: `"adaptive"` (what is left, with a margin), `"max"` (with less of one), or a size in GB.
        sequences: answers that may be under way at once.
        prefix_bytes: what was read before and is to be kept.

    Raises:
        ConfigError: if an argument makes no sense, whatever the machine.
        CapacityError: if the sum exceeds the memory there is; names the context or the pool that would fit.
    """
    demand = replace(demand, sequences=sequences, prefix_bytes=prefix_bytes)
    context = _context(demand.sizes, context_tokens)
    slots = _fixed_slots(demand, pool)
    floor = _assemble(demand, memory, context, _smallest(demand) if slots is None else slots)
    if floor.total_bytes > memory.available_bytes:
        raise _refusal(demand, memory, floor, slots)
    if slots is not None:
        return _widened(demand, memory, floor, memory.available_bytes - floor.total_bytes)
    assert isinstance(pool, str)
    reserve = min(_RESERVE_BYTES[pool], memory.available_bytes // _RESERVE_SHARE[pool])
    room = memory.available_bytes - (floor.total_bytes - floor.pool_bytes) - reserve
    slots = min(demand.records, max(_smallest(demand), room // demand.stride_bytes))
    plan = _assemble(demand, memory, context, slots)
    wide = _widened(demand, memory, plan, plan.pool_bytes)
    lost = -(-(wide.scratch_bytes - plan.scratch_bytes) // demand.stride_bytes)  # slots
    if slots - lost < _smallest(demand):
        return plan
    return _assemble(demand, memory, context, slots - lost, wide.chunk_rows)


def _widened(demand: Demand, memory: Memory, plan: Plan, room_bytes: int) -> Plan:
    """The plan with the largest chunks that an eighth of `room_bytes` pays for, if experts stream."""
    if plan.slots < demand.records:
        for rows in _WIDER_ROWS:
            wide = _assemble(demand, memory, plan.context_tokens, plan.slots, rows)
            if (wide.scratch_bytes - plan.scratch_bytes) * _WIDER_SHARE <= room_bytes:
                return wide
    return plan


def _smallest(demand: Demand) -> int:
    """Fewest slots that are allowed: the experts of one token in one layer."""
    return min(demand.sizes.top_k, demand.records)


def _context(sizes: Sizes, asked: int | None) -> int:
    if asked is None:
        return min(DEFAULT_CONTEXT, sizes.max_context)
    if not 1 <= asked <= sizes.max_context:
        raise ConfigError(
            "context_tokens",
            asked,
            f"must be from 1 to {sizes.max_context}, which the model was made for",
        )
    return asked


def _fixed_slots(demand: Demand, pool: str | float) -> int | None:
    if isinstance(pool, str):
        if pool not in _RESERVE_BYTES:
            raise ConfigError("pool", pool, 'must be "adaptive", "max" or a size in GB')
        return None
    if not 0 < pool < 1e9:
        raise ConfigError("pool", pool, "must be a positive size in GB")
    slots = round(pool * GB) // demand.stride_bytes
    if slots < _smallest(demand):
        least = gigabytes(_smallest(demand) * demand.stride_bytes)
        raise ConfigError("pool", pool, f"the smallest pool for this model is {least} GB")
    return min(slots, demand.records)


def _assemble(
    demand: Demand, memory: Memory, context: int, slots: int, rows: int = PREFILL_ROWS
) -> Plan:
    rows, several = max(min(rows, context), 1), demand.sequences
    state_bytes = demand.state_bytes(context)
    return Plan(
        dense_bytes=demand.dense_bytes,
        ngram_bytes=demand.ngram_bytes,
        state_bytes=state_bytes if several == 1 else several * demand.sequence_bytes(context),
        scratch_bytes=rows * demand.sizes.row_scratch_bytes
        + demand.sizes.vocab * 16
        + several * MOST_BEHIND * demand.sizes.residual_bytes,
        pool_bytes=slots * demand.stride_bytes,
        working_bytes=_WORKING_BYTES,
        slots=slots,
        context_tokens=context,
        chunk_rows=rows,
        available_bytes=memory.available_bytes,
        sequences=several,
        prefix_bytes=demand.prefix_bytes,
    )


def _refusal(demand: Demand, memory: Memory, plan: Plan, slots: int | None) -> CapacityError:
    """The sum, and the nearest thing that would fit."""
    message = f"not enough memory: {plan.sum()}, but {memory.source} has {format_bytes(memory.available_bytes)} available"
    message += f"; {_suggestion(demand, memory, plan, slots)}"
    return CapacityError(
        message, asked_bytes=plan.total_bytes, available_bytes=memory.available_bytes
    )


def _suggestion(demand: Demand, memory: Memory, plan: Plan, slots: int | None) -> str:
    """What would fit, changing as few settings as possible."""
    over = plan.total_bytes - memory.available_bytes
    least_pool = _smallest(demand) * demand.stride_bytes
    if slots is not None and plan.pool_bytes - least_pool >= over:
        fits = (plan.pool_bytes - over) // demand.stride_bytes * demand.stride_bytes
        return f"a pool of {gigabytes(fits)} GB would fit (--pool-gb)"
    if context := _fitting_context(demand, memory, slots):
        return f"a context of {context} tokens would fit (--max-ctx)"
    if slots is not None and (context := _fitting_context(demand, memory, None)):
        pool = f"a pool of {gigabytes(least_pool)} GB"
        return f"{pool} and a context of {context} tokens would fit (--pool-gb, --max-ctx)"
    least = _assemble(demand, memory, 1, _smallest(demand)).total_bytes
    return f"this model needs at least {format_bytes(least)}"


def gigabytes(size_bytes: int) -> str:
    """A size in GB with all digits: what we suggest must work when it is typed."""
    return f"{size_bytes / GB:.9f}".rstrip("0").rstrip(".")


def _fitting_context(demand: Demand, memory: Memory, slots: int | None) -> int:
    """The longest context that fits, or 0."""
    held = _smallest(demand) if slots is None else slots
    low, high = 0, demand.sizes.max_context
    while low < high:
        middle = (low + high + 1) // 2
        if _assemble(demand, memory, middle, held).total_bytes <= memory.available_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def available_memory(root: Path = Path("/")) -> Memory:
    """Memory that can be taken now, honouring control groups and `ulimit -v` (Linux) and the working set limit (macOS).

    Args:
        root: where `proc` and `sys` are mounted.
    """
    if sys.platform == "darwin":
        return _darwin_memory()
    found = (_machine_memory(root), _group_memory(root), _limited_memory(root))
    return min((m for m in found if m is not None), key=lambda m: m.available_bytes)


def within(memory: Memory, limit_gb: float | None) -> Memory:
    """Memory, of which no more than a limit may be taken; None is no limit."""
    if limit_gb is None or limit_gb * GB >= memory.available_bytes:
        return memory
    return Memory(memory.total_bytes, round(limit_gb * GB), "the limit that was set (memory_gb)")


def memory_of(backend: Backend[Any, Any], machine: Memory) -> Memory:
    """Memory that a model on a backend can take now: the machine's, or that of the backend's device."""
    device = backend.working_set_bytes
    if device is None:
        return machine
    if sys.platform == "darwin":  # the GPU's is a share of the machine's
        return Memory(machine.total_bytes, min(device, machine.available_bytes), "the GPU")
    return Memory(device, device, "the GPU")


def _machine_memory(root: Path) -> Memory:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fields = _key_values(root / "proc/meminfo")
    available = fields.get("MemAvailable:", total // 1024) * 1024
    return Memory(total, available, "this machine")


def _limited_memory(root: Path) -> Memory | None:
    """What a limit on this process's address space leaves, if there is one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    used = _key_values(root / "proc/self/status").get("VmSize:", 0) * 1024
    return Memory(limit, max(0, limit - used), "the limit on this process (ulimit -v)")


def _group_memory(root: Path) -> Memory | None:
    """The tightest limit on the way from our control group (v2, or v1's memory controller) to the root.

    File cache counts as free, as in the machine's own account of what is available: it goes when memory is needed.
    """
    tightest: Memory | None = None
    for folder, names in _group_folders(root):
        limits = [n for name in names.limits if (n := _number(folder / name)) is not None]
        used = _number(folder / names.used)
        if not limits or used is None or min(limits) >= 1 << 60:
            continue
        limit, statistics = min(limits), _key_values(folder / "memory.stat")
        cache = sum(statistics.get(name, 0) for name in names.cache)
        memory = Memory(limit, max(0, limit - max(0, used - cache)), "this control group")
        if tightest is None or memory.available_bytes < tightest.available_bytes:
            tightest = memory
    return tightest


@dataclass(frozen=True, slots=True)
class _Names:
    """Files with limits and use, and statistics of file cache, which can be reclaimed."""

    limits: tuple[str, ...]
    used: str
    cache: tuple[str, ...]


# Above `high` nothing is killed, but everything is slowed down until it is below again.
_V2 = _Names(("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file"))
_V1 = _Names(
    ("memory.limit_in_bytes",),
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)


def _group_folders(mounts: Path) -> list[tuple[Path, _Names]]:
    """Our group and its ancestors, and how their files are called."""
    try:
        lines = (mounts / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            root, names = mounts / "sys/fs/cgroup", _V2
        elif "memory" in controllers.split(","):
            root, names = mounts / "sys/fs/cgroup/memory", _V1
        else:
            continue
        parts = [p for p in path.split("/") if p and p != ".."]
        folders += [(root.joinpath(*parts[:n]), names) for n in range(len(parts), -1, -1)]
    return folders


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # absent, or "max"
        return None


def _key_values(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {p[0]: int(p[1]) for p in pairs if len(p) >= 2 and p[1].isdigit()}


def _darwin_memory() -> Memory:
    """Unified memory: three quarters of it, the default limit of the GPU's working set."""
    libc = ctypes.CDLL(None)
    value, size = ctypes.c_uint64(), ctypes.c_size_t(8)
    libc.sysctlbyname(b"hw.memsize", ctypes.byref(value), ctypes.byref(size), None, 0)
    return Memory(value.value, value.value * 3 // 4, "this machine")
