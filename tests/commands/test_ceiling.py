"""What a machine attains at best is measured, written, and read again; what is no such file is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope.errors import SourceError
from perfscope.sources.ceilings import read_ceiling
from tests.commands.report_cli import run

FILE = {
    "schema": "perfscope/ceiling/1",
    "device": "NVIDIA H200",
    "devices": 2,
    "torch": "2.11.0",
    "products": [
        {"dtype": "bf16", "rows": 8, "columns": 8, "inner": 8, "tflops": 700.0},
        {"dtype": "bf16", "rows": 16, "columns": 8, "inner": 8, "tflops": 750.5},
        {"dtype": "fp32", "rows": 8, "columns": 8, "inner": 8, "tflops": 50.0},
    ],
    "memory": [{"operation": "copy", "bytes": 1024, "tb_s": 4.1}, {"operation": "add", "bytes": 1024, "tb_s": 4.4}],
    "collectives": [{"operation": "all_reduce", "ranks": 2, "bytes": 1024, "seconds": 0.1, "busbw_gb_s": 360.0}],
}


def test_the_highest_rates_of_a_file_are_the_ceilings(tmp_path: Path) -> None:
    path = tmp_path / "ceiling.json"
    path.write_text(json.dumps(FILE))
    ceiling = read_ceiling(path)
    assert (ceiling.tflops("bf16"), ceiling.tflops("fp32"), ceiling.tflops("fp8")) == (750.5, 50.0, None)
    assert (ceiling.tb_s, ceiling.busbw_gb_s("all_reduce"), ceiling.busbw_gb_s("broadcast")) == (4.4, 360.0, None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "is no file of `perfscope doctor --ceiling`"),
        (json.dumps({**FILE, "schema": "perfscope/ceiling/2"}), "has the schema"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "ceiling.json"
    path.write_text(text)
    with pytest.raises(SourceError, match=problem):
        read_ceiling(path)
    with pytest.raises(SourceError, match="cannot be read"):
        read_ceiling(tmp_path / "absent.json")


@pytest.mark.slow
def test_this_machine_is_measured_and_its_file_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ceiling.json"
    monkeypatch.setattr("perfscope.commands.doctor._CEILING_S", 2)
    answer = run(capsys, "doctor", "--ceiling", "-o", str(path), "--format", "json")
    assert answer.code == 0
    ceiling = read_ceiling(path)
    assert json.loads(answer.out)["products"] == json.loads(path.read_text())["products"]
    rate, memory = ceiling.tflops("fp32"), ceiling.tb_s
    assert rate is not None
    assert 0.0001 < rate < 100
    assert memory is not None
    assert 0.00001 < memory < 10
    assert ceiling.collectives == ()
