"""Runs in which a fault was put in on purpose, what is found in them first, and whether its fix is seen.

``python -m benchmarks.injected_faults`` prints the tables of reports/whole-loop.md.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import perfscope
from benchmarks import kept_run
from perfscope.analyzers.findings import Findings
from perfscope.constants import US_PER_MS, US_PER_S
from perfscope.engine.run import Plan, analyze
from perfscope.errors import SourceError
from perfscope.renderers.markdown import render_sections
from perfscope.report import Column, Section, percent, percent_of
from perfscope.wire import RUN_FILE

#: A table with the columns run, fault, finding and twin; folders of runs are relative to it.
CASES = Path(__file__).parents[1] / "fixtures" / "findings" / "cases.csv"
#: The same of trainings whose loop has the fault; the runs say for how long (``planted.json``).
LOOPS = CASES.with_name("loop.csv")
#: A price is right that is off by no more; a fix of a smaller share of the loop need not be seen.
NEAR = 0.1
_KEYS = ("run", "fault", "finding", "twin")


@dataclass(frozen=True, slots=True)
class Case:
    """A run, the fault in it, and the findings that name it; a clean run has neither."""

    run: str
    fault: str
    finding: str
    twin: str


def document(path: Path = CASES) -> str:
    """The tables of the report: what is found first in runs with injected faults, and in clean ones."""
    cases = _read_cases(path)
    names = {name for case in cases for name in (case.run, case.twin) if name}
    by_run = {name: find(path.parent / name) for name in sorted(names)}
    faulty, clean = [case for case in cases if case.finding], [case for case in cases if not case.finding]
    return render_sections((_faults_section(faulty, by_run), _clean_section(clean, by_run)), 2)


def loop_document(path: Path = LOOPS) -> str:
    """The tables of faults in the loop of a training: what is found, its price, and whether the fix is seen."""
    cases = _read_cases(path)
    by_run = {case.run: find(path.parent / case.run) for case in cases}
    rows = [row for case in cases if case.finding for row in _loop_rows(case, path.parent, by_run[case.run])]
    columns = (
        Column("Run"),
        Column("Fault"),
        Column("Found"),
        Column("Right"),
        Column("Planted (s)", 2),
        Column("Price (s)", 2),
        Column("Off (%)", 1),
        Column("Of the loop (%)", 1),
        Column("Without it, by `compare`"),
    )
    clean = [case.run for case in cases if not case.finding]
    silent = sum(not by_run[run].findings for run in clean)
    off = [row[6] for row in rows]
    near = sum(isinstance(share, float) and abs(share) <= 100 * NEAR for share in off)
    seen = [str(row[8]) for row in rows if row[8]]
    right, faster = _count(row[3] == "yes" for row in rows), _count(text == "faster" for text in seen)
    limit = percent(NEAR)
    notes = (
        f"The right finding stands first in {right} (two faults: both stand first).",
        f"The price is within {limit:.0f} % of the planted time in {near} of {len(rows)}.",
        f"`perfscope compare RUN TWIN` says *faster* in {faster}, of {limit:.0f} % of the loop or more.",
        f"Nothing is found in {silent} of {len(clean)} clean twins.",
    )
    return render_sections((Section("Faults in the training loop", columns, tuple(rows), notes),), 2)


def _count(right: Iterable[bool]) -> str:
    answers = list(right)
    return f"{sum(answers)} of {len(answers)}"


def _loop_rows(case: Case, folder: Path, found: Findings) -> list[tuple[str | float | None, ...]]:
    """One row for each fault of a run; the first one says what the fix of all brings."""
    run, wanted = kept_run(folder / case.run), case.finding.split()
    planted_s = json.loads((run / "planted.json").read_text())["planted_s"]
    first = [finding.id for finding in found.findings[: len(wanted)]]
    costs_s = {finding.id: finding.cost_s for finding in found.findings}
    loop_s = (found.findings[0].steps or 0) * found.findings[0].step_us / US_PER_S if found.findings else None
    share = sum(planted_s) / loop_s if loop_s else None
    seen = None
    if share is None or share >= NEAR:
        seen = perfscope.open(run).compare(kept_run(folder / case.twin)).verdict
    rows: list[tuple[str | float | None, ...]] = []
    for name, each_s in zip(wanted, planted_s, strict=True):
        cost_s = costs_s.get(name)
        right = "yes" if name in first else f"no: {', '.join(first) or 'nothing'}"
        off = percent(cost_s / each_s - 1) if cost_s is not None else None
        of_loop = percent(each_s / loop_s) if loop_s else None
        rows.append((case.run.removeprefix("loop/"), case.fault, name, right, each_s, cost_s, off, of_loop, seen))
        seen = None
    return rows


def find(folder: Path) -> Findings:
    """The findings of one run or of the traces in a folder.

    Raises:
        SourceError: It has no steps.
    """
    # A run says by what it recorded whether operators by shape and modules are analyzed; traces alone do not.
    folder = kept_run(folder)
    only = {"findings"} if (folder / RUN_FILE).exists() else {"findings", "modules", "roofline"}
    analysis = analyze([folder], Plan(only=frozenset(only)))
    result = analysis.results.get("findings")
    if not isinstance(result, Findings):
        raise SourceError(folder, "has no training steps to look for findings in")
    return result


def _read_cases(path: Path) -> list[Case]:
    with path.open(newline="") as file:
        return [Case(*(row[key] or "" for key in _KEYS)) for row in csv.DictReader(file)]


def _first(findings: Findings) -> str | None:
    return findings.findings[0].id if findings.findings else None


def _injected_us(case: Case, by_run: dict[str, Findings]) -> float | None:
    """How much longer a step is than that of the twin."""
    return by_run[case.run].step_us - by_run[case.twin].step_us if case.twin else None


def _faults_section(cases: Sequence[Case], by_run: dict[str, Findings]) -> Section:
    columns = (
        Column("Run"),
        Column("Fault"),
        Column("First finding"),
        Column("Right"),
        Column("Cost (ms)", 2),
        Column("Interval (ms)"),
        Column("Injected (ms)", 2),
        Column("Of a step (%)"),
    )
    rows = tuple(_fault_row(case, by_run) for case in cases)
    right = sum(_first(by_run[case.run]) == case.finding for case in cases)
    notes = (
        f"The right finding stands first in {right} of {len(cases)} runs ({percent_of(right, len(cases)):.0f} %).",
        "Injected: how much longer a step is than in the clean twin; n/a without a twin that differs in the fault "
        "alone. Cost: what the finding says that a fix regains of a step.",
    )
    return Section("Injected faults", columns, rows, notes)


def _fault_row(case: Case, by_run: dict[str, Findings]) -> tuple[str | float | None, ...]:
    injected_us = _injected_us(case, by_run)
    injected = None if injected_us is None else injected_us / US_PER_MS
    name = case.run.removeprefix("../")
    for first in by_run[case.run].findings[:1]:
        low, high = (us / US_PER_MS for us in first.interval_us)
        verdict = "yes" if first.id == case.finding else f"no: {case.finding}"
        cost = first.cost_us / US_PER_MS
        return (
            name,
            case.fault,
            first.id,
            verdict,
            cost,
            f"{low:.2f} to {high:.2f}",
            injected,
            percent(first.share_of_step),
        )
    return name, case.fault, "nothing stands out", f"no: {case.finding}", None, None, injected, None


def _clean_section(cases: Iterable[Case], by_run: dict[str, Findings]) -> Section:
    columns = Column("Run"), Column("Step (ms)", 2), Column("Largest finding"), Column("Of a step (%)")
    rows = tuple(
        (
            case.run.removeprefix("../"),
            by_run[case.run].step_us / US_PER_MS,
            _first(by_run[case.run]) or "nothing stands out",
            percent(by_run[case.run].findings[0].share_of_step) if by_run[case.run].findings else None,
        )
        for case in cases
    )
    return Section("Clean runs", columns, rows)


if __name__ == "__main__":
    print(loop_document(), document(), sep="\n", end="")
