"""Which bytes of a checkpoint are weights, which are the optimizer's, and for how many parameters.

Tables of contents say it exactly. Where only names and sizes are known, a file's name decides, 2-byte weights and Adam
are assumed, and the number of parameters is guessed from the sizes.
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
_WITHOUT_WEIGHTS = (Layout.DEEPSPEED_ZERO_3, Layout.DEEPSPEED_UNIVERSAL)


@dataclass(frozen=True, slots=True)
class Share:
    """Bytes of one part of the checkpoint.

    Attributes:
        part: ``weights``, ``optimizer`` or ``other``.
        size_bytes: How many.
        expected: Bytes per parameter by theory; absent where there is none.
    """

    part: str
    size_bytes: int
    expected: int | None


def sums_by_part(checkpoint: Checkpoint) -> dict[str, int]:
    """Bytes by part; ``both`` is what names do not tell apart."""
    sums: dict[str, int] = {}
    for file in checkpoint.files:
        for part, size in parts_of(checkpoint, file):
            sums[part] = sums.get(part, 0) + size
    return sums


def parts_of(checkpoint: Checkpoint, file: CheckpointFile) -> list[tuple[str, int]]:
    """A file's bytes by part."""
    if file.held is not None:
        parts = [(_part(held.role), held.size_bytes) for held in file.held]
        return [*parts, ("other", file.size_bytes - sum(size for _, size in parts))]
    return [(_part_by_name(checkpoint, file), file.size_bytes)]


def _part(role: Role) -> str:
    return {Role.WEIGHTS: "weights", Role.MASTER: "optimizer", Role.MOMENTS: "optimizer", Role.OTHER: "other"}[role]


def _part_by_name(checkpoint: Checkpoint, file: CheckpointFile) -> str:
    if file.kind in _NAMED_ROLES:
        return _part(_NAMED_ROLES[file.kind])
    if file.kind is Kind.UNIVERSAL:
        return "other" if file.path.endswith("step.pt") else "optimizer"
    if file.kind is Kind.MODEL and checkpoint.layout is Layout.DEEPSPEED_ZERO_1_2:
        return "weights"
    if file.kind is Kind.MODEL and checkpoint.layout is Layout.DEEPSPEED_PIPELINE:
        return "optimizer"  # the weights lie in the layers' files
    has_optimizer_files = any(other.kind is Kind.OPTIMIZER for other in checkpoint.files)
    return "weights" if has_optimizer_files else "both"


def count_parameters(checkpoint: Checkpoint, sums: Mapping[str, int], given: int | None) -> tuple[int | None, str]:
    """The number of parameters, and where it is from."""
    if given is not None:
        return given, "as given"
    if checkpoint.parameters is not None:
        return checkpoint.parameters, "by the shapes that the checkpoint states"
    for role, name in ((Role.WEIGHTS, "weights"), (Role.MASTER, "fp32 master weights")):
        elements = _elements(checkpoint, role)
        if elements:
            return elements, f"counted in the {name} (what model-parallel ranks repeat counts for each)"
    return _parameters_by_size(sums)


def _parameters_by_size(sums: Mapping[str, int]) -> tuple[int | None, str]:
    """Guess from sizes: the smaller of what weights and optimizer say, because only waste makes files larger."""
    guesses = [
        sums.get(part, 0) // each for part, each in (("weights", 2), ("optimizer", 12), ("both", 14)) if sums.get(part)
    ]
    if not guesses:
        return None, "the number of parameters is not known: give --size"
    return min(guesses), "guessed from the sizes of the files (give --size to be sure)"


def _elements(checkpoint: Checkpoint, role: Role) -> int:
    """Elements of a role; a second format of the same weights is not counted."""
    by_format: dict[str, int] = {}
    for file in checkpoint.files:
        ending = file.path.rpartition(".")[2] if checkpoint.layout is Layout.HUGGING_FACE else ""
        count = sum(held.elements for held in file.held or () if held.role is role)
        by_format[ending] = by_format.get(ending, 0) + count
    return max(by_format.values(), default=0)


def shares_of(checkpoint: Checkpoint, sums: Mapping[str, int], each: BytesPerParameter | None) -> tuple[Share, ...]:
    """The parts that there are, with what theory says of each."""
    weights, optimizer = _expected(checkpoint, sums, each)
    shares = [
        Share("weights", sums.get("weights", 0), weights),
        Share("optimizer", sums.get("optimizer", 0), optimizer),
        Share("weights and optimizer", sums.get("both", 0), (weights or 0) + (optimizer or 0)),
        Share("other", sums.get("other", 0), None),
    ]
    return tuple(share for share in shares if share.size_bytes)


def _expected(
    checkpoint: Checkpoint, sums: Mapping[str, int], each: BytesPerParameter | None
) -> tuple[int | None, int | None]:
    """Bytes per parameter of weights and of the optimizer, by what is saved at all."""
    if each is not None:
        return each.weights, each.optimizer
    dtypes = _dtype_sizes(checkpoint, Role.WEIGHTS)
    weights = max(dtypes, key=lambda size: dtypes[size], default=2)
    if checkpoint.layout in _WITHOUT_WEIGHTS:
        return 0, 12
    if _elements(checkpoint, Role.MOMENTS):
        masters = 4 if _elements(checkpoint, Role.MASTER) else 0
        moments = _dtype_sizes(checkpoint, Role.MOMENTS)
        kinds = max(1, round(_elements(checkpoint, Role.MOMENTS) / max(1, _elements(checkpoint, Role.WEIGHTS))))
        return weights, masters + min(2, kinds) * max(moments, key=lambda size: moments[size], default=4)
    optimizer = 12 if sums.get("optimizer") or sums.get("both") else 0
    return weights, optimizer


def _dtype_sizes(checkpoint: Checkpoint, role: Role) -> dict[int, int]:
    """Elements by their size in bytes."""
    sizes: dict[int, int] = {}
    for file in checkpoint.files:
        for held in file.held or ():
            if held.role is role and held.elements:
                size = max(1, round(held.size_bytes / held.elements))
                sizes[size] = sizes.get(size, 0) + held.elements
    return sizes
