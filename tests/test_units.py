"""Sizes and times as people write them."""

from __future__ import annotations

import pytest

from perfscope.errors import UsageError
from perfscope.units import format_bytes, format_parameters, format_seconds, parse_duration_ns, parse_parameters


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("52B", 52 * 10**9),
        ("7.5B", 75 * 10**8),
        ("1.3b", 13 * 10**8),
        ("52e9", 52 * 10**9),
        ("1_000_000", 10**6),
        (" 8 B ", 8 * 10**9),
    ],
)
def test_a_size_is_decimal(text: str, parameters: int) -> None:
    assert parse_parameters(text) == parameters


@pytest.mark.parametrize("text", ["52Q", "", "-52B", "0B", "52", "nan", "1.2.3B", "1e999B"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_parameters(text)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("127", 127 * 10**9),
        ("2m7s", 127 * 10**9),
        ("127000ms", 127 * 10**9),
        ("0.661s", 661 * 10**6),
        ("1h2m3s4ms5us6ns", 3723 * 10**9 + 4_005_006),
        ("1.5", 15 * 10**8),
    ],
)
def test_a_time_is_integer_nanoseconds(text: str, nanoseconds: int) -> None:
    assert parse_duration_ns(text) == nanoseconds


@pytest.mark.parametrize("text", ["0", "-1s", "", "s", "1x", "7s2m", "1s1s", "nan", "1e99"])
def test_what_is_no_positive_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration_ns(text)


def test_what_is_printed_is_short_and_has_its_unit() -> None:
    assert format_parameters(206 * 10**9) == "206B"
    assert format_bytes(999) == "999 B"
    assert format_bytes(2_172 * 10**9) == "2.17 TB"
    assert format_seconds(0.000_000_5) == "0.5 us"
