"""A published table as numbers: the value of each cell, its digits, and its position in the file.

Numbers are exact fractions, because a verdict such as "rounded" depends on the last digit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction


class Quantity(StrEnum):
    """What a column states, in the unit that its numbers are kept in."""

    GPUS = "GPUs"
    NODES = "nodes"
    GPUS_PER_NODE = "GPUs per node"
    PARAMETERS = "parameters"
    GLOBAL_BATCH = "global batch size"
    MICRO_BATCH = "micro batch size"
    ACCUMULATION = "accumulation steps"
    DATA_PARALLEL = "DP"
    TENSOR_PARALLEL = "TP"
    PIPELINE_PARALLEL = "PP"
    SEQ_LEN = "sequence length"
    TOKENS = "training tokens"
    PASSES = "passes"
    STEP_TIME = "step time"  # seconds
    RATE = "samples/s"
    TOKEN_RATE = "tokens/s"
    TFLOPS = "TFLOPs per GPU"
    AGGREGATE_PFLOPS = "aggregate PFLOPs"
    PEAK_FRACTION = "share of peak"  # 0 to 1
    SPEEDUP = "speed-up"
    EFFICIENCY = "efficiency"  # 0 to 1
    SAVE_SPEED = "GB/s of a save"
    MEMORY = "memory used"
    MEMORY_TOTAL = "memory of a GPU"
    MEMORY_SHARE = "share of memory"  # 0 to 1


#: What can be computed from the other cells of a table.
DERIVED = (
    Quantity.TFLOPS,
    Quantity.AGGREGATE_PFLOPS,
    Quantity.PEAK_FRACTION,
    Quantity.SPEEDUP,
    Quantity.EFFICIENCY,
    Quantity.SAVE_SPEED,
    Quantity.MEMORY_SHARE,
)


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A range of characters in a file: the line from 1, and offsets in it from 0."""

    line: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PrintedFigure:
    """One printed number: the digits times what a printed 1 is worth, 10**9 in ``52B``, 1/100 in ``7.7%``."""

    number: Fraction
    unit: Fraction
    decimals: int
    text: str
    span: TextSpan

    @property
    def last_place(self) -> Fraction:
        """What 1 in the last printed digit is worth."""
        return self.unit / Fraction(10**self.decimals)


@dataclass(frozen=True, slots=True)
class StatedChange:
    """A change that a cell states beside its value, as in ``14199(↓7.7%)``.

    ``sign`` is -1 or +1 by the cell's arrow or sign, 0 without one; ``figure`` is the size without sign.
    """

    column: int
    is_percent: bool
    sign: int
    figure: PrintedFigure


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One row of a published table, from ``line`` of its file.

    Attributes:
        group: Cells that its baseline has in common: model, precision, batch size per device.
        blanks: Cells of derived quantities that are empty.
        numbers: The leading number of every cell; None where there is none.
        absent: Cells without a figure, such as ``OOM``, and empty ones.
        problems: What could not be read, in words.
    """

    line: int
    cells: tuple[str, ...]
    label: str
    group: tuple[str, ...]
    figures: Mapping[Quantity, PrintedFigure]
    blanks: Mapping[Quantity, TextSpan]
    numbers: tuple[PrintedFigure | None, ...]
    changes: tuple[StatedChange, ...]
    absent: Mapping[Quantity, str]
    problems: Mapping[Quantity, str]


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that holds for a whole table: from an option, from the text, or assumed."""

    value: int
    origin: str


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of which at least one column can be recomputed or checked.

    ``columns`` has the column of each quantity, from 0. ``constants`` hold for every row, ``ambiguous`` has the problem
    with each that the text states with two values, ``notes`` those with columns.
    """

    title: str
    line: int
    headings: tuple[str, ...]
    columns: Mapping[Quantity, int]
    rows: tuple[PublishedRow, ...]
    constants: Mapping[Quantity, Constant]
    ambiguous: Mapping[Quantity, str]
    notes: tuple[str, ...]
