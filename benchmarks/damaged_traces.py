"""What perfscope makes of damaged traces: bits that are flipped, files that are cut and spliced, as counts.

    python -m benchmarks.damaged_traces --count 2000 --write FIGURES.json
    python -m benchmarks.damaged_traces --first 500 --count 500 --write piece.json
    python -m benchmarks.damaged_traces --join piece*.json --write FIGURES.json

Each damage is drawn from the seed and its own number, so that the pieces of a run are those of a whole one. A figure
has changed silently where the events that are read differ from those of the whole file, and nothing says so. Each file
is read once.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfscope.constants import KIB, MB
from perfscope.errors import SourceError
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import Trace

FIXTURES = Path(__file__).parents[1] / "fixtures" / "traces"
KINDS = ("flip", "cut", "splice")
#: What the reader goes by: each bit of these words is flipped once.
_WORDS = (b'"ph"', b'"cat"', b'"X"', b'"kernel"')
_SEED = 11
_MAXIMA = ("most_beyond_twice_s", "most_times_the_whole", "peak_memory_mb")
#: Of the trace whose words are damaged, as many events are left out for each that is read.
_EVERY = 40
#: A file that is read in less counts as one that takes so long.
_SHORTEST_S = 0.1


def damage(content: bytes, kind: str, order: random.Random) -> bytes:
    """A file's content with one damage."""
    begin, end = sorted(order.randrange(len(content)) for _ in range(2))
    if kind == "flip":
        return _flipped(content, begin, order.randrange(8))
    if kind == "cut":
        return content[:begin]
    return content[:begin] + content[end:] if order.random() < 0.5 else content[:end] + content[begin:]  # noqa: PLR2004


def figures(trace: Trace) -> tuple[object, ...]:
    """What every figure is computed from."""
    tables = trace.device, trace.calls, trace.annotations
    return tuple(
        sorted(
            zip(
                (trace.names[name] for name in table.name),
                table.start_ns.tolist(),
                table.duration_ns.tolist(),
                strict=True,
            )
        )
        for table in tables
    )


def read_damaged(path: Path, whole: tuple[object, ...]) -> tuple[str, float]:
    """What comes of reading a file, and how long its process computed for it in seconds, in all threads."""
    start = time.process_time()
    try:
        trace = read_trace(path)
    except SourceError:
        return "refused", time.process_time() - start
    except Exception:  # noqa: BLE001 - that there is none is what is measured
        return "traceback", time.process_time() - start
    duration_s = time.process_time() - start
    is_same = figures(trace) == whole
    if trace.damage:
        return ("said, nothing lost" if is_same else "said"), duration_s
    return ("nothing lost" if is_same else "silent"), duration_s


def flips_of_words(content: bytes) -> Iterator[bytes]:
    """Trace texts, in each of which one bit of a word is flipped that decides what an event is."""
    kernel = re.search(rb'\{[^{}]*"kernel"', content)
    if kernel is None:
        return
    for word in _WORDS:
        place = content.index(word, kernel.start()) + 1
        for letter in range(len(word) - 2):
            for bit in range(8):
                yield _flipped(content, place + letter, bit)


def measure(count: int, first: int = 0, seed: int = _SEED) -> dict[str, Any]:
    """Read damaged copies of the fixtures; the piece that begins with the first damage has those of words, too."""
    paths = sorted(FIXTURES.rglob("*.json.gz"))
    wholes, times = {}, {}
    for path in paths:
        start = time.process_time()
        wholes[path] = figures(read_trace(path))
        times[path] = time.process_time() - start
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in (*KINDS, "word")}
    slowest, most_times = 0.0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for index in range(first, first + count):
            order = random.Random(f"{seed}-{index}")
            path, kind = order.choice(paths), KINDS[index % len(KINDS)]
            damaged = Path(folder, path.name)
            damaged.write_bytes(damage(path.read_bytes(), kind, order))
            outcome, duration_s = read_damaged(damaged, wholes[path])
            counts[kind][outcome] += 1
            slowest = max(slowest, duration_s - 2 * times[path])
            most_times = max(most_times, duration_s / max(times[path], _SHORTEST_S))
        if first == 0:
            counts["word"] = _damaged_words(Path(folder))
    return {
        "seed": seed,
        "counts": {kind: dict(sorted(counter.items())) for kind, counter in counts.items()},
        "most_beyond_twice_s": round(slowest, 2),
        "most_times_the_whole": round(most_times, 1),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB / MB),
    }


def join(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a run from those of its pieces."""
    counts: dict[str, Counter[str]] = {}
    for piece in pieces:
        for kind, outcomes in piece["counts"].items():
            counts.setdefault(kind, Counter()).update(outcomes)
    return {
        "seed": pieces[0]["seed"],
        "counts": {kind: dict(sorted(counter.items())) for kind, counter in counts.items()},
        **{name: max(piece[name] for piece in pieces) for name in _MAXIMA},
    }


def _damaged_words(folder: Path) -> Counter[str]:
    """What comes of a plain trace of which one bit of a deciding word is flipped."""
    counts: Counter[str] = Counter()
    plain = folder / "plain.json"
    content = json.loads(gzip.decompress((FIXTURES / "single" / "rank0.pt.trace.json.gz").read_bytes()))
    content["traceEvents"] = content["traceEvents"][::_EVERY]
    text = json.dumps(content, indent=1).encode()
    plain.write_bytes(text)
    whole = figures(read_trace(plain))
    for damaged_text in flips_of_words(text):
        plain.write_bytes(damaged_text)
        counts[read_damaged(plain, whole)[0]] += 1
    return counts


def _flipped(content: bytes, place: int, bit: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


def main() -> None:
    """Measure, or join what was measured in pieces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--join", type=Path, nargs="+")
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    pieces = [json.loads(path.read_text()) for path in arguments.join or ()]
    text = json.dumps(join(pieces) if pieces else measure(arguments.count, arguments.first), indent=1)
    if arguments.write:
        arguments.write.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
