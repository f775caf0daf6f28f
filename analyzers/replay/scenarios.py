"""Changes of a replayed job: what would a step take if communication were free, if no rank were late, and so on.

A scenario is written as ``NAME`` or ``NAME=VALUE``. Each one changes durations, or whether ranks wait for each other,
and leaves everything else as measured. Effects on a library's choice of kernels, on clocks or on memory are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable

from perfscope.analyzers.replay.changes import Scenario
from perfscope.analyzers.replay.job_graph import JobGraph
from perfscope.errors import UsageError
from perfscope.tables.trace import Work

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "communication-free", "[AXIS]", "communication takes no time", "communication_changes", "free_communication"
    ),
    Scenario(
        "perfect-overlap",
        "",
        "all communication is hidden behind computation",
        "communication_changes",
        "overlap_perfectly",
    ),
    Scenario(
        "faster-communication",
        "[AXIS:]X",
        "transfers are X times faster",
        "communication_changes",
        "faster_communication",
    ),
    Scenario("bucket", "MIB", "DDP reduces gradients in buckets of this size", "buckets", "resize_buckets"),
    Scenario("launch-free", "", "the host launches without taking time (CUDA graphs)", "host_changes", "free_launches"),
    Scenario("data-loading-free", "", "the host never waits for data", "host_changes", "free_data_loading"),
    Scenario("no-stragglers", "", "no rank is slower than the others", "rank_changes", "remove_stragglers"),
    Scenario(
        "median-device", "RANK", "the device of a rank is as fast as the others'", "rank_changes", "take_median_device"
    ),
    Scenario("median-host", "RANK", "the host of a rank is as fast as the others'", "rank_changes", "take_median_host"),
    Scenario(
        "faster-kernel",
        "TEXT:X",
        "kernels with this text in their name are X times faster",
        "kernel_changes",
        "speed_up_kernels",
    ),
    Scenario(
        "faster-operator",
        "TEXT:X",
        "what these operators launch is X times faster",
        "kernel_changes",
        "speed_up_operators",
    ),
    Scenario(
        "faster-module", "PATH:X", "what these modules launch is X times faster", "kernel_changes", "speed_up_modules"
    ),
    Scenario(
        "recomputation-off", "", "activations are kept, not computed again", "kernel_changes", "drop_recomputation"
    ),
    Scenario("accumulation", "K", "a step accumulates the gradients of K micro-batches", "accumulation", "accumulate"),
    Scenario("microbatches", "M", "a step has M micro-batches", "pipeline_changes", "change_micro_batches"),
    Scenario(
        "schedule", "NAME[:CHUNKS]", "the pipeline follows another schedule", "pipeline_changes", "change_schedule"
    ),
)
#: Scenarios that need the operators of the host, with what joins them with their backward passes.
_OF_OPERATORS = ("faster-operator", "faster-module")


def needs_operators(texts: Iterable[str]) -> bool:
    """Whether some of these scenarios need the operators of the host."""
    return any(text.partition("=")[0] in _OF_OPERATORS for text in texts)


def parse_scenario(text: str) -> tuple[Scenario, str]:
    """The scenario that a text names, and its value.

    Raises:
        UsageError: There is none of that name.
    """
    name, _, value = text.partition("=")
    for scenario in SCENARIOS:
        if scenario.name == name:
            if not value and scenario.needs_value:
                raise UsageError(f"{name} needs a value: {name}={scenario.value}")
            if value and not scenario.value:
                raise UsageError(f"{name} takes no value")
            return scenario, value
    names = ", ".join(scenario.name for scenario in SCENARIOS)
    raise UsageError(f"there is no scenario {name!r}", hint=f"scenarios: {names}")


def offered_scenarios(job: JobGraph) -> list[tuple[Scenario, str]]:
    """The scenarios that make sense for a job without being asked for: those that leave a step's work as it is."""
    texts = ["launch-free", "data-loading-free", "recomputation-off"]
    if any((graph.work == Work.COMMUNICATION).any() for graph in job.ranks):
        texts += ["communication-free", "perfect-overlap", "faster-communication=2"]
        texts += [f"bucket={size}" for size in _BUCKETS_MIB]
        roles = sorted({group.role for graph in job.ranks for group in graph.groups} - {""})
        texts += [f"communication-free={role}" for role in roles if len(roles) > 1]
    if len(job.ranks) > 1:
        texts.append("no-stragglers")
        texts += [f"median-{part}={graph.rank}" for graph in job.ranks[:_MOST_RANKS] for part in ("device", "host")]
    if job.is_pipeline:
        texts += [f"schedule={name}" for name in _SCHEDULES]
    return [parse_scenario(text) for text in texts]


_BUCKETS_MIB = (5, 100)
#: Others need transfers that overtake each other: whoever asks for them is told how little the answer is worth.
_SCHEDULES = ("gpipe", "1f1b")
_MOST_RANKS = 8
