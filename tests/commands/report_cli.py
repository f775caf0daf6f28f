"""Runs the command line in this process, as a user would type it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
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
    before = sys.argv
    sys.argv = ["perfscope", *map(str, arguments)]
    capsys.readouterr()
    try:
        main()
        code: object = 0
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
    printed = capsys.readouterr()
    return Run(code if isinstance(code, int) else 0 if code is None else 1, printed.out, printed.err)
