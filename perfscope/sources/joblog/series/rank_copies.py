"""Which of many records in turn are copies, where every rank of a job prints each iteration with a label of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfscope.sources.joblog.series.gaps import Gaps
from perfscope.sources.joblog.series.latest_records import COMPARED_ROWS, MOST_APART
from perfscope.sources.joblog.series.printed_numbers import RECENT, SKEW, PrintedNumbers
from perfscope.sources.joblog.series.turns import Turns
from perfscope.tables.columns import Bool, Int64


def is_of_label(labels: Sequence[str], label: str) -> Bool:
    """Which records have a label."""
    return np.fromiter((text == label for text in labels), np.bool_, len(labels))


def find_copies(
    labels: Sequence[str], numbers: Int64, wall_ns: Int64, most_behind: int | None = None
) -> tuple[Bool, Bool]:
    """The records that come first with the label that mostly does, and those that repeat one without a doubt.

    Args:
        labels: The label of each record.
        numbers: Its iteration.
        wall_ns: Its time; 0 or less where it has none.
        most_behind: A record of so many iterations behind the latest is for the rules; None where it needs not be.

    Returns:
        Two flags a record. A record with neither is for the rules: of another label that came first, the first and the
        last of a label, one with another time, and all from where the numbers of a label do not ascend; the last before
        there, too.
    """
    before = np.maximum.accumulate(numbers)
    is_first = np.diff(before, prepend=-1) > 0
    firsts = np.flatnonzero(is_first)
    places = np.searchsorted(numbers[firsts], numbers)
    original = firsts[np.minimum(places, len(firsts) - 1)]
    latest = np.cumsum(is_first) - 1
    is_near = (numbers[original] == numbers) & (latest - places < COMPARED_ROWS - 1)
    if most_behind is not None:
        is_near &= numbers > before - most_behind
    low, high = np.minimum(wall_ns, wall_ns[original]), np.maximum(wall_ns, wall_ns[original])
    is_copy = ~is_first & is_near & ((high < 0) | ((low > 0) & (high <= MOST_APART * low)))
    ids = _number_labels(labels)
    by_label = np.argsort(ids, kind="stable")
    is_same = np.diff(ids[by_label]) == 0
    back = by_label[1:][is_same & (np.diff(numbers[by_label]) <= 0)]
    begins = by_label[np.flatnonzero(np.diff(ids[by_label], prepend=-1))]
    is_copy &= ~np.isin(ids, ids[begins[~is_near[begins]]])  # a label that begins far behind the others went back
    is_copy[begins] = False
    end = back.min() if len(back) else len(ids)
    by_label = by_label[by_label < end]
    is_copy[by_label[np.flatnonzero(np.diff(ids[by_label], append=-1))]] = False
    is_first &= ids == np.argmax(np.bincount(ids[is_first]))
    is_first[end:] = is_copy[end:] = False
    rows = np.flatnonzero(is_first)
    is_first[rows[:1]] = is_first[rows[-1:]] = False
    return is_first, is_copy


def follow_repeats(iterations: Int64, printed: PrintedNumbers, turns: Turns, gaps: Gaps) -> Bool:
    """Which records of several processes without a label are new, up to the first that is not surely new or a copy.

    Args:
        iterations: Their numbers.
        printed: The numbers before, to which these are added, and how many processes print.
        turns: The place of the job; these records leave it where it goes on.
        gaps: What lies between two records; none of these is further apart than it usually is.
    """
    step, interval = turns.step_behind(printed.last), gaps.usual
    if step is None or not gaps.counts or not step <= interval <= SKEW * step:
        return np.empty(0, np.bool_)
    row = int(np.argmax(iterations > printed.last))  # behind the copies of the last one
    is_new = _follow_each(iterations[:row], printed, interval, step) if row else np.empty(0, np.bool_)
    if len(is_new) == row:
        is_new = np.append(is_new, _follow_runs(iterations[row:], printed, interval))
        is_new = np.append(is_new, _follow_each(iterations[len(is_new) :], printed, interval, step))
    return is_new


def _follow_runs(iterations: Int64, printed: PrintedNumbers, interval: int) -> Bool:
    """Which records are new, as far as all processes print the next iteration before any prints another one."""
    processes = printed.processes or 1
    runs = iterations[: len(iterations) // processes * processes].reshape(-1, processes)
    expected = printed.last + interval * np.arange(1, len(runs) + 1)
    goes_on = np.append((runs == expected[:, np.newaxis]).all(1), False)
    numbers = expected[: int(np.argmin(goes_on))].tolist()
    followed = printed.add_runs(numbers, interval)
    return np.tile(np.arange(processes) == 0, followed)


def _follow_each(iterations: Int64, printed: PrintedNumbers, interval: int, step: int) -> Bool:
    """Which records are new, up to the first that is not surely new or a copy."""
    counts, last, processes, farthest = printed.counts, printed.last, printed.processes or 0, SKEW * step
    is_new: list[bool] = []
    for number in iterations.tolist():
        if number <= last:
            times = counts.get(number, 0)
            if not 0 < times < processes or last - number > farthest:
                break
            counts[number] = times + 1
            is_new.append(False)
            continue
        if number - last != interval:
            break
        last = number
        if len(counts) > RECENT:
            printed.last = last
            printed.drop_old(interval)
            processes = printed.processes or 0
        counts[number] = 1
        is_new.append(True)
    printed.last = last
    return np.asarray(is_new, np.bool_)


def _number_labels(labels: Sequence[str]) -> Int64:
    numbers: dict[str, int] = {}
    return np.fromiter((numbers.setdefault(label, len(numbers)) for label in labels), np.int64, len(labels))
