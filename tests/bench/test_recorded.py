"""What was recorded on GPUs: strategies that train the same weights agree on the loss, and no figure is impossible."""

from __future__ import annotations

from collections import defaultdict

import pytest

from benchmarks import kept_run
from perfscope.bench.rows import Measurement
from perfscope.bench.running import read_rows
from tests.conftest import ROOT

FOLDERS = ("h200_gpt2",)
#: Behind the eighth step GPT-2's loss leaps once, which makes more of every rounding.
FIRST_STEPS = 8
#: In bf16 frameworks round at different places.
ROUNDING = 5e-4


def rows_of(folder: str) -> list[Measurement]:
    return [row for row in read_rows(kept_run(ROOT / "fixtures" / "bench" / folder)) if row.reason is None]


@pytest.mark.parametrize("folder", FOLDERS)
def test_equal_strategies_agree_on_the_loss(folder: str) -> None:
    series = defaultdict(list)
    for row in rows_of(folder):
        if row.variant.facts.equals is not None:
            series[row.variant.facts.equals, row.variant.nproc].append(row)
    assert any(len(rows) > 1 for rows in series.values())
    steps = FIRST_STEPS if "gpt2" in folder else None
    for rows in series.values():
        first = rows[0].losses[:steps]
        for row in rows[1:]:
            assert row.losses[:steps] == pytest.approx(first, rel=ROUNDING), (row.name, rows[0].name)


def test_on_cpus_all_steps_agree_and_the_loss_falls() -> None:
    rows = rows_of("cpu_resnet50")
    assert len(rows) >= 16
    by_kind = {(row.variant.facts.equals, row.variant.nproc): row.losses for row in rows}
    for row in rows:
        assert row.losses[-1] < row.losses[0] - 0.5, row.name
        if row.variant.facts.equals is not None:
            kind = row.variant.facts.equals, row.variant.nproc
            assert row.losses == pytest.approx(by_kind[kind], rel=ROUNDING), row.name


@pytest.mark.parametrize("folder", FOLDERS)
def test_figures_are_possible(folder: str) -> None:
    for row in rows_of(folder):
        assert row.losses[-1] < row.losses[0], row.name
        assert sum(row.shares.values()) == pytest.approx(1), row.name
        assert 0 < row.variant.nproc == len(row.memory_bytes), row.name
        for share in (row.overlap, row.bubble, row.mfu):
            assert share is None or 0 <= share < 1, row.name
