"""How these tests run a script of several ranks under perfscope, and what they read of its run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.conftest import SCRIPTS, profile, step_lines

#: torchrun of this interpreter, whatever is first on PATH.
TORCHRUN: list[str | Path] = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def torchrun(ranks: int, script: str, *words: str, cwd: Path, **variables: str) -> Path:
    """Run a script of ``tests/scripts`` under perfscope and return the run's folder."""
    command: list[str | Path] = [*TORCHRUN, str(ranks), SCRIPTS / script, *words]
    ended = profile(
        *command, cwd=cwd, options=["--exec"], PYTHONPATH=f"{SCRIPTS.parent.parent}{os.pathsep}{SCRIPTS}", **variables
    )
    assert ended.code == 0, ended.stderr
    return cwd / "RUN"


def rank_file(run: Path, rank: int, name: str) -> dict[str, Any]:
    """One of a rank's files of JSON."""
    document: dict[str, Any] = json.loads((run / "ranks" / f"{rank:05d}" / name).read_text())
    return document


def field(run: Path, rank: int, name: str) -> set[Any]:
    """What a field of a rank's steps holds; None where it is absent."""
    return {line.get(name) for line in step_lines(run, f"{rank:05d}")}


def layout(run: Path, rank: int) -> tuple[dict[str, int], dict[str, int]]:
    """A rank's coordinates and the sizes of its groups."""
    parallel = rank_file(run, rank, "parallel.json")
    return parallel["coordinates"], parallel["sizes"]


def parameters(run: Path) -> list[int]:
    """What each rank counts as its part of the model."""
    ranks = sorted(folder for folder in (run / "ranks").iterdir())
    return [json.loads((folder / "model.json").read_text())["parameters"] for folder in ranks]


def notes(run: Path, rank: int = 0) -> list[str]:
    """A rank's notes."""
    lines = (run / "ranks" / f"{rank:05d}" / "events.jsonl").read_text().splitlines()
    return [event["text"] for event in map(json.loads, lines) if event["kind"] == "note"]
