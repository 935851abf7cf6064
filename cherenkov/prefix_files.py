"""Points of sequences on disk: what the prefix cache had to let go of, and what it held when it was closed.

One file a point: magic, length and checksum of the header, header (JSON), arrays. The header names the store, the release
and the backend that the point belongs to, and has a checksum of the arrays; a file that is not as it was written is removed,
and its prompt is read anew. Owners are written as a hash. Files are written by a thread of their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import queue
import stat
import threading
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import xxhash

from cherenkov.backends.base import AttentionState
from cherenkov.errors import ConfigError, CorruptModel, DiskError
from cherenkov.packing.durable import remove_abandoned, write_file
from cherenkov.pages import PAGE_TOKENS, Page, size_of
from cherenkov.prefix_cache import Point, goes_on, name_of
from cherenkov.state import Snapshot
from cherenkov.trail import Trail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from cherenkov.backends.base import Backend
    from cherenkov.state import State

__all__ = ["FileCounts", "PrefixFiles"]

A = TypeVar("A")

_MAGIC = b"CHKVPFX2"
_SUFFIX = ".prefix"
_MOST_HEADER_BYTES = 16 << 20
"""It lists every array: 50,000 of them at the longest context."""
_MOST_WAITING = 2
"""Points that may wait to be written: they still take memory."""
_DTYPES = {"float32", "float16", "int32", "uint8", "int8"}
_MALFORMED = (LookupError, TypeError, ValueError, StopIteration, OverflowError, RecursionError)
"""What reading a file raises that somebody else has written."""


@dataclass(slots=True)
class FileCounts:
    """What happened since the start: points written, read back, found damaged, and not written for a failure of the disk."""

    spilled: int = 0
    loaded: int = 0
    damaged: int = 0
    unwritten: int = 0


@dataclass(slots=True)
class _File:
    path: Path
    owner: str
    tokens: NDArray[np.int32]
    complete: bool
    size_bytes: int
    used_ns: int


class PrefixFiles(Generic[A]):
    """A folder of points, the one that was used longest ago goes first. For the thread that owns the model.

    Args:
        folder: made if need be, for this user alone.
        limit_bytes: size of all files in it, those of other stores included.
        belongs: what a point belongs to: the store's fingerprint, the release, the backend with its choices.
        backend: of the model.
        template: an empty sequence of the model, for the shapes.

    Attributes:
        counts: what happened so far.

    Raises:
        ConfigError: the folder is a link, or another user's.
        DiskError: it cannot be made or listed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        limit_bytes: int,
        belongs: str,
        backend: Backend[Any, A],
        template: State[A],
    ) -> None:
        self.counts = FileCounts()
        self._folder = Path(folder)
        self._limit_bytes, self._belongs = limit_bytes, belongs
        self._backend = backend
        snapshot = template.snapshot(backend)
        self._recurrent, self._cached = snapshot.recurrent, set(snapshot.lengths)
        self._caches = [
            cache
            for part in [*template.layers, template.draft]
            if isinstance(part, AttentionState)
            for cache in (part.keys, part.values, part.index_keys, part.block_keys)
        ]
        self._lock = threading.Lock()
        self._files: dict[str, _File] = {}
        self._waiting: queue.Queue[tuple[str, Point[A], list[Any]] | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        try:
            self._open()
        except OSError as error:
            raise DiskError.wrap(error, self._folder, "use") from error

    def __len__(self) -> int:
        return len(self._files)

    @property
    def size_bytes(self) -> int:
        """Of this store's files."""
        with self._lock:
            return sum(file.size_bytes for file in self._files.values())

    def put(self, point: Point[A], *, wait: bool = False) -> None:
        """Write a point, unless it is there already, or too many wait to be written (`wait` has them wait)."""
        name = self._name(point)
        with self._lock:
            known = self._files.get(name)
        if known is not None and (known.complete or point.logits is None):
            self._touch(known)
            return
        if not wait and self._waiting.qsize() >= _MOST_WAITING:
            return
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._write_all, name="cherenkov-prefixes", daemon=True
            )
            self._thread.start()
        self._waiting.put((name, point, self._hosted(point)))

    def find(self, owner: str, prompt: NDArray[np.int32], longer_than: int) -> Point[A] | None:
        """The longest point on disk that a prompt begins with, if it has more than so many tokens."""
        secret = _hidden(owner)
        with self._lock:
            fitting = [
                file
                for file in self._files.values()
                if file.owner == secret
                and len(file.tokens) > longer_than
                and goes_on(file.tokens, prompt, complete=file.complete)
            ]
        for file in sorted(fitting, key=lambda f: -len(f.tokens)):
            try:
                point = self._read(file, owner)
            except (OSError, CorruptModel) as error:  # it may have had to go meanwhile
                self.counts.damaged += not isinstance(error, FileNotFoundError)
                self._remove(file)
                continue
            self.counts.loaded += 1
            self._touch(file)
            return point
        return None

    def _hosted(self, point: Point[A]) -> list[NDArray[Any]]:
        arrays = [self._backend.host(array) for array in _arrays(point)]
        tail = [] if point.logits is None else [point.logits]
        return [point.tokens, *arrays, *tail]

    def close(self) -> None:
        """Write what waits, and join the thread."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    # --- the folder

    def _open(self) -> None:
        folder = self._folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise ConfigError(
                "prefix_cache_dir", str(folder), "must be a folder of this user's, and no link"
            )
        folder.chmod(0o700)
        remove_abandoned(folder / f"*{_SUFFIX}")
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            file = self._header(path)
            if file is not None:
                self._files[path.name] = file
        self._shrink()

    def _header(self, path: Path) -> _File | None:
        """What a file says of itself; None if it is not ours to use."""
        try:
            with _opened(path) as stream:
                header = _read_header(path, stream)
                if header["belongs"] != self._belongs:
                    return None
                found = os.fstat(stream.fileno())
                tokens = _array(path, stream, "int32", [header["tokens"]], found.st_size)
            return _File(
                path,
                str(header["owner"]),
                tokens,
                bool(header["complete"]),
                found.st_size,
                found.st_mtime_ns,
            )
        except (OSError, CorruptModel, *_MALFORMED):
            self.counts.damaged += 1
            with contextlib.suppress(OSError):
                path.unlink()
            return None

    def _shrink(self) -> None:
        """Remove the files that were used longest ago, whoever wrote them."""
        found = []
        for path in self._folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):  # another process may have removed it
                status = path.lstat()
                found.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._limit_bytes:
                break
            total -= size
            with contextlib.suppress(OSError):
                path.unlink()
            with self._lock:
                self._files.pop(path.name, None)

    def _remove(self, file: _File) -> None:
        with self._lock:
            self._files.pop(file.path.name, None)
        with contextlib.suppress(OSError):
            file.path.unlink()

    @staticmethod
    def _touch(file: _File) -> None:
        with contextlib.suppress(OSError):  # removed meanwhile: then it is not used either
            os.utime(file.path)

    def _name(self, point: Point[A]) -> str:
        name = name_of(point)
        return hashlib.blake2b(self._belongs.encode() + name, digest_size=16).hexdigest() + _SUFFIX

    # --- writing, in the thread

    def _write_all(self) -> None:
        while (item := self._waiting.get()) is not None:
            name, point, arrays = item
            try:
                self._write(name, point, arrays)
            except (DiskError, MemoryError):
                self.counts.unwritten += 1
            del point, arrays, item

    def _write(self, name: str, point: Point[A], arrays: list[NDArray[Any]]) -> None:
        if size_of(arrays) > self._limit_bytes:
            return
        views = [np.ascontiguousarray(a).reshape(-1).view(np.uint8).data for a in arrays]
        total = xxhash.xxh3_64()
        for view in views:
            total.update(view)
        header: dict[str, Any] = {
            "belongs": self._belongs,
            "owner": _hidden(point.owner),
            "tokens": point.position,
            "complete": point.logits is not None,
            "lengths": point.snapshot.lengths,
            "trail": [[first, rows] for first, rows, _ in point.snapshot.trail.pieces],
            "pages": [len(page.arrays) for page in point.pages],
            "arrays": [[str(a.dtype), list(a.shape)] for a in arrays],
            "sum": f"{total.intdigest():016x}",
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        path = self._folder / name
        lead = b"".join([_MAGIC, len(text).to_bytes(8, "little"), _sum_of(text)])
        write_file(path, [lead, text, *views])
        size = len(lead) + len(text) + size_of(arrays)
        file = _File(path, header["owner"], point.tokens, header["complete"], size, 0)
        with self._lock:
            self._files[name] = file
        self.counts.spilled += 1
        self._shrink()

    # --- reading

    def _read(self, file: _File, owner: str) -> Point[A]:
        """Raises OSError, CorruptModel."""
        path = file.path
        try:
            with _opened(path) as stream:
                header = _read_header(path, stream)
                arrays, total = [], xxhash.xxh3_64()
                for kind, shape in header["arrays"]:
                    array = _array(path, stream, kind, shape, file.size_bytes)
                    total.update(array.reshape(-1).view(np.uint8).data)
                    arrays.append(array)
            if f"{total.intdigest():016x}" != header["sum"]:
                raise CorruptModel(path, "damaged: the checksum does not match")
            return self._point(owner, header, arrays)
        except _MALFORMED as error:
            raise CorruptModel(path, f"malformed: {error!r:.200}") from error

    def _point(self, owner: str, header: dict[str, Any], arrays: list[NDArray[Any]]) -> Point[A]:
        left = iter(arrays)
        tokens = next(left)
        lengths = {str(name): int(length) for name, length in header["lengths"].items()}
        if set(lengths) != self._cached or len(header["pages"]) != -(-len(tokens) // PAGE_TOKENS):
            raise ValueError("caches of another model")
        place = self._backend.array
        recurrent = {
            name: replace(
                part,
                **{
                    one.name: place(_of_shape(next(left), getattr(part, one.name)))
                    for one in fields(part)
                    if getattr(part, one.name) is not None
                },
            )
            for name, part in self._recurrent.items()
        }
        pages = []
        for index, count in enumerate(header["pages"]):
            start = index * PAGE_TOKENS
            caches = self._caches[:count]
            held = tuple(place(_rows_of(next(left), cache)) for cache in caches)
            stop = min(start + PAGE_TOKENS, len(tokens))
            pages.append(Page(start, stop, held, size_of(held)))
        trail = Trail(
            [(int(first), int(rows), place(next(left))) for first, rows in header["trail"]]
        )
        logits = next(left) if header["complete"] else None
        own = (
            tokens.nbytes
            + trail.size_bytes
            + sum(size_of(_parts(part)) for part in recurrent.values())
        )
        own += 0 if logits is None else size_of([logits])
        snapshot: Snapshot[A] = Snapshot(len(tokens), recurrent, lengths, trail)
        return Point(owner, tokens, snapshot, tuple(pages), logits, own)


def _arrays(point: Point[Any]) -> Iterator[Any]:
    """What a backend holds of a point, in the order of a file."""
    for part in point.snapshot.recurrent.values():
        yield from _parts(part)
    for page in point.pages:
        yield from page.arrays
    for _, _, wide in point.snapshot.trail.pieces:
        yield wide


def _parts(part: Any) -> Iterator[Any]:
    for one in fields(part):
        value = getattr(part, one.name)
        if value is not None:
            yield value


def _of_shape(array: NDArray[Any], like: Any) -> NDArray[Any]:
    if array.shape != tuple(like.shape):
        raise ValueError(f"shape {array.shape} where {tuple(like.shape)} is wanted")
    return array


def _rows_of(array: NDArray[Any], cache: Any) -> NDArray[Any]:
    if array.shape[1:] != tuple(cache.shape[1:]):
        raise ValueError(f"rows {array.shape[1:]} where {tuple(cache.shape[1:])} is wanted")
    return array


def _sum_of(text: bytes) -> bytes:
    return xxhash.xxh3_64_digest(text)


def _hidden(owner: str) -> str:
    return hashlib.blake2b(owner.encode(), digest_size=16).hexdigest()


def _array(path: Path, stream: Any, kind: str, shape: list[int], most: int) -> NDArray[Any]:
    """The next array of a file of `most` bytes."""
    if kind not in _DTYPES:
        raise CorruptModel(path, f"holds {kind!r:.40}")
    count = math.prod(shape)
    if min(shape) < 0 or count * np.dtype(kind).itemsize > most:
        raise CorruptModel(path, f"an array of {shape!r:.80}")
    array = np.fromfile(stream, np.dtype(kind), count)
    if array.size != count:
        raise CorruptModel(path, "ends too early")
    return array.reshape(shape)


def _opened(path: Path) -> Any:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would keep us
    descriptor = os.open(path, flags)
    return os.fdopen(descriptor, "rb")


def _read_header(path: Path, stream: Any) -> dict[str, Any]:
    start = stream.read(24)
    length = int.from_bytes(start[8:16], "little")
    if start[:8] != _MAGIC or len(start) != 24 or length > _MOST_HEADER_BYTES:
        raise CorruptModel(path, "is no point of a sequence")
    text = stream.read(length)
    if _sum_of(text) != start[16:]:
        raise CorruptModel(path, "damaged: the header's checksum does not match")
    try:
        header = json.loads(text)
    except ValueError as error:
        raise CorruptModel(path, "malformed header") from error
    if not isinstance(header, dict):
        raise CorruptModel(path, "malformed header")
    return header
