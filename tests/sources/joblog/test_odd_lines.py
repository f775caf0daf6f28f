"""Lines that are almost those of records are read many at once as their rules read them one by one."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.record_logs import RecordLog
from tests.sources.joblog.lines import megatron, neox
from tests.sources.joblog.test_record_lines import LOGS, differences, read_both

NUMBER = re.compile(r"\d[\d.,]*(?:[eE][-+]?\d+)?")
TEXTS = (
    *(
        "1,024",
        "1,024.5",
        "nan",
        "inf",
        "-3",
        "-3.5",
        "1e-3",
        "1.5e+02",
        "",
        "1.2.3",
        "-",
        "1e",
        "1_000",
        "00012",
        "+5",
    ),
    *("123456789012", "12345678901234567", "0", "0.0", "5.", ".5", "1e400", f"3.{'0' * 40}1"),
)
ENDS: tuple[Callable[[str], str], ...] = (
    lambda line: f"{line}  ",
    lambda line: f"{line}\t",
    lambda line: f"{line} extra",
    lambda line: f"{line} 7",
    lambda line: f"{line}7",
    lambda line: f"{line}.",
    lambda line: f"extra {line}",
    lambda line: f"12 {line}",
    lambda line: f" {line}",
)
WRITTEN: dict[str, Callable[[int], str]] = {
    "megatron": lambda number: megatron(number, f"{100 + number % 9}.5", total=9000),
    "gpt-neox": lambda number: neox(number, 100.5 + number % 9, 99.5),
}
LINES: dict[str, Callable[[int], str]] = {**{log.name: log.line for log in LOGS}, **WRITTEN}
FIRST = 2001
RECORDS = 240


def oddities(line: str) -> Iterator[str]:
    """A line in which one thing is another."""
    for blank in re.finditer(r"(?<! ) (?! )", line):
        for text in ("  ", "\t", "     "):
            yield line[: blank.start()] + text + line[blank.end() :]
    for blank in re.finditer(" +", line):
        yield line[: blank.start()] + line[blank.end() :]
    for number in NUMBER.finditer(line):
        for text in TEXTS:
            yield line[: number.start()] + text + line[number.end() :]
    for change in ENDS:
        yield change(line)
    for length in range(10, len(line), 5):
        yield line[:length]


@pytest.mark.parametrize("name", sorted(LINES))
@pytest.mark.parametrize("seed", [1, 2])
def test_odd_lines_are_read_as_by_their_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, seed: int
) -> None:
    draw, path = random.Random(f"{name} {seed}"), tmp_path / "run.log"
    lines = [LINES[name](number) for number in range(FIRST, FIRST + RECORDS)]
    for row in range(40, RECORDS - 20, 4):
        lines[row] = draw.choice(list(oddities(lines[row].removesuffix("\n")))) + "\n"
    path.write_text("".join(lines), encoding="latin-1", newline="")
    slow, fast, _ = read_both(path, monkeypatch)
    assert differences(fast, slow) == []


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_doubled_blanks_are_read_as_by_their_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: RecordLog
) -> None:
    path, odd = tmp_path / "run.log", 0
    lines = [log.line(number) for number in range(FIRST, FIRST + RECORDS)]
    for row in range(40, RECORDS - 20, 4):
        blanks = list(re.finditer(r"(?<! ) (?! )", lines[row]))
        if blanks:
            blank = blanks[odd % len(blanks)]
            lines[row], odd = f"{lines[row][: blank.start()]}  {lines[row][blank.end() :]}", odd + 1
    path.write_text("".join(lines), encoding="latin-1", newline="")
    slow, fast, _ = read_both(path, monkeypatch)
    assert differences(fast, slow) == []
