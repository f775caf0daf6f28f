"""A series of runs that is interrupted goes on where it was."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import many_gpus
from benchmarks.bubble_sweep import kept
from benchmarks.many_gpus import Run, Series, perform_all, runs_of
from benchmarks.pipeline_runs import TINY, Framework, Setting

SERIES = Series(ranks=4, is_tiny=True)
_COUNTS = "import sys, pathlib; path = pathlib.Path(sys.argv[1]); path.open('a').write('x')"


def writes(folder: Path, name: str, ends: str = "", *, goes_on: bool = True) -> Run:
    return Run(name, (sys.executable, "-c", f"{_COUNTS}{ends}", str(folder / f"{name}.count")), goes_on=goes_on)


def trained(folder: Path, name: str) -> int:
    return len((folder / f"{name}.count").read_text())


def returncode(folder: Path, name: str) -> int:
    code: int = json.loads((folder / f"{name}.json").read_text())["returncode"]
    return code


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    chosen = [writes(tmp_path, "first"), writes(tmp_path, "second", "; sys.exit(3)"), writes(tmp_path, "third")]
    monkeypatch.setattr(many_gpus, "runs_of", lambda _series, _folder: iter(chosen))
    return chosen


@pytest.mark.usefixtures("runs")
def test_what_failed_is_run_again_and_what_is_done_is_not(tmp_path: Path) -> None:
    for _ in range(2):
        assert not perform_all(tmp_path, SERIES, frozenset(), 100)
    assert [trained(tmp_path, name) for name in ("first", "second", "third")] == [1, 2, 1]
    assert returncode(tmp_path, "second") == 3


def test_a_run_whose_command_has_changed_is_not_done(tmp_path: Path, runs: list[Run]) -> None:
    perform_all(tmp_path, SERIES, frozenset({"first"}), 100)
    runs[0] = writes(tmp_path, "first", "; print('other')")
    assert perform_all(tmp_path, SERIES, frozenset({"first"}), 100)
    assert trained(tmp_path, "first") == 2


def test_a_run_that_takes_too_long_is_ended_and_not_done(
    tmp_path: Path, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_gpus, "_KILL_AFTER_S", 0.1)
    runs[:] = [writes(tmp_path, "slow", "; import time; time.sleep(600)")]
    assert not perform_all(tmp_path, SERIES, frozenset(), 1)
    assert returncode(tmp_path, "slow") == 124
    assert not many_gpus.is_done(tmp_path, runs[0])


@pytest.mark.usefixtures("runs")
def test_without_time_nothing_begins(tmp_path: Path) -> None:
    assert not perform_all(tmp_path, SERIES, frozenset(), 0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("goes_on", [True, False])
def test_what_an_interrupted_run_left_stays_where_its_command_goes_on(tmp_path: Path, goes_on: bool) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "half").touch()
    many_gpus.perform(tmp_path, writes(tmp_path, "first", goes_on=goes_on), 100)
    assert (tmp_path / "first" / "half").exists() is goes_on


def test_the_series_has_every_run_that_two_devices_cannot_show(tmp_path: Path) -> None:
    names = [run.name for run in runs_of(Series(4, is_tiny=False, megatron=tmp_path), tmp_path)]
    assert names[:5] == ["megatron_pp", "megatron_tp2_pp", "deepspeed_pp", "torch_pp", "torch_pp_slow_device"]
    assert names[5:9] == ["deepspeed_zero3", "deepspeed_zero3_plain", "deepspeed_saves", "megatron_saves"]
    assert names[-2:] == ["scaling", "scaling_law"]
    *_, eight, law = runs_of(Series(8, is_tiny=False), tmp_path)
    assert eight.command[eight.command.index("--nproc") + 1] == "1,2,4,8"
    assert law.command[law.command.index("--nproc") + 1] == "1,2,3,4,6,8"


def test_trainings_on_gpus_of_their_own_start_together_and_train_in_turn(tmp_path: Path) -> None:
    runs = {run.name: run for run in runs_of(Series(4, is_tiny=False, megatron=tmp_path, at_once=3), tmp_path)}
    timed = {name: run for name, run in runs.items() if run.is_timed}
    assert {name for name, run in timed.items() if not run.takes_turns} == {"torch_none", "scaling", "scaling_law"}
    assert all(("--turn" in run.command) == run.takes_turns for run in runs.values())
    assert all(not run.takes_turns for name, run in runs.items() if name.startswith("postmortem"))
    assert {name for name, run in runs.items() if run.is_sharing} == {"torch_pp_slow_device", "torch_ddp_slow_device"}
    assert "100,100,50,100" in runs["torch_ddp_slow_device"].command
    assert "100,100,100,100" in runs["torch_pp_slow_device"].command


def test_only_ranks_that_share_find_the_service(tmp_path: Path) -> None:
    prints = (sys.executable, "-c", "import os; print(os.environ.get('SERVICE'))")
    for name, is_sharing in (("alone", False), ("sharing", True)):
        many_gpus.perform(tmp_path, Run(name, prints, is_sharing=is_sharing), 100, service={"SERVICE": "here"})
    assert [(tmp_path / f"{name}.log").read_text() for name in ("alone", "sharing")] == ["None\n", "here\n"]


def test_trainings_that_save_do_so_below_their_own_folder_and_one_goes_without_perfscope(tmp_path: Path) -> None:
    series = Series(4, is_tiny=False, megatron=tmp_path, shares=(25,) * 4, at_once=3)
    runs = {run.name: run.command for run in runs_of(series, tmp_path)}
    for name in ("deepspeed_saves", "megatron_saves"):
        words = runs[name]
        assert words[words.index("--save") + 1] == str(tmp_path / name / "checkpoints")
    plain, profiled = runs["deepspeed_zero3_plain"], runs["deepspeed_zero3"]
    assert "perfscope" not in plain
    assert profiled[-len(plain) :] == plain


def test_a_measured_setting_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "setting.json"
    assert kept(path, lambda: 1.5) == 1.5
    assert kept(path, lambda: 2.5) == 1.5


def test_stages_are_ranks_over_the_ranks_of_a_stage(tmp_path: Path) -> None:
    setting = Setting(Framework.MEGATRON, "interleaved", 8, 4, TINY, tmp_path, tensor=2)
    words = setting.command()
    assert setting.stages == 2
    assert words[words.index("--tensor-model-parallel-size") + 1] == "2"
    assert words[words.index("--pipeline-model-parallel-size") + 1] == "2"
    assert words[words.index("--num-layers-per-virtual-pipeline-stage") + 1] == "2"


@pytest.mark.parametrize(("framework", "tensor"), [(Framework.TORCH, 2), (Framework.MEGATRON, 3)])
def test_stages_that_cannot_be_are_refused(framework: Framework, tensor: int) -> None:
    with pytest.raises(ValueError, match=r"stages|parallelism"):
        Setting(framework, "1f1b", 8, 4, TINY, tensor=tensor)
