"""What the command line prints beside a report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfscope import cli
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Column, Json, Report, Section
from tests.conftest import ROOT

WARNING = "00000/steps.jsonl: ends in half a line"
NOTES = (f"warning: {WARNING}", "another note")


def printed(capsys: pytest.CaptureFixture[str], chosen: Format) -> str:
    """All that a person sees of a report with a warning, which is noted, too."""
    outcome = Outcome(Report("Title", {"schema": "x"}, (), (WARNING,)), chosen, notes=NOTES)
    with pytest.raises(SystemExit):
        cli.end(outcome, quiet=False)
    seen = capsys.readouterr()
    return seen.out + seen.err


@pytest.mark.parametrize("chosen", list(Format))
def test_on_a_terminal_each_warning_is_printed_once(
    chosen: Format, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    text = printed(capsys, chosen)
    assert text.count(WARNING) == 1
    assert "another note" in text


def test_where_a_report_goes_to_a_file_its_warnings_are_on_the_terminal_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, Format.MARKDOWN).count(WARNING) == 2


RANKS = 8192
#: A command whose answer is larger than a pipe holds, and where the number of its last rank is none.
PROGRAM = """
import sys
from perfscope import cli
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from tests.test_cli import RANKS, report_of
last = float(sys.argv[1])
outcome = Outcome(report_of(RANKS, last), Format.JSON)
cli._run = lambda: cli.end(outcome, quiet=True)
cli.main()
"""


def entry_of(rank: int, ranks: int, last: float) -> Json:
    return {"rank": rank, "times": [rank / 3, 1e-7 if rank + 1 < ranks else last], "host": {"name": f"host{rank // 8}"}}


def report_of(ranks: int, last: float = 1.5) -> Report:
    entries = [entry_of(rank, ranks, last) for rank in range(ranks)]
    rows = tuple((f"rank {rank}", rank / 3, None if rank % 2 else "a, b") for rank in range(ranks))
    columns = (Column("Rank"), Column("Time (ms)"), Column("Cause"))
    section = Section("Times", columns, rows[:2], every=rows, is_aggregated=True)
    return Report("Title", {"schema": "x", "results": {"a": {"ranks": entries}}}, (section,), ("a doubt",))


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
