"""Detectron2's ``metrics.json`` and which files of a folder are logs; MMEngine's windows."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from perfscope.analyzers.logs.summary import LogSummary, summarize_log
from perfscope.sources.joblog import find_logs, read_log
from perfscope.sources.joblog.files import is_log, is_log_name

DETECTRON2 = """\
{"data_time": 2.8e-05, "eta_seconds": 2.40, "iteration": 19, "loss_cls": 0.35, "time": 0.0218, "total_loss": 0.51}
{"data_time": 2.8e-05, "eta_seconds": 1.96, "iteration": 39, "loss_cls": 0.11, "time": 0.0217, "total_loss": 0.13}
{"bbox/AP": 1.0, "iteration": 49}
{"bbox/AP": 1.0, "data_time": 2.5e-05, "eta_seconds": 0.0, "iteration": 59, "time": 0.0215, "total_loss": 0.01}
{"bbox/AP": 1.0, "iteration": 60}
"""
DETECTRON2_TEXT = "[11/24 00:29:43] d2.engine.train_loop INFO: Starting training from iteration 0\n"
STATE = '{\n  "log_history": [\n    {\n      "step": 120,\n      "train_runtime": 80.2776\n    }\n  ]\n}\n'


def read(folder: Path, text: str | bytes) -> LogSummary:
    path = folder / "metrics.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return summarize_log(read_log(path))


def test_detectron2_has_the_median_of_20_and_no_evaluation_as_training(tmp_path: Path) -> None:
    summary = read(tmp_path, DETECTRON2)
    assert (summary.framework, len(summary.log.iterations), summary.iterations) == ("detectron2", 3, 60)
    assert summary.times.median_s == pytest.approx(0.0216)
    assert summary.log.complete


def test_detectron2_appended_runs_are_a_restart(tmp_path: Path) -> None:
    summary = read(tmp_path, DETECTRON2 + DETECTRON2.replace('iteration": 5', 'iteration": 7'))
    assert (summary.log.iterations.attempt.max(), summary.log.redone) == (1, 60)


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


def test_the_last_figures_of_a_long_log_that_prints_each_line_twice_are_kept(tmp_path: Path) -> None:
    def lines(copies: int) -> str:
        return "".join(
            f" iteration {10 * n:8d}/ 1000000 | consumed samples: {40 * n:12d} | elapsed time per iteration (ms): "
            f"{140 + n % 7 / 10:.1f} | learning rate: 2.020E-08 | global batch size:     4 | lm loss: {20 - n / 1e4:.6E} | "
            f"loss scale: {32768.0 * (n // 29_999 + 1)} | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
            * copies
            for n in range(1, 30_001)
        )

    once, twice = read(tmp_path, lines(1)), read(tmp_path, lines(2))
    for summary in (once, twice):
        assert summary.loss_scale is not None
        assert summary.loss is not None
        assert (summary.loss_scale.last, summary.loss.last) == (65536.0, 17.0)
        assert summary.iterations == 300_000


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


@pytest.mark.parametrize(("name", "content"), [("", DETECTRON2.encode()), (".gz", gzip.compress(DETECTRON2.encode()))])
def test_a_metrics_file_is_found_unless_a_log_beside_it_is_of_the_same_run(
    tmp_path: Path, name: str, content: bytes
) -> None:
    path = put(tmp_path, f"metrics.json{name}", content)
    assert find_logs([tmp_path]) == [path]
    assert is_log(path)
    assert is_log_name(f"runs/metrics.json{name}")
    note = put(tmp_path, "log.txt", "submitted on Monday\n")
    assert find_logs([tmp_path]) == [note, path]
    put(tmp_path, "log.txt", DETECTRON2_TEXT)
    assert find_logs([tmp_path]) == [note]
    assert find_logs([path, tmp_path]) == [path, note]


@pytest.mark.parametrize("other", ["", "{}", '{"accuracy": 0.9, "iteration": 3}', "[1, 2]", b"\x1f\x8bbroken"])
def test_a_metrics_file_of_another_program_is_no_log(tmp_path: Path, other: str | bytes) -> None:
    path = put(tmp_path, "metrics.json", other)
    assert not find_logs([tmp_path])
    assert not is_log(path)


def test_arrays_changed_keys_and_half_a_line_of_metrics(tmp_path: Path) -> None:
    lines, truth = DETECTRON2.splitlines(), read(tmp_path, DETECTRON2).times.median_s
    for other in (f"[{', '.join(lines)}]", "[\n" + ",\n".join(lines) + "\n]\n", '{"data_time": ' * 3_000):
        assert read(tmp_path, other).times.median_s is None
    for same in (DETECTRON2.encode("utf-16"), (DETECTRON2 + lines[1][:60]).encode()):
        assert read(tmp_path, same).times.median_s == truth


def test_the_states_in_checkpoints_are_one_run_with_the_last_one(tmp_path: Path) -> None:
    states = [put(tmp_path, f"out/checkpoint-{step}/trainer_state.json", STATE) for step in (90, 100, 500)]
    other = put(tmp_path, "other/checkpoint-1000/trainer_state.json", STATE)
    assert find_logs([tmp_path]) == [other, states[-1]]
    assert find_logs([states[0].parent]) == states[:1]
    last = put(tmp_path, "out/trainer_state.json", STATE)
    assert find_logs([tmp_path]) == [other, last]
