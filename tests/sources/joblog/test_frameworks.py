"""Every other framework's lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.sources.joblog import read_log
from tests.conftest import ROOT
from tests.sources.joblog.lines import read, seconds, titan

FIXTURES = ROOT / "fixtures" / "logs"


def deepspeed(step: int, stamp: str, text: str) -> str:
    return f"[2024-03-07 {stamp}] [INFO] [timer.py:260:stop] epoch=0/micro_step={step}/global_step={step}, {text}\n"


class TestDeepSpeed:
    def test_two_running_means_give_the_speed_between_them(self, tmp_path: Path) -> None:
        # Steps 3 to 12 at 1 s, 13 to 22 at 3 s, 8 samples each: means 8 and 8 * 20 / 40 = 4.
        line = "[2020-12-05 10:00:00,000] [INFO] [timer.py:157:stop] 0/{}, SamplesPerSec={}\n"
        batch = '"train_batch_size": 8,\n"gradient_accumulation_steps": 1,\n'
        log = read(tmp_path, batch, line.format(12, 8.0), line.format(22, 4.0))
        assert log.iterations.samples_per_s.tolist() == pytest.approx([8.0, 8 / 3])
        assert seconds(log) == pytest.approx([1.0, 3.0])

    def test_the_step_lines_dates_tell_the_time_where_nothing_else_does(self, tmp_path: Path) -> None:
        line = (
            "[2024-03-07 15:27:{}] [INFO] [logging.py:96:log_dist] [Rank 0] step={}, skipped={}, lr=[0.1], mom=[0.9]\n"
        )
        log = read(tmp_path, line.format("00,500", 10, 0), line.format("05,500", 20, 1), line.format("11,500", 30, 4))
        assert seconds(log) == [None, 0.5, 0.6]
        assert log.number("skipped_total") == 4

    def test_a_negative_timer_is_no_time(self, tmp_path: Path) -> None:
        log = read(
            tmp_path,
            "[Rank 0] time (ms) | fwd: -20.0 | bwd: 60.0 | step: 5.0\n",
            "[Rank 0] time (ms) | fwd: 10.0 | bwd: 60.0 | step: 5.0\n",
        )
        assert seconds(log) == [None, 0.075]
        assert log.remarks[0].startswith("negative-timer")

    def test_the_pipelines_own_run_on_four_gpus(self) -> None:
        log = read_log(FIXTURES / "deepspeed_pp4_h200.log")
        # The script's own clock: 3.710 s, then 0.131, 0.131, ..., 0.159, 0.186, 0.156; a line is the mean of two.
        true = [3.710121, 0.131086, 0.130709, 0.130789, 0.130945, 0.130782, 0.130641, 0.158554, 0.185529, 0.156386]
        pairs = [(true[at] + true[at + 1]) / 2 for at in range(0, 10, 2)]
        assert seconds(log) == pytest.approx(pairs, rel=0.04)
        assert log.iterations.samples.tolist() == [32] * 5
        assert [log.number(name) for name in ("gpus", "pp", "dp")] == [4, 4, 1]

    def test_a_save_lasts_from_the_first_file_to_the_last(self, tmp_path: Path) -> None:
        log = read(
            tmp_path,
            "[2023-06-21 03:45:50,000] [INFO] [logging.py:96:log_dist] [Rank 0] Saving model checkpoint: ckpt/global_step10/mp.pt\n",
            "[2023-06-21 03:45:53,250] [INFO] [torch_checkpoint_engine.py:23:save] [Torch] Saved ckpt/global_step10/mp.pt.\n",
            "[2023-06-21 03:45:58,500] [INFO] [torch_checkpoint_engine.py:23:save] [Torch] Saved ckpt/global_step10/optim.pt.\n",
        )
        [save] = log.saves
        assert (save.iteration, save.wall_ns, save.source) == (10, 8_500_000_000, "timestamps")

    def test_its_speed_is_believed_with_accumulation_where_its_timers_confirm_it(self, tmp_path: Path) -> None:
        setup = '    "train_batch_size": 64, \n    "gradient_accumulation_steps": 2, \n'
        timers = (
            "[Rank 0] time (ms) | fwd: 300.00 | bwd: 600.00 | bwd_inner: 570.00 | bwd_allreduce: 20.00 | step: 50.00\n"
        )
        for speed, expected in (("64.0", 1.0), ("128.0", 0.95)):  # 128 would be two micro-steps a step
            lines = [
                deepspeed(step, f"10:00:0{step},000", f"RunningAvgSamplesPerSec=64.0, CurrSamplesPerSec={speed}")
                + timers
                for step in (3, 4, 5)
            ]
            log = read(tmp_path, setup, *lines)
            assert seconds(log) == [expected] * 3


class TestHuggingFace:
    START = (
        "***** Running training *****\n  Num examples = 5,498\n  Num Epochs = 1\n"
        "  Instantaneous batch size per device = 8\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 224\n"
        "  Gradient Accumulation steps = 4\n  Total optimization steps = 25\n"
        "  Number of trainable parameters = 7,615,616,512\n"
    )
    END = "{'train_runtime': 250.0, 'train_samples_per_second': 21.992, 'train_steps_per_second': 0.1, 'epoch': 1.0}\n"

    def test_the_slowest_node_counts(self, tmp_path: Path) -> None:
        log = read(tmp_path, self.START, self.END, self.END.replace("250.0", "275.0"), self.END)
        assert seconds(log) == [11.0]

    def test_nothing_is_made_up_where_steps_cannot_be_known(self, tmp_path: Path) -> None:
        log = read(tmp_path, "{'train_runtime': 273.0, 'train_samples_per_second': 3.663}\n")
        assert len(log.iterations) == 0
        assert log.remarks[0].startswith("steps-unknown")

    def test_the_metrics_block_has_a_clock(self, tmp_path: Path) -> None:
        block = (
            "***** train metrics *****\n  epoch                    =        1.0\n"
            "  train_runtime            = 0:14:31.66\n  train_samples_per_second =      1.147\n"
        )
        log = read(tmp_path, self.START.replace("= 25", "= 4"), block)
        assert seconds(log) == [pytest.approx(871.66 / 4)]


class TestTorchtitan:
    def test_the_start_line_gives_the_batch(self, tmp_path: Path) -> None:
        start = (
            "[rank0]:[titan] 2025-06-16 22:30:00,000 - root - INFO - Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]\n"
            "[rank0]:[titan] 2025-06-16 22:30:01,000 - root - INFO - Training starts at step 1, with local batch size 1, "
            "global batch size 4, sequence length 8192, total steps 1000 (warmup 200)\n"
        )
        log = read(tmp_path, start, titan(10, "22:30:50,000"))
        assert [log.number(name) for name in ("gpus", "tp", "mbs", "gbs", "seq_len")] == [8, 2, 1, 4, 8192]

    def test_the_set_up_of_2026(self, tmp_path: Path) -> None:
        head = "[rank0]:[titan] 2026-08-01 10:00:00,000 - root - INFO - "
        start = (
            f"{head}Building device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=4, cp=1, tp=2, ep=4\n"
            f"{head}Applied full activation checkpointing to the model\n"
            f"{head}Trainer is initialized with 8192 tokens per DP rank, 131072 tokens per train step, gradient "
            "accumulation steps 2, maximum context length 8192, total steps 1000 (warmup 200)\n"
            f"{head}Training starts at step 1\n"
        )
        log = read(tmp_path, start, titan(1, "10:00:05,000"))
        names = ("gpus", "dp", "tp", "ep", "seq_len", "gbs", "gas", "train_iterations")
        assert [log.number(name) for name in names] == [16, 8, 2, 4, 8192, 16, 2, 1000]

    def test_a_line_of_validation_is_no_step(self, tmp_path: Path) -> None:
        validation = titan(25, "22:31:10,000").replace("step: 25", "validate step: 25")
        log = read(
            tmp_path, titan(10, "22:30:50,000"), titan(20, "22:31:04,000"), validation, titan(30, "22:31:19,000")
        )
        assert log.iterations.iteration.tolist() == [10, 20, 30]
        assert log.iterations.disturbed.tolist() == ["", "", "evaluation"]

    def test_saves_of_every_year(self, tmp_path: Path) -> None:
        head = "[rank0]:[titan] 2025-06-16 22:30:55,000 - root - INFO - "
        texts = (
            ("Finished saving the checkpoint in 4.25 seconds", None),
            ("Finished saving the checkpoint at step 10 in 4.25 seconds", None),
            ("Finished saving the checkpoint (or staging if async is enabled)in 4.25 seconds.", None),
            ("Finished staging the checkpoint in 4.25 seconds.", True),
            ("Last step checkpoint completed in 4.25s", None),
        )
        for text, asynchronous in texts:
            log = read(tmp_path, titan(10, "22:30:50,000"), f"{head}{text}\n", titan(20, "22:31:04,000"))
            assert [(save.wall_ns, save.asynchronous) for save in log.saves] == [(4_250_000_000, asynchronous)]
            assert log.iterations.disturbed.tolist() == ["", "save"]
        behind = f"{head}Finish saving the checkpoint in the background process in 9.00 seconds.\n"
        assert read(tmp_path, titan(10, "22:30:50,000"), behind).saves == ()


class TestNemo:
    def test_the_first_generation_draws_a_bar_that_loses_digits(self, tmp_path: Path) -> None:
        bar = "\rEpoch 0: :  60%|######    | {}/10000 [4:26:54<2:56:09, v_num=0, reduced_train_loss=0.0252, global_step={}, consumed_samples={}, train_step_timing in s={}]"
        log = read(tmp_path, bar.format(2000, "2e+3", "3.2e+4", 2.59), bar.format(2001, "2e+3", "3.2e+4", 2.61), "\n")
        assert seconds(log) == [2.59, 2.61]
        assert log.iterations.iteration.tolist() == [2000, 2001]


class TestStepsOfEpochs:
    def test_a_step_that_counts_anew_in_each_epoch_is_no_restart(self, tmp_path: Path) -> None:
        nemo = "\rEpoch {0}: :  60%|###  | {1}/3 [00:01<00:01, global_step={1}.0, train_step_timing in s=0.5]"
        lines = [nemo.format(epoch, step) for epoch in (1, 2, 3) for step in (1, 2, 3)]
        log = read(tmp_path, *lines, "\n")
        assert log.iterations.iteration.tolist() == list(range(1, 10))
        assert set(log.iterations.attempt.tolist()) == {0}
