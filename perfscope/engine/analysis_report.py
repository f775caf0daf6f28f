"""An analysis as the neutral document: its JSON and its sections."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfscope.aggregation.tables import Grouping, aggregate
from perfscope.engine.registry import Reads, analyzers
from perfscope.engine.run import Analysis
from perfscope.report import Json, Report, Section
from perfscope.result import Result
from perfscope.wire import PAGE_FILE

_HOST = "host"
_SLOWED_WITH_THE_HOST = ("breakdown", "host", "idle")  # whose shares change where the profiler slows the host


def to_report(analysis: Analysis, *, has_sections: bool = True) -> Report:
    """Write an analysis as the neutral document; without sections, which take time, where only its data is wanted."""
    data: dict[str, Json] = {
        "schema": "perfscope/analysis/1",
        "inputs": [str(path) for path in analysis.inputs],
        "skipped": [{"analyzer": skip.analyzer, "reason": skip.reason} for skip in analysis.skipped],
        "windows": analysis.windows.data(),
        "results": {name: _data_of(analysis, name, result) for name, result in analysis.results.items()},
    }
    sections = tuple(_sections(analysis)) if has_sections else ()
    page = Path(analysis.inputs[0]) / PAGE_FILE
    is_there = analysis.run is not None and page.is_file()
    return Report(_title(analysis), data, sections, analysis.damage, str(page) if is_there else "")


def _title(analysis: Analysis) -> str:
    only = next(iter(analysis.results.values())) if len(analysis.results) == 1 else None
    if only is not None and hasattr(only, "in_a_sentence"):
        return str(only.in_a_sentence())
    title = "Where the time went"
    return f"{title}: {shlex.join(analysis.run.command)}" if analysis.run and analysis.run.command else title


def _sections(analysis: Analysis) -> list[Section]:
    sections: list[Section] = []
    for name, result in analysis.results.items():
        first, *following = result.sections()
        notes = (*first.notes, *_window_notes(analysis, name), *_slowdown_notes(analysis, name))
        sections += [replace(first, notes=notes), *following]
    if analysis.skipped:
        by_reason: dict[str, list[str]] = {}
        for skipped in analysis.skipped:
            by_reason.setdefault(skipped.reason, []).append(skipped.analyzer)
        reasons = tuple(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
        sections.append(Section("Not computed", notes=reasons))
    groupings = find_groupings(analysis)
    return [aggregate(section, groupings) for section in sections]


def find_groupings(analysis: Analysis) -> list[Grouping]:
    """Which ranks belong together, by what the results know."""
    found = [result.groups_of_ranks() for result in analysis.results.values() if hasattr(result, "groups_of_ranks")]
    groupings = [Grouping(name, labels) for name, labels in found if labels]
    if analysis.run is not None and not any(grouping.name == _HOST for grouping in groupings):
        hosts = {rank.rank: rank.host for rank in analysis.run.ranks if rank.host}
        groupings += [Grouping(_HOST, hosts)] if len(set(hosts.values())) > 1 else []
    return groupings


def to_reports(analyses: Sequence[Analysis]) -> Report:
    """Write the analyses of several runs as one document, each apart: nothing is compared or added up."""
    reports = [to_report(analysis) for analysis in analyses]
    names = [analysis.inputs[0] if analysis.run else "traces" for analysis in analyses]
    sections = tuple(
        replace(section, title=f"{name}: {section.title}")
        for name, report in zip(names, reports, strict=True)
        for section in report.sections
    )
    data: dict[str, Json] = {"schema": "perfscope/analyses/1", "analyses": [report.data for report in reports]}
    warnings = tuple(f"{name}: {line}" for name, report in zip(names, reports, strict=True) for line in report.warnings)
    return Report(f"Where the time went: {len(reports)} runs, each apart", data, sections, warnings)


def _reads_traces(name: str) -> bool:
    return any(analyzer.name == name and analyzer.reads is not Reads.RUN for analyzer in analyzers())


def _data_of(analysis: Analysis, name: str, result: Result) -> Json:
    data, window = result.data(), analysis.windows.times
    return {**data, "window": window} if isinstance(data, dict) and window and _reads_traces(name) else data


def _window_notes(analysis: Analysis, name: str) -> tuple[str, ...]:
    if not _reads_traces(name):
        return ()
    reasons = analysis.windows.notes if name == "breakdown" else ()
    return (*analysis.windows.describe(), *reasons)


def _slowdown_notes(analysis: Analysis, name: str) -> tuple[str, ...]:
    cost = analysis.results.get("cost")
    if name not in _SLOWED_WITH_THE_HOST or cost is None or not hasattr(cost, "largest_distortion"):
        return ()
    slowdown = cost.largest_distortion(analysis.windows.times)
    if slowdown is None:
        return ()
    return (f"Not representative: measured in profiled steps, up to {slowdown:.0%} slower than steady-state steps.",)
