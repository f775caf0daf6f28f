"""What rules about pipelines say of collectives between stages."""

from __future__ import annotations

from typing import Any

import pytest

from perfscope.analyzers.findings.facts import Facts
from perfscope.analyzers.findings.stages import find_tied_embeddings
from perfscope.analyzers.findings.training import Training

#: An all-reduce of each of three profiled steps.
EMBEDDINGS = {
    "operation": "all_reduce",
    "axis": "PP",
    "bytes": 524_288_000,
    "calls": 3,
    "transfer_us": 150_000.0,
    "overlap_fraction": 0.0,
}


def training(operation: dict[str, Any], *, is_pipeline: bool = True) -> Training:
    """Three profiled steps of a pipeline with one kind of collective."""
    rank: Any = {"rank": 0, "trace": "0", "steps": [{}] * 3, "outside": {"steps": 0.0}}
    pipeline: Any = {"pipeline_steps": {"section_us": 450_000.0}} if is_pipeline else {}
    return Training(Facts({"breakdown": {"ranks": [rank]}, "collectives": {"operations": [operation]}, **pipeline}))


def test_the_sum_of_tied_gradients_costs_its_transfer_in_each_step() -> None:
    cause = find_tied_embeddings(training(EMBEDDINGS))
    assert cause is not None
    assert cause.cost_us == 150_000.0
    assert "524.3 MB" in cause.evidence[0].text


def test_a_hidden_sum_costs_what_is_not_hidden() -> None:
    cause = find_tied_embeddings(training(EMBEDDINGS | {"overlap_fraction": 0.75}))
    assert cause is not None
    assert cause.cost_us == pytest.approx(37_500.0)


@pytest.mark.parametrize("other", [{"axis": "DP"}, {"operation": "broadcast"}, {"bytes": 4}])
def test_other_collectives_are_no_tied_embeddings(other: dict[str, Any]) -> None:
    assert find_tied_embeddings(training(EMBEDDINGS | other)) is None


def test_without_a_pipeline_nothing_is_tied() -> None:
    assert find_tied_embeddings(training(EMBEDDINGS, is_pipeline=False)) is None
