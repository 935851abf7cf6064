"""What the operations of the `native` backend share: the engine in C++, and weights described to it once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from cherenkov.backends import native_weights as describe
from cherenkov.backends.base import Backend, Block, DeltaNet, ExpertPool, Floats, Memory, Options
from cherenkov.backends.native_build import instruction_sets, unavailable
from cherenkov.backends.native_weights import Matrix
from cherenkov.errors import BackendError
from cherenkov.processors import processors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from cherenkov.backends.native_states import Drafting

if not describe.missing:
    import cherenkov._native as _native  # noqa: PLR0402 - the package itself is not what is meant

_MISSING = describe.missing

__all__ = ["NativeEngine"]

T = TypeVar("T")


class NativeEngine(Backend[Matrix, Floats]):
    """See `Native`."""

    name = "native"
    approximates = True
    late_features = True
    delta_chunk = 0 if _MISSING else _native.delta_chunk
    most_back = 0 if _MISSING else _native.most_back
    rows_alike = True

    def __init__(self, options: Options | None = None) -> None:
        options = options or Options()
        if _MISSING:
            raise BackendError(self.name, "start", unavailable())
        if options.isa and options.isa not in instruction_sets():
            known = ", ".join(instruction_sets())
            raise BackendError(
                self.name, "start", f"no {options.isa!r} kernels here; there are {known}"
            )
        self._engine = _native.Engine(
            options.isa, options.precision, options.threads or processors()
        )
        self._asked = options.precision
        # Operations describe their weights to the kernels once. Keyed by identity; the values keep the keys alive.
        self._described: dict[int, tuple[object, Any]] = {}
        self._cached: tuple[Sequence[Block[Matrix, Floats]], Sequence[int]] | None = None
        self._mixtures: list[_native.Mixture] = []  # those that no choice uses
        self._head: Drafting | None = None

    @property
    @override
    def detail(self) -> str:
        """Such as `avx2, 2 threads, int16 activations`."""
        isa, precision, threads = self._engine.isa, self._engine.precision, self._engine.threads
        text = f"{isa}, {threads} thread{'s' if threads > 1 else ''}, {precision} activations"
        return text if self._asked in {"", precision} else f"{text} ({isa} offers no {self._asked})"

    @override
    def close(self) -> None:
        """Join the threads and free the scratch memory."""
        self._engine.close()
        self._described.clear()
        self._mixtures.clear()
        self._head = None

    def _lower(self, pool: ExpertPool) -> tuple[_native.Record | None, NDArray[np.uint8] | None]:
        """The other layout that records may have, and which slots hold such."""
        if pool.lower is None:
            return None, None
        return self._describe(pool.lower, describe.expert_record), pool.tags

    def _memory(self) -> _native.Mixture:
        return self._mixtures.pop() if self._mixtures else _native.Mixture()

    def _trunk(self, blocks: Sequence[Block[Matrix, Floats]]) -> _native.Trunk:
        return _native.trunk([self._layer(block) for block in blocks])

    def _caches(self, blocks: Sequence[Block[Matrix, Floats]]) -> Sequence[int]:
        """The layers among these whose mixer keeps a cache. There are many layers, and this is wanted for each token."""
        if self._cached is None or self._cached[0] is not blocks:
            listed = [b.index for b in blocks if not isinstance(b.mixer, DeltaNet)]
            self._cached = blocks, listed
        return self._cached[1]

    def _alone(self, block: Block[Matrix, Floats]) -> _native.Trunk:
        return self._trunk((block,))

    def _layer(self, block: Block[Matrix, Floats]) -> tuple[Any, ...]:
        mixer = block.mixer
        return (
            self._describe(block.mixer_read, describe.residual_weights),
            self._describe(mixer, describe.delta_weights)
            if isinstance(mixer, DeltaNet)
            else self._describe(mixer, describe.attention_weights),
            self._describe(block.moe_read, describe.residual_weights),
            block.router.gate.placed,
            block.router.normalise,
            block.router.top_k,
            self._describe(block.shared, describe.shared_weights),
            None if block.ple is None else self._describe(block.ple, describe.ple_weights),
        )

    def _bound(
        self,
        trunk: _native.Trunk,
        blocks: Sequence[Block[Matrix, Floats]],
        memory: Memory[Floats],
    ) -> _native.Memory:
        """A sequence's arrays, described to the kernels once."""
        bound = memory.bound
        if not isinstance(bound, _native.Memory):
            ple = [memory.ple.get(block.index) for block in blocks]
            memory.bound = bound = _native.memory(trunk, memory.layers, ple)
        return bound

    def _describe(self, w: T, describe: Callable[[T], object]) -> Any:
        try:
            return self._described[id(w)][1]
        except KeyError:
            described = describe(w)
            self._described[id(w)] = w, described
            return described
