"""Lines made of halves of records take no time that grows with their square."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from perfscope.sources.joblog import read_log
from tests.conftest import ROOT

EXCERPTS = sorted((ROOT / "fixtures" / "published_logs").glob("*.log"))
TOTAL = 120_000
LENGTHS = (5_000, 15_000)
SLOWEST_S = 0.15  # 0.8 MB/s, where the square of a line's length gave 0.05


def halves(text: str) -> list[str]:
    line = max(text.splitlines(), key=len)
    cuts = [match.end() for match in re.finditer(r"[\s|,:=]", line)]
    places = [cuts[len(cuts) * part // 5] for part in (1, 2, 3, 4)]
    return [*(line[:place] for place in places), *(line[place:] for place in places[1:3])]


@pytest.mark.parametrize("path", EXCERPTS, ids=lambda path: path.stem)
def test_a_line_of_half_records_is_read_in_time(path: Path, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    for part in halves(path.read_text()):
        for length in LENGTHS:
            line = (part * (length // len(part) + 1))[:length] + "\n"
            log.write_text(line * (TOTAL // length))
            begin = time.process_time()
            read_log(log)
            assert time.process_time() - begin < SLOWEST_S, part


@pytest.mark.parametrize(
    "text", [b"a b ", b"\x1b[32mstep: 1 ", b"{'loss': ", b"| iteration 7/ 9 | ", b"\xff\xfe 9%|", b"7" * 40]
)
def test_ten_megabytes_in_one_line_take_no_longer_than_a_fifth_of_a_second(text: bytes, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_bytes(b"begin\n" + text * (10_000_000 // len(text)) + b"\nend\n")
    begin = time.process_time()
    read_log(log)
    assert time.process_time() - begin < 0.2


def test_text_that_is_no_record_is_passed_over_quickly(tmp_path: Path) -> None:
    words = (ROOT / "CONTRIBUTING.md").read_bytes().split()
    log = tmp_path / "run.log"
    lines = [b" ".join(words[n % 900 : n % 900 + 14]) + b" %d" % n for n in range(60_000)]
    log.write_bytes(b"\n".join(lines))
    read_log(log)
    begin = time.process_time()
    read_log(log)
    assert (
        log.stat().st_size / (time.process_time() - begin) > 30e6
    )  # 74 MB/s where it was measured, 17 without the search
