"""Claims about clocks: the rank that comes last leaves last, and that is no offset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers import clock
from tests.analyzers.test_collectives import made, measured

OFFSET_US = 5000
TRANSFER_US = 200
SKEW_US = 15


def clocks(tmp_path: Path, leads_us: list[int]) -> clock.RankClock:
    """Collectives that rank 1 begins so much later than rank 0; the last one leaves ``SKEW_US`` later."""
    first, second = [], []
    for number, lead in enumerate(leads_us):
        arrived, skew = 1000 * number + max(lead, 0), min(SKEW_US, abs(lead))
        ends = [arrived + TRANSFER_US + skew * (lead < 0), arrived + TRANSFER_US + skew * (lead > 0)]
        first.append(made("allreduce", 1000 * number, ends[0]))
        second.append(made("allreduce", 1000 * number + lead, ends[1]))
    partials = measured(tmp_path, first, second, base=[10**18, 10**18 + 1000 * OFFSET_US])
    return clock.analyze(partials).ranks[1]


def test_where_both_ranks_come_last_the_offset_is_in_the_middle(tmp_path: Path) -> None:
    answer = clocks(tmp_path, [300, 250, 400, 350, 300, 280, -300, -250, -400])
    assert answer.offset_ns == pytest.approx(1000 * OFFSET_US)
    assert answer.residual_ns == pytest.approx(0)


def test_where_ranks_come_together_nothing_is_corrected(tmp_path: Path) -> None:
    answer = clocks(tmp_path, [0, 0, 0, 0, 300])
    assert answer.offset_ns == pytest.approx(1000 * OFFSET_US)


@pytest.mark.parametrize("sign", [1, -1])
def test_where_one_rank_always_comes_last_the_residual_covers_the_truth(tmp_path: Path, sign: int) -> None:
    answer = clocks(tmp_path, [sign * 300, sign * 250, sign * 400, sign * 350])
    assert answer.offset_ns is not None
    assert answer.residual_ns is not None
    assert abs(answer.offset_ns - 1000 * OFFSET_US) == pytest.approx(1000 * SKEW_US)
    assert answer.residual_ns >= abs(answer.offset_ns - 1000 * OFFSET_US)


def test_random_arrivals_give_the_offset_within_the_residual(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    for trial in range(20):
        folder = tmp_path / str(trial)
        folder.mkdir()
        leads = random.normal(random.normal(0, 150), 150, int(random.integers(4, 40)))
        answer = clocks(folder, leads.astype(int).tolist())
        assert answer.offset_ns is not None
        assert answer.residual_ns is not None
        assert abs(answer.offset_ns - 1000 * OFFSET_US) <= answer.residual_ns + 1000 * SKEW_US / 2
