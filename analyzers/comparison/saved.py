"""A side that was saved as a baseline: a run's figures, steps and budget.

A baseline is what ``perfscope compare RUN --save FILE`` writes: as much as a run has, so that comparing with it is
comparing with the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import msgspec
import numpy as np
from msgspec import Struct

from perfscope.analyzers.budget.result import Budget
from perfscope.analyzers.budget.terms import KINDS, Kernel, Launches, Operation, Term
from perfscope.analyzers.comparison.change import Samples
from perfscope.analyzers.comparison.side import Kind, Setup, Side
from perfscope.errors import PerfscopeError
from perfscope.report import Json

BASELINE = "perfscope/baseline/1"
_FIGURES = ("step_time_s", "memory_bytes", "energy_j")


class _Term(Struct):
    """A term: its time of a step, and of each step."""

    term: tuple[str, ...]
    ns: int
    by_step: tuple[float, ...]


class _Budget(Struct):
    """A budget as it is stored: kernels with grid, calls and time, products with shapes, types and number."""

    terms: tuple[_Term, ...]
    steps: tuple[int, ...] = ()
    ranks: int = 1
    activities: str = ""
    is_of_host: bool = False
    kernels: tuple[tuple[str, int, int, int], ...] = ()
    operations: tuple[tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...], int], ...] = ()


class _Baseline(Struct):
    """A baseline as it is stored."""

    setup: Setup | None = None
    is_profiled: bool = False
    step_time_s: tuple[tuple[float, ...], ...] | None = None
    memory_bytes: tuple[tuple[float, ...], ...] | None = None
    energy_j: tuple[tuple[float, ...], ...] | None = None
    tflop_per_step: tuple[float, str] | None = None
    budget: _Budget | None = None
    reasons: dict[str, str] = {}


def to_baseline(side: Side) -> dict[str, Json]:
    """A side as data, whole."""
    return {
        "schema": BASELINE,
        "name": side.name,
        "is_profiled": side.is_profiled,
        "setup": {**asdict(side.setup), "versions": {name: str(text) for name, text in side.setup.versions.items()}},
        **{name: _samples_data(getattr(side, name)) for name in _FIGURES},
        "tflop_per_step": None if side.tflop_per_step is None else list(side.tflop_per_step),
        "budget": None if side.budget is None else _budget_data(side.budget),
        "reasons": {str(name): reason for name, reason in side.reasons.items()},
    }


def _samples_data(samples: Samples | None) -> Json:
    return None if samples is None else [run.tolist() for run in samples.runs]


def _budget_data(budget: Budget) -> dict[str, Json]:
    return {
        "steps": list(budget.steps),
        "ranks": budget.ranks,
        "activities": budget.activities,
        "is_of_host": budget.is_of_host,
        "terms": [
            {"term": list(term), "ns": budget.terms.get(term, 0), "by_step": times.tolist()}
            for term, times in budget.by_step.items()
        ],
        "kernels": [[*kernel, launches.calls, launches.total_ns] for kernel, launches in budget.kernels.items()],
        "operations": [
            [operation.operator, [list(shape) for shape in operation.shapes], list(operation.elements), count]
            for operation, count in budget.operations.items()
        ],
    }


def from_saved(name: str, data: Mapping[str, object]) -> Side:
    """A saved side.

    Raises:
        PerfscopeError: It is of another schema or version, or damaged.
    """
    schema = data.get("schema")
    if schema != BASELINE:
        raise PerfscopeError(
            f"{name} is {schema!r}, which this version of perfscope cannot compare: it reads {BASELINE}",
            hint="save it again: perfscope compare RUN --save FILE",
        )
    try:
        return _from_baseline(name, msgspec.convert(data, _Baseline))
    except (msgspec.ValidationError, TypeError, ValueError, AssertionError) as error:
        raise PerfscopeError(
            f"{name} is damaged: it is no complete {schema} ({type(error).__name__}: {error})",
            hint="save it again",
        ) from None


def _from_baseline(name: str, data: _Baseline) -> Side:
    return Side(
        name=name,
        kind=Kind.BASELINE,
        setup=data.setup or Setup(),
        step_time_s=_samples(data.step_time_s),
        is_profiled=data.is_profiled,
        tflop_per_step=data.tflop_per_step,
        memory_bytes=_samples(data.memory_bytes),
        energy_j=_samples(data.energy_j, is_mean=True),
        budget=None if data.budget is None else _budget(data.budget),
        reasons=data.reasons,
    )


def _samples(runs: tuple[tuple[float, ...], ...] | None, *, is_mean: bool = False) -> Samples | None:
    if not runs:
        return None
    if any(not run or min(run) <= 0 for run in runs):
        raise ValueError("a figure is no list of lists of positive numbers")
    return Samples(tuple(np.asarray(run, np.float64) for run in runs), is_mean)


def _budget(data: _Budget) -> Budget:
    terms = {Term(*row.term): row for row in data.terms}
    unknown = next((term.kind for term in terms if term.kind not in KINDS), None)
    if unknown is not None:
        raise ValueError(f"there is no term {unknown!r}")
    return Budget(
        step_ns=sum(row.ns for row in data.terms),
        terms={term: row.ns for term, row in terms.items() if row.ns},
        by_step={term: np.asarray(row.by_step, np.float64) for term, row in terms.items()},
        steps=data.steps,
        ranks=data.ranks,
        activities=data.activities,
        is_of_host=data.is_of_host,
        kernels={Kernel(name, grid): Launches(calls, total_ns) for name, grid, calls, total_ns in data.kernels},
        operations={
            Operation(operator, shapes, elements): count for operator, shapes, elements, count in data.operations
        },
    )
