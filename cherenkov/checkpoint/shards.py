"""The weight files of a checkpoint folder: found, vetted, and merged into one table of tensors.

An index may only name plain files of the folder itself, and must agree with the shards tensor by tensor. Links are
followed only as the Hugging Face cache lays them, from a snapshot into the `blobs` folder beside it.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cherenkov.checkpoint.documents import LIMIT_BYTES, is_there, read_bytes, read_object
from cherenkov.checkpoint.names import canonical, is_vision
from cherenkov.checkpoint.safetensors import SafetensorsFile
from cherenkov.errors import CorruptModel, DiskError, ModelNotFound, UnsupportedModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

__all__ = [
    "INDEX",
    "Stored",
    "TensorTable",
    "fingerprint",
    "has_draft_head",
    "hub_hint",
    "open_shards",
    "vetted",
]

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DRAFT = "mtp.safetensors"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_TEXT = (".json", ".jinja")
_COUNTED = (*_TEXT, ".safetensors", ".gguf", ".bin")


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor where it lies: `name` is what its file calls it."""

    file: SafetensorsFile
    name: str

    @property
    def dtype(self) -> str:
        """Its type, in the format's spelling."""
        return self.file.tensors[self.name].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.file.tensors[self.name].shape

    def read(self) -> NDArray[Any]:
        """All of it."""
        return self.file.read(self.name)

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Rows of it seen as `[rows, last dimension]`."""
        return self.file.read_flat(self.name, start, stop)


class TensorTable:
    """The tensors of a checkpoint by canonical name. It remembers which ones were asked for."""

    def __init__(self, folder: Path, tensors: dict[str, Stored]) -> None:
        self.folder = folder
        self._tensors = tensors
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def get(self, name: str) -> Stored | None:
        """A tensor, if there is one."""
        self._used.add(name)
        return self._tensors.get(name)

    def need(self, name: str) -> Stored:
        """A tensor that must be there.

        Raises:
            CorruptModel: if it is not.
        """
        found = self.get(name)
        if found is None:
            raise CorruptModel(self.folder, "the checkpoint lacks this tensor", item=name)
        return found

    def unused(self) -> list[str]:
        """Tensors that nobody asked for, by the names that the files give them."""
        return [t.name for name, t in self._tensors.items() if name not in self._used]

    def values(self) -> Iterable[Stored]:
        """Every tensor, asked for or not."""
        return self._tensors.values()


def vetted(folder: Path, name: str) -> Path:
    """The path of a file that the model itself names.

    Raises:
        CorruptModel: if the name is not that of a plain file, or leads out of the folder.
    """
    path = folder / name
    if not name or name in {".", ".."} or set(name) & set("/\\\0"):
        raise CorruptModel(folder, "names a file outside the folder", item=repr(name)[:200])
    try:
        real = path.resolve()
        home = folder.resolve()
    except ValueError:  # half a surrogate pair
        raise CorruptModel(folder, "no file can have this name", item=repr(name)[:200]) from None
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        raise CorruptModel(path, f"cannot be followed: {error}") from None
    if real.parent not in {home, home.parent.parent / "blobs"}:
        raise CorruptModel(path, "a link that leads out of the folder", found=real)
    return path


def open_shards(folder: Path) -> TensorTable:
    """Every text tensor of a checkpoint by its canonical name.

    Raises:
        ModelNotFound: if the folder holds no weights.
        UnsupportedModel: if they are in another format.
        CorruptModel: if the index and the shards disagree, a shard is damaged, or two tensors mean the same.
        DiskError: if the system refuses to read.
    """
    files = _indexed(folder) if is_there(folder / INDEX) else [_single(folder)]
    if is_there(folder / DRAFT) and not any(file.path.name == DRAFT for file in files):
        files.append(SafetensorsFile.open(vetted(folder, DRAFT)))
    table: dict[str, Stored] = {}
    for file in files:
        for name in file.tensors:
            ours = canonical(name)
            if is_vision(name):
                continue
            if ours in table:
                raise CorruptModel(
                    file.path, f"means the same as {table[ours].name}", item=name[:200]
                )
            table[ours] = Stored(file, name)
    return TensorTable(folder, table)


def has_draft_head(folder: str | os.PathLike[str]) -> bool:
    """Whether the files hold an MTP head; configurations promise one even where it was left out.

    Raises:
        ModelError, DiskError: as `open_shards`.
    """
    return any(name.startswith("mtp.") for name in open_shards(Path(folder)))


def fingerprint(folder: Path) -> str:
    """SHA-256 over names, lengths and times of the model's files, and the content of the short ones.

    Raises:
        DiskError: if the system refuses to read.
    """
    digest = hashlib.sha256()
    path = folder
    try:
        names = sorted(n for n in os.listdir(folder) if n.endswith(_COUNTED))  # noqa: PTH208
        for name in names:
            path = folder / name
            status = path.stat()
            digest.update(os.fsencode(name))  # which need not be text
            digest.update(f"\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
            if name.endswith(_TEXT) and status.st_size <= LIMIT_BYTES:
                digest.update(read_bytes(path))
    except OSError as error:
        raise DiskError.wrap(error, path, "read") from error
    return digest.hexdigest()


def hub_hint(name: str) -> str:
    """How to fetch what was not found, if its name can be one of the Hugging Face Hub; else nothing."""
    if not _HUB_NAME.fullmatch(name) or Path(name).parent.exists():
        return ""
    return f"; if it is one of the Hugging Face Hub: hf download {name} --local-dir FOLDER"


def _single(folder: Path) -> SafetensorsFile:
    if is_there(folder / SINGLE):
        return SafetensorsFile.open(vetted(folder, SINGLE))
    if not folder.is_dir():
        raise ModelNotFound(str(folder), [str(folder)], "no such folder" + hub_hint(str(folder)))
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    if shards and shards != [DRAFT]:
        raise CorruptModel(folder / INDEX, "missing: without it the shards cannot be checked")
    if any(folder.glob("*.gguf")):
        raise UnsupportedModel(
            f"{folder}: a GGUF model", known="safetensors in Hugging Face or MLX layout"
        )
    raise ModelNotFound(
        str(folder), [str(folder / SINGLE), str(folder / INDEX)], "not a model folder"
    )


def _indexed(folder: Path) -> list[SafetensorsFile]:
    """The shards that the index names, checked against it both ways."""
    path = vetted(folder, INDEX)
    places = read_object(path).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(v, str) for v in places.values()):
        raise CorruptModel(path, "not a map from tensors to files", item="weight_map")
    files = {
        name: SafetensorsFile.open(vetted(folder, name)) for name in sorted(set(places.values()))
    }
    for tensor, name in places.items():
        if tensor not in files[name].tensors:
            raise CorruptModel(folder / name, "listed in the index but absent", item=tensor[:200])
    for name, file in files.items():
        for tensor in file.tensors:
            if places.get(tensor) != name:
                raise CorruptModel(
                    file.path, "not listed in the index for this file", item=tensor[:200]
                )
    return list(files.values())
