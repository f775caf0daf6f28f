"""What the benchmark of trainings behind windows compares."""

from __future__ import annotations

from pathlib import Path

from benchmarks.after_windows import STEPS, count_kernels, megatron_words, numbers
from tests.conftest import ROOT

#: A line of Megatron-core 0.19.2.
LINE = (
    " [2026-11-22 09:00:00] iteration {step:8d}/      34 | consumed samples:            4 | elapsed time per iteration "
    "(ms): {ms} | lm loss: {loss} | loss scale: 1.0 | grad norm: "
    "2.310 | params norm: 81.125 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)


def test_times_of_megatrons_log_are_no_numbers_of_the_training_and_its_losses_and_norms_are() -> None:
    log = LINE.format(step=1, ms=512.3, loss="6.914732E+00")
    assert numbers(f"other\n{log}\n") == ["1 6.914732E+00 2.310 81.125"]
    assert numbers(LINE.format(step=1, ms=9.1, loss="6.914732E+00")) == numbers(log)
    assert numbers(LINE.format(step=1, ms=9.1, loss="6.914733E+00")) != numbers(log)


def test_kernels_of_the_step_before_a_window_are_no_difference_between_windows() -> None:
    traces = ROOT / "fixtures" / "light" / "ddp_gpu_bound" / "traces"
    names = sorted(str(file.relative_to(traces)).removesuffix(".gz") for file in traces.rglob("*.json.gz"))
    # The host is ahead of the device, by more in one window than in the other.
    counts = [count_kernels(traces, name) for name in names]
    assert [of_steps for of_steps, _ in counts] == [3 * 335] * 4
    assert [others for _, others in counts] == [155, 148, 187, 148]


def test_what_a_child_prints_is_compared_to_the_last_bit() -> None:
    assert numbers("perfscope: x\nresult 0x1.8p+1\n") == ["result 0x1.8p+1"]


def test_megatrons_script_runs_unmodified_for_all_steps_on_all_ranks() -> None:
    words = megatron_words(Path("m/pretrain_gpt.py"), 2)
    assert words[1:7] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "m/pretrain_gpt.py"]
    assert words[words.index("--train-iters") + 1] == str(STEPS)
    assert words[words.index("--tensor-model-parallel-size") + 1] == "2"
