"""What should not be so about a checkpoint's sizes.

Twice the optimizer's share is state that was saved twice; weights far above theirs are views that were saved with the
whole storage behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from perfscope.analyzers.checkpoints.parts import Share, parts_of
from perfscope.tables.checkpoint import Checkpoint, CheckpointFile, Kind, Layout

_TOLERANCE = 0.03
_TWICE = (1.9, 2.1)
_BLOATED = 1.5
_UNEVEN = 2.0
_UNUSED_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a checkpoint that should not be so.

    Attributes:
        kind: What it is, for programs.
        text: What it is, for people.
    """

    kind: str
    text: str


def size_findings(
    checkpoint: Checkpoint, shares: Sequence[Share], parameters: int | None, overhead_bytes: int
) -> list[Finding]:
    """Parts that take more bytes a parameter than theory, and an optimizer state that is not there.

    Args:
        checkpoint: Its files.
        shares: Its parts.
        parameters: Number of parameters; without it nothing is judged.
        overhead_bytes: What a file holds beside tensors, where that is counted in its part.
    """
    findings: list[Finding] = []
    overhead = overhead_bytes * len(checkpoint.files)
    for share in shares:
        if not parameters or not share.expected:
            continue
        expected = share.expected * parameters
        ratio = (share.size_bytes - overhead) / expected
        if share.part == "optimizer" and _TWICE[0] <= ratio <= _TWICE[1]:
            findings.append(Finding("doubled_optimizer", _doubled(checkpoint, share, parameters)))
        elif ratio > _BLOATED:
            findings.append(Finding("bloated", _bloated(share, parameters)))
        elif ratio > 1 + _TOLERANCE:
            each = share.size_bytes / parameters
            findings.append(
                Finding("larger", f"The {share.part} take {each:.2f} bytes a parameter, not {share.expected}.")
            )
    if not any(share.part not in {"weights", "other"} for share in shares):
        findings.append(Finding("weights_only", "No optimizer state: training cannot go on from here as it was."))
    return findings


def _doubled(checkpoint: Checkpoint, share: Share, parameters: int) -> str:
    kinds = [
        kind for kind in dict.fromkeys(file.kind for file in checkpoint.files) if _holds_optimizer(checkpoint, kind)
    ]
    each = share.size_bytes / parameters
    where = " and ".join(f"the files of {kind}" for kind in kinds)
    return (
        f"The optimizer state is on disk twice: {each:.2f} bytes a parameter where {share.expected} are expected, "
        f"in {where}. {share.size_bytes // 2:,} bytes can be saved."
    )


def _holds_optimizer(checkpoint: Checkpoint, kind: Kind) -> bool:
    return any(
        part == "optimizer" and size
        for file in checkpoint.files
        if file.kind is kind
        for part, size in parts_of(checkpoint, file)
    )


def _bloated(share: Share, parameters: int) -> str:
    assert share.expected is not None
    each = share.size_bytes / parameters
    return (
        f"The {share.part} take {each:.2f} bytes a parameter, {each / share.expected:.1f} times the {share.expected} "
        "of theory: views saved with the whole storage behind them (save tensor.clone()), or state that is saved twice."
    )


def file_findings(checkpoint: Checkpoint) -> list[Finding]:
    """Files that hold bytes which no tensor shows, the same weights twice, and shards unlike their siblings."""
    findings: list[Finding] = []
    unused = [file for file in checkpoint.files if file.unused_bytes > _UNUSED_SHARE * file.size_bytes]
    if unused:
        worst = max(unused, key=lambda file: file.unused_bytes)
        total = sum(file.unused_bytes for file in unused)
        findings.append(
            Finding(
                "unused_storage",
                f"{len(unused)} files hold {total:,} bytes that no tensor shows: views were saved with the whole "
                f"storage behind them (save tensor.clone()). The worst is {worst.path}: {worst.unused_bytes:,} of "
                f"{worst.size_bytes:,} bytes.",
            )
        )
    endings = {file.path.rpartition(".")[2] for file in checkpoint.files if file.kind is Kind.WEIGHTS}
    if checkpoint.layout is Layout.HUGGING_FACE and {"safetensors", "bin"} <= endings:
        findings.append(Finding("doubled_weights", "The weights are there twice, as safetensors and as .bin."))
    groups: dict[Kind, list[CheckpointFile]] = {}
    for file in checkpoint.files:
        groups.setdefault(file.kind, []).append(file)
    findings.extend(_uneven(groups.get(Kind.OPTIMIZER, [])))
    return findings


def _uneven(files: Sequence[CheckpointFile]) -> list[Finding]:
    """Ranks whose optimizer shard is far from the others'."""
    middle = median([file.size_bytes for file in files]) if len(files) > 2 else 0  # noqa: PLR2004 - two have no middle
    odd = [file for file in files if middle and not 1 / _UNEVEN <= file.size_bytes / middle <= _UNEVEN]
    return [
        Finding("uneven", f"{file.path} is {file.size_bytes / middle:.2f} times the size of its siblings.")
        for file in odd[:5]
    ]
