"""Full files of samples are followed by others and compressed, and read as if they were lines of one file."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pynvml
import pytest

from perfscope import wire
from perfscope.sources.runs.nvml import read_gpus
from perfscope.tables.gpus import GpuSamples
from tests.hooks.nvml.conftest import SAMPLER

HEAD = {"host": "node", "hz": 20.0, "gpus": [{"uuid": "GPU-0", "name": "A"}, {"uuid": "GPU-1", "name": "B"}]}
LONGEST_S = 60


def sample(number: int) -> dict[str, Any]:
    """Counters are read in every second sample; the second GPU has no clock."""
    slow = {"nvlink_tx_kib": 10**12 + 700 * number} if number % 2 else {}
    first = {"power_mw": 500_000 + number, "sm_clock_mhz": 1980, "throttle": 4, **slow}
    return {"t_ns": 10**9 * number, "gpus": [first, {"power_mw": 90_000, **slow}]}


def lines(first: int, last: int, **fields: Any) -> list[dict[str, Any]]:
    return [{**HEAD, "t_ns": 10**9 * first - 1, **fields}, *(sample(number) for number in range(first, last))]


def write(run: Path, name: str, content: list[dict[str, Any]], *, packed: bool = False) -> Path:
    path = run / wire.NVML_FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in content))
    if packed:
        compress(path)
    return path


def compress(path: Path) -> None:
    path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


def assert_same(mine: GpuSamples, other: GpuSamples) -> None:
    assert (mine.host, mine.uuid, mine.lost_ns) == (other.host, other.uuid, other.lost_ns)
    assert mine.t_ns.tolist() == other.t_ns.tolist()
    for name in ("power_mw", "sm_clock_mhz", "throttle", "temperature_c"):
        assert getattr(mine, name).tolist() == getattr(other, name).tolist(), name
    assert mine.counters["nvlink_tx_kib"].tolist() == other.counters["nvlink_tx_kib"].tolist()


def test_full_files_are_read_as_the_lines_of_one(tmp_path: Path) -> None:
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    cost = {"t_ns": 10**11, "sampler": {"cpu_ns": 10**9, "rounds": 50, "late": 0}}
    lost = {"t_ns": 55 * 10**9, "lost": "GPU-1"}
    write(whole, "node.jsonl", [*lines(1, 101), lost, cost])
    write(parted, "node.jsonl", lines(1, 41), packed=True)
    write(parted, "node.1.jsonl", lines(41, 71, continues=True), packed=True)
    write(parted, "node.2.jsonl", [*lines(71, 101, continues=True), lost, cost])
    damage: list[str] = []
    (gpus, notes), (expected, expected_notes) = read_gpus(parted, damage), read_gpus(whole, damage)
    assert not damage
    assert len(gpus) == 2
    for mine, other in zip(gpus, expected, strict=True):
        assert_same(mine, other)
    assert notes == expected_notes
    assert any("1.0 % of one core" in note for note in notes)
    assert np.ma.getmaskarray(gpus[1].sm_clock_mhz).all()


def test_where_no_file_can_follow_the_full_one_goes_on(tmp_path: Path) -> None:
    """As on a full disk; the lines that are there stay."""
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); from sampler import Output\n"
        "output = Output(200)\n"
        "os.replace = lambda *_: (_ for _ in ()).throw(OSError('No space left on device'))\n"
        "for number in range(50): output.write({'t_ns': number, 'gpus': []}); output.rotate_if_full({'t_ns': number})"
    )
    with (tmp_path / "node.jsonl").open("wb") as file:
        command = [sys.executable, "-I", "-S", "-c", code, str(SAMPLER.parent)]
        assert subprocess.run(command, stdout=file, check=False).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["node.jsonl"]
    written = [json.loads(line)["t_ns"] for line in (tmp_path / "node.jsonl").read_text().splitlines()]
    assert written == list(range(50))


@pytest.mark.slow
def test_the_sampler_puts_full_files_aside(library: Path, tmp_path: Path) -> None:
    folder = tmp_path / wire.NVML_FOLDER
    folder.mkdir()
    with (folder / "my.node.jsonl").open("wb") as file:
        sampler = subprocess.Popen(
            [sys.executable, "-I", "-S", SAMPLER, Path(pynvml.__file__).parent, "50", str(os.getpid()), "full=20000"],
            stdout=file,
            env={**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML": "gpus=2"},
        )
    until_s = time.monotonic() + LONGEST_S
    while len(list(folder.glob("*.gz"))) < 3 and time.monotonic() < until_s:
        time.sleep(0.05)
    sampler.terminate()
    sampler.wait()
    names = {path.name for path in folder.iterdir()}
    assert {"my.node.jsonl", "my.node.1.jsonl.gz", "my.node.2.jsonl.gz"} <= names
    damage: list[str] = []
    gpus, _ = read_gpus(tmp_path, damage)
    assert not damage
    assert len(gpus) == 2
    for gpu in gpus:
        assert (np.diff(gpu.t_ns) > 0).all()
        assert gpu.power_mw.count() > len(gpu.t_ns) / 2
        assert (np.diff(gpu.counters["nvlink_tx_kib"].compressed()) >= 0).all()
