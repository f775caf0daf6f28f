"""The check of an option that names an SVG file."""

from __future__ import annotations

from pathlib import Path

from perfscope.errors import UsageError


def require_svg(path: Path) -> Path:
    """Return a path that ends in .svg.

    Raises:
        UsageError: It does not.
    """
    if path.suffix.lower() != ".svg":
        raise UsageError(f"{path} does not end in .svg", hint="the drawing is written as SVG")
    return path
