"""The tables of a benchmark."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfscope.bench.rows import Measurement, sum_up
from perfscope.bench.tables import (
    comparison_section,
    time_section,
)
from tests.bench.examples import measurement, variant

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
    section = comparison_section(rows, is_cpu=False)
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
    assert cells(section, "ddp x 2")["Checkpoint (GB)"] == pytest.approx(1.0)
    assert cells(section, "ddp x 2")["TFLOPs"] == pytest.approx(5.0)
    assert cells(section, "mp x 2")["Bubble (%)"] == pytest.approx(40.0)
    assert len(section.rows) == 3


def test_energy_of_a_training_of_less_than_two_seconds_is_absent() -> None:
    short = replace(SINGLE, step_ns=SINGLE.step_ns[1:])
    section = time_section(sum_up([short]))
    assert cells(section, "single x 1")["J/sample"] is None
    assert any("less than 2 s" in note for note in section.notes)


def test_what_is_absent_has_its_reason() -> None:
    whole = replace(
        SINGLE,
        shares={"compute": 1.0},
        overlap=0.5,
        bubble=0.0,
        save_bytes=1,
        save_ns=1,
        tflops={"products": 1.0},
        mfu=0.1,
    )
    assert len(time_section(sum_up([whole])).notes) == 1
    assert "No overlap: no communication ran on a GPU." in time_section(sum_up([whole, DDP])).notes
