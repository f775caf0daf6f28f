"""A job of many ranks from the real traces of two."""

from __future__ import annotations

import re
from pathlib import Path

from isal import igzip

from tests.conftest import ROOT

SOURCES = sorted((ROOT / "fixtures" / "traces" / "ddp4").glob("*.json.gz"))
_RANK = re.compile(rb'("distributedInfo": \{[^\n]*?"rank": )\d+(, "world_size": )\d+')
_GROUP = re.compile(rb'"pg_size": \d+, "ranks": \[[^\]]*\]')


def copies(folder: Path, ranks: int, cut: int | None = None) -> Path:
    """A job of so many ranks; what is at the end of the trace of rank ``cut`` is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = ", ".join(str(rank) for rank in range(ranks)).encode()
    for rank in range(ranks):
        path = folder / f"rank{rank:05d}.pt.trace.json.gz"
        if path.exists():
            continue
        text = igzip.decompress(SOURCES[rank % len(SOURCES)].read_bytes())
        text = _RANK.sub(rb"\g<1>%d\g<2>%d" % (rank, ranks), text, count=1)
        text = _GROUP.sub(b'"pg_size": %d, "ranks": [%b]' % (ranks, listed), text, count=1)
        packed = igzip.compress(text, 1)
        path.write_bytes(packed[: len(packed) * 3 // 4] if rank == cut else packed)
    return folder
