"""``perfscope bench``: train a model by many strategies on one's own machines, and compare them in one table."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from perfscope.bench.launching import describe_machine
from perfscope.bench.measurement import Measurement
from perfscope.bench.rows import sum_up
from perfscope.bench.running import Plan, hold_folder, prepare_folder, read_rows, read_settings, run_trainings
from perfscope.bench.settings import choose_strategies, order_variants
from perfscope.bench.tables import rows_data, sections_of
from perfscope.commands.bench.options import MatrixOptions, RunOptions, SettingOptions, choose_matrix
from perfscope.commands.options import FormatOption, expand_groups
from perfscope.errors import ExitCode, PerfscopeError
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Json, Report

SCHEMA = "perfscope/bench/1"
_INTERRUPTED = 130


@expand_groups
def bench(
    *,
    matrix: MatrixOptions,
    settings: SettingOptions,
    running: RunOptions,
    results: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Train nothing: print the tables of a benchmark."),
    ] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Train a model by many strategies under `perfscope profile`, and compare them in one table."""
    if results is not None:
        strategies = choose_strategies((matrix.strategies or "all").split(","))
        chosen = [measurement for measurement in read_rows(results) if measurement.variant.strategy in strategies]
        return Outcome(to_report(read_settings(results), chosen), format)
    choice = choose_matrix(matrix, settings, running)
    machine = describe_machine(choice.settings)
    settings_here = prepare_folder(running.output, choice.settings)
    plan = Plan(
        folder=running.output,
        settings=settings_here,
        machine=machine,
        variants=choice.variants,
        repetitions=choice.repetitions,
        seconds=running.timeout,
        retries=running.retry,
        keeps_runs=running.keep_runs,
    )
    with hold_folder(running.output):
        return _sweep(plan, format=format)


def _sweep(plan: Plan, *, format: Format) -> Outcome:
    """Train what is not trained yet, and tell of all of it."""
    _tell(f"{len(plan.variants)} rows, {plan.repetitions} trainings each, into {plan.folder}")
    earlier = read_rows(plan.folder)
    finished = [measurement for measurement in earlier if measurement.reason is None or not plan.retries]
    code: ExitCode | int = ExitCode.OK
    notes = []
    try:
        _let_signals_interrupt()
        for measurement in run_trainings(plan, _tell):
            finished.append(measurement)
            if measurement.reason is not None:
                _tell(f"{measurement.name}: {measurement.reason}")
    except KeyboardInterrupt:
        code = _INTERRUPTED
        names = {measurement.name for measurement in finished}
        finished += [measurement for measurement in read_rows(plan.folder) if measurement.name not in names]
        notes.append(f"interrupted: {plan.folder} keeps the rows that ended; the same command goes on with the rest")
    chosen = [measurement for measurement in finished if measurement.variant in set(plan.variants)]
    if not chosen:
        raise PerfscopeError("; ".join(notes) or "no row was run")
    if code == ExitCode.OK and all(measurement.reason is not None for measurement in chosen):
        code = ExitCode.FAILED
    report = to_report(plan.settings.data_of(), chosen)
    return Outcome(report, format, notes=tuple(notes), exit_code=code)


def to_report(settings: dict[str, Json], measurements: list[Measurement]) -> Report:
    """The tables of the rows that are finished."""
    rows = sum_up(measurements, order_variants(measurement.variant for measurement in measurements))
    first = next((row for row in rows if row.trainings), None)
    batch = f"{settings['batch']} samples {'a device' if settings['is_weak'] else 'a step'}"
    ways = "1 way" if len(rows) == 1 else f"{len(rows)} ways"
    title = f"{ways} to train {settings['model']} on {str(settings['device']).upper()}, {batch}"
    data: dict[str, Json] = {
        "schema": SCHEMA,
        "settings": settings,
        "rows": rows_data(rows, first),
        "first_row": first.variant.key if first else None,
    }
    return Report(title, data, tuple(sections_of(rows, first, is_cpu=settings["device"] == "cpu")))


def _let_signals_interrupt() -> None:
    """Let a signal end the sweep as Ctrl-C does, in a shell's background job, too, where Ctrl-C is ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def _tell(line: str) -> None:
    sys.stderr.write(f"perfscope: {line}\n")
    sys.stderr.flush()
