"""Megatron-LM and its children: Megatron-DeepSpeed, GPT-NeoX, Megatron-core."""

from __future__ import annotations

from functools import partial

from perfscope.sources.joblog.formats.megatron import records, saves, setup
from perfscope.sources.joblog.formats.megatron.bulk import split_block
from perfscope.sources.joblog.formats.megatron.state import MegatronState
from perfscope.sources.joblog.log_format import BulkReading, Format, Role, StepTimeSource
from perfscope.sources.joblog.step_times import timer_lines


def _close(state: MegatronState) -> None:
    setup.conclude(state)
    records.conclude(state)


def _framework_of(state: MegatronState) -> str:
    if state.is_gpt_neox:
        return "gpt-neox"
    return "megatron-deepspeed" if "deepspeed" in state.log.frameworks else "megatron-lm"


FORMAT = Format(
    framework="megatron",
    state=MegatronState,
    rules=(*setup.RULES, *saves.RULES, *timer_lines.MEGATRON_RULES, records.RULE),
    sources=(StepTimeSource(records.SOURCE),),
    close=_close,
    framework_of=_framework_of,
    role=Role.LIBRARY,
    bulk=BulkReading(
        (records.SOURCE,), split_block, records.add_plain_lines, split_rank=partial(split_block, keeps_lines=True)
    ),
)
