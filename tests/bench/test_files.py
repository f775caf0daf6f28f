"""Measurements and settings on disk."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.bench.rows import read_measurement
from perfscope.bench.running import hold_folder, prepare_folder, read_rows, read_settings
from perfscope.errors import SourceError, UsageError
from tests.bench.examples import SETTINGS, measurement, variant


def test_a_measurement_survives_its_file(tmp_path: Path) -> None:
    whole = measurement(
        variant("fsdp2", 2, recompute=True),
        12.5,
        1,
        memory=(5, 7),
        losses=(2.0, 1.5),
        shares={"compute": 0.5},
        tflops={"products": 3.25},
        notes=("a doubt",),
    )
    whole.write(tmp_path)
    assert read_measurement(tmp_path / "fsdp2-2-fp32-recompute.1.json") == whole


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"schema": "perfscope/analysis/1"}'])
def test_another_file_is_no_measurement(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(SourceError, match="is not a measurement"):
        read_measurement(path)


def test_a_folder_goes_on_with_the_same_settings_alone(tmp_path: Path) -> None:
    folder = tmp_path / "bench"
    prepare_folder(folder, SETTINGS)
    assert prepare_folder(folder, replace(SETTINGS, threads=9)) == SETTINGS
    assert read_settings(folder)["model"] == "gpt:2x32x16"
    with pytest.raises(UsageError, match="other settings: batch 16 to 32"):
        prepare_folder(folder, replace(SETTINGS, batch=32))


def test_a_folder_goes_on_with_the_same_file_of_a_model_alone(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "B", replace(SETTINGS, model_sha256="1"))
    with pytest.raises(UsageError, match="other settings: the content of the model's file"):
        prepare_folder(tmp_path / "B", replace(SETTINGS, model_sha256="2"))


def test_a_folder_of_something_else_stays_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="holds no benchmark"):
        prepare_folder(tmp_path, SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(SourceError, match="holds no benchmark"):
        read_settings(tmp_path)
    assert read_rows(tmp_path) == []


def test_a_sweep_that_was_killed_does_not_hold_its_folder(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "B", SETTINGS)
    held = (
        "import pathlib, sys, time; from perfscope.bench.running import hold_folder\n"
        "with hold_folder(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", held, str(tmp_path / "B")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(UsageError), hold_folder(tmp_path / "B"):
            pass
        process.kill()
        process.wait()
        with hold_folder(tmp_path / "B"):
            pass
