"""`perfscope report environment`: GPUs, topology and versions of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope.sources.runs.environment import parse_topology
from tests.commands.report_cli import run

TOPOLOGY = """\
\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tPXB\t0-47\t0
GPU1\tNV18\t X \tSYS\t0-47\t0
NIC0\tPXB\tSYS\t X

Legend:
  X    = Self
"""


def test_the_environment_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stated = {
        "schema": "perfscope/run/1",
        "command": ["torchrun", "train.py"],
        "gpus": "GPU 0: NVIDIA H200 (UUID: GPU-1-2-3)\nGPU 1: NVIDIA H200 (UUID: GPU-4-5-6)",
        "driver": "580.159.04\n580.159.04",
        "topology": TOPOLOGY,
        "python": "3.12.3",
        "git_commit": "1f0c",
        "environment": {"NCCL_VERSION": "2.27.1-1"},
        "versions": {"torch": "2.11.0", "nvidia-nccl-cu13": "2.28.3", "nvidia-cuda-runtime": "13.0", "numpy": "2.4"},
    }
    (tmp_path / "run.json").write_text(json.dumps(stated))
    (tmp_path / "ranks" / "00000").mkdir(parents=True)
    (tmp_path / "ranks" / "00000" / "rank.json").write_text('{"torch": "2.11.0+cu130"}')
    found = run(capsys, "report", "environment", tmp_path, "--format", "json").data["results"]
    assert found["facts"] == {
        "GPUs": "2 x NVIDIA H200",
        "Driver": "580.159.04",
        "Python": "3.12.3",
        "Commit of the training code": "1f0c",
        "CUDA": "13.0",
        "NCCL": "2.28.3",
        "NCCL of the image": "2.27.1-1",
        "PyTorch": "2.11.0+cu130",
        "numpy": "2.4",
    }
    assert found["topology"] == [
        ["", "GPU0", "GPU1", "NIC0"],
        ["GPU0", "X", "NV18", "PXB"],
        ["GPU1", "NV18", "X", "SYS"],
        ["NIC0", "PXB", "SYS", "X"],
    ]
    printed = run(capsys, "report", "environment", tmp_path).out
    assert "UUID" not in printed
    assert "`torchrun train.py`" in printed


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is not complete JSON"),
        ("[]", "is not a JSON object"),
        ("{}", "describes no environment"),
        ("[" * 99999, "is not complete JSON"),
    ],
)
def test_a_file_that_states_no_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, problem: str
) -> None:
    (tmp_path / "run.json").write_text(content)
    answer = run(capsys, "report", "environment", tmp_path / "run.json")
    assert answer.code == 1
    assert problem in answer.err


def test_a_matrix_that_is_cut_off_is_no_matrix() -> None:
    assert parse_topology("GPU0 GPU1\nGPU0 X NV1\nGPU1 NV1") == ()
    assert parse_topology("nothing here") == ()
