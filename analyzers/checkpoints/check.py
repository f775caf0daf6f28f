"""What a checkpoint's bytes are for, and whether there are as many as there should be.

Bytes per parameter are held against theory: 14 with mixed precision and Adam, 12 in fp32 or where ZeRO 3 shards the
weights. Twice the optimizer's share is state that was saved twice; weights far above theirs are views that were saved
with the whole storage behind them.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.analyzers.checkpoints.findings import Finding, file_findings, size_findings
from perfscope.analyzers.checkpoints.parts import Share, count_parameters, shares_of, sums_by_part
from perfscope.analyzers.checkpoints.plan import (
    BytesPerParameter,
)
from perfscope.constants import GB, GIB, TB, TIB
from perfscope.errors import MissingInput
from perfscope.report import Cell, Column, Json, Section
from perfscope.tables.checkpoint import Checkpoint, CheckpointFile, Held, Kind, Role

_SHOWN_FILES = 60
_FILE_OVERHEAD_BYTES = 1 << 16  # pickles, names and alignment, where they cannot be told from tensors
_UNITS = (  # from the total size on, the decimal and the binary unit
    (TB, ("TB", TB), ("TiB", TIB)),
    (GB, ("GB", GB), ("GiB", GIB)),
    (10**6, ("MB", 10**6), ("MiB", 2**20)),
    (0, ("kB", 10**3), ("KiB", 2**10)),
)
_STATE = (Role.WEIGHTS, Role.MASTER, Role.MOMENTS)


@dataclass(frozen=True, slots=True)
class CheckpointSizes:
    """A checkpoint's bytes.

    Attributes:
        checkpoint: Its files.
        parameters: Number of parameters.
        parameters_from: Where that number is from.
        read: ``contents`` where tables of contents were read, ``names`` where names and sizes are all there is.
        shares: Bytes by part.
        findings: What should not be so.
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
            "bytes_per_parameter": self._each(checkpoint.size_bytes),
            "read": self.read,
            "parts": {
                share.part: {
                    "bytes": share.size_bytes,
                    "bytes_per_parameter": self._each(share.size_bytes),
                    "expected_bytes_per_parameter": share.expected,
                }
                for share in self.shares
            },
            "findings": [{"kind": finding.kind, "text": finding.text} for finding in self.findings],
            "files": [_file_data(file) for file in checkpoint.files],
            "other_checkpoints": dict(checkpoint.other_tags),
        }

    def _each(self, size_bytes: int) -> float | None:
        return size_bytes / self.parameters if self.parameters else None

    def sections(self) -> tuple[Section, ...]:
        """The parts, what is wrong, the files."""
        sections = [self._parts()]
        if self.findings:
            sections.append(Section("Findings", notes=tuple(finding.text for finding in self.findings)))
        sections.extend((self._kinds(), self._files()))
        if self.checkpoint.other_tags:
            rows = tuple((tag, size / GB) for tag, size in self.checkpoint.other_tags.items())
            sections.append(Section("Other checkpoints beside it", (Column("Name"), Column("GB", 3)), rows))
        return tuple(sections)

    def _parts(self) -> Section:
        (decimal_name, decimal), (binary_name, binary) = _units(self.checkpoint.size_bytes)
        columns = (
            Column("Part"),
            Column("Bytes"),
            Column(decimal_name, 3),
            Column(binary_name, 3),
            Column("Bytes per parameter", 3),
            Column("By theory"),
        )
        known = [share.expected for share in self.shares if share.expected is not None]
        whole = Share("all", self.checkpoint.size_bytes, sum(known) if known else None)
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (
                share.part,
                share.size_bytes,
                share.size_bytes / decimal,
                share.size_bytes / binary,
                self._each(share.size_bytes),
                share.expected,
            )
            for share in (*self.shares, whole)
        )
        counted = f"{self.parameters:,} parameters, {self.parameters_from}" if self.parameters else self.parameters_from
        read = {
            "contents": "Tables of contents were read; nothing was unpickled.",
            "names": "Only names and sizes are known: 2-byte weights and Adam are assumed.",
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
        columns = (Column("File"), Column("Bytes"), Column(decimal_name, 3), Column(binary_name, 3), Column("Holds"))
        rows = tuple(
            (file.path, file.size_bytes, file.size_bytes / decimal, file.size_bytes / binary, _holds(file))
            for file in files[:_SHOWN_FILES]
        )
        hidden = len(files) - len(rows)
        notes = (f"{hidden} more files are in --format json.",) if hidden else ()
        return Section("Files", columns, rows, notes)


def _units(size_bytes: int) -> tuple[tuple[str, int], tuple[str, int]]:
    return next((decimal, binary) for least, decimal, binary in _UNITS if size_bytes >= least)


def analyze(
    checkpoint: Checkpoint, given_parameters: int | None = None, each: BytesPerParameter | None = None
) -> CheckpointSizes:
    """Hold a checkpoint's bytes against theory.

    Args:
        checkpoint: Its files.
        given_parameters: Number of parameters, where the user states it.
        each: Bytes per parameter, where the user states the optimizer and precision; from the contents where None.

    Raises:
        MissingInput: The checkpoint has no file.
    """
    if not checkpoint.files:
        raise MissingInput("the checkpoint has no file")
    sums = sums_by_part(checkpoint)
    parameters, origin = count_parameters(checkpoint, sums, given_parameters)
    shares = shares_of(checkpoint, sums, each)
    read = "contents" if any(file.held for file in checkpoint.files) else "names"
    findings = (
        *size_findings(checkpoint, shares, parameters, 0 if read == "contents" else _FILE_OVERHEAD_BYTES),
        *file_findings(checkpoint),
        *(Finding("damage", text) for text in checkpoint.damage),
    )
    return CheckpointSizes(checkpoint, parameters, origin, read, shares, tuple(findings))


def _holds(file: CheckpointFile) -> str:
    if file.held is None:
        return f"{file.kind} ({file.unread})" if file.unread else str(file.kind)
    return ", ".join(f"{held.role}: {held.elements:,} {held.dtype}" for held in _state(file)) or str(file.kind)


def _state(file: CheckpointFile) -> list[Held]:
    return [held for held in file.held or () if held.role in _STATE]


def _file_data(file: CheckpointFile) -> Json:
    held: list[Json] | None = None
    if file.held is not None:
        held = [
            {"role": str(one.role), "dtype": one.dtype, "elements": one.elements, "bytes": one.size_bytes}
            for one in file.held
        ]
    return {
        "path": file.path,
        "bytes": file.size_bytes,
        "kind": str(file.kind),
        "ranks": dict(file.ranks),
        "holds": held,
        "unused_bytes": file.unused_bytes,
        "unread": file.unread,
        "dangerous_calls": list(file.dangers),
    }
