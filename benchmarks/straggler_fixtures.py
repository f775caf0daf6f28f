"""Keeps the records of trainings with a late rank as fixtures, small and without what names a machine."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

from perfscope.wire import MICRO_BATCHES_FILE


def keep_fixture(run: Path, target: Path) -> None:
    """Keep the records of a run, its steps compressed."""
    shutil.rmtree(target, ignore_errors=True)
    devices: list[str] = []
    for folder in sorted((run / "ranks").iterdir()):
        copy = target / "ranks" / folder.name
        copy.mkdir(parents=True)
        rank = json.loads((folder / "rank.json").read_text())
        rank |= {"host": "host", "argv": [Path(word).name for word in rank["argv"]]}
        if "device_uuid" in rank:
            devices += [rank["device_uuid"]] if rank["device_uuid"] not in devices else []
            rank["device_uuid"] = f"GPU-{devices.index(rank['device_uuid'])}"
        (copy / "rank.json").write_text(json.dumps(rank, separators=(",", ":")) + "\n")
        for name in ("parallel.json", "setup.json"):
            if (folder / name).exists():
                shutil.copy(folder / name, copy / name)
        if (folder / "model.json").exists():
            model = json.loads((folder / "model.json").read_text())
            is_stage = (folder / MICRO_BATCHES_FILE).exists()
            weights = [weight | {"name": ""} for weight in model["weights"]] if is_stage else []
            (copy / "model.json").write_text(json.dumps({**model, "weights": weights}, separators=(",", ":")) + "\n")
            if is_stage:
                shutil.copy(folder / MICRO_BATCHES_FILE, copy / MICRO_BATCHES_FILE)
        (copy / "steps.000001.jsonl.gz").write_bytes(gzip.compress((folder / "steps.jsonl").read_bytes(), mtime=0))
    (target / "run.json").write_text('{"schema": "perfscope/run/1"}\n')
