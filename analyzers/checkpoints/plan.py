"""The expected size of a checkpoint, from the number of parameters.

Mixed precision with Adam saves 14 bytes/parameter: 2 of bf16 or fp16 weights, 4 of fp32 master weights, and 4 + 4 of
Adam's moments; gradients are not saved. Pure fp32 saves 12 (4 + 8). ZeRO 3 shards the weights and restores them from
the master weights, so 12 are saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from math import ceil, floor

from perfscope.constants import GB, GIB, GIGA, MB, MIB, PETA, TB, TIB
from perfscope.report import Column, Json, Section

_BINARY_UNITS = {MB: MIB, GB: GIB, TB: TIB, PETA: 2**50}


@dataclass(frozen=True, slots=True)
class PublishedSize:
    """A published size, such as ``0.34TB``.

    Attributes:
        of: Which size of the plan it states: ``weights``, ``optimizer``, ``total``, or one of them with `` per file``.
        text: As published.
        number: Its digits as a number.
        decimals: Its digits after the point.
        decimal_unit: What its unit is worth when prefixes are decimal: 10**12 for TB.
        source: Where it was published.
    """

    of: str
    text: str
    number: Fraction
    decimals: int
    decimal_unit: int
    source: str


_BIGSCIENCE = "bigscience-workshop/bigscience, experiments/gpt2.md"
#: Published sizes of checkpoints by parameters and GPUs, which a plan of the same size is compared with.
PUBLISHED_SIZES: Mapping[tuple[int, int], tuple[PublishedSize, ...]] = {
    (181 * GIGA, 256): (
        PublishedSize("weights", "0.34TB", Fraction(34, 100), 2, TB, _BIGSCIENCE),
        PublishedSize("optimizer", "2.00TB", Fraction(2), 2, TB, _BIGSCIENCE),
        PublishedSize("total", "2.4TB", Fraction(24, 10), 1, TB, _BIGSCIENCE),
        PublishedSize("weights per file", "1.4GB", Fraction(14, 10), 1, GB, _BIGSCIENCE),
        PublishedSize("optimizer per file", "8.0GB", Fraction(8), 1, GB, _BIGSCIENCE),
    )
}


@dataclass(frozen=True, slots=True)
class SizeComparison:
    """A published size and the planned one, in both meanings of its unit.

    Attributes:
        published: The published size.
        decimal, binary: The planned size in units of 10**n and of 2**m.
        decimal_fit, binary_fit: How the published digits follow from each: ``rounded``, ``rounded up``, ``cut off``;
            empty if they do not.
    """

    published: PublishedSize
    decimal: Fraction
    binary: Fraction
    decimal_fit: str
    binary_fit: str


def compare_size(published: PublishedSize, planned_bytes: Fraction) -> SizeComparison:
    """Compare a published size with the planned size of the same part."""
    decimal = planned_bytes / published.decimal_unit
    binary = planned_bytes / _BINARY_UNITS[published.decimal_unit]
    return SizeComparison(published, decimal, binary, _fit(published, decimal), _fit(published, binary))


def _fit(published: PublishedSize, value: Fraction) -> str:
    """How published digits follow from a value."""
    scale = 10**published.decimals
    digits = published.number * scale
    if abs(value * scale - digits) <= Fraction(1, 2):
        return "rounded"
    if ceil(value * scale) == digits:
        return "rounded up"
    return "cut off" if floor(value * scale) == digits else ""


class Optimizer(StrEnum):
    """The optimizer, which decides the state per parameter."""

    ADAM = "adam"
    ADAM_8BIT = "adam8bit"
    SGD_MOMENTUM = "sgd"
    NONE = "none"


class Precision(StrEnum):
    """The training precision."""

    MIXED = "mixed"
    FP32 = "fp32"


_ZERO_STAGE_OF_WEIGHTS = 3
_MOMENT_BYTES: Mapping[Optimizer, int] = {
    Optimizer.ADAM: 8,
    Optimizer.ADAM_8BIT: 2,
    Optimizer.SGD_MOMENTUM: 4,
    Optimizer.NONE: 0,
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
    optimizer: Optimizer = Optimizer.ADAM, precision: Precision = Precision.MIXED, zero_stage: int = 1
) -> BytesPerParameter:
    """The bytes that are saved for one parameter.

    >>> bytes_per_parameter().total, bytes_per_parameter(zero_stage=3).total
    (14, 12)
    """
    has_optimizer = optimizer is not Optimizer.NONE
    is_mixed = precision is Precision.MIXED
    shards_weights = zero_stage == _ZERO_STAGE_OF_WEIGHTS and has_optimizer
    return BytesPerParameter(
        weights=0 if shards_weights else 2 if is_mixed else 4,
        master=4 if has_optimizer and (is_mixed or shards_weights) else 0,
        moments=_MOMENT_BYTES[optimizer],
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a checkpoint.

    Attributes:
        parameters: Number of parameters of the model.
        gpus: Number of GPUs; each writes one file of weights and one of optimizer states.
        per_parameter: Bytes per parameter.
        comparisons: Published sizes beside the planned ones.
    """

    parameters: int
    gpus: int
    per_parameter: BytesPerParameter
    comparisons: tuple[SizeComparison, ...]

    def sizes(self) -> dict[str, int]:
        """Bytes by part."""
        return {
            "weights": self.parameters * self.per_parameter.weights,
            "optimizer": self.parameters * self.per_parameter.optimizer,
            "total": self.parameters * self.per_parameter.total,
        }

    def size_of(self, published: PublishedSize) -> Fraction:
        """The planned bytes of the part, or the file of a part, that a published size states."""
        part, _, per_file = published.of.partition(" per ")
        return Fraction(self.sizes()[part], self.gpus if per_file else 1)

    def data(self) -> Json:
        """The value of ``results.plan``."""
        parts: dict[str, Json] = {
            name: {
                "bytes": size,
                "bytes_per_parameter": size // self.parameters,
                "tb": size / TB,
                "tib": size / TIB,
                "per_file_bytes": size / self.gpus,
                "per_file_gb": size / self.gpus / GB,
                "per_file_gib": size / self.gpus / GIB,
            }
            for name, size in self.sizes().items()
        }
        published: list[Json] = [
            {
                "of": comparison.published.of,
                "published": comparison.published.text,
                "decimal": float(comparison.decimal),
                "binary": float(comparison.binary),
                "decimal_fit": comparison.decimal_fit or None,
                "binary_fit": comparison.binary_fit or None,
                "source": comparison.published.source,
            }
            for comparison in self.comparisons
        ]
        return {
            "parameters": self.parameters,
            "gpus": self.gpus,
            **parts,
            "published": published,
            "single_unit": self.single_unit() if self.comparisons else None,
        }

    def single_unit(self) -> str | None:
        """The meaning of the units that gives every published size; None where none does."""
        if all(comparison.decimal_fit for comparison in self.comparisons):
            return "decimal"
        return "binary" if all(comparison.binary_fit for comparison in self.comparisons) else None

    def sections(self) -> tuple[Section, ...]:
        """The planned sizes, and published ones beside them."""
        columns = (
            Column("Part"),
            Column("Bytes per parameter"),
            Column("TB", 3),
            Column("TiB", 3),
            Column("GB per file", 3),
            Column("GiB per file", 3),
        )
        rows = tuple(
            (
                name,
                size // self.parameters,
                size / TB,
                size / TIB,
                size / self.gpus / GB,
                size / self.gpus / GIB,
            )
            for name, size in self.sizes().items()
        )
        notes = (
            f"TB is 10**12 bytes, TiB is 2**40; one file per GPU, {self.gpus} of each part; gradients are not saved.",
        )
        sections = [Section("Planned size", columns, rows, notes)]
        if self.comparisons:
            sections.append(self._published())
        return tuple(sections)

    def _published(self) -> Section:
        columns = (
            Column("Published"),
            Column("Of"),
            Column("Planned, decimal unit", 3),
            Column("Fits", 0),
            Column("Planned, binary unit", 3),
            Column("Fits", 0),
        )
        rows = tuple(
            (
                comparison.published.text,
                comparison.published.of,
                float(comparison.decimal),
                comparison.decimal_fit or "no",
                float(comparison.binary),
                comparison.binary_fit or "no",
            )
            for comparison in self.comparisons
        )
        sources = ", ".join(dict.fromkeys(comparison.published.source for comparison in self.comparisons))
        return Section("Published sizes", columns, rows, (self.verdict(), f"Published by: {sources}."))

    def verdict(self) -> str:
        """Whether one meaning of the units explains all published sizes, in words."""
        unit = self.single_unit()
        if unit is not None:
            return f"Every published size follows from the {unit} meaning of its unit."
        neither = [each.published.text for each in self.comparisons if not each.decimal_fit and not each.binary_fit]
        texts = " and ".join(each.published.text for each in self.comparisons)
        more = f"; {' and '.join(neither)} follow{'s' if len(neither) == 1 else ''} neither" if neither else ""
        return f"The published sizes, such as {texts}, follow no single unit, decimal or binary{more}."


def plan_checkpoint(parameters: int, gpus: int, per_parameter: BytesPerParameter) -> Plan:
    """Plan a checkpoint's size, and compare the known published sizes of this model on these GPUs with it.

    Args:
        parameters: Number of parameters of the model.
        gpus: Number of GPUs; the files of a part are assumed to have one size.
        per_parameter: Bytes per parameter.
    """
    published = PUBLISHED_SIZES.get((parameters, gpus), ())
    plan = Plan(parameters, gpus, per_parameter, ())
    return replace(plan, comparisons=tuple(compare_size(size, plan.size_of(size)) for size in published))
