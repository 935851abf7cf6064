"""From a selector to a store that can be opened: found, or prepared on the way."""

from __future__ import annotations

import importlib.resources
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cherenkov.architectures import family_of
from cherenkov.checkpoint.documents import CONFIG_LIMIT_BYTES, checked_path, is_file, read_object
from cherenkov.checkpoint.shards import fingerprint, has_draft_head, hub_hint
from cherenkov.checkpoint.source import Checkpoint, open_checkpoint
from cherenkov.config import load_settings
from cherenkov.errors import ConfigError, DiskError, ModelError, ModelNotFound
from cherenkov.events import Listener, Note, ignore
from cherenkov.packing.lowbit import DERIVATIONS, REFIT, TRUNCATE, WIDTHS
from cherenkov.packing.lower import lower
from cherenkov.packing.pack import pack
from cherenkov.packing.plan import make_plan
from cherenkov.packing.store import MANIFEST, PackedStore
from cherenkov.packing.verify import Report
from cherenkov.packing.verify import verify as verify_store

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "DEMO",
    "demo_folder",
    "expanded",
    "is_checkpoint",
    "is_store",
    "locate",
    "open_source",
    "prepare",
    "verify",
]

DEMO = "demo"
"""Selector of the model that ships with the package."""


def locate(
    selector: str | os.PathLike[str],
    on_event: Listener = ignore,
    data_dir: Path | None = None,
) -> Path:
    """The store that a selector names, prepared into the data directory first if it names a checkpoint.

    Args:
        selector: `"demo"`, or the folder of a store or of a checkpoint.
        on_event: told of progress and choices.
        data_dir: the data directory; None for that of the settings.

    Raises:
        ModelNotFound: if there is no such folder, or it holds no model.
        ModelError, DiskError: from preparing.
    """
    if checked_path("selector", selector) == DEMO:
        return _prepared(demo_folder(), DEMO, on_event, data_dir)
    folder = expanded(selector)
    if is_store(folder):
        return folder
    if is_checkpoint(folder):
        resolved = folder.resolve()
        return _prepared(resolved, resolved.name, on_event, data_dir)
    raise _not_found(selector, folder)


def verify(path: str | os.PathLike[str], on_event: Listener = ignore) -> Report:
    """Compare every byte of a store with its checksums, and name what differs.

    Args:
        path: the folder of a store, or `"demo"`, whose store is made first if there is none.
        on_event: told of progress.

    Raises:
        ModelNotFound: if there is no store.
        UnsupportedModel: if a later release wrote it.
        DiskError: if the system refuses to read.
    """
    is_demo = checked_path("path", path) == DEMO
    return verify_store(locate(path, on_event) if is_demo else expanded(path), on_event)


def demo_folder() -> Path:
    """The checkpoint that ships with the package. Packages are installed as folders, so it is one."""
    return Path(str(importlib.resources.files("cherenkov") / DEMO))


def is_store(folder: Path) -> bool:
    """There is a packed store in the folder, in either layout. Raises DiskError if that cannot be seen."""
    return is_file(folder / MANIFEST) or is_file(folder / "packed" / MANIFEST)


def is_checkpoint(folder: Path) -> bool:
    """There is a configuration in the folder, and so perhaps a checkpoint. Raises as `is_store`."""
    return is_file(folder / "config.json")


def open_source(
    folder: Path, on_event: Listener = ignore, *, draft_head: bool = True
) -> Checkpoint:
    """Open a checkpoint folder for preparing: recognised, complete, every shape right.

    Args:
        folder: of the checkpoint.
        on_event: told what is left out.
        draft_head: take the draft head, if there is one; it must be complete then.

    Raises:
        ModelNotFound, UnsupportedModel, CorruptModel, DiskError: as the trouble is.
    """
    config = _config(folder)
    family = family_of(config)
    if not draft_head:
        config = family.without_draft(config)
    elif family.inventory(config) != family.inventory(
        family.without_draft(config)
    ) and not has_draft_head(folder):
        on_event(
            Note("the configuration declares a draft head, but the files hold none: going without")
        )
        config = family.without_draft(config)
    return open_checkpoint(folder, family.inventory(config), config)


def prepare(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    bits: int | None = None,
    experts: Iterable[int] = (),
    lowbit: str = REFIT,
    draft_head: bool = True,
    threads: int = 0,
    on_event: Listener = ignore,
) -> Path:
    """Turn a checkpoint into a packed store, or add experts of fewer bits to a store.

    Args:
        source: the folder of a Hugging Face or MLX checkpoint, or `"demo"`; to add experts, also that of a store.
        output: the store's folder, which must not hold anything else. None adds `experts` to the store that `source`
            names, as `Model.load` finds it.
        bits: of the experts and projections: 4, 8, or 16 to leave BF16 as it is; None takes what the checkpoint
            comes quantised to, or else 4.
        experts: widths that routed experts should be there in, such as `(4, 3, 2)`: the store's own is there anyway, 3
            and 2 are made from it, or from the checkpoint if that is BF16 and still there.
        lowbit: how: `refit` minimises the error; `truncate` gives the Rust engine's files, which only it computes with.
        draft_head: take the draft head, if the checkpoint has one; False for a store without, also of files where it
            is incomplete.
        threads: workers, 0 for one a core.
        on_event: told of progress and choices.

    Returns:
        The store's folder.

    Raises:
        ModelNotFound, UnsupportedModel, CorruptModel: the source cannot be used; says why.
        ConfigError: an option makes no sense, or `output` is no place for a store.
        DiskError: no space, or the system refused to read or write.
    """
    widths = tuple(experts)
    checked_path("source", source)
    if lowbit not in DERIVATIONS:
        raise ConfigError("lowbit", lowbit, f"must be {' or '.join(DERIVATIONS)}")
    if output is None:
        if not widths:
            raise ConfigError("output", None, "give the folder that the store will be")
        if bits is not None:
            raise ConfigError("bits", bits, "the store is there already: only experts are added")
        store = locate(source, on_event)
    else:
        checked_path("output", output)
        checkpoint, target = _unpacked(source, output, on_event, draft_head=draft_head)
        if widths:  # refused now, and not when the store is written
            _check_widths(make_plan(checkpoint, bits, None).bits, widths, lowbit)
        store = pack(checkpoint, target, bits=bits, threads=threads, on_event=on_event)
    if widths:
        _add_experts(PackedStore.open(store), widths, lowbit, threads, on_event)
    return store


def _unpacked(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    on_event: Listener,
    *,
    draft_head: bool,
) -> tuple[Checkpoint, Path]:
    """A checkpoint that is no store yet, and where that shall be."""
    folder = demo_folder() if os.fspath(source) == DEMO else expanded(source)
    try:
        target = Path(output).expanduser()
    except RuntimeError as error:  # there is no such user
        raise ConfigError("output", os.fspath(output), str(error)) from None
    if is_file(folder / MANIFEST):
        raise ConfigError("output", os.fspath(output), f"{folder} is a store already")
    if not is_checkpoint(folder):
        raise _not_found(source, folder)
    return open_source(folder, on_event, draft_head=draft_head), target


def _check_widths(own: int, widths: tuple[int, ...], lowbit: str) -> None:
    """Refuse what cannot be made of experts of `own` bits."""
    for bits in widths:
        if bits != own and bits not in WIDTHS:
            raise ConfigError("experts", bits, f"must be {own}, as the store is, or 3 or 2")
    if lowbit == TRUNCATE and own != 4 and set(widths) != {own}:
        raise ConfigError("lowbit", lowbit, "only 4-bit experts can be truncated")


def _add_experts(
    store: PackedStore, widths: tuple[int, ...], lowbit: str, threads: int, on_event: Listener
) -> None:
    """Make what is missing of the widths that a store should have."""
    own = store.expert_layout.bits
    _check_widths(own, widths, lowbit)
    lower_widths = [bits for bits in widths if bits != own]
    if lower_widths:
        source = _source_of(store) if lowbit == REFIT else None
        if source is not None:
            on_event(Note(f"experts of fewer bits are made from the BF16 ones in {source.folder}"))
        lower(
            store.path,
            lower_widths,
            derivation=lowbit,
            source=source,
            threads=threads,
            on_event=on_event,
        )


def _source_of(store: PackedStore) -> Checkpoint | None:
    """The checkpoint that a store was prepared from, if it is BF16, still there, and the same."""
    folder = Path(store.manifest.source_dir)
    try:
        if store.integrity is None or not is_checkpoint(folder):
            return None
        if fingerprint(folder) != store.integrity.fingerprint:
            return None
        checkpoint = open_source(folder)
    except (ModelError, DiskError):
        return None  # no longer of use; the store's own experts always are
    return checkpoint if checkpoint.expert_format is None else None


def _prepared(folder: Path, name: str, on_event: Listener, data_dir: Path | None) -> Path:
    """The store of this very source in the data directory. Its name holds the fingerprint, so it is never stale."""
    home = data_dir or load_settings().data_dir
    target = home / "stores" / f"{name}-{fingerprint(folder)[:12]}"
    if is_store(target):
        return target
    checkpoint = open_source(folder, on_event)
    on_event(Note(f"preparing {folder} into {target}, once"))
    return pack(checkpoint, target, on_event=on_event, wait_for_other=True)


def _config(folder: Path) -> dict[str, Any]:
    return read_object(folder / "config.json", CONFIG_LIMIT_BYTES)


def expanded(selector: str | os.PathLike[str]) -> Path:
    """The folder that a selector names, in a user's home if it says so.

    Raises:
        ModelNotFound: if there is no such user.
    """
    try:
        return Path(selector).expanduser()
    except RuntimeError:
        raise ModelNotFound(os.fspath(selector), [], "there is no such user") from None


def _not_found(selector: str | os.PathLike[str], folder: Path) -> ModelNotFound:
    if folder.is_dir():
        return ModelNotFound(
            os.fspath(selector),
            [str(folder / MANIFEST), str(folder / "config.json")],
            "the folder holds neither a store nor a checkpoint",
        )
    name = os.fspath(selector)
    hint = f'give the folder of a store or checkpoint, or "{DEMO}"{hub_hint(name)}'
    return ModelNotFound(name, [str(folder)], hint)
