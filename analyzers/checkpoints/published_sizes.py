"""Whether a published size of a checkpoint follows from the planned one, with decimal or with binary units.

TB is 10**12 bytes and TiB is 2**40: they differ by 10 %, and reports mix them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from perfscope.constants import GB, GIB, GIGA, MB, MIB, PETA, TB, TIB

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
