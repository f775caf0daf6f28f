"""Samples of nvidia-smi, whatever the order and the units of their columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.constants import MIB
from perfscope.sources.scaling.nvidia_smi import read_smi


@pytest.mark.parametrize(
    "lines",
    [
        (
            "index, memory.used [MiB], memory.total [MiB], utilization.gpu [%]",
            "0, 100 MiB, 16160 MiB, 50 %",
            "1, 300 MiB, 16160 MiB, 100 %",
        ),
        (
            "timestamp, utilization.gpu [%], memory.total [MiB], memory.used [MiB]",
            "x, 50, 16160, 300",
            "x, 100, 16160, 100",
        ),
        ("memory.used,memory.total,utilization.gpu", "300,16160,[N/A]"),
    ],
)
def test_samples_of_nvidia_smi(tmp_path: Path, lines: tuple[str, ...]) -> None:
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    device = read_smi(tmp_path / "a.csv")
    assert device is not None
    assert (device.memory_used_bytes, device.memory_total_bytes) == (300 * MIB, 16160 * MIB)
    assert device.util_percent == (None if "N/A" in lines[-1] else 75.0)


def test_a_file_without_samples_has_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("memory.used [MiB]\n[N/A]\n")
    assert read_smi(tmp_path / "a.csv") is None
    (tmp_path / "b.csv").write_text("")
    assert read_smi(tmp_path / "b.csv") is None
