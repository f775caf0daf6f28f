"""Two sides compared: the verdict by the loop, or by the step time, all figures, the budget, what else differs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from perfscope.analyzers.budget import KINDS, Budget, Term, apportion
from perfscope.analyzers.compare.change import (
    Delta,
    Variation,
    compare_loops,
    compare_samples,
    exact_change,
)
from perfscope.analyzers.compare.side import Cause, Compared, Side, TrainedSetup
from perfscope.constants import NS_PER_S
from perfscope.errors import UsageError
from perfscope.measures.statistics import CONFIDENCE
from perfscope.report import NEGLIGIBLE, SMALLEST_CHANGE
from perfscope.units import format_parameters

_LIMIT = re.compile(r"\s*([a-zA-Z_ -]+?)\s*([<>])\s*([+-]?)\s*(\d+(?:\.\d+)?)\s*(%?)\s*")


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of a change, as a share of A."""

    text: str
    figure: Compared
    is_upper: bool
    share: float


@dataclass(frozen=True, slots=True)
class LimitVerdict:
    """What a comparison says to a limit; None where it cannot be told whether the whole interval lies beyond it."""

    limit: str
    exceeded: bool | None
    reason: str


def parse_limit(text: str) -> Limit:
    """Parse a limit; raises UsageError."""
    match = _LIMIT.fullmatch(text)
    figures = ", ".join(Compared)
    if match is None:
        raise UsageError(
            f"--fail-on {text!r} is no limit", hint=f"such as 'step_time>+3%' or 'tflops<-3%'; figures: {figures}"
        )
    name, sign, direction, number, unit = match.groups()
    if not unit:
        raise UsageError(f"--fail-on {text!r} has no %", hint=f"limits are changes in percent: '{text.strip()}%'")
    normal = name.strip().lower().replace(" ", "_").replace("-", "_")
    if normal not in list(Compared):
        raise UsageError(f"--fail-on {text!r} names no figure that is compared", hint=f"figures: {figures}")
    share = float(number) / 100 * (-1 if direction == "-" else 1)
    return Limit(text.strip(), Compared(normal), sign == ">", share)


def check_limit(limit: Limit, changes: Mapping[Compared, Delta], reasons: Mapping[str, str]) -> LimitVerdict:
    """Hold a comparison's figures against a limit."""
    change = changes.get(limit.figure)
    if change is None:
        return LimitVerdict(limit.text, None, f"not checked: {reasons.get(limit.figure, 'the figure is not known')}")
    if change.interval is None:
        return LimitVerdict(limit.text, None, f"cannot tell: {change.reason}")
    low, high = change.interval
    words = f"{change.change:+.2%}, interval {low:+.2%} to {high:+.2%}"
    nearest = low if limit.is_upper else high
    is_exceeded = nearest > limit.share if limit.is_upper else nearest < limit.share
    is_beyond = change.change > limit.share if limit.is_upper else change.change < limit.share
    kept = f"not proven: {words} contains the limit" if is_beyond else f"kept: {words}"
    return LimitVerdict(limit.text, is_exceeded, f"exceeded: {words}" if is_exceeded else kept)


_DIMENSIONS = ("layers", "hidden size", "vocabulary")


@dataclass(frozen=True, slots=True)
class SetupDifference:
    """A fact that is not the same on both sides; with some of them steps are not comparable."""

    fact: str
    a: str
    b: str
    forbids: bool


def compare_setups(a: TrainedSetup, b: TrainedSetup) -> Iterator[SetupDifference]:
    """What differs, of what is known of both sides."""
    if a.parameters is not None and b.parameters is not None and a.parameters != b.parameters:
        words = [format_parameters(count) for count in (a.parameters, b.parameters)]
        if words[0] == words[1]:
            words = [f"{count:,}" for count in (a.parameters, b.parameters)]
        yield SetupDifference("model", f"{words[0]} parameters", f"{words[1]} parameters", forbids=True)
    elif a.dimensions is not None and b.dimensions is not None and a.dimensions != b.dimensions:
        words = [
            ", ".join(f"{count:,} {name}" for count, name in zip(dimensions, _DIMENSIONS, strict=True))
            for dimensions in (a.dimensions, b.dimensions)
        ]
        yield SetupDifference("model", words[0], words[1], forbids=True)
    # Sequences of many lengths make the tokens of a step vary.
    if a.samples and b.samples and abs(a.samples / b.samples - 1) > NEGLIGIBLE:
        yield SetupDifference("batch", f"{a.samples:g} samples a step", f"{b.samples:g} samples a step", forbids=True)
    elif a.tokens and b.tokens and abs(a.tokens / b.tokens - 1) > NEGLIGIBLE:
        yield SetupDifference("batch", f"{a.tokens:,.0f} tokens a step", f"{b.tokens:,.0f} tokens a step", forbids=True)
    facts = [("GPU count", a.gpus, b.gpus), ("device", a.device, b.device), ("data type", a.dtype, b.dtype)]
    for fact, first, second in (*facts, ("model class", a.model, b.model)):
        if first is not None and second is not None and first != second:
            yield SetupDifference(fact, str(first), str(second), forbids=fact == "GPU count")
    for package in sorted({*a.versions, *b.versions}) if a.versions and b.versions else ():
        versions = [setup.versions.get(package) or "not stated" for setup in (a, b)]
        if versions[0] != versions[1]:
            yield SetupDifference(f"version of {package}", versions[0], versions[1], forbids=False)


def list_unknown(a: Side, b: Side) -> tuple[str, ...]:
    """The facts that must be equal and that a side does not state."""
    facts = {"model": "parameters", "batch": "samples", "GPU count": "gpus"}
    unknown = {
        side.name: [
            fact
            for fact, name in facts.items()
            if getattr(side.setup, name) is None and not (fact == "batch" and side.setup.tokens is not None)
        ]
        for side in (a, b)
    }
    return tuple(
        f"{name} does not state its {', '.join(missing)}: that it is the same on both sides is not checked."
        for name, missing in unknown.items()
        if missing
    )


def work_of(a: TrainedSetup, b: TrainedSetup) -> tuple[str, float, float] | None:
    """Tokens of a step on both sides, or samples, with their unit; None where neither is known of both."""
    if a.tokens and b.tokens:
        return "tokens", a.tokens, b.tokens
    if a.samples and b.samples:
        return "samples", a.samples, b.samples
    return None


@dataclass(frozen=True, slots=True)
class TermChange:
    """A term on both sides, in nanoseconds of a step, and its events of the device a step; None where it has none."""

    term: Term
    a_ns: int
    b_ns: int
    a_calls: float | None = None
    b_calls: float | None = None

    @property
    def change_ns(self) -> int:
        """By how much it changed the step."""
        return self.b_ns - self.a_ns


@dataclass(frozen=True, slots=True)
class BudgetChange:
    """The budget of a change: ``change_ns`` is the sum of the terms and ``unexplained_ns``.

    ``explains`` says in words which steps it is of; ``step_ns`` is A's step, for shares.
    """

    change_ns: int
    explains: str
    terms: tuple[TermChange, ...]
    unexplained_ns: int
    step_ns: int
    notes: tuple[str, ...]

    @property
    def traced_ns(self) -> int:
        """What the traces show of the change."""
        return sum(term.change_ns for term in self.terms)

    def __post_init__(self) -> None:
        assert self.traced_ns + self.unexplained_ns == self.change_ns


def compare_budgets(a: Side, b: Side, factor: float) -> BudgetChange | None:
    """The budget of the change of a step; None where a side has none.

    ``factor`` is how much of B's step is compared.
    """
    if a.budget is None or b.budget is None:
        return None
    by_operator = all(any(term.operator for term in budget.times) for budget in (a.budget, b.budget))
    (first, calls), (second, other_calls) = (_at_level(side, by_operator=by_operator) for side in (a.budget, b.budget))
    if factor != 1:
        names = sorted(second)
        share = Fraction(factor).limit_denominator()
        means = apportion([second[term] * share.numerator for term in names], share.denominator)
        second = dict(zip(names, means, strict=True))
    change_ns, explains = sum(second.values()) - sum(first.values()), "the profiled steps"
    if not (a.is_profiled or b.is_profiled) and a.step_time_s is not None and b.step_time_s is not None:
        change_ns = round(round(b.step_time_s.centre * NS_PER_S) * factor) - round(a.step_time_s.centre * NS_PER_S)
        explains = "the undisturbed steps"
    every = {*first, *second, *calls, *other_calls}
    counted = {*calls, *other_calls}
    terms = (
        TermChange(
            term,
            first.get(term, 0),
            second.get(term, 0),
            *(of.get(term, 0.0 if of and term in counted else None) for of in (calls, other_calls)),
        )
        for term in sorted(every, key=lambda term: (KINDS.index(term.kind), term.name, term.operator))
    )
    changed = (term for term in terms if term.change_ns or term.a_ns or term.a_calls != term.b_calls)
    ordered = sorted(changed, key=lambda term: -abs(term.change_ns))
    return BudgetChange(
        change_ns=change_ns,
        explains=explains,
        terms=tuple(ordered),
        unexplained_ns=change_ns - sum(term.change_ns for term in ordered),
        step_ns=sum(first.values()),
        notes=_describe(a.budget, b.budget),
    )


def _describe(a: Budget, b: Budget) -> tuple[str, ...]:
    steps = [f"{len(budget.steps) or 1} of {'A' if budget is a else 'B'}" for budget in (a, b)]
    notes = [
        f"Terms are means over profiled steps ({', '.join(steps)}) and ranks. Profiled steps are slower than others, "
        "on both sides by not quite the same: that is in what is unexplained."
    ]
    if a.activities != b.activities:
        kinds = " and ".join(budget.activities or "unknown" for budget in (a, b))
        notes.append(f"The windows differ ({kinds}): a window with operators slows the host more than a light one.")
    return tuple(notes)


def _at_level(budget: Budget, *, by_operator: bool) -> tuple[Mapping[Term, int], Mapping[Term, float]]:
    if by_operator:
        return budget.times, budget.calls
    times: Counter[Term] = Counter()
    calls: Counter[Term] = Counter()
    for term, ns in budget.times.items():
        times[term._replace(operator="")] += ns
    for term, count in budget.calls.items():
        calls[term._replace(operator="")] += count  # type: ignore[assignment]  # means of counts
    return times, calls


class Judgement(StrEnum):
    """The answer."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    NOT_SURE = "not_sure"
    INCOMPARABLE = "incomparable"


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """B compared with A.

    Attributes:
        reasons: Why it cannot be told, where it cannot.
        is_refused: Whether the sides did not train the same, and nothing was compared.
        work: What a step's work is counted in, and how much of it each side does; absent where unknown.
        is_per_work: Whether B is compared for as much work as a step of A.
        missing: Why a figure, or ``budget``, is absent.
    """

    a: Side
    b: Side
    verdict: Judgement
    confidence: float
    setup: tuple[SetupDifference, ...]
    reasons: tuple[str, ...] = ()
    is_refused: bool = False
    work: tuple[str, float, float] | None = None
    is_per_work: bool = False
    changes: Mapping[Compared, Delta] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    budget: BudgetChange | None = None
    limits: tuple[LimitVerdict, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def deciding(self) -> Delta | None:
        """The change that the verdict is of: of the loop, or of the typical step."""
        return self.changes.get(Compared.LOOP_TIME) or self.changes.get(Compared.STEP_TIME)

    @property
    def gone(self) -> tuple[tuple[Cause, Cause | None], ...]:
        """The findings of A that B has not, or at less than half of the cost; none where a side has no answer."""
        return () if self.is_refused else _shrunk(self.a, self.b)

    @property
    def came(self) -> tuple[tuple[Cause, Cause | None], ...]:
        """The findings of B that A has not, or at less than half of the cost."""
        return () if self.is_refused else _shrunk(self.b, self.a)

    @property
    def damage(self) -> tuple[str, ...]:
        """What could not be read on either side."""
        return tuple(dict.fromkeys((*self.a.damage, *self.b.damage)))


def _shrunk(side: Side, other: Side) -> tuple[tuple[Cause, Cause | None], ...]:
    if side.causes is None or other.causes is None:
        return ()
    by_id = {cause.id: cause for cause in other.causes}
    pairs = ((cause, by_id.get(cause.id)) for cause in side.causes)
    return tuple(pair for pair in pairs if pair[1] is None or 2 * pair[1].cost_us < pair[0].cost_us)


def compare_sides(
    a: Side,
    b: Side,
    *,
    anyway: bool = False,
    limits: Sequence[Limit] = (),
    confidence: float = CONFIDENCE,
    between_runs: float | None = None,
) -> Comparison:
    """Compare B with A; sides that did not train the same are refused, unless ``anyway``: then per token.

    ``between_runs`` is the standard deviation between runs of the same code, see ``compare_samples``.
    """
    setup = tuple(compare_setups(a.setup, b.setup))
    forbidding = [f"different {each.fact}: {each.a} against {each.b}" for each in setup if each.forbids]
    work = work_of(a.setup, b.setup)
    if forbidding and not anyway:
        return _refused(a, b, setup, forbidding, limits, confidence)
    if forbidding and work is None:
        reasons = (*forbidding, "the tokens of a step are not known of both, so that nothing is per token")
        return _refused(a, b, setup, reasons, limits, confidence)
    factor = work[1] / work[2] if forbidding and work else 1.0
    changes, missing = _figures(a, b, work, factor, (confidence, between_runs))
    verdict, reasons = _judge(changes, missing)
    budget = compare_budgets(a, b, factor)
    if budget is None:
        missing["budget"] = next(side.why_absent("budget") for side in (a, b) if side.budget is None)
    notes = (*_explain(a, b, changes, forbidding, work), *list_unknown(a, b), *a.notes, *b.notes)
    return Comparison(
        a, b, verdict, confidence, setup,
        reasons=reasons,
        work=work,
        is_per_work=factor != 1.0,
        changes=changes,
        missing=missing,
        budget=budget,
        limits=tuple(check_limit(limit, changes, missing) for limit in limits),
        notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _refused(
    a: Side,
    b: Side,
    setup: tuple[SetupDifference, ...],
    reasons: Sequence[str],
    limits: Sequence[Limit],
    confidence: float,
) -> Comparison:
    why = "the sides did not train the same"
    return Comparison(
        a, b, Judgement.INCOMPARABLE, confidence, setup,
        reasons=tuple(reasons),
        is_refused=True,
        missing=dict.fromkeys((*Compared, "budget"), why),
        limits=tuple(LimitVerdict(limit.text, None, f"not checked: {why}") for limit in limits),
    )  # fmt: skip


def _judge(changes: Mapping[Compared, Delta], missing: Mapping[str, str]) -> tuple[Judgement, tuple[str, ...]]:
    change = changes.get(Compared.LOOP_TIME) or changes.get(Compared.STEP_TIME)
    if change is None:
        return Judgement.INCOMPARABLE, (missing[Compared.STEP_TIME],)
    if change.interval is None:
        return Judgement.INCOMPARABLE, (f"cannot tell: {change.reason}",)
    return judge(change), ()


def judge(change: Delta) -> Judgement:
    """What a change with an interval says."""
    assert change.interval is not None
    low, high = change.interval
    if low > 0 or high < 0:
        return Judgement.SLOWER if low > 0 else Judgement.FASTER
    return Judgement.SAME if max(-low, high) <= SMALLEST_CHANGE else Judgement.NOT_SURE


def _figures(
    a: Side, b: Side, work: tuple[str, float, float] | None, factor: float, certainty: tuple[float, float | None]
) -> tuple[dict[Compared, Delta], dict[str, str]]:
    changes: dict[Compared, Delta] = {}
    missing: dict[str, str] = {}
    for figure, first, second in (
        (Compared.LOOP_TIME, a.loop_s, b.loop_s),
        (Compared.STEP_TIME, a.step_time_s, b.step_time_s),
        (Compared.MEMORY, a.memory_bytes, b.memory_bytes),
        (Compared.ENERGY, a.energy_j, b.energy_j),
    ):
        if first is None or second is None:
            missing[figure] = (a if first is None else b).why_absent(figure)
        elif figure is Compared.MEMORY and max(len(first.runs), len(second.runs)) == 1:
            changes[figure] = exact_change(first.centre, second.centre)
        else:
            scaled = second if figure is Compared.MEMORY else second.scaled(factor)
            compare = compare_loops if figure is Compared.LOOP_TIME else compare_samples
            changes[figure] = compare(first, scaled, *certainty)
    step = changes.get(Compared.STEP_TIME)
    if step is None or work is None or a.is_profiled != b.is_profiled:
        missing[Compared.THROUGHPUT] = missing.get(Compared.STEP_TIME) or "the tokens of a step are not known of both"
    else:
        changes[Compared.THROUGHPUT] = step.reversed_rate(work[1], work[2] * factor)
    _add_tflops(a, b, step, factor, changes, missing)
    return changes, missing


def _add_tflops(
    a: Side, b: Side, step: Delta | None, factor: float, changes: dict[Compared, Delta], missing: dict[str, str]
) -> None:
    for side in (a, b):
        if side.tflop_per_step is None:
            missing.setdefault(Compared.TFLOPS, side.why_absent(Compared.TFLOPS))
    if a.tflop_per_step is None or b.tflop_per_step is None:
        return
    if a.tflop_per_step[1] != b.tflop_per_step[1]:
        conventions = f"{a.tflop_per_step[1]} and {b.tflop_per_step[1]}"
        missing[Compared.TFLOPS] = f"TFLOPs of the sides are of different conventions: {conventions}"
    elif step is not None:
        changes[Compared.TFLOPS] = step.reversed_rate(a.tflop_per_step[0], b.tflop_per_step[0] * factor)


def _explain(
    a: Side,
    b: Side,
    changes: Mapping[Compared, Delta],
    forbidding: Sequence[str],
    work: tuple[str, float, float] | None,
) -> tuple[str, ...]:
    notes = []
    step = changes.get(Compared.STEP_TIME)
    if step is not None and step.variation is Variation.STEPS:
        notes.append(
            "One run of each side: the interval covers how steps of these two processes vary, and an allowance for how "
            "runs of the same code differ. On a busy machine they differ by more."
        )
    if step is not None and step.variation is Variation.RUNS and a.step_time_s and b.step_time_s:
        counts = f"{len(a.step_time_s.runs)} against {len(b.step_time_s.runs)}"
        notes.append(f"Several runs ({counts}): the run is the unit, and the interval covers how runs vary.")
    if a.is_profiled or b.is_profiled:
        notes.append("Step times are those of profiled steps, which are slower than others.")
    if forbidding and work is not None:
        notes.append(
            f"Compared per {work[0].removesuffix('s')}, although {'; '.join(forbidding)}: B's figures are for "
            f"{work[1]:,.0f} {work[0]}, as a step of A."
        )
    return tuple(notes)
