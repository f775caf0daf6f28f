"""Runs in which one fault was put in on purpose, and what is found in them first.

``python -m benchmarks.injected_faults`` prints the tables of reports/findings.md.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import kept_run
from perfscope.analyzers.findings import Findings
from perfscope.constants import US_PER_MS
from perfscope.engine.run import Plan, analyze
from perfscope.errors import SourceError
from perfscope.renderers.markdown import render_sections
from perfscope.report import Column, Section, percent, percent_of
from perfscope.wire import RUN_FILE

#: A table with the columns run, fault, finding and twin; folders of runs are relative to it.
CASES = Path(__file__).parents[1] / "fixtures" / "findings" / "cases.csv"
_KEYS = ("run", "fault", "finding", "twin")


@dataclass(frozen=True, slots=True)
class Case:
    """A run, the fault in it, and the finding that names it; a clean run has neither."""

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
    print(document(), end="")
