"""A side written to a file and read again, and the saved result of ``perfscope analyze`` as a side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from perfscope.analyzers.budget.result import Budget
from perfscope.analyzers.budget.terms import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    IDLE,
    KINDS,
    LOADING,
    OTHER,
    Kernel,
    Launches,
    Operation,
    Term,
)
from perfscope.analyzers.comparison.change import Samples
from perfscope.analyzers.comparison.side import Figure, Kind, Setup, Side
from perfscope.constants import NS_PER_S, NS_PER_US
from perfscope.errors import PerfscopeError
from perfscope.report import Json

BASELINE = "perfscope/baseline/1"
ANALYSIS = "perfscope/analysis/1"
_FIGURES = ("step_time_s", "memory_bytes", "energy_j")
_OF_DEVICE = {"compute": COMPUTE, "exposed_communication": COMMUNICATION, "exposed_copy": COPY, "idle": IDLE}
_OF_HOST = {
    "compute": COMPUTE,
    "exposed_communication": COMMUNICATION,
    "exposed_data_loading": LOADING,
    "other": OTHER,
}


def to_baseline(side: Side) -> dict[str, Json]:
    """A side as data, whole."""
    setup = side.setup
    return {
        "schema": BASELINE,
        "name": side.name,
        "is_profiled": side.is_profiled,
        "setup": {
            "model": setup.model,
            "parameters": setup.parameters,
            "dimensions": None if setup.dimensions is None else list(setup.dimensions),
            "gpus": setup.gpus,
            "device": setup.device,
            "dtype": setup.dtype,
            "samples": setup.samples,
            "tokens": setup.tokens,
            "versions": dict(setup.versions),
        },
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
    """A saved side, of a baseline or of an analysis.

    Raises:
        PerfscopeError: It is of another schema or version, or damaged.
    """
    schema = data.get("schema")
    if schema not in (BASELINE, ANALYSIS):
        raise PerfscopeError(
            f"{name} is {schema!r}, which this version of perfscope cannot compare: it reads {BASELINE} and {ANALYSIS}",
            hint="save it again: perfscope compare RUN --save FILE",
        )
    try:
        return _from_baseline(name, _Values(data)) if schema == BASELINE else _from_analysis(name, _Values(data))
    except (KeyError, IndexError, TypeError, ValueError, AssertionError) as error:
        raise PerfscopeError(
            f"{name} is damaged: it is no complete {schema} ({type(error).__name__}: {error})",
            hint="save it again",
        ) from None


class _Values:
    """An object of JSON, whose values are read with their types; absent and null are the same.

    Every method raises TypeError or ValueError where a value is of another type.
    """

    def __init__(self, data: object) -> None:
        if not isinstance(data, Mapping):
            raise TypeError(f"{data!r} is no object")
        self._data = data

    def number(self, name: str) -> float | None:
        value = self._data.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise TypeError(f"{name} is no number")
        return None if value is None else float(value)

    def integer(self, name: str) -> int | None:
        value = self.number(name)
        return None if value is None else int(value)

    def text(self, name: str) -> str | None:
        value = self._data.get(name)
        return None if value is None else str(value)

    def flag(self, name: str) -> bool:
        return self._data.get(name) is True

    def rows(self, name: str) -> Sequence[object]:
        value = self._data.get(name) or []
        if not isinstance(value, list):
            raise TypeError(f"{name} is no list")
        return value

    def inner(self, name: str) -> _Values | None:
        value = self._data.get(name)
        return None if value is None else _Values(value)

    def objects(self, name: str) -> list[_Values]:
        return [_Values(row) for row in self.rows(name)]

    def texts(self, name: str) -> dict[str, str]:
        value = self._data.get(name) or {}
        if not isinstance(value, Mapping):
            raise TypeError(f"{name} is no object")
        return {str(key): str(text) for key, text in value.items()}


def _samples(data: _Values, name: str, *, is_mean: bool = False) -> Samples | None:
    runs = [np.asarray(run, np.float64) for run in data.rows(name)]
    if any(run.ndim != 1 or not len(run) or not (run > 0).all() for run in runs):
        raise ValueError(f"{name} is no list of lists of positive numbers")
    return Samples(tuple(runs), is_mean) if runs else None


def _from_baseline(name: str, data: _Values) -> Side:
    setup, budget, operations = data.inner("setup"), data.inner("budget"), data.rows("tflop_per_step")
    return Side(
        name=name,
        kind=Kind.BASELINE,
        setup=Setup() if setup is None else _setup(setup),
        step_time_s=_samples(data, "step_time_s"),
        is_profiled=data.flag("is_profiled"),
        tflop_per_step=(float(str(operations[0])), str(operations[1])) if operations else None,
        memory_bytes=_samples(data, "memory_bytes"),
        energy_j=_samples(data, "energy_j", is_mean=True),
        budget=None if budget is None else _budget(budget),
        reasons=data.texts("reasons"),
    )


def _setup(data: _Values) -> Setup:
    dimensions = tuple(int(str(value)) for value in data.rows("dimensions"))
    return Setup(
        model=data.text("model"),
        parameters=data.integer("parameters"),
        dimensions=dimensions or None,
        gpus=data.integer("gpus"),
        device=data.text("device"),
        dtype=data.text("dtype"),
        samples=data.number("samples"),
        tokens=data.number("tokens"),
        versions=data.texts("versions"),
    )


def _budget(data: _Values) -> Budget:
    terms, by_step = {}, {}
    for row in data.objects("terms"):
        kind, *names = (str(part) for part in row.rows("term"))
        if kind not in KINDS:
            raise ValueError(f"there is no term {kind!r}")
        term = Term(kind, *names)
        terms[term] = row.integer("ns") or 0
        by_step[term] = np.asarray(row.rows("by_step"), np.float64)
    kernels, operations = {}, {}
    for entry in data.rows("kernels"):
        kernel, grid, calls, total_ns = _list(entry)
        kernels[Kernel(str(kernel), int(str(grid)))] = Launches(int(str(calls)), int(str(total_ns)))
    for entry in data.rows("operations"):
        operator, shapes, elements, count = _list(entry)
        sizes = tuple(tuple(int(str(size)) for size in _list(shape)) for shape in _list(shapes))
        operations[Operation(str(operator), sizes, tuple(map(str, _list(elements))))] = int(str(count))
    return Budget(
        step_ns=sum(terms.values()),
        terms={term: ns for term, ns in terms.items() if ns},
        by_step=by_step,
        steps=tuple(int(str(step)) for step in data.rows("steps")),
        ranks=data.integer("ranks") or 1,
        activities=data.text("activities") or "",
        is_of_host=data.flag("is_of_host"),
        kernels=kernels,
        operations=operations,
    )


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value


def _from_analysis(name: str, data: _Values) -> Side:
    results = data.inner("results") or _Values({})
    steps, mfu, energy = (results.inner(result) for result in ("steps", "mfu", "energy"))
    ranks = steps.objects("ranks") if steps else []
    peaks = [peak for rank in ranks if (peak := rank.number("memory_peak_bytes"))]
    step_s = steps.number("step_time_s") if steps else None
    tflops = mfu.number("tflops_per_gpu") if mfu else None
    step_j = energy.number("step_j") if energy else None
    times_ns = [float(str(ns)) for ns in steps.rows("undisturbed_ns")] if steps else []
    budget = _coarse_budget(results)
    return Side(
        name=name,
        kind=Kind.ANALYSIS,
        setup=Setup(
            parameters=mfu.integer("parameters") if mfu else None,
            gpus=len(ranks) or None,
            device=mfu.text("device") if mfu else None,
            dtype=mfu.text("dtype") if mfu else None,
            samples=steps.number("samples_per_step") if steps else None,
            tokens=steps.number("tokens_per_step") if steps else None,
        ),
        step_time_s=_values([ns / NS_PER_S for ns in times_ns] or ([step_s] if step_s else [])),
        tflop_per_step=(tflops * step_s, (mfu.text("convention") if mfu else "") or "")
        if tflops is not None and step_s
        else None,
        memory_bytes=_values([max(peaks)] if peaks else []),
        energy_j=_values([step_j] if step_j else []),
        budget=budget,
        reasons=dict.fromkeys((*Figure, "budget"), "the saved analysis does not have it"),
    )


def _values(values: Sequence[float]) -> Samples | None:
    return Samples((np.asarray(values, np.float64),)) if len(values) else None


def _coarse_budget(results: _Values) -> Budget | None:
    """The budget by kind, of the marked steps of a saved breakdown, or of a saved host time."""
    breakdown, host = results.inner("breakdown"), results.inner("host")
    of_ranks, kinds = (breakdown, _OF_DEVICE) if breakdown else (host, _OF_HOST)
    rows: list[dict[str, float]] = []
    steps: set[str] = set()
    ranks = of_ranks.objects("ranks") if of_ranks else []
    for rank in ranks:
        between_us = (rank.number("between_steps_us") or 0.0) / max(len(rank.rows("steps")), 1)
        for step in rank.objects("steps"):
            steps.add(step.text("name") or "")
            row = {kind: (step.number(f"{key}_us") or 0.0) * NS_PER_US for key, kind in kinds.items()}
            row[kinds["idle" if breakdown else "other"]] += between_us * NS_PER_US
            rows.append({**row, "step": float((step.text("name") or "0").rpartition("#")[2] or 0)})
    if not rows:
        return None
    numbers = sorted({row["step"] for row in rows})
    by_step = {
        Term(kind): np.array([np.mean([row[kind] for row in rows if row["step"] == number]) for number in numbers])
        for kind in kinds.values()
    }
    terms = {term: round(float(np.mean([row[term.kind] for row in rows]))) for term in by_step}
    return Budget(
        step_ns=sum(terms.values()),
        terms={term: ns for term, ns in terms.items() if ns},
        by_step=by_step,
        steps=tuple(int(number) for number in numbers),
        ranks=len(ranks),
        activities="",
        is_of_host=breakdown is None,
        kernels={},
        operations={},
    )
