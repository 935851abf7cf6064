"""The memory plan: its sum, its refusals, and where the limit comes from."""

import os
import re
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cherenkov import budget
from cherenkov.architectures import Sizes
from cherenkov.budget import Demand, Memory, available_memory, make_plan
from cherenkov.errors import CapacityError, ConfigError
from cherenkov.units import GB, GIB, MIB

SIZES = Sizes(
    vocab=1000,
    max_context=32_768,
    stop_ids=(0,),
    top_k=4,
    fixed_state_bytes=3 * MIB,
    delta_position_bytes=1000,
    back_position_bytes=100,
    matrix_bytes=1000,
    token_state_elements=700.5,
    row_scratch_bytes=40_000,
    residual_bytes=0,
)
DEMAND = Demand(
    SIZES, dense_bytes=300 * MIB, ngram_bytes=40 * MIB, stride_bytes=32_768, records=4096
)


def memory(size):
    return Memory(size, size, "this machine")


def test_the_sum_is_the_parts():
    plan = make_plan(DEMAND, memory(8 * GIB), context_tokens=1000)
    assert plan.total_bytes == sum(
        getattr(plan, f"{part}_bytes")
        for part in ("dense", "ngram", "state", "scratch", "pool", "working")
    )
    assert plan.state_bytes == SIZES.state_bytes(1000, 4, 0, 0) == 3 * MIB + 4 * 700_500
    assert plan.pool_bytes == plan.slots * DEMAND.stride_bytes
    assert (plan.dense_bytes, plan.ngram_bytes) == (300 * MIB, 40 * MIB)
    for size in ("315 MB", "41.9 MB", "state of 1000 tokens 5.95 MB"):
        assert size in plan.sum()


def test_a_pool_never_exceeds_the_records():
    for pool in ("adaptive", "max", 500.0):
        assert make_plan(DEMAND, memory(600 * GIB), pool=pool).slots == DEMAND.records


def test_adaptive_leaves_more_than_max():
    room, demand = 2 * GIB, replace(DEMAND, records=100_000)
    adaptive = make_plan(demand, memory(room), pool="adaptive")
    most = make_plan(demand, memory(room), pool="max")
    assert SIZES.top_k < adaptive.slots < most.slots < demand.records
    assert room - adaptive.total_bytes >= 512 * MIB
    assert room - most.total_bytes >= 128 * MIB
    assert (
        adaptive.chunk_rows == most.chunk_rows
    )  # else the rows' scratch would be in the difference
    assert most.slots - adaptive.slots == pytest.approx(384 * MIB / 32_768, abs=1)


def test_a_small_machine_keeps_a_share_back_and_not_all_of_it():
    demand = replace(DEMAND, records=100_000, dense_bytes=100 * MIB)
    adaptive = make_plan(demand, memory(600 * MIB), context_tokens=100)
    assert adaptive.slots > 50 * SIZES.top_k
    assert 600 * MIB - adaptive.total_bytes >= 150 * MIB


def test_streamed_prompts_go_in_larger_chunks_where_memory_allows():
    many = replace(DEMAND, records=10_000_000)
    assert make_plan(DEMAND, memory(600 * GIB)).chunk_rows == 512  # every expert is in memory
    found = {}
    for room in (1, 2, 4, 8, 16, 64):
        for pool in ("adaptive", 0.2):
            plan = make_plan(many, memory(room * GIB), pool=pool)
            found.setdefault(pool, []).append(plan.chunk_rows)
            extra = (plan.chunk_rows - 512) * SIZES.row_scratch_bytes
            left = plan.pool_bytes + extra if pool == "adaptive" else room * GIB - plan.total_bytes
            assert extra * 8 <= left + extra
            assert plan.total_bytes <= room * GIB
    assert all(rows == sorted(rows) and rows[-1] == 2048 for rows in found.values())
    assert make_plan(many, memory(64 * GIB), context_tokens=700).chunk_rows == 700


def test_the_default_context_is_bounded_by_the_model():
    assert make_plan(DEMAND, memory(8 * GIB)).context_tokens == budget.DEFAULT_CONTEXT
    short = replace(DEMAND, sizes=replace(SIZES, max_context=100), records=10)
    plan = make_plan(short, memory(8 * GIB))
    assert (plan.context_tokens, plan.chunk_rows, plan.slots) == (100, 100, 10)


@pytest.mark.parametrize("context", [0, -1, 32_769])
def test_impossible_contexts(context):
    with pytest.raises(ConfigError, match="from 1 to 32768") as caught:
        make_plan(DEMAND, memory(8 * GIB), context_tokens=context)
    assert caught.value.key == "context_tokens"


@pytest.mark.parametrize("pool", ["huge", 0.0, -1.0, float("nan"), float("inf"), 1e12])
def test_impossible_pools(pool):
    with pytest.raises(ConfigError) as caught:
        make_plan(DEMAND, memory(8 * GIB), pool=pool)
    assert caught.value.key == "pool"


strides = st.integers(1, 200).map(lambda pages: pages * 16_384)


@given(strides, st.integers(1, 64))
def test_the_smallest_pool_works_as_it_is_written(stride, top_k):
    demand = replace(DEMAND, sizes=replace(SIZES, top_k=top_k), stride_bytes=stride)
    with pytest.raises(ConfigError) as caught:
        make_plan(demand, memory(80 * GIB), pool=1e-9)
    said = re.search(r"smallest pool for this model is ([0-9.]+) GB", str(caught.value))
    plan = make_plan(demand, memory(80 * GIB), pool=float(said[1]))
    assert plan.slots == top_k


@given(
    st.integers(0, 3 * GIB),
    st.integers(1, 32_767),
    st.sampled_from(["adaptive", "max"]) | st.floats(0.001, 3),
    strides,
)
def test_a_plan_fits_or_what_it_suggests_does(size, context, pool, stride):
    demand = replace(DEMAND, stride_bytes=stride)
    assume(isinstance(pool, str) or round(pool * GB) >= 4 * stride)
    try:
        plan = make_plan(demand, memory(size), context_tokens=context, pool=pool)
    except CapacityError as error:
        follow(error, demand, size, context, pool)
        return
    assert plan.total_bytes <= size
    assert plan.slots >= SIZES.top_k
    assert plan.context_tokens == context


def follow(error, demand, size, context, pool):
    """Do what the refusal says, and one step less modestly."""
    message = str(error)
    assert error.asked_bytes > error.available_bytes == size
    assert "this machine has" in message
    smaller = re.search(r"a pool of ([0-9.]+) GB", message)
    shorter = re.search(r"a context of (\d+) tokens would fit", message)
    if not (smaller or shorter):
        assert "needs at least" in message
        with pytest.raises(CapacityError):
            make_plan(demand, memory(size), context_tokens=1, pool=4 * demand.stride_bytes / GB)
        return
    fitting_pool = float(smaller[1]) if smaller else pool
    fitting_context = int(shorter[1]) if shorter else context
    plan = make_plan(demand, memory(size), context_tokens=fitting_context, pool=fitting_pool)
    if shorter:
        assert fitting_context < context
        fitting_context += 1
    else:
        assert fitting_pool < pool
        fitting_pool = (plan.slots + 1) * demand.stride_bytes / GB
    with pytest.raises(CapacityError):
        make_plan(demand, memory(size), context_tokens=fitting_context, pool=fitting_pool)


# --- where the limit comes from

linux = pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")


LIMIT = "the limit on this process (ulimit -v)"


def machine(root, group_lines, available_kib=9_000_000, **files):
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/meminfo").write_text(
        f"MemTotal:       16000000 kB\nMemAvailable:   {available_kib} kB\nHugePages_Total: 0\n"
    )
    (root / "proc/self/cgroup").write_text(group_lines)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("--", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return available_memory(root)


@linux
def test_no_groups(tmp_path):
    found = machine(tmp_path, "")
    assert (found.available_bytes, found.source) == (9_000_000 * 1024, "this machine")


@linux
def test_nothing_mounted(tmp_path):
    assert available_memory(tmp_path).available_bytes > 0


@linux
def test_group_of_version_2_counts_cache_as_free(tmp_path):
    found = machine(
        tmp_path,
        "0::/job\n",
        **{
            "job__memory--max": f"{4 * GIB}\n",
            "job__memory--current": f"{3 * GIB}\n",
            "job__memory--stat": f"anon 5\ninactive_file {2 * GIB}\nactive_file {GIB // 2}\n",
        },
    )
    assert found == Memory(4 * GIB, 3 * GIB + GIB // 2, "this control group")


@linux
@pytest.mark.parametrize(
    ("most", "high", "expected"), [(4, 2, 2), (2, 4, 2), ("max", 3, 3), (3, "max", 3), (4, 0, 0)]
)
def test_a_group_that_slows_down_is_full(tmp_path, most, high, expected):
    sizes = {"max": most, "high": high}
    files = {
        f"memory--{name}": f"{size if size == 'max' else size * GIB}\n"
        for name, size in sizes.items()
    }
    found = machine(tmp_path, "0::/\n", **files, **{"memory--current": "0\n"})
    assert (found.available_bytes, found.source) == (expected * GIB, "this control group")


@linux
@pytest.mark.parametrize(("most", "high"), [("max", 2), (4, 2), (2, 4), (2, "max")])
def test_a_group_that_is_slowed_down_has_no_more_than_that(tmp_path, most, high):
    written = [limit if limit == "max" else limit * GIB for limit in (most, high)]
    found = machine(
        tmp_path,
        "0::/job\n",
        **{
            "job__memory--max": f"{written[0]}\n",
            "job__memory--high": f"{written[1]}\n",
            "job__memory--current": f"{GIB}\n",
        },
    )
    assert found == Memory(2 * GIB, GIB, "this control group")


@linux
def test_the_tightest_ancestor_counts(tmp_path):
    found = machine(
        tmp_path,
        "0::/a/b\n",
        **{
            "a__b__memory--max": "max\n",
            "a__b__memory--current": "0\n",
            "a__memory--max": f"{2 * GIB}\n",
            "a__memory--current": f"{GIB}\n",
            "memory--max": f"{5 * GIB}\n",
            "memory--current": f"{GIB}\n",
        },
    )
    assert found.available_bytes == GIB


@linux
def test_a_generous_group_leaves_the_machine(tmp_path):
    files = {"memory--max": f"{500 * GIB}\n", "memory--current": "0\n"}
    assert machine(tmp_path, "0::/\n", **files).source == "this machine"


@linux
def test_group_of_version_1(tmp_path):
    found = machine(
        tmp_path,
        "9:cpu,cpuacct:/x\n4:memory:/docker/abc\n1:name=systemd:/\n",
        **{  # inside a container the named folder is not there: its root is the group
            "memory__memory--limit_in_bytes": f"{GIB}\n",
            "memory__memory--usage_in_bytes": f"{GIB // 2}\n",
            "memory__memory--stat": (
                f"inactive_file 0\ntotal_inactive_file {GIB // 4}\ntotal_active_file {GIB // 8}\n"
            ),
        },
    )
    assert found == Memory(GIB, GIB * 7 // 8, "this control group")


@linux
def test_unlimited_group_of_version_1(tmp_path):
    files = {
        "memory__memory--limit_in_bytes": "9223372036854771712\n",
        "memory__memory--usage_in_bytes": "5\n",
    }
    assert machine(tmp_path, "4:memory:/\n", **files).source == "this machine"


@linux
def test_an_overdrawn_group_has_nothing_left(tmp_path):
    files = {"memory--max": "100\n", "memory--current": "900\n"}
    assert machine(tmp_path, "0::/../..\n", **files).available_bytes == 0


@linux
@pytest.mark.parametrize(
    ("limit", "used_kib", "expected"),
    [
        (3 * GIB, 1 << 20, (2 * GIB, LIMIT)),
        (GIB, 2 << 20, (0, LIMIT)),  # lowered below what is in use
        (500 * GIB, 1 << 20, (9_000_000 * 1024, "this machine")),
        (None, 1 << 20, (9_000_000 * 1024, "this machine")),
    ],
)
def test_a_limit_on_the_address_space_counts(tmp_path, monkeypatch, limit, used_kib, expected):
    asked = []

    def limits(which):
        asked.append(which)
        return (resource.RLIM_INFINITY if limit is None else limit, resource.RLIM_INFINITY)

    monkeypatch.setattr(resource, "getrlimit", limits)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text(f"VmPeak:\t9 kB\nVmSize:\t{used_kib} kB\n")
    found = machine(tmp_path, "")
    assert (found.available_bytes, found.source) == expected
    assert asked == [resource.RLIMIT_AS]


@linux
def test_the_limit_is_the_one_that_ulimit_sets():
    code = "from cherenkov.budget import available_memory as m; print(m().source, m().total_bytes)"
    done = subprocess.run(
        ["sh", "-c", 'ulimit -v 8000000; exec "$0" -c "$1"', sys.executable, code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.stdout in {f"{LIMIT} {8_000_000 * 1024}\n", available_memory().source + "\n"}


def test_this_machine_has_memory():
    found = available_memory()
    assert 0 < found.available_bytes <= found.total_bytes
