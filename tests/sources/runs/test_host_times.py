"""What each step did on the host, where counters were read for several at once, against a slow count by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from math import floor

import numpy as np
import pytest

from perfscope.sources.runs.step_columns import to_steps
from perfscope.tables.steps import HostTimes
from perfscope.wire.host import HostWork
from perfscope.wire.records import StepRecord

NAMES = ("cpu_ns", "delay_ns", "system_ns", "faults", "preempted")
#: How much of a value each step has; absent for none.
Shares = dict[int, list[int]]


def make_records(walls: list[int], reads: dict[int, HostWork]) -> list[StepRecord]:
    """Steps from 1 on that follow each other."""
    ends = np.cumsum(walls).tolist()
    return [
        StepRecord(step, end, "optimizer", wall_ns=wall, host=reads.get(step))
        for step, (end, wall) in enumerate(zip(ends, walls, strict=True), 1)
    ]


def columns(host: HostTimes | None) -> Shares:
    """The values of each row that has some."""
    assert host is not None
    values = [np.ma.filled(getattr(host, name), -1).tolist() for name in NAMES]
    return {row: [column[row] for column in values] for row, value in enumerate(values[0]) if value >= 0}


def by_hand(walls: list[int], reads: dict[int, HostWork]) -> Shares:
    """The same, block by block, in plain Python."""
    blocks, mean, ends = [], None, [*np.cumsum(walls).tolist()]
    for step, work in sorted(reads.items()):
        unread = walls[step - work.steps : step - 1]
        mean = sum(unread) / len(unread) if unread else mean
        blocks.append((step - 1, work, unread, mean is not None and walls[step - 1] <= mean * 1.125))
    usual = [index for index, block in enumerate(blocks) if block[3]]
    result: Shares = {}
    for index, (row, work, unread, _) in enumerate(blocks):
        rated = max([place for place in usual if place <= index], default=usual[0] if usual else index)
        rated_row, rated_work, rated_unread, _ = blocks[rated]
        rows = list(range(row - len(unread), row + 1))
        for place in rows:
            result[place] = []
        cpu_ns = 0
        for name in NAMES:
            total, rate = getattr(work, name), getattr(rated_work, name) / (sum(rated_unread) + walls[rated_row])
            first = min(floor(rate * sum(unread)), total)
            if name.endswith("ns"):
                long = walls[row]
                most = {"cpu_ns": long, "delay_ns": max(long - cpu_ns, 0), "system_ns": cpu_ns}[name]
                usual_ns = min(sum(unread) // max(len(unread), 1), long)
                least = min(floor(rate * usual_ns), most)
                last = min(max(total - first, least), least + long - usual_ns, most)
                first = min(max(total - last, 0), sum(unread), total)
            given, before = 0, ends[row - len(unread)] - walls[row - len(unread)]
            for place in rows[:-1]:
                until = floor(first * ((ends[place] - before) / sum(unread)))
                result[place].append(until - given)
                given = until
            result[row].append(total - given)
            cpu_ns = result[row][0]
    return result


def made(source: random.Random, count: int) -> tuple[list[int], dict[int, HostWork]]:
    """Steps of about 10 ms of which some are long, read as the hooks read them."""
    walls = [source.randint(9_000_000, 10_500_000) * (4 if source.random() < 0.15 else 1) for _ in range(count)]
    reads, unread = {}, 0
    for step, wall in enumerate(walls, 1):
        unread += 1
        if wall > 11_000_000 or step % 16 == 0 or step <= 3:
            over_ns = sum(walls[step - unread : step])
            cpu_ns = source.randint(0, over_ns)
            system_ns, delay_ns = source.randint(0, cpu_ns), source.randint(0, over_ns - cpu_ns)
            if step > 1:
                reads[step] = HostWork(cpu_ns, delay_ns, system_ns, source.randint(0, 90), source.randint(0, 9), unread)
            unread = 0
    return walls, reads


@pytest.mark.parametrize("seed", range(12))
def test_each_step_has_what_a_slow_count_gives_it_and_the_sums_are_exact(seed: int) -> None:
    source = random.Random(seed)
    walls, reads = made(source, source.randint(1, 120))
    if not reads:
        return
    found = columns(to_steps(0, 0, make_records(walls, reads)).host)
    assert found == by_hand(walls, reads)
    for step, work in reads.items():
        rows = range(step - work.steps, step)
        assert [sum(found[row][index] for row in rows) for index in range(len(NAMES))] == list(work[:-1])
        assert all(found[row][0] <= walls[row] + 1 for row in rows)
    assert min(value for values in found.values() for value in values) >= 0


def test_a_long_step_has_the_sleep_and_those_before_it_their_usual_work() -> None:
    walls = [10_000] * 40
    walls[20] = 40_000
    reads = {16: HostWork(16 * 8_000, 0, 0, 32, 0, 16), 21: HostWork(5 * 8_000, 0, 0, 10, 0, 5)}
    reads[32] = HostWork(11 * 8_000, 0, 0, 22, 0, 11)
    found = columns(to_steps(0, 0, [StepRecord(0, 0, "optimizer"), *make_records(walls, reads)]).host)
    assert found == {row: [8_000, 0, 0, 2, 0] for row in range(1, 33)}


@pytest.mark.parametrize("harm", ["lost inside", "lost before", "lost read", "clock", "first"])
def test_nothing_is_spread_over_lost_steps_and_clocks_that_jump(harm: str) -> None:
    reads = {step: HostWork(80, 0, 0, 0, 0, 8) for step in (8, 16, 24)}
    records = [StepRecord(0, 0, "optimizer"), *make_records([10] * 28, reads)]
    lost = {"lost inside": 12, "lost before": 8, "lost read": 16, "first": 0}.get(harm)
    kept = [record for record in records if record.step != lost]
    if harm == "clock":
        kept[13:] = [replace(record, end_ns=record.end_ns - 10**6) for record in kept[13:]]
    host = to_steps(0, 0, kept).host
    assert host is not None
    found = {kept[row].step for row, value in enumerate(np.ma.filled(host.cpu_ns, -1).tolist()) if value >= 0}
    first, second, third = set(range(1, 9)), set(range(9, 17)), set(range(17, 25))
    assert (
        found
        == {
            "lost inside": first | third,
            "lost before": third,
            "lost read": first,
            "clock": first | third,
            "first": second | third,
        }[harm]
    )
