"""The inputs of a plan: what was typed, and what a DeepSpeed config and a run supply where an option was not typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from perfscope.analyzers.planning.memory import (
    Precision,
    autocast_precision,
    full_precision,
    mixed_precision,
    pure_16bit,
)
from perfscope.commands.options.common import require_positive
from perfscope.commands.options.groups import fill_missing, spell_option
from perfscope.commands.options.peaks import Dtype, PeakOptions
from perfscope.commands.options.training import DEFAULT_CHECKPOINTING, DEFAULT_SEQ_LEN, TrainingOptions
from perfscope.commands.plan.options import ConventionName, DurationOptions, LayoutOptions, MemoryOptions, States
from perfscope.constants import S_PER_DAY, S_PER_HOUR
from perfscope.errors import UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.sources.models.deepspeed_config import read_deepspeed_config
from perfscope.units import parse_tokens

_FP32_BYTES, _16_BIT_BYTES = 4, 2
_PRECISIONS = {States.AUTOCAST: autocast_precision, States.PURE: pure_16bit, States.FP32: full_precision}
#: How a value that a file supplies is reported, by its option.
_PHRASES = {
    "checkpointing": "activation checkpointing {}",
    "seq_len": "sequence length {}",
    "zero": "ZeRO stage {}",
    "tp": "tensor parallel {}",
    "pp": "pipeline parallel {}",
    "cp": "context parallel {}",
    "micro_batch": "micro-batch {}",
    "gbs": "global batch {}",
    "dtype": "matrix products in {}",
    "states": "training precision {}",
    "fp32_gradients": "fp32 gradients",
}


class Target(NamedTuple):
    """What the duration is computed from; of tokens, speed and time the missing one is solved for.

    Attributes:
        tokens: Tokens to train on.
        tflops_per_gpu: TFLOPs per GPU by ``convention``.
        seconds: Duration.
        convention: The convention of the TFLOPs.
    """

    tokens: int | None
    tflops_per_gpu: float | None
    seconds: float | None
    convention: ConventionName


def parse_target(options: DurationOptions) -> Target:
    """Parse the options of the duration.

    Raises:
        UsageError: A value is not positive, or all three are given.
    """
    target = Target(
        tokens=parse_tokens(options.tokens) if options.tokens else None,
        tflops_per_gpu=_require_positive_number("--tflops", options.tflops),
        seconds=_parse_duration(options.days, options.hours),
        convention=options.convention,
    )
    if target.tokens and target.tflops_per_gpu and target.seconds:
        raise UsageError("--tokens, --tflops and --days determine each other", hint="leave one of them out")
    return target


def _parse_duration(days: float | None, hours: float | None) -> float | None:
    if days is None and hours is None:
        return None
    day_count = _require_positive_number("--days", days) or 0.0
    return day_count * S_PER_DAY + (_require_positive_number("--hours", hours) or 0.0) * S_PER_HOUR


def _require_positive_number(option: str, value: float | None) -> float | None:
    if value is not None and not 0 < value < float("inf"):
        raise UsageError(f"{option} must be positive, not {value:g}")
    return value


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """What a plan is computed from beside the model.

    Attributes:
        gpus: Number of GPUs.
        target: Tokens, speed and time.
        training: Sequence length and activation checkpointing; None for what is not known.
        layout: Degrees of parallelism and batch; None for what is not known.
        memory: Implementations and precision that the memory depends on.
        peak: The GPU and the data type; None for what is not known.
        offload: States that are kept off the GPU.
        read: What was read from files, one phrase for each value.
        model_seq_len: Tokens in a sequence of the model's pre-training; None where unknown.
    """

    gpus: int
    target: Target
    training: TrainingOptions
    layout: LayoutOptions
    memory: MemoryOptions
    peak: PeakOptions
    offload: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    model_seq_len: int | None = None

    def __post_init__(self) -> None:
        for name, value in (*self.training._asdict().items(), *self.layout._asdict().items()):
            if isinstance(value, int) and not isinstance(value, bool) and name != "zero":
                require_positive(spell_option(name), value)

    @property
    def seq_len(self) -> int:
        """Tokens in a sequence, with the default."""
        if self.training.seq_len is not None:
            return self.training.seq_len
        return self.model_seq_len or DEFAULT_SEQ_LEN

    @property
    def checkpointing(self) -> Checkpointing:
        """Which activations are recomputed, with the default."""
        return self.training.checkpointing or DEFAULT_CHECKPOINTING

    def states(self, dtype: str) -> States:
        """The training precision, with the default for a data type."""
        return self.memory.states or (States.FP32 if dtype in (Dtype.FP32, Dtype.TF32) else States.MIXED)

    def precision(self, dtype: str) -> Precision:
        """Bytes per parameter of each state, where matrix products are in a data type."""
        states = self.states(dtype)
        if states is States.MIXED:
            return mixed_precision(self.memory.optimizer, _FP32_BYTES if self.memory.fp32_gradients else _16_BIT_BYTES)
        return _PRECISIONS[states](self.memory.optimizer)

    def fill_missing(self, supplied: Mapping[str, object]) -> PlanInputs:
        """Take from a file the values that were not typed, by the names of their options."""
        return replace(
            self,
            training=fill_missing(self.training, supplied),
            layout=fill_missing(self.layout, supplied),
            memory=fill_missing(self.memory, supplied),
            peak=fill_missing(self.peak, supplied),
        )

    def describe_missing(self, supplied: Mapping[str, object]) -> str:
        """Phrases for the values that ``fill_missing`` would take."""
        values = {
            **self.training._asdict(), **self.layout._asdict(), **self.memory._asdict(), **self.peak._asdict(),
        }  # fmt: skip
        return ", ".join(
            _PHRASES[name].format(value)
            for name, value in supplied.items()
            if name in _PHRASES and value is not None and values[name] is None
        )


def supply_from_deepspeed_config(inputs: PlanInputs, path: Path) -> PlanInputs:
    """Take missing values from a DeepSpeed config.

    Raises:
        SourceError: The file cannot be read.
        UsageError: It is not a DeepSpeed config, or a value in it is not possible.
    """
    config = read_deepspeed_config(path)
    phrases = [f"ZeRO stage {config.zero_stage}, {config.dtype}"]
    if config.micro_batch:
        phrases.append(f"micro-batch {config.micro_batch}")
    if config.offload:
        phrases.append(f"{' and '.join(config.offload)} off the GPU")
    completed = inputs.fill_missing(
        {
            "zero": config.zero_stage,
            "micro_batch": config.micro_batch,
            "gbs": config.train_batch_size,
            "dtype": Dtype(config.dtype),
        }
    )
    return replace(completed, offload=config.offload, read=tuple(f"{phrase}, from {path}" for phrase in phrases))
