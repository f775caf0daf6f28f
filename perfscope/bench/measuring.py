"""Reads what a training left: its run, analyzed as ``perfscope analyze`` does, and the results of its ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import numpy as np

from perfscope.bench.launching import TrainingPlace
from perfscope.bench.rows import Measurement
from perfscope.bench.settings import WARMUP, Machine, Settings, Variant
from perfscope.constants import NS_PER_S, TERA
from perfscope.errors import PerfscopeError
from perfscope.measures.step_selection import job_times_ns, last_attempts
from perfscope.sources.runs.run import read_run
from perfscope.tables.columns import Bool, present
from perfscope.tables.steps import Steps

#: Reading JSON of unknown depth.
Tree = Mapping[str, Any]
_T = TypeVar("_T")


def measure(
    variant: Variant, repetition: int, settings: Settings, machine: Machine, place: TrainingPlace
) -> Measurement:
    """The measurement of a training that ended well; PerfscopeError where its run or its results cannot be read."""
    ranks = _read_ranks(place.result, variant, settings)
    results, doubts = _analyze(place.run_dir)
    step_ns = _find_steps(place.run_dir, settings)
    samples = settings.batch
    losses = _mean_losses(ranks)
    known = tuple(takewhile(isfinite, losses))
    unprofiled = _get(results, "pipeline_steps", "fraction_of_total")
    save_bytes = sum(file.stat().st_size for file in place.checkpoint.rglob("*") if file.is_file())
    return Measurement(
        variant,
        repetition,
        step_ns=step_ns,
        samples=samples,
        tokens=samples * machine.tokens if machine.tokens else None,
        first_loss=known[0] if known else None,
        last_loss=fmean(_last_quarter(losses)) if known and len(known) == len(losses) else None,
        losses=known,
        accuracy=_find_accuracy(ranks) if machine.is_classified else None,
        memory_bytes=tuple(device["bytes"] for rank in ranks for device in rank["memory"]),
        util_percent=_mean(gpu["util_percent"] for gpu in results.get("gpus") or [] if gpu["ranks"]),
        step_j=_get(results, "energy", "step_j"),
        overlap=_find_overlap(results),
        shares=_find_shares(results),
        bubble=_get(results, "pipeline_bubble", "fraction_of_total") if unprofiled is None else unprofiled,
        tflops=_find_tflops(variant, samples, machine, step_ns, results),
        mfu=_get(results, "mfu", "mfu"),
        save_ns=max((rank["save_ns"] for rank in ranks if rank["save_ns"]), default=None) if save_bytes else None,
        save_bytes=save_bytes or None,
        notes=(*doubts, *_doubt(losses, step_ns, settings)),
    )


def _analyze(run_dir: Path) -> tuple[Tree, tuple[str, ...]]:
    """The results of `perfscope analyze`, or a note why there are none: what has trained is measured all the same."""
    ended = subprocess.run(
        [sys.executable, "-m", "perfscope", "--quiet", "analyze", str(run_dir), "--format", "json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,  # Ctrl-C ends the sweep, not the analysis of what has trained
    )
    try:
        return json.loads(ended.stdout).get("results", {}), ()
    except ValueError:
        reason = _explain(ended.stderr, ended.returncode).replace(str(run_dir), "the run")
        return {}, (f"not analyzed: {reason}",)


def _explain(errors: str, exit_code: int) -> str:
    """Why a command printed no results, from its errors."""
    lines = [line.removeprefix("perfscope: ") for line in errors.splitlines() if line.strip()]
    if not lines:
        return f"perfscope analyze printed nothing and ended with exit code {exit_code}"
    return f"perfscope analyze failed: {lines[-1]}" if "Traceback" in lines[0] else lines[0]


def _read_ranks(folder: Path, variant: Variant, settings: Settings) -> list[Tree]:
    ranks = [json.loads(path.read_bytes()) for path in sorted(folder.glob("rank-*.json"))]
    if settings.launcher is None and len(ranks) != variant.processes:
        raise PerfscopeError(f"{len(ranks)} of {variant.processes} ranks wrote a result")
    if not ranks:
        raise PerfscopeError("no rank wrote a result", hint="several hosts need a folder that they share")
    return ranks


def _find_steps(run_dir: Path, settings: Settings) -> tuple[int, ...]:
    first, last = WARMUP + 1, WARMUP + settings.steps

    def is_measured(table: Steps) -> Bool:
        rows = (table.step >= first) & (table.step <= last) & (table.window == "")
        rows &= ~(present(table.compile_ns) | present(table.save_ns))
        return np.asarray(rows, np.bool_)

    _, times_ns = job_times_ns(last_attempts(read_run(run_dir).steps), is_measured)
    if not len(times_ns):
        raise PerfscopeError("no step after the warm-up was measured")
    return tuple(times_ns.tolist())


def _mean_losses(ranks: Sequence[Tree]) -> list[float]:
    columns = zip(*(rank["losses"] for rank in ranks), strict=True)
    losses = [[loss for loss in column if loss is not None] for column in columns]
    return [fmean(column) for column in losses if column]


def _last_quarter(values: Sequence[_T]) -> Sequence[_T]:
    return values[-max(1, len(values) // 4) :]


def _find_accuracy(ranks: Sequence[Tree]) -> float | None:
    hits = answers = 0
    for rank in ranks:
        hits += sum(_last_quarter(rank["hits"]))
        answers += sum(_last_quarter(rank["answers"]))
    return hits / answers if answers else None


def _find_overlap(results: Tree) -> float | None:
    axes = _get(results, "overlap", "axes") or []
    communication = sum(axis["communication_us"] for axis in axes)
    return sum(axis["hidden_us"] for axis in axes) / communication if communication else None


def _find_shares(results: Tree) -> dict[str, float]:
    whole = _get(results, "breakdown", "all_marked") or _get(results, "breakdown", "all") or {}
    if not whole.get("window_us"):
        return {}
    parts = ("compute", "exposed_communication", "exposed_copy", "idle")
    return {part: whole[f"{part}_us"] / whole["window_us"] for part in parts}


def _find_tflops(
    variant: Variant, samples: int, machine: Machine, step_ns: Sequence[int], results: Tree
) -> dict[str, float]:
    conventions = _get(results, "mfu", "conventions") or []
    by_name = {line["name"]: line["tflops_per_gpu"] for line in conventions if line["tflops_per_gpu"] is not None}
    if machine.flops_per_sample is not None and step_ns:
        step_s = fmean(step_ns) / NS_PER_S
        by_name["products"] = machine.flops_per_sample * samples / step_s / variant.nproc / TERA
    return by_name


def _doubt(losses: Sequence[float], step_ns: Sequence[int], settings: Settings) -> list[str]:
    notes = []
    wild = next((step for step, loss in enumerate(losses, 1) if not isfinite(loss)), None)
    if wild is not None:
        notes.append(f"the loss is no number from step {wild} of {len(losses)} on")
    elif len(losses) > 1 and not losses[-1] < losses[0]:
        notes.append(f"the loss did not fall: {losses[0]:.4f} to {losses[-1]:.4f}")
    if len(step_ns) < settings.steps:
        notes.append(
            f"{settings.steps - len(step_ns)} of {settings.steps} measured steps were disturbed and are left out"
        )
    return notes


def _get(results: Tree, *keys: str) -> Any:  # noqa: ANN401  # a value of JSON
    value: Any = results
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if present else None
