"""Series of runs: weak and strong apart, baselines, ZeRO stages, memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfscope.analyzers.scaling.study import Scaling, ScalingKind, study_scaling
from perfscope.tables.scaling import ClusterSize, ScalingRun

ONE = ScalingRun(
    path="a",
    cluster=ClusterSize(1, 1),
    model="bert",
    batch=32,
    precision="fp32",
    seq_len=128,
    zero_stage=None,
    samples_per_s=100.0,
    out_of_memory=False,
)


def run(nodes: int, gpus: int, batch: int | None, speed: float | None, **facts: Any) -> ScalingRun:
    cluster = ClusterSize(nodes * gpus, nodes)
    return replace(ONE, cluster=cluster, batch=batch, samples_per_s=speed, path=f"{nodes}n{gpus}g", **facts)


def points(found: Scaling, kind: ScalingKind) -> list[tuple[int, float, float]]:
    [series] = [series for series in found.series if series.kind is kind]
    return [(point.gpus, point.speedup, point.efficiency) for point in series.points]


def test_weak_and_strong_runs_are_kept_apart() -> None:
    weak = [run(1, 1, 32, 100.0), run(1, 8, 256, 720.0), run(2, 8, 512, 1200.0)]
    strong = [run(1, 4, 256, 400.0), run(2, 8, 256, 1000.0)]
    found = study_scaling([*weak, *strong])
    assert points(found, ScalingKind.WEAK) == [(1, 1.0, 1.0), (8, 7.2, 0.9), (16, 12.0, 0.75)]
    [series] = [series for series in found.series if series.kind is ScalingKind.STRONG]
    assert [(point.gpus, point.median_speed) for point in series.points] == [(4, 400.0), (8, 720.0), (16, 1000.0)]
    assert series.points[-1].efficiency == pytest.approx(1000 / 16 / 100)


def test_the_median_of_the_runs_counts() -> None:
    runs = [run(1, 1, 32, speed) for speed in (90.0, 100.0, 300.0)] + [run(1, 2, 64, 150.0)]
    assert points(study_scaling(runs), ScalingKind.WEAK) == [(1, 1.0, 1.0), (2, 1.5, 0.75)]


def test_more_than_the_baseline_per_gpu_is_printed_and_said() -> None:
    superlinear = study_scaling([run(1, 1, 32, 100.0), run(1, 2, 64, 220.0)])
    assert points(superlinear, ScalingKind.WEAK)[-1] == (2, 2.2, 1.1)
    assert any("superlinear, with 110.0 %" in note for note in superlinear.notes)
    linear = study_scaling([run(1, 1, 32, 100.0), run(1, 2, 64, 200.0)])
    assert not any("superlinear" in note for note in linear.notes)


def test_a_baseline_of_more_than_one_gpu_is_said() -> None:
    found = study_scaling([run(1, 8, 256, 800.0), run(2, 8, 512, 1200.0)])
    assert points(found, ScalingKind.WEAK) == [(8, 1.0, 1.0), (16, 1.5, 0.75)]
    assert any("the baseline of speed-up and efficiency is 1n8g" in note for note in found.notes)


def test_set_ups_that_differ_are_never_one_series() -> None:
    runs = [run(1, 1, 32, 100.0), run(1, 8, 256, 720.0, precision="fp16"), run(2, 8, 512, 1200.0, seq_len=512)]
    found = study_scaling(runs)
    assert found.series == ()
    assert any("3 set-ups differ" in note for note in found.notes)
    assert any("in no series" in note for note in found.notes)


def test_a_failed_run_is_no_point() -> None:
    runs = [run(1, 1, 32, 100.0), run(1, 8, 256, 720.0), run(2, 8, 512, None, out_of_memory=True)]
    found = study_scaling(runs)
    assert len(points(found, ScalingKind.WEAK)) == 2
    assert any("no throughput (out of memory)" in note for note in found.notes)
