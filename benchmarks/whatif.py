"""What a replay costs: against ``analyze`` on one large trace, a scenario against its graph, and by ranks.

    python -m benchmarks.whatif --trace BIG.pt.trace.json.gz [--write FIGURES.json]
    python -m benchmarks.whatif --report FIGURES.json

The limits: graph, replay and ten scenarios of a large trace in at most 3 times the processor time of ``analyze``; a
scenario at most 10 % of building the graph, which begins with the file; ranks linear, so that 64 of them cost a rank at
most 1.3 times what 8 cost it. Both commands run in fresh processes, in turns; the median counts. For many ranks the
graphs of a real pair are copied, with ranks and groups of their own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from benchmarks.processes import ROOT, machine
from benchmarks.synthetic_trace import make
from perfscope.analyzers.communication.calls import members_of
from perfscope.analyzers.replay.graphs import measure
from perfscope.analyzers.replay.measured import Measured, prepare
from perfscope.analyzers.replay.outlook import answer_scenario
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.constants import MB
from perfscope.engine.registry import analyzers
from perfscope.errors import PerfscopeError
from perfscope.sources.traces.reader import read_trace

#: Scenarios of which a trace with communication answers ten; the first ten that it answers are tried.
SCENARIOS = (
    *("communication-free", "perfect-overlap", "faster-communication=2", "faster-communication=4", "launch-free"),
    *("faster-kernel=nvjet:2", "faster-kernel=elementwise:2", "communication-free=all_reduce", "faster-kernel=a:1.5"),
    *("faster-kernel=e:1.1", "faster-kernel=i:1.2", "faster-kernel=o:1.3"),
)
MOST_SCENARIOS = 10
#: Scenarios of the many ranks.
OF_RANKS = ("communication-free", "no-stragglers", "launch-free")
RANKS = (2, 8, 64)
PAIR = ROOT / "fixtures" / "whatif" / "base"
MOST_OF_ANALYZE, MOST_OF_GRAPH, MOST_GROWTH = 3.0, 0.1, 1.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="a large compressed trace; a synthetic one is made otherwise")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--report", type=Path, metavar="FIGURES.json", help="write figures as a table")
    parser.add_argument("--write", type=Path, help="a file for the answer")
    options = parser.parse_args()
    if options.report:
        text = document(json.loads(options.report.read_text()))
    else:
        with tempfile.TemporaryDirectory() as folder:
            text = json.dumps(
                measure_all(options.trace or make(Path(folder) / "made.json.gz"), options.rounds), indent=1
            )
    if options.write:
        options.write.write_text(text + "\n")
    print(text)


def measure_all(trace: Path, rounds: int) -> dict[str, Any]:
    """All figures, measured in one run."""
    commands = {"analyze": ["analyze", str(trace)], "whatif": ["whatif", str(trace), *_chosen(trace)]}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    peaks: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, arguments in commands.items():
            taken, peak_mb = _run(arguments)
            seconds[name].append(taken)
            peaks[name].append(peak_mb)
    return {
        "machine": machine(),
        "trace_mb": trace.stat().st_size / 1e6,
        "scenarios": len(_chosen(trace)) // 2,
        "processor_s": {name: statistics.median(values) for name, values in seconds.items()},
        "peak_mb": {name: max(values) for name, values in peaks.items()},
        "graph": _compare_with_graph(trace, rounds),
        "ranks": [_time_ranks(count, rounds) for count in RANKS],
    }


def _chosen(trace: Path) -> list[str]:
    """The options that choose the scenarios."""
    measured = prepare(_graphs(trace))
    return [word for text in _answered(measured) for word in ("--scenario", text)]


def _answered(measured: Measured) -> list[str]:
    """The scenarios that a trace answers."""
    answered = []
    for text in SCENARIOS:
        try:
            answer_scenario(measured, text)
        except PerfscopeError:
            continue
        answered.append(text)
    return answered[:MOST_SCENARIOS]


def _graphs(trace: Path) -> list[RankGraph]:
    needs = next(analyzer.needs for analyzer in analyzers() if analyzer.name == "whatif")
    return list(measure(read_trace(trace, needs)) or ())


def _run(arguments: Sequence[str]) -> tuple[float, float]:
    """User and system time of a command in a process of its own, in seconds, and the most memory it had, in MB."""
    script = (
        "import os, resource, sys\nfrom perfscope.cli import main\nsys.argv = ['perfscope', *sys.argv[1:]]\n"
        "try:\n    main()\nfinally:\n    times = os.times()\n    own = times.user + times.system\n"
        "    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "    print(own + times.children_user + times.children_system, peak, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )
    taken, peak_kib = done.stderr.strip().splitlines()[-1].split()
    return float(taken), float(peak_kib) * 1024 / MB


def _compare_with_graph(trace: Path, rounds: int) -> dict[str, float]:
    """Processor seconds of building the graph from the file, and of one scenario: the median of all of them."""
    builds: list[float] = []
    scenarios: list[float] = []
    for _ in range(rounds):
        began = time.process_time()
        measured = prepare(_graphs(trace))
        builds.append(time.process_time() - began)
        scenarios += [_time_scenario(measured, text) for text in _answered(measured)]
    return {"build_s": statistics.median(builds), "scenario_s": statistics.median(scenarios)}


def _time_scenario(measured: Measured, text: str) -> float:
    began = time.process_time()
    answer_scenario(measured, text)
    return time.process_time() - began


def _time_ranks(count: int, rounds: int) -> dict[str, float]:
    """Processor seconds to join so many ranks, replay them and answer scenarios; the least of the rounds."""
    graphs = copy_ranks(count)
    seconds = []
    for _ in range(rounds):
        began = time.process_time()
        measured = prepare(graphs)
        for text in OF_RANKS:
            answer_scenario(measured, text)
        seconds.append(time.process_time() - began)
    return {"ranks": count, "seconds": min(seconds)}


def copy_ranks(count: int) -> list[RankGraph]:
    """A job of so many ranks from the traces of a pair: every second rank is a copy of the same trace."""
    pair = [graph for path in sorted(PAIR.glob("*.json.gz")) for graph in _graphs(path)]
    members = members_of(range(count))
    ranks = []
    for rank in range(count):
        graph = pair[rank % 2]
        groups = tuple(replace(group, key=replace(group.key, members=members), size=count) for group in graph.groups)
        ranks.append(replace(graph, rank=rank, world_size=count, groups=groups))
    return ranks


def document(figures: Mapping[str, Any]) -> str:
    """The figures as a table."""
    seconds, graph, peak_mb = figures["processor_s"], figures["graph"], figures["peak_mb"]
    by_ranks = {row["ranks"]: row["seconds"] / row["ranks"] for row in figures["ranks"]}
    rows = [
        (
            f"graph, replay, {figures['scenarios']} scenarios, critical path over `analyze`",
            seconds["whatif"] / seconds["analyze"],
            MOST_OF_ANALYZE,
        ),
        ("a scenario over building the graph", graph["scenario_s"] / graph["build_s"], MOST_OF_GRAPH),
        ("a rank of 64 over a rank of 8", by_ranks[64] / by_ranks[8], MOST_GROWTH),
    ]
    lines = ["| Processor time | Ratio | At most | Kept |", "|:---|---:|---:|:---|"]
    lines += [f"| {name} | {ratio:.3f} | {most:g} | {'yes' if ratio <= most else 'no'} |" for name, ratio, most in rows]
    lines += [
        "",
        f"`analyze` {seconds['analyze']:.2f} s, `whatif` {seconds['whatif']:.2f} s on a trace of "
        f"{figures['trace_mb']:.1f} MB (gzip); graph {graph['build_s']:.2f} s, a scenario "
        f"{graph['scenario_s'] * 1e3:.1f} ms; {RANKS[-1]} ranks {by_ranks[RANKS[-1]] * RANKS[-1]:.1f} s. The "
        f"processes had at most {peak_mb['analyze']:.0f} and {peak_mb['whatif']:.0f} MB of memory.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
