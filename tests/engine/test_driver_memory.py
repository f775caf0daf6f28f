"""What a rank costs the driver does not grow with the ranks, and what can be merged costs the same for any number."""

from __future__ import annotations

import pickle

from benchmarks.synthetic_ranks import Made, make_job
from perfscope.engine.measurements import _Answers, _merge
from perfscope.engine.registry import analyzers

#: Three steps with 114 collectives; 12 kB are these.
MOST_BYTES_A_RANK = 20_000


def test_a_rank_costs_the_same_among_few_and_among_many() -> None:
    mergers = {analyzer.name: analyzer.merger() for analyzer in analyzers()}
    merging = {name for name, merge in mergers.items() if merge is not None}
    assert merging
    kept, merged = {}, {}
    for ranks in (64, 1024):
        answers, sizes = _Answers(), []
        for measured in pickle.loads(pickle.dumps(tuple(Made(make_job(ranks))))):
            _merge(answers, measured, mergers)
            assert not merging & set(measured.partials)
            sizes.append(len(pickle.dumps(measured)))
        kept[ranks] = sum(sizes) / ranks
        merged[ranks] = sum(len(pickle.dumps(answers.merged[name])) for name in merging & set(answers.merged))
    assert kept[1024] < 1.02 * kept[64]
    assert kept[1024] < MOST_BYTES_A_RANK
    assert merged[1024] < 1.05 * merged[64]
