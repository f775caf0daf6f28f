"""Every run and every job of traces in fixtures/."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import ROOT


def all_inputs() -> list[Path]:
    """The folders of runs, then those of traces that are in no run."""
    root = ROOT / "fixtures"
    runs = sorted({path.parent for path in root.rglob("ranks") if path.is_dir()})
    traces = sorted({path.parent for path in root.rglob("*.json.gz")})
    return [*runs, *(folder for folder in traces if not any(run in (folder, *folder.parents) for run in runs))]
