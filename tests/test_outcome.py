"""What a command prints is made piece by piece: the same bytes, in memory that does not grow with the ranks."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from perfscope.constants import KIB, MIB
from perfscope.outcome import Outcome
from perfscope.packed import pack
from perfscope.renderers import Format, render
from perfscope.report import Column, Json, Report, Section, list_entries
from tests.conftest import ROOT

RANKS = 8192
STREAMED = (Format.JSON, Format.CSV)
#: A command whose answer is larger than a pipe holds, and where the number of its last rank is none.
PROGRAM = """
import sys
from perfscope import cli
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from tests.test_outcome import RANKS, report_of
last = float(sys.argv[1])
outcome = Outcome(report_of(RANKS, last), Format.JSON)
cli._run = lambda: cli.end(outcome, quiet=True)
cli.main()
"""


def entry_of(rank: int, ranks: int, last: float) -> Json:
    return {"rank": rank, "times": [rank / 3, 1e-7 if rank + 1 < ranks else last], "host": {"name": f"host{rank // 8}"}}


def report_of(ranks: int, last: float = 1.5) -> Report:
    entries = list_entries(range(ranks), lambda rank: entry_of(rank, ranks, last))
    rows = pack((f"rank {rank}", rank / 3, None if rank % 2 else "a, b") for rank in range(ranks))
    columns = (Column("Rank"), Column("Time (ms)"), Column("Cause"))
    section = Section("Times", columns, rows[:2], every=rows, is_aggregated=True)
    return Report("Title", {"schema": "x", "results": {"a": {"ranks": entries}}}, (section,), ("a doubt",))


def test_json_of_many_ranks_is_what_the_standard_library_writes() -> None:
    report = report_of(RANKS)
    results: Any = report.data["results"]
    plain = {"schema": "x", "results": {"a": {"ranks": list(results["a"]["ranks"])}}, "warnings": ["a doubt"]}
    blocks = list(Outcome(report, Format.JSON).blocks())
    assert len(blocks) > 2
    assert "".join(blocks) == json.dumps(plain, indent=2) + "\n"


@pytest.mark.parametrize("chosen", [None, *Format])
@pytest.mark.parametrize("ranks", [0, 1, RANKS])
def test_blocks_are_the_text(chosen: Format | None, ranks: int) -> None:
    outcome = Outcome(report_of(ranks), chosen)
    text = render(report_of(ranks), chosen or Format.MARKDOWN)
    assert "".join(outcome.blocks()) == outcome.output() == text


def test_a_text_is_one_block_and_none_where_there_is_nothing_to_say() -> None:
    assert list(Outcome(text="said\n").blocks()) == ["said\n"]
    assert list(Outcome().blocks()) == []


def test_names_that_are_no_text_come_through() -> None:
    rows = [(f"{rank:04}\udc80.json",) for rank in range(40_000)]
    report = Report("Title", {}, (Section("A", (Column("File"),), rows),))
    blocks = list(Outcome(report, Format.CSV).blocks())
    assert len(blocks) > 1
    assert "".join(blocks) == render(report, Format.CSV)


@pytest.mark.parametrize("chosen", STREAMED)
def test_memory_does_not_grow_with_the_ranks(chosen: Format) -> None:
    peaks, sizes = [], []
    for ranks in (4 * RANKS, 16 * RANKS):
        outcome = Outcome(report_of(ranks), chosen)
        tracemalloc.start()
        sizes.append(sum(map(len, outcome.blocks())))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert sizes[1] > 3.9 * sizes[0]
    assert peaks[1] < 1.1 * peaks[0] + 64 * KIB
    assert peaks[1] < 3 * MIB


def test_a_number_that_is_none_is_told_before_there_is_a_block() -> None:
    outcome = Outcome(report_of(RANKS, float("nan")), Format.JSON)
    with pytest.raises(ValueError, match="JSON"):
        outcome.blocks()


def test_where_no_file_can_be_written_the_text_waits_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_of(RANKS)
    expected = render(report, Format.JSON)

    def refuse(**_: object) -> None:
        raise OSError

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    assert "".join(Outcome(report, Format.JSON).blocks()) == expected


def started(last: float) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", PROGRAM, str(last)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    process = started(1.5)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(1) == b"{"
    process.stdout.close()
    complaint = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), complaint) == (1, b"")


def test_an_answer_that_fails_at_its_end_prints_nothing() -> None:
    process = started(float("inf"))
    printed, complaint = process.communicate()
    assert (process.returncode, printed) == (1, b"")
    assert b"ValueError" in complaint


def test_a_full_disk_behind_standard_output_is_told() -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM, "1.5"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith(b"perfscope: standard output cannot be written: No space left")
    assert ended.stderr.count(b"\n") == 1
