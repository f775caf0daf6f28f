"""Series of runs: weak and strong apart, baselines, ZeRO stages, memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfscope.analyzers.scaling.study import Scaling, ScalingKind, compare_zero_stages, study_scaling
from perfscope.result import to_json
from perfscope.tables.scaling import ClusterSize, DeviceUse, ScalingRun

ONE = ScalingRun(
    path="a",
    cluster=ClusterSize(1, 1),
    model="bert",
    batch=32,
    precision="fp32",
    seq_len=128,
    zero_stage=None,
    dp=1,
    mp=1,
    samples_per_s=100.0,
    device=None,
    out_of_memory=False,
)


def run(nodes: int, gpus: int, batch: int | None, speed: float | None, **facts: Any) -> ScalingRun:
    cluster = ClusterSize(nodes, gpus)
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


def test_results_have_dlperfs_keys() -> None:
    found = study_scaling([run(1, 1, 32, 100.0), run(4, 8, 1024, 2400.0)])
    assert to_json(found.results["bert"]["4n8g"]) == {
        "batch_size_per_device": 32,
        "case": "4n8g",
        "nodes": 4,
        "gpus_per_node": 8,
        "gpus": 32,
        "global_batch_size": 1024,
        "runs": 1,
        "average_speed": 2400.0,
        "median_speed": 2400.0,
        "median_interval": None,
        "speedup": 24.0,
        "efficiency": 0.75,
    }


def test_two_batch_sizes_are_two_results() -> None:
    runs = [run(1, gpus, batch * gpus, 100.0 * gpus) for batch in (32, 48) for gpus in (1, 2)]
    assert list(study_scaling(runs).results) == [
        "bert, fp32, sequence 128, batch 32, weak",
        "bert, fp32, sequence 128, batch 48, weak",
    ]


def test_names_are_written_as_dlperf_writes_them() -> None:
    assert run(4, 8, 128, 1.0, dp=32, mp=None).name == "4n_8g_32dp_4bs"
    assert run(1, 8, 32, 1.0, dp=None, mp=None).name == "1n_8g_dp_4bs"
    assert run(1, 8, 32, 1.0, dp=4, mp=2).name == "1n_8g_4dp_2mp_8bs"


def stage(number: int, memory_mib: int, util: float, speed: float) -> ScalingRun:
    device = DeviceUse(memory_mib * 2**20, 16160 * 2**20, util)
    return run(1, 8, 32, speed, zero_stage=number, device=device, dp=None, mp=None)


def test_zero_stages_of_the_published_comparison() -> None:
    # DLPerf prints 15387 and 14199 (down 7.7 %) MB, 92 and 87 %, 198.6 and 195.8 (down 1.4 %) samples a second.
    found = study_scaling([stage(1, 14199, 87, 195.8), stage(0, 15387, 92, 198.6)])
    base, first = found.zero
    assert (base.zero_stage, base.gpu_mem_change, base.samples_per_s_change) == (0, None, None)
    assert first.gpu_mem_change == pytest.approx(-0.077, abs=5e-4)
    assert first.samples_per_s_change == pytest.approx(-0.014, abs=5e-4)
    assert first.memory_saved_bytes == (15387 - 14199) * 2**20
    section = found.sections()[0]
    assert section.rows[0] == ("zero-stage-0", "1n_8g_dp_4bs", "15387", 92, "198.6")
    assert section.rows[1] == ("zero-stage-1", "1n_8g_dp_4bs", "14199 (1188, ↓7.7%)", 87, "195.8 (↓1.4%)")


def test_one_stage_alone_is_no_comparison() -> None:
    assert compare_zero_stages([stage(1, 14199, 87, 195.8), run(1, 8, 32, 1.0)]) == ()


def test_without_stage_0_there_is_no_change() -> None:
    rows = compare_zero_stages([stage(1, 14199, 87, 195.8), stage(2, 13000, 80, 190.0)])
    assert [row.gpu_mem_change for row in rows] == [None, None]


def test_memory_used_of_total_and_where_it_did_not_fit() -> None:
    runs = [
        run(1, 1, 48, 1.0, device=DeviceUse(14021 * 2**20, 16160 * 2**20, None)),
        run(1, 1, 96, None, out_of_memory=True),
    ]
    section = study_scaling(runs).sections()[-1]
    assert section.rows[0][2:5] == (48.0, 14021.0, 16160.0)
    assert section.rows[0][5] == pytest.approx(86.76, abs=0.01)
    assert section.rows[0][6] == "no"
    assert section.rows[1][2:] == (96.0, None, None, None, "OOM")
