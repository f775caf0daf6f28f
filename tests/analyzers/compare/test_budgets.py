"""The budget of a change adds up, whatever the sides know of it."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pytest

from perfscope.analyzers.budget import COMPUTE, IDLE, Budget, Term
from perfscope.analyzers.compare.change import Samples
from perfscope.analyzers.compare.comparison import BudgetChange, compare_budgets
from perfscope.analyzers.compare.side import Origin, Side, TrainedSetup, from_saved, to_baseline
from perfscope.constants import NS_PER_S

MS = 1_000_000
GEMM, NORM, GAP = Term(COMPUTE, "gemm"), Term(COMPUTE, "norm"), Term(IDLE, "launch gap")


def budget(terms: Mapping[Term, int], steps: int = 4) -> Budget:
    return Budget(
        times=dict(terms),
        calls={term: 10.0 for term in terms if term.kind == COMPUTE},
        period_ns=np.full(steps, float(sum(terms.values()))),
        steps=tuple(range(40, 40 + steps)),
        ranks=1,
        activities="light",
    )


def side(of_budget: Budget, step_ms: float | None = None) -> Side:
    times_s = None if step_ms is None else Samples((np.full(50, step_ms / 1000) * (1 + np.arange(50) % 5 / 1e5),))
    return Side(
        name="side",
        kind=Origin.RUN,
        setup=TrainedSetup(),
        step_time_s=times_s,
        budget=of_budget,
    )


def change_of(a: Side, b: Side, factor: float = 1) -> BudgetChange:
    change = compare_budgets(a, b, factor)
    assert change is not None
    assert sum(term.change_ns for term in change.terms) + change.unexplained_ns == change.change_ns
    return change


@pytest.mark.parametrize(("seed", "factor"), [(0, 1.0), (1, 1 / 3), (2, 2.7182818)])
def test_terms_and_the_rest_add_up_for_any_budgets_and_amounts_of_work(seed: int, factor: float) -> None:
    generator = np.random.default_rng(seed)
    names = [Term(COMPUTE, f"kernel {number}") for number in range(30)]
    sides = [
        side(
            budget({name: int(generator.integers(1, 10 * MS)) for name in names if generator.random() < 0.7}),
            step_ms=float(generator.uniform(50, 200)),
        )
        for _ in "ab"
    ]
    change = change_of(sides[0], sides[1], factor)
    assert sides[0].step_time_s is not None
    assert sides[1].step_time_s is not None
    expected = sides[1].step_time_s.centre * factor - sides[0].step_time_s.centre
    assert change.change_ns == pytest.approx(expected * NS_PER_S, abs=2)


def test_budgets_meet_at_the_level_that_both_have() -> None:
    by_operator = budget({Term(COMPUTE, "gemm", "aten::mm"): 6 * MS, Term(COMPUTE, "gemm", "aten::addmm"): 6 * MS})
    by_kernel = budget({GEMM: 10 * MS})
    assert [(term.term, term.change_ns) for term in change_of(side(by_kernel), side(by_operator)).terms] == [
        (GEMM, 2 * MS)
    ]


def test_a_baseline_is_read_as_it_was_saved() -> None:
    original = side(budget({GEMM: 10 * MS, GAP: MS}), step_ms=11)
    data = json.loads(json.dumps(to_baseline(original)))
    read = from_saved("side", data)
    assert read.kind is Origin.BASELINE
    assert to_baseline(read) == to_baseline(original)
    again = change_of(original, read)
    assert again.change_ns == again.unexplained_ns == 0


def test_how_profiled_steps_differ_from_undisturbed_ones_is_unexplained() -> None:
    """A product takes 3 ms longer; profiled steps are as long as others on A, and 5 ms longer on B."""
    change = change_of(side(budget({GEMM: 10 * MS}), step_ms=10), side(budget({GEMM: 13 * MS}), step_ms=8))
    assert change.explains == "the undisturbed steps"
    assert change.change_ns == pytest.approx(-2 * MS, abs=MS // 1000)
    assert change.traced_ns == 3 * MS
    assert any("unexplained" in note for note in change.notes)
