"""Kernels of the user's own that communicate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfscope.engine.kernel_patterns import read_patterns

Kernels = Annotated[
    Path | None,
    typer.Option(
        "--kernels",
        metavar="FILE",
        help="Count further kernels as communication: a regular expression a line, searched for in their names.",
        show_default="the libraries that perfscope knows",
    ),
]


def read_kernels(path: Path | None) -> tuple[str, ...]:
    """The patterns of a file; none without one.

    Raises:
        SourceError: It cannot be read, or a line is no regular expression.
    """
    return () if path is None else read_patterns(path)
