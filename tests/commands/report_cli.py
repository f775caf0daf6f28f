"""Runs the command line in this process, as a user would type it."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from perfscope.cli import main


@dataclass(frozen=True)
class Run:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> Run:
    """Run ``perfscope ARGUMENTS``."""
    capsys.readouterr()
    code = _code(arguments)
    printed = capsys.readouterr()
    return Run(code, printed.out, printed.err)


def run_in(folder: Path, *arguments: object) -> Run:
    """Run ``perfscope ARGUMENTS`` in a folder."""
    out, err = StringIO(), StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = _code(arguments)
    return Run(code, out.getvalue(), err.getvalue())


def _code(arguments: tuple[object, ...]) -> int:
    before, sys.argv = sys.argv, ["perfscope", *map(str, arguments)]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        sys.argv = before
    return 0
