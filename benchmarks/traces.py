"""How fast perfscope reads a large trace, beside the tools that people use, as ratios in one run.

    python -m benchmarks.traces --folder /tmp/bench --trace BIG.pt.trace.json.gz [--write FIGURES.json]
    python -m benchmarks.traces --report FIGURES.json [--write reports/traces.md]

Every tool runs in a fresh process that begins with the compressed file; the best of the rounds counts, and rounds take
turns so that a busy moment hits all alike. The peers are installed into environments of their own below the folder; one
that cannot be installed is named.

The limits: HTA's load and four analyses at least 20 times perfscope's time and 10 times its memory, TraceLens' report
40 times. Of the time of gunzip with simdjson's bare parse, perfscope takes at most 1.0. The limits are for wall times;
processor times are printed beside them, because other work on the machine changes them less.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.processes import Tool, best, environment, machine, take_turns
from perfscope.constants import MB

HTA = """
import os, sys
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # with its rounding an assertion of its own can fail
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False)
analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
"""
SIMDJSON = """
import sys
import simdjson
from isal import igzip
simdjson.Parser().parse(igzip.open(sys.argv[1]).read())
"""
TRACELENS = "git+https://github.com/AMD-AGI/TraceLens@171dd74721ca1ec45709e5805b68ae1f65e27811"
OURS = "perfscope"
PARSE, HTA_NAME, TRACELENS_NAME = (
    "gunzip (isal) and simdjson's bare parse",
    "HTA 0.5.0: load and four analyses",
    "TraceLens (171dd74): performance report",
)
#: A tool, the one it is divided by, the figure, a label, and the promise: at least (positive) or at most (negative).
PROMISES = (
    (HTA_NAME, OURS, "wall_s", "HTA's time over perfscope's", 20.0),
    (TRACELENS_NAME, OURS, "wall_s", "TraceLens' time over perfscope's", 40.0),
    (OURS, PARSE, "wall_s", "perfscope's time over gunzip and simdjson", -1.0),
    (HTA_NAME, OURS, "peak_mb", "HTA's peak memory over perfscope's", 10.0),
)


def main() -> None:
    options = _options()
    text: str
    if options.report:
        text = document(json.loads(options.report.read_text()))
    else:
        if options.folder is None:
            raise SystemExit("--folder says where environments and made traces go")
        options.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(measure(options), indent=1) + "\n"
    if options.write:
        options.write.write_text(text)
    print(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="for environments and made traces")
    parser.add_argument("--trace", type=Path, help="a large compressed trace, needed to measure")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--slow", type=float, default=10.0, help="processor seconds that make a tool a slow one")
    parser.add_argument("--slow-rounds", type=int, default=2, help="how often a slow one runs")
    parser.add_argument("--peers", default="simdjson,hta,tracelens", help="which of them")
    parser.add_argument("--tracelens", default=TRACELENS, help="what pip installs it from: a URL or a folder")
    parser.add_argument("--report", type=Path, metavar="FIGURES.json", help="write figures as tables")
    parser.add_argument("--write", type=Path, help="a file for the answer")
    return parser.parse_args()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure every tool on one trace."""
    where = machine()
    trace = _trace(options.trace, options.folder)
    tools = _tools(options, trace)
    take_turns(tools, options.rounds, options.slow, options.slow_rounds)
    return {
        "machine": where,
        "trace": {"name": options.trace.name, **_facts(trace)},
        "tools": [tool.data() for tool in tools],
    }


def _trace(source: Path, folder: Path) -> Path:
    """The trace in a folder of its own, which HTA wants."""
    alone = folder / "given"
    alone.mkdir(exist_ok=True)
    path = alone / source.name
    if not path.exists():
        shutil.copyfile(source, path)
    return path


def _facts(trace: Path) -> dict[str, Any]:
    from isal import igzip

    text = igzip.decompress(trace.read_bytes())
    size = trace.stat().st_size
    return {"compressed_mb": round(size / MB, 1), "mb": round(len(text) / MB), "events": text.count(b'"ph":')}


def _tools(options: argparse.Namespace, trace: Path) -> list[Tool]:
    ours = [sys.executable, "-m", "perfscope", "analyze", "--format", "json"]
    peers: dict[str, Callable[[], Tool]] = {
        "simdjson": lambda: _script(PARSE, SIMDJSON, options.folder / "simdjson", trace, "pysimdjson", "isal"),
        "hta": lambda: _script(
            HTA_NAME, HTA, options.folder / "hta", trace.parent, "HolisticTraceAnalysis==0.5.0", "pandas<3"
        ),
        "tracelens": lambda: _tracelens(options.folder, trace, options.tracelens),
    }
    chosen = [peers[name]() for name in options.peers.split(",") if name]
    return [Tool(OURS, [*ours, str(trace)]), *chosen]


def _script(name: str, script: str, folder: Path, argument: Path, *requirements: str) -> Tool:
    python, problem = environment(folder, *requirements)
    return Tool(name, [str(python), "-c", script, str(argument)], problem)


def _tracelens(folder: Path, trace: Path, source: str) -> Tool:
    python, problem = environment(folder / "tracelens", source)
    command = python.parent / "TraceLens_generate_perf_report_pytorch"
    arguments = ["--profile_json_path", trace, "--output_csvs_dir", folder / "tracelens-report"]
    return Tool(TRACELENS_NAME, [str(word) for word in (command, *arguments)], problem)


def document(figures: Mapping[str, Any]) -> str:
    """The figures as tables."""
    where, trace = figures["machine"], figures["trace"]
    what = f"`{trace['name']}`" if trace["name"] else "a made trace"
    lines = [
        f"{what}: {trace['mb']} MB of JSON, {trace['compressed_mb']} MB compressed, {trace['events']:,} events. "
        f"{where['processors']} processors ({where['model']}), {where['memory_gb']} GB, Python {where['python']}, load "
        f"{where['load_before']} before. Fresh processes that take turns, the best round of each.",
        "",
        *_tools_table(figures["tools"]),
        "",
        *_promises_table(figures["tools"]),
    ]
    return "\n".join(lines) + "\n"


def _tools_table(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| Tool | Time, perfscope = 1 | Processor time | Peak memory | Rounds |",
        "|:---|---:|---:|---:|---:|",
    ]
    for tool in tools:
        if tool["problem"]:
            lines.append(f"| {tool['name']} | n/a: {tool['problem']} | n/a | n/a | 0 |")
            continue
        ratios = [f"{_ratio(tool, tools[0], what):.2f}" for what in ("wall_s", "cpu_s", "peak_mb")]
        lines.append(f"| {tool['name']} | {' | '.join(ratios)} | {len(tool['wall_s'])} |")
    return lines


def _promises_table(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    by_name = {tool["name"]: tool for tool in tools}
    lines = ["| Ratio | Promised | Measured | In processor time |", "|:---|---:|---:|---:|"]
    for of, to, what, label, promise in PROMISES:
        if of in by_name and to in by_name and by_name[of][what] and by_name[to][what]:
            limit = f"{'at least' if promise > 0 else 'at most'} {abs(promise):g}"
            measured = _ratio(by_name[of], by_name[to], what)
            in_cpu_time = f"{_ratio(by_name[of], by_name[to], 'cpu_s'):.2f}" if what == "wall_s" else ""
            lines.append(f"| {label} | {limit} | {measured:.2f} | {in_cpu_time} |")
    return lines


def _ratio(tool: Mapping[str, Any], base: Mapping[str, Any], what: str) -> float:
    first, second = best(tool, what), best(base, what)
    assert first is not None
    assert second is not None
    return first / second


if __name__ == "__main__":
    main()
