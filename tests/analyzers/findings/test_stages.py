"""What rules about pipelines say of collectives between stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from perfscope.analyzers.findings.facts import Facts
from perfscope.analyzers.findings.ranking import rank_findings
from perfscope.analyzers.findings.registry import all_rules
from perfscope.analyzers.findings.stages import find_tied_embeddings, find_uneven_stages
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


#: Four stages on four H100, whose second host slept 60 ms before each of 8 forward passes: what hooks and traces said.
SLEPT_US = {
    "passes": (86_470.0, 544_397.0, 81_030.0, 83_851.0),
    "work": (81_499.0, 78_730.0, 78_602.0, 81_224.0),
    "not_shown": (0.0, 453_521.0, 0.0, 0.0),
    "launches": (5_435.0, 15_893.0, 1_317.0, 1_474.0),
}
#: The same training without a sleep.
CLEAN_US = {
    "passes": (85_014.0, 83_920.0, 83_090.0, 85_560.0),
    "work": (81_600.0, 80_700.0, 80_500.0, 83_100.0),
    "not_shown": (0.0, 0.0, 0.0, 0.0),
    "launches": (5_435.0, 15_893.0, 1_317.0, 1_474.0),
}


def stages(times: Mapping[str, tuple[float, ...]], section_us: float, imbalance: float, gaps: float) -> Training:
    """A pipeline that was measured by hooks and in traces, one stage a rank."""

    def rows(name: str) -> list[dict[str, Any]]:
        return [{"stage": stage, "rank": stage, "useful_us": time} for stage, time in enumerate(times[name])]

    def marked(rank: int) -> dict[str, float]:
        work, idle = times["work"][rank], times["not_shown"][rank] + times["launches"][rank]
        rest = section_us - work - idle
        shares = {"compute_us": work, "exposed_communication_us": rest, "exposed_copy_us": 0.0, "idle_us": idle}
        return shares | {"window_us": section_us}

    breakdown = [
        {"rank": rank, "trace": f"{rank}", "steps": [{}], "marked": marked(rank), "outside": {"steps": 0.0}}
        for rank in range(4)
    ]
    causes = [{"not_shown_us": times["not_shown"][rank], "operator_us": times["launches"][rank]} for rank in range(4)]
    idle = [{"rank": rank, "trace": f"{rank}", "causes": cause, "marked": cause} for rank, cause in enumerate(causes)]
    schedule = {"section_us": section_us, "microbatches": 8, "p": 4}
    document: Any = {
        "breakdown": {"ranks": breakdown},
        "idle": {"ranks": idle},
        "steps": {"step_time_s": section_us / 1e6, "median_s": section_us / 1e6, "ranks": [{"rank": 0, "means": {}}]},
        "pipeline_steps": {
            **schedule,
            "stages": rows("passes"),
            "imbalance_fraction_of_total": imbalance,
            "schedule_fraction_of_total": 0.132,
            "transfer_and_host_fraction_of_total": 0.009,
        },
        "pipeline_bubble": {
            **schedule,
            "stages": rows("work"),
            "imbalance_fraction_of_total": 0.002,
            "schedule_fraction_of_total": 0.051,
            "host_fraction_of_total": gaps,
        },
    }
    return Training(Facts(document))


def test_a_stage_whose_host_sleeps_has_not_too_many_layers() -> None:
    slept = stages(SLEPT_US, 570_000.0, 0.507, 0.801)
    assert find_uneven_stages(slept) is None
    first, *_ = rank_findings(slept, all_rules())
    assert (first.id, first.cause.ranks) == ("host_pauses", (1,))
    assert first.cost_us == pytest.approx(453_521.0, rel=0.01)


def test_the_same_stages_without_a_sleep_have_neither_fault() -> None:
    found = {finding.id for finding in rank_findings(stages(CLEAN_US, 124_000.0, 0.009, 0.05), all_rules())}
    assert not found & {"host_pauses", "uneven_stages"}


@pytest.mark.parametrize(("work_us", "is_uneven"), [(81_000.0, False), (100_000.0, True)])
def test_stages_are_uneven_where_their_devices_work_unequally(work_us: float, is_uneven: bool) -> None:
    passes, work = (86_000.0, 104_000.0, 86_000.0, 86_000.0), (81_000.0, work_us, 81_000.0, 81_000.0)
    times = {**CLEAN_US, "passes": passes, "work": work}
    assert (find_uneven_stages(stages(times, 140_000.0, 0.15, 0.05)) is not None) == is_uneven
