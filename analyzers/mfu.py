"""MFU and HFU of a run, from what the hooks recorded: the model's shapes, the tokens of a step, the time and the GPU.

MFU = operations per token x tokens/s / (GPUs x dense peak), by each of the conventions. The headline is
``megatron_core``, which counts what a causal model needs: weights of matrix products, half of the attention matrix, no
embedding table and no recomputation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.analyzers.flops.comparison import (
    Convention,
    Step,
    compare,
    describe_doubts,
    explain_spread,
    explain_window,
)
from perfscope.analyzers.flops.counter_check import CountedOperations, CounterCheck, check_by_counters
from perfscope.analyzers.flops.cross_check import CrossCheck, cross_check
from perfscope.analyzers.flops.operation_counts import Operations, doubt_twins
from perfscope.analyzers.flops.per_token import recomputed_products, recomputed_scores, scores_and_values
from perfscope.analyzers.flops.trained_run import (
    Device,
    Recomputation,
    TrainedModel,
    count_step_tokens,
    find_device,
    find_recomputation,
    find_trained_model,
)
from perfscope.analyzers.shared.doubt import UTILISATION_CAUSES, check_share
from perfscope.analyzers.shared.step_selection import TOO_FEW_STEPS, find_undisturbed
from perfscope.analyzers.steps import analyze as analyze_steps
from perfscope.constants import GIGA, NS_PER_S
from perfscope.errors import MissingInput
from perfscope.models.conventions import Checkpointing
from perfscope.models.parameter_counts import active_parameters
from perfscope.report import Column, Json, Section, in_unit, percent
from perfscope.tables.run import Run
from perfscope.tables.steps import Steps

HEADLINE = "megatron_core"
_TITLE = "MFU of steady-state steps"


@dataclass(frozen=True, slots=True)
class StepUtilisation:
    """An undisturbed step: its number, TFLOPs per GPU and MFU by the headline convention."""

    step: int
    tflops_per_gpu: float
    mfu: float | None


@dataclass(frozen=True, slots=True)
class Utilisation:
    """The share of the GPUs' peak that the run used.

    Attributes:
        conventions: The step time by every convention.
        steps: Each undisturbed step, by the headline convention.
        trained: The model that was counted.
        device: The GPUs, and their peak.
        recomputation: What was counted as recomputed.
        counted: The operations of the traces beside the formula; absent where the traces state no shapes.
        notes: What a reader must know.
        has_gpu: Whether a rank trained on a GPU, or the user states a peak.
        by_counters: The share of the peak that the GPUs' own counters state.
    """

    conventions: tuple[Convention, ...]
    steps: tuple[StepUtilisation, ...]
    trained: TrainedModel
    device: Device
    recomputation: Recomputation
    counted: CrossCheck | None
    notes: tuple[str, ...]
    has_gpu: bool
    by_counters: CounterCheck

    @property
    def headline(self) -> Convention:
        """The step time by the headline convention."""
        return _find_headline(self.conventions)

    def data(self) -> Json:
        """The value of ``results.mfu``."""
        kind = self.recomputation.checkpointing
        return {
            "convention": HEADLINE,
            "mfu": self.headline.mfu,
            "tflops_per_gpu": self.headline.tflops_per_gpu,
            "conventions": [convention.data() for convention in self.conventions],
            "steps": [
                {"step": step.step, "tflops_per_gpu": step.tflops_per_gpu, "mfu": step.mfu} for step in self.steps
            ],
            "parameters": self.trained.parameters,
            "trainable_parameters": self.trained.trainable,
            "layers": self.trained.model.layers,
            "hidden": self.trained.model.hidden,
            "vocabulary": self.trained.model.vocabulary,
            "device": self.device.name,
            "gpu": self.device.gpu.name if self.device.gpu else None,
            "dtype": self.device.precision.main,
            "precision": self.device.precision.data(),
            "peak_tflops": self.device.peak_tflops,
            "doubt": self.headline.reason or None,
            "checkpointing": None if kind is None else str(kind),
            "recomputed_share": self.recomputation.share,
            "counted": self.counted.data() if self.counted else None,
            "by_counters": self.by_counters.data(),
            "notes": list(self.notes),
        }

    def sections(self) -> tuple[Section, ...]:
        """The conventions side by side, under the notes on what was counted."""
        columns = (
            Column("Convention"),
            Column("GFLOP/token", 4),
            Column("TFLOPs per GPU", 3),
            Column("MFU (%)", 2),
            Column("HFU (%)", 2),
        )
        rows = tuple(
            (
                convention.name,
                in_unit(convention.flops_per_token, GIGA),
                convention.tflops_per_gpu,
                percent(convention.mfu),
                percent(convention.hfu),
            )
            for convention in self.conventions
        )
        if not self.has_gpu:
            return (Section(_TITLE, notes=("No MFU: the run had no GPU. TFLOPs by convention are in --format json.",)),)
        return (Section(_TITLE, columns, rows, self.notes), *self.by_counters.sections())


def analyze(run: Run, traced: Sequence[Operations] = ()) -> Utilisation:
    """Compute the utilisation of a run, and compare it with the operations of its traces.

    Raises:
        MissingInput: No rank recorded its model, its operations cannot be counted, or tokens or times are unknown.
    """
    trained = find_trained_model(run)
    times = analyze_steps(run)
    tokens, seq_len = count_step_tokens(times)
    if times.step_time_s is None:
        raise MissingInput(TOO_FEW_STEPS)
    processes, devices = run.processes, run.devices
    assert processes is not None, "a run with a model has ranks"
    assert devices is not None
    device = find_device(run, traced)
    recomputation = find_recomputation(run.models, traced)
    step = Step(
        parameters=active_parameters(trained.model),
        model=trained.model,
        tokens=tokens,
        seq_len=seq_len,
        checkpointing=recomputation.checkpointing or Checkpointing.NONE,
        step_ns=round(times.step_time_s * NS_PER_S),
        gpus=devices,
        peak_tflops=device.peak_tflops,
        measured=recomputation.measured,
    )
    conventions = compare(step)
    counted = cross_check(step, _representative(run, traced, processes), processes)
    return Utilisation(
        conventions=conventions,
        steps=_by_step(run.steps, step, conventions),
        trained=trained,
        device=device,
        recomputation=recomputation,
        counted=counted,
        by_counters=check_by_counters(run, device.gpu, _count_operations(step, conventions, counted, recomputation)),
        has_gpu=device.peak_tflops is not None or any(rank.device_type != "cpu" for rank in run.ranks),
        notes=(
            *trained.notes,
            *device.notes,
            *recomputation.notes,
            *describe_doubts(conventions, step),
            *_doubt_ranks(run, traced),
            *explain_spread(step, conventions),
            *explain_window(step, trained.stated, _find_headline(conventions)),
            *((counted.sentence(), *counted.explanation) if counted else ()),
        ),
    )


def _find_headline(conventions: Sequence[Convention]) -> Convention:
    return next(convention for convention in conventions if convention.name == HEADLINE)


def _count_operations(
    step: Step, conventions: Sequence[Convention], counted: CrossCheck | None, recomputation: Recomputation
) -> CountedOperations | None:
    """The share of the peak by the operations that ran, with half of the attention matrix, as the headline has it.

    What was recomputed is counted from the traces' shapes where they have them: torch's checkpoint leaves out the last
    product of what it runs again, which no formula knows.
    """
    headline, model = _find_headline(conventions), step.model
    if headline.mfu is None or headline.flops_per_token is None or model is None:
        return None
    recomputed, is_covered = 0.0, counted is not None and counted.is_covered
    if recomputation.checkpointing is None and not is_covered:
        return None
    if recomputation.checkpointing is not Checkpointing.NONE:
        weights, attention = step.recomputed
        scores = attention * recomputed_scores(model, step.seq_len)
        recomputed = weights * recomputed_products(model) + scores / 2
        if counted is not None and is_covered:
            masked = (scores_and_values(model, step.seq_len) + scores) / 2
            ran = counted.flops_per_token - counted.skipped_flops_per_token - masked
            recomputed = max(0.0, ran - headline.flops_per_token)
    return CountedOperations(headline.mfu, headline.mfu * recomputed / headline.flops_per_token, step.step_ns)


def _doubt_ranks(run: Run, traced: Sequence[Operations]) -> tuple[str, ...]:
    """Doubt where ranks that train the same part of the model counted different numbers of operations a step."""
    coordinates = {rank.rank: rank.parallel for rank in run.ranks}
    twins: dict[tuple[int, int], list[Operations]] = {}
    for operations in traced:
        place = coordinates.get(-1 if operations.rank is None else operations.rank, {})
        if "ep" in place:
            continue  # experts are sent different numbers of tokens
        twins.setdefault((place.get("pp", 0), place.get("tp", 0)), []).append(operations)
    return tuple(doubt for ranks in twins.values() for doubt in doubt_twins(ranks))


def _representative(run: Run, traced: Sequence[Operations], processes: int) -> Sequence[Operations]:
    """The traced ranks if their mean is that of all ranks: stages of a pipeline differ, so there all must be traced."""
    is_pipeline = any(rank.parallel.get("pp", 0) for rank in run.ranks)
    return traced if not is_pipeline or len({operations.rank for operations in traced}) == processes else ()


def _by_step(tables: Sequence[Steps], step: Step, conventions: Sequence[Convention]) -> tuple[StepUtilisation, ...]:
    """The undisturbed steps by the headline convention, each at the job's time of it."""
    per_token = next(convention.flops_per_token for convention in conventions if convention.name == HEADLINE)
    assert per_token is not None
    times_ns = find_undisturbed(tables).times_ns()
    timed = {number: step._replace(step_ns=wall_ns) for number, wall_ns in sorted(times_ns.items())}
    return tuple(
        StepUtilisation(
            number,
            timed_step.tflops_per_gpu(per_token),
            check_share(timed_step.utilisation(per_token), f"the MFU of step {number}", UTILISATION_CAUSES).value,
        )
        for number, timed_step in timed.items()
    )
