"""How many bytes a checkpoint takes, from the number of parameters: what any real one is compared with.

Mixed precision with Adam saves 14 bytes a parameter: 2 of bf16 or fp16 weights, 4 of fp32 master weights, and 4 + 4 of
Adam's moments; gradients are not saved. Pure fp32 saves 12 (4 + 8). Where ZeRO 3 shards the weights they are made again
from the master weights, so 12 are saved. TB is 10**12 bytes and TiB is 2**40: 10 % apart, and reports mix them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import ceil, floor

from perfscope.constants import GB, GIB, TB, TIB
from perfscope.report import Column, Json, Section


class Optimizer(StrEnum):
    """What the optimizer keeps for each parameter."""

    ADAM = "adam"
    ADAM_8BIT = "adam8bit"
    SGD_MOMENTUM = "sgd"
    NONE = "none"


class Precision(StrEnum):
    """What the model is trained in."""

    MIXED = "mixed"
    FP32 = "fp32"


_MOMENT_BYTES: Mapping[Optimizer, int] = {
    Optimizer.ADAM: 8,
    Optimizer.ADAM_8BIT: 2,
    Optimizer.SGD_MOMENTUM: 4,
    Optimizer.NONE: 0,
}


@dataclass(frozen=True, slots=True)
class BytesPerParameter:
    """What is saved for one parameter."""

    weights: int
    master: int
    moments: int

    @property
    def optimizer(self) -> int:
        """Master weights and moments, which lie in the same files."""
        return self.master + self.moments

    @property
    def total(self) -> int:
        """Everything."""
        return self.weights + self.optimizer


def bytes_per_parameter(
    optimizer: Optimizer = Optimizer.ADAM, precision: Precision = Precision.MIXED, zero_stage: int = 1
) -> BytesPerParameter:
    """What is saved for one parameter.

    >>> bytes_per_parameter().total, bytes_per_parameter(zero_stage=3).total
    (14, 12)
    """
    trained = optimizer is not Optimizer.NONE
    mixed = precision is Precision.MIXED
    sharded_weights = zero_stage == 3 and trained  # noqa: PLR2004 - the stage's name
    return BytesPerParameter(
        weights=0 if sharded_weights else 2 if mixed else 4,
        master=4 if trained and (mixed or sharded_weights) else 0,
        moments=_MOMENT_BYTES[optimizer],
    )


@dataclass(frozen=True, slots=True)
class Statement:
    """A published size, such as ``0.34TB``.

    Attributes:
        of: Which size of the plan it states: ``weights``, ``optimizer``, ``total``, or one of them with `` per file``.
        text: As published.
        number: Its digits as a number.
        decimals: Its digits after the point.
        decimal_unit: What its unit is worth when prefixes are decimal: 10**12 for TB.
        source: Who published it.
    """

    of: str
    text: str
    number: Fraction
    decimals: int
    decimal_unit: int
    source: str


_BIGSCIENCE = "bigscience-workshop/bigscience, experiments/gpt2.md"
#: Published sizes of checkpoints by model size and GPUs, to be held against the plan.
KNOWN: Mapping[tuple[int, int], tuple[Statement, ...]] = {
    (181 * 10**9, 256): (
        Statement("weights", "0.34TB", Fraction(34, 100), 2, TB, _BIGSCIENCE),
        Statement("optimizer", "2.00TB", Fraction(2), 2, TB, _BIGSCIENCE),
        Statement("total", "2.4TB", Fraction(24, 10), 1, TB, _BIGSCIENCE),
        Statement("weights per file", "1.4GB", Fraction(14, 10), 1, GB, _BIGSCIENCE),
        Statement("optimizer per file", "8.0GB", Fraction(8), 1, GB, _BIGSCIENCE),
    )
}


@dataclass(frozen=True, slots=True)
class Reading:
    """A published size against the planned one, in both meanings of its unit.

    Attributes:
        statement: What was published.
        decimal, binary: The planned size in units of 10**n and of 2**m.
        decimal_fit, binary_fit: How the published digits follow from each: ``rounded``, ``rounded up``, ``cut off``;
            empty where they do not.
    """

    statement: Statement
    decimal: Fraction
    binary: Fraction
    decimal_fit: str
    binary_fit: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a checkpoint.

    Attributes:
        parameters: Parameters of the model.
        gpus: GPUs, each of which writes one file of weights and one of optimizer states.
        each: Bytes per parameter.
        readings: Published sizes against it.
    """

    parameters: int
    gpus: int
    each: BytesPerParameter
    readings: tuple[Reading, ...]

    def sizes(self) -> dict[str, int]:
        """Bytes by part."""
        return {
            "weights": self.parameters * self.each.weights,
            "optimizer": self.parameters * self.each.optimizer,
            "total": self.parameters * self.each.total,
        }

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
                "of": reading.statement.of,
                "published": reading.statement.text,
                "decimal": float(reading.decimal),
                "binary": float(reading.binary),
                "decimal_fit": reading.decimal_fit or None,
                "binary_fit": reading.binary_fit or None,
                "source": reading.statement.source,
            }
            for reading in self.readings
        ]
        return {
            "parameters": self.parameters,
            "gpus": self.gpus,
            **parts,
            "published": published,
            "single_unit": self.single_unit() if self.readings else None,
        }

    def single_unit(self) -> str | None:
        """The meaning of the units that gives every published size; None where none does."""
        if all(reading.decimal_fit for reading in self.readings):
            return "decimal"
        return "binary" if all(reading.binary_fit for reading in self.readings) else None

    def sections(self) -> tuple[Section, ...]:
        """The sizes, and what was published of them."""
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
            f"TB is 10**12 bytes, TiB is 2**40; one file a GPU, {self.gpus} of each part; gradients are not saved.",
        )
        sections = [Section("Planned size", columns, rows, notes)]
        if self.readings:
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
                reading.statement.text,
                reading.statement.of,
                float(reading.decimal),
                reading.decimal_fit or "no",
                float(reading.binary),
                reading.binary_fit or "no",
            )
            for reading in self.readings
        )
        sources = ", ".join(dict.fromkeys(reading.statement.source for reading in self.readings))
        return Section("Published sizes", columns, rows, (self.verdict(), f"Published by: {sources}."))

    def verdict(self) -> str:
        """Whether one meaning of the units explains what was published, in words."""
        unit = self.single_unit()
        if unit is not None:
            return f"Every published size follows from the {unit} meaning of its unit."
        lost = [
            reading.statement.text for reading in self.readings if not reading.decimal_fit and not reading.binary_fit
        ]
        texts = " and ".join(reading.statement.text for reading in self.readings)
        neither = f"; {' and '.join(lost)} follow{'s' if len(lost) == 1 else ''} neither" if lost else ""
        return f"The published sizes, such as {texts}, follow no single unit, decimal or binary{neither}."


def analyze(parameters: int, gpus: int, each: BytesPerParameter, published: Iterable[Statement] | None = None) -> Plan:
    """Plan a checkpoint's size, and hold published sizes against it.

    Args:
        parameters: Parameters of the model.
        gpus: GPUs; the files of a part are taken to be of one size.
        each: Bytes per parameter.
        published: Sizes to compare with; those that are known for this model and these GPUs where None.
    """
    statements = KNOWN.get((parameters, gpus), ()) if published is None else tuple(published)
    plan = Plan(parameters, gpus, each, ())
    return Plan(parameters, gpus, each, tuple(_read(statement, plan) for statement in statements))


def _read(statement: Statement, plan: Plan) -> Reading:
    part, _, per_file = statement.of.partition(" per ")
    size = Fraction(plan.sizes()[part], plan.gpus if per_file else 1)
    binary_unit = {TB: TIB, GB: GIB, 10**6: 2**20, 10**15: 2**50}[statement.decimal_unit]
    decimal, binary = size / statement.decimal_unit, size / binary_unit
    return Reading(statement, decimal, binary, _fit(statement, decimal), _fit(statement, binary))


def _fit(statement: Statement, value: Fraction) -> str:
    """How published digits follow from a value."""
    place = 10**statement.decimals
    stated = statement.number * place
    if abs(value * place - stated) <= Fraction(1, 2):
        return "rounded"
    if ceil(value * place) == stated:
        return "rounded up"
    return "cut off" if floor(value * place) == stated else ""
