"""The files and bytes of saves that were recorded on two GPUs are those that lay on the disk afterwards."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.conftest import ROOT

RUNS = sorted((ROOT / "fixtures" / "saves").glob("h200_*"))
#: DeepSpeed's own scripts and the name of its last checkpoint, which it does not write as parts of one.
BESIDE = {"latest", "zero_to_fp32.py", "zero_to_torch.py"}


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_the_recorded_files_are_those_on_the_disk(run: Path) -> None:
    with (run / "files.csv").open() as lines:
        on_disk = {path: int(size) for path, size in csv.reader(lines) if path not in BESIDE}
    texts = [path.read_text() for path in run.glob("ranks/*/checkpoints.jsonl")]
    records = [json.loads(line) for text in texts for line in text.splitlines()]
    files = [(path.partition("out/")[2], size) for record in records for path, size in record["files"]]
    assert len(files) == len(dict(files)) == sum(record["file_count"] for record in records)
    assert dict(files) == on_disk
    assert sum(record["size_bytes"] for record in records) == sum(on_disk.values())


def test_every_framework_is_there() -> None:
    assert {run.name for run in RUNS} == {f"h200_{name}" for name in ("dcp", "deepspeed", "lightning_async")}
