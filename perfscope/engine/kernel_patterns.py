"""Kernels of the user's own that communicate: a file of patterns, and traces in which they count as communication."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from perfscope.errors import SourceError, UsageError
from perfscope.tables.trace import Trace, Work

_COMMENT = "#"


def read_patterns(path: Path) -> tuple[str, ...]:
    """The regular expressions of a file, one a line; empty lines and those that begin with ``#`` say nothing.

    Raises:
        SourceError: It cannot be read, has no pattern, or a line is none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(path, f"cannot be read: {error}") from None
    patterns = [line for line in map(str.strip, lines) if line and not line.startswith(_COMMENT)]
    try:
        require_patterns(patterns)
    except UsageError as error:
        raise SourceError(path, f"cannot be used: {error.problem}") from None
    if not patterns:
        raise SourceError(path, "has no pattern", hint="a line is a regular expression, such as my_all_gather_kernel")
    return tuple(patterns)


def require_patterns(patterns: Sequence[str]) -> None:
    """Check that texts are regular expressions.

    Raises:
        UsageError: One is none.
    """
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"{pattern!r} is no regular expression: {error}") from None


def mark_communication(trace: Trace, patterns: Sequence[str]) -> Trace:
    """A trace in which kernels communicate that would compute, and in whose names a pattern is found."""
    if not patterns:
        return trace
    finds = [re.compile(pattern).search for pattern in patterns]
    matches = np.array([any(find(name) for find in finds) for name in trace.names], np.bool_)
    device = trace.device
    rows = matches[device.name] & device.is_work(Work.COMPUTE)
    if not rows.any():
        return trace
    return replace(trace, device=replace(device, work=np.where(rows, np.int8(Work.COMMUNICATION), device.work)))
