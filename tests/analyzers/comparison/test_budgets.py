"""The budget of a change adds up, whatever the sides know of it; clocks and perfscope's own cost have their parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from perfscope.analyzers.budget.result import Budget
from perfscope.analyzers.budget.terms import COMPUTE, IDLE, Kernel, Launches, Operation, Term
from perfscope.analyzers.comparison.budgets import BudgetChange, compare_budgets
from perfscope.analyzers.comparison.change import Samples, compare_samples
from perfscope.analyzers.comparison.saved import from_saved, to_baseline
from perfscope.analyzers.comparison.side import Kind, Setup, Side
from perfscope.constants import NS_PER_S

MS = 1_000_000
GEMM, NORM, GAP = Term(COMPUTE, "gemm"), Term(COMPUTE, "norm"), Term(IDLE, "launch gap")


def budget(terms: Mapping[Term, int], steps: int = 4, calls: int = 10, spread: float = 0.001) -> Budget:
    generator = np.random.default_rng(sum(terms.values()) % 1000)
    return Budget(
        step_ns=sum(terms.values()),
        terms=dict(terms),
        by_step={term: ns * (1 + spread * generator.standard_normal(steps)) for term, ns in terms.items()},
        steps=tuple(range(40, 40 + steps)),
        ranks=1,
        activities="light",
        is_of_host=False,
        kernels={
            Kernel(term.name, 7): Launches(calls * 1000, ns) for term, ns in terms.items() if term.kind == COMPUTE
        },
        operations={Operation("mm", ((2, 3), (3, 4)), ("float", "float")): 5000},
    )


def side(
    of_budget: Budget,
    step_ms: float | None = None,
    clock_mhz: float | None = None,
    profiled_ms: float | None = None,
) -> Side:
    times_s = None if step_ms is None else Samples((np.full(50, step_ms / 1000) * (1 + np.arange(50) % 5 / 1e5),))
    return Side(
        name="side",
        kind=Kind.RUN,
        setup=Setup(),
        step_time_s=times_s,
        clock_mhz=clock_mhz,
        budget=of_budget,
        profiled_ns=() if profiled_ms is None else tuple(round(profiled_ms * MS) + 1000 * n for n in range(4)),
    )


def change_of(a: Side, b: Side, factor: float = 1) -> BudgetChange:
    step = None
    if a.step_time_s is not None and b.step_time_s is not None:
        step = compare_samples(a.step_time_s, b.step_time_s.scaled(factor))
    change = compare_budgets(a, b, step, factor)
    assert change is not None
    assert sum(term.change_ns for term in change.terms) + change.unexplained_ns == change.change_ns
    return change


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("factor", [1.0, 0.5, 1 / 3, 2.7182818])
def test_terms_and_the_rest_add_up_for_any_budgets_and_amounts_of_work(seed: int, factor: float) -> None:
    generator = np.random.default_rng(seed)
    names = [Term(COMPUTE, f"kernel {number}") for number in range(30)]
    sides = [
        side(
            budget({name: int(generator.integers(1, 10 * MS)) for name in names if generator.random() < 0.7}),
            step_ms=float(generator.uniform(50, 200)),
            clock_mhz=float(generator.uniform(1000, 2000)),
            profiled_ms=float(generator.uniform(50, 200)),
        )
        for _ in "ab"
    ]
    change = change_of(sides[0], sides[1], factor)
    assert sides[0].step_time_s is not None
    assert sides[1].step_time_s is not None
    expected = sides[1].step_time_s.centre * factor - sides[0].step_time_s.centre
    assert change.change_ns == pytest.approx(expected * NS_PER_S, abs=2)


def test_a_slower_clock_takes_what_it_explains_of_the_same_kernels() -> None:
    """At half the clock a product takes twice its time, a norm, which waits for memory, as long as before."""
    a = side(budget({GEMM: 10 * MS, NORM: 4 * MS, GAP: MS}), clock_mhz=1800)
    b = side(budget({GEMM: 20 * MS, NORM: 4 * MS, GAP: MS}), clock_mhz=900)
    change = change_of(a, b)
    clocks, *others = change.terms
    assert (clocks.term.kind, clocks.term.name, clocks.change_ns) == ("clocks", "1800 to 900 MHz", 10 * MS)
    assert [term.change_ns for term in others] == [0, 0, 0]
    # The clean twin: the same change at the same clock is the kernel's.
    twin = change_of(side(budget({GEMM: 10 * MS}), clock_mhz=1800), side(budget({GEMM: 20 * MS}), clock_mhz=1800))
    assert [(term.term, term.change_ns) for term in twin.terms] == [(GEMM, 10 * MS)]


def test_a_clock_explains_no_more_than_its_proportion_and_no_other_work() -> None:
    slower = change_of(side(budget({GEMM: 10 * MS}), clock_mhz=1800), side(budget({GEMM: 30 * MS}), clock_mhz=900))
    assert {term.term.kind: term.change_ns for term in slower.terms} == {"clocks": 10 * MS, COMPUTE: 10 * MS}
    more = change_of(
        side(budget({GEMM: 10 * MS}, calls=10), clock_mhz=1800), side(budget({GEMM: 20 * MS}, calls=20), clock_mhz=900)
    )
    assert {term.term.kind: term.change_ns for term in more.terms if term.change_ns} == {COMPUTE: 10 * MS}


def test_perfscope_s_own_cost_is_a_term_where_the_hooks_agree_with_the_traces() -> None:
    """B's profiled steps are 4 ms slower than its others, A's 1 ms: the code itself became 2 ms slower."""
    a = side(budget({GEMM: 21 * MS}), step_ms=20, profiled_ms=21)
    b = side(budget({GEMM: 26 * MS}), step_ms=22, profiled_ms=26)
    change = change_of(a, b)
    terms = {term.term.kind: term.change_ns for term in change.terms}
    assert terms == {COMPUTE: 5 * MS, "perfscope": pytest.approx(-3 * MS, rel=1e-3)}
    assert abs(change.unexplained_ns) < 0.01 * 20 * MS
    assert change.explains == "the undisturbed steps"


def test_ends_of_steps_that_scatter_leave_nothing_unexplained_and_what_grows_does() -> None:
    """A host that marks the end of its last step 3 ms early makes each of four steps shorter by a quarter of that."""
    a = side(budget({GEMM: 20 * MS}), step_ms=20, profiled_ms=20)
    b = side(budget({GEMM: 22 * MS}), step_ms=21, profiled_ms=22)
    exact = change_of(a, b)
    count = len(b.profiled_ns)
    early = (*b.profiled_ns[:-1], b.profiled_ns[-1] - 3 * MS)
    scattered = change_of(a, replace(b, profiled_ns=early))
    assert count > 2
    assert scattered.unexplained_ns == pytest.approx(exact.unexplained_ns, abs=1000)
    slower = tuple(ns + MS // 2 for ns in b.profiled_ns)
    grown = change_of(a, replace(b, profiled_ns=slower))
    assert grown.unexplained_ns == pytest.approx(MS // 2, rel=0.05)


def test_where_the_host_runs_ahead_the_traces_tell_how_long_profiled_steps_took() -> None:
    """The hooks see 9 ms, in which the host fills the queue; the devices took 21 and 24 ms."""
    a = side(budget({GEMM: 21 * MS}), step_ms=20, profiled_ms=9)
    b = side(budget({GEMM: 24 * MS}), step_ms=22, profiled_ms=9)
    change = change_of(a, b)
    terms = {term.term.kind: term.change_ns for term in change.terms}
    assert terms == {COMPUTE: 3 * MS, "perfscope": pytest.approx(-MS, rel=1e-3)}
    assert abs(change.unexplained_ns) < 1000


def test_hooks_that_say_longer_than_the_traces_leave_a_rest_that_is_said() -> None:
    a = side(budget({GEMM: 21 * MS}), step_ms=20, profiled_ms=25)
    b = side(budget({GEMM: 24 * MS}), step_ms=22, profiled_ms=28)
    change = change_of(a, b)
    assert [term.term for term in change.terms] == [GEMM]
    assert change.unexplained_ns == pytest.approx(-MS, abs=1000)
    assert any("part of what is unexplained" in note for note in change.notes)
    assert change.unexplained_interval_ns is not None
    assert change.unexplained_interval_ns[0] < change.unexplained_ns < change.unexplained_interval_ns[1]


def test_budgets_meet_at_the_level_that_both_have() -> None:
    by_kind = budget({Term(COMPUTE): 10 * MS, Term(IDLE): MS})
    by_operator = budget({Term(COMPUTE, "gemm", "aten::mm"): 6 * MS, Term(COMPUTE, "gemm", "aten::addmm"): 6 * MS})
    assert [(term.term, term.change_ns) for term in change_of(side(by_kind), side(by_operator)).terms] == [
        (Term(COMPUTE), 2 * MS),
        (Term(IDLE), -MS),
    ]
    by_kernel = budget({GEMM: 10 * MS})
    assert [(term.term, term.change_ns) for term in change_of(side(by_kernel), side(by_operator)).terms] == [
        (GEMM, 2 * MS)
    ]


def test_a_single_profiled_step_has_no_interval() -> None:
    change = change_of(side(budget({GEMM: 10 * MS}, steps=1)), side(budget({GEMM: 12 * MS})))
    assert [term.interval_ns for term in change.terms] == [None]


def test_a_baseline_is_read_as_it_was_saved() -> None:
    original = side(budget({GEMM: 10 * MS, GAP: MS}), step_ms=11, clock_mhz=1980.0, profiled_ms=11)
    data = json.loads(json.dumps(to_baseline(original)))
    read = from_saved("side", data)
    assert read.kind is Kind.BASELINE
    assert to_baseline(read) == to_baseline(original)
    again = change_of(original, read)
    assert again.change_ns == again.unexplained_ns == 0


def test_what_events_show_is_told_apart_from_differences_of_whole_steps() -> None:
    """A product takes 3 ms longer; profiled steps are as long as others on A, and 5 ms longer on B."""
    a = side(budget({GEMM: 10 * MS}), step_ms=10, profiled_ms=10)
    b = side(budget({GEMM: 13 * MS}), step_ms=8, profiled_ms=13)
    change = change_of(a, b)
    assert change.change_ns == pytest.approx(-2 * MS, abs=MS // 1000)
    assert change.traced_ns == 3 * MS
    of_steps = [term for term in change.terms if term.term.kind in ("perfscope",)]
    assert sum(term.change_ns for term in of_steps) + change.unexplained_ns == change.change_ns - change.traced_ns
    assert any(term.change_ns for term in of_steps)
