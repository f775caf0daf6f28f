"""nanoGPT and llama2.c print the time of single iterations."""

from __future__ import annotations

from pathlib import Path

from perfscope.analyzers.logs.summary import summarize_log
from tests.sources.joblog.lines import read, seconds


def nanogpt(step: int, ms: float) -> str:
    return f"iter {step}: loss 3.2101, time {ms:.2f}ms, mfu 30.12%\n"


def test_a_line_of_nanogpt_is_one_iteration(tmp_path: Path) -> None:
    tokens = "tokens per iteration will be: 491,520\n"
    log = read(tmp_path, tokens, *(nanogpt(10 * n, ms) for n, ms in enumerate([9000.0, 250.0, 251.0, 252.0])))
    summary = summarize_log(log)
    assert (log.framework, log.gaps) == ("nanogpt", 0)
    assert log.iterations.span.tolist() == [1] * 4
    assert (summary.times.median_s, summary.tokens_per_s) == (0.251, 491520 / 0.251)


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
