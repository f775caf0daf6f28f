"""Compresses what the windows of a run left, after its command has ended.

No process does it during training: it would be a child of the training process, which that may wait for.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from isal import igzip

from perfscope import wire
from perfscope.constants import MIB
from perfscope.wire.memory import MEMORY_FOLDER, MEMORY_SUFFIX

#: A quarter of the time of zlib at level 3, for files that are an eighth larger.
_LEVEL = 2


def compress_run(run_dir: Path) -> None:
    """Compress all traces and histories of memory; one that cannot be compressed stays plain, which readers accept."""
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    try:
        for _ in pool.map(_compress_if_possible, _find_plain(run_dir)):
            pass
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C the rest stays plain


def compress(path: Path) -> None:
    """Replace a file by its .gz, atomically.

    Raises:
        OSError: It cannot be written; the file is unchanged.
    """
    unfinished = path.with_name(f"{path.name}.gz.tmp")
    try:
        with path.open("rb") as source, igzip.open(unfinished, "wb", _LEVEL) as target:
            shutil.copyfileobj(source, target, MIB)
        unfinished.replace(f"{path}.gz")
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    path.unlink()


def _compress_if_possible(path: Path) -> None:
    with suppress(OSError):
        compress(path)


def _find_plain(run_dir: Path) -> Iterator[Path]:
    yield from (run_dir / wire.TRACES_FOLDER).rglob(f"[!.]*{wire.TRACE_SUFFIX}")  # hidden ones are unfinished
    yield from (run_dir / MEMORY_FOLDER).glob(f"[!.]*{MEMORY_SUFFIX}")
