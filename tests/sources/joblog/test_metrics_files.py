"""The JSON files of Detectron2, MMEngine and MMCV; the lines are of short runs of the frameworks' own trainers."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.logs.summary import LogSummary, summarize_log
from perfscope.sources.joblog import read_log

DETECTRON2 = """\
{"data_time": 2.8e-05, "eta_seconds": 2.40, "iteration": 19, "loss_cls": 0.35, "time": 0.0218, "total_loss": 0.51}
{"data_time": 2.8e-05, "eta_seconds": 1.96, "iteration": 39, "loss_cls": 0.11, "time": 0.0217, "total_loss": 0.13}
{"bbox/AP": 1.0, "iteration": 49}
{"bbox/AP": 1.0, "data_time": 2.5e-05, "eta_seconds": 0.0, "iteration": 59, "time": 0.0215, "total_loss": 0.01}
{"bbox/AP": 1.0, "iteration": 60}
"""
MMENGINE = """\
{"lr": 0.01, "data_time": 0.0005, "loss": 0.99, "time": 0.0226056, "iter": 10, "step": 10}
{"lr": 0.01, "data_time": 0.0002, "loss": 1.07, "time": 0.0220036, "iter": 20, "step": 20}
{"acc": 0.5, "data_time": 0.0001, "time": 0.00027, "step": 0}
{"lr": 0.01, "data_time": 0.0506, "loss": 0.97, "time": 0.0725642, "iter": 30, "step": 30}
{"lr": 0.01, "data_time": 0.0006, "loss": 0.77, "time": 0.0224702, "iter": 40, "step": 40}
"""
MMENGINE_TEXT = """\
2026/11/24 00:28:11 - mmengine - INFO - Iter(train) [10/40]  lr: 1e-02  eta: 0:00:02  time: 0.0226  data_time: 0.0005
2026/11/24 00:28:11 - mmengine - INFO - Iter(train) [20/40]  lr: 1e-02  eta: 0:00:01  time: 0.0220  data_time: 0.0002
2026/11/24 00:28:12 - mmengine - INFO - Iter(val) [30/30]    acc: 0.5000  data_time: 0.0002  time: 0.0003
2026/11/24 00:28:13 - mmengine - INFO - Iter(train) [30/40]  lr: 1e-02  eta: 0:00:01  time: 0.0726  data_time: 0.0506
2026/11/24 00:28:13 - mmengine - INFO - Iter(train) [40/40]  lr: 1e-02  eta: 0:00:00  time: 0.0225  data_time: 0.0006
"""
MMCV_EPOCHS = """\
{"env_info": "sys.platform: linux\\nPython: 3", "seed": 0, "exp_name": "tiny.py"}
{"mode": "train", "epoch": 1, "iter": 10, "lr": 0.01, "data_time": 0.20078, "loss": 0.92975, "time": 0.22205}
{"mode": "train", "epoch": 1, "iter": 20, "lr": 0.01, "data_time": 0.0002, "loss": 1.0367, "time": 0.02164}
{"mode": "val", "epoch": 1, "iter": 47, "lr": 0.01, "acc": 0.5}
{"mode": "train", "epoch": 2, "iter": 10, "lr": 0.01, "data_time": 0.0003, "loss": 0.89, "time": 0.02123}
{"mode": "train", "epoch": 2, "iter": 20, "lr": 0.01, "data_time": 0.00059, "loss": 0.75998, "time": 0.02175}
"""
MMCV_ITERATIONS = """\
{"mode": "train", "epoch": 1, "iter": 20, "lr": 0.01, "data_time": 0.00026, "loss": 1.05559, "time": 0.0217}
{"mode": "train", "epoch": 1, "iter": 40, "lr": 0.01, "data_time": 0.00022, "loss": 0.86556, "time": 0.02133}
{"mode": "val", "epoch": 1, "iter": 47, "lr": 0.01, "acc": 0.5}
{"mode": "train", "epoch": 2, "iter": 60, "lr": 0.01, "data_time": 0.12525, "loss": 0.84459, "time": 0.14621}
{"mode": "train", "epoch": 2, "iter": 80, "lr": 0.01, "data_time": 0.0002, "loss": 1.09431, "time": 0.02113}
"""
ALL = {"d2": DETECTRON2, "mmengine": MMENGINE, "epochs": MMCV_EPOCHS, "iterations": MMCV_ITERATIONS}


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


def test_mmengine_says_the_same_as_its_text_log(tmp_path: Path) -> None:
    file, text = read(tmp_path, MMENGINE), read(tmp_path, MMENGINE_TEXT)
    for summary in (file, text):
        assert (summary.framework, summary.iterations, summary.times.left_out.evaluation) == ("openmmlab", 40, 1)
    assert file.times.median_s == pytest.approx(text.times.median_s, abs=0.5e-4)


def test_mmcv_numbers_only_what_its_file_numbers(tmp_path: Path) -> None:
    epochs, iterations = read(tmp_path, MMCV_EPOCHS), read(tmp_path, MMCV_ITERATIONS)
    assert (epochs.iterations, len(epochs.log.iterations), epochs.times.left_out.evaluation) == (None, 4, 0)
    assert (epochs.times.median_s, epochs.log.iterations.attempt.max()) == (0.02164, 0)
    assert (iterations.iterations, iterations.times.left_out.evaluation) == (80, 1)
    assert iterations.times.median_s == pytest.approx(0.02123)


def test_an_evaluation_that_mmcv_calls_training_is_one(tmp_path: Path) -> None:
    text = MMCV_ITERATIONS.replace('"mode": "val", "epoch": 1, "iter": 47', '"mode": "train", "epoch": 1, "iter": 500')
    summary = read(tmp_path, text)
    assert summary.times.left_out.evaluation == 1
    assert summary.times.median_s == pytest.approx(0.02123)


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


def test_where_every_time_contains_an_evaluation_that_is_said(tmp_path: Path) -> None:
    lines = MMCV_ITERATIONS.splitlines()
    text = "\n".join((lines[0], lines[2], lines[3], lines[2], lines[3].replace('"iter": 60', '"iter": 80')))
    flags = read(tmp_path, text).flags
    assert any("2 of the 2 times that the median is of contain an evaluation" in flag for flag in flags)


@pytest.mark.parametrize("text", ALL.values(), ids=ALL)
def test_arrays_and_changed_keys_are_no_log(tmp_path: Path, text: str) -> None:
    lines = text.splitlines()
    for other in (
        f"[{', '.join(lines)}]",
        "[\n" + ",\n".join(lines) + "\n]\n",
        text.replace("time", "thyme"),
        "[" * 10_000,
        '{"data_time": ' * 3_000,
    ):
        assert read(tmp_path, other).times.median_s is None


@pytest.mark.parametrize("text", ALL.values(), ids=ALL)
def test_encodings_half_a_line_and_no_numbers_change_nothing_else(tmp_path: Path, text: str) -> None:
    truth = read(tmp_path, text).times.median_s
    half = text.splitlines()[1][:60]
    giant = '{"note": "' + "x" * 1_000_000 + '"}\n'
    for other in (
        b"\xef\xbb\xbf" + text.encode(),
        text.encode("utf-16"),
        (text + half).encode(),
        (giant + text).encode(),
    ):
        assert read(tmp_path, other).times.median_s == truth
    for token in ("NaN", "Infinity", "-Infinity"):
        line = text.splitlines()[1].replace('"time": 0.02', f'"time": {token}, "x": 0.02')
        assert read(tmp_path, line + "\n" + text).times.median_s == pytest.approx(truth, rel=0.02)


def test_epochs_of_three_digits_are_read_from_the_first_on(tmp_path: Path) -> None:
    text = "".join(
        f"2023/06/05 20:10:{10 + step} - mmengine - INFO - Epoch(train)   [1][{step}/6]  lr: 4e-08  eta: 4:59:11  "
        f"time: 1.0000  data_time: 0.0100  loss: 0.4{step}\n"
        for step in range(1, 7)
    )
    assert read(tmp_path, text).iterations == 6


def test_the_window_of_the_configuration_counts(tmp_path: Path) -> None:
    text = "log_processor = dict(\n    type='LogProcessor',\n    window_size=50,\n    by_epoch=True)\n" + "".join(
        f"2023/06/05 20:10:10 - mmengine - INFO - Epoch(train) [1][{step}/99]  lr: 4e-08  eta: 4:59:11  "
        f"time: {9.0 if step < 50 else 1.0}  data_time: 0.0100  loss: 0.4\n"
        for step in range(1, 99)
    )
    assert read(tmp_path, text).times.median_s == 1.0


def test_a_log_that_begins_with_a_later_epoch_counts_the_earlier_ones(tmp_path: Path) -> None:
    text = "".join(
        f"2026/11/24 00:28:11 - mmengine - INFO - Epoch(train) [4][{step}/30]  lr: 1e-02  eta: 0:00:02  "
        f"time: 0.0226  data_time: 0.0005\n"
        for step in (10, 20, 30)
    )
    assert read(tmp_path, text).last_iteration == 120


def test_what_a_record_is_of_is_named_as_its_framework_makes_it(tmp_path: Path) -> None:
    flags = {name: [flag for flag in read(tmp_path, text).flags if "a record is" in flag] for name, text in ALL.items()}
    assert flags["d2"] == ["medians: a record is the median of 20 iterations; all figures are of those medians"]
    assert flags["mmengine"] == [
        "means: a record is the mean of 10 iterations, unless MMEngine's configuration sets another window; "
        "median and p95 are of those means"
    ]


def test_detectron2_counts_all_iterations_of_a_start_that_it_states(tmp_path: Path) -> None:
    """Up to the first line of each start there is no time, but the start says where it went on from."""

    def line(step: int, mean: float) -> str:
        return f"[11/24 00:29:47] d2.utils.events INFO:  eta: 0:00:00  iter: {step}  total_loss: 0.5  time: {mean}  \n"

    start = "[11/24 00:29:43] d2.engine.train_loop INFO: Starting training from iteration {}\n"
    steps = (19, 39, 59, 79, 99, 119, 129)
    first = start.format(0) + "".join(line(step, 0.03 - step / 1e5) for step in steps)
    second = start.format(100) + "".join(line(step, 0.03 - step / 1e5) for step in (119, 139, 159, 169))
    summary = read(tmp_path, first + second)
    assert (summary.iterations, summary.log.redone) == (200, 30)
    assert read(tmp_path, first).iterations == 130
    unstated = read(tmp_path, second.partition("\n")[2])
    assert unstated.iterations is not None
    assert unstated.iterations <= 70


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
