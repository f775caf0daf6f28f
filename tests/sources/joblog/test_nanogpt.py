"""nanoGPT, llama2.c and llm.c print the time of single iterations."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.logs.summary import summarize_log
from tests.sources.joblog.lines import read, seconds


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
