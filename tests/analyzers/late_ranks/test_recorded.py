"""Of the trainings that were kept, what is answered stays, and is what the report says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.stragglers import (
    GPU_RUNS,
    LATE,
    LATE_RANKS,
    REPORT,
    judge_fixtures,
    judge_folder,
    to_markdown,
)

#: Records of before what tells these apart was recorded, and a machine that did much else.
WRONG = {
    "deepspeed.contention.rare",
    "nccl-third/ddp.sleep",
    "nccl-third/fsdp2.device50",
    "nccl-seventh/ddp.contention.rare",
    "nccl-seventh/pipeline.device25",
    "nccl-eighth/deepspeed.slow33",
    "nccl-eighth/fsdp2.device50",
    "nccl-ninth/ddp.device25",
    "nccl-ninth/deepspeed.slow33",
    "nccl-ninth/fsdp2.device50",
    "nccl-ninth/pipeline.contention.rare",
    "nccl-ninth/pipeline.device50",
    "nccl-tenth/deepspeed.contention.rare",
}


@pytest.mark.parametrize("folder", GPU_RUNS.values(), ids=GPU_RUNS)
def test_the_cause_of_each_training_on_gpus_is_named(folder: Path) -> None:
    late_rank = next((LATE_RANKS[name] for name in LATE_RANKS if GPU_RUNS[name] == folder), LATE)
    answers = judge_folder(folder, late_rank)
    assert answers
    assert {f"{folder.name}/{answer.case}" for answer in answers if not answer.is_right} <= WRONG


def test_the_cause_of_each_training_on_processors_is_named_and_the_report_says_so() -> None:
    answers = judge_fixtures()
    assert len(answers) > 50
    assert {answer.case for answer in answers if not answer.is_right} <= WRONG
    assert to_markdown(answers) == REPORT.read_text()
