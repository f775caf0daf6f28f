"""``perfscope memory`` shows a run's memory, snapshots of torch, and refuses what is neither."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from perfscope.commands.memory import memory
from perfscope.errors import ExitCode, SourceError, UsageError
from perfscope.renderers import Format
from tests.conftest import ROOT

FIXTURES = ROOT / "fixtures" / "memory"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with the history of one rank."""
    folder = tmp_path / "run"
    (folder / "memory").mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    shutil.copy(FIXTURES / "pure.memory.jsonl.gz", folder / "memory" / "vm_1.1.memory.jsonl.gz")
    return folder


def answer(*paths: Path) -> dict[str, Any]:
    report = memory([str(path) for path in paths], format=Format.JSON).report
    assert report is not None
    data: dict[str, Any] = json.loads(json.dumps(report.data))
    return data


def test_a_run_is_shown_with_every_rank_and_what_would_lower_the_peak(run: Path) -> None:
    shutil.copy(FIXTURES / "pure.memory.jsonl.gz", run / "memory" / "vm_2.1.memory.jsonl.gz")
    data = answer(run)
    assert [device["rank"] for device in data["devices"]] == [0, 0]
    (first, _) = data["devices"]
    assert sum(part["bytes"] for part in first["categories"]) == first["peak_bytes"]
    assert first["peak_bytes"] + first["unused_bytes"] == first["reserved_bytes"]
    assert first["savings"][0]["saved_bytes"] > 1e9
    text = memory([str(run)]).output()
    for title in ("Peak memory", "Activations at the peak", "What would lower the peak", "blocks.*.mlp.*"):
        assert title in text


def test_snapshots_of_torch_are_shown_side_by_side() -> None:
    data = answer(FIXTURES / "pure.pickle.gz", FIXTURES / "pure-checkpointed.pickle.gz")
    peaks = sorted(device["peak_bytes"] for device in data["devices"])
    assert peaks == pytest.approx([6_471_878_656, 9_498_349_568], rel=0.001)


def test_the_moment_of_an_out_of_memory_error_is_shown_with_what_was_asked_for(run: Path, tmp_path: Path) -> None:
    lines = gzip.decompress((FIXTURES / "pure.memory.jsonl.gz").read_bytes()).splitlines()
    header = json.loads(lines[0]) | {"cause": "out of memory", "request_bytes": 5_000_000_000}
    (run / "memory" / "vm_1.1.memory.jsonl.gz").unlink()
    (run / "memory" / "vm_1.1.memory.jsonl").write_bytes(b"\n".join([json.dumps(header).encode(), *lines[1:]]))
    assert answer(run)["devices"][0]["request_bytes"] == 5_000_000_000
    assert "memory ran out: 5.000 GB more were asked for" in memory([str(run)]).output()


def test_the_chart_is_an_svg_of_every_category(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "memory.svg"
    memory([str(run)], svg=path)
    text = "".join(ElementTree.fromstring(path.read_text()).itertext())
    for word in ("activations", "weights", "optimizer states", "workspace", "reserved by the allocator", "GB"):
        assert word in text


def test_a_damaged_history_is_a_warning_and_has_its_exit_status(run: Path) -> None:
    path = run / "memory" / "vm_1.1.memory.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-3000])
    outcome = memory([str(run)])
    assert outcome.exit_code == ExitCode.DAMAGED_INPUT
    assert outcome.notes


def test_a_run_without_histories_and_other_folders_are_refused(run: Path, tmp_path: Path) -> None:
    shutil.rmtree(run / "memory")
    with pytest.raises(SourceError, match="no allocator's history was recorded"):
        memory([str(run)])
    with pytest.raises(SourceError, match="not a run"):
        memory([str(tmp_path)])
    with pytest.raises(UsageError):
        memory([str(run), str(run)])
    with pytest.raises(UsageError):
        memory([str(FIXTURES / "pure.pickle.gz")], svg=tmp_path / "a.png")


def test_analyze_has_the_same_figures(run: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "perfscope", "analyze", str(run), "--only", "memory", "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    result = json.loads(completed.stdout)["results"]["memory"]
    assert result["devices"] == answer(run)["devices"]
