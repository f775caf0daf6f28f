"""The versions of a run's software."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope.sources.runs.stored import read_versions_at


def test_versions_have_their_usual_names(tmp_path: Path) -> None:
    stated = {
        "schema": "perfscope/run/1",
        "driver": "580.159.04\n580.159.04",
        "python": "3.12.3",
        "git_commit": "1f0c",
        "environment": {"NCCL_VERSION": "2.27.1-1"},
        "versions": {"torch": "2.11.0", "nvidia-nccl-cu13": "2.28.3", "nvidia-cuda-runtime": "13.0", "numpy": "2.4"},
    }
    (tmp_path / "run.json").write_text(json.dumps(stated))
    (tmp_path / "ranks" / "00000").mkdir(parents=True)
    (tmp_path / "ranks" / "00000" / "rank.json").write_text('{"torch": "2.11.0+cu130"}')
    assert read_versions_at(str(tmp_path)) == {
        "Driver": "580.159.04",
        "Python": "3.12.3",
        "Commit of the training code": "1f0c",
        "CUDA": "13.0",
        "NCCL": "2.28.3",
        "NCCL of the image": "2.27.1-1",
        "PyTorch": "2.11.0+cu130",
        "numpy": "2.4",
    }


@pytest.mark.parametrize("content", ["", "[]", "{}", "[" * 99999])
def test_a_file_that_states_no_versions(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    assert read_versions_at(str(tmp_path)) == {}
