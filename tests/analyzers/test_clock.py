"""Claims about clocks: the rank that comes last leaves last, and that is no offset."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers import clock
from perfscope.analyzers.collectives.rank_calls import RankCalls
from perfscope.errors import MissingInput
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


@pytest.mark.parametrize("sign", [1, -1])
def test_where_one_rank_always_comes_last_the_residual_covers_the_truth(tmp_path: Path, sign: int) -> None:
    answer = clocks(tmp_path, [sign * 300, sign * 250, sign * 400, sign * 350])
    assert answer.offset_ns is not None
    assert answer.residual_ns is not None
    assert abs(answer.offset_ns - 1000 * OFFSET_US) == pytest.approx(1000 * SKEW_US)
    assert answer.residual_ns >= abs(answer.offset_ns - 1000 * OFFSET_US)


def on_hosts(tmp_path: Path, hosts: str, ends_us: list[list[int]]) -> clock.ClockOffsets:
    """All-reduces of 100 us that end on each rank at these times; the host of each rank is a letter, or ``-``."""
    ranks = [[made("allreduce", end - 100, end) for end in ends] for ends in ends_us]
    partials: list[tuple[RankCalls, ...]] = measured(tmp_path, *ranks)
    named = ["" if host == "-" else host for host in hosts]
    return clock.analyze([(replace(part, host=host),) for (part,), host in zip(partials, named, strict=True)])


#: Ends that are 33, 34 and 36 ms apart.
_MISLEADING = [[1000, 11_000, 21_000], [34_000, 45_000, 57_000]]


def test_ranks_of_one_host_have_one_clock_whatever_their_collectives_say(tmp_path: Path) -> None:
    found = on_hosts(tmp_path, "aa", _MISLEADING)
    assert [(rank.offset_ns, rank.residual_ns, rank.operations) for rank in found.ranks] == [(0, 0, 0)] * 2


def test_ranks_of_one_host_need_no_collective(tmp_path: Path) -> None:
    parts = [part for (part,) in measured(tmp_path, [made("allreduce", 0, 9)], [made("allreduce", 0, 9)])]
    found = clock.analyze([(replace(part, host="a", groups=()),) for part in parts])
    assert [(rank.offset_ns, rank.residual_ns) for rank in found.ranks] == [(0, 0), (0, 0)]
    with pytest.raises(MissingInput):
        on_hosts(tmp_path, "a", [[1000]])


def test_between_hosts_the_error_is_said(tmp_path: Path) -> None:
    found = on_hosts(tmp_path, "ab", _MISLEADING)
    assert [(rank.offset_ns, rank.residual_ns) for rank in found.ranks] == [(0, 0), (34_000_000, 1_000_000)]


def test_all_ranks_of_another_host_have_one_offset(tmp_path: Path) -> None:
    """Rank 2 knows the other host's clock best, so that it tells that of rank 1."""
    exact = [1000, 11_000, 21_000]
    found = on_hosts(tmp_path, "abb", [exact, [7_300, 17_000, 26_500], [6000, 16_000, 26_000]])
    assert [rank.offset_ns for rank in found.ranks] == [0, 5_000_000, 5_000_000]


@pytest.mark.parametrize(
    ("ends", "offset_us", "residual_us"),
    [
        ([100_100, 200_100, 300_100], 0, 100),
        ([133_000, 233_000, 333_000], 33_000, 0),
        ([70_000, 202_000, 330_000], 0, 30_000),
    ],
)
def test_hosts_that_are_not_stated_have_one_clock_unless_collectives_clearly_say_so(
    tmp_path: Path, ends: list[int], offset_us: int, residual_us: int
) -> None:
    """The last ones are -30, 2 and 30 ms apart: that tells nothing."""
    rank = on_hosts(tmp_path, "--", [[100_000, 200_000, 300_000], ends]).ranks[1]
    assert (rank.offset_ns, rank.residual_ns) == (1000 * offset_us, 1000 * residual_us)
