"""A comparison as data and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from shlex import join, quote

from perfscope.analyzers.compare.change import Delta
from perfscope.analyzers.compare.comparison import BudgetChange, Comparison, Judgement, TermChange, judge
from perfscope.analyzers.compare.side import Cause, Compared, Origin, Side
from perfscope.constants import GB, MS_PER_S, NS_PER_MS, NS_PER_US, US_PER_S
from perfscope.report import (
    NEGLIGIBLE,
    SMALLEST_CHANGE,
    Cell,
    Column,
    Json,
    Row,
    Section,
    first_rows,
    percent,
    percent_of,
)
from perfscope.result import to_json
from perfscope.units import format_count, format_seconds

SCHEMA = "perfscope/comparison/1"
#: How keys of JSON end, the heading of a row, and the unit of the row.
_FIGURES = {
    Compared.LOOP_TIME: ("s", "Loop, a step (ms)", 1 / MS_PER_S),
    Compared.STEP_TIME: ("s", "Typical step (ms)", 1 / MS_PER_S),
    Compared.THROUGHPUT: ("per_s", "Throughput ({}/s)", 1.0),
    Compared.TFLOPS: ("per_gpu", "TFLOPs per GPU", 1.0),
    Compared.MEMORY: ("bytes", "Peak memory (GB)", float(GB)),
    Compared.ENERGY: ("j", "Energy (J/step)", 1.0),
}
#: A change is in percent below so many times.
_MANY_TIMES = 1.5
_NOTHING_FOUND = (Judgement.SAME, Judgement.NOT_SURE)


def shorten(name: str, longest: int = 60) -> str:
    """A path for a table; the end of it says more than its beginning.

    >>> shorten("/data/experiments/2024/run-17", longest=12)
    '...24/run-17'
    """
    return name if len(name) <= longest else f"...{name[-(longest - 3) :]}"


def describe_verdict(comparison: Comparison) -> str:
    """The verdict in one line."""
    names = f"{shorten(comparison.b.name)} against {shorten(comparison.a.name)}"
    if comparison.verdict is Judgement.INCOMPARABLE:
        text = "; ".join(comparison.reasons)
        return f"{names}: {text}" if text.startswith("cannot tell") else f"{names}: cannot be compared: {text}"
    change = comparison.deciding
    assert change is not None
    assert change.interval is not None
    advice = ""
    if comparison.verdict is Judgement.NOT_SURE:
        advice = f"; run each side {'three times' if _runs(comparison) == 1 else 'more often'}"
    return f"{names}: {_in_words(comparison.verdict, change)}: {_times(comparison)}{advice}"


def _in_words(verdict: Judgement, change: Delta) -> str:
    assert change.interval is not None
    low, high = change.interval
    if verdict is Judgement.SAME:
        return f"the same within {percent(SMALLEST_CHANGE):.0f} %"
    if verdict is Judgement.NOT_SURE and abs(change.change) < SMALLEST_CHANGE:
        return f"not sure, between {_words(low)} and {_words(high)}"
    if verdict is Judgement.NOT_SURE:
        return f"not sure, probably {_words(change.change)}"
    words, least = _words(change.change), low if low > 0 else high
    return f"{words} (at least {_words(least, in_times='times' in words).removesuffix(f' {verdict}')})"


def _words(change: float, *, in_times: bool = False) -> str:
    """A change of a time in words.

    >>> [_words(change) for change in (-0.62, 0.9, -0.12, 0.004)]
    ['2.6 times faster', '1.9 times slower', '12.0 % faster', '0.4 % slower']
    """
    word, times = ("slower", 1 + change) if change > 0 else ("faster", 1 / (1 + change))
    in_times = in_times or times >= _MANY_TIMES
    return f"{times:.1f} times {word}" if in_times else f"{percent(abs(change)):.1f} % {word}"


def _times(comparison: Comparison) -> str:
    """Both times: of the loops where they have as many steps, else of a step."""
    a, b, change = comparison.a.loop_s, comparison.b.loop_s, comparison.deciding
    assert change is not None
    counts = {len(run) for side in (a, b) if side is not None for run in side.runs}
    is_of_loop = Compared.LOOP_TIME in comparison.changes
    if not is_of_loop or len(counts) > 1 or comparison.is_per_work:
        return f"{format_seconds(change.a)} to {format_seconds(change.b)} a step"
    count = counts.pop()
    return f"{format_seconds(count * change.a)} to {format_seconds(count * change.b)} for {format_count(count, 'step')}"


def _runs(comparison: Comparison) -> int:
    sides = comparison.a.step_time_s or comparison.a.loop_s, comparison.b.step_time_s or comparison.b.loop_s
    return max(len(side.runs) if side is not None else 1 for side in sides)


def list_commands(comparison: Comparison) -> tuple[str, ...]:
    """What tells more where it is not sure: two further runs of each side, in turn, and their comparison."""
    a, b = comparison.a, comparison.b
    if comparison.verdict is not Judgement.NOT_SURE or _runs(comparison) > 1 or not (a.command and b.command):
        return ()
    first, second = (f"perfscope profile -o {quote(side.name)}-$run -- {join(side.command)}" for side in (a, b))
    sides = " ".join(f"{name},{name}-2,{name}-3" for name in (quote(a.name), quote(b.name)))
    if a.command != b.command:
        return f"for run in 2 3; do {first}; {second}; done", f"perfscope compare {sides}"
    # Only the code differs: the user changes it in between.
    return *(f"for run in 2 3; do {line}; done" for line in (first, second)), f"perfscope compare {sides}"


def to_data(comparison: Comparison) -> dict[str, Json]:
    """The comparison for JSON."""
    return {
        "schema": SCHEMA,
        "verdict": str(comparison.verdict),
        "headline": describe_verdict(comparison),
        "commands": list(list_commands(comparison)),
        "gone": [_cause_data(*pair) for pair in comparison.gone],
        "came": [_cause_data(*pair) for pair in comparison.came],
        "reasons": list(comparison.reasons),
        "confidence": comparison.confidence,
        "a": _side_data(comparison.a),
        "b": _side_data(comparison.b),
        **{
            str(figure): comparison.changes[figure].data(ending) if figure in comparison.changes else None
            for figure, (ending, *_) in _FIGURES.items()
        },
        "per": comparison.work[0].removesuffix("s") if comparison.is_per_work and comparison.work else "step",
        "work": None if comparison.work is None else comparison.work[0],
        "missing": {str(name): reason for name, reason in comparison.missing.items()},
        **_budget_data(comparison.budget),
        "setup": to_json(comparison.setup),
        "limits": to_json(comparison.limits),
        "notes": list(comparison.notes),
        "damage": list(comparison.damage),
    }


def _cause_data(cause: Cause, other: Cause | None) -> dict[str, Json]:
    other_us = None if other is None else other.cost_us
    return {
        "id": cause.id, "title": cause.title, "cost": cause.cost, "cost_us": cause.cost_us, "other_us": other_us
    }  # fmt: skip


def _side_data(side: Side) -> dict[str, Json]:
    setup = side.setup
    runs = side.step_time_s.runs if side.step_time_s else ()
    return {
        "name": side.name,
        "kind": str(side.kind),
        "runs": max(len(runs), 1),
        "steps": [len(run) for run in runs],
        "parameters": setup.parameters,
        "gpus": setup.gpus,
        "device": setup.device,
        "dtype": setup.dtype,
        "samples": setup.samples,
        "tokens": setup.tokens,
        "versions": dict(setup.versions),
    }


def _budget_data(budget: BudgetChange | None) -> dict[str, Json]:
    if budget is None:
        return {
            "change_us": None, "explains": None, "terms": [], "traced_us": None, "unexplained_us": None,
        }  # fmt: skip
    return {
        "change_us": budget.change_ns / NS_PER_US,
        "explains": budget.explains,
        "terms": [_term_data(term) for term in budget.terms],
        "traced_us": budget.traced_ns / NS_PER_US,
        "unexplained_us": budget.unexplained_ns / NS_PER_US,
    }


def _term_data(change: TermChange) -> dict[str, Json]:
    return {
        "name": ": ".join(part for part in change.term if part),
        "kind": change.term.kind,
        "kernel": change.term.name or None,
        "operator": change.term.operator or None,
        "a_us": change.a_ns / NS_PER_US,
        "b_us": change.b_ns / NS_PER_US,
        "change_us": change.change_ns / NS_PER_US,
        "a_calls": change.a_calls,
        "b_calls": change.b_calls,
    }


def to_sections(comparison: Comparison, most_rows: int) -> tuple[Section, ...]:
    """Tables of at most so many rows each."""
    sections = [section for section in (_in_short(comparison), _figures(comparison)) if section is not None]
    if comparison.limits:
        limits = [(shorten(verdict.limit), verdict.reason) for verdict in comparison.limits]
        shown, left_out = first_rows(limits, most_rows)
        note = "A limit is exceeded where the whole interval lies beyond it."
        sections.append(Section("Limits", (Column("Limit"), Column("Result")), shown, (note, *left_out)))
    if comparison.setup:
        effect = "refused" if comparison.is_refused else "per token"
        facts = [
            (each.fact, shorten(each.a), shorten(each.b), effect if each.forbids else "compared")
            for each in comparison.setup
        ]
        columns = Column("Fact"), Column("A"), Column("B"), Column("")
        sections.append(Section("Different set-up", columns, *first_rows(facts, most_rows)))
    if comparison.budget is not None:
        sections.append(_budget(comparison.budget, most_rows))
    return tuple(sections)


def _in_short(comparison: Comparison) -> Section | None:
    """The typical step, which findings went and came, and what to run where it is not sure."""
    lines = []
    step, loop = (comparison.changes.get(figure) for figure in (Compared.STEP_TIME, Compared.LOOP_TIME))
    if step is not None and loop is not None:
        times = f"{format_seconds(step.a)} to {format_seconds(step.b)}"
        verdict = None if step.interval is None else judge(step)
        lines.append(f"The typical step: {times}{'' if verdict is None else f', {_in_words(verdict, step)}'}.")
    if comparison.verdict is not Judgement.SAME:
        least_us = NEGLIGIBLE * abs(loop.b - loop.a) * US_PER_S if loop is not None else 0.0
        for words, pairs in ((("Went away", "Less"), comparison.gone), (("Came", "More"), comparison.came)):
            for cause, other in pairs:
                if cause.cost_us >= least_us or not cause.cost_us:
                    against = "" if other is None else f", against {other.cost}"
                    lines.append(f"{words[other is not None]}: {cause.title}, {cause.cost}{against}.")
    commands = list_commands(comparison)
    if len(commands) > 2:  # noqa: PLR2004 - each side's own
        lines.append("To be sure, run each side again with its own code, and compare all runs:")
    elif commands:
        lines.append("To be sure, run both sides again, and compare all runs:")
    return Section("In short", notes=(*lines, *(f"`{command}`" for command in commands))) if lines else None


def _figures(comparison: Comparison) -> Section:
    work = comparison.work[0] if comparison.work else "tokens"
    rows: list[Row] = [
        (title.format(work), change.a / unit, change.b / unit, percent(change.change), *_interval(change))
        for figure, (_, title, unit) in _FIGURES.items()
        for change in (comparison.changes.get(figure),)
        if change is not None
    ]
    columns = (
        Column("Figure"), Column("A", 3), Column("B", 3), Column("Change (%)", 2),
        Column(f"{100 * comparison.confidence:.4g} % interval (%)"), Column("Interval covers"),
    )  # fmt: skip
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in comparison.missing.items():
        names_by_reason.setdefault(reason, []).append(str(name).replace("_", " "))
    absent = tuple(f"No {', '.join(names)}: {reason}." for reason, names in names_by_reason.items())
    sides = (
        f"A: {shorten(comparison.a.name)}, {_describe(comparison.a)}.",
        f"B: {shorten(comparison.b.name)}, {_describe(comparison.b)}.",
    )
    notes = (*sides, *comparison.notes, *absent)
    return Section("Figures", columns if rows else (), tuple(rows), notes)


def _describe(side: Side) -> str:
    runs = side.step_time_s.runs if side.step_time_s else ()
    counts = sorted({len(run) for run in runs})
    steps = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else "".join(map(str, counts))
    kind = side.kind if side.kind is Origin.TRACES else f"a {side.kind}"
    parts = [kind, f"{len(runs)} runs of {steps} steps" if len(runs) > 1 else f"{steps or 'no'} steps"]
    if side.setup.parameters is not None:
        parts.append(f"{side.setup.parameters:,} parameters")
    if side.setup.gpus is not None:
        parts.append(f"{side.setup.gpus} x {shorten(side.setup.device or 'unknown device')}")
    return ", ".join(parts)


def _interval(change: Delta) -> tuple[Cell, Cell]:
    if change.interval is None:
        return None, change.reason
    low, high = change.interval
    return f"{low * 100:+.2f} to {high * 100:+.2f}", {
        "steps": "steps of one run each", "runs": "runs", "none": "nothing: a count"
    }[change.variation]  # fmt: skip


def _budget(budget: BudgetChange, most_rows: int) -> Section:
    largest_ns = max((abs(term.change_ns) for term in budget.terms), default=0)
    least_ns = NEGLIGIBLE * max(abs(budget.change_ns), largest_ns)
    named = [term for term in budget.terms if abs(term.change_ns) >= least_ns][:most_rows]
    shown: list[Row] = [
        (
            change.term.kind,
            change.term.title or None,
            change.a_ns / NS_PER_MS,
            change.b_ns / NS_PER_MS,
            change.change_ns / NS_PER_MS,
            percent_of(change.change_ns, budget.step_ns),
            change.a_calls,
            change.b_calls,
        )
        for change in named
    ]
    rest = budget.terms[len(named) :]
    if rest:
        rest_ns = sum(change.change_ns for change in rest)
        shown.append(_sum_row(format_count(len(rest), "smaller term"), rest_ns, budget))
    shown.append(_sum_row("unexplained", budget.unexplained_ns, budget))
    shown.append(_sum_row("sum: the change of a step", budget.change_ns, budget))
    columns = (
        Column("Term"), Column("Name"), Column("A (ms)", 3), Column("B (ms)", 3), Column("Change (ms)", 3),
        Column("Of A's step (%)", 2), Column("A (calls)"), Column("B (calls)"),
    )  # fmt: skip
    notes = (
        f"The terms and what is unexplained add up to the change of {budget.explains} exactly.",
        *budget.notes,
    )
    return Section("What the change is made of", columns, tuple(shown), notes)


def _sum_row(title: str, change_ns: int, budget: BudgetChange) -> Row:
    return title, None, None, None, change_ns / NS_PER_MS, percent_of(change_ns, budget.step_ns), None, None


def summarize(comparisons: Sequence[Comparison], most_rows: int) -> tuple[Section, ...]:
    """A row for each comparison, and where there is room the sections of each that found a difference."""
    sections = [_verdicts(comparisons, most_rows)]
    detailed = [comparison for comparison in comparisons if comparison.verdict not in _NOTHING_FOUND][:most_rows]
    for comparison in detailed:
        name = shorten(comparison.b.name)
        sections += [
            replace(section, title=f"{name}: {section.title}") for section in to_sections(comparison, most_rows)
        ]
    return tuple(sections)


def _verdicts(comparisons: Sequence[Comparison], most_rows: int) -> Section:
    rows: list[Row] = []
    for comparison in comparisons:
        step = comparison.deciding
        rows.append(
            (
                shorten(comparison.b.name),
                comparison.verdict.replace("_", " "),
                None if step is None else step.b * MS_PER_S,
                None if step is None else percent(step.change),
                None if step is None else _interval(step)[0],
                sum(1 for verdict in comparison.limits if verdict.exceeded),
            )
        )
    columns = (
        Column("B"), Column("Verdict"), Column("A step (ms)", 3), Column("Change (%)", 2), Column("Interval (%)"),
        Column("Limits exceeded"),
    )  # fmt: skip
    shown, left_out = first_rows(rows, most_rows)
    note = (
        f"Each interval has a confidence of {comparisons[0].confidence:.2%}, so that all {len(comparisons)} hold "
        "together with 95 % (Bonferroni)."
    )
    return Section("Verdicts", columns, shown, (note, *left_out))
