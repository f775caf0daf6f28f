"""The parts of a checkpoint, and whether they have the size that is expected of the number of parameters.

Mixed precision with Adam saves 14 bytes/parameter: 2 of bf16 or fp16 weights, 4 of fp32 master weights, and 4 + 4 of
Adam's moments; gradients are not saved. Pure fp32 saves 12 (4 + 8). ZeRO 3 shards the weights and restores them from
the master weights, so 12 are saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from perfscope.constants import GB, GIB, KB, KIB, MB, MIB, TB, TIB
from perfscope.errors import MissingInput
from perfscope.report import MOST_ROWS, Section
from perfscope.result import Column, Doc, Figures, InUnit, Result, Table, figure
from perfscope.tables.checkpoint import Checkpoint, CheckpointFile, CheckpointSummary, Kind, Layout, Role


class PlannedPart(Figures, frozen=True):
    """The size of one part, or of all."""

    part: str
    files: int
    bytes: Annotated[int, Doc("Its size.")]
    bytes_per_parameter: Annotated[int, Doc("Its bytes for each parameter.")]
    tb = InUnit("bytes", TB, "The size in 10**12 bytes.")
    tib = InUnit("bytes", TIB, "The size in 2**40 bytes.")

    @figure
    def per_file_bytes(self) -> float:
        """The size of one of its files."""
        return self.bytes / self.files

    per_file_gb = InUnit("per_file_bytes", GB, "The same in 10**9 bytes.")
    per_file_gib = InUnit("per_file_bytes", GIB, "The same in 2**30 bytes.")


class SavedOptimizer(StrEnum):
    """The optimizer, which decides the state per parameter."""

    ADAM = "adam"
    ADAM_8BIT = "adam8bit"
    SGD_MOMENTUM = "sgd"
    NONE = "none"


class SavedPrecision(StrEnum):
    """The training precision."""

    MIXED = "mixed"
    FP32 = "fp32"


ZERO_STAGES = range(4)
_MOMENT_BYTES: Mapping[SavedOptimizer, int] = {
    SavedOptimizer.ADAM: 8,
    SavedOptimizer.ADAM_8BIT: 2,
    SavedOptimizer.SGD_MOMENTUM: 4,
    SavedOptimizer.NONE: 0,
}


@dataclass(frozen=True, slots=True)
class BytesPerParameter:
    """The bytes that are saved for one parameter."""

    weights: int
    master: int
    moments: int

    @property
    def optimizer(self) -> int:
        """Master weights and moments, which are in the same files."""
        return self.master + self.moments

    @property
    def total(self) -> int:
        """Everything."""
        return self.weights + self.optimizer


def bytes_per_parameter(
    optimizer: SavedOptimizer = SavedOptimizer.ADAM,
    precision: SavedPrecision = SavedPrecision.MIXED,
    zero_stage: int = 1,
) -> BytesPerParameter:
    """The bytes that are saved for one parameter.

    >>> bytes_per_parameter().total, bytes_per_parameter(zero_stage=3).total
    (14, 12)
    """
    has_optimizer = optimizer is not SavedOptimizer.NONE
    is_mixed = precision is SavedPrecision.MIXED
    shards_weights = zero_stage == ZERO_STAGES[-1] and has_optimizer
    return BytesPerParameter(
        weights=0 if shards_weights else 2 if is_mixed else 4,
        master=4 if has_optimizer and (is_mixed or shards_weights) else 0,
        moments=_MOMENT_BYTES[optimizer],
    )


class CheckpointPlan(Result, frozen=True):
    """The size of a checkpoint."""

    parameters: Annotated[int, Doc("Number of parameters.")]
    gpus: Annotated[int, Doc("Number of GPUs; each writes one file of weights and one of optimizer states.")]
    weights: Annotated[PlannedPart, Doc("The weights.")]
    optimizer: Annotated[PlannedPart, Doc("Master weights and moments.")]
    total: Annotated[PlannedPart, Doc("Both.")]

    TABLES = (
        Table(
            "Planned size",
            "parts",
            (
                Column("Part", "part"),
                Column("Bytes per parameter", "bytes_per_parameter"),
                Column("TB", "tb", None, 3),
                Column("TiB", "tib", None, 3),
                Column("GB per file", "per_file_gb", None, 3),
                Column("GiB per file", "per_file_gib", None, 3),
            ),
        ),
    )

    @property
    def parts(self) -> tuple[PlannedPart, ...]:
        """The rows of its table."""
        return self.weights, self.optimizer, self.total

    def sections(self) -> tuple[Section, ...]:
        """The planned sizes."""
        files = f"one file per GPU, {self.gpus} of each part"
        note = f"TB is 10**12 bytes, TiB is 2**40; {files}; gradients are not saved."
        return (self.TABLES[0].section(self.parts, (note,)),)


def plan_checkpoint(parameters: int, gpus: int, per_parameter: BytesPerParameter) -> CheckpointPlan:
    """Plan a checkpoint's size; the files of a part are assumed to have one size."""
    by_part = {
        "weights": per_parameter.weights,
        "optimizer": per_parameter.optimizer,
        "total": per_parameter.total,
    }
    parts = {name: PlannedPart(name, gpus, parameters * size, size) for name, size in by_part.items()}
    return CheckpointPlan(parameters, gpus, **parts)


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


class Share(Figures, frozen=True):
    """Bytes of one part of the checkpoint: ``weights``, ``optimizer``, ``EMA copy``, ``buffers`` or ``other``."""

    part: str
    bytes: Annotated[int, Doc("Its size.")]
    parameters: int | None
    expected_bytes_per_parameter: Annotated[int | None, Doc("What theory expects; null if nothing is expected.")]

    @figure
    def bytes_per_parameter(self) -> float | None:
        """``bytes / parameters``."""
        return self.bytes / self.parameters if self.parameters else None


def sum_parts(checkpoint: Checkpoint) -> dict[str, int]:
    """Bytes by part; ``both`` where the names of files do not separate weights and optimizer."""
    sums: dict[str, int] = {}
    for file in checkpoint.files:
        for part, size in parts_of(checkpoint, file):
            sums[part] = sums.get(part, 0) + size
    return sums


def parts_of(checkpoint: Checkpoint, file: CheckpointFile) -> list[tuple[str, int]]:
    """A file's bytes by part."""
    if file.holds is not None:
        parts = [(_PARTS[group.role], group.bytes) for group in file.holds]
        return [*parts, ("other", file.bytes - sum(size for _, size in parts))]
    return [(_part_by_name(checkpoint, file), file.bytes)]


def _part_by_name(checkpoint: Checkpoint, file: CheckpointFile) -> str:
    if file.kind in _NAMED_ROLES:
        return _PARTS[_NAMED_ROLES[file.kind]]
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
    if checkpoint.stated_parameters is not None:
        tied = f"; {checkpoint.tied} is a tied weight, stored again and counted once" if checkpoint.tied else ""
        return checkpoint.stated_parameters, f"from the shapes in the checkpoint{tied}"
    for role, name in ((Role.WEIGHTS, "weights"), (Role.MASTER, "fp32 master weights")):
        elements = count_elements(checkpoint, role)
        if elements:
            return elements, f"counted in the {name} (what several ranks store alike counts once per rank)"
    if has_no_elements(checkpoint):
        return None, "no tensor has an element, so that there is no parameter to count"
    return _estimate_parameters(sums)


def has_no_elements(checkpoint: Checkpoint) -> bool:
    """Whether all tables of contents were read, and no tensor with an element is in them."""
    files = checkpoint.files
    is_read = any(file.holds is not None for file in files) and not any(file.unread for file in files)
    return is_read and not any(group.elements for file in files for group in file.holds or ())


def _estimate_parameters(sums: Mapping[str, int]) -> tuple[int | None, str]:
    """Estimate from sizes: the smallest estimate of any part, because redundant bytes only make files larger."""
    estimates = [size // _ASSUMED_BYTES[part] for part, size in sums.items() if size and part in _ASSUMED_BYTES]
    if not estimates:
        return None, "the number of parameters is unknown: set --size"
    return min(estimates), "estimated from file sizes (set --size to be exact)"


def count_elements(checkpoint: Checkpoint, role: Role) -> int:
    """Elements of a role; weights in a second format are not counted."""
    by_format: dict[str, int] = {}
    for file in checkpoint.files:
        ending = file.path.rpartition(".")[2] if checkpoint.layout is Layout.HUGGING_FACE else ""
        count = sum(group.elements for group in file.holds or () if group.role is role)
        by_format[ending] = by_format.get(ending, 0) + count
    return max(by_format.values(), default=0)


_SHARES = ("weights", "optimizer", "weights and optimizer", "EMA copy", "buffers", "other")


def compute_shares(
    checkpoint: Checkpoint, sums: Mapping[str, int], parameters: int | None, per_parameter: BytesPerParameter | None
) -> dict[str, Share]:
    """The parts of the checkpoint with their expected bytes per parameter."""
    weights, optimizer = _expect(checkpoint, sums, per_parameter)
    expected = {"weights": weights, "optimizer": optimizer, "weights and optimizer": (weights or 0) + (optimizer or 0)}
    sizes = {name: sums.get("both" if name == "weights and optimizer" else name, 0) for name in _SHARES}
    return {name: Share(name, size, parameters, expected.get(name)) for name, size in sizes.items() if size}


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
        ratio = round(count_elements(checkpoint, Role.MOMENTS) / max(1, count_elements(checkpoint, Role.WEIGHTS)))
        kept = ratio if ratio in (1, 3) else 2  # AMSGrad keeps the largest second moment, too
        return weights, masters + kept * max(moments, key=lambda size: moments[size], default=4)
    optimizer = 12 if sums.get("optimizer") or sums.get("both") else 0
    return weights, optimizer


def count_by_size(checkpoint: Checkpoint, role: Role) -> dict[int, int]:
    """The number of elements of a role by element size in bytes."""
    sizes: dict[int, int] = {}
    for file in checkpoint.files:
        for group in file.holds or ():
            if group.role is role and group.elements:
                size = max(1, round(group.bytes / group.elements))
                sizes[size] = sizes.get(size, 0) + group.elements
    return sizes


#: Bytes of names and alignment, as a share of a file or of a part.
_TOLERANCE = 0.03
#: Expected bytes of quantised parts, beside which scales and small tensors are saved in full: these are not judged.
_QUANTISED = (("weights", 1), ("optimizer", 2))
_TWICE = (1.9, 2.1)


@dataclass(frozen=True, slots=True)
class SizeFinding:
    """A problem with a checkpoint: its name for programs, and a sentence."""

    kind: str
    text: str


def check_sizes(checkpoint: Checkpoint, shares: Sequence[Share], parameters: int | None) -> list[SizeFinding]:
    """Parts with more bytes per parameter than expected, and a missing optimizer state."""
    findings: list[SizeFinding] = []
    for share in shares:
        expected = share.expected_bytes_per_parameter
        if not parameters or not expected or (share.part, expected) in _QUANTISED:
            continue
        ratio = share.bytes / (expected * parameters)
        if share.part == "optimizer" and _TWICE[0] <= ratio <= _TWICE[1]:
            findings.append(SizeFinding("doubled_optimizer", _doubled(checkpoint, share, parameters)))
        elif ratio > 1 + _TOLERANCE:
            takes = "takes" if share.part == "optimizer" else "take"
            text = (
                f"The {share.part} {takes} {_per_parameter(share, parameters)}: wider types, views saved with their "
                "full storage (fix: save tensor.clone()), or state saved twice."
            )
            findings.append(SizeFinding("larger", text))
    if not any(share.part in {"optimizer", "weights and optimizer"} for share in shares):
        findings.append(
            SizeFinding("weights_only", "No optimizer state: training cannot be resumed exactly from this checkpoint.")
        )
    return findings


def _doubled(checkpoint: Checkpoint, share: Share, parameters: int) -> str:
    kinds = dict.fromkeys(
        file.kind
        for file in checkpoint.files
        if any(part == "optimizer" and size for part, size in parts_of(checkpoint, file))
    )
    files = " and ".join(f"the files of {kind}" for kind in kinds)
    return (
        f"The optimizer state was saved twice: {_per_parameter(share, parameters)}, in {files}. "
        f"{share.bytes // 2:,} bytes are redundant."
    )


def _per_parameter(share: Share, parameters: int) -> str:
    return f"{share.bytes / parameters:.2f} bytes/parameter, {share.expected_bytes_per_parameter} expected"


def check_files(checkpoint: Checkpoint) -> list[SizeFinding]:
    """Files with bytes outside of every tensor, and weights in two formats."""
    findings: list[SizeFinding] = []
    unused = [file for file in checkpoint.files if file.unused_bytes > _TOLERANCE * file.bytes]
    if unused:
        worst = max(unused, key=lambda file: file.unused_bytes)
        total = sum(file.unused_bytes for file in unused)
        holders = "1 file holds" if len(unused) == 1 else f"{len(unused)} files hold"
        findings.append(
            SizeFinding(
                "unused_storage",
                f"{holders} {total:,} bytes outside of every tensor: views were saved with their full "
                f"storage (fix: save tensor.clone()). The largest share is in {worst.path}: {worst.unused_bytes:,} of "
                f"{worst.bytes:,} bytes.",
            )
        )
    endings = {file.path.rpartition(".")[2] for file in checkpoint.files if file.kind is Kind.WEIGHTS}
    if checkpoint.layout is Layout.HUGGING_FACE and {"safetensors", "bin"} <= endings:
        findings.append(SizeFinding("doubled_weights", "The weights were saved twice, as safetensors and as .bin."))
    averaged = count_elements(checkpoint, Role.EMA)
    if averaged:
        text = f"An averaged (EMA) copy of the weights is saved, too: {averaged:,} elements, not counted as parameters."
        findings.append(SizeFinding("ema_copy", text))
    return findings


def newest_complete(siblings: Sequence[CheckpointSummary]) -> CheckpointSummary | None:
    """The newest complete checkpoint, where the newest one is not complete and there is one; None otherwise."""
    if not any(each.newest and each.problems for each in siblings):
        return None
    complete = [each for each in siblings if not each.problems]
    return max(complete, key=lambda each: (-1 if each.step is None else each.step, each.modified_ns or 0), default=None)


def _check_newest(checkpoint: Checkpoint) -> list[SizeFinding]:
    newest = next((each for each in checkpoint.checkpoints if each.newest), None)
    if newest is None or not newest.problems or len(checkpoint.checkpoints) == 1:
        return []
    complete = newest_complete(checkpoint.checkpoints)
    instead = "no other one is" if complete is None else f"the newest complete one is {_name_of(complete)}"
    text = f"{_name_of(newest)} is the newest checkpoint and not complete ({newest.problems[0]}); {instead}."
    return [SizeFinding("newest_incomplete", text)]


def _name_of(summary: CheckpointSummary) -> str:
    return summary.name or "(the folder itself)"


def _list_checkpoints(checkpoint: Checkpoint) -> tuple[Section, ...]:
    listed = checkpoint.checkpoints
    if len(listed) <= 1:
        return ()
    columns = (
        Column("Checkpoint", _name_of),
        Column("Step", "step"),
        Column("Epoch", "epoch"),
        Column("Files", "files"),
        _size_columns("Bytes", max(each.bytes for each in listed))[1],
        Column("Complete", lambda each: f"no: {each.problems[0]}" if each.problems else "yes"),
        Column("Shown here", lambda each: "yes" if each.shown else ""),
    )
    hidden = len(listed) - MOST_ROWS
    more = (f"{hidden} older ones are in --format json.",) if hidden > 0 else ()
    notes = (*checkpoint.notes, *more, "Name a checkpoint's folder or file for the contents of another one.")
    return (Table("Checkpoints in the folder", "", columns).section(listed[-MOST_ROWS:], notes),)


_UNIT_PAIRS = (  # the smallest size, with its decimal and its binary unit
    (TB, ("TB", TB), ("TiB", TIB)),
    (GB, ("GB", GB), ("GiB", GIB)),
    (MB, ("MB", MB), ("MiB", MIB)),
    (0, ("kB", KB), ("KiB", KIB)),
)
_STATE = (Role.WEIGHTS, Role.MASTER, Role.MOMENTS, Role.EMA, Role.BUFFERS)


class CheckpointSizes(Result, frozen=True, kw_only=True):
    """The sizes of a checkpoint."""

    checkpoint: Checkpoint
    path: Annotated[str, Doc("Its folder, or its file.")]
    tag: Annotated[str | None, Doc("Its name in a folder of several; null if the folder itself is the checkpoint.")]
    layout: Annotated[Layout, Doc("Which framework wrote it, and how it is split.")]
    mixture_of_experts: Annotated[bool, Doc("There are files of experts.")]
    bytes: Annotated[int, Doc("The size of all files.")]
    parameters: Annotated[int | None, Doc("Number of parameters.")]
    parameters_from: Annotated[str, Doc("The origin of that number.")]
    read: Annotated[str, Doc("`contents` if tables of contents were read, `names` if only names and sizes are known.")]
    parts: Annotated[Mapping[str, Share], Doc("Bytes by part.")]
    findings: Annotated[tuple[SizeFinding, ...], Doc("Problems.")]
    files: Annotated[tuple[CheckpointFile, ...], Doc("Its files, by path.")]
    checkpoints: Annotated[tuple[CheckpointSummary, ...], Doc("All of the folder; empty for a single file.")]
    notes: Annotated[tuple[str, ...], Doc("Why this one was taken, and what is unusual about the folder.")]

    @figure
    def bytes_per_parameter(self) -> float | None:
        """``bytes / parameters``."""
        return self.bytes / self.parameters if self.parameters else None

    @figure
    def other_checkpoints(self) -> dict[str, int]:
        """The sizes of the others of the folder."""
        return {each.name: each.bytes for each in self.checkpoints if not each.shown}

    def sections(self) -> tuple[Section, ...]:
        """The parts, the problems, the files."""
        sections = [self.parts_section()]
        if self.findings:
            sections.append(Section("Findings", notes=tuple(finding.text for finding in self.findings)))
        sections.extend(
            (*_list_checkpoints(self.checkpoint), _list_kinds(self.checkpoint), _list_files(self.checkpoint))
        )
        return tuple(sections)

    def parts_section(self, title: str = "Parts") -> Section:
        """The bytes of each part, under a heading of its own."""
        columns = (
            Column("Part", "part"),
            *_size_columns("Bytes", self.checkpoint.bytes),
            Column("Bytes per parameter", "bytes_per_parameter", None, 3),
            Column("Expected", "expected_bytes_per_parameter"),
        )
        expected = [share.expected_bytes_per_parameter for share in self.parts.values()]
        known = [size for size in expected if size is not None]
        total = Share("total", self.checkpoint.bytes, self.parameters, sum(known) if known else None)
        counted = f"{self.parameters:,} parameters, {self.parameters_from}" if self.parameters else self.parameters_from
        read = {
            "contents": "From the tables of contents; no code of the files was run.",
            "names": "From names and sizes alone; 2-byte weights and Adam are assumed.",
        }[self.read]
        return Table(title, "", columns).section((*self.parts.values(), total), (f"{counted}.", read))


def _size_columns(name: str, largest: int) -> tuple[Column, ...]:
    units = next(units for least, *units in _UNIT_PAIRS if largest >= least)
    return (
        Column(name, "bytes"),
        *(Column(heading, "bytes", unit.__rtruediv__, 3) for heading, unit in units),
    )


def _list_kinds(checkpoint: Checkpoint) -> Section:
    groups: dict[Kind, list[int]] = {}
    for file in checkpoint.files:
        groups.setdefault(file.kind, []).append(file.bytes)
    columns = (
        Column("Kind of file", lambda group: str(group[0])),
        Column("Files", lambda group: len(group[1])),
        Column("Bytes", lambda group: sum(group[1])),
        Column("Smallest", lambda group: min(group[1])),
        Column("Largest", lambda group: max(group[1])),
    )
    return Table("Kinds of file", "", columns).section(groups.items())


def _list_files(checkpoint: Checkpoint) -> Section:
    files = checkpoint.files
    sizes = _size_columns("Bytes", max(file.bytes for file in files))
    columns = (Column("File", "path"), *sizes, Column("Contents", _describe))
    return Table("Files", "", columns).section(files, most=MOST_ROWS)


def check_checkpoint(
    checkpoint: Checkpoint, parameters: int | None = None, per_parameter: BytesPerParameter | None = None
) -> CheckpointSizes:
    """Compare the sizes of a checkpoint's parts with the expected ones; MissingInput where it has no file.

    By default those of its contents are expected.
    """
    if not checkpoint.files:
        raise MissingInput("the checkpoint has no file")
    sums = sum_parts(checkpoint)
    parameters, origin = count_parameters(checkpoint, sums, parameters)
    shares = compute_shares(checkpoint, sums, parameters, per_parameter)
    read = "contents" if any(file.holds for file in checkpoint.files) or has_no_elements(checkpoint) else "names"
    # Bytes of a file that cannot be read belong to parameters that were not counted.
    judged = None if read == "contents" and any(file.unread for file in checkpoint.files) else parameters
    findings = (
        *check_sizes(checkpoint, tuple(shares.values()), judged),
        *check_files(checkpoint),
        *_check_newest(checkpoint),
        *(SizeFinding("damage", text) for text in checkpoint.damage),
    )
    return CheckpointSizes(
        checkpoint=checkpoint,
        path=checkpoint.path,
        tag=checkpoint.tag,
        layout=checkpoint.layout,
        mixture_of_experts=checkpoint.mixture_of_experts,
        bytes=checkpoint.bytes,
        parameters=parameters,
        parameters_from=origin,
        read=read,
        parts=shares,
        findings=findings,
        files=checkpoint.files,
        checkpoints=checkpoint.checkpoints,
        notes=checkpoint.notes,
    )


def _describe(file: CheckpointFile) -> str:
    if file.holds is None:
        return f"{file.kind} ({file.unread})" if file.unread else str(file.kind)
    state = [group for group in file.holds if group.role in _STATE]
    return ", ".join(f"{group.role}: {group.elements:,} {group.dtype}" for group in state) or str(file.kind)
