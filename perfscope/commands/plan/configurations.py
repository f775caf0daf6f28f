"""The configurations that fit, fastest first, with the time of a step and what it consists of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.plan import Attention, MemoryEstimate, ParallelLayout
from perfscope.analyzers.plan.step_time import BUBBLE, COMMUNICATION, PRODUCTS, TERMS
from perfscope.analyzers.plan.step_time.calibration import Calibration
from perfscope.analyzers.plan.step_time.judgement import Errors, check_each_by_others
from perfscope.commands.plan.calculation import TrainingPlan, estimate_layout, find_convention, possible_batches
from perfscope.commands.plan.measured import read_measured
from perfscope.commands.plan.options import ConventionName, PlanInputs, Target
from perfscope.commands.plan.report import TIGHT, describe_duration, describe_fit
from perfscope.constants import GB, MS_PER_S, NS_PER_S, TERA
from perfscope.errors import UsageError
from perfscope.models.hardware import Gpu
from perfscope.models.step_constants import find_stack
from perfscope.models.transformer import Mixing, Transformer
from perfscope.report import MOST_ROWS, Column, Json, Report, Row, Section, percent
from perfscope.tables.columns import Int64
from perfscope.tables.step_time import UNKNOWN, StepSetup
from perfscope.units import format_bytes, format_count, format_parameters

_TITLE = "Configurations, fastest first"
#: The least probability that a listed configuration fits.
_LIKELY = 0.5
#: A measured step that takes so many times what is predicted is doubted.
_DOUBTFUL = 5


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration that fits: the nanoseconds of its terms, and the relative error that 90 % stay below.

    ``mfu`` is by ``megatron_core``, or 6N where only a size is known.
    """

    memory: MemoryEstimate
    fit_probability: float
    setup: StepSetup
    terms_ns: Int64
    error: float
    mfu: float

    @property
    def is_tight(self) -> bool:
        """Whether it may well not fit."""
        return self.fit_probability < TIGHT

    @property
    def seconds(self) -> float:
        """The time of a step."""
        return int(self.terms_ns.sum()) / NS_PER_S

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Its throughput."""
        return self.setup.tokens / self.seconds / self.setup.gpus

    @property
    def interval(self) -> tuple[float, float]:
        """What the step takes in nine of ten cases."""
        return self.seconds / (1 + self.error), self.seconds * (1 + self.error)

    def share(self, terms: Sequence[int]) -> float:
        """The share of some terms in the step."""
        return float(self.terms_ns[list(terms)].sum() / self.terms_ns.sum())

    @property
    def limit(self) -> tuple[str, float]:
        """The longest term beside the matrix products, and its share."""
        others = [index for index in range(len(TERMS)) if index != PRODUCTS]
        longest = max(others, key=lambda index: int(self.terms_ns[index]))
        return TERMS[longest], self.share([longest])


@dataclass(frozen=True, slots=True)
class Ranking:
    """The fastest configuration of each layout that fits, fastest first, and where it is tight the fastest that is not.

    ``target`` are the tokens or the time of the training. ``tried`` counts all configurations. ``checked`` are the
    errors of the calibration's rows, each predicted from the others.
    """

    configurations: tuple[Configuration, ...]
    target: Target
    tried: int
    calibration: Calibration
    checked: Errors | None = None
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Configuration:
        """The fastest that is not tight; where all are, the fastest."""
        return next((one for one in self.configurations if not one.is_tight), self.configurations[0])


def rank_configurations(plan: TrainingPlan) -> Ranking:
    """Rank what fits, for a plan with a batch and a known GPU; UsageError where no measured step can be used."""
    inputs, choice, shape, peak = plan.inputs, plan.choice, plan.shape, plan.peak
    gpu, gbs, peak_tflops = peak.gpu, inputs.layout.gbs, peak.tflops
    assert gpu is not None
    assert gbs is not None
    assert peak_tflops is not None
    if any(mixer.kind is Mixing.MAMBA for mixer in shape.mixers):
        raise UsageError(f"how long {Mixing.MAMBA} takes is not known", hint="without --gbs the memory is estimated")
    if inputs.peak.peak is not None:
        raise UsageError("steps are predicted by the peak of --gpu's datasheet", hint="leave out --peak")
    measured = read_measured(inputs.steps.calibrate or (), shape, inputs, gpu)
    stack = find_stack(gpu, inputs.layout.zero or 0, inputs.software, has_experts=shape.experts is not None)
    calibration = Calibration(measured.rows, measured.ceiling, stack)
    checked = check_each_by_others(measured.rows) if measured.rows else None
    layouts = list(possible_batches(inputs, shape, gpu, gbs))
    if inputs.software:
        layouts = [one for one in layouts if one.virtual == 1 and one.zero in stack.zero]
    estimates = [estimate_layout(inputs, choice, shape, peak.dtype, layout) for layout in layouts]
    likely = [(memory, memory.fit_probability(gpu.memory_bytes)) for memory in estimates]
    fitting = [(memory, probability) for memory, probability in likely if probability >= _LIKELY]
    notes = tuple(f"not used to calibrate: {reason}" for _, reason in measured.refused)
    if not fitting:
        return Ranking((), inputs.target, len(layouts), calibration, checked, notes)
    setups = [to_setup(inputs, memory.layout, shape, gpu, peak.dtype) for memory, _ in fitting]
    prediction = calibration.predict(setups)
    seconds = prediction.seconds
    name = ConventionName.SIX_N if choice.transformer is None else ConventionName.MEGATRON_CORE
    flops = (find_convention(inputs, choice, name).flops_per_token or 0) * setups[0].tokens
    found: dict[tuple[int, ...], Configuration] = {}
    for index in np.argsort(seconds, kind="stable"):
        memory, probability = fitting[index]
        layout = memory.layout
        mfu = flops / seconds[index] / inputs.gpus / (peak_tflops * TERA)
        terms = prediction.terms_ns[:, index]
        one = Configuration(memory, probability, setups[index], terms, float(prediction.error[index]), float(mfu))
        degrees = (layout.tensor, layout.pipeline, layout.context, layout.expert)
        if (*degrees, False) not in found:
            found.setdefault((*degrees, one.is_tight), one)
    return Ranking(tuple(found.values()), inputs.target, len(layouts), calibration, checked, notes)


def to_setup(inputs: PlanInputs, layout: ParallelLayout, shape: Transformer, gpu: Gpu, dtype: str) -> StepSetup:
    """What the time of a layout's step is computed from."""
    return StepSetup(
        model=shape,
        gpu=gpu.name,
        seq_len=inputs.seq_len,
        micro_batch=layout.micro_batch,
        micro_batches=layout.micro_batches or 1,
        dtype=dtype,
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        virtual=layout.virtual,
        data=layout.data,
        context=layout.context,
        expert=layout.expert,
        zero=layout.zero,
        checkpointing=layout.checkpointing,
        is_eager=inputs.memory.attention is Attention.EAGER,
        sequence_parallel=layout.sequence_parallel,
        gradient_bytes=inputs.precision(dtype).sent,
        software=inputs.software,
        network_gb_s=inputs.steps.network,
    )


def add_configurations(report: Report, plan: TrainingPlan) -> Report:
    """The report of a plan with a batch and a known GPU, with its configurations."""
    ranking = rank_configurations(plan)
    sections = [_list_section(ranking)]
    if plan.inputs.steps.why and ranking.configurations:
        sections.append(_why_section(ranking))
    data = {**report.data, "configurations": [_to_data(one) for one in ranking.configurations]}
    title = report.title
    if ranking.configurations:
        assert plan.peak.gpu is not None
        data["verdict"] = _describe_best(ranking.best, plan.peak.gpu)
        title = f"{data['verdict']}: {title.removeprefix(f'{describe_fit(plan)}: ')}"
    return Report(title, data, (*sections, *report.sections), report.warnings)


def _describe_best(one: Configuration, gpu: Gpu) -> str:
    """The configuration with its step, for the first line."""
    low, high = one.interval
    memory = f"{format_bytes(one.memory.reserved)} of {format_bytes(gpu.memory_bytes)}"
    return (
        f"{one.seconds:.3g} s a step ({low:.3g} to {high:.3g}) with {_describe(one)}; "
        f"{one.tokens_per_s_per_gpu:,.0f} tokens/s/GPU, MFU {one.mfu:.0%}, {memory} "
        f"(fits with {min(0.99, one.fit_probability):.0%})"
    )


def _describe(one: Configuration) -> str:
    layout = one.memory.layout
    degrees = (
        ("TP", layout.tensor),
        ("PP", layout.pipeline),
        ("virtual", layout.virtual),
        ("CP", layout.context),
        ("EP", layout.expert),
    )
    words = [f"{name} {size}" for name, size in degrees if size > 1]
    words += [f"ZeRO {layout.zero}", f"micro-batch {layout.micro_batch}", f"checkpointing {layout.checkpointing}"]
    return ", ".join(words)


_COLUMNS = (
    *map(Column, ("TP", "PP", "Virtual", "CP", "EP", "DP", "ZeRO", "Micro-batch", "Checkpointing")),
    Column("Step (s)", 3),
    Column("Interval (s)"),
    Column("Tokens/s/GPU", 0),
    *map(Column, ("MFU (%)", "Bubble (%)", "Communication (%)", "Reserved (GB)")),
    Column("Fits"),
    Column("Longest beside products"),
)


def _list_section(ranking: Ranking) -> Section:
    if not ranking.configurations:
        none = f"None of {ranking.tried} fits: more or larger GPUs are needed, or a batch that more of them share."
        uneven = "None is listed: the replicas would have unequal shares of the batch."
        return Section(_TITLE, notes=(none if ranking.tried else uneven,))
    stack = ranking.calibration.stack_of(ranking.configurations[0].setup)
    source = f"Constants: {stack.name}. Other software can take several times as long: calibrate by a step of its own."
    if ranking.calibration.rows:
        rows = format_count(len(ranking.calibration.rows), "measured step")
        is_traced = any(row.terms != UNKNOWN for row in ranking.calibration.rows)
        rows += " and traced kernels" if is_traced else " without traces"
        source = f"Calibrated by {rows}, from the constants of {stack.name}. {_compare_measured(ranking.calibration)}"
    elif not stack.is_measured:
        source = f"Not calibrated, so the interval is wide. Constants: {stack.name}, by the ratio of the peaks."
    notes = [
        f"The fastest of each TP, PP, CP and EP; {format_count(ranking.tried, 'configuration')} tried.",
        f"The title names the fastest that fits with {TIGHT:.0%} or more, if one does. Tight ones fit with "
        f"{_LIKELY:.0%} to {TIGHT:.0%}. All split along the sequence where TP splits.",
        "The interval holds nine of ten steps of tuned software. Communication is what no computation hides.",
        source,
        *ranking.notes[:MOST_ROWS],
    ]
    if ranking.calibration.ceiling:
        notes.append("No share of a peak is higher than `perfscope doctor --ceiling` measured on the same GPU.")
    if any(one.setup.zero not in stack.zero for one in ranking.configurations):
        notes.append("One software ranks all stages of ZeRO. --zero 3 predicts PyTorch's FSDP, which can take longer.")
    best, target = ranking.best, ranking.target
    rates = [best.setup.tokens / seconds for seconds in (best.seconds, *best.interval)]
    if target.tokens:
        duration, least, most = (describe_duration(target.tokens / rate) for rate in rates)
        notes.append(
            f"{format_parameters(target.tokens)} tokens take {duration} with the title's ({least} to {most}), "
            "without pauses."
        )
    elif target.seconds:
        trained, most, least = (format_parameters(round(target.seconds * rate)) for rate in rates)
        notes.append(
            f"In {describe_duration(target.seconds)} the title's configuration trains {trained} tokens "
            f"({least} to {most}), without pauses."
        )
    if ranking.checked:
        notes.append(
            f"Each measured step predicted from the others: {percent(ranking.checked.median):.1f} % off in the median, "
            f"90 % within {percent(ranking.checked.p90):.1f} %."
        )
    return Section(_TITLE, _COLUMNS, tuple(map(_to_row, ranking.configurations[:MOST_ROWS])), tuple(notes))


def _compare_measured(calibration: Calibration) -> str:
    """How far measured steps are from uncalibrated ones: far off, they may be of another unit or model."""
    predicted = Calibration(stack=calibration.stack).predict([row.setup for row in calibration.rows]).seconds
    ratio = float(np.median([row.seconds for row in calibration.rows] / predicted))
    doubt = "" if 1 / _DOUBTFUL < ratio < _DOUBTFUL else ": are they seconds, and of this model?"
    return f"They take {ratio:.2g} times what those predict{doubt or '.'}"


def _to_row(one: Configuration) -> Row:
    low, high = one.interval
    limit, share = one.limit
    return (
        *_layout_data(one).values(),
        one.seconds,
        f"{low:.3g} to {high:.3g}",
        one.tokens_per_s_per_gpu,
        percent(one.mfu),
        percent(one.share([BUBBLE])),
        percent(one.share(COMMUNICATION)),
        one.memory.reserved / GB,
        f"{one.fit_probability:.0%}{', tight' if one.is_tight else ''}",
        f"{limit}, {100 * share:.0f} %",
    )


def _layout_data(one: Configuration) -> dict[str, int | str]:
    layout = one.memory.layout
    return {
        "tp": layout.tensor,
        "pp": layout.pipeline,
        "virtual_stages": layout.virtual,
        "cp": layout.context,
        "ep": layout.expert,
        "dp": layout.data,
        "zero": layout.zero,
        "micro_batch": layout.micro_batch,
        "checkpointing": str(layout.checkpointing),
    }


def _to_data(one: Configuration) -> dict[str, Json]:
    return {
        **_layout_data(one),
        "micro_batches": one.setup.micro_batches,
        "step_s": one.seconds,
        "interval_s": list(one.interval),
        "tokens_per_s_per_gpu": one.tokens_per_s_per_gpu,
        "mfu": one.mfu,
        "terms_ns": {name: int(value) for name, value in zip(TERMS, one.terms_ns, strict=True)},
        "total_bytes": one.memory.total,
        "reserved_bytes": one.memory.reserved,
        "fit_probability": one.fit_probability,
        "limit": one.limit[0],
    }


def _why_section(ranking: Ranking) -> Section:
    one = ranking.best
    rows = tuple(
        (name, int(value) / NS_PER_S * MS_PER_S, percent(one.share([index])))
        for index, (name, value) in enumerate(zip(TERMS, one.terms_ns, strict=True))
        if value
    )
    constants = ranking.calibration.constants(one.setup)
    values = ", ".join(f"{name} {value:.3g}" for name, value in constants._asdict().items())
    stack = ranking.calibration.stack_of(one.setup)
    return Section(
        f"Why: the step with {_describe(one)}",
        (Column("Term"), Column("Time (ms)"), Column("Share (%)")),
        rows,
        (
            f"The terms add up to {one.seconds:.4g} s, without what computation hides. The last is fixed for a step.",
            f"Constants: {values}. Those in _s are seconds, others tokens, bytes or shares of peaks, as named.",
            f"{'They were fitted, from' if ranking.calibration.rows else 'Their source:'} {stack.source}.",
        ),
    )
