"""Where no rank is late, the answer says what it could not have seen."""

from __future__ import annotations

import pytest

from benchmarks import kept_run
from perfscope.analyzers.stragglers import records
from perfscope.sources.runs.run import read_run
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("run", "headline", "why"),
    [
        ("findings/h200/ddp_clean", None, "fewer than 5 of their steps were timed"),
        (
            "stragglers/nccl/pipeline.device100",
            "No rank's host is late; the GPUs of ranks 0-1 could not be compared",
            "no other rank holds the same part of the model",
        ),
        ("stragglers/nccl/ddp.clean.large", "No rank is late", None),
        ("stragglers/ddp.clean", None, None),  # no GPUs
    ],
)
def test_a_slow_gpu_that_would_not_be_seen_is_said(run: str, headline: str | None, why: str | None) -> None:
    result = records.analyze(read_run(kept_run(ROOT / "fixtures" / run)))
    notes = [note for note in result.sections()[0].notes if "a slow one would not be seen" in note]
    assert [(why or "") in note for note in notes] == [True] * (why is not None)
    assert headline in (None, result.in_a_sentence())
