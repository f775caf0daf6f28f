"""Every kind of scenario against a training in which the change was really made, by its unprofiled steps."""

from __future__ import annotations

import pytest

from benchmarks.whatif_pairs import PAIRS, Pair, document
from perfscope.analyzers.whatif.scenarios import SCENARIOS
from tests.conftest import ROOT

LARGEST_ERROR = 0.05


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.traces}-{pair.scenario}")
def test_a_change_takes_what_it_took_where_it_was_made(pair: Pair) -> None:
    """And a prediction is nearer than no change, which would be right where a change makes no difference alone."""
    assert abs(pair.error) <= LARGEST_ERROR
    unchanged = abs(pair.undisturbed_ms / pair.truth_ms - 1)
    assert unchanged <= LARGEST_ERROR or abs(pair.error) < unchanged


def test_every_scenario_has_a_pair() -> None:
    assert {pair.scenario.partition("=")[0] for pair in PAIRS} == {scenario.name for scenario in SCENARIOS}


def test_the_report_has_every_pair_as_it_is_predicted() -> None:
    assert document() in (ROOT / "reports" / "what-if.md").read_text()
