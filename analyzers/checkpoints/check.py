"""The parts of a checkpoint, and whether they have the expected size.

Bytes per parameter are compared with theory: 14 with mixed precision and Adam, 12 in fp32 or if ZeRO 3 shards the
weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfscope.analyzers.checkpoints.findings import Finding, check_files, check_sizes
from perfscope.analyzers.checkpoints.parts import Share, compute_shares, count_parameters, has_no_elements, sum_parts
from perfscope.analyzers.checkpoints.plan import BytesPerParameter
from perfscope.analyzers.checkpoints.siblings import check_newest, list_siblings, sibling_data
from perfscope.constants import GB, GIB, KB, KIB, MB, MIB, TB, TIB
from perfscope.errors import MissingInput
from perfscope.report import Cell, Column, Json, Section
from perfscope.tables.checkpoint import Checkpoint, CheckpointFile, Kind, Role, TensorGroup

_SHOWN_FILES = 60
_FILE_OVERHEAD_BYTES = 64 * KIB  # pickles, names and alignment, if only the size of the file is known
_UNITS = (  # the smallest size, with its decimal and its binary unit
    (TB, ("TB", TB), ("TiB", TIB)),
    (GB, ("GB", GB), ("GiB", GIB)),
    (MB, ("MB", MB), ("MiB", MIB)),
    (0, ("kB", KB), ("KiB", KIB)),
)
_STATE = (Role.WEIGHTS, Role.MASTER, Role.MOMENTS, Role.EMA, Role.BUFFERS)


@dataclass(frozen=True, slots=True)
class CheckpointSizes:
    """The sizes of a checkpoint.

    Attributes:
        checkpoint: Its files.
        parameters: Number of parameters.
        parameters_from: The origin of that number, in words.
        read: ``contents`` if tables of contents were read, ``names`` if only names and sizes are known.
        shares: Bytes by part.
        findings: Problems.
    """

    checkpoint: Checkpoint
    parameters: int | None
    parameters_from: str
    read: str
    shares: tuple[Share, ...]
    findings: tuple[Finding, ...]

    def data(self) -> Json:
        """The value of ``results.checkpoint``."""
        checkpoint = self.checkpoint
        return {
            "path": checkpoint.path,
            "tag": checkpoint.tag or None,
            "layout": str(checkpoint.layout),
            "mixture_of_experts": checkpoint.has_experts,
            "bytes": checkpoint.size_bytes,
            "parameters": self.parameters,
            "parameters_from": self.parameters_from,
            "bytes_per_parameter": self._per_parameter(checkpoint.size_bytes),
            "read": self.read,
            "parts": {
                share.part: {
                    "bytes": share.size_bytes,
                    "bytes_per_parameter": self._per_parameter(share.size_bytes),
                    "expected_bytes_per_parameter": share.expected,
                }
                for share in self.shares
            },
            "findings": [{"kind": finding.kind, "text": finding.text} for finding in self.findings],
            "files": [_file_data(file) for file in checkpoint.files],
            "other_checkpoints": {each.name: each.size_bytes for each in checkpoint.siblings if not each.is_shown},
            "checkpoints": [sibling_data(each) for each in checkpoint.siblings],
            "notes": list(checkpoint.notes),
        }

    def _per_parameter(self, size_bytes: int) -> float | None:
        return size_bytes / self.parameters if self.parameters else None

    def sections(self) -> tuple[Section, ...]:
        """The parts, the problems, the files."""
        sections = [self._parts()]
        if self.findings:
            sections.append(Section("Findings", notes=tuple(finding.text for finding in self.findings)))
        sections.extend((*list_siblings(self.checkpoint), self._kinds(), self._files()))
        return tuple(sections)

    def parts_section(self, title: str = "Parts") -> Section:
        """The bytes of each part, under a heading of its own."""
        return replace(self._parts(), title=title)

    def _parts(self) -> Section:
        (decimal_name, decimal), (binary_name, binary) = _units(self.checkpoint.size_bytes)
        columns = (
            Column("Part"),
            Column("Bytes"),
            Column(decimal_name, 3),
            Column(binary_name, 3),
            Column("Bytes per parameter", 3),
            Column("Expected"),
        )
        expected = [share.expected for share in self.shares if share.expected is not None]
        total = Share("total", self.checkpoint.size_bytes, sum(expected) if expected else None)
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (
                share.part,
                share.size_bytes,
                share.size_bytes / decimal,
                share.size_bytes / binary,
                self._per_parameter(share.size_bytes),
                share.expected,
            )
            for share in (*self.shares, total)
        )
        counted = f"{self.parameters:,} parameters, {self.parameters_from}" if self.parameters else self.parameters_from
        read = {
            "contents": "From the tables of contents; nothing was unpickled.",
            "names": "From names and sizes alone; 2-byte weights and Adam are assumed.",
        }[self.read]
        return Section("Parts", columns, rows, (f"{counted}.", read))

    def _kinds(self) -> Section:
        groups: dict[Kind, list[int]] = {}
        for file in self.checkpoint.files:
            groups.setdefault(file.kind, []).append(file.size_bytes)
        columns = ("Kind of file", "Files", "Bytes", "Smallest", "Largest")
        rows = tuple((str(kind), len(sizes), sum(sizes), min(sizes), max(sizes)) for kind, sizes in groups.items())
        return Section("Kinds of file", tuple(Column(name) for name in columns), rows)

    def _files(self) -> Section:
        files = self.checkpoint.files
        (decimal_name, decimal), (binary_name, binary) = _units(max(file.size_bytes for file in files))
        columns = (Column("File"), Column("Bytes"), Column(decimal_name, 3), Column(binary_name, 3), Column("Contents"))
        rows = tuple(
            (file.path, file.size_bytes, file.size_bytes / decimal, file.size_bytes / binary, _describe(file))
            for file in files[:_SHOWN_FILES]
        )
        hidden = len(files) - len(rows)
        notes = (f"{hidden} more files are in --format json.",) if hidden else ()
        return Section("Files", columns, rows, notes)


def _units(size_bytes: int) -> tuple[tuple[str, int], tuple[str, int]]:
    return next((decimal, binary) for least, decimal, binary in _UNITS if size_bytes >= least)


def check_checkpoint(
    checkpoint: Checkpoint, parameters: int | None = None, per_parameter: BytesPerParameter | None = None
) -> CheckpointSizes:
    """Compare the sizes of a checkpoint's parts with the expected ones.

    Args:
        checkpoint: Its files.
        parameters: Number of parameters; counted or estimated if None.
        per_parameter: Expected bytes per parameter; from the contents if None.

    Raises:
        MissingInput: The checkpoint has no file.
    """
    if not checkpoint.files:
        raise MissingInput("the checkpoint has no file")
    sums = sum_parts(checkpoint)
    parameters, origin = count_parameters(checkpoint, sums, parameters)
    shares = compute_shares(checkpoint, sums, per_parameter)
    is_read = any(file.contents for file in checkpoint.files) or has_no_elements(checkpoint)
    read = "contents" if is_read else "names"
    # Bytes of a file that cannot be read belong to parameters that were not counted.
    judged = None if read == "contents" and any(file.unread for file in checkpoint.files) else parameters
    findings = (
        *check_sizes(checkpoint, shares, judged, 0 if read == "contents" else _FILE_OVERHEAD_BYTES),
        *check_files(checkpoint),
        *check_newest(checkpoint),
        *(Finding("damage", text) for text in checkpoint.damage),
    )
    return CheckpointSizes(checkpoint, parameters, origin, read, shares, tuple(findings))


def _describe(file: CheckpointFile) -> str:
    if file.contents is None:
        return f"{file.kind} ({file.unread})" if file.unread else str(file.kind)
    state = [group for group in file.contents if group.role in _STATE]
    return ", ".join(f"{group.role}: {group.elements:,} {group.dtype}" for group in state) or str(file.kind)


def _file_data(file: CheckpointFile) -> Json:
    return {
        "path": file.path,
        "bytes": file.size_bytes,
        "kind": str(file.kind),
        "ranks": dict(file.ranks),
        "holds": None if file.contents is None else [_group_data(group) for group in file.contents],
        "unused_bytes": file.unused_bytes,
        "unread": file.unread,
        "dangerous_calls": list(file.dangerous_calls),
        "copy_of": file.copy_of,
    }


def _group_data(group: TensorGroup) -> Json:
    return {"role": str(group.role), "dtype": group.dtype, "elements": group.elements, "bytes": group.size_bytes}
