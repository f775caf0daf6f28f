"""Where no rank is late, the answer says what it could not have seen."""

from __future__ import annotations

import pytest

from perfscope.analyzers import late_ranks
from perfscope.sources.runs.run import read_run
from tests.conftest import ROOT

UNSEEN = "No device could be compared: a slow GPU would not be seen here."


@pytest.mark.parametrize(
    ("run", "is_unseen"),
    [
        ("findings/h200/ddp_clean", True),  # a GPU whose devices were not timed
        ("stragglers/nccl/fsdp2.clean", False),
        ("findings/cpu/ddp_busy", False),  # no GPUs
    ],
)
def test_a_slow_gpu_that_would_not_be_seen_is_said(run: str, is_unseen: bool) -> None:
    result = late_ranks.analyze(read_run(ROOT / "fixtures" / run))
    assert (UNSEEN in result.sections()[0].notes) is is_unseen
