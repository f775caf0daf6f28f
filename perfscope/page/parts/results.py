"""The results of an analysis by their types, and why one is absent."""

from __future__ import annotations

from typing import TypeVar

from perfscope.engine.run import Analysis

_R = TypeVar("_R")


def result_of(analysis: Analysis, name: str, kind: type[_R]) -> _R | None:
    """A result, where there is one."""
    result = analysis.results.get(name)
    return result if isinstance(result, kind) else None


def why_absent(analysis: Analysis, *names: str) -> str:
    """Why analyzers gave no result, in a sentence."""
    reasons = [
        skip.reason for name in names for skip in (*analysis.skipped, *analysis.inapplicable) if skip.analyzer == name
    ]
    reason = "; ".join(dict.fromkeys(reasons)) or "this was not analyzed"
    return f"Nothing to show: {reason}."


def rank_name(rank: int | None) -> str:
    """What charts call a rank."""
    return "rank unknown" if rank is None or rank < 0 else f"rank {rank}"
