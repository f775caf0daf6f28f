"""What the command line prints beside a report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    "start",
    [
        "import perfscope_toolkit; perfscope_toolkit.main()",
        "import runpy; runpy.run_module('perfscope', run_name='__main__', alter_sys=True)",
    ],
)
def test_below_a_limit_of_files_no_bytecode_is_cut_off(tmp_path: Path, start: str) -> None:
    limited = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"
        "import sys; sys.argv = ['perfscope', '--version']\n" + start
    )
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    answer = subprocess.run(
        [sys.executable, "-c", limited], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert answer.returncode == 0, answer.stderr
    names = [path.name for path in tmp_path.rglob("*.pyc")]
    assert any(name.startswith("__future__.") for name in names), "nothing was written"
    assert not [name for name in names if name.startswith(("cli.", "app.", "search_path."))]
