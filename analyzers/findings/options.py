"""The real names of options, in the framework that ran."""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.analyzers.findings.training import Training

DEEPSPEED, MEGATRON, TRAINER, LIGHTNING, FSDP, DDP, TORCH = (
    "deepspeed", "megatron", "trainer", "lightning", "fsdp", "ddp", "torch",
)  # fmt: skip
_SHARDED = 3
#: What the step boundary says of the framework.
_BY_SOURCE = {
    "deepspeed": DEEPSPEED,
    "deepspeed_pipeline": DEEPSPEED,
    "megatron": MEGATRON,
    "megatron_optimizer": MEGATRON,
    "torchtitan": FSDP,
}
_BY_NAME = {"transformers": TRAINER, "lightning": LIGHTNING}


def frameworks_of(training: Training) -> tuple[str, ...]:
    """What trains, the outermost first: its options are the ones that a user sets."""
    facts = training.facts
    names = [_BY_SOURCE[source]] if (source := facts.text("/steps/source")) in _BY_SOURCE else []
    loaded = facts.value("/setup/ranks/0/frameworks")
    names += [_BY_NAME[name] for name in _BY_NAME if isinstance(loaded, (list, tuple)) and name in loaded]
    if facts.value("/setup/ranks/0/ddp") is not None:
        names.append(DDP)
    elif facts.number("/setup/ranks/0/zero_stage") == _SHARDED and DEEPSPEED not in names:
        names.append(FSDP)
    return (*names, TORCH)


def option(training: Training, by_framework: Mapping[str, str]) -> str:
    """The text for the outermost framework that has one."""
    return next((by_framework[name] for name in frameworks_of(training) if by_framework.get(name)), "")


def fetches_in_turn(training: Training) -> bool:
    """Whether ZeRO 3 fetches parameters between the products: its host then waits for them outside of operators."""
    facts, engine = training.facts, "/setup/ranks/0/engine/zero_optimization"
    return facts.number(f"{engine}.stage") == _SHARDED and facts.value(f"{engine}.overlap_comm") is False
