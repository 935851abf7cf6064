"""The journal of finished parts: what is committed counts, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cherenkov.packing.journal import Journal, read_journal

if TYPE_CHECKING:
    from pathlib import Path

KEY = {"fingerprint": "abc", "bits": 4}
PARTS = {3: [1, 2, (1 << 64) - 1], 0: [], 7: [5]}


def write(path: Path) -> bytes:
    with Journal(path, KEY, {}) as journal:
        for part, sums in PARTS.items():
            journal.add(part, sums)
            journal.commit()
    return path.read_bytes()


def test_round_trip(tmp_path: Path) -> None:
    write(tmp_path / "journal")
    assert read_journal(tmp_path / "journal", KEY) == PARTS


def test_only_commits_count(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal", KEY, {}) as journal:
        journal.add(1, [2])
        assert read_journal(tmp_path / "journal", KEY) == {}
        journal.commit()
        journal.commit()
        assert read_journal(tmp_path / "journal", KEY) == {1: [2]}


def test_other_work_is_not_ours(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "journal", KEY) is None
    write(tmp_path / "journal")
    assert read_journal(tmp_path / "journal", KEY | {"bits": 8}) is None
    (tmp_path / "journal").write_bytes(b"")
    assert read_journal(tmp_path / "journal", KEY) is None


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_torn_or_garbled_lines_end_it(tmp_path: Path, data: st.DataObject) -> None:
    text = write(tmp_path / "journal")
    size = data.draw(st.integers(0, len(text)))
    (tmp_path / "journal").write_bytes(text[:size] + data.draw(st.binary(max_size=40)))
    found = read_journal(tmp_path / "journal", KEY)
    assert found is None or all(PARTS[part] == sums for part, sums in found.items())


def test_it_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    text = write(tmp_path / "journal")
    (tmp_path / "journal").write_bytes(text[:-5])
    found = read_journal(tmp_path / "journal", KEY)
    assert found is not None
    assert list(found) == [3, 0]
    with Journal(tmp_path / "journal", KEY, found) as journal:
        journal.add(9, [9])
        journal.commit()
    assert read_journal(tmp_path / "journal", KEY) == {3: PARTS[3], 0: [], 9: [9]}
