"""``perfscope bench``: train a model by many strategies on one's own machines, and compare them in one table."""

from __future__ import annotations

import math
import os
import signal
import sys
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from perfscope.bench.launching import describe_machine
from perfscope.bench.rows import Measurement, sum_up
from perfscope.bench.running import BenchPlan, hold_folder, prepare_folder, read_rows, read_settings, run_trainings
from perfscope.bench.settings import OPTION_SETS, Settings, choose_strategies, expand_matrix, order_variants
from perfscope.bench.tables import comparison_section, time_section
from perfscope.commands.options import FormatOption, expand_groups, require_positive
from perfscope.constants import S_PER_MINUTE
from perfscope.errors import ExitCode, PerfscopeError, UsageError
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Json, Report
from perfscope.units import format_count

SCHEMA = "perfscope/bench/1"
_rows, _training, _running = (partial(typer.Option, rich_help_panel=panel) for panel in ("Rows", "Training", "Running"))
#: What a training takes before its first step.
_START_S = 20
_BATCH = {"cuda": 64, "cpu": 16}
_PRECISION = {"cuda": "bf16", "cpu": "fp32"}


class BenchDevice(StrEnum):
    """What trains."""

    CPU = "cpu"
    CUDA = "cuda"


class MatrixOptions(NamedTuple):
    """Which rows there are."""

    strategies: Annotated[str, _rows(help="Strategies, such as single,ddp,fsdp2, or all.")] = "all"
    nproc: Annotated[str, _rows(help="Numbers of devices: GPUs, or processes on CPUs.")] = "1,2"
    precision: Annotated[
        str | None, _rows(help="Precisions: fp32,bf16.", show_default="bf16 on GPUs, fp32 on CPUs")
    ] = None
    options: Annotated[
        str, _rows(help=f"Variants of each strategy: {','.join(OPTION_SETS)}; recompute is activation checkpointing.")
    ] = "plain"


class TrainingOptions(NamedTuple):
    """What all rows train."""

    model: Annotated[
        str,
        _training(
            help="What is trained: resnet50, gpt2-small, gpt:LAYERSxHIDDENxSEQUENCE, or a function FILE.py:NAME."
        ),
    ] = "gpt2-small"
    batch_size: Annotated[
        int | None, _training(help="Samples of a step, over all devices.", show_default="64 on GPUs, 16 on CPUs")
    ] = None
    devices: Annotated[BenchDevice | None, _training(help="What trains.", show_default="cuda where there is a GPU")] = (
        None
    )
    data: Annotated[
        Path | None,
        _training(
            help="Real data: a folder of MNIST's files or an .npz for images; .bin, .npy or text for tokens.",
            show_default="synthetic",
        ),
    ] = None
    steps: Annotated[int, _training(min=1, help="Steps that are measured; three before are not.")] = 10


class RunOptions(NamedTuple):
    """How the rows are run."""

    output: Annotated[
        Path, _running("-o", "--output", help="Folder of the benchmark; one that was interrupted there goes on.")
    ] = Path("bench")
    repetitions: Annotated[
        int,
        _running(
            min=1,
            help="Trainings of each row, in turn; whether rows truly differ needs two samples, better three or more.",
        ),
    ] = 1
    timeout: Annotated[float, _running(min=1, help="Time limit of one training: the second at which it is ended.")] = (
        600
    )
    launcher: Annotated[
        str | None,
        _running(
            help="What starts the processes on several hosts, such as 'srun -N 2 -n {nproc}'; {nproc} and {port} are "
            "filled in.",
            show_default="torchrun on this host",
        ),
    ] = None
    yes: Annotated[bool, _running("--yes", "-y", help="Start without a question.")] = False


@expand_groups
def bench(
    *,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="A finished benchmark: train nothing, print its tables."),
    ] = None,
    matrix: MatrixOptions,
    training: TrainingOptions,
    running: RunOptions,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Train a model by many strategies under `perfscope profile`, and compare them in one table."""
    if folder is not None:
        strategies = choose_strategies(matrix.strategies.split(","))
        chosen = [measurement for measurement in read_rows(folder) if measurement.variant.strategy in strategies]
        return Outcome(to_report(read_settings(folder), chosen), format)
    device = training.devices or (BenchDevice.CUDA if Path("/dev/nvidiactl").exists() else BenchDevice.CPU)
    variants = expand_matrix(matrix.strategies, matrix.nproc, matrix.precision or _PRECISION[device], matrix.options)
    most = max(variant.nproc for variant in variants)
    settings = _make_settings(training, str(device), running.launcher, max(1, (os.cpu_count() or 1) // most))
    _confirm(len(variants), running, is_chosen=(matrix, training) != (MatrixOptions(), TrainingOptions()))
    machine = describe_machine(settings)
    settings_here = prepare_folder(running.output, settings)
    plan = BenchPlan(running.output, settings_here, machine, variants, running.repetitions, running.timeout)
    with hold_folder(running.output):
        return _sweep(plan, format=format)


def _confirm(rows: int, running: RunOptions, *, is_chosen: bool) -> None:
    """Say how much would be trained; ask on a terminal, else ``UsageError`` where all defaults would be trained."""
    trainings = rows * running.repetitions
    minutes = [math.ceil(trainings * seconds / S_PER_MINUTE) for seconds in (_START_S, running.timeout)]
    plan = (
        f"{format_count(rows, 'row')}, {format_count(running.repetitions, 'training')} each: {minutes[0]} minutes at "
        f"least, {minutes[1]} at most (--timeout)"
    )
    if running.yes:
        return
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(f"{plan}. Start?", abort=True, err=True)
    elif not is_chosen:
        raise UsageError(f"all defaults would train {plan}", hint="perfscope bench --yes, or --strategies single,ddp")


def _make_settings(training: TrainingOptions, device: str, launcher: str | None, threads: int) -> Settings:
    file, separator, function = training.model.rpartition(":")
    is_file = bool(separator) and file.endswith(".py")
    if launcher is not None:
        try:
            launcher.format(nproc=1, port=1)
        except (KeyError, IndexError, ValueError):
            raise UsageError(f"--launcher {launcher!r} has other fields than {{nproc}} and {{port}}") from None
    return Settings(
        model=f"{_require_file(Path(file))}:{function}" if is_file else training.model,
        data=None if training.data is None else str(_require_file(training.data)),
        device=device,
        batch=require_positive("--batch-size", _BATCH[device] if training.batch_size is None else training.batch_size),
        steps=training.steps,
        threads=threads,
        launcher=launcher,
        model_sha256=sha256(Path(file).read_bytes()).hexdigest() if is_file else None,
    )


def _require_file(path: Path) -> Path:
    if not path.exists():
        raise UsageError(f"{path} does not exist")
    return path.absolute()


def _sweep(plan: BenchPlan, *, format: Format) -> Outcome:
    rows, each = format_count(len(plan.variants), "row"), format_count(plan.repetitions, "training")
    _tell(f"{rows}, {each} each, into {plan.folder}")
    finished = [measurement for measurement in read_rows(plan.folder) if measurement.reason is None]
    code = ExitCode.OK
    notes = []
    try:
        for number in (signal.SIGINT, signal.SIGTERM):  # in a shell's background job, too, where Ctrl-C is ignored
            signal.signal(number, signal.default_int_handler)
        for measurement in run_trainings(plan, _tell):
            finished.append(measurement)
            if measurement.reason is not None:
                _tell(f"{measurement.name}: {measurement.reason}")
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
        names = {measurement.name for measurement in finished}
        finished += [measurement for measurement in read_rows(plan.folder) if measurement.name not in names]
        notes.append(f"interrupted: {plan.folder} keeps the rows that ended; the same command goes on with the rest")
    chosen = [measurement for measurement in finished if measurement.variant in set(plan.variants)]
    if not chosen:
        raise PerfscopeError("; ".join(notes) or "no row was run")
    if code == ExitCode.OK and all(measurement.reason is not None for measurement in chosen):
        code = ExitCode.FAILED
    report = to_report(asdict(plan.settings), chosen)
    return Outcome(report, format, notes=tuple(notes), exit_code=code)


def to_report(settings: dict[str, Json], measurements: list[Measurement]) -> Report:
    """The tables of the rows that are finished."""
    rows = sum_up(measurements, order_variants(measurement.variant for measurement in measurements))
    first = next((row for row in rows if row.measurements), None)
    ways = "1 way" if len(rows) == 1 else f"{len(rows)} ways"
    is_weak = settings.get("is_weak")  # of benchmarks of earlier versions
    batch = f"{settings['batch']} samples {'a device' if is_weak else 'a step'}"
    title = f"{ways} to train {settings['model']} on {str(settings['device']).upper()}, {batch}"
    data: dict[str, Json] = {
        "schema": SCHEMA,
        "settings": settings,
        "rows": [row.data() for row in rows],
        "first_row": first.variant.key if first else None,
    }
    sections = (comparison_section(rows, is_cpu=settings["device"] == "cpu"),)
    return Report(title, data, (*sections, time_section(rows)) if first else sections)


def _tell(line: str) -> None:
    sys.stderr.write(f"perfscope: {line}\n")
    sys.stderr.flush()
