"""The reason of a failed training is the first error of a rank, not the launcher's."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.bench.running import explain_failure

TORCHRUN = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 5, in main
[rank1]: {error}
E1122 12:00:00.000000 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1
Traceback (most recent call last):
  File "torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
"""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            "ValueError: Expected more than 1 value per channel",
            "failed: ValueError: Expected more than 1 value per channel",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "out of memory: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        ),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried",
            "out of memory: DefaultCPUAllocator: can't allocate memory: you tried",
        ),
    ],
)
def test_the_error_of_a_rank_is_the_reason(tmp_path: Path, error: str, reason: str) -> None:
    log = tmp_path / "log"
    log.write_text(TORCHRUN.format(error=error))
    assert explain_failure(log, 1, 60) == reason


def test_a_rank_that_was_killed_may_have_run_out_of_memory(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("failed (exitcode: -9) local_rank: 0 (pid: 7) of binary: python\n  exitcode  : -9 (pid: 7)\n")
    assert explain_failure(log, 1, 60) == "failed: killed by SIGKILL, as a host kills what it has no memory for"


def test_a_launcher_that_is_missing_is_named(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("perfscope: nosuch: command not found\n  hint: nothing was started\n")
    assert explain_failure(log, 127, 60) == "failed: nosuch: command not found"


def test_a_training_that_did_not_end_says_how_long_it_was_given(tmp_path: Path) -> None:
    assert explain_failure(tmp_path / "missing", None, 60) == "failed: it did not end within 60 s"
