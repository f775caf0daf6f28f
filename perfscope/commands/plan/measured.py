"""The measured steps of ``--calibrate``: tables, logs of trainings and runs of ``perfscope profile``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from perfscope.analyzers import steps
from perfscope.analyzers.budget import COMPUTE, COPY, Budget
from perfscope.analyzers.calls import Calls
from perfscope.analyzers.logs.summary import summarize_log
from perfscope.analyzers.mfu import Utilisation
from perfscope.analyzers.optimizer import OptimizerTime
from perfscope.analyzers.plan import Attention
from perfscope.analyzers.tflops.trained_run import count_step_tokens, find_trained_model
from perfscope.commands.model import choose_logged_model
from perfscope.commands.plan.options import PlanInputs
from perfscope.constants import NS_PER_S, US_PER_S
from perfscope.engine.run import Plan, analyze
from perfscope.errors import MissingInput, PerfscopeError, SourceError, UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.models.hardware import Gpu, lookup_gpu
from perfscope.models.transformer import Transformer
from perfscope.result import Result
from perfscope.sources.ceilings import read_ceiling
from perfscope.sources.joblog import read_log
from perfscope.sources.runs.folder import is_run
from perfscope.sources.runs.run import read_run
from perfscope.sources.step_times import is_step_table, read_step_times
from perfscope.tables.kernel_precision import is_fused_attention, product_precision
from perfscope.tables.step_time import UNKNOWN, MeasuredStep, MeasuredSteps, StepSetup, StepTerms

#: Rows whose covariances a calibration inverts within seconds.
_MOST_ROWS = 500
#: A kernel of eager PyTorch: 36 us in nanoGPT, 53 in Megatron-core, 76 in torchtitan, where launching limits the step.
_LAUNCH_S = 50e-6


def read_tables(paths: Sequence[str]) -> MeasuredSteps:
    """Read tables of measured steps; UsageError where a path is something else."""
    for path in paths:
        if not is_step_table(Path(path)):
            raise UsageError(f"{path} is no table of measured steps", hint="with --model and --gpus it calibrates")
    return _join([read_step_times(Path(path)) for path in paths])


def read_measured(paths: Sequence[str], shape: Transformer, inputs: PlanInputs, gpu: Gpu) -> MeasuredSteps:
    """Read measured steps; what a log or a run does not state is as planned. UsageError where none can be used."""
    found = []
    for path in map(Path, paths):
        if path.suffix == ".json":
            found.append(MeasuredSteps((), ceiling=read_ceiling(path)))
            continue
        if is_step_table(path):
            found.append(read_step_times(path))
            continue
        if path.is_dir() and not is_run(path):
            raise SourceError(path, "is a folder, and no run of perfscope profile")
        try:
            read = _read_run if is_run(path) else _read_log
            found.append(MeasuredSteps((read(path, shape, inputs, gpu),)))
        except (MissingInput, UsageError) as error:
            found.append(MeasuredSteps((), ((path.name, f"{path}: {error}"),)))
    steps_read = _join(found)
    steps_read = replace(steps_read, rows=tuple(dict.fromkeys(steps_read.rows)))  # a copy of a row says nothing
    if len(steps_read.rows) > _MOST_ROWS:
        raise UsageError(
            f"{len(steps_read.rows)} measured steps are too many to calibrate by",
            hint=f"keep the {_MOST_ROWS} that are nearest in software, GPU and model",
        )
    if paths and not steps_read.rows and steps_read.ceiling is None:
        raise PerfscopeError(f"no measured step can be used: {steps_read.refused[0][1]}")
    return steps_read


def _join(parts: Sequence[MeasuredSteps]) -> MeasuredSteps:
    return MeasuredSteps(
        tuple(row for part in parts for row in part.rows),
        tuple(line for part in parts for line in part.refused),
        next((part.ceiling for part in parts if part.ceiling), None),
    )


def _read_log(path: Path, shape: Transformer, inputs: PlanInputs, gpu: Gpu) -> MeasuredStep:
    log = read_log(path)
    summary = summarize_log(log)
    choice, setup = choose_logged_model(log), summary.setup
    model = choice.transformer if choice and choice.transformer else shape
    names = ("tp", "pp", "cp", "ep", "mbs", "zero_stage")
    sizes = {name: size for name in names if (size := getattr(setup.layout, name))}
    training = inputs.training._replace(
        seq_len=setup.seq_len or inputs.seq_len, checkpointing=setup.checkpointing or inputs.checkpointing
    )
    as_logged = replace(inputs, training=training)
    return _measure(
        model, as_logged, gpu, sizes, gpus=setup.gpus, gbs=setup.gbs, seconds=summary.times.median_s, source=str(path)
    )


def _read_run(path: Path, shape: Transformer, inputs: PlanInputs, gpu: Gpu) -> MeasuredStep:
    run = read_run(path)
    result = steps.analyze(run)
    axes = {axis for rank in run.ranks for axis in rank.parallel}
    sizes = {axis: 1 + max(rank.parallel.get(axis, 0) for rank in run.ranks) for axis in axes}
    device = next((rank.device_name for rank in run.ranks if rank.device_name), None)
    gbs = None if result.samples_per_step is None else round(result.samples_per_step)
    passes = result.micro_batches
    replicas = (run.devices or 1) // (sizes.get("tp", 1) * sizes.get("pp", 1) * sizes.get("cp", 1))
    if gbs and passes and replicas:
        sizes["mbs"] = max(1, round(gbs / passes / replicas))
    own_gpu = lookup_gpu(device) if device else None
    model, training = shape, inputs.training
    with suppress(MissingInput):
        model = find_trained_model(run).model
    with suppress(MissingInput):
        training = training._replace(seq_len=count_step_tokens(result)[1])
    if run.models and (stage := run.models[0].zero_stage) is not None:
        sizes["zero_stage"] = stage
    results = analyze([str(path)], Plan(only=frozenset({"budget", "calls", "mfu", "optimizer"}))).results
    use, terms, memory = results.get("mfu"), _find_terms(results, result.step_time_s), inputs.memory
    dtype = None
    if isinstance(use, Utilisation):
        dtype = use.dtype
        if use.checkpointing:
            training = training._replace(checkpointing=Checkpointing(use.checkpointing))
    if terms.attention is not None:
        memory = memory._replace(attention=Attention.FLASH if terms.attention else Attention.EAGER)
    return _measure(
        model,
        replace(inputs, training=training, memory=memory),
        own_gpu or gpu,
        sizes,
        gpus=run.devices,
        gbs=gbs,
        seconds=result.step_time_s,
        source=str(path),
        dtype=dtype,
        terms=terms,
    )


def _find_terms(results: Mapping[str, Result], step_s: float | None) -> StepTerms:
    """The kernels of a run's traces, by kind; no terms without traces of a GPU."""
    budget, calls, optimizer = (results.get(name) for name in ("budget", "calls", "optimizer"))
    if not isinstance(budget, Budget):
        return UNKNOWN
    seconds = dict.fromkeys(("products", "attention", "memory"), 0.0)
    for term, ns in budget.times.items():
        if term.kind in (COMPUTE, COPY):
            kind = "memory"
            if term.kind == COMPUTE and product_precision(term.name):
                kind = "attention" if is_fused_attention(term.name) else "products"
            seconds[kind] += ns / NS_PER_S
    seconds["host"] = sum(budget.calls.values()) * _LAUNCH_S
    if isinstance(calls, Calls) and step_s is not None:
        waits = max(rank.synchronisation.blocked_us for rank in calls.ranks) / US_PER_S
        seconds["host"] = max(0.0, min(seconds["host"], step_s - waits))
    if not isinstance(optimizer, OptimizerTime):
        return StepTerms(**seconds | {"memory": None})
    update = sum(rank.device_us for rank in optimizer.ranks) / len(optimizer.ranks) / US_PER_S
    return StepTerms(**seconds | {"memory": max(seconds["memory"] - update, 0.0), "optimizer": update})


def _measure(
    model: Transformer,
    inputs: PlanInputs,
    gpu: Gpu,
    sizes: Mapping[str, int],
    *,
    gpus: int | None,
    gbs: int | None,
    seconds: float | None,
    source: str,
    dtype: str | None = None,
    terms: StepTerms = UNKNOWN,
) -> MeasuredStep:
    if gpus is None or gbs is None or seconds is None:
        missing = {"number of GPUs": gpus, "global batch": gbs, "step time": seconds}
        raise UsageError(f"it states no {next(name for name, value in missing.items() if value is None)}")
    tensor, pipeline, context = (sizes.get(name, 1) for name in ("tp", "pp", "cp"))
    micro_batch = sizes.get("mbs", inputs.layout.size("micro_batch"))
    data = gpus // (tensor * pipeline * context)
    if dtype is None or dtype not in gpu.dense_tflops:
        dtype = str(inputs.peak.dtype or gpu.training_dtype)
    setup = StepSetup(
        model=model,
        gpu=gpu.name,
        seq_len=inputs.seq_len,
        micro_batch=micro_batch,
        micro_batches=gbs // max(1, data * micro_batch),
        dtype=dtype,
        tensor=tensor,
        pipeline=pipeline,
        virtual=inputs.layout.size("virtual_stages") if pipeline > 1 else 1,
        data=data,
        context=context,
        expert=sizes.get("ep", inputs.layout.size("ep")),
        zero=sizes.get("zero_stage", inputs.layout.zero or 0),
        checkpointing=inputs.checkpointing,
        is_eager=inputs.memory.attention is Attention.EAGER,
        sequence_parallel=True,  # as all configurations of a list
        gradient_bytes=inputs.precision(dtype).sent,
        software=inputs.software,
        network_gb_s=inputs.steps.network,
    )
    if setup.gpus != gpus or setup.gbs != gbs:
        raise UsageError(f"{gbs} sequences on {gpus} GPUs are not {setup.gbs} on {setup.gpus} of its layout")
    return MeasuredStep(setup, seconds, source, terms)
