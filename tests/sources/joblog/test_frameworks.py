"""Every other framework's lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest

from perfscope.analyzers.logs.summary import summarize_log
from perfscope.result import to_object
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


def nanogpt(step: int, ms: float) -> str:
    return f"iter {step}: loss 3.2101, time {ms:.2f}ms, mfu 30.12%\n"


def test_an_evaluation_is_in_the_time_of_the_next_iteration(tmp_path: Path) -> None:
    evaluation = "step 20: train loss 2.0012, val loss 2.1203\n"
    log = read(tmp_path, *(nanogpt(n, 250.0) for n in range(20)), evaluation, nanogpt(20, 8000.0), nanogpt(21, 250.0))
    assert [kind for kind in log.iterations.disturbed.tolist() if kind] == ["evaluation"]
    assert summarize_log(log).times.max_s == 0.25


def test_llama2_c_states_its_batch(tmp_path: Path) -> None:
    head = (
        "tokens per iteration will be: 131,072\n"
        "breaks down as: 4 grad accum steps * 1 processes * 128 batch size * 256 max seq len\n"
    )
    log = read(tmp_path, head, *(f"{n} | loss 5.1234 | lr 1.000000e-04 | 150.25ms | mfu 20.10%\n" for n in range(3)))
    assert log.framework == "llama2.c"
    assert seconds(log) == [0.15025] * 3
    assert [log.number(name) for name in ("gbs", "gas", "gpus", "mbs", "seq_len")] == [512, 4, 1, 128, 256]


LLM_C = (
    "num_parameters: 124475904 => bytes: 248951808\n"
    "batch_size B=56 * seq_len T=1024 * num_processes=2 and total_batch_size=458752\n"
    "=> setting grad_accum_steps=4\n"
    "val loss 11.006021\n"
)


def llm_c(step: int, ms: float) -> str:
    return (
        f"step {step:4d}/21479 | loss 9.594637 (+nanz)| norm 2.3978 (-0.31z)| lr 2.86e-05 | {ms:.2f} ms | "
        "-100.0% bf16 MFU | 190918 tok/s\n"
    )


def test_llm_c_states_its_set_up_and_the_time_of_every_step(tmp_path: Path) -> None:
    log = read(tmp_path, LLM_C, *(llm_c(n, 2400.0 + n) for n in range(1, 6)), "val loss 9.2\n", llm_c(6, 2406.0))
    summary = summarize_log(log)
    assert log.framework == "llm.c"
    assert summary.times.median_s == pytest.approx(2.404)
    setup = summary.setup
    assert (setup.parameters, setup.gpus, setup.seq_len, setup.gbs) == (124_475_904, 2, 1024, 448)
    assert (setup.layout.mbs, setup.layout.gas, setup.layout.dp) == (56, 4, 2)
    assert summary.samples_per_s == pytest.approx(448 / 2.404)


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
