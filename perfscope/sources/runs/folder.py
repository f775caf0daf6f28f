"""Recognises the folder of a run, without what reads it."""

from __future__ import annotations

from pathlib import Path

from perfscope import wire


def is_run(path: Path) -> bool:
    """Whether a folder is a run of ``perfscope profile``."""
    return (path / wire.RUN_FILE).is_file() or (path / wire.RANKS_FOLDER).is_dir()
