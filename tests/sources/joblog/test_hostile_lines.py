"""Lines made of halves of records take no time that grows with their square."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from benchmarks.log_excerpts import EXCERPTS as FOLDER
from benchmarks.log_excerpts import load
from perfscope.sources.joblog.log_format import MOST_OF_LINE
from perfscope.sources.joblog.reading import read_log
from perfscope.sources.joblog.registry import FORMATS
from tests.ratios import assert_ratio

#: One of each framework.
EXCERPTS = list({excerpt.expect["framework"]: excerpt.path for excerpt in load(FOLDER)}.values())
TOTAL = 60_000
LENGTHS = (5_000, 15_000)
#: Half records are read as fast as whole ones; at the square of a line's length they took a hundred times as long.
MOST_OF_RECORDS = 12
#: Texts before, within and behind a long run of which two parts of a pattern may be.
OVERLAPPING = (
    ("", "1", "MiB / x"),
    ("step: 7 loss: x", "1", "  tps:"),
    ("steps: 7 loss: x", "1", " iter time (s):"),
    ("number of parameters", "1", "  Billion"),
    ("", "iteration 7/7 |xglobal_step: 7 xtrain_step_timing in s:", ""),
    ("", "1", " grad accum steps * "),
    ("  a ..: (7, 7) ", " ", " ..: "),
)
NANOGPT_AND_MEGATRON = (
    "iter %d: loss 4.1200, time 250.10ms, mfu 12.00%% ",
    " iteration %8d/ 100 | consumed samples: 8 | elapsed time per iteration (ms): 250.1 | loss scale: 1.0 | ",
)


def halves(text: str) -> list[str]:
    line = max(text.splitlines(), key=len)
    cuts = [match.end() for match in re.finditer(r"[\s|,:=]", line)]
    places = [cuts[len(cuts) * part // 5] for part in (1, 2, 3, 4)]
    return [*(line[:place] for place in places), *(line[place:] for place in places[1:3])]


@pytest.mark.parametrize("path", EXCERPTS, ids=lambda path: path.stem)
def test_a_line_of_half_records_takes_no_longer_than_records(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    log, records = tmp_path / "run.log", tmp_path / "records.log"
    records.write_text(text * (TOTAL // len(text) + 1))
    for part in halves(text):
        for length in LENGTHS:
            line = (part * (length // len(part) + 1))[:length] + "\n"
            log.write_text(line * (TOTAL // length))
            assert_ratio(partial(read_log, log), partial(read_log, records), MOST_OF_RECORDS)


def test_a_rule_that_reaches_beyond_its_line_is_tried_at_one_place() -> None:
    """A search in each of many lines, up to where the rule reaches, would cost the square of the text."""
    rules = [rule for log_format in FORMATS for rule in log_format.rules if rule.spans_lines]
    assert rules
    assert not [rule.anchor for rule in rules if not rule.begin]


@pytest.mark.parametrize("records", [1, 2, MOST_OF_LINE, MOST_OF_LINE + 1, 40])
@pytest.mark.parametrize("record", NANOGPT_AND_MEGATRON, ids=["nanogpt", "megatron"])
def test_of_more_records_than_ranks_print_on_a_line_the_first_is_read(
    record: str, records: int, tmp_path: Path
) -> None:
    log = tmp_path / "run.log"
    lines = ["".join(record % (line * records + place) for place in range(1, records + 1)) for line in range(3)]
    log.write_text("\n".join(lines) + "\n")
    numbers = read_log(log).iterations.iteration.compressed().tolist()
    read = range(1, records + 1) if records <= MOST_OF_LINE else (1,)
    expected = [line * records + place for line in range(3) for place in read]
    assert [number - numbers[0] + 1 for number in numbers] == expected


@pytest.mark.parametrize(("begin", "run", "end"), OVERLAPPING, ids=lambda text: text[:12].strip() or "-")
def test_a_long_run_is_no_slower_than_other_text(begin: str, run: str, end: str, tmp_path: Path) -> None:
    """Two parts of a pattern that can share a run of the same text in many ways took the square of its length."""
    log, other = tmp_path / "run.log", tmp_path / "other.log"
    line = begin + run * (1500 // len(run)) + end + "\n"
    log.write_text(line * (TOTAL // len(line)))
    other.write_text("".join(f"{number:x}" for number in range(TOTAL // 4)) + "\n")
    assert_ratio(partial(read_log, log), partial(read_log, other), MOST_OF_RECORDS)


def test_a_match_fits_into_the_span_of_its_rule() -> None:
    rules = [rule for log_format in FORMATS for rule in log_format.rules if rule.span]
    assert rules
    for rule in rules:
        longest = re._parser.parse(rule.regex.pattern.decode("latin-1")).getwidth()[1]  # type: ignore[attr-defined]
        assert rule.span is not None
        assert longest - len(rule.anchor) <= sum(rule.span), rule.anchor
