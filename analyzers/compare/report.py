"""A comparison as data and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfscope.analyzers.compare.change import Delta
from perfscope.analyzers.compare.comparison import BudgetChange, Comparison, Judgement, TermChange
from perfscope.analyzers.compare.side import Compared, Origin, Side, TrainedSetup
from perfscope.constants import GB, MS_PER_S, NS_PER_MS, NS_PER_US
from perfscope.report import Cell, Column, Json, Row, Section, first_rows, percent, percent_of

SCHEMA = "perfscope/comparison/1"
_UNITS = {
    Compared.STEP_TIME: "s",
    Compared.THROUGHPUT: "per_s",
    Compared.TFLOPS: "per_gpu",
    Compared.MEMORY: "bytes",
    Compared.ENERGY: "j",
}
_LONGEST_NAME = 60
_KINDS = {
    Origin.RUN: "a run",
    Origin.TRACES: "traces",
    Origin.LOG: "a log",
    Origin.BASELINE: "a baseline",
}


def shorten(name: str, longest: int = _LONGEST_NAME) -> str:
    """A path for a table; the end of it says more than its beginning.

    >>> shorten("/data/experiments/2024/run-17", longest=12)
    '...24/run-17'
    """
    return name if len(name) <= longest else f"...{name[-(longest - 3) :]}"


def describe_verdict(comparison: Comparison) -> str:
    """The verdict in one line."""
    names = f"{shorten(comparison.b.name)} against {shorten(comparison.a.name)}"
    change = comparison.changes.get(Compared.STEP_TIME)
    if comparison.verdict is Judgement.INCOMPARABLE:
        text = "; ".join(comparison.reasons)
        return f"{names}: {text}" if text.startswith("cannot tell") else f"{names}: cannot be compared: {text}"
    assert change is not None
    assert change.interval is not None
    interval = f"interval {change.interval[0]:+.2%} to {change.interval[1]:+.2%}"
    if comparison.verdict is Judgement.SAME:
        return f"{names}: no difference found ({change.change:+.2%}, {interval})"
    return f"{names}: {abs(change.change):.2%} {comparison.verdict} ({interval})"


def to_data(comparison: Comparison) -> dict[str, Json]:
    """The comparison for JSON."""
    return {
        "schema": SCHEMA,
        "verdict": str(comparison.verdict),
        "reasons": list(comparison.reasons),
        "confidence": comparison.confidence,
        "a": _side_data(comparison.a),
        "b": _side_data(comparison.b),
        **{
            str(figure): comparison.changes[figure].data(_UNITS[figure]) if figure in comparison.changes else None
            for figure in Compared
        },
        "per": comparison.work[0].removesuffix("s") if comparison.is_per_work and comparison.work else "step",
        "work": None if comparison.work is None else comparison.work[0],
        "missing": {str(name): reason for name, reason in comparison.missing.items()},
        **_budget_data(comparison.budget),
        "setup": [difference.data() for difference in comparison.setup],
        "limits": [verdict.data() for verdict in comparison.limits],
        "notes": list(comparison.notes),
        "damage": list(comparison.damage),
    }


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
    sections = [_figures(comparison)]
    if comparison.limits:
        sections.append(_limits(comparison, most_rows))
    if comparison.setup:
        sections.append(_setup(comparison, most_rows))
    if comparison.budget is not None:
        sections.append(_budget(comparison.budget, most_rows))
    return tuple(sections)


def _figures(comparison: Comparison) -> Section:
    rows: list[Row] = []
    titles = {
        Compared.STEP_TIME: ("Step time (ms)", 1 / MS_PER_S),
        Compared.THROUGHPUT: (f"Throughput ({comparison.work[0] if comparison.work else 'tokens'}/s)", 1.0),
        Compared.TFLOPS: ("TFLOPs per GPU", 1.0),
        Compared.MEMORY: ("Peak memory (GB)", float(GB)),
        Compared.ENERGY: ("Energy (J/step)", 1.0),
    }
    for figure, (title, unit) in titles.items():
        change = comparison.changes.get(figure)
        if change is not None:
            rows.append((title, change.a / unit, change.b / unit, percent(change.change), *_interval(change)))
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
    setup = _describe_setup(side.setup)
    counted = f"{len(runs)} runs of {steps} steps" if len(runs) > 1 else f"{steps or 'no'} steps"
    return ", ".join(part for part in (_KINDS[side.kind], counted, setup) if part)


def _describe_setup(setup: TrainedSetup) -> str:
    parts = []
    if setup.parameters is not None:
        parts.append(f"{setup.parameters:,} parameters")
    if setup.gpus is not None:
        parts.append(f"{setup.gpus} x {shorten(setup.device or 'unknown device')}")
    return ", ".join(parts)


def _interval(change: Delta) -> tuple[Cell, Cell]:
    if change.interval is None:
        return None, change.reason
    low, high = change.interval
    return f"{low * 100:+.2f} to {high * 100:+.2f}", {
        "steps": "steps of one run each", "runs": "runs", "none": "nothing: a count"
    }[change.variation]  # fmt: skip


def _limits(comparison: Comparison, most_rows: int) -> Section:
    rows = [(shorten(verdict.limit.text), verdict.reason) for verdict in comparison.limits]
    shown, left_out = first_rows(rows, most_rows)
    note = "A limit is exceeded where the whole interval lies beyond it."
    return Section("Limits", (Column("Limit"), Column("Result")), shown, (note, *left_out))


def _setup(comparison: Comparison, most_rows: int) -> Section:
    effect = "refused" if comparison.is_refused else "per token"
    rows = [
        (difference.fact, shorten(difference.a), shorten(difference.b), effect if difference.forbids else "compared")
        for difference in comparison.setup
    ]
    return Section(
        "Different set-up", (Column("Fact"), Column("A"), Column("B"), Column("")), *first_rows(rows, most_rows)
    )


def _budget(budget: BudgetChange, most_rows: int) -> Section:
    rows: list[Row] = [
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
        for change in budget.terms
    ]
    shown = rows[:most_rows]
    rest = budget.terms[most_rows:]
    rest_ns = sum(change.change_ns for change in rest)
    if rest:
        shown.append(_sum_row(f"{len(rest)} smaller terms", rest_ns, budget))
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
    detailed = [comparison for comparison in comparisons if comparison.verdict is not Judgement.SAME][:most_rows]
    for comparison in detailed:
        name = shorten(comparison.b.name)
        sections += [
            replace(section, title=f"{name}: {section.title}") for section in to_sections(comparison, most_rows)
        ]
    return tuple(sections)


def _verdicts(comparisons: Sequence[Comparison], most_rows: int) -> Section:
    rows: list[Row] = []
    for comparison in comparisons:
        step = comparison.changes.get(Compared.STEP_TIME)
        interval = step.interval if step else None
        rows.append(
            (
                shorten(comparison.b.name),
                str(comparison.verdict),
                None if step is None else step.b * MS_PER_S,
                None if step is None else percent(step.change),
                None if interval is None else f"{interval[0] * 100:+.2f} to {interval[1] * 100:+.2f}",
                sum(1 for verdict in comparison.limits if verdict.is_exceeded),
            )
        )
    columns = (
        Column("B"),
        Column("Verdict"),
        Column("Step time (ms)", 3),
        Column("Change (%)", 2),
        Column("Interval (%)"),
        Column("Limits exceeded"),
    )
    shown, left_out = first_rows(rows, most_rows)
    confidence = comparisons[0].confidence
    note = (
        f"Each interval has a confidence of {confidence:.2%}, so that all {len(comparisons)} hold together with 95 % "
        "(Bonferroni)."
    )
    return Section("Verdicts", columns, shown, (note, *left_out))
