"""The tables of a benchmark, and its scaling laws and predictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.bench.launching import Place
from perfscope.bench.measurement import Measurement
from perfscope.bench.prediction import Predictor
from perfscope.bench.rows import sum_up
from perfscope.bench.scaling import scaling_sections
from perfscope.bench.tables import (
    comparison_section,
    costs_section,
    prediction_section,
    ranking_section,
    tflops_section,
    time_section,
)
from tests.bench.examples import measurement, variant
from tests.conftest import ROOT

SINGLE = replace(
    measurement(variant("single", 1), 20.0, memory=(8 * 10**9,), util_percent=90.0, last_loss=2.5, step_j=8.0),
    step_ns=(20_000_000,) * 100,
)
DDP = measurement(
    variant("ddp"), 10.0, memory=(9 * 10**9, 9 * 10**9), tflops={"products": 5.0, "palm": 6.0}, save_bytes=10**9
)
MP = measurement(variant("mp"), 21.0, memory=(6 * 10**9, 3 * 10**9), bubble=0.4)
FAILED = Measurement(variant("zero-2"), 0, reason="out of memory: CUDA out of memory")


def cells(section: object, strategy: str) -> dict[str, object]:
    columns = [column.heading for column in section.columns]  # type: ignore[attr-defined]
    row = next(row for row in section.rows if row[0] == strategy)  # type: ignore[attr-defined]
    return dict(zip(columns, row, strict=True))


def test_the_table_of_the_strategies_is_relative_to_its_first_row() -> None:
    rows = sum_up([SINGLE, DDP, MP, FAILED])
    section = comparison_section(rows, rows[0], is_cpu=False)
    first, ddp, parts, failed = (cells(section, row.variant.facts.title) for row in rows)
    assert first["Differs"] == "first row"
    assert ddp["Speed-up"] == pytest.approx(2.0)
    assert ddp["Efficiency (%)"] == pytest.approx(100.0)
    assert ddp["Change (%)"] == pytest.approx(12.5)
    assert ddp["Memory of a device (GB)"] == "9.00 each"
    assert parts["Memory of a device (GB)"] == "6.00 + 3.00"
    assert parts["Efficiency (%)"] == pytest.approx(100 * 20 / 21 / 2)
    assert failed["Notes"] == "out of memory: CUDA out of memory"
    assert failed["Samples/s"] is None
    assert failed["Loss"] is None


def test_energy_bubble_and_checkpoint_have_their_columns() -> None:
    section = time_section(sum_up([SINGLE, DDP, MP, FAILED]))
    assert cells(section, "single x 1")["J/sample"] == pytest.approx(0.5)
    assert cells(section, "single x 1")["mJ/token"] == pytest.approx(1e3 * 8 / 256)
    assert cells(section, "ddp x 2")["Checkpoint (GB)"] == pytest.approx(1.0)
    assert cells(section, "mp x 2")["Bubble (%)"] == pytest.approx(40.0)
    assert len(section.rows) == 3


def test_energy_of_a_training_of_less_than_two_seconds_is_absent() -> None:
    short = replace(SINGLE, step_ns=SINGLE.step_ns[1:])
    section = time_section(sum_up([short]))
    assert cells(section, "single x 1")["J/sample"] is None
    assert any("less than 2 s" in note for note in section.notes)


def test_what_is_absent_has_its_reason() -> None:
    whole = replace(
        SINGLE, shares={"compute": 1.0}, overlap=0.5, bubble=0.0, save_bytes=1, save_ns=1, tflops={"palm": 1.0}, mfu=0.1
    )
    assert len(time_section(sum_up([whole])).notes) == 1
    assert "No overlap: no communication ran on a GPU." in time_section(sum_up([whole, DDP])).notes
    alone, both = tflops_section(sum_up([whole])), tflops_section(sum_up([whole, DDP]))
    assert alone is not None
    assert both is not None
    assert (len(alone.notes), len(both.notes)) == (1, 2)


def test_every_row_has_what_costs_it_the_most() -> None:
    findings = ("late host: 30 % of a step", "bubble: 20 % of a step", "copies: 3 % of a step", "more: 2 % of a step")
    section = costs_section(sum_up([replace(SINGLE, findings=findings), DDP, FAILED]))
    assert section is not None
    assert section.rows == (
        ("single x 1", 2.0, "late host: 30 % of a step; bubble: 20 % of a step; copies: 3 % of a step"),
        ("ddp x 2", 1.0, None),
    )
    assert costs_section(sum_up([SINGLE, DDP])) is None


def test_tflops_have_a_column_a_convention() -> None:
    section = tflops_section(sum_up([SINGLE, DDP]))
    assert section is not None
    assert [column.heading for column in section.columns] == ["Row", "`products`", "`palm`", "MFU (%)"]
    assert cells(section, "single x 1")["`palm`"] is None
    assert tflops_section(sum_up([SINGLE])) is None


def test_neighbours_in_speed_are_compared() -> None:
    section = ranking_section(sum_up([SINGLE, DDP, MP, FAILED]))
    assert section is not None
    assert [row[:2] for row in section.rows] == [("single x 1", "ddp x 2"), ("mp x 2", "single x 1")]
    assert ranking_section(sum_up([SINGLE])) is None


def test_the_largest_number_of_devices_is_predicted_from_the_smaller_ones() -> None:
    """Amdahl's law with a serial share of 0.1 is found, and holds for four devices, which the fit did not see."""
    rows = []
    for nproc in (1, 2, 4):
        for number, noise in enumerate((1.001, 0.999)):
            step_ms = 100 * (1 + 0.1 * (nproc - 1)) / nproc * noise
            rows.append(measurement(variant("ddp", nproc), step_ms, number))
    sections = list(scaling_sections(sum_up(rows), is_weak=False))
    last = sections[-1]
    assert last.title == "4 devices predicted from 1, 2"
    amdahl = next(row for row in last.rows if row[1] == "amdahl")
    assert amdahl[2] == pytest.approx(16 / (0.1 * 1.3 / 4), rel=1e-3)
    assert abs(float(amdahl[6] or 0)) < 0.2


def test_ranks_that_are_hosts_of_their_own_are_nodes_of_a_series_and_have_predictions_with_intervals() -> None:
    """On one node nothing tells what a network between nodes costs; where each rank is a node, it was measured."""
    noises = enumerate((1.01, 0.99, 1.0))
    rows = [
        measurement(variant("ddp", size), 100 * (1 + 0.1 * (size - 1)) / size * noise, number, nodes=nodes)
        for number, noise in noises
        for size, nodes in ((1, 1), (2, 2), (3, 3), (4, 4), (8, 8))
    ]
    series, *_, last = scaling_sections(sum_up(rows), is_weak=False)
    assert [row[:2] for row in series.rows] == [(1, 1), (2, 2), (3, 3), (4, 4), (8, 8)]
    assert {row[1] for row in last.rows} >= {"amdahl", "usl"}
    amdahl = next(row for row in last.rows if row[1] == "amdahl")
    assert amdahl[3] is not None
    assert float(amdahl[3]) < float(amdahl[2] or 0) < float(amdahl[4] or 0)
    on_one = scaling_sections(sum_up([replace(row, nodes=1) for row in rows]), is_weak=False)
    *_, last = on_one
    assert all(row[3] is None for row in last.rows)


def test_a_strategy_that_needs_two_devices_starts_from_the_row_of_one() -> None:
    rows = sum_up([SINGLE, measurement(variant("fsdp2", 2), 11.0)])
    series = next(iter(scaling_sections(rows, is_weak=False)))
    assert [row[1] for row in series.rows] == [1, 2]
    assert list(scaling_sections(sum_up([SINGLE]), is_weak=False)) == []


def test_plan_and_whatif_predict_a_row_from_its_run(tmp_path: Path) -> None:
    """The replay and the memory of a real run of ZeRO-1 on four H200 are within 2 % of what was measured there."""
    run = ROOT / "fixtures" / "runs" / "h200_zero1"
    place = Place(run, tmp_path, tmp_path, tmp_path / "log", tmp_path / "gate")
    row = measurement(variant("zero-1", 4, precision="bf16"), 163.7, tflops={"bigscience": 426.443})
    predicted = Predictor()(row, place)
    assert predicted.unpredicted == ()
    assert predicted.predictions["plan_memory_bytes"] == pytest.approx(17_497_718_272, rel=0.02)
    assert predicted.predictions["plan_step_s"] == pytest.approx(0.1637, rel=0.001)
    assert predicted.predictions["whatif_replay_s"] == pytest.approx(0.164121581, rel=0.01)
    free, unprofiled = (predicted.predictions[f"whatif_{name}_s"] for name in ("communication_free", "unprofiled"))
    assert free is not None
    assert unprofiled is not None
    assert free < 0.155 < unprofiled
    section = prediction_section(sum_up([predicted]))
    assert section is not None
    assert cells(section, "zero-1 x 4")["plan: memory (GB)"] == pytest.approx(17.66, abs=0.01)


def test_a_sweep_that_goes_on_predicts_from_the_first_row_of_the_table() -> None:
    """Whatever the order of the files, in which 1f1b is before single."""
    run_dir = ROOT / "fixtures" / "runs" / "h200_zero1"
    place = Place(run_dir, run_dir, run_dir, run_dir / "log", run_dir / "gate")
    slow, fast = (
        measurement(variant(name, nproc), 10.0, tflops={"bigscience": tflops})
        for name, nproc, tflops in (("1f1b", 2, 50.0), ("single", 1, 100.0))
    )
    steps = []
    for earlier in ([slow, fast], [fast]):
        predictor = Predictor()
        predictor.start_from(earlier)
        steps.append(predictor(DDP, place).predictions["plan_step_s"])
    assert steps[0] == steps[1] is not None


def test_what_cannot_be_predicted_says_why(tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path, tmp_path, tmp_path / "log", tmp_path / "gate")
    predicted = Predictor()(DDP, place)
    assert len(predicted.unpredicted) == 2
    section = prediction_section(sum_up([predicted]))
    assert section is not None
    assert any(note.startswith("Not predicted: ") for note in section.notes)
    assert prediction_section(sum_up([DDP])) is None
