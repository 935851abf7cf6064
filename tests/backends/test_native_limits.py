"""The native backend at its edges: options, bad shapes, threads, fork, memory."""

import ctypes
import ctypes.util
import errno
import gc
import mmap
import os
import platform
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from cherenkov.backends import pages
from cherenkov.backends.base import Embedding, Options, Routes, Span
from cherenkov.backends.native import Native, instruction_sets
from cherenkov.checkpoint.affine import HostMatrix
from cherenkov.errors import BackendError, CapacityError
from cherenkov.packing.layout import ExpertLayout
from tests.backends.arithmetic import random
from tests.backends.choices import ISAS, needs_kernels, start
from tests.backends.layers import SMALL, WIDE, Arrivals, Layers, host_matrix

pytestmark = needs_kernels


def test_options():
    assert instruction_sets()[-1] == "portable"
    assert Native().detail.startswith(instruction_sets()[0])
    assert Native(Options(threads=1)).detail.endswith("activations")
    assert "1 thread," in Native(Options(threads=1)).detail
    portable = Native(Options(threads=3, isa="portable", precision="int8"))
    assert portable.detail == "portable, 3 threads, float32 activations (portable offers no int8)"
    with pytest.raises(BackendError, match="no 'sse9' kernels"):
        Native(Options(isa="sse9"))
    with pytest.raises(BackendError, match="precision must be"):
        Native(Options(precision="float16"))
    with pytest.raises(BackendError, match="threads"):
        Native(Options(threads=-1))


@pytest.mark.parametrize("isa", [i for i in ISAS if i != "portable"])
def test_precisions(isa):
    for precision in ("float32", "int16", "int8"):
        assert f"{precision} activations" in start(isa, precision).detail
    bf16 = start(isa, "bf16").detail
    assert ("bf16 activations" in bf16) == (isa == "avx512_bf16")
    if isa != "avx512_bf16":
        assert "int16 activations" in bf16
        assert "offers no bf16" in bf16


def test_close():
    ops = start("")
    matrix = ops.matrix(host_matrix(random(0)(64, 256), 4, 64))
    x = np.ones((3, 256), np.float32)
    ops.linear(matrix, x)
    ops.close()
    ops.close()
    with pytest.raises(BackendError, match="closed"):
        ops.linear(matrix, x)


def test_no_thread_is_left_behind():
    tasks = Path("/proc/self/task")

    def threads():
        return len(list(tasks.iterdir()))

    if not tasks.is_dir():
        pytest.skip("this system does not list a process's threads")
    before = threads()
    ops = start("", threads=4)
    assert threads() == before  # none before it is used
    matrix = ops.matrix(host_matrix(random(0)(512, 512), 4, 64))
    ops.linear(matrix, np.ones((9, 512), np.float32))
    assert threads() == before + 3
    ops.close()
    assert threads() == before


def test_matrices_are_checked():
    ops = start("")
    good = host_matrix(random(0)(4, 64), 4, 32)
    with pytest.raises(BackendError, match="groups"):
        ops.matrix(HostMatrix((4, 64), 4, 16, good.codes, good.scales, good.biases))
    with pytest.raises(BackendError, match="bits"):
        ops.matrix(HostMatrix((4, 64), 5, 32, good.codes, good.scales, good.biases))
    with pytest.raises(BackendError, match="shape"):
        ops.matrix(HostMatrix((4, 128), 4, 32, good.codes, good.scales, good.biases))
    with pytest.raises(BackendError, match="scales"):
        ops.matrix(HostMatrix((4, 64), 4, 32, good.codes))
    with pytest.raises(BackendError, match="shape"):
        ops.matrix(HostMatrix((5, 64), 4, 32, good.codes, good.scales, good.biases))


def test_what_would_go_out_of_bounds_is_refused():
    ops = start("")
    layers = Layers(ops, SMALL)
    table = layers.embedding()
    for token in (-1, SMALL.vocab):
        with pytest.raises(BackendError, match="vocabulary"):
            ops.embed(table, np.array([0, token], dtype=np.int32))
    attention, x = layers.attention(), layers.draw(3, SMALL.hidden)
    with pytest.raises(BackendError, match="full"):
        ops.sparse_attention(attention, x, [Span(0, 3, 62, layers.attention_state(64))])
    with pytest.raises(BackendError, match="span"):
        ops.sparse_attention(attention, x, [Span(0, 4, 0, layers.attention_state(64))])
    with pytest.raises(BackendError, match="every row"):
        ops.sparse_attention(attention, x, [Span(0, 2, 0, layers.attention_state(64))])
    with pytest.raises(BackendError, match="state"):
        ops.delta_net(layers.delta(), x, [Span(0, 3, 0, Layers(ops, WIDE).delta_state())])
    head = layers.head()
    wide = layers.draw(3, SMALL.streams * SMALL.hidden)
    with pytest.raises(BackendError, match="row"):
        ops.logits(head, wide, [3])
    with pytest.raises(BackendError, match="shapes"):
        ops.logits(head, x, [0])
    layout, records = layers.records()
    routes = Routes(np.zeros((3, 1), np.int32), np.ones((3, 1), np.float32))
    arrivals = Arrivals(ops, layout, records, [[0]])
    arrivals.waves[0].slots[0] = len(records)
    with pytest.raises(BackendError, match="slot"):
        ops.experts(layers.shared(), x, routes, arrivals)
    arrivals.waves.clear()
    with pytest.raises(BackendError, match="not every expert arrived"):
        ops.experts(layers.shared(), x, routes, arrivals)


def test_weights_live_as_long_as_they_are_used():
    ops = start("")
    matrix = ops.matrix(host_matrix(random(0)(512, 512), 4, 64))
    x = random(1)(2, 512)
    expected = ops.linear(matrix, x)
    placed, shape = matrix.placed, matrix.shape
    del matrix
    gc.collect()
    junk = [np.full(512 * 64, 255, np.uint8) for _ in range(64)]
    out = np.empty((2, shape[0]), np.float32)
    ops._engine.linear(placed, x, out)
    np.testing.assert_array_equal(out, expected)
    assert len(junk) == 64


def test_several_threads_may_call():
    ops = start("", threads=3)
    matrices = [ops.matrix(host_matrix(random(i)(256, 512), 4, 64)) for i in range(4)]
    x = random(9)(5, 512)
    expected = [ops.linear(m, x) for m in matrices]
    wrong = []

    def work(i):
        outs = [ops.linear(matrices[i], x) for _ in range(30)]
        wrong.extend(i for out in outs if not np.array_equal(out, expected[i]))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
    ops.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes_alone():
    ops = start("", threads=3)
    matrix = ops.matrix(host_matrix(random(0)(512, 512), 4, 64))
    x = random(1)(5, 512)
    expected = ops.linear(matrix, x)
    child = os.fork()
    if child == 0:
        same = np.array_equal(ops.linear(matrix, x), expected)
        ops.close()
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ops.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_in_the_middle_of_an_operation_computes_too():
    """The thread that was at it does not exist there, and never gives back its turn."""
    ops = start("", threads=3)
    matrix = ops.matrix(host_matrix(random(0)(2048, 1024), 4, 64))
    x = random(1)(64, 1024)
    expected = ops.linear(matrix, x)
    over = threading.Event()

    def work():
        while not over.is_set():
            ops.linear(matrix, x)

    worker = threading.Thread(target=work)
    worker.start()
    code = 0
    for _ in range(5):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)  # instead of waiting for ever
            same = np.array_equal(ops.linear(matrix, x), expected)
            ops.close()
            os._exit(0 if same else 1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != 0:
            break
    over.set()
    worker.join()
    ops.close()
    assert code == 0


def rounding_toward_zero():
    """Switches this thread's rounding, and returns what switches it back."""
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    before = libm.fegetround()
    assert libm.fesetround(0xC00 if platform.machine() == "x86_64" else 0xC00000) == 0
    return lambda: libm.fesetround(before)


@pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in {"x86_64", "aarch64"},
    reason="how to round is numbered otherwise here",
)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("before", [True, False], ids=["threads before", "threads after"])
def test_how_the_caller_rounds_does_not_matter(isa, before):
    """Threads inherit it from whoever starts them, so bits would depend on who computed what."""
    plain, ops = start(isa), start(isa)
    host, x = host_matrix(random(0)(512, 256), 8, 64), random(1)(9, 256)
    expected = plain.linear(plain.matrix(host), x)
    if before:
        ops.linear(ops.matrix(host), x)
    switch_back = rounding_toward_zero()
    try:
        again = [ops.linear(ops.matrix(host), x) for _ in range(3)]
        third = np.float32(1) / np.float32(3)
    finally:
        switch_back()
    for each in again:
        np.testing.assert_array_equal(each, expected)
    assert third < np.float32(1) / np.float32(3)  # and the caller rounds as before
    plain.close()
    ops.close()


def test_pool():
    ops = start("")
    layout = ExpertLayout(64, 64)
    pool = ops.pool(layout, 3)
    assert pool.memory.shape == (3, layout.stride_bytes)
    assert pool.memory.ctypes.data % 4096 == 0
    assert pool.memory.flags.writeable
    assert not pool.memory.any()
    assert ops.pool(layout, 0).slots == 0
    with pytest.raises(CapacityError, match="smaller pool"):
        ops.pool(layout, 1 << 45)


def test_no_rows():
    ops = start("")
    layers = Layers(ops, SMALL)
    table = layers.embedding()
    assert ops.embed(Embedding(table.table, 2), np.zeros(0, np.int32)).shape == (0, 128)
    wide = np.zeros((0, SMALL.streams * SMALL.hidden), np.float32)
    assert ops.logits(layers.head(), wide, []).shape == (0, SMALL.vocab)


def test_records_must_hold_their_parts():
    from cherenkov import _native

    fits = ExpertLayout(64, 64)
    offsets, stride = list(fits.offsets().values()), fits.stride_bytes
    _native.Record(64, 64, 4, 64, stride, offsets)
    for shape, reason in [
        ((64, 64, 4, 0), "groups"),
        ((64, 96, 4, 64), "groups"),
        ((64, 64, 5, 64), "bits"),
        ((-64, 64, 4, 64), "rows"),
        ((1 << 30, 64, 4, 64), "outside the record"),
        ((256, 256, 16, 64), "outside the record"),
    ]:
        with pytest.raises(BackendError, match=reason):
            _native.Record(*shape, stride, offsets)
    for place in (stride, 1 << 63, stride - 1):
        with pytest.raises(BackendError, match="outside the record"):
            _native.Record(64, 64, 4, 64, stride, [*offsets[:-1], place])


def test_states_are_used_where_they_lie_or_refused():
    """A state that had to be converted would be advanced in a copy, and silently stay as it was."""
    ops = start("")
    layers = Layers(ops, SMALL)
    delta, x = layers.delta(), layers.draw(1, SMALL.hidden)
    state = layers.delta_state()
    for matrix in (state.matrix.astype(np.float64), np.asfortranarray(state.matrix)):
        state.matrix = matrix
        with pytest.raises(BackendError, match="C-contiguous"):
            ops.delta_net(delta, x, [Span(0, 1, 0, state)])
    described = ops._described[id(delta)][1]
    with pytest.raises(BackendError, match="C-contiguous"):
        ops._engine.delta_net(described, x, [(0, 1, 0, None)], np.empty_like(x))
    with pytest.raises(BackendError, match="a span has"):
        ops._engine.delta_net(described, x, [(0, 1, 0)], np.empty_like(x))


def test_positions_near_the_end_of_the_integers():
    ops = start("")
    layers = Layers(ops, SMALL)
    attention, x = layers.attention(), layers.draw(1, SMALL.hidden)
    with pytest.raises(BackendError, match="span"):
        ops.sparse_attention(attention, x, [Span(0, 1, 2**31 - 1, layers.attention_state(64))])


def test_no_rows_are_no_work():
    ops = start("")
    layers = Layers(ops, SMALL)
    none = np.empty((0, SMALL.hidden), np.float32)
    out = ops.sparse_attention(layers.attention(), none, [Span(0, 0, 0, layers.attention_state(8))])
    assert out.shape == none.shape


def test_closing_waits_for_what_is_running():
    ops = start("", threads=2)
    matrix = ops.matrix(host_matrix(random(0)(2048, 2048), 4, 64))
    x = np.ones((64, 2048), np.float32)
    refused, began = [], threading.Event()

    def work():
        for _ in range(200):
            try:
                ops.linear(matrix, x)
            except BackendError as error:
                refused.append(str(error))
                return
            began.set()

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    began.wait(30)
    ops.close()
    for worker in workers:
        worker.join(60)
    assert len(refused) == 3
    assert all("closed" in reason for reason in refused)


FEW_THREADS = """
import pathlib, resource
import numpy as np
from cherenkov.backends.base import Options
from cherenkov.backends.native import Native
from tests.backends.arithmetic import random
from tests.backends.layers import host_matrix

many, one = Native(Options(threads=64)), Native(Options(threads=1))
matrix, x = host_matrix(random(0)(2048, 512), 4, 64), np.ones((16, 512), np.float32)
expected = one.linear(one.matrix(matrix), x)
in_use = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (in_use + (100 << 20),) * 2)  # not all stacks fit
for _ in range(3):
    np.testing.assert_array_equal(many.linear(many.matrix(matrix), x), expected)
many.close()
"""


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="needs Linux's limits")
@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer maps all memory there is"
)
def test_a_system_without_threads_to_give_still_gets_answers():
    import subprocess
    import sys

    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", FEW_THREADS],
        cwd=root,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-800:]


def test_a_system_without_huge_pages_still_has_pools(monkeypatch):
    """Asking for them is a hint, which kernels built without them refuse."""

    class Memory(mmap.mmap):
        def madvise(self, *_):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(pages.mmap, "mmap", Memory)
    layout = ExpertLayout(64, 128)
    assert start("").pool(layout, 3).memory.shape == (3, layout.stride_bytes)
