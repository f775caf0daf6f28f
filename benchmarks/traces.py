"""How fast perfscope reads a large trace, beside the tools that people use, as ratios in one run.

    python -m benchmarks.traces --folder /tmp/bench [--trace BIG.pt.trace.json.gz] [--write reports/traces.md]

Every tool runs in a fresh process that begins with the compressed file; the best of the rounds counts, and rounds take
turns so that a busy moment hits all alike. The peers are installed into environments of their own below the folder; one
that cannot be installed is named. Without ``--trace`` a like one is made.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.like_traces import make

ROOT = Path(__file__).resolve().parent.parent
HTA = """
import sys
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


@dataclass
class Tool:
    """One command to measure.

    Attributes:
        name: What the table calls it.
        command: What runs.
        problem: Why it cannot run; empty where it can.
        seconds: Wall time of each round.
        peak_mb: Peak resident memory, in 10**6 bytes, of each round.
    """

    name: str
    command: Sequence[str | Path]
    problem: str = ""
    seconds: list[float] = field(default_factory=list)
    peak_mb: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Run it once."""
        begin = time.perf_counter()
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [str(word) for word in self.command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=ROOT,
        )
        assert process.stderr is not None
        complaint = process.stderr.read().decode("utf-8", "replace")
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            self.problem = (complaint.strip() or f"exit code {process.returncode}").splitlines()[-1][:120]
            return
        self.seconds.append(time.perf_counter() - begin)
        self.peak_mb.append(usage.ru_maxrss * 1024 / 1e6)


def main() -> None:
    options = _options()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    trace = _trace(options.trace, folder)
    tools = _tools(folder, trace, [name for name in options.peers.split(",") if name])
    for _ in range(options.rounds):
        for tool in tools:
            slow = bool(tool.seconds) and tool.seconds[0] > options.once_above
            if not tool.problem and not slow:
                tool.run()
    text = "\n".join([*_head(trace, options), "", *_table(tools), "", *_scaling(folder, options.copies), ""])
    print(text)
    if options.write:
        options.write.write_text(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for environments and made traces")
    parser.add_argument("--trace", type=Path, help="a large compressed trace")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--once-above", type=float, default=15.0, help="seconds above which a tool runs once")
    parser.add_argument("--peers", default="simdjson,hta,tracelens", help="which of them")
    parser.add_argument("--copies", type=int, default=16, help="ranks of the made job for scaling")
    parser.add_argument("--write", type=Path, help="a markdown file for the tables")
    return parser.parse_args()


def _trace(given: Path | None, folder: Path) -> Path:
    """The trace in a folder of its own, which HTA wants."""
    alone = folder / "trace"
    alone.mkdir(exist_ok=True)
    path = alone / (given.name if given else "made.pt.trace.json.gz")
    if not path.exists():
        if given:
            shutil.copyfile(given, path)
        else:
            make(path)
    return path


def _tools(folder: Path, trace: Path, peers: Sequence[str]) -> list[Tool]:
    ours = [sys.executable, "-m", "perfscope", "analyze", "--format", "json"]
    tools = [
        Tool("perfscope", [*ours, trace]),
        Tool("perfscope, kernels by operator too", [*ours, "--operators", trace]),
    ]
    if "simdjson" in peers:
        python, problem = _environment(folder / "simdjson", "pysimdjson", "isal")
        tools.append(Tool("gunzip (isal) and simdjson's bare parse", [python, "-c", SIMDJSON, trace], problem))
    if "hta" in peers:
        python, problem = _environment(folder / "hta", "traceinsight", "pandas<3")
        tools.append(Tool("HTA: load and four analyses", [python, "-c", HTA, trace.parent], problem))
    if "tracelens" in peers:
        python, problem = _environment(folder / "tracelens", TRACELENS)
        command = python.parent / "TraceLens_generate_perf_report_pytorch"
        arguments: list[str | Path] = ["--profile_json_path", trace, "--output_csvs_dir", folder / "tracelens-report"]
        tools.append(Tool("TraceLens: performance report", [command, *arguments], problem))
    return tools


def _environment(folder: Path, *requirements: str) -> tuple[Path, str]:
    """The interpreter of an environment with these packages, and what went wrong in making it."""
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if ready.exists():
        return python, ""
    if not python.exists():
        venv.create(folder, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", *requirements]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        return python, f"not installed: {answer.stderr.strip().splitlines()[-1][:100]}"
    ready.touch()
    return python, ""


def _head(trace: Path, options: argparse.Namespace) -> list[str]:
    made = "a made trace" if options.trace is None else f"`{trace.name}`"
    return [
        "# Reading a large trace",
        "",
        f"{made}, {trace.stat().st_size / 1e6:.1f} MB compressed, on {os.cpu_count()} processors "
        f"({platform.machine()}), Python {platform.python_version()}. Fresh processes, the best of up to "
        f"{options.rounds} rounds that take turns.",
    ]


def _table(tools: Sequence[Tool]) -> list[str]:
    ours = min(tools[0].seconds)
    lines = [
        "| tool | seconds | times perfscope | peak memory (MB) | of perfscope's |",
        "|:---|---:|---:|---:|---:|",
    ]
    for tool in tools:
        if tool.problem or not tool.seconds:
            lines.append(f"| {tool.name} | n/a: {tool.problem} | n/a | n/a | n/a |")
            continue
        seconds, peak = min(tool.seconds), min(tool.peak_mb)
        memory = peak / min(tools[0].peak_mb)
        lines.append(f"| {tool.name} | {seconds:.2f} | {seconds / ours:.2f} | {peak:.0f} | {memory:.2f} |")
    return lines


def _scaling(folder: Path, copies: int) -> list[str]:
    """Time over ranks and workers, on a job of small traces."""
    job = folder / f"job{copies}"
    if not job.exists():
        job.mkdir()
        for rank in range(copies):
            make(job / f"rank{rank}.pt.trace.json.gz", steps=2, rank=rank, world_size=copies)
    half = sorted(job.iterdir())[: copies // 2]
    runs = {
        f"{copies} ranks, serial": Tool("", [*_analyze("serial", 1), job]),
        f"{copies // 2} ranks, serial": Tool("", [*_analyze("serial", 1), *half]),
        f"{copies} ranks, 2 worker processes": Tool("", [*_analyze("process", 2), job]),
        f"{copies} ranks, 2 Dask workers": Tool("", [*_analyze("dask", 2), job]),
    }
    for _ in range(3):
        for run in runs.values():
            run.run()
    whole = min(runs[f"{copies} ranks, serial"].seconds, default=float("nan"))
    lines = ["# Many ranks", "", "| run | seconds | serial's over it | driver's peak (MB) |", "|:---|---:|---:|---:|"]
    for name, run in runs.items():
        if run.seconds:
            best = min(run.seconds)
            lines.append(f"| {name} | {best:.2f} | {whole / best:.2f} | {min(run.peak_mb):.0f} |")
        else:
            lines.append(f"| {name} | n/a: {run.problem} | n/a | n/a |")
    return lines


def _analyze(engine: str, workers: int) -> list[str]:
    words = [sys.executable, "-m", "perfscope", "analyze", "--format", "json"]
    return [*words, "--engine", engine, "--workers", str(workers)]


if __name__ == "__main__":
    main()
