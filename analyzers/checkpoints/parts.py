"""The bytes of a checkpoint by part (weights, optimizer), and its number of parameters.

Tables of contents give them exactly. If only names and sizes are known, a file's name decides, 2-byte weights and Adam
are assumed, and the number of parameters is estimated from the sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfscope.analyzers.checkpoints.plan import BytesPerParameter
from perfscope.tables.checkpoint import Checkpoint, CheckpointFile, Kind, Layout, Role

_NAMED_ROLES: Mapping[Kind, Role] = {
    Kind.LAYER: Role.WEIGHTS,
    Kind.EXPERT: Role.WEIGHTS,
    Kind.WEIGHTS: Role.WEIGHTS,
    Kind.OPTIMIZER: Role.MASTER,
    Kind.EXPERT_OPTIMIZER: Role.MASTER,
    Kind.MODEL_METADATA: Role.OTHER,
    Kind.METADATA: Role.OTHER,
    Kind.OTHER: Role.OTHER,
}
_PARTS: Mapping[Role, str] = {
    Role.WEIGHTS: "weights",
    Role.MASTER: "optimizer",
    Role.MOMENTS: "optimizer",
    Role.EMA: "EMA copy",
    Role.BUFFERS: "buffers",
    Role.OTHER: "other",
}
#: Assumed bytes per parameter of a part whose contents are not known.
_ASSUMED_BYTES = {"weights": 2, "optimizer": 12, "both": 14}
_WITHOUT_WEIGHTS = (Layout.DEEPSPEED_ZERO_3, Layout.DEEPSPEED_UNIVERSAL)


_EXACT = 0.01


@dataclass(frozen=True, slots=True)
class Share:
    """Bytes of one part of the checkpoint.

    Attributes:
        part: ``weights``, ``optimizer``, ``EMA copy``, ``buffers`` or ``other``.
        size_bytes: Its size.
        expected: Expected bytes per parameter; absent if nothing is expected.
    """

    part: str
    size_bytes: int
    expected: int | None


def sum_parts(checkpoint: Checkpoint) -> dict[str, int]:
    """Bytes by part; ``both`` where the names of files do not separate weights and optimizer."""
    sums: dict[str, int] = {}
    for file in checkpoint.files:
        for part, size in parts_of(checkpoint, file):
            sums[part] = sums.get(part, 0) + size
    return sums


def sum_copies(checkpoint: Checkpoint) -> dict[str, int]:
    """Bytes by part in files whose tensors are in the file of another rank, too."""
    sums: dict[str, int] = {}
    for file in checkpoint.files:
        for part, size in parts_of(checkpoint, file) if file.copy_of is not None else ():
            sums[part] = sums.get(part, 0) + size
    return sums


def parts_of(checkpoint: Checkpoint, file: CheckpointFile) -> list[tuple[str, int]]:
    """A file's bytes by part."""
    if file.contents is not None:
        parts = [(_part(group.role), group.size_bytes) for group in file.contents]
        return [*parts, ("other", file.size_bytes - sum(size for _, size in parts))]
    return [(_part_by_name(checkpoint, file), file.size_bytes)]


def _part(role: Role) -> str:
    return _PARTS[role]


def _part_by_name(checkpoint: Checkpoint, file: CheckpointFile) -> str:
    if file.kind in _NAMED_ROLES:
        return _part(_NAMED_ROLES[file.kind])
    if file.kind is Kind.UNIVERSAL:
        return "other" if file.path.endswith("step.pt") else "optimizer"
    if file.kind is Kind.MODEL and checkpoint.layout is Layout.DEEPSPEED_ZERO_1_2:
        return "weights"
    if file.kind is Kind.MODEL and checkpoint.layout is Layout.DEEPSPEED_PIPELINE:
        return "optimizer"  # the weights are in the files of layers
    return "weights" if checkpoint.has_optimizer_files else "both"


def count_parameters(checkpoint: Checkpoint, sums: Mapping[str, int], stated: int | None) -> tuple[int | None, str]:
    """The number of parameters, and its origin in words; ``stated`` is what the user states."""
    if stated is not None:
        return stated, "from --size"
    if checkpoint.parameters is not None:
        tied = f"; {checkpoint.tied} is a tied weight, stored again and counted once" if checkpoint.tied else ""
        return checkpoint.parameters, f"from the shapes in the checkpoint{tied}"
    for role, name in ((Role.WEIGHTS, "weights"), (Role.MASTER, "fp32 master weights")):
        elements = count_elements(checkpoint, role)
        if elements:
            return elements, f"counted in the {name} (tensors that model-parallel ranks replicate count once per rank)"
    if has_no_elements(checkpoint):
        return None, "no tensor has an element, so that there is no parameter to count"
    return _estimate_parameters(sums)


def has_no_elements(checkpoint: Checkpoint) -> bool:
    """Whether all tables of contents were read, and no tensor with an element is in them."""
    files = checkpoint.files
    is_read = any(file.contents is not None for file in files) and not any(file.unread for file in files)
    return is_read and not any(group.elements for file in files for group in file.contents or ())


def _estimate_parameters(sums: Mapping[str, int]) -> tuple[int | None, str]:
    """Estimate from sizes: the smallest estimate of any part, because redundant bytes only make files larger."""
    estimates = [size // _ASSUMED_BYTES[part] for part, size in sums.items() if size and part in _ASSUMED_BYTES]
    if not estimates:
        return None, "the number of parameters is unknown: set --size"
    return min(estimates), "estimated from file sizes (set --size to be exact)"


def count_elements(checkpoint: Checkpoint, role: Role) -> int:
    """Elements of a role; weights in a second format, and copies in files of other ranks, are not counted."""
    by_format: dict[str, int] = {}
    for file in checkpoint.files:
        if file.copy_of is not None:
            continue
        ending = file.path.rpartition(".")[2] if checkpoint.layout is Layout.HUGGING_FACE else ""
        count = sum(group.elements for group in file.contents or () if group.role is role)
        by_format[ending] = by_format.get(ending, 0) + count
    return max(by_format.values(), default=0)


def compute_shares(
    checkpoint: Checkpoint, sums: Mapping[str, int], per_parameter: BytesPerParameter | None
) -> tuple[Share, ...]:
    """The parts of the checkpoint with their expected bytes per parameter."""
    weights, optimizer = _expect(checkpoint, sums, per_parameter)
    shares = [
        Share("weights", sums.get("weights", 0), weights),
        Share("optimizer", sums.get("optimizer", 0), optimizer),
        Share("weights and optimizer", sums.get("both", 0), (weights or 0) + (optimizer or 0)),
        Share("EMA copy", sums.get("EMA copy", 0), None),
        Share("buffers", sums.get("buffers", 0), None),
        Share("other", sums.get("other", 0), None),
    ]
    return tuple(share for share in shares if share.size_bytes)


def _expect(
    checkpoint: Checkpoint, sums: Mapping[str, int], per_parameter: BytesPerParameter | None
) -> tuple[int | None, int | None]:
    """Expected bytes per parameter of weights and of the optimizer, by the parts that the checkpoint has."""
    if per_parameter is not None:
        return per_parameter.weights, per_parameter.optimizer
    dtypes = count_by_size(checkpoint, Role.WEIGHTS)
    weights = max(dtypes, key=lambda size: dtypes[size], default=2)
    if checkpoint.layout in _WITHOUT_WEIGHTS:
        return weights if dtypes else 0, 12
    if count_elements(checkpoint, Role.MOMENTS):
        masters = 4 if count_elements(checkpoint, Role.MASTER) else 0
        moments = count_by_size(checkpoint, Role.MOMENTS)
        ratio = count_elements(checkpoint, Role.MOMENTS) / max(1, count_elements(checkpoint, Role.WEIGHTS))
        most = 3 if abs(ratio - 3) < _EXACT else 2  # AMSGrad keeps the largest second moment, too
        return weights, masters + min(most, max(1, round(ratio))) * max(
            moments, key=lambda size: moments[size], default=4
        )
    optimizer = 12 if sums.get("optimizer") or sums.get("both") else 0
    return weights, optimizer


def count_by_size(checkpoint: Checkpoint, role: Role) -> dict[int, int]:
    """The number of elements of a role by element size in bytes."""
    sizes: dict[int, int] = {}
    for file in checkpoint.files:
        for group in file.contents or ():
            if group.role is role and group.elements:
                size = max(1, round(group.size_bytes / group.elements))
                sizes[size] = sizes.get(size, 0) + group.elements
    return sizes
