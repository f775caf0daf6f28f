"""How long a snapshot of torch's allocator with a million events takes to read and to attribute, and in what memory.

Run: ``python -m benchmarks.memory_snapshot [--events 1000000] [--runs 3]``. The snapshot is made here, as torch pickles
it: each allocation has a stack of 30 frames, each free two events without one. Fresh processes read it; the limits are
3 s of processor time and 1 GB.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import pickle
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LIMIT_S, LIMIT_GB = 3.0, 1.0
_FRAMES, _DEPTH, _STACKS = 500, 30, 4000
_FREED_SHARE = 0.5
_READER = """
import json, resource, sys, time
from pathlib import Path
from perfscope.analyzers.memory.peak import find_peak
from perfscope.sources.memory.reading import read_histories
began = time.process_time()
(history,) = read_histories(Path(sys.argv[1]))
peak = find_peak(history)
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([time.process_time() - began, usage.ru_maxrss / 1e6, len(history.events), peak.peak_bytes]))
"""


def make_snapshot(events: int) -> dict[str, Any]:
    """Allocations and frees in random order, as ``torch.cuda.memory._snapshot()`` returns them."""
    chooser = random.Random(1)
    frames = [{"filename": f"/app/f{number}.py", "name": f"f{number}", "line": number} for number in range(_FRAMES)]
    stacks = [[chooser.choice(frames) for _ in range(_DEPTH)] for _ in range(_STACKS)]
    trace: list[dict[str, Any]] = []
    live: list[tuple[int, int]] = []
    address = 1 << 44
    while len(trace) < events:
        if live and chooser.random() < _FREED_SHARE:
            freed = live.pop(chooser.randrange(len(live)))
            trace += [_event(action, freed, len(trace), []) for action in ("free_requested", "free_completed")]
        else:
            size = 512 * chooser.randint(1, 100_000)
            live.append((address, size))
            trace.append(_event("alloc", (address, size), len(trace), list(chooser.choice(stacks))))
            address += size
    blocks = [
        {"address": begin, "size": size, "requested_size": size, "state": "active_allocated", "frames": []}
        for begin, size in sorted(live)
    ]
    segment = {"device": 0, "address": 1 << 44, "total_size": 1 << 46, "stream": 0, "blocks": blocks}
    return {"segments": [segment], "device_traces": [trace]}


def _event(action: str, block: tuple[int, int], number: int, frames: list[Any]) -> dict[str, Any]:
    context = "".join(["N", "/A"])  # torch makes a text of its own for each event
    times = {"time_us": 1_700_000_000_000_000 + number, "compile_context": context}
    return {"action": action, "addr": block[0], "size": block[1], "stream": 0, **times, "frames": frames}


def _write(path: Path, events: int) -> None:
    path.write_bytes(pickle.dumps(make_snapshot(events)))


def main() -> int:
    """Print each run and return 1 where the best one is over a limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        # a process of its own makes it: Linux counts the memory of a parent as its child's
        maker = multiprocessing.get_context("spawn").Process(target=_write, args=(path, options.events))
        maker.start()
        maker.join()
        runs = [
            json.loads(subprocess.run([sys.executable, "-c", _READER, path], capture_output=True, check=True).stdout)
            for _ in range(options.runs)
        ]
    for seconds, gigabytes, events, peak in runs:
        print(f"{events:,} events: {seconds:.2f} s, {gigabytes:.2f} GB, peak {peak:,} bytes")
    return int(min(run[0] for run in runs) > LIMIT_S or max(run[1] for run in runs) > LIMIT_GB)


if __name__ == "__main__":
    sys.exit(main())
