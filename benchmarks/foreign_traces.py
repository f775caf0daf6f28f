"""Whether perfscope reads the traces of other projects exactly, compared with a parse by the json module.

    python -m benchmarks.foreign_traces --report fixtures/benchmarks/foreign-traces.json

FOLDER has one folder for each project, ``OWNER+NAME``, and in it a file ``COMMIT``.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import slow_parse
from perfscope.constants import MB
from perfscope.engine.coverage import find_problems, summarize
from perfscope.errors import SourceError
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import Trace

REPORT = Path(__file__).parents[1] / "reports" / "foreign-traces.md"
DAMAGE = Path(__file__).parents[1] / "fixtures" / "benchmarks" / "damaged-traces.json"
#: Smaller files are settings; larger ones take the json module too long.
_SMALLEST_BYTES, _LARGEST_BYTES = 3000, int(1.7 * MB)
_OUTCOMES = "exact", "differing", "no trace of torch.profiler"


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


def compare(path: Path) -> tuple[str, list[str]]:
    """Whether a file is read exactly, and what perfscope warns of."""
    try:
        trace = read_trace(path)
    except SourceError:
        return _OUTCOMES[2], []
    outcome = _OUTCOMES[0] if rows(trace) == slow_parse.read(path) else _OUTCOMES[1]
    return outcome, [*(line.replace(str(path), path.name) for line in trace.damage), *find_problems([summarize(trace)])]


def measure(folder: Path) -> list[dict[str, Any]]:
    """Compare every trace of each project."""
    projects = []
    for project in sorted(path for path in folder.iterdir() if path.is_dir()):
        counts: Counter[str] = Counter()
        warnings: dict[str, list[str]] = {}
        for path in sorted(project.rglob("*")):
            is_file = path.is_file() and path.name != "COMMIT"
            if is_file and _SMALLEST_BYTES <= path.stat().st_size <= _LARGEST_BYTES:
                outcome, lines = compare(path)
                counts[outcome] += 1
                if lines:
                    warnings[str(path.relative_to(project))] = lines
        commit = (project / "COMMIT").read_text().strip()
        name = project.name.replace("+", "/")
        projects.append({"project": name, "commit": commit, "counts": dict(counts), "warnings": warnings})
    return projects


def describe(projects: list[dict[str, Any]], damage: dict[str, Any]) -> str:
    """The report."""
    lines = [
        "# Traces of other projects, and damaged ones",
        "",
        "The test traces of other projects, read by perfscope and by the json module, which parses the whole file:",
        "names, times and correlations of all kernels, copies, calls, annotations and operators are compared.",
        "",
        "| Project | Commit | Exact | Differing | Not of torch.profiler |",
        "|:---|:---|---:|---:|---:|",
    ]
    for project in projects:
        cells = " | ".join(str(project["counts"].get(outcome, 0)) for outcome in _OUTCOMES)
        lines.append(f"| {project['project']} | {project['commit'][:7]} | {cells} |")
    lines += [
        "",
        "What is not of torch.profiler is refused with a sentence: execution traces, settings, XPlane, rocprof.",
        "",
    ]
    for project in projects:
        for path, warnings in project["warnings"].items():
            lines += [f"- {project['project']}, `{path}`: {'; '.join(warnings)}" for _ in warnings[:1]]
    lines += [
        "",
        "## Damage",
        "",
        "Copies of the traces in `fixtures/traces` with one damage each. *Word* flips each bit of `ph`, `cat`, `X` and",
        "`kernel` in plain text; everything else damages compressed files at random places.",
        "",
    ]
    outcomes = sorted({outcome for counts in damage["counts"].values() for outcome in counts} | {"silent", "traceback"})
    lines += [f"| Damage | {' | '.join(outcomes)} |", f"|:---|{'---:|' * len(outcomes)}"]
    for kind, counts in damage["counts"].items():
        lines.append(f"| {kind} | {' | '.join(str(counts.get(outcome, 0)) for outcome in outcomes)} |")
    lines += [
        "",
        "*Said* is a warning that names the loss, *nothing lost* the same events as in the whole file, *refused* one",
        "line that the file cannot be read. *Silent* would be other events without a warning.",
        f"No file took more than {damage['most_beyond_twice_s']:.2f} s beyond twice the time of the whole one.",
        "",
        "The figures are in `fixtures/benchmarks/foreign-traces.json` and `damaged-traces.json`,",
        "from `python -m benchmarks.foreign_traces` and `python -m benchmarks.damaged_traces`.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, or write the report of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    if arguments.folder:
        text = json.dumps(measure(arguments.folder), indent=1) + "\n"
        (arguments.write or REPORT.with_suffix(".json")).write_text(text)
    if arguments.report:
        REPORT.write_text(describe(json.loads(arguments.report.read_text()), json.loads(DAMAGE.read_text())))


if __name__ == "__main__":
    main()
