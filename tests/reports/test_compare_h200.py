"""The tables of the report on compared pairs follow from their files, and its claims from the tables."""

from __future__ import annotations

import pytest

from benchmarks.compared_pairs import compare_pairs, document, judgements
from benchmarks.comparison import Judgement
from perfscope.analyzers.comparison.comparison import Verdict
from tests.conftest import ROOT

FOLDER = ROOT / "fixtures" / "compare"
REPORT = ROOT / "reports" / "compare-h200.md"
DEVICE_BOUND, HOST_BOUND, BUSY = (
    "H200, the host waits for the device",
    "H200, the device waits for the host",
    "2 processors that others use",
)
SEVERAL = "5 runs of 20 steps"


@pytest.fixture(scope="module")
def judged() -> dict[tuple[str, str], Judgement]:
    return {(kind, side): judgement for kind, side, judgement in judgements(FOLDER)}


def test_the_tables_are_fresh() -> None:
    assert document(FOLDER) in REPORT.read_text()


def test_at_most_5_percent_of_240_pairs_of_real_runs_are_false_alarms(
    judged: dict[tuple[str, str], Judgement],
) -> None:
    of_one = [judged[kind, "one run"] for kind in (DEVICE_BOUND, HOST_BOUND)]
    assert sum(judgement.pairs for judgement in of_one) == 240
    assert sum(judgement.false_alarms for judgement in of_one) <= 12
    # Without the allowance for runs of the same code the steps of processes differ in far more pairs.
    assert sum(judgement.steps_false_alarms or 0 for judgement in of_one) > 80


def test_several_runs_of_a_side_hold_on_a_busy_machine_too(judged: dict[tuple[str, str], Judgement]) -> None:
    for kind in (DEVICE_BOUND, HOST_BOUND, BUSY):
        judgement = judged[kind, SEVERAL]
        assert judgement.false_alarms <= 0.05 * judgement.pairs
    assert judged[BUSY, "one run"].false_alarms > 0.1 * judged[BUSY, "one run"].pairs


def test_two_percent_are_found_in_100_steps_of_a_side(judged: dict[tuple[str, str], Judgement]) -> None:
    several = judged[DEVICE_BOUND, SEVERAL]
    assert several.found >= 0.95 * several.pairs
    of_one = judged[DEVICE_BOUND, "one run"]
    assert of_one.steps_found is not None
    assert of_one.steps_found >= 0.95 * of_one.pairs


def test_the_verdicts_of_changes_are_right_and_their_budgets_add_up() -> None:
    verdicts = {}
    for pair, comparison in compare_pairs(FOLDER):
        verdicts[pair.a, pair.b] = comparison.verdict
        budget = comparison.budget
        assert budget is not None
        assert sum(term.change_ns for term in budget.terms) + budget.unexplained_ns == budget.change_ns
    assert verdicts["base_1", "base_2"] == verdicts["gpu_first", "gpu_second"] == Verdict.SAME
    assert verdicts["base_1", "fp32"] == verdicts["zero1", "zero3"] == Verdict.SLOWER
    assert verdicts["clean", "eager_attention"] == Verdict.SLOWER
    assert verdicts["no_tf32", "tf32"] == Verdict.FASTER
