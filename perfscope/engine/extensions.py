"""Analyzers of other distributions, imported by the registry where one may be installed."""

from __future__ import annotations

from importlib.metadata import entry_points

from perfscope.engine.registry import Analyzer


def load_analyzers(group: str) -> tuple[Analyzer, ...]:
    """The analyzers that installed distributions name in a group of entry points."""
    return tuple(entry.load() for entry in entry_points(group=group))
