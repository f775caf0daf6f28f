"""A way to ask the command line in this process, and models of a size that a reader can multiply out."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from perfscope.cli import main
from tests.conftest import ROOT, Ended

FIXTURES = ROOT / "fixtures" / "flops"


def ask(*words: str | Path | float) -> Ended:
    """Run ``perfscope WORDS`` in this process."""
    out, error = io.StringIO(), io.StringIO()
    code = 0
    with (
        patch.object(sys, "argv", ["perfscope", *(str(word) for word in words)]),
        redirect_stdout(out),
        redirect_stderr(error),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
    return Ended(code, out.getvalue(), error.getvalue())


def answer(*words: str | Path | float) -> dict[str, Any]:
    """The JSON of a command that must succeed."""
    ended = ask(*words, "--format", "json")
    assert ended.code == 0, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


def by_name(document: dict[str, Any], group: str = "conventions") -> dict[str, dict[str, Any]]:
    """The conventions of an answer by their names."""
    return {each["name"]: each for each in document[group]}


def refused(*words: str | Path | float, code: int = 2) -> str:
    """The line that a command which must be refused says, without a traceback."""
    ended = ask(*words)
    assert ended.code == code, (ended.code, ended.stdout, ended.stderr)
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    return ended.stderr
