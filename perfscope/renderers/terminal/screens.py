"""One screen of a report: what costs the most or the verdict, where the time went, and how to see the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from perfscope.constants import US_PER_S
from perfscope.renderers import Terminal
from perfscope.renderers.cells import to_text
from perfscope.renderers.summary import MOST_FINDINGS, MOST_RANKS, PARTS, describe_steps, describe_wall_clock
from perfscope.renderers.terminal.lines import DOUBT, FAINT, HEADING, fit, join, plain, to_output, wrap
from perfscope.report import Report
from perfscope.units import format_count, format_seconds

_LABEL = 8
_BAR = 24
_VERDICTS = {"slower": "bold red", "faster": "bold green", "same": "bold", "incomparable": "bold yellow"}
_OF_COMPARISONS = ("Figures", "Limits", "What the change is made of", "Verdicts")
_MOST_ROWS, _NAME, _CELL = 8, 23, 10
_COLOURS = ("blue", "yellow", "magenta", "red", "bright_black", "bright_black")


def draw_analysis(report: Report, terminal: Terminal) -> str:
    """Draw the analysis of one run, or of traces."""
    data: Mapping[str, Any] = report.data
    results = data["results"]
    top = [fit(plain(report.title, "bold"), terminal), *_findings(results.get("findings"), terminal)]
    steps, clock = results.get("steps"), results.get("wall_clock")
    middle = [] if steps is None else _labelled("Steps", describe_steps(steps), terminal)
    middle += [] if clock is None else _labelled("Wall", describe_wall_clock(clock), terminal)
    end = [*_warnings(report, terminal), *draw_footer(report, terminal)]
    room = terminal.height - len(top) - len(middle) - len(end)
    straggler = (results.get("stragglers") or {}).get("straggler")
    bars = _bars(results.get("breakdown") or results.get("host"), straggler, terminal, room)
    return to_output([*top, *middle, *bars, *end][: terminal.height], terminal)


def draw_analyses(report: Report, terminal: Terminal) -> str:
    """Draw several analyses: each run with its step and its first finding, as many as there is room for."""
    analyses: Sequence[Mapping[str, Any]] = report.data["analyses"]  # type: ignore[assignment]
    end = [*_warnings(report, terminal), *draw_footer(report, terminal)]
    room = terminal.height - len(end) - 1
    shown = analyses if len(analyses) <= room else analyses[: room - 1]
    rows = [fit(_run_line(analysis), terminal) for analysis in shown]
    if len(shown) < len(analyses):
        rows.append(plain(f"... and {format_count(len(analyses) - len(shown), 'more run')}", FAINT))
    return to_output([fit(plain(report.title, "bold"), terminal), *rows, *end], terminal)


def draw_comparison(report: Report, terminal: Terminal) -> str:
    """Draw one comparison, or the verdicts of several: the first rows of their tables."""
    verdict = str(report.data.get("verdict", ""))
    top = [plain(verdict.capitalize(), _VERDICTS.get(verdict, "bold"))] if verdict else []
    top += wrap(plain(report.title, "bold"), terminal, 3)
    end = [*_warnings(report, terminal), *draw_footer(report, terminal)]
    rows: list[Text] = []
    for section in report.sections:
        if section.title in _OF_COMPARISONS and section.rows:
            rows.append(plain(section.title, HEADING))
            for row in section.rows[:_MOST_ROWS]:
                first, *cells = (to_text(cell, column) for cell, column in zip(row, section.columns, strict=True))
                rows.append(fit(join(f"{first:<{_NAME}}", *(f"  {cell:>{_CELL}}" for cell in cells)), terminal))
    return to_output([*top, *rows[: terminal.height - len(top) - len(end)], *end][: terminal.height], terminal)


def _run_line(analysis: Mapping[str, Any]) -> Text:
    results, inputs = analysis["results"], analysis["inputs"]
    steps, findings = results.get("steps"), results.get("findings")
    time = (
        f"{format_seconds(steps['step_time_s'])} a step"
        if steps and steps["step_time_s"] is not None
        else "no step time"
    )
    first = findings[0]["title"] if findings else "nothing stands out"
    return join((inputs[0] if inputs else "traces", "bold"), f": {time}; ", (first, DOUBT if findings else ""))


def _findings(findings: Sequence[Mapping[str, Any]] | None, terminal: Terminal) -> Iterator[Text]:
    if findings is None:
        return
    yield plain("Findings", HEADING)
    if not findings:
        yield plain("  Nothing stands out: no cause that perfscope knows costs 2% of a step.")
    for number, finding in enumerate(findings[:MOST_FINDINGS], 1):
        share = finding["share_of_step"]
        yield fit(
            join(
                f"{number} ",
                (finding["title"], "bold red" if number == 1 else "bold yellow"),
                f"  {share:.1%} of a step, {format_seconds(finding['cost_us'] / US_PER_S)}",
                (_ranks(finding["ranks"]), FAINT),
            ),
            terminal,
        )
        advice = join("  ", finding["advice"].replace("`", ""))
        yield from wrap(advice, terminal, 2, indent=2)
    if len(findings) > MOST_FINDINGS:
        yield plain(f"  {len(findings) - MOST_FINDINGS} more: --section findings", FAINT)


def _ranks(ranks: Sequence[int]) -> str:
    if not ranks:
        return ""
    return f"  rank {ranks[0]}" if len(ranks) == 1 else f"  {len(ranks)} ranks, first {ranks[0]}"


def _labelled(label: str, text: str, terminal: Terminal) -> list[Text]:
    return wrap(join((f"{label:<{_LABEL}}", HEADING), text), terminal, 2, indent=_LABEL)


def _bars(times: Mapping[str, Any] | None, straggler: int | None, terminal: Terminal, room: int) -> list[Text]:
    """A bar a rank, as many as there is room for; of many ranks the first one is the straggler."""
    ranks: Sequence[Mapping[str, Any]] = times["ranks"] if times else ()
    most = max(min(MOST_RANKS, room - 1), 0)
    if straggler is not None and len(ranks) > most:
        ranks = sorted(ranks, key=lambda rank: rank["rank"] != straggler)
    lines = [fit(_bar(rank), terminal) for rank in ranks[:most]]
    if len(ranks) > most > 0:
        lines.append(plain(f"{'':<{_LABEL}}... and {format_count(len(ranks) - most, 'more rank')}", FAINT))
    return lines


def _bar(rank: Mapping[str, Any]) -> Text:
    row = rank.get("marked") or rank
    window_us = row["window_us"]
    parts = [
        (row[key], label, style)
        for (key, label), style in zip(PARTS, _COLOURS, strict=True)
        if row.get(key) is not None and window_us
    ]
    line = join((f"rank {'?' if rank['rank'] is None else rank['rank']}".ljust(_LABEL), HEADING))
    drawn, time_us = 0, 0.0
    for part_us, _, style in parts:
        time_us += part_us
        end = round(_BAR * time_us / window_us)
        line.append("█" * (end - drawn), style=style)
        drawn = end
    line.append(" " * (_BAR - drawn + 1))
    named = sorted((part for part in parts if part[0]), key=lambda part: -part[0])
    for number, (part_us, label, style) in enumerate(named):
        line.append_text(join(", " if number else " ", (label, style), f" {part_us / window_us:.0%}"))
    return line


def _warnings(report: Report, terminal: Terminal) -> list[Text]:
    if not report.warnings:
        return []
    first, following = report.warnings[0], len(report.warnings) - 1
    hint = f" ({following} more: --section warnings)" if following else ""
    return wrap(plain(f"Warning{hint}: {first}", DOUBT), terminal, 2, indent=2)


def draw_footer(report: Report, terminal: Terminal) -> list[Text]:
    """How to see the rest."""
    titles = ", ".join(section.title.lower() for section in report.sections)
    return wrap(
        join(("Everything: --format md. One part: --section NAME", FAINT), (f": {titles}", FAINT)),
        terminal,
        2,
        indent=2,
    )
