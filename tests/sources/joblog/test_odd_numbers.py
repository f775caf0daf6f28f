"""A log is read whatever stands where its numbers do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.log_excerpts import EXCERPTS, load
from perfscope.sources.joblog import read_log
from perfscope.sources.joblog.registry import FORMATS

NUMBER = re.compile(rb"\d+(?:[.,]\d+)*")
#: Python refuses to read integers of over 4,300 digits.
ODD = (b"9" * 5000, b"9" * 400, b"1e400", b"1.2.3", b".", b",", b"-", b"0", b"")
#: One of each framework.
PATHS = {excerpt.expect["framework"]: excerpt.path for excerpt in load(EXCERPTS)}
MOST_NUMBERS = 30
LONGEST = 3000


def with_one_odd_number(text: bytes, odd: bytes) -> list[bytes]:
    lines = dict.fromkeys(re.sub(rb"\d", b"5", line) for line in text.split(b"\n") if len(line) < LONGEST)
    numbers = [(line, number.span()) for line in lines for number in [*NUMBER.finditer(line)][:MOST_NUMBERS]]
    return [line[:begin] + odd + line[end:] for line, (begin, end) in numbers]


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_no_number_is_too_odd(path: Path, tmp_path: Path) -> None:
    text, log = path.read_bytes(), tmp_path / "run.log"
    for odd in ODD:
        log.write_bytes(b"\n".join((NUMBER.sub(odd, text), *with_one_odd_number(text, odd))))
        read_log(log)


def test_no_word_of_a_rule_has_too_odd_a_number_behind_it(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    anchors = [rule.anchor for log_format in FORMATS for rule in log_format.rules]
    for odd in ODD:
        log.write_bytes(b"\n".join(anchor + between + odd for anchor in anchors for between in (b"", b": ", b" = ")))
        read_log(log)
