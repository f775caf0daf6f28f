"""GPUs and versions of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope.errors import SourceError
from perfscope.sources.runs.environment import read_environment


def test_the_environment_of_a_run(tmp_path: Path) -> None:
    stated = {
        "schema": "perfscope/run/1",
        "gpus": "GPU 0: NVIDIA H200 (UUID: GPU-1-2-3)\nGPU 1: NVIDIA H200 (UUID: GPU-4-5-6)",
        "driver": "580.159.04\n580.159.04",
        "python": "3.12.3",
        "git_commit": "1f0c",
        "environment": {"NCCL_VERSION": "2.27.1-1"},
        "versions": {"torch": "2.11.0", "nvidia-nccl-cu13": "2.28.3", "nvidia-cuda-runtime": "13.0", "numpy": "2.4"},
    }
    (tmp_path / "run.json").write_text(json.dumps(stated))
    (tmp_path / "ranks" / "00000").mkdir(parents=True)
    (tmp_path / "ranks" / "00000" / "rank.json").write_text('{"torch": "2.11.0+cu130"}')
    assert dict(read_environment(tmp_path).facts) == {
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


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is not complete JSON"),
        ("[]", "is not a JSON object"),
        ("{}", "describes no environment"),
        ("[" * 99999, "is not complete JSON"),
    ],
)
def test_a_file_that_states_no_environment(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(SourceError, match=problem):
        read_environment(tmp_path / "run.json")
