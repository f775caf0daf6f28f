"""A merged timeline, and the traces that it was made of, parsed by nothing of perfscope."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.commands.report_cli import run

Event = dict[str, Any]
MergeInto = Callable[..., "MergedFile"]


@dataclass(frozen=True)
class MergedFile:
    """The merged file, and what the command said of it in JSON."""

    path: Path
    said: Event
    document: Event

    @property
    def events(self) -> list[Event]:
        return list(self.document["traceEvents"])

    def process(self, beginning: str) -> int:
        """The number of the process whose name begins so."""
        names = {
            event["pid"]: event["args"]["name"]
            for event in self.events
            if event["ph"] == "M" and event["name"] == "process_name"
        }
        (number,) = (number for number, name in names.items() if name.startswith(beginning))
        return int(number)

    def track(self, name: str) -> list[Event]:
        """The slices of a track of all ranks, in order."""
        threads = {
            event["tid"]
            for event in self.events
            if event["ph"] == "M" and event["name"] == "thread_name" and event["args"]["name"] == name
        }
        slices = [event for event in self.events if event["ph"] == "X" and event["pid"] == 1]
        return [event for event in slices if event["tid"] in threads]


def parse(path: Path) -> Event:
    """A trace with its times as exact numbers."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document: Event = json.loads(text, parse_float=Decimal)
    return document


@pytest.fixture(scope="module")
def merged_files() -> dict[tuple[str, ...], MergedFile]:
    """Those of a module's tests by what was typed, so that none is made twice."""
    return {}


@pytest.fixture
def merge_into(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], merged_files: dict[tuple[str, ...], MergedFile]
) -> MergeInto:
    def merge(*words: object, name: str = "all.json.gz", code: int = 0) -> MergedFile:
        typed = *map(str, words), name
        if typed not in merged_files:
            target = tmp_path / name
            answer = run(capsys, "merge", *words, "-o", target, "--format", "json")
            assert answer.code == code, answer.err
            merged_files[typed] = MergedFile(target, answer.data, parse(target))
        return merged_files[typed]

    return merge
