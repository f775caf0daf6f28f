"""MFU and HFU of a run, from what the hooks recorded: operations per token x tokens/s / (GPUs x dense peak).

The headline is ``megatron_core``, which counts what a causal model needs: weights of matrix products, half of the
attention matrix, no embedding table and no recomputation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from perfscope.analyzers.steps import analyze as analyze_steps
from perfscope.analyzers.tflops.comparison import (
    Convention,
    Step,
    compare,
    describe_doubts,
    describe_kinds,
    explain_spread,
)
from perfscope.analyzers.tflops.operation_counts import TracedOperations
from perfscope.analyzers.tflops.per_token import megatron_whole_attention, recomputed_products, recomputed_scores
from perfscope.analyzers.tflops.precision import ProductPrecision
from perfscope.analyzers.tflops.repeats import largest_repeats
from perfscope.analyzers.tflops.trained_run import (
    count_step_tokens,
    find_device,
    find_recomputation,
    find_trained_model,
)
from perfscope.constants import GIGA, NS_PER_S
from perfscope.errors import MissingInput
from perfscope.measures.doubt import UTILISATION_CAUSES, check_share
from perfscope.measures.step_selection import TOO_FEW_STEPS, find_undisturbed
from perfscope.models.conventions import Checkpointing, Recomputed
from perfscope.models.parameter_counts import active_parameters
from perfscope.report import Section
from perfscope.result import PERCENT, Column, Doc, Figures, Result, Table, figure
from perfscope.tables.run import Run
from perfscope.tables.steps import Steps

HEADLINE = "megatron_core"
_NO_GPU = "No MFU: the run had no GPU. TFLOPs by convention are in --format json."


class CrossCheck(Figures, frozen=True):
    """Operations counted from traces' shapes, beside Megatron-core's formula with the full attention matrix."""

    flops_per_token: Annotated[float, Doc("Counted.")]
    formula_flops_per_token: Annotated[float | None, Doc("The formula's; None without dimensions.")]
    recomputed: Annotated[str | None, Doc("What the trace shows to be recomputed.")]
    ranks: Annotated[int, Doc("How many ranks were counted.")]
    explanation: Annotated[tuple[str, ...], Doc("What could not be counted.")]
    is_covered: bool
    has_recomputation: bool

    @figure
    def difference(self) -> float | None:
        """``flops_per_token / formula_flops_per_token - 1``."""
        return None if self.formula_flops_per_token is None else self.flops_per_token / self.formula_flops_per_token - 1

    def sentence(self) -> str:
        """The figures in words."""
        counted = f"Counted from the trace's shapes: {self.flops_per_token / GIGA:.4g} GFLOP/token"
        if not self.is_covered:
            return f"{counted}, which is not all of it and is not compared with the formula."
        if self.formula_flops_per_token is None or self.difference is None:
            return f"{counted}; without the model's dimensions there is no formula to compare with."
        formula = f"{self.formula_flops_per_token / GIGA:.4g} GFLOP/token"
        recomputation = " and recomputation" if self.has_recomputation else ""
        return (
            f"{counted}. The formula, with the full attention matrix{recomputation}, gives {formula} "
            f"(difference: {self.difference:+.1%})."
        )


class StepUtilisation(Figures, frozen=True):
    """An undisturbed step by the headline convention."""

    step: Annotated[int, Doc("Its number.")]
    tflops_per_gpu: Annotated[float, Doc("TFLOPs per GPU.")]
    mfu: Annotated[float | None, Doc("MFU.")]


class Utilisation(Result, frozen=True):
    """``results.mfu``: MFU = operations per token x tokens/s / (GPUs x dense peak), by each convention.

    Attributes:
        has_gpu: Whether a rank trained on a GPU, or the user states a peak.
    """

    headline: Convention
    conventions: Annotated[tuple[Convention, ...], Doc("The median step by every convention.")]
    steps: Annotated[tuple[StepUtilisation, ...], Doc("Each undisturbed step by the headline convention.")]
    parameters: Annotated[int, Doc("Parameters over all pipeline stages.")]
    trainable_parameters: Annotated[int, Doc("Those that have gradients.")]
    layers: Annotated[int, Doc("Layers.")]
    hidden: Annotated[int, Doc("Hidden size.")]
    vocabulary: Annotated[int, Doc("Vocabulary.")]
    device: Annotated[str | None, Doc("The name that the driver states.")]
    gpu: Annotated[str | None, Doc("The GPU whose data sheet is used; None where it is not listed.")]
    dtype: Annotated[str | None, Doc("The main data type of the products.")]
    precision: Annotated[ProductPrecision, Doc("All of them.")]
    peak_tflops: Annotated[float | None, Doc("The dense peak of one GPU in that type.")]
    checkpointing: Annotated[
        str | None, Doc("What was counted as recomputed; None where that is unknown, and nothing was.")
    ]
    recomputed_share: Annotated[
        float | None,
        Doc("The share of the products of the forward pass that ran again, as traces show it; None where none does."),
    ]
    counted: Annotated[CrossCheck | None, Doc("The operations of the traces; None where they state no shapes.")]
    notes: Annotated[tuple[str, ...], Doc("What a reader must know.")]
    convention: Annotated[str, Doc("The headline convention: ``megatron_core``.")]
    mfu: Annotated[float | None, Doc("MFU of steady-state steps by it.")]
    tflops_per_gpu: Annotated[float | None, Doc("TFLOPs per GPU by it.")]
    doubt: Annotated[str | None, Doc("What makes the headline doubtful.")]
    has_gpu: bool

    TABLES = (
        Table(
            "MFU of steady-state steps",
            "conventions",
            (
                Column("Convention", "name"),
                Column("GFLOP/token", "flops_per_token", lambda flops: flops / GIGA, 4),
                Column("TFLOPs per GPU", "tflops_per_gpu", None, 3),
                Column("MFU (%)", "mfu", PERCENT, 2),
                Column("HFU (%)", "hfu", PERCENT, 2),
            ),
        ),
    )

    def sections(self) -> tuple[Section, ...]:
        """The conventions side by side, under the notes on what was counted."""
        if not self.has_gpu:
            return (Section(self.TABLES[0].title, notes=(_NO_GPU,)),)
        return Result.sections(self)


def analyze(run: Run, traced: Sequence[TracedOperations] = ()) -> Utilisation:
    """The utilisation of a run, compared with the operations of its traces.

    Raises MissingInput where no rank recorded its model, or tokens, times or operations are unknown.
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
    )
    conventions = compare(step)
    headline = next(convention for convention in conventions if convention.name == HEADLINE)
    counted = cross_check(step, _representative(run, traced, processes), processes)
    kind = recomputation.checkpointing
    return Utilisation(
        headline=headline,
        convention=HEADLINE,
        mfu=headline.mfu,
        tflops_per_gpu=headline.tflops_per_gpu,
        doubt=headline.reason,
        conventions=conventions,
        steps=_by_step(run.steps, step, headline),
        parameters=trained.parameters,
        trainable_parameters=trained.trainable,
        layers=trained.model.layers,
        hidden=trained.model.hidden,
        vocabulary=trained.model.vocabulary,
        device=device.name,
        gpu=device.gpu.name if device.gpu else None,
        dtype=device.precision.main,
        precision=device.precision,
        peak_tflops=device.peak_tflops,
        checkpointing=None if kind is None else str(kind),
        recomputed_share=recomputation.share,
        counted=counted,
        notes=(
            *trained.notes,
            *device.notes,
            *recomputation.notes,
            *describe_kinds(trained.model),
            *describe_doubts(conventions, step),
            *explain_spread(step, conventions),
            *((counted.sentence(), *counted.explanation) if counted else ()),
        ),
        has_gpu=device.peak_tflops is not None or any(rank.device_type != "cpu" for rank in run.ranks),
    )


def cross_check(step: Step, ranks: Sequence[TracedOperations], processes: int) -> CrossCheck | None:
    """Compare what the traced ranks counted with the formula; absent where no rank states shapes."""
    counted = [rank for rank in ranks if rank.flops_per_step]
    if not counted:
        return None
    per_token = sum(rank.flops_per_step or 0.0 for rank in counted) / len(counted) * processes / step.tokens
    repeats = largest_repeats([rank.repeats for rank in counted])
    again = repeats.recomputed if repeats else Recomputed(0, 0)
    is_covered = all(rank.is_covered for rank in counted)
    model, formula = step.model, None
    if is_covered and model is not None:
        formula = (
            megatron_whole_attention(model, step.seq_len)
            + again.weights * recomputed_products(model)
            + again.attention * recomputed_scores(model, step.seq_len)
        )
    kind = repeats.checkpointing if repeats else None
    missing = sum(rank.without_shapes for rank in counted)
    return CrossCheck(
        flops_per_token=per_token,
        formula_flops_per_token=formula,
        recomputed=None if kind is None else str(kind),
        ranks=len(counted),
        explanation=(
            *(() if is_covered else ("Too many operators cannot be counted: `analyze --only operations` lists them.",)),
            *((f"{missing} products state no shapes and are not counted.",) if missing else ()),
        ),
        is_covered=is_covered,
        has_recomputation=any(again),
    )


def _representative(run: Run, traced: Sequence[TracedOperations], processes: int) -> Sequence[TracedOperations]:
    """The traced ranks if their mean is that of all ranks: stages of a pipeline differ, so there all must be traced."""
    is_pipeline = any(rank.parallel.get("pp", 0) for rank in run.ranks)
    return traced if not is_pipeline or len({operations.rank for operations in traced}) == processes else ()


def _by_step(tables: Sequence[Steps], step: Step, headline: Convention) -> tuple[StepUtilisation, ...]:
    per_token = headline.flops_per_token
    assert per_token is not None
    found = []
    for number, wall_ns in sorted(find_undisturbed(tables).times_ns().items()):
        timed = step._replace(step_ns=wall_ns)
        mfu = check_share(timed.utilisation(per_token), f"the MFU of step {number}", UTILISATION_CAUSES).value
        found.append(StepUtilisation(number, timed.tflops_per_gpu(per_token), mfu))
    return tuple(found)
