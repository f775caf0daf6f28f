"""A published table as numbers: the value of each cell, its digits, and its position in the file.

Numbers are exact fractions, because a verdict such as "rounded" depends on the last digit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from perfscope.models.hardware import Gpu
from perfscope.models.transformer import ModelDescription


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
    CONTEXT_PARALLEL = "CP"
    EXPERT_PARALLEL = "EP"
    LAYERS = "layers"
    SEQ_LEN = "sequence length"
    TOKENS = "training tokens"
    PASSES = "passes"
    STEP_TIME = "step time"  # seconds
    RATE = "samples/s"
    TOKEN_RATE = "tokens/s"
    DEVICE_TOKEN_RATE = "tokens/s per GPU"
    TFLOPS = "TFLOPs per GPU"
    MODEL_TFLOPS = "model TFLOPs per GPU"
    AGGREGATE_PFLOPS = "aggregate PFLOPs"
    PEAK_FRACTION = "share of peak"  # 0 to 1
    HARDWARE_FRACTION = "HFU"  # 0 to 1
    SPEEDUP = "speed-up"
    EFFICIENCY = "efficiency"  # 0 to 1
    SAVE_SPEED = "GB/s of a save"
    MEMORY = "memory used"
    MEMORY_TOTAL = "memory of a GPU"
    MEMORY_SHARE = "share of memory"  # 0 to 1


#: What can be computed from the other cells of a table.
DERIVED = (
    Quantity.TFLOPS,
    Quantity.MODEL_TFLOPS,
    Quantity.AGGREGATE_PFLOPS,
    Quantity.PEAK_FRACTION,
    Quantity.HARDWARE_FRACTION,
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
class Subject:
    """What a row is about, as its cells, the headings above it or an option name it.

    Attributes:
        dtype: The data type of its products; None where nothing names one.
        recomputes: Whether activations are recomputed; None where nothing says so.
        about: The texts that name them, for words such as LoRA.
        unknown: Why there is no model, no GPU or no data type, by these names.
    """

    model: ModelDescription | None = None
    gpu: Gpu | None = None
    dtype: str | None = None
    recomputes: bool | None = None
    about: str = ""
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_adapter(self) -> bool:
        """Whether adapters are trained (LoRA), and the weights of the model are not."""
        return re.search(r"\bq?lora\b", self.about, re.IGNORECASE) is not None

    @property
    def is_fine_tuned(self) -> bool:
        """Whether a trained model is tuned."""
        return re.search(r"\b(q?lora|sft|fine-?tun\w*)\b", self.about, re.IGNORECASE) is not None


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One row of a published table, from ``line`` of its file.

    Attributes:
        subject: Its model, GPU and precision.
        is_second: Whether it holds the second values of a row whose cells state two, as ``899 (738)``.
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
    subject: Subject
    is_second: bool = False


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that holds for a whole table: from an option, from the text, or assumed."""

    value: int
    origin: str
    is_assumed: bool = False


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
