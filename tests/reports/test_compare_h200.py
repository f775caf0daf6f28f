"""The tables of the report on compared pairs follow from their files, and its claims from the tables."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.compared_pairs import compare_pairs, document, judgements, unprofiled_change
from benchmarks.comparison import Judgement, find_most
from perfscope.analyzers.comparison.comparison import Verdict
from perfscope.analyzers.comparison.side import Figure
from perfscope.constants import NS_PER_S
from tests.conftest import ROOT

FOLDER = ROOT / "fixtures" / "compare"
REPORT = ROOT / "reports" / "compare-h200.md"
DEVICE_BOUND, HOST_BOUND, BUSY = (
    "H200, the host waits for the device",
    "H200, the device waits for the host",
    "2 processors that others use",
)
SEVERAL = "5 runs of 20 steps"
IN_TURNS = "one run's steps in turns"


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


def test_two_percent_are_found_in_steps_of_one_run(judged: dict[tuple[str, str], Judgement]) -> None:
    """Both sides are of one process: no difference between processes hides what is added, or is taken for it."""
    judgement = judged[DEVICE_BOUND, IN_TURNS]
    assert judgement.found >= 0.95 * judgement.pairs
    for kind in (DEVICE_BOUND, HOST_BOUND, BUSY):
        assert judged[kind, IN_TURNS].false_alarms <= 0.05 * judged[kind, IN_TURNS].pairs


def test_no_test_of_one_run_of_each_side_finds_two_percent_where_processes_differ_by_more() -> None:
    generator = np.random.default_rng(0)
    spread = 0.007
    centres = generator.normal(0.0, spread, 2000)
    runs = [np.exp(centre + generator.normal(0.0, 0.001, 21)) for centre in centres]
    measured, best, needed = find_most([run.tolist() for run in runs])
    assert measured == pytest.approx(spread, rel=0.05)
    limit = float(np.quantile(np.abs(centres[::2] - centres[1::2]), 0.95))
    found = float(np.mean(np.abs(centres[::2] - centres[1::2] + np.log(1.02)) > limit))
    assert best == pytest.approx(found, abs=0.06)
    assert needed == 4


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
    assert verdicts["ddp_no_tf32", "ddp_tf32"] == Verdict.FASTER
    assert verdicts["ddp_wide_25", "ddp_wide_1"] == Verdict.SAME
    assert verdicts["ddp_wide_25", "zero1_wide"] == Verdict.SLOWER


@pytest.mark.parametrize("pair", ["ddp_no_tf32", "ddp_wide_1", "zero1_wide"])
def test_ten_profiled_steps_leave_less_than_a_percent_unexplained_and_events_carry_the_change(pair: str) -> None:
    unprofiled = json.loads((FOLDER / "unprofiled.json").read_text())
    for compared, comparison in compare_pairs(FOLDER):
        if pair in (compared.a, compared.b) and compared.unprofiled_a:
            change, budget = comparison.changes[Figure.STEP_TIME], comparison.budget
            assert budget is not None
            assert abs(budget.unexplained_ns) <= 0.01 * min(change.a, change.b) * NS_PER_S
            alone = unprofiled_change(compared, unprofiled)
            assert alone is not None
            shown = budget.traced_ns / NS_PER_S / change.a
            assert abs(shown - alone) <= 0.06
            assert abs(change.change - alone) <= 0.03
