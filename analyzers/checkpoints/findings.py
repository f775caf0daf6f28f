"""Problems with a checkpoint's sizes.

An optimizer of twice its expected size was saved twice; weights far above their expected size are views that were saved
with their full storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from perfscope.analyzers.checkpoints.parts import Share, count_by_size, count_elements, parts_of, sum_copies
from perfscope.tables.checkpoint import Checkpoint, CheckpointFile, Kind, Layout, Role

_TOLERANCE = 0.03
#: Bytes of elements that quantization leaves.
_WIDE = (2, 4, 8)
_TWICE = (1.9, 2.1)
_BLOATED = 1.5
_UNEVEN = 2.0
_UNUSED_SHARE = 0.01
_FEWEST_SHARDS = 3  # of two shards, neither is the unusual one
_SHOWN_UNEVEN = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with a checkpoint.

    Attributes:
        kind: Its name, for programs.
        text: Its description, for people.
    """

    kind: str
    text: str


def check_sizes(
    checkpoint: Checkpoint, shares: Sequence[Share], parameters: int | None, overhead_bytes: int
) -> list[Finding]:
    """Parts with more bytes per parameter than expected, and a missing optimizer state.

    Args:
        checkpoint: Its files.
        shares: Its parts.
        parameters: Number of parameters; without it no size is judged.
        overhead_bytes: Bytes of a file outside of tensors, if they are counted in its part.
    """
    findings: list[Finding] = []
    overhead = overhead_bytes * len(checkpoint.files)
    copies = sum_copies(checkpoint)
    for share in shares:
        if not parameters or not share.expected:
            continue
        expected = share.expected * parameters + _left_wide(checkpoint, share)
        ratio = (share.size_bytes - copies.get(share.part, 0) - overhead) / expected
        if share.part == "optimizer" and _TWICE[0] <= ratio <= _TWICE[1]:
            findings.append(Finding("doubled_optimizer", _doubled(checkpoint, share, parameters)))
        elif ratio > _BLOATED:
            findings.append(Finding("bloated", _bloated(share, parameters)))
        elif ratio > 1 + _TOLERANCE:
            findings.append(Finding("larger", f"{_takes(share)} {_per_parameter(share, parameters)}."))
    if not any(share.part in {"optimizer", "weights and optimizer"} for share in shares):
        findings.append(
            Finding("weights_only", "No optimizer state: training cannot be resumed exactly from this checkpoint.")
        )
    return findings


def _left_wide(checkpoint: Checkpoint, share: Share) -> int:
    """What is in more than a byte of quantized weights and moments: scales, and small tensors left as they are."""
    if (share.part, share.expected) not in (("weights", 1), ("optimizer", 2)):
        return 0
    role = Role.WEIGHTS if share.part == "weights" else Role.MOMENTS
    elements, left = count_by_size(checkpoint, role), 1 if role is Role.WEIGHTS else 0  # scales are no moments
    return sum((size - left) * elements.get(size, 0) for size in _WIDE)


def _doubled(checkpoint: Checkpoint, share: Share, parameters: int) -> str:
    kinds = [
        kind for kind in dict.fromkeys(file.kind for file in checkpoint.files) if _holds_optimizer(checkpoint, kind)
    ]
    files = " and ".join(f"the files of {kind}" for kind in kinds)
    return (
        f"The optimizer state was saved twice: {_per_parameter(share, parameters)}, in {files}. "
        f"{share.size_bytes // 2:,} bytes are redundant."
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
    ratio = share.size_bytes / parameters / share.expected
    return (
        f"{_takes(share)} {_per_parameter(share, parameters)} ({ratio:.1f} times as many): views saved with "
        "their full storage (fix: save tensor.clone()), or state saved twice."
    )


def _takes(share: Share) -> str:
    return f"The {share.part} {'takes' if share.part == 'optimizer' else 'take'}"


def _per_parameter(share: Share, parameters: int) -> str:
    return f"{share.size_bytes / parameters:.2f} bytes/parameter, {share.expected} expected"


def check_files(checkpoint: Checkpoint) -> list[Finding]:
    """Files with bytes outside of every tensor, weights in two formats, and shards of unusual size."""
    findings: list[Finding] = []
    unused = [file for file in checkpoint.files if file.unused_bytes > _UNUSED_SHARE * file.size_bytes]
    if unused:
        worst = max(unused, key=lambda file: file.unused_bytes)
        total = sum(file.unused_bytes for file in unused)
        holders = "1 file holds" if len(unused) == 1 else f"{len(unused)} files hold"
        findings.append(
            Finding(
                "unused_storage",
                f"{holders} {total:,} bytes outside of every tensor: views were saved with their full "
                f"storage (fix: save tensor.clone()). The largest share is in {worst.path}: {worst.unused_bytes:,} of "
                f"{worst.size_bytes:,} bytes.",
            )
        )
    findings.extend(_copied(checkpoint))
    endings = {file.path.rpartition(".")[2] for file in checkpoint.files if file.kind is Kind.WEIGHTS}
    if checkpoint.layout is Layout.HUGGING_FACE and {"safetensors", "bin"} <= endings:
        findings.append(Finding("doubled_weights", "The weights were saved twice, as safetensors and as .bin."))
    averaged = count_elements(checkpoint, Role.EMA)
    if averaged:
        text = f"An averaged (EMA) copy of the weights is saved, too: {averaged:,} elements, not counted as parameters."
        findings.append(Finding("ema_copy", text))
    groups: dict[Kind, list[CheckpointFile]] = {}
    for file in checkpoint.files:
        groups.setdefault(file.kind, []).append(file)
    findings.extend(_uneven(groups.get(Kind.OPTIMIZER, [])))
    return findings


def _copied(checkpoint: Checkpoint) -> list[Finding]:
    """Ranks that wrote the same tensors as another one, each to a file of its own."""
    copies = [file for file in checkpoint.files if file.copy_of is not None]
    if not copies:
        return []
    size = sum(size for part, size in sum_copies(checkpoint).items() if part != "other")
    listed = ", ".join(f"{file.path} (as {file.copy_of})" for file in copies[:_SHOWN_UNEVEN])
    more = f" and {len(copies) - _SHOWN_UNEVEN} more" if len(copies) > _SHOWN_UNEVEN else ""
    return [
        Finding(
            "copied_state",
            f"Ranks saved the same state, each to a file of its own: {listed}{more}. {size:,} bytes are redundant.",
        )
    ]


def _uneven(files: Sequence[CheckpointFile]) -> list[Finding]:
    """Ranks whose optimizer shard differs much in size from the median shard."""
    if len(files) < _FEWEST_SHARDS:
        return []
    middle = median([file.size_bytes for file in files])
    uneven = [file for file in files if middle and not 1 / _UNEVEN <= file.size_bytes / middle <= _UNEVEN]
    return [
        Finding("uneven", f"{file.path} is {file.size_bytes / middle:.2f} times the median size of its kind.")
        for file in uneven[:_SHOWN_UNEVEN]
    ]
