"""The options of ``perfscope bubble``, in groups, and the setup that they describe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from perfscope.commands.options.common import require_positive
from perfscope.constants import NS_PER_MS, NS_PER_S
from perfscope.errors import UsageError
from perfscope.schedules.catalog import Schedule, require_possible
from perfscope.schedules.prediction import PassTimes, Setup
from perfscope.units import format_seconds, parse_duration_ns

_DEFAULT_CHUNKS = 2
_DEFAULT_FORWARD_NS = NS_PER_MS
_TIMES_HELP = "one time, or one for each stage: 10ms or 9ms,10ms,10ms,12ms"
_PIPELINE = "Pipeline schedule"
_TIMES = "Times of one micro-batch on one stage"
_TARGET = "Target throughput"
_RANKS = "Ranks of measured traces"
_DRAWING = "Drawing"


@dataclass(frozen=True, slots=True)
class TimeOptions:
    """Times of the passes of a micro-batch."""

    forward: Annotated[
        str | None,
        typer.Option(
            help=f"Forward-pass time: {_TIMES_HELP}.",
            show_default="equal times without a unit",
            rich_help_panel=_TIMES,
        ),
    ] = None
    backward: Annotated[
        str | None,
        typer.Option(
            help="Backward-pass time, written as --forward; with --weight the time of the input gradient only.",
            show_default="2 x forward",
            rich_help_panel=_TIMES,
        ),
    ] = None
    weight: Annotated[
        str | None,
        typer.Option(
            help="Weight-gradient (W) time, written as --forward.",
            show_default="half of the backward pass",
            rich_help_panel=_TIMES,
        ),
    ] = None
    transfer: Annotated[
        str | None,
        typer.Option(
            help="Transfer time to the next stage, such as 1ms: one time, or one for each sending stage.",
            show_default="0",
            rich_help_panel=_TIMES,
        ),
    ] = None

    @property
    def are_given(self) -> bool:
        """Whether any of the times is set."""
        return any(time is not None for time in (self.forward, self.backward, self.weight, self.transfer))

    def parse(self, stages: int) -> PassTimes:
        """The times of every stage.

        Raises:
            UsageError: A time cannot be read, or is missing beside those that are set.
        """
        forward = _parse_times(stages, "--forward", self.forward) if self.forward else (_DEFAULT_FORWARD_NS,) * stages
        if self.forward is None and (self.backward or self.weight or self.transfer):
            raise UsageError("--forward is missing", hint="set it with the other times: its default has no unit")
        if self.weight and not self.backward:
            raise UsageError("--weight needs --backward", hint="--backward is then the gradient of the input")
        backward = (
            _parse_times(stages, "--backward", self.backward) if self.backward else tuple(2 * time for time in forward)
        )
        if self.weight:
            weight = _parse_times(stages, "--weight", self.weight)
            backward = tuple(sum(gradients) for gradients in zip(backward, weight, strict=True))
        else:
            weight = tuple(time // 2 for time in backward)
        transfer = _parse_times(stages, "--transfer", self.transfer) if self.transfer else (0,) * stages
        return PassTimes(forward, backward, weight, transfer)

    def list_assumptions(self, times: PassTimes) -> tuple[str, ...]:
        """What was assumed for the times that were not typed, where others were, as sentences."""
        if self.forward is None:
            return ()
        assumptions = []
        if self.backward is None:
            assumptions.append(f"The backward pass is assumed to take {_list_times(times.backward)}: 2 x forward.")
        if self.weight is None:
            assumptions.append("Half of the backward pass is assumed to be the weight gradient (--weight).")
        if self.transfer is None:
            assumptions.append("Transfers between stages are assumed to take no time (--transfer).")
        return tuple(assumptions)


def _list_times(times_ns: Sequence[int]) -> str:
    """The time of every stage, once where they are equal."""
    return ", ".join(format_seconds(time_ns / NS_PER_S) for time_ns in dict.fromkeys(times_ns))


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """The pipeline and its schedule."""

    pp: Annotated[
        int | None,
        typer.Option(
            help="Pipeline stages (pipeline-parallel size).",
            show_default="required for a prediction",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    microbatches: Annotated[
        int | None,
        typer.Option(
            "--microbatches",
            "-m",
            help="Micro-batches of one pipeline in a step.",
            show_default="required for a prediction",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    schedule: Annotated[
        Schedule | None, typer.Option(help="Pipeline schedule.", show_default="1f1b", rich_help_panel=_PIPELINE)
    ] = None
    virtual_stages: Annotated[
        int | None,
        typer.Option(
            help="Virtual stages per stage (model chunks), for the interleaved schedule.",
            show_default=str(_DEFAULT_CHUNKS),
            rich_help_panel=_PIPELINE,
        ),
    ] = None

    @property
    def describes_schedule(self) -> bool:
        """Whether any option is set that a measurement finds by itself."""
        return any(option is not None for option in (self.microbatches, self.schedule, self.virtual_stages))

    def to_setup(self, times: TimeOptions) -> Setup:
        """The pipeline to predict; ``pp`` and ``microbatches`` must be set.

        Raises:
            UsageError: An option is out of range, or the schedule does not exist for these numbers.
        """
        assert self.pp is not None
        assert self.microbatches is not None
        schedule = self.schedule or Schedule.ONE_F_ONE_B
        chunks = self._choose_chunks(schedule)
        stages = require_positive("--pp", self.pp)
        microbatches = require_positive("--microbatches", self.microbatches)
        require_possible(schedule, stages, microbatches, chunks)
        return Setup(schedule, stages, microbatches, chunks, times.parse(stages))

    def _choose_chunks(self, schedule: Schedule) -> int:
        if self.virtual_stages is not None:
            return require_positive("--virtual-stages", self.virtual_stages)
        return _DEFAULT_CHUNKS if schedule is Schedule.INTERLEAVED else 1


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """A measured throughput and the one to reach."""

    tflops: Annotated[
        str | None, typer.Option(help="TFLOPs per GPU measured at --microbatches.", rich_help_panel=_TARGET)
    ] = None
    target_tflops: Annotated[
        str | None,
        typer.Option(help="Target TFLOPs per GPU: computes the micro-batches needed.", rich_help_panel=_TARGET),
    ] = None

    @property
    def is_given(self) -> bool:
        """Whether either is set."""
        return self.tflops is not None or self.target_tflops is not None

    def parse(self) -> tuple[Fraction, Fraction] | None:
        """The measured and the target throughput; None where neither is set.

        Raises:
            UsageError: Either is no positive number, or missing.
        """
        if not self.is_given:
            return None
        if self.tflops is None or self.target_tflops is None:
            raise UsageError(
                "--tflops and --target-tflops go together",
                hint="--tflops is the throughput measured at --microbatches, --target-tflops the target",
            )
        return _parse_tflops("--tflops", self.tflops), _parse_tflops("--target-tflops", self.target_tflops)


@dataclass(frozen=True, slots=True)
class RankOptions:
    """The layout of measured ranks, together with ``--pp``."""

    tp: Annotated[
        int | None,
        typer.Option(
            help="Tensor-parallel size, with --pp and --dp.", show_default="from the run", rich_help_panel=_RANKS
        ),
    ] = None
    dp: Annotated[
        int | None,
        typer.Option(
            help="Data-parallel size, with --pp and --tp.", show_default="from the run", rich_help_panel=_RANKS
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class DrawingOptions:
    """The drawing of the schedule."""

    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Draw the schedule to this SVG file.", rich_help_panel=_DRAWING),
    ] = None
    width: Annotated[
        int, typer.Option(help="Width of the drawing in characters.", min=10, max=1000, rich_help_panel=_DRAWING)
    ] = 100


def _parse_times(stages: int, option: str, text: str) -> tuple[int, ...]:
    parts = text.split(",")
    times = tuple(0 if part.strip() in {"0", "0s", "0ms"} else parse_duration_ns(part) for part in parts)
    if option in {"--forward", "--backward"} and not all(times):
        raise UsageError(f"{option} must be longer than 0")
    if len(times) not in {1, stages}:
        raise UsageError(f"{option} has {len(times)} times for {stages} stages", hint=_TIMES_HELP)
    return times * stages if len(times) == 1 else times


def _parse_tflops(option: str, text: str) -> Fraction:
    try:
        tflops = Decimal(text)
    except InvalidOperation:
        raise UsageError(f"{option} must be a number, not {text!r}") from None
    if not tflops.is_finite() or tflops <= 0:
        raise UsageError(f"{option} must be a positive number, not {text}")
    return Fraction(tflops)
