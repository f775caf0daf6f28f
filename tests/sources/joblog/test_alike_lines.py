"""What is read of lines that differ in digits alone is what is read of each of them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np
import pytest

from benchmarks.advancing_logs import advancing_logs
from benchmarks.record_logs import record_logs
from perfscope.sources.joblog.bulk.cells import STAMP, Cells
from perfscope.sources.joblog.bulk.record_lines import ShapeSplitter
from perfscope.sources.joblog.formats import lightning, torchtune
from perfscope.sources.joblog.registry import FORMATS
from perfscope.sources.joblog.step_times.bar_columns import find_bars
from perfscope.sources.joblog.step_times.progress_bars import _BAR as BAR
from perfscope.sources.joblog.text.alike_lines import FoundSpans, find_each, find_in_lines, find_lines

LINE = re.compile(rb"^step (\d+)(?:/(\d{1,3}))?: loss ([\d.]+)\n", re.MULTILINE)
WITHIN = re.compile(rb"(\d+)/(\d{1,3}):")
BARS = {
    "trainer": (BAR, b"%|"),
    "lightning": (lightning._BAR, b"v_num="),
    "validations": (lightning._BAR_OR_VALIDATION, b": "),
    "torchtune": (torchtune._BAR, b"|Loss: "),
}
NUMBERS = ["0", "5.", ".5", "0.1", "12.345678", "123456789012345", "1234567890.12345", "0.12345678901234567"]
NUMBERS += ["1e5", "1.5e-05", "-3.25", "1.2.3", "-", "e", ".", "9" * 40, "1e31", "000.10", "1.7976931348623157e308"]


def some_lines() -> bytes:
    draw = random.Random(4)
    kinds = ("step %d: loss %.2f\n", "step %d/%d: loss %.1f\n", "step %d/%d: loss %.1f 7/8: 1\n", "%d/%d: 3/4:%.0f\n")
    lines = []
    for _ in range(400):
        kind = draw.choice(kinds)
        numbers = (draw.randrange(10 ** draw.randrange(1, 5)), draw.randrange(2000), draw.random() * 300)
        lines.append(kind % (numbers[0], numbers[2]) if kind.count("%") == 2 else kind % numbers)
    return "".join(lines).encode()


def spans(found: FoundSpans) -> list[list[tuple[int, int]]]:
    """The match and its groups in each row, as ``re`` gives them."""
    groups = found.groups[found.kinds]
    places = np.where(groups < 0, -1, groups + found.starts[:, np.newaxis, np.newaxis]).tolist()
    ends = zip(found.starts.tolist(), found.ends.tolist(), strict=True)
    return [[whole, *map(tuple, row)] for whole, row in zip(ends, places, strict=True)]


@pytest.mark.parametrize(
    ("find", "pattern"), [(find_lines, LINE), (find_each, LINE), (find_in_lines, WITHIN), (find_each, WITHIN)]
)
def test_the_spans_are_those_of_each_line(find: Callable[[re.Pattern[bytes], bytes], FoundSpans], pattern: Any) -> None:
    text = some_lines()
    expected = [[match.span(group) for group in range(pattern.groups + 1)] for match in pattern.finditer(text)]
    found = find(pattern, text)
    assert spans(found) == expected
    assert len(found.examples) < len(expected) / 4


@pytest.mark.parametrize("text", [b"", b"\n", b"\n\n\n", b"step x\n"])
def test_text_without_a_match_has_no_rows(text: bytes) -> None:
    for find in (find_lines, find_in_lines, find_each):
        cells = Cells(find(LINE, text), ("step", "total", "loss"))
        assert len(cells.integers("step")) == len(cells.numbers("loss")) == len(cells.contain("step", b"0")) == 0


def cells_of(texts: list[str], name: str = "x") -> Cells:
    text = "".join(f"{number} of {each};\n" for number, each in enumerate(texts)).encode()
    return Cells(find_lines(re.compile(rb"\d+ of ([^;]*);\n"), text), (name,))


def test_numbers_are_those_of_float() -> None:
    draw = random.Random(2)
    texts = NUMBERS + [f"{draw.random() * 10 ** draw.randrange(-3, 9):.{draw.randrange(1, 18)}f}" for _ in range(3000)]

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            return float("nan")
        return value if abs(value) < 1e30 else float("nan")

    np.testing.assert_array_equal(cells_of(texts).numbers("x"), [number(text) for text in texts])
    assert cells_of(texts).texts("x") == texts


def test_counts_are_those_of_int() -> None:
    texts = [str(10**width + 7 * width) for width in range(18)] * 3 + ["007", "0"]
    assert cells_of(texts).integers("x").tolist() == list(map(int, texts))


def test_dates_are_those_of_datetime() -> None:
    texts = ["2024-05-22 08:03:27,373", "2024/02/29T23:59:59.123456789", "1971-01-01 00:00:00", "2024-12-31 23:00:01.5"]
    missing = ["2023-02-29 08:03:27", "2024-13-01 00:00:00", "2024-05-22 24:00:00", "2024-05-22 08:60:00"]
    missing += ["2024-05-22 08:03:60", "0000-00-00 00:00:00", "9999-01-01 00:00:00"]
    expected = []
    for text in texts:
        whole, _, fraction = text.replace("/", "-").replace("T", " ").replace(",", ".").partition(".")
        seconds = (datetime.fromisoformat(whole) - datetime(1970, 1, 1)).total_seconds()
        expected.append(int(seconds) * 10**9 + int(fraction.ljust(9, "0")))
    assert cells_of(texts + missing, STAMP).stamps_ns().tolist() == expected + [0] * len(missing)


def test_clocks_are_hours_minutes_and_seconds() -> None:
    clocks = cells_of(["06:45", "1:00:02", "12345:59:59", "00:00"]).clocks_s("x")
    assert clocks.tolist() == [405, 3602, 12345 * 3600 + 3599, 0]


def test_rows_are_told_by_their_text() -> None:
    cells = cells_of(["10", "7", "10", "v_num=3", "10"])
    assert cells.are_same("x").tolist() == [True, False, True, False, True]
    assert cells.contain("x", b"v_num=0").tolist() == [False, False, False, True, False]
    assert cells.text("x", 3) == b"v_num=3"
    assert cells_of(["1", "9.5", "3", "9.5"]).row_of_peak("x") == 1


@pytest.mark.parametrize("name", BARS)
def test_bars_are_found_as_one_by_one(name: str) -> None:
    pattern, anchor = BARS[name]
    for log in advancing_logs():
        text = log.text(30_000).replace("\r", "\n").encode("latin-1")
        for between in (b"", b"".join(b"words of prose %d\n" % number for number in range(5000))):
            cells = find_bars(pattern, text + between, anchor)
            found = [match.groups() for match in pattern.finditer(text) if anchor in match[0] or name != "lightning"]
            assert len(cells.spans.starts) >= len(found)
            rows = range(len(cells.spans.starts))
            groups = spans(cells.spans)
            seen = [tuple(cells.spans.text[b:e] if b >= 0 else None for b, e in groups[row][1:]) for row in rows]
            assert [each for each in found if each not in seen] == []


def test_patterns_of_columns_take_any_digit_for_another() -> None:
    patterns = [column.text for log in FORMATS for path in log.fast_paths for column in columns(path.split)]
    assert patterns
    for text in {*patterns, *(pattern.pattern.decode("latin-1") for pattern, _ in BARS.values())}:
        assert not re.search(r"\d", re.sub(r"\{\d*,?\d*\}|\\x[89af]\d|\\[dx]", "", text)), text


def columns(split: Any) -> list[Any]:
    if not isinstance(split, ShapeSplitter):
        return []
    return [column for kind in split.kinds for column in kind.columns.values()]


def test_digits_of_a_name_are_not_those_of_another_line() -> None:
    log = next(log for log in record_logs() if log.name == "nanogpt-2023")
    lines = [f"h100node7x {log.line(number)}" for number in range(200)]
    lines[100:150] = [line.replace("h100node7x", "h200node7x") for line in lines[100:150]]
    block = ShapeSplitter((log.kind,))("".join(lines).encode(), len("".join(lines)), np.empty(0, np.bool_))
    assert block is not None
    others = [line for line in block.rest.decode().splitlines() if line.startswith("h200")]
    assert len(others) == 50
