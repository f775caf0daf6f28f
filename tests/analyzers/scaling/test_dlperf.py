"""DLPerf's protocols, to the digit, and where the original scripts stop or answer wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analyzers.scaling import dlperf
from perfscope.errors import MissingInput, SourceError, UsageError
from perfscope.result import to_json
from perfscope.sources.dlperf import Protocol, read_protocol
from tests.analyzers.scaling.benchmark import (
    gluon_line,
    latencies_for,
    numpys_round,
    oracle,
    write_deepspeed,
    write_gluon,
)

#: Speeds of the runs of DLPerf's MXNet BERT-base fp32 benchmark with batch 32, as its README prints them.
PUBLISHED_RUNS = {
    "1n1g": {1: 150.11, 2: 150.14, 3: 149.53, 4: 149.88, 5: 150.12, 6: 150.04, 7: 150.9},
    "1n2g": {1: 267.29, 2: 271.05, 3: 273.02, 4: 270.28, 5: 269.99, 6: 272.09, 7: 268.86},
    "1n4g": {1: 537.05, 2: 538.5, 3: 549.03, 4: 538.91, 5: 533.45, 6: 536.96, 7: 549.75},
    "1n8g": {1: 1061.91, 2: 1075.74, 3: 1036.56, 4: 1047.02, 5: 1058.6, 6: 1075.79, 7: 1050.76},
    "2n8g": {2: 1848.74, 3: 1854.88, 4: 1844.1, 5: 1847.2, 6: 1835.11, 7: 1841.41},
    "4n8g": {1: 3693.44, 2: 3668.26, 3: 3666.21, 4: 3698.92, 5: 3671.45, 6: 3658.23, 7: 3673.42},
}
PUBLISHED_RESULT = {
    "1n1g": {"average_speed": 150.1, "batch_size_per_device": 32, "median_speed": 150.11, "speedup": 1.0},
    "1n2g": {"average_speed": 270.37, "batch_size_per_device": 32, "median_speed": 270.28, "speedup": 1.8},
    "1n4g": {"average_speed": 540.52, "batch_size_per_device": 32, "median_speed": 538.5, "speedup": 3.59},
    "1n8g": {"average_speed": 1058.05, "batch_size_per_device": 32, "median_speed": 1058.6, "speedup": 7.05},
    "2n8g": {"average_speed": 1845.24, "batch_size_per_device": 32, "median_speed": 1845.65, "speedup": 12.3},
    "4n8g": {"average_speed": 3675.7, "batch_size_per_device": 32, "median_speed": 3671.45, "speedup": 24.46},
}


def mxnet(*paths: Path) -> dlperf.ProtocolResult:
    runs, _ = read_protocol(paths, Protocol.MXNET_BERT)
    return dlperf.mxnet_bert(runs)


def deepspeed(*paths: Path) -> dlperf.ProtocolResult:
    runs, _ = read_protocol(paths, Protocol.DEEPSPEED)
    return dlperf.deepspeed(runs)


def data_of(result: dlperf.ProtocolResult) -> Any:
    return to_json(result.results)


def test_the_published_benchmark_is_reproduced_to_the_digit(tmp_path: Path) -> None:
    for case, runs in PUBLISHED_RUNS.items():
        gpus = int(case[0]) * int(case[2])
        for run, speed in runs.items():
            write_gluon(tmp_path / case, run, gpus, latencies_for(speed, gpus))
    result = mxnet(tmp_path)
    assert {case: dict(speed.runs) for case, speed in result.results["bert"].items()} == PUBLISHED_RUNS
    assert data_of(result) == {"bert": PUBLISHED_RESULT}
    assert result.notes == ("bert 2n8g: 6 runs; the protocol has 7",)


def test_ranks_out_of_step_are_grouped_as_the_script_does_and_that_is_said(tmp_path: Path) -> None:
    write_gluon(tmp_path / "1n1g", 1, 1, ["100.0"] * 200)
    (tmp_path / "1n2g").mkdir()
    lines = [gluon_line(step, latency) for latency in ("100.0", "300.0") for step in range(1, 201)]
    (tmp_path / "1n2g" / "bert_b32_fp32_1.log").write_text("".join(lines))
    result = mxnet(tmp_path)
    # Two lines at a time, the last hundred pairs are all of the slow rank.
    assert data_of(result)["bert"]["1n2g"]["median_speed"] == 213.33
    assert any("213.33 as the original script groups lines; 426.67 by iteration" in note for note in result.notes)


def test_without_one_gpu_there_is_no_speed_up(tmp_path: Path) -> None:
    write_gluon(tmp_path / "1n8g", 1, 8, ["100.0"] * 200)
    result = mxnet(tmp_path)
    assert data_of(result) == {
        "bert": {
            "1n8g": {"average_speed": 2560.0, "batch_size_per_device": 32, "median_speed": 2560.0, "speedup": None}
        }
    }
    assert any("1n1g is missing" in note for note in result.notes)


def test_a_log_of_another_length_is_taken_by_iteration_and_named(tmp_path: Path) -> None:
    write_gluon(tmp_path / "1n1g", 1, 1, ["200.0"] * 100 + ["100.0"] * 20)
    result = mxnet(tmp_path)
    assert data_of(result)["bert"]["1n1g"]["average_speed"] == 320.0
    assert any("120 lines, the original script needs 200 x 1" in note for note in result.notes)


def test_a_log_that_ends_in_its_warm_up_has_no_speed(tmp_path: Path) -> None:
    write_gluon(tmp_path / "1n1g", 1, 1, ["100.0"] * 100)
    with pytest.raises(MissingInput, match="no run is longer"):
        mxnet(tmp_path)


def test_two_batch_sizes_are_not_mixed(tmp_path: Path) -> None:
    write_gluon(tmp_path / "bz32" / "1n1g", 1, 1, ["100.0"] * 200, batch=32)
    write_gluon(tmp_path / "bz48" / "1n1g", 1, 1, ["100.0"] * 200, batch=48)
    with pytest.raises(UsageError, match="batch sizes 32 and 48"):
        mxnet(tmp_path)
    assert mxnet(tmp_path / "bz48").results["bert"]["1n1g"].batch_size_per_device == 48


def test_nothing_to_read_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no log of the protocol"):
        mxnet(tmp_path)
    with pytest.raises(SourceError, match="does not exist"):
        mxnet(tmp_path / "none")


def test_deepspeed_takes_the_list_from_its_99th_line(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    speeds: dict[str, dict[int, float]] = {}
    for case in ("1n1g", "1n4g", "4n8g"):
        for run in (1, 2, 3, 4):
            printed = draw.normal(20.0 * int(case[0]) * int(case[2]), 0.3, 198)
            write_deepspeed(tmp_path / case, run, [repr(float(value)) for value in printed])
            kept = [round(float(value), 4) for value in printed][98:200]
            speeds.setdefault(case, {})[run] = numpys_round(float(np.mean(kept)))
    assert data_of(deepspeed(tmp_path)) == {"gpt2-small": oracle(speeds, 8)}


def test_too_short_a_deepspeed_log_is_no_not_a_number(tmp_path: Path) -> None:
    write_deepspeed(tmp_path / "1n1g", 1, ["20.0"] * 198)
    write_deepspeed(tmp_path / "1n1g", 2, ["20.0"] * 50)
    result = deepspeed(tmp_path)
    assert list(result.results["gpt2-small"]["1n1g"].runs) == [1]
    assert any("no iteration beyond the first 100" in note for note in result.notes)


@pytest.mark.parametrize(("value", "numpys"), [(0.285, 0.28), (1.005, 1.0), (2.675, 2.68)])
def test_rounding_is_numpys(value: float, numpys: float) -> None:
    # 2.675 lies below the tie, so Python gives 2.67; times a hundred it is the tie itself, and NumPy gives 2.68.
    assert dlperf._round(value) == numpys


def test_records_glued_on_one_line_are_all_read(tmp_path: Path) -> None:
    write_deepspeed(tmp_path / "1n1g", 1, ["20.0"] * 198)
    path = write_gluon(tmp_path / "mx" / "1n1g", 1, 1, ["100.0"] * 199 + ["900.0"])
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-2]) + lines[-2].rstrip("\n") + lines[-1])
    result = mxnet(tmp_path / "mx")
    assert result.results["bert"]["1n1g"].median_speed == round((99 * 320 + 32000 / 900) / 100, 2)
    path = tmp_path / "1n1g" / "gpt2-small_b8_fp16_1.log"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:100]) + lines[100].rstrip("\n") + "".join(lines[101:]))
    runs, _ = read_protocol([tmp_path / "1n1g"], Protocol.DEEPSPEED)
    assert len(runs[0].speeds) == 198
