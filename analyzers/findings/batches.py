"""Findings about batches: loaders that are too slow, batches that are not pinned, padding."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from perfscope.analyzers.findings.facts import Evidence, Facts
from perfscope.analyzers.findings.finding import Account, Basis, Cause, Confidence, Rule, Rules
from perfscope.analyzers.findings.options import LIGHTNING, MEGATRON, TORCH, TRAINER, option
from perfscope.analyzers.findings.training import RankStep, Training
from perfscope.constants import US_PER_MS, US_PER_S
from perfscope.report import percent

#: Ranks that wait less than this share of what the slowest one waits are not named.
_ALSO_SLOW = 0.5
#: Pads of a short last batch are no fault.
_FEWEST_PADDED = 0.1
_PREFETCH = 4
_PAGEABLE = "Pageable -> Device"


class _Wait(NamedTuple):
    """How long a step of a rank waits for the data loader, and where that is stated."""

    rank: int
    us: float
    pointer: str


def find_slow_loading(training: Training) -> Cause | None:
    """Training waits for data loaders: by the hooks, limited to the time that the device has left in a step."""
    facts = training.facts
    waits = tuple(_last_of_each(_recorded_waits(training)))
    if not any(wait.us for wait in waits):
        traced = (_Wait(rank.rank, rank.host.get("data_loading", 0.0), rank.idle_pointer) for rank in training.ranks)
        waits = tuple(_last_of_each(traced))
    slowest = max(waits, key=lambda wait: wait.us, default=None)
    if slowest is None or not slowest.us:
        return None
    cost_us = slowest.us
    ranks = tuple(sorted(wait.rank for wait in waits if wait.us >= _ALSO_SLOW * cost_us))
    text = f"A step waits {cost_us / US_PER_MS:.2f} ms for the data loader."
    if len(ranks) < len(waits):
        text += " The other ranks wait for these."
    evidence = [Evidence(text, (slowest.pointer,))]
    evidence += [_describe_loader(facts, row) for row in facts.rows("/setup/ranks/0/loaders")[:1]]
    low, high = cost_us, cost_us
    for row in facts.rows("/steps/ranks"):
        if facts.rank(row) == slowest.rank:
            low = min(facts.amount(f"{row}/means/data_wait_low_s") * US_PER_S, cost_us)
            high = max(facts.amount(f"{row}/means/data_wait_high_s") * US_PER_S, cost_us)
    workers = facts.number("/setup/ranks/0/loaders/0/workers")
    return Cause(
        cost_us,
        (low, high),
        ranks,
        tuple(evidence),
        _loading_advice(training, workers),
        scenario="data-loading-free",
        is_of_all_steps=bool(facts.rows("/steps/ranks")),
    )


def _recorded_waits(training: Training) -> Iterator[_Wait]:
    """The waits of each rank that the hooks recorded."""
    for row in training.facts.rows("/steps/ranks"):
        yield _Wait(training.facts.rank(row), _wait_us(training, row), f"{row}/means/data_wait_s")


def _last_of_each(waits: Iterable[_Wait]) -> Iterator[_Wait]:
    """One wait a rank: of several devices, which stand side by side, that of the last."""
    return (deque(of_rank, maxlen=1)[0] for _, of_rank in groupby(waits, lambda wait: wait.rank))


def _wait_us(training: Training, row: str) -> float:
    """The mean wait of a rank, as far as its device has nothing else to do meanwhile."""
    facts = training.facts
    wait_us = facts.amount(f"{row}/means/data_wait_s") * US_PER_S
    step_us = training.step_us or 0.0
    for rank in training.ranks:
        if rank.rank == facts.rank(row) and training.has_device:
            wait_us = min(wait_us, max(step_us - rank.compute - rank.copy, 0.0))
    return wait_us


def _describe_loader(facts: Facts, row: str) -> Evidence:
    workers = int(facts.amount(f"{row}/workers"))
    pinned = "pinned" if facts.is_true(f"{row}/pin_memory") else "not pinned"
    return Evidence(f"The DataLoader has {workers} workers; its batches are {pinned}.", (f"{row}/workers",))


def _loading_advice(training: Training, workers: float | None) -> str:
    now = "" if not workers else f" (now {int(workers)})"
    loader = "/setup/ranks/0/loaders/0"
    prefetch = "" if training.facts.amount(f"{loader}/prefetch") >= _PREFETCH else f", prefetch_factor={_PREFETCH}"
    is_persistent = training.facts.is_true(f"{loader}/persistent")
    persistent = "" if is_persistent else ", persistent_workers=True"
    return "Try " + option(
        training,
        {
            TRAINER: f"`dataloader_num_workers`{now} and `dataloader_prefetch_factor` of TrainingArguments.",
            MEGATRON: f"a larger `--num-workers`{now}.",
            LIGHTNING: f"more `num_workers`{now}{'' if is_persistent else ' and `persistent_workers=True`'} in the "
            "DataLoader.",
            TORCH: f"`DataLoader(num_workers=N{now}{prefetch}{persistent})`.",
        },
    )


def find_unpinned_copies(training: Training) -> Cause | None:
    """Batches are copied from pageable memory: the copy is slow, and the host waits for it."""
    facts = training.facts
    names = [row for row in facts.rows("/kernels/names") if _PAGEABLE in facts.text(f"{row}/name")]
    if not names or not training.ranks:
        return None
    blocked = [row for row in facts.rows("/calls/ranks") if facts.number(f"{row}/pageable/bytes")]
    if not blocked:
        return None
    row = max(blocked, key=lambda row: facts.amount(f"{row}/pageable/regained_us"))
    copied_us = training.exposed_copies_us(_PAGEABLE)
    regained_us = facts.amount(f"{row}/pageable/regained_us")
    size = facts.amount(f"{row}/pageable/bytes")
    evidence = Evidence(
        f"A step copies {size / 1e6:.1f} MB from memory that is not pinned, and its host is blocked for "
        f"{facts.amount(f'{row}/pageable/blocked_us') / US_PER_MS:.2f} ms.",
        (f"{row}/pageable/bytes", f"{row}/pageable/blocked_us", f"{names[0]}/name"),
    )
    loaders = facts.rows("/setup/ranks/0/loaders")
    if loaders and all(facts.is_true(f"{loader}/pin_memory") for loader in loaders):
        advice = "Batches are pinned; try `tensor.pin_memory().to(device, non_blocking=True)` on what else is copied."
    else:
        advice = "Try " + option(
            training,
            {
                TRAINER: "`dataloader_pin_memory=True` of TrainingArguments.",
                TORCH: "`DataLoader(pin_memory=True)` and `.to(device, non_blocking=True)`.",
            },
        )
    interval = min(copied_us, regained_us), regained_us + copied_us
    cost_us = max(regained_us, copied_us)
    return Cause(cost_us, interval, (facts.rank(row),), (evidence,), advice, basis=Basis.BOUND)


def find_padding(training: Training) -> Cause | None:
    """Attention masks say that many positions hold padding, which is computed like any other."""
    facts = training.facts
    rows = [row for row in facts.rows("/setup/ranks") if facts.number(f"{row}/padding/positions")]
    if not rows:
        return None
    shares = {row: facts.amount(f"{row}/padding/padded") / facts.amount(f"{row}/padding/positions") for row in rows}
    row = max(shares, key=lambda row: shares[row])
    busiest: RankStep | None = max(training.ranks, key=lambda rank: rank.compute, default=None)
    if shares[row] < _FEWEST_PADDED:
        return None
    compute_us = busiest.compute if busiest is not None else training.step_us or 0.0
    evidence = Evidence(
        f"{percent(shares[row]):.0f} % of the positions in {int(facts.amount(f'{row}/padding/batches'))} batches are "
        "padding.",
        (f"{row}/padding/padded", f"{row}/padding/positions"),
    )
    advice = "Try " + option(
        training,
        {
            TRAINER: "`train_sampling_strategy='group_by_length'` of TrainingArguments (`group_by_length=True` before "
            "version 5), and a collator that pads to the longest sample.",
            TORCH: "to put samples of similar length into a batch, or to pack several into one sequence.",
        },
    )
    cost_us = shares[row] * compute_us
    return Cause(
        cost_us, (cost_us / 2, cost_us), (), (evidence,), advice, confidence=Confidence.MEDIUM, basis=Basis.BOUND
    )


RULES: Rules = (
    Rule("slow_data_loading", "Slow data loading", (Account.HOST, Account.COMMUNICATION), find_slow_loading),
    Rule("unpinned_copies", "Unpinned copies", (Account.HOST,), find_unpinned_copies),
    Rule("padding", "Padding", (Account.COMPUTE,), find_padding),
)
