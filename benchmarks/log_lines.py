"""How fast lines of every kind are read: text that is no record, bars, hostile lines, and the records of each format.

Run: ``python -m benchmarks.log_lines``, a few minutes. Each text is written to a file and read by ``read_log``; the
figure is bytes over processor time of one process, the best of three where it is less than twice the limit of 50 MB/s.
The first table is that of ``docs/logs.md``. Lines of half records are made of the published excerpts: parts of their
lines, repeated up to 4 and to 15 KB, with the number of the line at its end, in 1.2 MB.

Records of an excerpt are read in three forms. The first goes on, as a job does, in 32 MB: the record of the excerpt
with ascending steps and a clock that goes on, or where one shape is not enough, its lines with counters that advance;
an excerpt without a counter is of lines that a job prints once. It is also read as eight ranks print it, but for files
of metrics, which one process writes. The second is the excerpt again and again in 32 MB, a few lines that go back each
time, which no job prints: a restart, or a copy of another process, at every few records. As this text repeats itself
byte by byte, it is counted. The third, of 5 MB, has a line that counts between each two, so that it is read. The last
columns are those of a perl one-liner that adds up one number of every line, as people do, over the first form.
"""

from __future__ import annotations

import os
import random
import re
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from benchmarks.advancing_logs import advancing_logs
from benchmarks.log_excerpts import EXCERPTS, ROOT
from benchmarks.record_logs import record_logs
from perfscope.constants import MB, S_PER_HOUR
from perfscope.sources.joblog import read_log

SIZE = 10_000_000
HOSTILE_SIZE = 1_200_000
LONG_SIZE = 32_000_000
BETWEEN_SIZE = 5_000_000
PERL = r"m|.*[ :=(](\d+\.\d+)| && do {$x+=$1; $c++}; END { print $c ? $x/$c : 0 }"
LENGTHS = (4_000, 15_000)
PARTS = 6
BEST_OF = 3
RANKS = 8
LIMIT_MB_S = 50
#: Files that a trainer writes beside its log: one process writes them.
METRICS_FILES = frozenset(
    {"detectron2-metrics", "mask2former-metrics", "mmcv-json", "mmengine-scalars", "mmengine-scalars-2023"}
)


def texts() -> Iterator[tuple[str, bytes]]:
    """Text that is no record."""
    draw = random.Random(1)
    words = (ROOT / "CONTRIBUTING.md").read_bytes().split()
    line = b"[2024-05-22 08:03:27,373] [INFO] worker %d: fetched batch %d of shard %d in %.3f s\n"
    yield "lines with other numbers", b"".join(line % (n % 8, n, n % 999, n / 7) for n in range(SIZE // 85))
    yield "prose", b"\n".join(b" ".join(draw.choices(words, k=14)) for _ in range(SIZE // 95))
    yield "hexadecimal digits", b"\n".join(draw.randbytes(50).hex().encode() for _ in range(SIZE // 100))
    yield "one line", b"a b " * (SIZE // 4)
    bar = "\r{:3d}%|##        | {}/200000 [{}<00:50,  4.67s/it]"
    bars = "".join(bar.format(n // 2000, n, _draw_clock(n // 2)) for n in range(190_000))
    yield "bars of a Trainer", b"{'loss': 2.5, 'learning_rate': 1e-05, 'epoch': 0.1}\n" + bars.encode() + b"\n"
    losses = "\r{{'loss': {}, 'grad_norm': 1.0229653120040894, 'learning_rate': 1e-05, 'epoch': 0.1}}"
    both = "".join(bar.format(n // 2000, n, _draw_clock(n // 2)) + losses.format(n / 7) for n in range(70_000))
    yield "bars and losses of a Trainer in turn", both.encode() + b"\n"
    bar = "\rEpoch 0: {:3d}%|##        | {}/200000 [{}<00:50,  4.67s/it, v_num=0, loss=1.0]"
    yield "bars of Lightning", "".join(bar.format(n // 2000, n, _draw_clock(n // 2)) for n in range(140_000)).encode()
    bar = "\r1|{}|Loss: 1.25: {:3d}%|##        | {}/200000 [{}<00:50,  4.67s/it]"
    yield (
        "bars of torchtune",
        "".join(bar.format(n, n // 2000, n, _draw_clock(n // 2)) for n in range(140_000)).encode(),
    )
    bar = "\rLoading checkpoint shards: {:3d}%|##        | {}/200000 [{}<00:50,  4.67s/it]"
    yield "other bars", "".join(bar.format(n // 2000, n, _draw_clock(n // 2)) for n in range(140_000)).encode()


def _draw_clock(seconds: int) -> str:
    """The clock of a bar, as tqdm draws it."""
    hours = f"{seconds // S_PER_HOUR}:" if seconds >= S_PER_HOUR else ""
    return f"{hours}{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def hostile_texts() -> Iterator[bytes]:
    """Lines of half records."""
    for path in sorted(EXCERPTS.glob("*.log")):
        line = max(path.read_text().splitlines(), key=len)
        cuts = [match.end() for match in re.finditer(r"[\s|,:=]", line)]
        for place in (cuts[len(cuts) * part // PARTS] for part in range(1, PARTS)):
            for part in (line[:place], line[place:]):
                for length in LENGTHS:
                    repeated = (part * (length // len(part) + 1))[:length]
                    yield "".join(f"{repeated} {number}\n" for number in range(HOSTILE_SIZE // length)).encode()


def record_texts() -> Iterator[tuple[str, bytes | None, bytes, bytes]]:
    """Each excerpt as a log that goes on, None where nothing in it counts, again and again, and with lines between."""
    at_once = {log.name: log for log in record_logs()}
    advancing = {log.name: log for log in advancing_logs()}
    for path in sorted(EXCERPTS.glob("*.log")):
        name, text = path.stem, path.read_bytes()
        goes_on = None
        if name in at_once:
            goes_on = at_once[name].text(LONG_SIZE // len(at_once[name].line(LONG_SIZE))).encode("latin-1")
        elif name in advancing:
            goes_on = advancing[name].text(LONG_SIZE).encode("latin-1")
        between = (b"%srepetition %d\n" % (text, number) for number in range(BETWEEN_SIZE // len(text) + 1))
        yield name, goes_on, text * (LONG_SIZE // len(text) + 1), b"".join(between)


def rank_texts(goes_on: bytes) -> tuple[bytes, bytes]:
    """What several ranks print of a log that goes on: each line for each of them, without labels and with labels."""
    lines = goes_on[: LONG_SIZE // RANKS].splitlines(keepends=True)[:-1]
    labelled = (b"[default%d]:%s" % (rank, line) for line in lines for rank in range(RANKS))
    return b"".join(RANKS * line for line in lines), b"".join(labelled)


def perl_mb_s(path: Path) -> float:
    """Megabytes a second of a one-liner that adds up the last number with a point of every line."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["perl", "-lne", PERL, str(path)], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return path.stat().st_size / MB / spent_s


def speed_mb_s(path: Path, text: bytes) -> float:
    """Megabytes a second of processor time; what is far above the limit is read once."""
    path.write_bytes(text)
    best_s = float("inf")
    for _ in range(BEST_OF):
        begin = time.process_time()
        read_log(path)
        best_s = min(best_s, time.process_time() - begin)
        if len(text) / MB / best_s > 2 * LIMIT_MB_S:
            break
    return len(text) / MB / best_s


@dataclass(frozen=True, slots=True)
class _Speeds:
    """The speeds of one excerpt in MB/s; None where it does not go on."""

    name: str
    goes_on: float | None
    again: float
    between: float
    perl: float | None
    ranks: float | None = None
    labelled_ranks: float | None = None

    def row(self) -> tuple[str, ...]:
        """The cells of the table."""
        has_both = self.goes_on is not None and self.perl is not None
        of_perl = f"{(self.goes_on or 0) / (self.perl or 1):.2f}" if has_both else ""
        figures = (self.goes_on, self.ranks, self.labelled_ranks, self.again, self.between, self.perl)
        return (self.name, *("" if figure is None else f"{figure:.0f}" for figure in figures), of_perl)


def record_speeds(path: Path) -> Iterator[_Speeds]:
    """The speeds of each excerpt."""
    for name, goes_on, again, between in record_texts():
        again_mb_s, between_mb_s = speed_mb_s(path, again), speed_mb_s(path, between)
        if goes_on is None:
            yield _Speeds(name, None, again_mb_s, between_mb_s, None)
        else:
            goes_on_mb_s, perl = speed_mb_s(path, goes_on), perl_mb_s(path)
            of_ranks = () if name in METRICS_FILES else rank_texts(goes_on)
            yield _Speeds(
                name, goes_on_mb_s, again_mb_s, between_mb_s, perl, *(speed_mb_s(path, text) for text in of_ranks)
            )


def _describe(speeds: Sequence[float]) -> str:
    """Median, the tenth slowest and the slowest."""
    tenth = sorted(speeds)[len(speeds) // 10]
    return f"{statistics.median(speeds):.0f}, {tenth:.0f}, {min(speeds):.0f}"


def _count_slow(speeds: Sequence[float]) -> str:
    return f"{sum(speed < LIMIT_MB_S for speed in speeds)} of {len(speeds)} below {LIMIT_MB_S}"


def main() -> None:
    """Print the tables."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.log"
        rows = [(name, f"{speed_mb_s(path, text):.0f}", "") for name, text in texts()]
        hostile = [speed_mb_s(path, text) for text in hostile_texts()]
        records = list(record_speeds(path))
    goes_on = [each.goes_on for each in records if each.goes_on is not None]
    ranks = [each.ranks for each in records if each.ranks is not None]
    labelled_ranks = [each.labelled_ranks for each in records if each.labelled_ranks is not None]
    again, between = [each.again for each in records], [each.between for each in records]
    quantiles = "median, slowest tenth, slowest"
    for text, speeds in (
        (f"lines of 4 and 15 KB made of half records, {len(hostile):,} kinds: {quantiles}", hostile),
        (f"nothing but records that go on, of {len(goes_on)} excerpts: {quantiles}", goes_on),
        (f"the same, each line of {RANKS} ranks without a label: {quantiles}", ranks),
        (f"the same, each line of {RANKS} ranks with labels: {quantiles}", labelled_ranks),
        (f"an excerpt of 1 to 25 lines again and again, {len(again)} excerpts: {quantiles}", again),
        (f"such excerpts with a line that counts between each two: {quantiles}", between),
    ):
        rows.append((text, _describe(speeds), _count_slow(speeds)))
    loads = f"{load:.1f} when it began, {os.getloadavg()[0]:.1f} with it when it ended"
    print(f"One process; the load of {os.cpu_count()} cores was {loads}.")
    print()
    print(tabulate(rows, ("Text", "MB/s", ""), tablefmt="pipe", disable_numparse=True))
    print()
    kinds = ("go on", f"{RANKS} ranks", f"{RANKS} labelled ranks", "again", "with a line between", "perl")
    headings = ("Records of", *(f"{kind} (MB/s)" for kind in kinds), "of perl")
    order = sorted(records, key=lambda each: each.goes_on or each.again)
    print(tabulate([each.row() for each in order], headings, tablefmt="pipe", disable_numparse=True))


if __name__ == "__main__":
    main()
