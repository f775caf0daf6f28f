"""Findings about a rank that makes the others wait, by why it comes last: its host, its device, or its work."""

from __future__ import annotations

from functools import partial

from perfscope.analyzers.findings.facts import Evidence
from perfscope.analyzers.findings.finding import Account, Cause, Confidence, Rule, Rules
from perfscope.analyzers.findings.options import MEGATRON, TORCH, option
from perfscope.analyzers.findings.training import Training
from perfscope.constants import NS_PER_US, US_PER_MS

HOST, DEVICE, WORK, OTHER = "host", "device", "work", "network"
#: What makes this rank as fast as the others.
_SCENARIOS = {HOST: "median-host={}", DEVICE: "median-device={}", WORK: "median-device={}"}
#: How a sentence goes on where only a replay tells why a rank is last.
_BY_REPLAY = {HOST: ", whose host is late by the replay", DEVICE: ", whose device is slower by the replay"}
_HOST_PARTS = ("host", "not_shown", "synchronisation", "data_loading", "copy")
#: A difference of pace or work that is smaller explains nothing.
_NOTICEABLE = 0.02
#: On processors a rank is late that is later by this share of a step, for a reason that no other finding is about.
_LEAST_SHARE = 0.25
_HOST_CAUSES = {
    "contention": "had no processor",
    "faults": "touched new memory",
    "kernel": "spent more time in the operating system",
    "blocked": "slept or waited outside of collectives",
    "compute": "computed longer",
    "work": "had more work",
}
#: What the others wait is explained where the rank did that much of it longer.
_EXPLAINED = 0.3
_LEAST_UNEXPLAINED = 0.05
#: A rank whose device computes for less of a step waits for its own host.
_BUSY = 0.5


def find_straggler(training: Training, kind: str) -> Cause | None:
    """The rank that the others wait for, where this is why."""
    if training.pipeline:
        return None  # stages wait for each other by the order of their passes
    straggler = _on_devices(training) if training.has_device else _on_hosts(training)
    return straggler[1] if straggler is not None and straggler[0] == kind else None


def _on_devices(training: Training) -> tuple[str, Cause] | None:
    facts = training.facts
    straggler = facts.number("/stragglers/straggler")
    if straggler is None:
        return None
    row = next(row for row in facts.rows("/stragglers/ranks") if facts.number(f"{row}/rank") == straggler)
    steps = max(len(facts.rows("/stragglers/compared/steps")), 1)
    cost_us = (facts.amount(f"{row}/caused_wait_us") - facts.amount(f"{row}/wait_us")) / steps
    excess = _excess_of(training, straggler)
    parts = {part: facts.amount(f"{excess}/{part}") for part in (*_HOST_PARTS, "compute")} if excess else {}
    largest = max(parts, key=lambda part: parts[part], default="")
    kind = OTHER
    if largest == "compute" and parts[largest] > 0:
        pace, work = facts.number(f"{row}/relative_compute"), facts.number(f"{row}/relative_work")
        is_more = work is not None and work - 1 > max(_NOTICEABLE, 1 - (pace or 1.0))
        # Kernels of matrix products have the same grid whatever they multiply: they only look like the same work.
        is_more = is_more or _takes_in_more(training, straggler)
        kind = WORK if is_more or pace is None or pace > 1 - _NOTICEABLE else DEVICE
    elif largest and parts[largest] > 0:
        kind = HOST
    exposed_us = min(cost_us, max((rank.communication for rank in training.ranks_but(straggler)), default=cost_us))
    if kind != OTHER and parts[largest] / steps < _EXPLAINED * exposed_us:
        kind = OTHER
    if kind == OTHER and exposed_us < _LEAST_UNEXPLAINED * (training.step_us or 0.0):
        return None
    if largest == "host":
        least_compute_us = min((rank.compute for rank in training.ranks_but(straggler)), default=0.0)
        if least_compute_us < _BUSY * (training.step_us or 0.0):
            return None  # all hosts launch too slowly, and one of them is always the last
    detail = f", in which it {_describe(largest)} longer than they do" if kind != OTHER else ""
    if kind == OTHER:
        kind = _by_replay(training, int(straggler), cost_us)
        detail = _BY_REPLAY.get(kind, "")
    evidence = Evidence(
        f"The others wait {cost_us / US_PER_MS:.2f} ms of a step for rank {straggler:.0f}{detail}.",
        (f"{row}/caused_wait_us", *((f"{excess}/{largest}",) if excess and largest else ())),
    )
    low = min(cost_us, max(parts.values(), default=cost_us) / steps) if parts else 0.0
    return kind, Cause(
        cost_us, (max(low, 0.0), cost_us), (int(straggler),), (evidence,),
        _advice(training, kind),
        Confidence.HIGH if kind != OTHER else Confidence.LOW, scenario=_SCENARIOS.get(kind, "").format(int(straggler)),
    )  # fmt: skip


def _takes_in_more(training: Training, straggler: float) -> bool:
    """Whether the rank takes in more tokens or samples than each of the others."""
    facts = training.facts
    for name in ("tokens", "samples"):
        counts = {facts.rank(row): facts.amount(f"{row}/means/{name}") for row in facts.rows("/steps/ranks")}
        own = counts.pop(int(straggler), 0.0)
        if counts and min(counts.values()) > 0 and own > (1 + _NOTICEABLE) * max(counts.values()):
            return True
    return False


def _by_replay(training: Training, straggler: int, cost_us: float) -> str:
    """What a rank is last by where no part of its time tells: which of its changes regains most of what it costs."""
    saved_us = {}
    for kind in (HOST, DEVICE):
        answer = training.regain(_SCENARIOS[kind].format(straggler))
        if answer is not None and answer.saved_ns is not None:
            saved_us[kind] = answer.saved_ns / NS_PER_US
    best = max(saved_us, key=lambda kind: saved_us[kind], default=OTHER)
    return best if saved_us and saved_us[best] >= _EXPLAINED * cost_us else OTHER


def _excess_of(training: Training, straggler: float) -> str:
    """Where it stands what the straggler did longer than the others; empty where nothing does."""
    facts = training.facts
    for group in facts.rows("/stragglers/groups"):
        for row in facts.rows(f"{group}/ranks"):
            if facts.number(f"{row}/rank") == straggler and facts.value(f"{row}/excess_us") is not None:
                return f"{row}/excess_us"
    return ""


def _describe(part: str) -> str:
    return {
        "compute": "computes",
        "not_shown": "does what the trace does not show (a sleep, Python)",
        "data_loading": "loads data",
        "synchronisation": "waits in synchronisations",
        "copy": "copies",
    }.get(part, "launches late")


def _advice(training: Training, kind: str) -> str:
    if kind == HOST:
        return "Look at what this rank's process does besides (logging, evaluation, saves), its cores and their load."
    if kind == DEVICE:
        return "Look at this GPU's clock and temperature in the sections on GPUs; try another one in its place."
    if kind == WORK:
        return "Give all ranks equal work: " + option(
            training,
            {
                MEGATRON: "samples of equal length, or `--use-packed-sequences`.",
                TORCH: "a sampler that balances lengths over ranks, and equal batches.",
            },
        )
    return "The trace does not show why; compare its links with `nvidia-smi topo -m` and `nccl-tests`."


def _on_hosts(training: Training) -> tuple[str, Cause] | None:
    """The rank that is late in most steps by the records of all steps, where waits for other ranks were timed."""
    facts, least_us = training.facts, _LEAST_SHARE * (training.step_us or 0.0)
    steps = facts.amount("/late_ranks/compared_steps")
    for row in facts.rows("/late_ranks/late") if facts.is_true("/late_ranks/waits_timed") else ():
        cause, cost_us = str(facts.value(f"{row}/cause")), facts.amount(f"{row}/cost_ns") / steps / NS_PER_US
        if cause not in _HOST_CAUSES or not facts.is_true(f"{row}/persistent") or cost_us < least_us:
            continue
        rank = facts.rank(row)
        evidence = Evidence(
            f"Rank {rank} is {cost_us / US_PER_MS:.2f} ms of a step later than the others: it {_HOST_CAUSES[cause]}.",
            (f"{row}/cost_ns", "/late_ranks/compared_steps"),
        )
        kind = WORK if cause == "work" else HOST
        low_us = facts.amount(f"{row}/cause_ns") / steps / NS_PER_US
        return kind, Cause(
            cost_us, (min(low_us, cost_us), cost_us), (rank,), (evidence,), _advice(training, kind), Confidence.MEDIUM
        )
    return None


_ACCOUNTS = Account.COMMUNICATION, Account.HOST
RULES: Rules = (
    Rule("straggler_host", "A rank whose host is late", _ACCOUNTS, partial(find_straggler, kind=HOST)),
    Rule("straggler_device", "A rank whose device is slower", _ACCOUNTS[:1], partial(find_straggler, kind=DEVICE)),
    Rule("straggler_work", "A rank with more work", _ACCOUNTS[:1], partial(find_straggler, kind=WORK)),
    Rule("straggler_network", "A rank that comes last", _ACCOUNTS[:1], partial(find_straggler, kind=OTHER)),
)
