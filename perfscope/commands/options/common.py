"""The option of every command, and checks of values that typer cannot make."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfscope.errors import UsageError
from perfscope.renderers import Format

FormatOption = Annotated[Format, typer.Option("--format", "-f", help="How to print the result.")]


def require_positive(name: str, value: int) -> int:
    """Return a count that is at least 1.

    Raises:
        UsageError: It is not.
    """
    if value < 1:
        raise UsageError(f"{name} must be at least 1, not {value}")
    return value


def require_svg(path: Path) -> Path:
    """Return a path that ends in .svg.

    Raises:
        UsageError: It does not.
    """
    if path.suffix.lower() != ".svg":
        raise UsageError(f"{path} does not end in .svg", hint="the drawing is written as SVG")
    return path
