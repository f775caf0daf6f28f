"""What the benchmark of trainings behind windows compares."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.after_windows import (
    MEGATRON_STEPS,
    compare_steps,
    count_kernels,
    find_differences,
    megatron_words,
    name_kernels,
    numbers,
    read_window,
)
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


def test_steps_of_megatron_behind_windows_are_compared_with_those_of_the_other_training() -> None:
    def log(ahead: float, behind: float) -> str:
        times = [900.0, *(ahead + step % 2 for step in range(99)), *(80.0 for _ in range(30))]
        times += [behind + step % 2 for step in range(MEGATRON_STEPS - len(times))]
        return "\n".join(LINE.format(step=step, ms=ms, loss="6.9E+00") for step, ms in enumerate(times, start=1))

    compared = compare_steps(log(19.5, 29.5), log(39.5, 65.5))
    assert compared == pytest.approx(
        {
            "bare_ahead_ms": 20, "bare_behind_ms": 30, "captured_ahead_ms": 40, "captured_behind_ms": 66,
            "change_percent": 10, "error_percent": 0,
        }
    )  # fmt: skip


def test_kernels_of_the_step_before_a_window_are_no_difference_between_windows() -> None:
    traces = ROOT / "fixtures" / "light" / "ddp_gpu_bound" / "traces"
    names = sorted(str(file.relative_to(traces)).removesuffix(".gz") for file in traces.rglob("*.json.gz"))
    # The host is ahead of the device, by more in one window than in the other.
    read = [read_window(traces, name) for name in names]
    counts = [count_kernels(trace) for trace in read]
    assert [of_steps for of_steps, _ in counts] == [3 * 335] * 4
    assert [others for _, others in counts] == [155, 148, 187, 148]
    kernels = [name_kernels(trace) for trace in read]
    assert [sum(names.values()) for names in kernels] == [3 * 335] * 4
    assert find_differences(kernels) == ""


def test_a_window_with_other_kernels_says_which() -> None:
    usual = Counter({"gemm": 4, "add": 2})
    assert find_differences([usual, usual, Counter({"gemm": 4, "fill": 1})]) == "window 3 differs: +1 fill, -2 add"


def test_what_a_child_prints_is_compared_to_the_last_bit() -> None:
    assert numbers("perfscope: x\nresult 0x1.8p+1\n") == ["result 0x1.8p+1"]


def test_megatrons_script_runs_unmodified_for_all_steps_on_all_ranks() -> None:
    words = megatron_words(Path("m/pretrain_gpt.py"), 2)
    assert words[1:7] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "m/pretrain_gpt.py"]
    assert words[words.index("--train-iters") + 1] == str(MEGATRON_STEPS)
    assert words[words.index("--tensor-model-parallel-size") + 1] == "2"
