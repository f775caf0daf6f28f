"""What a rank costs the driver does not grow with the ranks, and what can be merged costs the same for any number."""

from __future__ import annotations

import pickle
from functools import cache, partial

from benchmarks.synthetic_ranks import Made, make_job
from perfscope.engine.execution import measure_group
from perfscope.engine.registry import analyzers
from perfscope.engine.tasks import MeasuredTrace
from perfscope.engine.windows import TraceFiles

#: Three steps with 114 collectives; 12 kB are these.
MOST_BYTES_A_RANK = 20_000
IN_A_GROUP = 16


@cache
def answers(ranks: int) -> tuple[MeasuredTrace, ...]:
    return tuple(Made(make_job(ranks)))


def test_a_rank_costs_the_same_among_few_and_among_many() -> None:
    mergers = {analyzer.name: analyzer.merger() for analyzer in analyzers()}
    merging = {name for name, merge in mergers.items() if merge is not None}
    assert merging
    kept, merged = {}, {}
    for ranks in (64, 1024):
        by_path = {measured.path: measured for measured in answers(ranks)}
        group = tuple(map(TraceFiles, by_path))
        first, *others = measure_group(group, partial(copy_of, by_path), mergers)
        assert not any(merging & set(measured.partials) for measured in others)
        kept[ranks] = sum(len(pickle.dumps(measured)) for measured in others) / len(others)
        merged[ranks] = sum(len(pickle.dumps(first.partials[name])) for name in merging & set(first.partials))
    assert kept[1024] < 1.02 * kept[64]
    assert kept[1024] < MOST_BYTES_A_RANK
    assert merged[1024] < 1.05 * merged[64]


def test_a_group_sends_less_than_its_traces_alone() -> None:
    mergers = {analyzer.name: analyzer.merger() for analyzer in analyzers()}
    by_path = {measured.path: measured for measured in answers(64)[:IN_A_GROUP]}
    together = measure_group(tuple(map(TraceFiles, by_path)), partial(copy_of, by_path), mergers)
    alone = sum(len(pickle.dumps(measured)) for measured in by_path.values())
    assert len(pickle.dumps(together)) < 0.6 * alone


def copy_of(by_path: dict[str, MeasuredTrace], files: TraceFiles) -> MeasuredTrace:
    copied: MeasuredTrace = pickle.loads(pickle.dumps(by_path[files.path]))
    return copied
