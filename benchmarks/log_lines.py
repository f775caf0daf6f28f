"""How fast lines are read: those of each format, as ranks print them, and text that is no record.

Run: ``python -m benchmarks.log_lines [--megabytes 4]``, a minute. Each text is written to a file and read by
``read_log``; the figure is bytes over processor time of one process, the best of three. A log is an excerpt again and
again, with steps that go on. The limit is 20 MB/s.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tabulate import tabulate

from benchmarks.log_excerpts import EXCERPTS, ROOT
from perfscope.constants import MB
from perfscope.sources.joblog import read_log

RANKS = 8
_STEP = re.compile(rb"((?:iter|iteration|[Ss]tep|num_updates)\W{1,12})(\d+)")
BEST_OF = 3


def texts(size: int) -> Iterator[tuple[str, bytes]]:
    """Text that is no record, and bars of each trainer."""
    draw = random.Random(1)
    words = (ROOT / "CONTRIBUTING.md").read_bytes().split()
    line = b"[2024-05-22 08:03:27,373] [INFO] worker %d: fetched batch %d of shard %d in %.3f s\n"
    yield "lines with other numbers", b"".join(line % (n % 8, n, n % 999, n / 7) for n in range(size // 85))
    yield "prose", b"\n".join(b" ".join(draw.choices(words, k=14)) for _ in range(size // 95))
    for name, bar in (
        ("bars of a Trainer", b"\r%3d%%|##        | %d/9000000 [%d:%02d:00<50:00,  4.67s/it]"),
        (
            "bars of Lightning",
            b"\rEpoch 0: %3d%%|##        | %d/9000000 [%d:%02d:00<50:00,  4.67s/it, v_num=0, loss=1.0]",
        ),
    ):
        start = b"{'loss': 2.5, 'learning_rate': 1e-05, 'epoch': 0.1}\n"
        yield name, start + b"".join(bar % (n // 90_000, n, n // 60, n % 60) for n in range(size // len(bar)))


def records(size: int) -> Iterator[tuple[str, bytes]]:
    """Each excerpt again and again, with steps that go on."""
    for path in sorted(EXCERPTS.glob("*.log")):
        text = path.read_bytes()
        yield path.stem, b"".join(_later(text, number) for number in range(size // len(text) + 1))


def _later(text: bytes, number: int) -> bytes:
    return _STEP.sub(lambda step: step[1] + b"%d" % (int(step[2]) + 100 * number), text)


def of_ranks(text: bytes) -> bytes:
    """What several ranks print of a log, each with a label."""
    lines = text[: len(text) // RANKS].splitlines(keepends=True)[:-1]
    return b"".join(b"[default%d]:%s" % (rank, line) for line in lines for rank in range(RANKS))


def speed_mb_s(path: Path, text: bytes) -> float:
    """Megabytes a second of processor time."""
    path.write_bytes(text)
    best_s = float("inf")
    for _ in range(BEST_OF):
        begin = time.process_time()
        read_log(path)
        best_s = min(best_s, time.process_time() - begin)
    return len(text) / MB / best_s


def main() -> None:
    """Print the table, the slowest first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=float, default=4.0)
    size, load = int(parser.parse_args().megabytes * MB), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.log"
        rows: list[tuple[str, float, float | None]] = [
            (name, speed_mb_s(path, text), None) for name, text in texts(size)
        ]
        rows += [(name, speed_mb_s(path, text), speed_mb_s(path, of_ranks(text))) for name, text in records(size)]
    rows.sort(key=lambda row: row[1])
    print(f"One process; the load of {os.cpu_count()} cores was {load:.1f} when it began.\n")
    print(tabulate(rows, ("Text", "MB/s", f"{RANKS} labelled ranks"), tablefmt="pipe", floatfmt=".0f"))


if __name__ == "__main__":
    main()
