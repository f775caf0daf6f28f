"""The state of the Megatron format between the lines of one log."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfscope.sources.joblog.log_format import FormatState


@dataclass(slots=True)
class MegatronState(FormatState):
    """What is collected over several of Megatron's lines.

    Attributes:
        consumed_samples: Samples consumed up to the last record that was read, be it another rank's.
        consumed_at: Its iteration.
        batch: The batch of the last record that states one.
        train_iterations: The run's last iteration, as the last record states it.
        is_gpt_neox: Some line is printed only by GPT-NeoX.
        shards: Parameters by tensor and pipeline rank.
        has_all_arguments: The printed arguments have come to their end.
        is_without_deepspeed: The arguments state that DeepSpeed is not used.
    """

    consumed_samples: int | None = None
    consumed_at: int | None = None
    batch: int | None = None
    train_iterations: int | None = None
    is_gpt_neox: bool = False
    shards: dict[tuple[int, ...], int] = field(default_factory=dict)
    has_all_arguments: bool = False
    is_without_deepspeed: bool = False
