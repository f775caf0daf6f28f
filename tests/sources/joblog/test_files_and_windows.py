"""The states in a run's checkpoints, MMEngine's windows, and what a disturbed or a doubled log keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.logs.summary import LogSummary, summarize_log
from perfscope.sources.joblog import find_logs, read_log
from perfscope.sources.joblog.files import parse_file_name

STATE = '{\n  "log_history": [\n    {\n      "step": 120,\n      "train_runtime": 80.2776\n    }\n  ]\n}\n'


def read(folder: Path, text: str | bytes) -> LogSummary:
    path = folder / "run.log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return summarize_log(read_log(path))


def test_of_disturbed_times_those_without_an_evaluation_count(tmp_path: Path) -> None:
    """The save at 40 and at 80 takes less than the evaluations behind it, which the records of 60 and 100 contain."""
    record = (
        "2026-11-24 00:29:0{0} - mmcls - INFO - Iter [{0}0/100]\tlr: 1e-02, time: {1}, data_time: 0.001, loss: 1.0\n"
    )
    save = "2026-11-24 00:29:02,854 - mmcls - INFO - Saving checkpoint at {0}0 iterations\n"
    evaluation = "2026-11-24 00:29:03,355 - mmcls - INFO - Iter(val) [47]\tacc: 0.5000\n"
    lines = (record.format(2, 0.022), save.format(4), record.format(4, 0.021), evaluation, record.format(6, 0.146))
    rest = (save.format(8), record.format(8, 0.021), evaluation, save.format(10), record.format(10, 0.146))
    summary = read(tmp_path, "".join((*lines, *rest)))
    assert (summary.times.median_s, summary.times.left_out.evaluation, summary.times.used_records) == (0.021, 2, 2)
    (flag,) = [flag for flag in summary.flags if flag.startswith("disturbed")]
    assert "2 of the 2 times that the median is of contain a checkpoint save" in flag


def test_a_log_that_begins_with_a_later_epoch_counts_the_earlier_ones(tmp_path: Path) -> None:
    text = "".join(
        f"2026/11/24 00:28:11 - mmengine - INFO - Epoch(train) [4][{step}/30]  lr: 1e-02  eta: 0:00:02  "
        f"time: 0.0226  data_time: 0.0005\n"
        for step in (10, 20, 30)
    )
    assert read(tmp_path, text).last_iteration == 120


@pytest.mark.parametrize("is_stated", [True, False])
def test_a_window_that_the_log_does_not_print_is_called_assumed(tmp_path: Path, is_stated: bool) -> None:
    path = tmp_path / "run.log"
    lines = [
        f"05/10 20:33:{n:02d} - mmengine - INFO - Epoch(train)   [1][{50 * n:5}/14659]  lr: 1.0000e-04  "
        f"eta: 6 days, 18:58:01  time: 0.24{n:02d}  data_time: 0.0205  memory: 3686  loss: 29.3254\n"
        for n in range(1, 9)
    ]
    window = "log_processor = dict(by_epoch=True, type='LogProcessor', window_size=50)\n" if is_stated else ""
    path.write_text(window + "".join(lines))
    log = read_log(path)
    assert len(log.iterations) == len(lines)
    assert any("MMEngine's default" in remark for remark in log.remarks) != is_stated


def put(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_states_in_checkpoints_are_one_run_with_the_last_one(tmp_path: Path) -> None:
    states = [put(tmp_path, f"out/checkpoint-{step}/trainer_state.json", STATE) for step in (90, 100, 500)]
    other = put(tmp_path, "other/checkpoint-1000/trainer_state.json", STATE)
    assert find_logs([tmp_path]) == [other, states[-1]]
    assert find_logs([states[0].parent]) == states[:1]
    last = put(tmp_path, "out/trainer_state.json", STATE)
    assert find_logs([tmp_path]) == [other, last]


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            "55B-ds-zero1-mbs-4-pp8-dp-2-gas-128-200967.out",
            {"parameters": 55 * 10**9, "zero_stage": 1, "mbs": 4, "pp": 8, "dp": 2, "gas": 128},
        ),
        ("7.5B-tp4-pp2-mbs1.log", {"parameters": 7_500_000_000, "tp": 4, "pp": 2, "mbs": 1}),
        ("2n_8g_16dp_1mp_4bs.log", {"nodes": 2, "gpus_per_node": 8, "gpus": 16, "dp": 16, "tp": 1, "mbs": 4}),
        ("1n_8g_dp_4bs", {"nodes": 1, "gpus_per_node": 8, "gpus": 8, "mbs": 4}),
        (
            "20201209-test_zero_gpt2-small_4n8g_bz4_zero_stage1_off_checkpoint_activation.log",
            {"nodes": 4, "gpus_per_node": 8, "gpus": 32, "mbs": 4, "zero_stage": 1},
        ),
        (
            "bz32/16n8g/bert_b32_fp32_4.log",
            {"nodes": 16, "gpus_per_node": 8, "gpus": 128, "mbs": 32, "precision": "fp32"},
        ),
        ("bigscience_megatron_52B_64gpu.out", {"parameters": 52 * 10**9, "gpus": 64}),
        ("hf_ds_gpt2_perf_n16_bs4-mbs8.out", {"nodes": 16, "mbs": 8}),
        ("train_400968.out", {}),
        ("stdout.txt", {}),
    ],
)
def test_a_name_tells(name: str, facts: dict[str, int | str]) -> None:
    assert dict(parse_file_name(Path(name)).facts) == facts


def test_a_benchmarks_name_is_a_runs_name() -> None:
    assert parse_file_name(Path("61B-megatron-mbs-4-pp8-dp-2-gas-128-200980.out")).is_run
    assert not parse_file_name(Path("notes-52B.txt")).is_run
