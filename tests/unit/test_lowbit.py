"""Experts in fewer bits beside a store: made once, opened by width, refused when they are not what they should be."""

from __future__ import annotations

import json
import random
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from cherenkov.architectures import family_of
from cherenkov.backends import native_weights
from cherenkov.backends.records import expert_matrices
from cherenkov.checkpoint.affine import bf16_to_float32, unpack
from cherenkov.errors import (
    Cancelled,
    ConfigError,
    CorruptModel,
    ModelNotFound,
    UnsupportedModel,
)
from cherenkov.events import Note, Progress
from cherenkov.inspection import inspect
from cherenkov.model import Model
from cherenkov.packing import lower as lower_module
from cherenkov.packing import meter as meter_module
from cherenkov.packing.lowbit import at_precision, open_lowbit
from cherenkov.packing.lower import JOURNAL, lower
from cherenkov.packing.pack import pack
from cherenkov.packing.refit import refit_codes, refit_values
from cherenkov.packing.store import PackedStore
from cherenkov.packing.truncate import truncated
from cherenkov.packing.verify import verify
from cherenkov.preparation import prepare
from cherenkov.units import GB
from tests.checkpoints import opened, small, tree
from tests.tiny import TINY

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("source") / "tiny")[0]


@pytest.fixture(scope="module")
def prepared(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with both widths, made from the BF16 checkpoint."""
    folder = tmp_path_factory.mktemp("prepared") / "store"
    return prepare(source, folder, experts=(4, 3, 2))


@pytest.fixture
def store(prepared: Path, tmp_path: Path) -> Path:
    return shutil.copytree(prepared, tmp_path / "store")


def record(low, index: int) -> np.ndarray:
    return np.fromfile(
        low.path, np.uint8, low.layout.stride_bytes, offset=index * low.layout.stride_bytes
    )


def parts(store: Path, bits: int, index: int):
    low = open_lowbit(PackedStore.open(store), bits)
    return expert_matrices(low.layout, record(low, index))


def base_matrices(store: Path, index: int):
    base = PackedStore.open(store)
    stride = base.expert_layout.stride_bytes
    slot = np.fromfile(base.experts_path, np.uint8, stride, offset=index * stride)
    return expert_matrices(base.expert_layout, slot)


def test_records_are_refits_of_the_checkpoint(source: Path, store: Path) -> None:
    checkpoint = opened(source)
    base = PackedStore.open(store)
    for bits in (3, 2):
        assert open_lowbit(base, bits).origin == "bf16"
        for index in (0, 13, base.records - 1):
            layer, expert = divmod(index, base.manifest.experts.experts)
            blocks = checkpoint.experts[layer].blocks[expert]
            for found, block in zip(parts(store, bits, index), blocks, strict=True):
                group = base.expert_layout.group
                expected = refit_values(bf16_to_float32(block.read().codes), bits, group)
                for ours, theirs in zip(
                    (found.codes, found.scales, found.biases), expected, strict=True
                ):
                    np.testing.assert_array_equal(ours, theirs)


def test_without_the_checkpoint_the_store_itself_is_refitted(source: Path, tmp_path: Path) -> None:
    store = pack(opened(source), tmp_path / "store")
    lower(store, [3, 2])
    assert open_lowbit(PackedStore.open(store), 3).origin == "4 bits"
    for bits in (3, 2):
        for found, matrix in zip(parts(store, bits, 5), base_matrices(store, 5), strict=True):
            for ours, theirs in zip(
                (found.codes, found.scales, found.biases), refit_codes(matrix, bits), strict=True
            ):
                np.testing.assert_array_equal(ours, theirs)
    # from BF16 is better, so it is made again once the checkpoint can be had
    prepare(store, experts=[3, 2])
    assert open_lowbit(PackedStore.open(store), 3).origin == "bf16"
    before = tree(store)
    lower(store, [3, 2])  # but what came from BF16 is not replaced by what does not
    assert tree(store) == before


def test_a_checkpoint_that_changed_is_no_source(source: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(source, tmp_path / "copy")
    store = pack(opened(copy), tmp_path / "store")
    (copy / "config.json").write_text((copy / "config.json").read_text() + "\n")
    prepare(store, experts=[2])
    assert open_lowbit(PackedStore.open(store), 2).origin == "4 bits"


def test_truncation_gives_the_codes_of_the_store_without_their_last_bits(store: Path) -> None:
    prepare(store, experts=[3, 2], lowbit="truncate")
    base = PackedStore.open(store)
    for bits in (3, 2):
        low = open_lowbit(base, bits)
        found, offsets = record(low, 7), low.layout.offsets()
        for name, matrix in zip(("gate", "up", "down"), base_matrices(store, 7), strict=True):
            for part, values in (
                ("w", truncated(unpack(matrix.codes, 4), bits)),
                ("s", matrix.scales.reshape(-1).view(np.uint8)),
                ("b", matrix.biases.reshape(-1).view(np.uint8)),
            ):
                start = offsets[f"{name}_{part}"]
                np.testing.assert_array_equal(found[start : start + len(values)], values)
        manifest = json.loads((store / f"manifest{bits}.json").read_text())
        assert list(manifest) == ["bits", "layout", "stride", "records", "w", "s", "source"]
        assert manifest["layout"] == "vectorized"
        assert (store / f"experts{bits}.bin").stat().st_size == base.records * manifest["stride"]
        with pytest.raises(UnsupportedModel, match=rf"cherenkov prepare .*store --experts {bits}"):
            at_precision(base, bits)
    assert verify(store).ok


@pytest.mark.parametrize("bits", [3, 2])
@pytest.mark.parametrize("backend", ["reference", "native"])
def test_a_model_runs_on_them_and_the_pool_does_not_matter(
    prepared: Path, bits: int, backend: str
) -> None:
    if backend == "native" and native_weights.missing:
        pytest.skip(f"no native kernels here: {native_weights.missing}")
    ids = [1, 5, 9, 2, 7]
    with Model.load(prepared, backend=backend, context_tokens=32) as model:
        exact = model.logits(ids)
    rows = []
    low = at_precision(PackedStore.open(prepared), bits)
    least = family_of(low.config).sizes(low.config).top_k * low.expert_layout.stride_bytes / GB
    for pool in ("max", least):
        with Model.load(
            prepared, backend=backend, context_tokens=32, experts=bits, pool=pool
        ) as model:
            rows.append(model.logits(ids))
            assert model.experts.pool.layout.bits == bits
    np.testing.assert_array_equal(*rows)
    assert not np.array_equal(rows[0], exact)
    assert np.abs(rows[0] - exact).max() < np.abs(exact).max()


def test_the_stores_own_width_is_the_store(prepared: Path) -> None:
    store = PackedStore.open(prepared)
    assert at_precision(store, 4) is store


def test_what_is_there_is_not_made_again(store: Path) -> None:
    times = {p.name: p.stat().st_mtime_ns for p in store.iterdir()}
    heard: list[object] = []
    prepare(store, experts=[4, 3, 2], on_event=heard.append)
    assert {p.name: p.stat().st_mtime_ns for p in store.iterdir()} == times
    assert any(isinstance(e, Note) and "are there" in e.message for e in heard)
    (store / "manifest2.json").unlink()
    prepare(store, experts=[3, 2])
    assert (store / "experts3.bin").stat().st_mtime_ns == times["experts3.bin"]
    assert verify(store).ok


def test_threads_and_passes_do_not_matter(source: Path, prepared: Path, tmp_path: Path) -> None:
    other = prepare(source, tmp_path / "store", experts=[2], threads=1)
    prepare(other, experts=[3], threads=4)
    names = [
        n for b in (3, 2) for n in (f"experts{b}.bin", f"manifest{b}.json", f"integrity{b}.json")
    ]
    for name in names:
        assert (other / name).read_bytes() == (prepared / name).read_bytes()


# --- refusals


def refused(store: Path, kind: type[Exception], match: str, bits: int = 3) -> None:
    with pytest.raises(kind, match=match) as caught:
        at_precision(PackedStore.open(store), bits)
    assert "\n" not in str(caught.value)
    if kind is not ConfigError:
        assert f"cherenkov prepare {store} --experts {bits}" in str(caught.value)


def test_missing_and_half_built_ones_say_what_to_type(store: Path) -> None:
    (store / "manifest3.json").unlink()
    refused(store, ModelNotFound, "half built; go on with")
    (store / "experts3.bin").unlink()
    (store / "integrity3.json").unlink()
    refused(store, ModelNotFound, "make them with")


def test_those_of_other_experts_are_stale(store: Path, tmp_path: Path) -> None:
    tiny = TINY["plain"]
    from tests.tiny import weights, write_hf

    other = write_hf(tmp_path / "source", tiny.config, weights(tiny.text, tiny.seed + 1))
    other_store = pack(opened(other), tmp_path / "other")
    for name in ("experts3.bin", "manifest3.json", "integrity3.json"):
        shutil.copy(store / name, other_store / name)
    refused(other_store, CorruptModel, "other experts than the store's")
    prepare(other_store, experts=[3])
    assert verify(other_store).ok


def test_weights_that_are_not_finite_are_refused(source: Path, tmp_path: Path) -> None:
    base = pack(opened(source), tmp_path / "base")
    layout = PackedStore.open(base).expert_layout
    (base / "integrity.json").unlink()  # as another program writes it, without checksums
    with (base / "experts.bin").open("r+b") as file:
        file.seek(layout.stride_bytes + layout.offsets()["up_s"])
        file.write(b"\x80\x7f")  # infinity
    with pytest.raises(CorruptModel, match=r"record 1 .*up has weights that are not finite"):
        prepare(base, experts=[3, 2])
    assert not list(base.glob("*3*")) + list(base.glob("*.journal"))
    prepare(base, experts=[3], lowbit="truncate")  # scales stay what they are


def test_damaged_ones_are_refused(store: Path) -> None:
    text = (store / "manifest3.json").read_bytes()
    (store / "manifest3.json").write_bytes(text.replace(b'"bits": 3', b'"bits": 2'))
    refused(store, CorruptModel, "checksum does not match")
    (store / "manifest3.json").write_bytes(text)
    with (store / "experts3.bin").open("r+b") as file:
        file.truncate(1000)
    refused(store, CorruptModel, "cut short")
    (store / "experts3.bin").unlink()
    refused(store, CorruptModel, "missing")
    (store / "integrity2.json").unlink()
    refused(store, UnsupportedModel, "without checksums", bits=2)


def test_widths_that_make_no_sense(source: Path, store: Path, tmp_path: Path) -> None:
    refused(store, ConfigError, "must be 4, as the store's are, or 3 or 2", bits=8)
    for widths in ([5], [8, 3], [0]):
        with pytest.raises(ConfigError, match="must be 4, as the store is, or 3 or 2"):
            prepare(store, experts=widths)
    with pytest.raises(ConfigError, match="must be refit or truncate"):
        prepare(store, experts=[3], lowbit="guess")
    early = tmp_path / "early"  # refused before there is a store, which may take an hour
    for options, reason in (
        ({"experts": [5]}, "must be 4, as the store is"),
        ({"lowbit": "guess"}, "must be refit or truncate"),
        ({"experts": [3], "bits": 8, "lowbit": "truncate"}, "only 4-bit experts"),
    ):
        with pytest.raises(ConfigError, match=reason):
            prepare(source, early, **options)
        assert not early.exists()
    with pytest.raises(ConfigError, match="is a store already"):
        prepare(store, tmp_path / "other", experts=[3])
    with pytest.raises(ConfigError, match="give the folder"):
        prepare(store)
    with pytest.raises(ConfigError, match="only experts are added"):
        prepare(store, experts=[3], bits=4)
    eight = prepare(source, tmp_path / "eight", bits=8)
    with pytest.raises(ConfigError, match="only 4-bit experts can be truncated"):
        prepare(eight, experts=[3], lowbit="truncate")
    prepare(eight, experts=[3])
    assert verify(eight).ok


def test_inspecting_lists_them(store: Path) -> None:
    found = inspect(store)["lower_experts"]
    assert [(e["bits"], e["derivation"], e["origin"]) for e in found] == [
        (3, "refit", "bf16"),
        (2, "refit", "bf16"),
    ]
    (store / "manifest3.json").unlink()
    assert "half built" in inspect(store)["lower_experts"][0]["problem"]


# --- damage


def test_every_flipped_bit_is_found(store: Path) -> None:
    files = [
        store / n
        for b in (3, 2)
        for n in (f"experts{b}.bin", f"manifest{b}.json", f"integrity{b}.json")
    ]
    rng = random.Random(5)
    for number in range(120):
        file = files[number % len(files)]
        data = bytearray(file.read_bytes())
        bit = rng.randrange(len(data) * 8)
        data[bit // 8] ^= 1 << bit % 8
        sound = file.read_bytes()
        file.write_bytes(data)
        (problem,) = verify(store).problems
        file.write_bytes(sound)
        assert problem.file == file.name, (file.name, bit)
        if file.suffix == ".bin":
            stride = open_lowbit(PackedStore.open(store), int(file.stem[-1])).layout.stride_bytes
            assert problem.item.startswith(f"record {bit // 8 // stride} (")
    assert verify(store).ok


def test_a_wrong_record_of_the_store_is_not_passed_on(store: Path) -> None:
    with (store / "experts.bin").open("r+b") as file:
        file.seek(1000)
        file.write(b"\0\1\2\3")
    (store / "manifest3.json").unlink()
    with pytest.raises(CorruptModel, match=r"record 0 \(layer 0, expert 0\)"):
        lower(store, [3])
    assert not (store / "experts3.bin").exists()
    assert (store / "experts2.bin").exists()


def test_cancelled_work_goes_on_where_it_was(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lower_module, "_RECORDS", 1)
    monkeypatch.setattr(meter_module, "_REPORT_S", 0)  # after each part, however fast they are
    store = pack(opened(source), tmp_path / "store")
    expected = tree(lower(shutil.copytree(store, tmp_path / "expected"), [3, 2]))
    seen = 0

    def stop(event: object) -> None:
        nonlocal seen
        seen += isinstance(event, Progress)
        if seen:
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        lower(store, [3, 2], on_event=stop, at_risk_bytes=0, threads=1)
    assert (store / JOURNAL).exists()
    with pytest.raises(ModelNotFound, match=r"half built; go on with: .* --experts 3,2$"):
        open_lowbit(PackedStore.open(store), 3)
    heard: list[object] = []
    lower(store, [3, 2], on_event=heard.append)
    assert any(isinstance(e, Note) and e.message.startswith("resuming") for e in heard)
    assert tree(store) == expected
