"""What the published excerpts do not show: restarts, evaluations, saves and set-up of the newer formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest

from perfscope.analyzers.logs.summary import summarize_log
from perfscope.result import to_object
from tests.sources.joblog.lines import read, seconds


def verl(step: int, step_s: float, cells: str = "") -> str:
    return (
        f"(TaskRunner pid=7) step:{step} - actor/pg_loss:0.1 - timing_s/gen:{step_s / 2} - timing_s/step:{step_s}{cells} "
        "- perf/throughput:np.float64(1234.5) - perf/max_memory_allocated_gb:10.0\n"
    )


def test_verls_step_with_a_test_or_a_save_is_disturbed(tmp_path: Path) -> None:
    saved, tested = " - timing_s/save_checkpoint:30.0", " - timing_s/testing:60.0"
    log = read(tmp_path, *(verl(n, 10.0) for n in range(1, 4)), verl(4, 40.0, saved), verl(5, 70.0, tested))
    assert log.iterations.disturbed.tolist() == ["", "", "", "save", "evaluation"]
    assert [(save.iteration, save.wall_ns) for save in log.saves] == [(4, 30 * 10**9)]
    summary = summarize_log(log)
    assert (summary.times.median_s, summary.times.max_s) == (10.0, 10.0)
    assert to_object(summary)["logged"] == {
        "samples_per_s": None,
        "tokens_per_s_per_gpu": 1234.5,
        "tflops_per_gpu": None,
    }
    assert log.memory.allocated_bytes == 10 * 2**30
    assert {timer.name: timer.lines for timer in log.timers} == {"gen": 5}


def mmcv(step: int, step_s: float) -> str:
    return (
        f"2022-01-01 10:00:00,000 - mmseg - INFO - Iter [{step}/160000]\tlr: 9.0e-05, eta: 1 day, 2:00:00, "
        f"time: {step_s:.3f}, data_time: 0.005, memory: 3000, decode.loss_ce: 1.0, loss: 1.0\n"
    )


def test_a_save_is_in_mmcvs_next_mean_where_it_counts_iterations(tmp_path: Path) -> None:
    save = "2022-01-01 10:00:00,000 - mmseg - INFO - Saving checkpoint at 200 iterations\n"
    log = read(tmp_path, *(mmcv(50 * n, 0.5) for n in (1, 2, 3, 4)), save, mmcv(250, 0.9), mmcv(300, 0.5))
    assert log.iterations.disturbed.tolist() == ["", "", "", "", "save", ""]
    assert (log.number("train_iterations"), summarize_log(log).iterations) == (160000, 300)
    assert log.memory.allocated_bytes == 3000 * 2**20


@pytest.mark.parametrize("label", ["", "[rank{}]:"])
def test_a_rank_of_mmengine_that_lags_is_no_restart_and_a_restart_has_no_times_at_first(
    label: str, tmp_path: Path
) -> None:
    line = (
        "{}2023/05/24 20:17:36 - mmengine - INFO - Iter(train) [{:4d}/4000]  lr: 1.0e-3  time: 0.5000  data_time: 0.1\n"
    )
    turns = [(label.format(rank), step - 2 * rank) for step in range(1, 81) for rank in (0, 1) if step > 2 * rank]
    resumed = [(label.format(0), step) for step in range(41, 61)]
    log = read(tmp_path, *(line.format(*turn) for turn in (*turns, *resumed)))
    untimed = [None] * 9 + [0.5] * 10
    first = [None, *([None] * 9), *([0.5] * 70)]
    assert seconds(log) == [*first, 0.5, *untimed]
    assert log.copies == 78


@pytest.mark.parametrize(
    ("line", "kind"), [("Saving checkpoint at 40 iterations", "save"), ("Iter(val) [ 10/10]    acc: 0.5", "evaluation")]
)
def test_a_mean_of_mmengine_after_a_pause_contains_it(line: str, kind: str, tmp_path: Path) -> None:
    begin = "2023/05/24 20:17:36 - mmengine - INFO - "
    training = [
        f"{begin}Iter(train) [{step:4d}/4000]  lr: 1.0e-3  time: 0.5000  data_time: 0.1\n" for step in range(10, 81, 10)
    ]
    log = read(tmp_path, *training[:4], f"{begin}{line}\n", *training[4:])
    assert log.iterations.disturbed.tolist() == ["", "", "", "", kind, "", "", ""]


def test_fairseqs_validation_and_save_disturb_the_next_mean(tmp_path: Path) -> None:
    def line(updates: int, wall_s: int, words: float = 1000.0) -> str:
        return (
            f"2020-07-17 07:11:02 | INFO | train_inner | epoch 001: {updates} / 9000 loss=9.2, ppl=6.1, wps={words:.1f}, "
            f"ups=0.5, wpb=2000.0, bsz=64, num_updates={updates}, lr=1e-05, gnorm=1.0, train_wall=100, wall={wall_s}\n"
        )

    valid = "2020-07-17 07:11:02 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 9.1\n"
    log = read(tmp_path, line(100, 200), line(200, 400), line(300, 600), valid, line(400, 900, 2000 / 3))
    assert log.time_source == "fairseq's words a batch / words a second"
    assert seconds(log) == pytest.approx([2.0, 2.0, 2.0, 3.0], rel=1e-4)
    assert log.iterations.disturbed.tolist() == ["", "", "", "evaluation"]
    assert log.iterations.span.tolist() == [100] * 4


def test_lightnings_epochs_count_on_and_validation_is_left_out(tmp_path: Path) -> None:
    def bar(epoch: int, step: int, clock_s: int) -> str:
        clock = f"{clock_s // 60:02d}:{clock_s % 60:02d}"
        return f"Epoch {epoch}:  50%|#####     | {step}/20 [{clock}<00:10,  2.00s/it, v_num=0, train_loss=1.0]\n"

    epoch_0 = [bar(0, n, 2 * n) for n in range(1, 17)]
    validation = ["Validation DataLoader 0:  50%|#####     | 2/4 [00:01<00:01,  4.00it/s]\n", bar(0, 20, 100)]
    epoch_1 = [bar(1, n, 2 * n) for n in range(1, 17)]
    log = read(tmp_path, "".join((*epoch_0, *validation, *epoch_1)).replace("\n", "\r"), "\n")
    assert log.framework == "lightning"
    assert log.iterations.iteration.tolist() == [1, 11, 16, 21, 31, 36]
    assert seconds(log) == [None, 2.0, None, None, 2.0, None]


class TestTrainersFiles:
    STATE: ClassVar = {
        "best_metric": None,
        "epoch": 1.0,
        "global_step": 94,
        "log_history": [
            {"epoch": 0.5, "loss": 2.5, "learning_rate": 1e-5, "step": 47},
            {"epoch": 0.5, "eval_loss": 2.0, "eval_runtime": 3.0, "step": 47},
            {"epoch": 1.0, "loss": 1.5, "learning_rate": 0.0, "step": 94},
            {"epoch": 1.0, "step": 94, "total_flos": 1e18, "train_loss": 2.0, "train_runtime": 188.0},
        ],
        "max_steps": 94,
        "train_batch_size": 4,
    }

    def test_the_state_of_a_checkpoint_has_no_time(self, tmp_path: Path) -> None:
        state = {**self.STATE, "log_history": [{"epoch": 0.5, "loss": 2.5, "step": 47}]}
        summary = summarize_log(read(tmp_path, json.dumps(state, indent=2), name="trainer_state.json"))
        assert (summary.status, summary.times.median_s) == ("ok", None)
        assert summary.reason == "the log does not state the time of an iteration"

    def test_a_deepspeed_configuration_with_the_same_keys_is_no_state(self, tmp_path: Path) -> None:
        log = read(tmp_path, '{\n  "train_batch_size": 128,\n  "max_steps": 7,\n  "global_step": 3\n}\n')
        assert (log.framework, log.number("mbs"), log.number("gbs")) == (None, None, 128)

    def test_tokens_a_second_of_llama_factory_are_those_between_lines(self, tmp_path: Path) -> None:
        def line(step: int, clock_s: int, tokens: int) -> str:
            clock = f"{clock_s // 3600}:{clock_s // 60 % 60:02d}:{clock_s % 60:02d}"
            return (
                f'{{"current_steps": {step}, "total_steps": 40, "loss": 1.5, "lr": 1e-05, "epoch": 0.1, "percentage": 1.0, '
                f'"elapsed_time": "{clock}", "remaining_time": "0:10:00", "throughput": 9999.9, "total_tokens": {tokens}}}\n'
            )

        evaluation = (
            '{"current_steps": 20, "total_steps": 40, "eval_loss": 1.4, "epoch": 0.2, "elapsed_time": "0:03:20"}\n'
        )
        log = read(
            tmp_path,
            *(line(10, 100, 1000), line(20, 180, 9000), evaluation, line(30, 300, 17000), line(40, 380, 25000)),
            name="trainer_log.jsonl",
        )
        assert (log.framework, seconds(log)) == ("llama-factory", [None, 8.0, 12.0, 8.0])
        assert log.iterations.disturbed.tolist() == ["", "", "evaluation", ""]
        assert log.iterations.tokens_per_s.tolist()[1] == 100.0


def test_rates_of_meters_that_fairseqs_wall_clock_contradicts_are_not_stated(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        *(
            f"2020-07-17 07:11:02 | INFO | train_inner | epoch 001: {updates} / 9000 loss=9.2, ppl=6.1, wps=57.3, ups=0.04, "
            f"wpb=1613, bsz=80, num_updates={updates}, lr=2.8e-05, gnorm=3.23, train_wall=13, wall={updates * 28 // 100}\n"
            for updates in range(100, 600, 100)
        ),
    )
    summary = summarize_log(log)
    assert (log.time_source, summary.times.median_s) == ("fairseq's wall clock", 0.28)
    assert summary.samples_per_s is None
