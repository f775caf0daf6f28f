"""The budget of a step against an oracle that paints every nanosecond, and on real traces."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.breakdown import measure as measure_breakdown
from perfscope.analyzers.budget import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    IDLE,
    StepBudget,
    Term,
    analyze,
    apportion,
    measure,
)
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS, Events, Trace
from tests.conftest import ROOT
from tests.sources.traces.making import Event, call, copy, kernel, step, write

NEEDS = BASIC_EVENTS | Events.OPERATOR_TIMES
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def written(folder: Path, events: list[Event]) -> Trace:
    return read_trace(write(folder / "rank0.pt.trace.json", events), NEEDS)


def random_events(seed: int) -> tuple[list[Event], list[tuple[str, int, int, int]]]:
    """Three steps of 1,000 ns whose kernels overlap on several streams, and (name, step, start, end) of each."""
    generator = np.random.default_rng(seed)
    events, facts = [], []
    for number in range(3):
        begin = 1000 * number
        events.append(step(number + 1, begin, begin + 1000))
        for index in range(12):
            name = str(generator.choice(["gemm", "norm", NCCL, "Memcpy HtoD", "Memset"]))
            start = begin + 20 + int(generator.integers(0, 850))
            end = start + int(generator.integers(1, 120))
            launch = 100 * number + index
            events.append(call("cudaLaunchKernel", begin + index, begin + index + 1, launch=launch))
            make = copy if name.startswith("Mem") else kernel
            events.append(make(name, start, end, launch=launch, stream=7 + index % 4))
            facts.append((name, number, start, end))
    return events, facts


def painted(facts: list[tuple[str, int, int, int]]) -> list[Counter[str]]:
    """For each full step how many nanoseconds belong to each name: compute first, then communication, then copies."""
    ends = [max(end for _, step_of, _, end in facts if step_of == number) for number in range(3)]
    steps = []
    for number in range(2):
        counts: Counter[str] = Counter()
        for moment in range(ends[number], ends[number + 1]):
            here = [fact for fact in facts if fact[2] <= moment < fact[3]]
            computing = sorted(
                (fact[2], index, fact[0]) for index, fact in enumerate(here) if fact[0] in ("gemm", "norm")
            )
            names = {fact[0] for fact in here}
            if computing:
                first = [fact for fact in computing if fact[0] == computing[0][0]]
                counts["compute" if len({name for _, _, name in first}) > 1 else first[0][2]] += 1
            elif NCCL in names:
                counts[NCCL] += 1
            elif names:
                counts["copy"] += 1
            else:
                counts["idle"] += 1
        steps.append(counts)
    return steps


@pytest.mark.parametrize("seed", range(8))
def test_every_nanosecond_belongs_to_the_term_that_painting_gives_it(tmp_path: Path, seed: int) -> None:
    events, facts = random_events(seed)
    measured = measure(written(tmp_path, events))
    assert measured is not None
    (budget,) = measured
    assert budget.steps == (2, 3)  # nothing shows where the first one begins
    for row, counts in enumerate(painted(facts)):
        assert budget.period_ns[row] == counts.total()
        totals: Counter[str] = Counter()
        for term, times in budget.terms.items():
            totals[term.kind] += int(times[row])
        assert totals[COMMUNICATION] == counts[NCCL]
        assert totals[COPY] == counts["copy"]
        assert totals[IDLE] == counts["idle"]
        assert totals[COMPUTE] == counts["gemm"] + counts["norm"] + counts["compute"]
        if not counts["compute"]:  # no two kernels that begin together
            for name in ("gemm", "norm"):
                of_name = budget.terms.get(Term(COMPUTE, name))
                assert (0 if of_name is None else of_name[row]) == counts[name]


def test_a_single_step_is_its_own_work(tmp_path: Path) -> None:
    events = [
        step(4, 0, 900),
        call("cudaLaunchKernel", 10, 20, launch=1),
        kernel("gemm", 100, 300, launch=1),
    ]
    (budget,) = measure(written(tmp_path, events)) or ()
    assert budget.steps == (4,)
    assert {term: times.tolist() for term, times in budget.terms.items()} == {Term(COMPUTE, "gemm"): [200]}


def test_the_first_step_counts_from_the_end_of_what_ran_before(tmp_path: Path) -> None:
    events = [
        call("cudaLaunchKernel", 1, 2, launch=1),
        kernel("before", 50, 300, launch=1),
        step(1, 310, 500),
        call("cudaLaunchKernel", 380, 390, launch=2),
        kernel("gemm", 400, 500, launch=2),
    ]
    (budget,) = measure(written(tmp_path, events)) or ()
    assert budget.steps == (1,)
    assert budget.period_ns.tolist() == [200]
    assert budget.terms[Term(COMPUTE, "gemm")].tolist() == [100]
    assert sum(int(times[0]) for term, times in budget.terms.items() if term.kind == IDLE) == 100


@pytest.mark.parametrize(
    "path", sorted((ROOT / "fixtures" / "traces" / "ddp4").glob("*.gz")), ids=lambda path: path.name
)
def test_the_kinds_of_a_real_trace_are_those_of_the_breakdown(path: Path) -> None:
    """Over the whole trace, without its steps: both measure the same window, in different ways."""
    trace = read_trace(path, NEEDS)
    (budget,) = measure(trace) or ()
    (parts,) = measure_breakdown(trace)
    step_parts = {part.name: part.parts for part in parts.steps}
    for row, number in enumerate(budget.steps):
        compute = sum(int(times[row]) for term, times in budget.terms.items() if term.kind == COMPUTE)
        # A step's window ends with its last event; the budget goes on to the next step, in which little computes.
        assert compute == pytest.approx(step_parts[f"ProfilerStep#{number}"].compute, rel=0.01)


def test_means_are_whole_and_add_up() -> None:
    assert sum(apportion([7, 8, 9, 1], 3)) == 25 // 3
    kernel = Term(COMPUTE, "k")
    budgets = [
        StepBudget(0, "", "", (1, 2), np.array([10, 11]), {kernel: np.array([10, 11])}, {kernel: 3}) for _ in range(2)
    ]
    mean = analyze([tuple(budgets)])
    assert (mean.step_ns, mean.times, mean.calls) == (10, {kernel: 10}, {kernel: 1.5})


def test_terms_that_do_not_add_up_are_an_error() -> None:
    with pytest.raises(AssertionError, match="do not add up"):
        StepBudget(0, "trace", "", (1,), np.array([10]), {Term(COMPUTE, "k"): np.array([9])}, {})
