"""A job of many ranks: how time grows with ranks and shrinks with workers, and what a rank costs the driver.

    python -m benchmarks.many_traces --folder /tmp/bench [--ranks 256] [--write FIGURES.json]
    python -m benchmarks.many_traces --report FIGURES.json [--write FILE.md]

Real traces of two ranks on H200 (``fixtures/traces/ddp4``: 13 MB of JSON each) are copied and renumbered, and the end
of the middle one is cut off. One process and several read them all, and must print the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.processes import ROOT, Tool, best, machine, take_turns

SOURCES = sorted((ROOT / "fixtures" / "traces" / "ddp4").glob("*.json.gz"))
ENGINES = PAIR = ("serial", "process")
PAIRS = 7
WORKERS = 2
ANSWERED = (0, 4)
_RANK = re.compile(rb'("distributedInfo": \{[^\n]*?"rank": )\d+(, "world_size": )\d+')
_GROUP = re.compile(rb'"pg_size": \d+, "ranks": \[[^\]]*\]')
#: The peak memory of the driver alone, in kB: workers are processes of their own.
DRIVER = """
import sys
from perfscope.cli import main
sys.argv[0] = "perfscope"
try:
    main()
finally:
    sys.stdout.flush()
    print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="for the copies")
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--report", type=Path, metavar="FIGURES.json", help="write figures as tables")
    parser.add_argument("--write", type=Path, help="a file for the answer")
    options = parser.parse_args()
    if options.report:
        text = document(json.loads(options.report.read_text()))
    elif options.folder is None:
        raise SystemExit("--folder says where the copies go")
    else:
        text = json.dumps(measure(options.folder, options.ranks, options.rounds), indent=1) + "\n"
    if options.write:
        options.write.write_text(text)
    print(text)


def copies(folder: Path, ranks: int, cut: int | None = None) -> Path:
    """A job of so many ranks; what is at the end of the trace of rank ``cut`` is missing."""
    from isal import igzip

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


def measure(folder: Path, ranks: int, rounds: int) -> dict[str, Any]:
    """Measure the job as a whole and in part."""
    where = machine()
    job = copies(folder / f"job{ranks}", ranks, cut=ranks // 2)
    paths = sorted(job.iterdir())
    part = [str(path) for path in paths[: ranks // 4]]
    counts = (ranks // 16, ranks // 8)
    fewer = {count: Tool("", _analyze("serial", 1, *part[:count])) for count in counts}
    engines = {engine: Tool("", _analyze(engine, WORKERS, *part)) for engine in ENGINES}
    answers = {engine: _answer(engine, job) for engine in ENGINES}
    take_turns([*fewer.values(), *engines.values()], rounds, answered=ANSWERED)
    pair = [_timed(str(job), first=turn % len(PAIR)) for turn in range(PAIRS)]
    return {
        "machine": where,
        "ranks": ranks,
        "timed_ranks": len(part),
        "mb_of_json_each": 13,
        "serial": {str(count): run.data() for count, run in fewer.items()},
        "engines": {engine: tool.data() for engine, tool in engines.items()},
        "answers": answers,
        "in_turn_s": {engine: [seconds[engine] for seconds in pair] for engine in PAIR},
        "driver_kb": {str(len(part)): _drivers_peak(part), str(ranks): _drivers_peak([str(job)])},
    }


def _analyze(engine: str, workers: int, *paths: str) -> list[str]:
    words = [sys.executable, "-m", "perfscope", "analyze", "--format", "json"]
    return [*words, "--workers", "1" if engine == "serial" else str(workers), *paths]


def _timed(job: str, first: int) -> dict[str, float]:
    """Seconds of the whole job on one worker and on two, one right after the other."""
    seconds = {}
    for engine in (PAIR[first], PAIR[1 - first]):
        began = time.perf_counter()
        Tool("", _analyze(engine, WORKERS, job)).run(ANSWERED)
        seconds[engine] = round(time.perf_counter() - began, 2)
    return seconds


def _answer(engine: str, job: Path) -> dict[str, Any]:
    """What one engine says of the whole job."""
    printed = Tool("", _analyze(engine, WORKERS, str(job))).run(ANSWERED)
    document_of = json.loads(printed)
    entries = document_of["results"]["breakdown"]["ranks"]
    return {
        "sha256": hashlib.sha256(printed.encode()).hexdigest(),
        "ranks": len({entry["rank"] for entry in entries}),
        "damaged": [entry["rank"] for entry in entries if entry["damaged"]],
        "warnings": [line.rpartition("/")[2] for line in document_of["warnings"]],
        "bytes": len(printed),
    }


def _drivers_peak(paths: Sequence[str]) -> int:
    words = ["analyze", "--workers", str(WORKERS), "--format", "json", *paths]
    printed = Tool("", [sys.executable, "-c", DRIVER, *words]).run(ANSWERED)
    return int(printed.rstrip().rpartition("\n")[2])


def document(figures: Mapping[str, Any]) -> str:
    """The figures as tables."""
    where, ranks, engines, timed = (figures[key] for key in ("machine", "ranks", "engines", "timed_ranks"))
    serial, serial_cpu = best(engines["serial"]), best(engines["serial"], "cpu_s")
    assert serial is not None
    assert serial_cpu is not None
    lines = [
        f"{ranks} ranks: two real traces of three steps on H200 ({figures['mb_of_json_each']} MB of JSON each), copied "
        f"and renumbered, one of them cut off. {where['processors']} processors ({where['model']}), Python "
        f"{where['python']}, load {where['load_before']} before; the best round of each.",
        "",
        f"| Engine | Speed-up, {timed} ranks | Processor time, serial = 1 | Reported | Damaged | Output's SHA-256 |",
        "|:---|---:|---:|---:|:---|:---|",
    ]
    for engine, figure in engines.items():
        answer, wall, cpu = figures["answers"][engine], best(figure), best(figure, "cpu_s")
        assert wall is not None
        assert cpu is not None
        name = engine if engine == "serial" else f"{engine}, {WORKERS} workers"
        damaged = ", ".join(f"rank {rank}" for rank in answer["damaged"])
        lines.append(
            f"| {name} | {serial / wall:.2f} | {cpu / serial_cpu:.2f} | {answer['ranks']} | {damaged} | "
            f"`{answer['sha256'][:16]}` |"
        )
    spent = (best(engines["process"], "cpu_s") or serial_cpu) / serial_cpu
    lines += [
        "",
        f"The load shows how busy the processors were with other work. {WORKERS} worker processes need {spent:.2f} "
        "times the processor time of one: on idle processors they are up to "
        f"{WORKERS / spent:.2f} times as fast.",
    ]
    faster = sorted(
        serial_s / parallel_s
        for serial_s, parallel_s in zip(*(figures["in_turn_s"][engine] for engine in PAIR), strict=True)
    )
    spread = f"{len(faster)} turns ({faster[0]:.2f} to {faster[-1]:.2f})"
    lines += [
        "",
        f"Over all {ranks} ranks, in alternating runs, {WORKERS} workers are "
        f"{statistics.median(faster):.2f} times as fast as one in the median of {spread}.",
    ]
    lines += ["", "| Ranks, serial | Processor time of each further rank, the last = 1 |", "|:---|---:|"]
    lines += [f"| {span} | {cost:.2f} |" for span, cost in _each_further_rank(figures)]
    (few, least), (_, most) = figures["driver_kb"].items()
    lines += [
        "",
        f"The driver of two worker processes needs {(most - least) / (ranks - int(few)):.0f} kB of memory per "
        f"additional rank (from {few} to {ranks} ranks), JSON included.",
        "",
        "Warnings: " + "; ".join(f"`{line}`" for line in figures["answers"]["serial"]["warnings"]),
    ]
    return "\n".join(lines) + "\n"


def _each_further_rank(figures: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The cost of one further rank, from each job to the next larger one, relative to the last of them."""
    jobs = {**figures["serial"], str(figures["timed_ranks"]): figures["engines"]["serial"]}
    costs = [(int(count), best(figure, "cpu_s") or 0.0) for count, figure in jobs.items()]
    steps = [
        (f"{fewer} to {larger}", (most - least) / (larger - fewer))
        for (fewer, least), (larger, most) in pairwise(costs)
    ]
    return [(span, cost / steps[-1][1]) for span, cost in steps]


if __name__ == "__main__":
    main()
