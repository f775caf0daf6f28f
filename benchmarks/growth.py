"""How an analysis of partials grows from 1 to 16,384 ranks: time, memory, bytes, and whether it finds what was planted.

    python -m benchmarks.many_traces --folder /tmp/bench --growth [--counts 1,64,16384] [--write FIGURES.json]
    python -m benchmarks.many_traces --growth --report FIGURES.json [--write FILE.md]

Partials of two real traces on H200 are given to as many ranks (``benchmarks.synthetic_ranks``) and written as files, as
the hooks write them beside each trace; the traces themselves are not there. Fresh processes of ``perfscope analyze``
read the folder.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import Tool, best, machine
from benchmarks.synthetic_ranks import SOURCES, Made, make_job
from perfscope.constants import GB, KB, MANY_RANKS, MB, MS_PER_S
from perfscope.engine.measuring import measure
from perfscope.engine.partials import store
from perfscope.engine.registry import analyzers
from perfscope.engine.tasks import Task, measuring_analyzers
from perfscope.engine.windows import TraceFiles
from perfscope.sources.partials.header import Identity
from perfscope.tables.trace import BASIC_EVENTS, Events
from perfscope.wire.traces import partials_path

COUNTS = (1, 8, 64, 256, 1024, 4096, 16384)
#: What a job of 16,384 ranks may take on two processors.
PROMISED_RANKS, PROMISED_S, PROMISED_GB = 16384, 60.0, 2.0
#: Fewer ranks take as long as Python takes to start: the line is through the others.
FEWEST_ON_LINE = 64
#: What no figure here tells of a real cluster: assumed.
HOSTS, RANKS_OF_A_HOST = 2048, 8
NETWORK_GB_S, REQUEST_S, READERS = 1.25, 0.03, 8
_ANSWERED = (0, 4)
_ROUNDS, _FEW_ROUNDS, _MANY = 3, 1, 4096
_TRACE_BYTES = SOURCES[0].stat().st_size


def make(folder: Path, ranks: int) -> Path:
    """The partials of a job, one file a rank."""
    chosen = [analyzer for analyzer in analyzers() if analyzer.is_default]
    names, events = measuring_analyzers(chosen), BASIC_EVENTS | (Events.GRIDS if ranks > 1 else Events(0))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for measured in Made(make_job(ranks)):
        identity = Identity(measured.path, _TRACE_BYTES, "0" * 64)
        content = store(measured, TraceFiles(measured.path), names, events, traces=[identity])
        (folder / partials_path(measured.path)).write_bytes(content)
    return folder


def measure_growth(folder: Path, counts: Sequence[int]) -> dict[str, Any]:
    """The figures of each job."""
    return {
        "machine": machine(),
        "trace_bytes": _TRACE_BYTES,
        "measure_s": _time_of_measuring(),
        "jobs": {str(ranks): _measure_job(folder, ranks) for ranks in counts},
    }


def _time_of_measuring() -> float:
    """Processor time to measure one of the traces, which its own host spends."""
    task = Task(measuring_analyzers(analyzer for analyzer in analyzers() if analyzer.is_default), Events.GRIDS)
    times = []
    for _ in range(_ROUNDS):
        began = time.process_time()
        measure(TraceFiles(str(SOURCES[0])), task)
        times.append(time.process_time() - began)
    return round(min(times), 4)


def _measure_job(folder: Path, ranks: int) -> dict[str, Any]:
    job, rows = folder / f"job{ranks}", folder / f"rows{ranks}"
    make(job, ranks)
    words = [sys.executable, "-m", "perfscope", "--quiet", "analyze", str(job)]
    tables = Tool("tables", [*words, "--format", "md"])
    entries = Tool("rows", [*words, "--format", "json", "--rows", str(rows)])
    whole = Tool("json", [*words, "--format", "json"])
    for _ in range(_FEW_ROUNDS if ranks >= _MANY else _ROUNDS):
        printed = tables.run(_ANSWERED)
        condensed = entries.run(_ANSWERED)
    full = whole.run(_ANSWERED)
    figures = {
        "moved_bytes": sum(path.stat().st_size for path in job.iterdir()),
        "tables_bytes": len(printed),
        "condensed_bytes": len(condensed),
        "json_bytes": len(full),
        "rows_bytes": sum(path.stat().st_size for path in rows.iterdir()),
        "planted": [straggler.rank for straggler in make_job(ranks).stragglers],
        "named": _named(json.loads(full)),
        "tools": {tool.name: tool.data() for tool in (tables, entries, whole)},
    }
    shutil.rmtree(job)
    shutil.rmtree(rows)
    return figures


def _named(document: Mapping[str, Any]) -> list[int]:
    """The ranks that an answer names as late."""
    stragglers = document["results"].get("stragglers")
    if stragglers is None:
        return []
    return [rank for rank in (stragglers["straggler"],) if rank is not None]


def fit_line(figures: Mapping[str, Any], what: str = "cpu_s") -> tuple[float, float, dict[int, float]]:
    """The straight line through the larger jobs: its value at 0 ranks, its slope, and how far each job is from it.

    Every job counts by its relative distance, or the largest alone would make the line.
    """
    points = [(int(ranks), best(job["tools"]["tables"], what) or 0.0) for ranks, job in figures["jobs"].items()]
    points = [(ranks, value) for ranks, value in points if ranks >= FEWEST_ON_LINE]
    ranks, values = (np.array(column, np.float64) for column in zip(*points, strict=True))
    slope, start = np.polyfit(ranks, values, 1, w=1 / values)
    away = {int(count): value / (start + slope * count) - 1 for count, value in points}
    return float(start), float(slope), away


def document(figures: Mapping[str, Any]) -> str:
    """The figures as tables."""
    where = figures["machine"]
    lines = [
        f"{where['processors']} processors ({where['model']}), {where['memory_gb']} GB, Python {where['python']}, load "
        f"{where['load_before']} before; the best round of each.",
        "",
        "| Ranks | Partials (MB) | Traces (MB) | Time (s) | Processor time (s) | Peak memory (MB) | Tables (kB) | "
        "Planted | Found | Others named |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for count, job in figures["jobs"].items():
        tables, named, planted = job["tools"]["tables"], set(job["named"]), set(job["planted"])
        told = [f"{len(planted)}", f"{len(planted & named)}", f"{len(named - planted)}"]
        cells = [
            f"{int(count):,}", f"{job['moved_bytes'] / MB:.2f}", f"{int(count) * figures['trace_bytes'] / MB:,.1f}",
            f"{best(tables):.2f}", f"{best(tables, 'cpu_s'):.2f}", f"{best(tables, 'peak_mb'):,.0f}",
            f"{job['tables_bytes'] / KB:,.0f}", *(told if int(count) > 1 else ["n/a"] * 3),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *_line(figures), *_json(figures), *_cluster(figures)]) + "\n"


def _line(figures: Mapping[str, Any]) -> list[str]:
    start, slope, away = fit_line(figures)
    memory_start, memory_slope, _ = fit_line(figures, "peak_mb")
    apart = ", ".join(f"{distance:+.0%} at {count:,}" for count, distance in away.items())
    return [
        "",
        f"**The line.** From {FEWEST_ON_LINE} ranks on, processor time is {start:.2f} s and "
        f"{slope * MS_PER_S:.2f} ms a rank; the measured times are {apart} from it. "
        f"Peak memory is {memory_start:.0f} MB and {memory_slope * KB:.0f} kB a rank.",
    ]


def _json(figures: Mapping[str, Any]) -> list[str]:
    lines = [
        "",
        "| Ranks | JSON (MB) | JSON with `--rows` (MB) | Files of `--rows` (MB) | With `--rows`: processor time (s) | "
        "Peak memory (MB) |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for count, job in figures["jobs"].items():
        if int(count) > MANY_RANKS // 2:
            rows = job["tools"]["rows"]
            sizes = [job[key] / MB for key in ("json_bytes", "condensed_bytes", "rows_bytes")]
            cells = [*(f"{size:.1f}" for size in sizes), f"{best(rows, 'cpu_s'):.1f}", f"{best(rows, 'peak_mb'):,.0f}"]
            lines.append(f"| {int(count):,} | {' | '.join(cells)} |")
    return lines


def _cluster(figures: Mapping[str, Any]) -> list[str]:
    """What a cluster would see, on paper."""
    ranks = HOSTS * RANKS_OF_A_HOST
    start, slope, _ = fit_line(figures)
    largest = max(figures["jobs"], key=int)
    each = figures["jobs"][largest]["moved_bytes"] / int(largest)
    moved, traces = each * ranks, figures["trace_bytes"] * ranks
    requests_s = ranks * REQUEST_S / READERS
    host_s = RANKS_OF_A_HOST * figures["measure_s"]
    return [
        "",
        f"## A cluster of {HOSTS:,} hosts, on paper",
        "",
        f"{ranks:,} ranks, {RANKS_OF_A_HOST} on a host, each with a trace like these: 13 MB of JSON, three steps.",
        "",
        "| What | From | Result |",
        "|:---|:---|---:|",
        f"| Each host measures its {RANKS_OF_A_HOST} traces, one after the other | measured: "
        f"{figures['measure_s']:.2f} s of a processor a trace | {host_s:.1f} s |",
        f"| Partials that come to the driver | measured: {each / KB:.1f} kB a rank | {moved / MB:,.0f} MB |",
        f"| Traces that stay on their hosts | measured: {figures['trace_bytes'] / KB:,.0f} kB a rank | "
        f"{traces / GB:.1f} GB |",
        f"| Partials over the network | assumed: {NETWORK_GB_S:g} GB/s into the driver | "
        f"{moved / GB / NETWORK_GB_S:.1f} s |",
        f"| The same traces over that network, without partials | the same | {traces / GB / NETWORK_GB_S:.0f} s |",
        f"| Partials from a store, one request a rank | assumed: {REQUEST_S * MS_PER_S:.0f} ms a request, {READERS} at "
        f"the same time | {requests_s:.0f} s |",
        f"| The driver's processor time | measured, the line above | {start + slope * ranks:.0f} s |",
        f"| The same traces measured by the driver, without partials | measured, on one processor | "
        f"{ranks * figures['measure_s'] / 60:.0f} min |",
        "",
        "Assumed besides: a host measures while its other processes leave it a processor (the hooks do it at idle "
        "priority); the hosts do it all at once, so that their number does not count; a window with ten times as many "
        "collectives adds 10 bytes for each to the partials, and time of measuring in proportion to its trace. Not "
        "assumed: any speed of a processor other than this machine's.",
    ]
