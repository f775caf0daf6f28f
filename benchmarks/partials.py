"""Partials beside traces: how much faster an analysis is with them.

    python -m benchmarks.partials --folder /tmp/bench [--ranks 256] [--write FIGURES.json]
    python -m benchmarks.partials --report FIGURES.json [--write FILE.md]

Real traces of two ranks on H200 (13 MB of JSON each) are copied and renumbered, as in ``benchmarks.many_traces``. All
ratios are of processor time, in turns, because they are asked for on machines that do other work, too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.many_traces import SOURCES, copies
from benchmarks.processes import Tool, best, machine, take_turns
from perfscope.engine.execution import Execution
from perfscope.engine.partials_at_capture import store_beside, task_at_capture
from perfscope.engine.registry import BUILT_IN, Reads
from perfscope.engine.taking import Taking, answer_each
from perfscope.engine.tasks import Task
from perfscope.engine.windows import TraceFiles
from perfscope.tables.trace import Events
from perfscope.wire.traces import partials_path

FASTER = 50
ROUNDS = 3
#: Beside each round of a command of seconds, rounds of one of tenths of a second.
QUICK_ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="for the copies")
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--report", type=Path, metavar="FIGURES.json", help="write figures as tables")
    parser.add_argument("--write", type=Path, help="a file for the answer")
    options = parser.parse_args()
    if options.report:
        text = document(json.loads(options.report.read_text()))
    else:
        if options.folder is None:
            raise SystemExit("--folder says where the copies go")
        text = json.dumps(measure(options.folder, options.ranks), indent=1) + "\n"
    if options.write:
        options.write.write_text(text)
    print(text)


def measure(folder: Path, ranks: int) -> dict[str, Any]:
    """Measure the answers and the map step."""
    where = machine()
    job = copies(folder / f"partials{ranks}", ranks)
    traces = sorted(str(path) for path in job.glob("*.json.gz"))
    for trace in traces:
        store_beside(TraceFiles(trace), task_at_capture(job))  # those of other code are not taken
    return {
        "machine": where,
        "ranks": ranks,
        "bytes": {
            "traces": sum(Path(trace).stat().st_size for trace in traces),
            "partials": sum(Path(partials_path(trace)).stat().st_size for trace in traces),
            "share": [_share(SOURCES[0], folder)],
        },
        "map_cpu_s": _map_step(traces),
        "answers": _answers(job),
    }


def _share(source: Path, folder: Path) -> float:
    """The size of the partials of a trace as a share of the trace's."""
    copy = folder / f"share_{source.name}"
    shutil.copyfile(source, copy)
    store_beside(TraceFiles(str(copy)), task_at_capture(folder))
    return Path(partials_path(str(copy))).stat().st_size / copy.stat().st_size


def _map_step(traces: Sequence[str]) -> dict[str, float]:
    """Processor seconds of each trace in the map step: read, and taken from partials."""
    names = [
        analyzer.name
        for analyzer in BUILT_IN
        if analyzer.reads is not Reads.RUN and analyzer.partials_of is None and analyzer.is_default
    ]
    files = [TraceFiles(trace) for trace in traces]
    seconds: dict[str, list[float]] = {"traces": [], "partials": []}
    for _ in range(ROUNDS):
        for name, chosen in (("traces", files[: len(files) // 8]), ("partials", files)):
            began = time.process_time()
            taking = Taking(is_fresh=name == "traces")
            answers = answer_each(Execution(), chosen, Task(tuple(names), Events.GRIDS), {}, taking)
            count = sum(1 for answer in answers if answer.measured.partials)
            assert count == len(chosen)
            assert taking.taken == (0 if name == "traces" else len(chosen))
            seconds[name].append((time.process_time() - began) / len(chosen))
    return {name: min(rounds) for name, rounds in seconds.items()}


def _answers(job: Path) -> dict[str, Any]:
    """The whole command, with partials and without, and whether the answers are the same."""
    words = [sys.executable, "-m", "perfscope", "analyze", "--format", "json", "--engine", "serial", str(job)]
    tools = {"traces": Tool("traces", [*words, "--fresh"]), "partials": Tool("partials", words)}
    printed = {name: tool.run() for name, tool in tools.items()}
    for _ in range(ROUNDS - 1):
        take_turns([tools["traces"]], 1)
        take_turns([tools["partials"]], QUICK_ROUNDS)
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in printed.items()}
    return {"tools": {name: tool.data() for name, tool in tools.items()}, "sha256": digests}


def document(figures: Mapping[str, Any]) -> str:
    """The figures as tables."""
    where, mapped, answers = figures["machine"], figures["map_cpu_s"], figures["answers"]
    whole = {name: best(tool, "cpu_s") or 0.0 for name, tool in answers["tools"].items()}
    same = "the same bytes" if len(set(answers["sha256"].values())) == 1 else "OTHER BYTES"
    lines = [
        f"{figures['ranks']} ranks of 13 MB of JSON each, copied and renumbered from two real traces on H200. "
        f"{where['processors']} processors ({where['model']}), Python {where['python']}, load {where['load_before']} "
        "before; processor time, the best round of each.",
        "",
        "| Ratio | Promised | Measured |",
        "|:---|---:|---:|",
        f"| a trace read and measured over its partials taken | at least {FASTER} | "
        f"{mapped['traces'] / mapped['partials']:.0f} |",
        f"| the whole command without partials over with them ({same}) | | {whole['traces'] / whole['partials']:.1f} |",
    ]
    lines += [
        "",
        f"Partials are {' and '.join(f'{share:.2%}' for share in figures['bytes']['share'])} of the traces; "
        f"{figures['ranks']} of them are {figures['bytes']['partials'] / 1e6:.1f} MB, the traces "
        f"{figures['bytes']['traces'] / 1e6:.0f} MB.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
