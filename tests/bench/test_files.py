"""Measurements and settings on disk."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.bench.rows import read_measurement
from perfscope.bench.running import hold_folder, order_trainings, prepare_folder, read_rows, read_settings
from perfscope.bench.settings import Variant, choose_strategies, expand_matrix, find_obstacle
from perfscope.errors import SourceError, UsageError
from perfscope.workloads.strategies import STRATEGIES
from tests.bench.examples import MACHINE, SETTINGS, measurement, variant


def test_a_measurement_survives_its_file(tmp_path: Path) -> None:
    whole = measurement(
        variant("fsdp2", 2, recompute=True),
        12.5,
        1,
        memory=(5, 7),
        losses=(2.0, 1.5),
        shares={"compute": 0.5},
        tflops={"products": 3.25},
        notes=("a doubt",),
    )
    whole.write(tmp_path)
    assert read_measurement(tmp_path / "fsdp2-2-fp32-recompute.1.json") == whole


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"schema": "perfscope/analysis/1"}'])
def test_another_file_is_no_measurement(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(SourceError, match="is not a measurement"):
        read_measurement(path)


def test_a_folder_goes_on_with_the_same_settings_alone(tmp_path: Path) -> None:
    folder = tmp_path / "bench"
    prepare_folder(folder, SETTINGS)
    assert prepare_folder(folder, replace(SETTINGS, threads=9)) == SETTINGS
    assert read_settings(folder)["model"] == "gpt:2x32x16"
    with pytest.raises(UsageError, match="other settings: batch 16 to 32"):
        prepare_folder(folder, replace(SETTINGS, batch=32))


def test_a_folder_goes_on_with_the_same_file_of_a_model_alone(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "B", replace(SETTINGS, model_sha256="1"))
    with pytest.raises(UsageError, match="other settings: the content of the model's file"):
        prepare_folder(tmp_path / "B", replace(SETTINGS, model_sha256="2"))


def test_a_folder_of_something_else_stays_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="holds no benchmark"):
        prepare_folder(tmp_path, SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(SourceError, match="holds no benchmark"):
        read_settings(tmp_path)
    assert read_rows(tmp_path) == []


def test_a_sweep_that_was_killed_does_not_hold_its_folder(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "B", SETTINGS)
    held = (
        "import pathlib, sys, time; from perfscope.bench.running import hold_folder\n"
        "with hold_folder(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", held, str(tmp_path / "B")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(UsageError), hold_folder(tmp_path / "B"):
            pass
        process.kill()
        process.wait()
        with hold_folder(tmp_path / "B"):
            pass


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
