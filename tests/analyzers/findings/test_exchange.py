"""What rules about communication say of settings, and of copies that traces do not name."""

from __future__ import annotations

from typing import Any

import pytest

from perfscope.analyzers.findings.exchange import find_exposed_communication, find_unused_parameter_search
from perfscope.analyzers.findings.facts import Facts
from perfscope.analyzers.findings.finding import Confidence
from perfscope.analyzers.findings.host import find_synchronisations
from perfscope.analyzers.findings.training import Training

STEP_US = 10_000.0


def training(
    setup: dict[str, Any],
    *,
    communication_us: float = 1000.0,
    copies: list[Any] | None = None,
    compute_us: float = 8000.0,
) -> Training:
    """One rank that computes 8 ms of a step, and copies on the device as long as the copies say."""
    copies = copies or []
    copy_us = sum(copy["total_us"] for copy in copies)
    times = {"compute_us": compute_us, "exposed_communication_us": communication_us, "exposed_copy_us": copy_us}
    rank: Any = {"rank": 0, "device": 0, "trace": "0", "steps": [{}], "marked": times, "outside": {"steps": 0.0}}
    axis: Any = {"axis": "world", "marked": {"exposed_us": communication_us, "overlap_fraction": 0.5}}
    steps: Any = {"step_time_s": 0.012, "median_s": 0.012, "ranks": [{"rank": 0, "means": {}}]}
    return Training(
        Facts(
            {
                "breakdown": {"ranks": [rank]},
                "overlap": {"axes": [axis]},
                "steps": steps,
                "setup": {"ranks": [setup]},
                "kernels": {"names": [{"work": "copy", "calls": 1, **copy} for copy in copies]},
            }
        )
    )


DDP = {"ddp": {"find_unused_parameters": True, "tensors": 52}}
LOGITS = {"name": "Memcpy DtoD (Device -> Device)", "total_us": 900.0, "max_us": 800.0}
BATCH = {"name": "Memcpy HtoD (Pinned -> Device)", "total_us": 900.0, "max_us": 900.0}


def test_the_copy_of_what_the_model_returns_costs_the_device() -> None:
    cause = find_unused_parameter_search(training(DDP, copies=[BATCH, LOGITS]))
    assert cause is not None
    assert cause.cost_us == LOGITS["max_us"]
    assert cause.confidence is Confidence.LOW
    assert cause.interval_us == (0.0, LOGITS["max_us"])
    assert cause.evidence[-1].pointers == ("/kernels/names/1/max_us",)


def test_a_hidden_copy_costs_nothing() -> None:
    hidden = training(DDP, copies=[LOGITS | {"total_us": 0.0}])
    cause = find_unused_parameter_search(hidden)
    assert cause is not None
    assert cause.cost_us == 0.0
    assert len(cause.evidence) == 1


def test_copies_are_no_finding_where_nothing_is_searched() -> None:
    assert find_unused_parameter_search(training({"ddp": {"find_unused_parameters": False}}, copies=[LOGITS])) is None


@pytest.mark.parametrize(
    ("engine", "texts"),
    [
        ({"overlap_comm": True, "prefetch_bucket_size": 50_000_000}, []),
        ({"overlap_comm": None}, []),
        ({"overlap_comm": True, "prefetch_bucket_size": 0}, ["`stage3_prefetch_bucket_size` of `zero_optimization`"]),
        (
            {"overlap_comm": False, "prefetch_bucket_size": 0},
            ["`overlap_comm` of `zero_optimization`", "`stage3_prefetch_bucket_size` of `zero_optimization`"],
        ),
    ],
)
def test_settings_that_keep_communication_from_being_hidden_are_evidence(
    engine: dict[str, Any], texts: list[str]
) -> None:
    setup = {"engine": {f"zero_optimization.{name}": value for name, value in {"stage": 3, **engine}.items()}}
    cause = find_exposed_communication(training(setup))
    assert cause is not None
    assert [evidence.text.partition(" is ")[0] for evidence in cause.evidence[1:]] == texts
    assert find_exposed_communication(training({"engine": {}})).evidence == cause.evidence[:1]  # type: ignore[union-attr]


@pytest.mark.parametrize(("overlaps", "cost_us"), [(True, 700.0), (False, 40.0)])
def test_the_waits_of_zero_for_what_it_fetches_are_no_synchronisation_of_the_script(
    overlaps: bool, cost_us: float
) -> None:
    """Without overlap DeepSpeed's host waits for each fetch outside of operators: 46 times a step in place of six."""
    waits: dict[str, Any] = {"kind": "synchronisation", "calls": 46.0, "blocked_us": 900.0}
    callers: list[Any] = [
        {**waits, "operator": None, "regained_us": 660.0},
        {**waits, "operator": "aten::item", "calls": 1.0, "regained_us": 40.0},
    ]
    calls: Any = {"ranks": [{"rank": 0, "synchronisation": {"regained_us": 700.0}, "callers": callers}]}
    engine: Any = {"zero_optimization.stage": 3, "zero_optimization.overlap_comm": overlaps}
    cause = find_synchronisations(
        Training(
            Facts(
                {
                    "calls": calls,
                    "setup": {"ranks": [{"engine": engine}]},
                    "steps": {"step_time_s": 0.01, "median_s": 0.01},
                }
            )
        )
    )
    assert cause is not None
    assert cause.cost_us == cost_us
    assert len(cause.evidence) == (2 if overlaps else 1)


def test_more_communication_than_computation_cannot_all_be_hidden() -> None:
    little, much = (
        find_exposed_communication(training({}, communication_us=3000.0, compute_us=us)) for us in (8000.0, 1500.0)
    )
    assert little is not None
    assert much is not None
    assert "Transfer less" not in little.advice
    assert not any("computes" in evidence.text for evidence in little.evidence)
    assert much.evidence[-1].text == "A step computes 1.50 ms, behind which not all of it can be hidden."
    assert "Transfer less" in much.advice
