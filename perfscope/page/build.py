"""Builds the page of an analysis."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import msgspec
from markdown_it import MarkdownIt

from perfscope.aggregation.tables import aggregate
from perfscope.analyzers.breakdown import Breakdown
from perfscope.analyzers.energy import Energy
from perfscope.analyzers.findings import NOTHING, NOTHING_RECORDED, Findings
from perfscope.analyzers.findings.finding import Finding
from perfscope.analyzers.gpus import Gpus
from perfscope.analyzers.loop import Loop
from perfscope.analyzers.mfu import Utilisation
from perfscope.analyzers.steps import StepTimes
from perfscope.constants import GB, US_PER_S
from perfscope.engine.analysis_report import find_groupings
from perfscope.engine.inputs import Inputs
from perfscope.engine.run import Analysis, Plan, analyze_inputs
from perfscope.page.html import clean, render, with_code
from perfscope.page.part import Drawn, PageDocument, PagePart, Tile, result_of
from perfscope.page.parts import bars, curves
from perfscope.page.parts.timeline import draw_timeline
from perfscope.report import Column, Section, percent
from perfscope.units import format_count, format_ranges, format_rate, format_seconds


def draw_findings(analysis: Analysis) -> Drawn:
    """One card a finding, the one that regains most first."""
    findings = result_of(analysis, "findings", Findings)
    assert findings is not None
    if not findings.findings:
        return Drawn(NOTHING if findings.is_profiled else NOTHING_RECORDED)
    cards = "".join(_card(finding, index) for index, finding in enumerate(findings.findings))
    lead = "What costs the most, and what to try. Times are what a fix would regain."
    return Drawn(lead, html=f'<ol class="findings">{cards}</ol>')


def _card(finding: Finding, index: int) -> str:
    pointer = f"/results/findings/{index}"
    low, high = (format_seconds(edge / US_PER_S) for edge in finding.interval_us)
    between = f"{low} to {high} a step, " if low != high and not finding.of_wall else ""
    ranks = f"rank{'s' * (len(finding.ranks) > 1)} {format_ranges(finding.ranks, 8)}" if finding.ranks else "all ranks"
    evidence = "".join(f"<li>{with_code(item.text)}</li>" for item in finding.evidence)
    if finding.saved_bytes is not None:
        cost = (
            f'<p class="cost"><strong data-pointer="{pointer}/saved_bytes" data-value="{finding.saved_bytes}">'
            f"{finding.saved_bytes / GB:.2f} GB</strong> <span>less at the peak</span></p>"
        )
    else:
        cost = _cost_in_time(finding, pointer)
    title = finding.title + (f", in {finding.place}" if finding.place is not None else "")
    return (
        f"<li><h3>{clean(title)}</h3>{cost}"
        f'<p class="advice">{with_code(finding.advice)}</p><ul class="evidence">{evidence}</ul>'
        f'<p class="faint">{between}{clean(str(finding.basis))}, '
        f"{ranks}</p>{_explain(finding)}</li>"
    )


def _cost_in_time(finding: Finding, pointer: str) -> str:
    share = percent(finding.share_of_step) or 0.0
    price, _, shown = finding.cost.rpartition(" (")
    number, sign, whole = shown.removesuffix(")").partition(" %")
    return (
        f'<p class="cost"><strong data-pointer="{pointer}/share_of_step" data-value="{finding.share_of_step!r}">'
        f"{number}{sign}</strong> <span{_point_to_cost(finding, pointer)}>{whole.strip()}: {clean(price)}</span>"
        '<svg class="share" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        '<rect width="100" height="4"/>'
        f'<rect class="fill-communication" width="{min(share, 100):.2f}" height="4"/></svg></p>'
    )


def _explain(finding: Finding) -> str:
    """What the documentation says of a finding; empty of a rule that is not in it."""
    folders = (files("perfscope.page") / "findings", Path(__file__).parents[2] / "docs" / "findings")
    text = next((page for folder in folders if (page := folder / f"{finding.id}.md").is_file()), None)
    if text is None:
        return ""
    _, _, body = text.read_text(encoding="utf-8").partition("\n")
    html = MarkdownIt("commonmark", {"html": False}).render(_LINK.sub(r"\1", body))
    return f"<details><summary>What this means, and when it is no fault</summary>{html}</details>"


def _point_to_cost(finding: Finding, pointer: str) -> str:
    return "" if finding.cost_s is None else f' data-pointer="{pointer}/cost_s" data-value="{finding.cost_s!r}"'


@dataclass(frozen=True, slots=True)
class _Kind:
    """A part of the page: the results whose tables it has, and what draws them above.

    One of ``needs``, or else of ``results``, must exist; ``otherwise`` is the reason where no analyzer says one.
    """

    identity: str
    title: str
    results: tuple[str, ...]
    draw: Callable[[Analysis], Drawn] | None = None
    needs: tuple[str, ...] = ()
    otherwise: str = "this was not analyzed"

    def show(self, analysis: Analysis) -> PagePart:
        """What is drawn, and the tables; or why there is none."""
        needs = self.needs or self.results
        if not any(name in analysis.results for name in needs):
            reasons = {each.analyzer: each.reason for each in (*analysis.inapplicable, *analysis.skipped)}
            reason = next((reasons[name] for name in needs if name in reasons), self.otherwise)
            return PagePart(self.identity, self.title, Drawn(absent=reason))
        drawn = self.draw(analysis) if self.draw else Drawn()
        results = [analysis.results[name] for name in self.results if name in analysis.results]
        sections = tuple(section for result in results for section in result.sections())
        if drawn.absent and not sections:
            return PagePart(self.identity, self.title, drawn)
        drawn = replace(drawn, lead=drawn.lead.strip() or drawn.absent, absent="")
        return PagePart(self.identity, self.title, drawn, sections)


#: A link of the documentation, which leads nowhere from a page.
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")
#: The parts in their order; what is in none of them stands at the end as tables.
_KINDS = (
    _Kind("findings", "Findings", (), draw_findings, ("findings",), "no step was measured"),
    _Kind("steps", "Training loop", ("steps", "loop"), curves.draw_steps, ("steps",)),
    _Kind("goodput", "Goodput", ("wall_clock",), bars.draw_wall_clock),
    _Kind("stragglers", "Late ranks", ("late_ranks", "stragglers"), curves.draw_stragglers),
    _Kind("breakdown", "Device time", ("breakdown", "idle"), bars.draw_breakdown, ("breakdown",)),
    _Kind("host", "Host time", ("host",), bars.draw_host),
    _Kind("stacks", "Python functions", ("stacks",), bars.draw_stacks),
    _Kind("timeline", "Timeline", ("timeline",), draw_timeline),
    _Kind("overlap", "Overlap by axis", ("overlap",)),
    _Kind("collectives", "Collectives", ("collectives",), curves.draw_collectives),
    _Kind("gpus", "GPUs under the steps", ("gpus", "energy", "throttling"), curves.draw_gpus, ("gpus",)),
    _Kind("pipeline", "Pipeline", ("pipeline_bubble", "pipeline_steps"), bars.draw_pipeline),
    _Kind("kernels", "Kernels", ("kernels",)),
    _Kind("modules", "Modules", ("modules",), otherwise="this is no run of `perfscope profile --modules`"),
    _Kind("memory", "Memory", ("memory",), bars.draw_memory, ("steps", "gpus", "memory")),
    _Kind("checkpoints", "Checkpoints", ("saves",)),
)  # fmt: skip


def analyze_for_page(inputs: Inputs, plan: Plan) -> Analysis:
    """Analyze inputs by the default analyzers, the timeline and the stacks; ``SourceError`` where none can be read."""
    return analyze_inputs(inputs, msgspec.structs.replace(plan, besides=frozenset(("timeline", "stacks"))))


def build_page(analysis: Analysis) -> str:
    """The page of a run or of traces, as HTML; its analysis is that of ``analyze_for_page``, or any other one."""
    return render(describe_analysis(analysis))


def describe_analysis(analysis: Analysis) -> PageDocument:
    """What the page of an analysis shows, in its order."""
    run = analysis.run
    command = shlex.join(run.command) if run is not None else ""
    first, *others = analysis.inputs
    title = textwrap.shorten(command, 72, placeholder=" …") or (  # the whole command stands below it
        f"{first} and {len(others):,} more" if others else first
    )
    parts = (*(kind.show(analysis) for kind in _KINDS), _show_others(analysis))
    groupings = find_groupings(analysis)
    parts = tuple(
        replace(part, sections=tuple(aggregate(section, groupings) for section in part.sections)) for part in parts
    )
    remarks = (*analysis.windows.describe(), *analysis.windows.notes)
    return PageDocument(
        title=title,
        command=command if command != title else "",
        facts=tuple(_list_facts(analysis)),
        damage=analysis.damage,
        remarks=remarks,
        tiles=tuple(_list_tiles(analysis)),
        parts=parts,
    )


def _list_facts(analysis: Analysis) -> Iterator[str]:
    run = analysis.run
    gpus = result_of(analysis, "gpus", Gpus)
    if run is None:
        yield format_count(len(analysis.inputs), "trace")
        return
    yield format_count(len({rank.rank for rank in run.ranks}) or len(run.steps), "rank")
    hosts = {rank.host for rank in run.ranks}
    if len(hosts) > 1:
        yield format_count(len(hosts), "host")
    if gpus is not None:
        yield from sorted({gpu.name for gpu in gpus.gpus})
    steps = result_of(analysis, "steps", StepTimes)
    if steps is not None:
        yield f"{format_count(steps.count, 'step')}, counted by {steps.source}"
    if run.exit_status:
        yield f"the command {run.exit_status}"
    yield f"from {run.path}"


def _list_tiles(analysis: Analysis) -> Iterator[Tile]:
    steps = result_of(analysis, "steps", StepTimes)
    if steps is not None and steps.step_time_s is not None:
        yield Tile("step time", format_seconds(steps.step_time_s), steps.step_time_s, "/results/steps/step_time_s")
    loop = result_of(analysis, "loop", Loop)
    unit = "tokens" if steps is not None and steps.tokens_per_s is not None else "samples"
    for name, result, words in (("steps", steps, "in steady state"), ("loop", loop, "with everything")):
        rate: float | None = getattr(result, f"{unit}_per_s", None)
        if rate is not None:
            yield Tile(f"{unit}/s {words}", format_rate(rate), rate, f"/results/{name}/{unit}_per_s")
    utilisation = result_of(analysis, "mfu", Utilisation)
    if utilisation is not None and utilisation.mfu is not None:
        text = f"{percent(utilisation.mfu):.1f} %"
        yield Tile(f"MFU, FLOPs by {utilisation.convention}", text, utilisation.mfu, "/results/mfu/mfu")
    breakdown = result_of(analysis, "breakdown", Breakdown)
    if breakdown is not None and breakdown.row.window:
        yield from _shares_of_window(breakdown)
    energy = result_of(analysis, "energy", Energy)
    if energy is not None and energy.step_j is not None:
        yield Tile("energy of a step", f"{energy.step_j:,.0f} J", energy.step_j, "/results/energy/step_j")
    peaks = [rank.memory_peak_bytes for rank in steps.ranks] if steps is not None else []
    largest = max((peak for peak in peaks if peak is not None), default=None)
    if largest is not None:
        pointer = f"/results/steps/ranks/{peaks.index(largest)}/memory_peak_bytes"
        yield Tile("peak memory of tensors", f"{largest / GB:,.1f} GB", largest, pointer)


def _shares_of_window(breakdown: Breakdown) -> Iterator[Tile]:
    """Shares of the profiled time; the figures are the times of which they are shares."""
    key, parts = ("all_marked", breakdown.row) if breakdown.row is not breakdown.total else ("all", breakdown.total)
    for label, name in (
        ("compute", "compute_us"),
        ("exposed communication", "exposed_communication_us"),
        ("idle", "idle_us"),
    ):
        time_us: float = getattr(parts, name)
        pointer = f"/results/breakdown/{key}/{name}"
        yield Tile(label, f"{percent(time_us / parts.window_us):.1f} %", time_us, pointer)


def _show_others(analysis: Analysis) -> PagePart:
    """The tables of all other results, and the reasons of those that are absent."""
    drawn = {name for kind in _KINDS for name in (*kind.results, *kind.needs)}
    others = [result for name, result in analysis.results.items() if name not in drawn]
    sections = [section for result in others for section in result.sections()]
    if analysis.skipped:
        rows = tuple((skip.analyzer, skip.reason) for skip in analysis.skipped)
        sections.append(Section("Not computed", (Column("Result"), Column("Reason")), rows))
    if not sections:
        return PagePart("others", "Other results", Drawn(absent="all results are drawn above"))
    lead = "Tables of `perfscope analyze` that no chart draws, and what could not be computed."
    return PagePart("others", "Other results", Drawn(lead), tuple(sections))
