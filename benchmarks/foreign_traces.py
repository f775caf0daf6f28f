"""Whether perfscope reads the traces of other projects exactly, and what HTA and TraceLens make of the same files.

    python -m benchmarks.foreign_traces FOLDER --write part0.jsonl --part 0 2 \
        --hta ENV/bin/python --tracelens ENV/bin/python
    python -m benchmarks.foreign_traces FOLDER --join part*.jsonl --write fixtures/benchmarks/foreign-traces.json
    python -m benchmarks.foreign_traces --report fixtures/benchmarks/foreign-traces.json

FOLDER has one folder for each project, ``OWNER+NAME``, and in it a file ``COMMIT``. Compared are all events with a
parse by the json module, and the window and the idle time of each device, in all and in each marked step, with sums
over these events. Peers are given one file each in a process of its own; of them the idle time counts, because it does
not depend on which kernels a tool takes for communication.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import slow_parse
from benchmarks.foreign_report import describe
from perfscope.analyzers import breakdown
from perfscope.analyzers.flops.operation_counts import count_operations
from perfscope.constants import GIGA, MB
from perfscope.engine.coverage import find_problems, summarize
from perfscope.errors import SourceError
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS, Events, Trace

REPORT = Path(__file__).parents[1] / "reports" / "foreign-traces.md"
DAMAGE = Path(__file__).parents[1] / "fixtures" / "benchmarks" / "damaged-traces.json"
LATE = DAMAGE.with_name("dlrm-collectives.json")
EXACT, DIFFERING, NO_TRACE = "exact", "differing", "no trace of torch.profiler"
_PEER_LIMIT_S = 120
#: Larger files take the peers minutes each.
_LARGEST_FOR_PEERS = 5 * MB // 2
#: Tools count in microseconds, and round.
_AGREES_NS = 1000
HTA = """
import json, os, sys
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
from hta.trace_analysis import TraceAnalysis
frame = TraceAnalysis(trace_files={0: sys.argv[1]}).get_temporal_breakdown(visualize=False)
print("IDLE", json.dumps(float(frame["idle_time(us)"].iloc[0])))
"""
TRACELENS = """
import json, sys
from TraceLens import TreePerfAnalyzer
frame = TreePerfAnalyzer.from_file(profile_filepath=sys.argv[1]).get_df_gpu_timeline()
print("IDLE", json.dumps(float(frame.loc[frame["type"] == "idle_time", "time ms"].iloc[0]) * 1000))
"""
PEERS = {"hta": HTA, "tracelens": TRACELENS}


@dataclass(frozen=True)
class Compared:
    """One file.

    Attributes:
        path: Its path in the project.
        outcome: Whether it is read exactly.
        devices: How many devices ran something.
        idle_ns: The idle time of them, by sums over the events; absent without device events.
        differences: What differs.
        warnings: What perfscope warns of.
        peers: What each peer says is idle, in microseconds; its error where it fails.
        idle_of_parts_ns: The idle time of parts that a tool may take for the whole: ``launched`` without events whose
            launch is not in the trace, ``early`` of these without those that were launched in the last step or behind
            it; and of what ``slow_parse.read_parts`` has.
    """

    path: str
    outcome: str
    devices: int
    idle_ns: int | None
    differences: list[str]
    warnings: list[str]
    peers: dict[str, float | str]
    idle_of_parts_ns: dict[str, int]


def rows(trace: Trace) -> slow_parse.Rows:
    """A trace's events as the slow parse gives them."""
    tables = {name: getattr(trace, name) for name in ("device", "calls", "annotations", "operators")}
    return {
        name: sorted(
            zip(
                (trace.names[index] for index in table.name),
                table.start_ns.tolist(),
                table.duration_ns.tolist(),
                table.correlation.tolist(),
                strict=True,
            )
        )
        for name, table in tables.items()
    }


def window_and_idle(spans: Iterable[tuple[Any, Any]]) -> tuple[Any, Any]:
    """From the first start to the last end of some spans, and how much of that none covers."""
    ordered = sorted(spans)
    until, idle = ordered[0][0], 0
    for start, end in ordered:
        idle += max(0, start - until)
        until = max(until, end)
    return until - ordered[0][0], idle


def sums_of(
    events: Sequence[slow_parse.DeviceRow], steps: Sequence[tuple[str, int, int]]
) -> dict[str, tuple[int, int]]:
    """Window and idle time of each device in all, and in each step by what was launched in it."""
    sums = {}
    for device in sorted({event.device for event in events}):
        mine = [event for event in events if event.device == device]
        sums[f"device {device}"] = window_and_idle((event.start_ns, event.end_ns) for event in mine)
        for name, start_ns, end_ns in steps:
            launched = [
                (event.start_ns, event.end_ns)
                for event in mine
                if event.launched_ns is not None and start_ns <= event.launched_ns < end_ns
            ]
            if launched:
                sums[f"device {device}, {name}"] = window_and_idle(launched)
    return sums


def idle_of_parts(events: Sequence[slow_parse.DeviceRow], steps: Sequence[tuple[str, int, int]]) -> dict[str, int]:
    """The idle time of parts that a tool may take for the whole."""
    last_ns = max((start_ns for _, start_ns, _ in steps), default=None)
    launched = [event for event in events if event.launched_ns is not None]
    early = [event for event in launched if last_ns is None or (event.launched_ns or 0) < last_ns]
    return {
        name: window_and_idle((event.start_ns, event.end_ns) for event in part)[1]
        for name, part in (("launched", launched), ("early", early))
        if part
    }


def idle_of_others(path: Path) -> dict[str, int]:
    """The idle time between what some tools take for work."""
    return {name: round(window_and_idle(spans)[1]) for name, spans in slow_parse.read_parts(path).items() if spans}


def answers_of(trace: Trace) -> dict[str, tuple[int, int]]:
    """The same by perfscope."""
    answers = {}
    for part in breakdown.measure(trace):
        answers[f"device {part.device}"] = part.total.window, part.total.idle
        for step in part.steps:
            answers[f"device {part.device}, {step.name}"] = step.parts.window, step.parts.idle
    return answers


def compare(path: Path, name: str, peers: dict[str, str]) -> Compared:
    """Compare one file."""
    try:
        trace = read_trace(path)
    except SourceError as error:
        return Compared(name, NO_TRACE, 0, None, [], [str(error).replace(str(path), path.name)], {}, {})
    warnings = [line.replace(str(path), path.name) for line in (*trace.damage, *find_problems([summarize(trace)]))]
    expected, ours = slow_parse.read(path), rows(trace)
    differences = [
        f"{table}: {len(ours[table])} for {len(expected[table])}" for table in ours if ours[table] != expected[table]
    ]
    events, steps = slow_parse.read_device(path)
    sums, answers = sums_of(events, steps), answers_of(trace)
    differences += [
        f"{key}: window and idle time {answers.get(key)} for {sums.get(key)} ns"
        for key in sorted(sums.keys() | answers.keys())
        if sums.get(key) != answers.get(key)
    ]
    devices = [total for key, total in sums.items() if "," not in key]
    outcome = DIFFERING if differences else EXACT
    idle_ns = sum(idle for _, idle in devices) if devices else None
    is_asked = len(devices) == 1 and path.stat().st_size <= _LARGEST_FOR_PEERS
    asked = {peer: ask(python, PEERS[peer], path) for peer, python in peers.items()} if is_asked else {}
    idle_of = {**idle_of_parts(events, steps), **idle_of_others(path)} if is_asked else {}
    return Compared(name, outcome, len(devices), idle_ns, differences, warnings, asked, idle_of)


def ask(python: str, script: str, path: Path) -> float | str:
    """What a peer says is idle in a file, in microseconds, or why it says nothing."""
    try:
        ended = subprocess.run(
            [python, "-c", script, path], capture_output=True, text=True, timeout=_PEER_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {_PEER_LIMIT_S} s"
    answers = [line.removeprefix("IDLE ") for line in ended.stdout.splitlines() if line.startswith("IDLE ")]
    if answers:
        return float(json.loads(answers[0]))
    return (ended.stderr.strip().splitlines() or ["no answer"])[-1][:160]


def compare_all(folder: Path, peers: dict[str, str], done: Path, part: tuple[int, int]) -> None:
    """Compare every n-th trace of a folder; each answer is a line of a file, and is not asked for again."""
    answered = {json.loads(line)["file"] for line in done.read_text().splitlines()} if done.exists() else set()
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "COMMIT")
    with done.open("a") as lines:
        for path in paths[part[0] :: part[1]]:
            name = str(path.relative_to(folder))
            if name not in answered:
                compared = compare(path, name.partition("/")[2], peers)
                lines.write(json.dumps({"file": name, **asdict(compared)}) + "\n")
                lines.flush()


def join(folder: Path, answers: Sequence[Path], earlier: Path | None) -> list[dict[str, Any]]:
    """The answers of all parts by project, with the operations of each file; peers said what they said earlier."""
    files = [json.loads(line) for path in answers for line in path.read_text().splitlines()]
    before = [file for project in json.loads(earlier.read_text()) for file in project["files"]] if earlier else []
    said = {file["file"]: file["peers"] for file in before}
    files = [{**file, "peers": file["peers"] or said.get(file["file"], {})} for file in files]
    projects = []
    for project in sorted(path for path in folder.iterdir() if path.is_dir()):
        mine = [file for file in files if file["file"].startswith(f"{project.name}/")]
        members = [{**file, **operations_of(project / file["path"])} for file in mine]
        commit = (project / "COMMIT").read_text().strip()
        members.sort(key=lambda file: file["path"])
        projects.append({"project": project.name.replace("+", "/"), "commit": commit, "files": members})
    return projects


def operations_of(path: Path) -> dict[str, Any]:
    """How many operations perfscope counts in a file, in 10**9, and the shares of the time of what it does not."""
    try:
        trace = read_trace(path, BASIC_EVENTS | Events.PRODUCTS)
    except SourceError:
        return {}
    counted = count_operations(trace, trace.products) if trace.products else None
    if counted is None:
        return {}
    not_counted = [[name, share] for name, _, share in counted.not_counted if share]
    if counted.other_replays_share:
        not_counted.append([f"{counted.other_replays} launches of graphs", counted.other_replays_share])
    if not (counted.flops_per_step or counted.recorded_flops):
        return {"not_counted": not_counted} if not_counted else {}
    steps = max(1, counted.steps)
    return {
        "gflop": (counted.flops_per_step or 0.0) * steps / GIGA,
        "replayed_gflop": counted.replayed_flops / GIGA,
        "recorded_gflop": counted.recorded_flops / GIGA,
        "covered": counted.covered,
        "not_counted": not_counted,
    }


def main() -> None:
    """Measure, or write the report of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="which part of how many")
    parser.add_argument("--join", type=Path, nargs="+", help="the answers of all parts")
    parser.add_argument("--earlier", type=Path, help="figures of which the answers of peers are taken that lack")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--hta", help="the Python of an environment with HTA")
    parser.add_argument("--tracelens", help="the Python of an environment with TraceLens")
    arguments = parser.parse_args()
    if arguments.folder and arguments.join:
        arguments.write.write_text(
            json.dumps(join(arguments.folder, arguments.join, arguments.earlier), indent=1) + "\n"
        )
    elif arguments.folder:
        peers = {name: getattr(arguments, name) for name in PEERS if getattr(arguments, name)}
        compare_all(arguments.folder, peers, arguments.write, tuple(arguments.part))
    if arguments.report:
        REPORT.write_text(describe(*(json.loads(path.read_text()) for path in (arguments.report, DAMAGE, LATE))))


if __name__ == "__main__":
    main()
