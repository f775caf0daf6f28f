"""What ``perfscope plan`` and ``perfscope whatif`` predict of a row, beside its measurement."""

from __future__ import annotations

from dataclasses import replace

from perfscope.bench.launching import Place
from perfscope.bench.measurement import Measurement
from perfscope.bench.measuring import Tree, run_perfscope
from perfscope.bench.settings import order_variants
from perfscope.constants import US_PER_S
from perfscope.errors import PerfscopeError

#: The convention by which the plan counts operations, unless it is told another.
_CONVENTION = "bigscience"
_SCENARIO = "communication-free"


class Predictor:
    """Predicts each row at the TFLOPs per device of the first one that is measured with the same precision."""

    def __init__(self) -> None:
        self._tflops: dict[str, float] = {}

    def start_from(self, measurements: list[Measurement]) -> None:
        """Take the speed from rows that were measured before, whatever the order of their files."""
        order = {variant: number for number, variant in enumerate(order_variants(row.variant for row in measurements))}
        for measurement in sorted(measurements, key=lambda row: (order[row.variant], row.repetition)):
            self._remember(measurement)

    def __call__(self, measurement: Measurement, place: Place) -> Measurement:
        """The measurement with its predictions; those that cannot be made are absent, and a note says why."""
        self._remember(measurement)
        if measurement.reason is not None or measurement.repetition > 0:
            return measurement
        predictions: dict[str, float | None] = {}
        notes = []
        for predict in (self._plan, _replay):
            try:
                predictions |= predict(measurement, place)
            except PerfscopeError as error:
                notes.append(str(error).replace(str(place.run_dir), "the run"))
        return replace(measurement, predictions=predictions, unpredicted=tuple(notes))

    def _remember(self, measurement: Measurement) -> None:
        if _CONVENTION in measurement.tflops:
            self._tflops.setdefault(measurement.variant.precision, measurement.tflops[_CONVENTION])

    def _plan(self, measurement: Measurement, place: Place) -> dict[str, float | None]:
        variant = measurement.variant
        words = ["plan", "--run", str(place.run_dir), "--gpus", str(variant.nproc)]
        words += ["--checkpointing", "full" if variant.recompute else "none"]
        for option, degree in variant.facts.layout.items():
            words += [f"--{option}", str(variant.nproc if degree == "all" else degree)]
        tflops = self._tflops.get(variant.precision)
        if tflops is not None:
            words += ["--tflops", f"{tflops:.9g}"]
        quantities = {row["name"]: row["estimated"] for row in _compared(run_perfscope(*words))}
        return {"plan_memory_bytes": quantities.get("memory_bytes"), "plan_step_s": quantities.get("step_s")}


def _compared(document: Tree) -> list[Tree]:
    comparison = document.get("run") or {}
    return list(comparison.get("quantities", []))


def _replay(measurement: Measurement, place: Place) -> dict[str, float | None]:
    """The profiled step as it was, with a host as fast as in unprofiled steps, and then as changed."""
    del measurement
    answer = run_perfscope("whatif", str(place.run_dir), "--scenario", _SCENARIO)
    scenario: Tree = next((row for row in answer.get("scenarios", []) if row["name"] == _SCENARIO), {})
    step_us, saved_us = scenario.get("step_us"), scenario.get("saved_us")
    figures = {
        "whatif_profiled_s": answer.get("measured_step_us"),
        "whatif_replay_s": answer.get("replayed_step_us"),
        "whatif_unprofiled_s": step_us + saved_us if step_us is not None and saved_us is not None else None,
        "whatif_communication_free_s": step_us,
    }
    return {name: None if value is None else value / US_PER_S for name, value in figures.items()}
