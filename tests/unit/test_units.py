"""Sizes and durations, as people write and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cherenkov.units import GB, GIB, KIB, format_bytes, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1000000", 10**6),
        ("4GiB", 4 * GIB),
        (" 2.5 gb ", 2_500_000_000),
        ("1k", 1000),
        ("1.5KiB", 1536),
        ("0.1GB", 10**8),
        ("9007199254740993", 9007199254740993),
        ("3TiB", 3 << 40),
        ("7B", 7),
    ],
)
def test_parse(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "GB", "-1", "1.2.3GB", "1 XB", "1e9", "nan", "1GB2", "٣GBs", "1\nGB\x00"]
)
def test_no_size(text):
    with pytest.raises(ValueError, match="is no size"):
        parse_bytes(text)


def test_sizes_of_any_length_are_read_or_refused():
    assert parse_bytes("9" * 400) > GB


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.7, "1 kB"),
        (1000, "1 kB"),
        (KIB, "1.02 kB"),
        (999_499, "999 kB"),
        (999_700, "1 MB"),
        (2_768_896, "2.77 MB"),
        (999_999_999, "1 GB"),
        (104_400_000_000, "104 GB"),
        (1.5e12, "1.5 TB"),
        (4e15, "4000 TB"),
        (-5000, "-5 kB"),
    ],
)
def test_format_bytes(size, text):
    assert format_bytes(size) == text


@given(st.integers(0, 10**18))
def test_format_bytes_is_plain_and_close(size):
    text = format_bytes(size)
    assert "e" not in text
    assert abs(parse_bytes(text) - size) <= max(0.5, 0.005001 * size)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0123, "12 ms"),
        (0.9997, "1.0 s"),
        (1, "1.0 s"),
        (59.96, "1 min 00 s"),
        (61, "1 min 01 s"),
        (3599.7, "1 h 00 min"),
        (7385, "2 h 03 min"),
    ],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text
