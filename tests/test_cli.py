"""What the command line prints beside a report."""

from __future__ import annotations

import sys

import pytest

from perfscope import cli
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Report

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
