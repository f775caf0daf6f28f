"""The checkpoints of a folder beside each other: step, files, bytes, and which of them are complete."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analyzers.checkpoints.findings import Finding
from perfscope.constants import GB, KB, MB
from perfscope.report import Column, Json, Section
from perfscope.tables.checkpoint import Checkpoint, CheckpointSummary

_SHOWN = 60
_UNITS = ((GB, "GB"), (MB, "MB"), (1, "kB"))
_ITSELF = "(the folder itself)"


def newest_complete(siblings: Sequence[CheckpointSummary]) -> CheckpointSummary | None:
    """The newest complete checkpoint, where the newest one is not complete and there is one; None otherwise."""
    newest = next((each for each in siblings if each.is_newest), None)
    if newest is None or not newest.problems:
        return None
    complete = [each for each in siblings if not each.problems]
    if not complete:
        return None
    if any(each.step is not None for each in complete) and newest.step is not None:
        return max(complete, key=lambda each: (-1 if each.step is None else each.step, each.modified_ns or 0))
    return max(complete, key=lambda each: each.modified_ns or 0)


def check_newest(checkpoint: Checkpoint) -> list[Finding]:
    """A newest checkpoint that is not complete, with the newest one that is."""
    newest = next((each for each in checkpoint.siblings if each.is_newest), None)
    if newest is None or not newest.problems or len(checkpoint.siblings) == 1:
        return []
    complete = newest_complete(checkpoint.siblings)
    instead = "no other one is" if complete is None else f"the newest complete one is {name_of(complete)}"
    text = f"{name_of(newest)} is the newest checkpoint and not complete ({newest.problems[0]}); {instead}."
    return [Finding("newest_incomplete", text)]


def name_of(summary: CheckpointSummary) -> str:
    """The name of a checkpoint in its folder."""
    return summary.name or _ITSELF


def sibling_data(summary: CheckpointSummary) -> Json:
    """One entry of ``results.checkpoint.checkpoints``."""
    return {
        "name": summary.name,
        "step": summary.step,
        "epoch": summary.epoch,
        "files": summary.files,
        "bytes": summary.size_bytes,
        "modified_ns": summary.modified_ns,
        "complete": not summary.problems,
        "problems": list(summary.problems),
        "newest": summary.is_newest,
        "shown": summary.is_shown,
    }


def list_siblings(checkpoint: Checkpoint) -> tuple[Section, ...]:
    """One row for each checkpoint of the folder; no section where there is only one."""
    siblings = checkpoint.siblings
    if len(siblings) <= 1:
        return (Section("Checkpoints in the folder", notes=checkpoint.notes),) if checkpoint.notes else ()
    largest = max(each.size_bytes for each in siblings)
    unit_bytes, unit = next((size, name) for size, name in _UNITS if largest >= size or size == 1)
    unit_bytes = KB if unit == "kB" else unit_bytes
    has_epoch = any(each.epoch is not None for each in siblings)
    columns = (
        Column("Checkpoint"),
        Column("Step"),
        *((Column("Epoch"),) if has_epoch else ()),
        Column("Files"),
        Column(unit, 3),
        Column("Complete"),
        Column("Shown here"),
    )
    rows = tuple(
        (
            name_of(each),
            each.step,
            *((each.epoch,) if has_epoch else ()),
            each.files,
            each.size_bytes / unit_bytes,
            f"no: {each.problems[0]}" if each.problems else "yes",
            "yes" if each.is_shown else "",
        )
        for each in siblings[-_SHOWN:]
    )
    hidden = len(siblings) - len(rows)
    more = (f"{hidden} older ones are in --format json.",) if hidden else ()
    advice = "Name a checkpoint's folder or file, or add --all, for the contents of another one."
    return (Section("Checkpoints in the folder", columns, rows, (*checkpoint.notes, *more, advice)),)
