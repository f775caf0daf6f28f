"""What a plan takes from a run: its layout and batch, its precision, and its peak of memory."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from perfscope.analyzers import steps as step_times
from perfscope.analyzers.plan.memory import States
from perfscope.analyzers.steps import StepTimes
from perfscope.analyzers.tflops.precision import read_signs
from perfscope.analyzers.tflops.trained_run import count_step_tokens
from perfscope.errors import MissingInput
from perfscope.tables.run import Run

_16_BIT = ("bf16", "fp16")
_DEEPSPEED, _MEGATRON = "deepspeed", "megatron"
_OPTIMIZERS_WITH_COPIES = ("Float16", "DistributedOptimizer", "BF16_Optimizer", "FP16_", "DeepSpeedZeroOptimizer")


class MeasuredRun(NamedTuple):
    """What a run recorded; None for what it did not record.

    Attributes:
        gpus: Ranks of the job.
        tensor, pipeline, context: Degrees of parallelism, 1 where no rank recorded a coordinate above 0.
        zero: Stage of ZeRO.
        seq_len: Tokens in a sequence.
        micro_batch: Sequences of one forward pass on one data-parallel rank.
        global_batch: Sequences of a step over all ranks.
        states: Precision of weights, gradients and optimizer, as ``States`` of ``memory`` names it.
        memory_peak_bytes: Peak memory of the tensors of any rank.
        notes: Which of these are unknown, and why.
    """

    gpus: int
    tensor: int
    pipeline: int
    context: int
    zero: int | None
    seq_len: int | None
    micro_batch: int | None
    global_batch: int | None
    states: States | None
    memory_peak_bytes: int | None
    notes: tuple[str, ...]


def measure_run(run: Run) -> MeasuredRun:
    """Gather what a run recorded.

    Raises:
        MissingInput: No rank completed a training step.
    """
    times = step_times.analyze(run)
    devices = run.devices
    assert devices is not None, "steps are of ranks"
    notes = []
    tokens: int | None = None
    seq_len: int | None = None
    try:
        tokens, seq_len = count_step_tokens(times)
    except MissingInput as missing:
        notes.append(f"the tokens of a step are unknown: {missing.problem}")
    zero = next((model.zero_stage for model in run.models if model.zero_stage is not None), None)
    is_deepspeed, is_megatron = (times.source.startswith(framework) for framework in (_DEEPSPEED, _MEGATRON))
    if zero is None and is_deepspeed:
        notes.append("the run did not record its ZeRO stage: 0 is assumed unless --zero states it")
    peak_bytes = [rank.memory_peak_bytes for rank in times.ranks if rank.memory_peak_bytes]
    return MeasuredRun(
        gpus=devices,
        tensor=_degree(run, "tp"),
        pipeline=_degree(run, "pp"),
        context=_degree(run, "cp"),
        zero=zero,
        seq_len=seq_len,
        micro_batch=_micro_batch(run, times),
        global_batch=round(tokens / seq_len) if tokens and seq_len else None,
        states=_states(run, is_megatron=is_megatron, keeps_copies=is_deepspeed or is_megatron),
        memory_peak_bytes=max(peak_bytes, default=None),
        notes=tuple(notes),
    )


def _degree(run: Run, axis: str) -> int:
    return 1 + max((rank.parallel.get(axis, 0) for rank in run.ranks), default=0)


def _micro_batch(run: Run, times: StepTimes) -> int | None:
    """Sequences of one forward pass, where every step records its number of forward passes."""
    samples = next((rank.samples for rank in times.ranks if rank.samples), None)
    passes = [int(count) for table in run.steps for count in table.micro_batches.compressed()]
    return max(1, round(samples / median(passes))) if samples and passes else None


def _states(run: Run, *, is_megatron: bool, keeps_copies: bool) -> States | None:
    """The training precision, from the types of the weights and of the matrix products.

    ``keeps_copies``: the framework has an fp32 copy of 16-bit weights, whatever its optimizer is called.
    """
    model = next(iter(run.models), None)
    if model is None or model.weights_dtype is None:
        return None
    if model.weights_dtype in _16_BIT:
        if is_megatron:  # which keeps gradients in fp32
            return States.MEGATRON
        return States.MIXED if keeps_copies or _keeps_copies(model.optimizer) else States.PURE
    return States.AUTOCAST if read_signs(model)[0] in _16_BIT else States.FP32


def _keeps_copies(optimizer: str | None) -> bool:
    """Whether it is an optimizer of Megatron-core or DeepSpeed that keeps an fp32 copy of the weights."""
    return optimizer is not None and any(name in optimizer for name in _OPTIMIZERS_WITH_COPIES)
