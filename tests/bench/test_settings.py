"""Rows of a matrix, their order in time, and what keeps a row from running."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfscope.bench.running import order_trainings
from perfscope.bench.settings import Variant, choose_strategies, expand_matrix, find_obstacle
from perfscope.errors import UsageError
from perfscope.workloads.strategies import STRATEGIES
from tests.bench.examples import MACHINE, SETTINGS, variant


def test_all_strategies_on_one_and_two_devices_make_more_than_sixteen_rows() -> None:
    rows = expand_matrix("all", "1,2", "fp32", "plain")
    assert len(rows) >= 16
    assert {row.strategy for row in rows} == set(STRATEGIES)
    assert len({row.key for row in rows}) == len(rows)


def test_a_misspelled_strategy_is_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="no strategy 'dpp'") as caught:
        choose_strategies(["single", "dpp"])
    assert "fsdp2-tp" in str(caught.value.hint)


def test_rounds_go_there_and_back_so_that_drift_is_no_rows_own() -> None:
    rows = [variant("single", 1), variant("ddp"), variant("tp")]
    order = order_trainings(rows, 4)
    assert sorted((row.key, number) for row, number in order) == sorted(
        (row.key, number) for row in rows for number in range(4)
    )
    # A clock that runs evenly slower adds the same to every row over an even number of rounds.
    drift = {row.key: sum(time for time, (other, _) in enumerate(order) if other == row) for row in rows}
    assert len(set(drift.values())) == 1


@pytest.mark.parametrize(
    ("row", "changes", "machine", "reason"),
    [
        (variant("ddp", 3), {}, {}, "a batch of 16 cannot be divided among 3 devices"),
        (variant("fsdp2-tp", 6), {}, {}, "a batch of 16 cannot be divided among 3 pairs of devices"),
        (variant("1f1b", 2), {"batch": 6}, {}, "a batch of 6 cannot be divided among 4 micro-batches"),
        (variant("ddp", 4), {"device": "cuda"}, {"gpus": 2}, "4 devices are asked for, and this host has 2 GPUs"),
        (variant("interleaved", 4), {}, {}, "a model of 4 layers cannot be cut into 8 stages"),
        (variant("fsdp2-tp", 3), {}, {}, "3 devices are not a multiple of 2"),
        (variant("tp", 2), {}, {"has_splits": False}, "it is not known how to split the products of gpt:2x32x16"),
        (variant("dp", 1), {}, {}, "it needs at least 2 devices"),
    ],
)
def test_what_cannot_run_is_skipped_with_its_reason(
    row: Variant, changes: dict[str, object], machine: dict[str, object], reason: str
) -> None:
    settings = replace(SETTINGS, **changes)  # type: ignore[arg-type]
    here = replace(MACHINE, **machine)  # type: ignore[arg-type]
    assert find_obstacle(row, settings, here) == f"skipped: {reason}"


@pytest.mark.parametrize(("package", "strategy"), [("deepspeed", "zero-2"), ("megatron", "megatron-tp")])
def test_a_missing_package_skips_its_strategies_and_is_named(
    monkeypatch: pytest.MonkeyPatch, package: str, strategy: str
) -> None:
    monkeypatch.setattr("perfscope.bench.settings.find_spec", lambda _name: None)
    assert find_obstacle(variant(strategy), SETTINGS, MACHINE) == f"skipped: {package} is not installed"
    assert find_obstacle(variant("ddp"), SETTINGS, MACHINE) is None


def test_with_a_launcher_of_several_hosts_this_hosts_gpus_are_no_limit() -> None:
    settings = replace(SETTINGS, device="cuda", launcher="srun -n {nproc}")
    assert find_obstacle(variant("ddp", 16), settings, replace(MACHINE, gpus=8)) is None
