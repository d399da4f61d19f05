from __future__ import annotations

import pytest

from pipelines.format import (
    escape_unprintable,
    format_bytes,
    format_count,
    format_decimal,
    format_duration,
    format_number,
    format_percent,
    format_quantity,
    plural,
)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (1000, "1 kB"), (33_400_000, "33.4 MB"), (1.494e9, "1.49 GB"),
     (999_900, "1,000 kB"), (5e15, "5,000 TB")],
)  # fmt: skip
def test_sizes_have_three_significant_digits(size: float, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (59.94, "59.9 s"), (59.96, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"),
     (3600 * 24 * 16 + 4 * 3600, "16 days 4 h")],
)  # fmt: skip
def test_durations_use_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_counts_percentages_and_plurals() -> None:
    assert (format_count(1234567), format_count(None)) == ("1,234,567", "–")
    assert (format_percent(0.1254), format_percent(0.5, 0), format_percent(None)) == ("12.5%", "50%", "–")
    assert [plural(1, "file"), plural(2000, "file"), plural(2, "entry", "entries")] == [
        "1 file",
        "2,000 files",
        "2 entries",
    ]


def test_numbers_and_quantities() -> None:
    numbers = (1234, 0.123456, 3.0, True, "x", None, float("inf"))
    assert [format_number(value) for value in numbers] == ["1,234", "0.1235", "3", "True", "x", "–", "inf"]
    assert [format_decimal(1234.567), format_decimal(0.5, 3), format_decimal(None)] == ["1,234.57", "0.500", "–"]
    assert [format_quantity(number, "records") for number in (0, 2.345, 1234567)] == [
        "0 records",
        "2.3 records",
        "1,234,567 records",
    ]
    assert format_quantity(1_500_000, "bytes") == "1.5 MB"
    assert format_quantity(1, "records") == "1 record"


def test_characters_without_a_glyph_are_escaped() -> None:
    text = "a b\u00a0c\u3000\u200b\u202e\x1b\ufffd\u00e9"
    assert escape_unprintable(text) == "a b\\xa0c\\u3000\\u200b\\u202e\\x1b\ufffd\u00e9"
    assert escape_unprintable("a\n\x1b", keep="\n") == "a\n\\x1b"
