"""What findings say of the limits of a GPU: those that somebody set, and its own."""

from __future__ import annotations

from typing import Any

import pytest

from perfscope.analyzers.findings import derive
from perfscope.analyzers.findings.devices import describe_own_limit, find_throttling
from perfscope.analyzers.findings.facts import Facts
from perfscope.analyzers.findings.training import Training


def results(*, limit_w: float = 700.0, clock_mhz: float = 1500.0, throttled: int = 80) -> dict[str, Any]:
    causes = [{"cause": "software power cap", "steps": list(range(throttled))}]
    return {
        "steps": {"step_time_s": 0.1, "median_s": 0.1, "ranks": [{"rank": 0, "means": {}}]},
        "gpus": [{"uuid": "A", "power_limit_w": limit_w, "power_limit_default_w": 700.0, "sm_clock_max_mhz": 2000.0}],
        "throttling": [
            {
                "uuid": "A",
                "name": "NVIDIA H200",
                "ranks": [0],
                "known_steps": 80,
                "steps": causes[0]["steps"],
                "causes": causes,
                "hit_mhz": clock_mhz,
            }
        ],
    }


def training(**changes: Any) -> Training:
    return Training(Facts(results(**changes)))


class Shown:
    def __init__(self, value: Any) -> None:
        self.value = value

    def data(self) -> Any:
        return self.value


def test_a_gpu_at_its_own_limit_is_said_and_no_finding() -> None:
    assert find_throttling(training()) is None
    assert describe_own_limit(training()) == (
        "A GPU's own power limit of 700 W holds its clock at 1500 of 2000 MHz in 100 % of the steps, "
        "which no setting regains."
    )
    found = derive({name: Shown(value) for name, value in results().items()})
    assert found is not None
    assert found.data() == []
    lines = found.sections()[0].notes
    assert len(lines) == 2
    assert lines[0].startswith("Nothing stands out")
    assert lines[1] == describe_own_limit(training())


def test_a_limit_that_somebody_set_is_a_finding_and_not_its_own() -> None:
    cause = find_throttling(training(limit_w=400.0))
    assert cause is not None
    assert "nvidia-smi -pl 700" in cause.advice
    assert describe_own_limit(training(limit_w=400.0)) == ""


@pytest.mark.parametrize("changes", [{"clock_mhz": 1900.0}, {"throttled": 20}, {"throttled": 0}])
def test_a_limit_that_is_hardly_reached_is_not_said(changes: dict[str, Any]) -> None:
    assert describe_own_limit(training(**changes)) == ""


def test_pauses_may_cost_nothing_only_where_all_gpus_are_at_their_limit() -> None:
    assert training().is_power_limited
    faster = results()
    faster["gpus"].append({**faster["gpus"][0], "uuid": "B"})
    faster["throttling"].append({**faster["throttling"][0], "uuid": "B", "hit_mhz": 1950.0})
    several = Training(Facts(faster))
    assert several.own_limit is not None
    assert several.own_limit.clock_mhz == 1500.0
    assert not several.is_power_limited
    assert not Training(Facts({})).is_power_limited
