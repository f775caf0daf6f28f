"""Tables that compare two precisions, as NVIDIA publishes them: each precision is a table of its own.

    | GPUs | Batch size / GPU | Throughput - TF32 | Throughput - mixed precision |

    | Throughput speedup (TF32 - mixed precision) | Weak scaling - TF32 | Weak scaling - mixed precision |

Weak scaling is the throughput over that of the row with the fewest GPUs, in its own precision. The throughput speed-up
is the ratio of the two throughputs of a row; headings name its direction both ways, so that the cells decide. Strong
scaling is left alone: its rows differ in the batch of a GPU, and which of them is the baseline is not written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.sources.published.cells import leading_number
from perfscope.sources.published.headings import Column
from perfscope.sources.published.markdown import Cell
from perfscope.tables.published import Quantity

_SEVERAL = 2
_MARKUP = str.maketrans("", "", "*`_~")
_THROUGHPUT = re.compile(r"(?:training )?throughput\b(?! *speed)(?P<name>.*)")
_SCALING = re.compile(r"(?:multi gpu )?weak scaling\b(?P<name>.*)")
_SPEEDUP = re.compile(r"(?:throughput )?speed ?up.*")
_DIRECTION = re.compile(r"\((?P<slow>[^()]+?) (?:to|vs\.?|[-\u2013]) (?P<fast>[^()]+?)\)")
_UNITS = re.compile(r"[(\[][^)\]]*(?:/ ?s(?:ec)?|per second)[^)\]]*[)\]]")
_GPUS = re.compile(r"(?:number of |# ?)?gpus?")
_OF_THE_JOB = re.compile(r"global.*|.*accumulation.*|.*acc(?:um)? ?steps.*|nodes?")


@dataclass(frozen=True, slots=True)
class _Headings:
    """The columns of such a table, by what they state.

    Attributes:
        gpus: The number of GPUs.
        throughputs: The throughput of each precision, by its name.
        scalings: The scaling of each precision, by its name.
        speedup: The ratio of two throughputs; None without it.
        direction: The names of its divisor and its dividend; None where the heading names none.
    """

    gpus: int | None
    throughputs: dict[str, int]
    scalings: dict[str, int]
    speedup: int | None
    direction: tuple[str, str] | None


def split_precisions(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[list[Column]]:
    """The columns of each table that such a table holds; empty for any other table."""
    layout = _read_headings(headings)
    if len(layout.throughputs) < _SEVERAL or not (layout.scalings or layout.speedup is not None):
        return []
    views = []
    for name, scaling in layout.scalings.items():
        throughput = layout.throughputs.get(name)
        if throughput is not None and layout.gpus is not None:
            stated = {layout.gpus: Quantity.GPUS, throughput: Quantity.RATE, scaling: Quantity.SPEEDUP}
            views.append(_describe(headings, layout, stated))
    ends = _throughputs_of(layout)
    if layout.speedup is not None and ends is not None:
        slow, fast = _turn(rows, layout.speedup, ends)
        stated = {slow: Quantity.RATE, fast: Quantity.SECOND_RATE, layout.speedup: Quantity.PRECISION_SPEEDUP}
        views.append(_describe(headings, layout, stated))
    return views


def _read_headings(headings: Sequence[str]) -> _Headings:
    gpus, speedup, direction = None, None, None
    throughputs: dict[str, int] = {}
    scalings: dict[str, int] = {}
    for index, heading in enumerate(headings):
        text = " ".join(_UNITS.sub(" ", heading.translate(_MARKUP).lower()).split())
        plain = " ".join(re.sub(r"[-\u2013]", " ", text).split())
        if match := _THROUGHPUT.fullmatch(plain):
            throughputs[match["name"].strip()] = index
        elif match := _SCALING.fullmatch(plain):
            scalings[match["name"].strip()] = index
        elif _SPEEDUP.fullmatch(plain):
            speedup = index
            named = _DIRECTION.search(text)
            direction = (named["slow"].strip(), named["fast"].strip()) if named else None
        elif _GPUS.fullmatch(plain):
            gpus = index
    return _Headings(gpus, throughputs, scalings, speedup, direction)


def _throughputs_of(layout: _Headings) -> tuple[int, int] | None:
    """The columns of the divisor and the dividend of the speed-up; None where its heading does not name both."""
    if layout.direction is None:
        return None
    ends = []
    for end in layout.direction:
        words = end.replace("-", " ")
        columns = [index for name, index in layout.throughputs.items() if name.startswith(words)]
        if len(columns) != 1:
            return None
        ends.append(columns[0])
    return (ends[0], ends[1]) if ends[0] != ends[1] else None


def _turn(rows: Sequence[Sequence[Cell]], speedup: int, ends: tuple[int, int]) -> tuple[int, int]:
    """The columns of the divisor and the dividend as most rows have them."""
    votes = 0
    for row in rows:
        numbers = [leading_number(row[index]) if index < len(row) else None for index in (speedup, *ends)]
        values = [float(number.number) for number in numbers if number is not None and number.number > 0]
        if len(values) == len(numbers):
            stated, slow, fast = values
            as_named, turned = abs(stated - fast / slow), abs(stated - slow / fast)
            votes += (as_named < turned) - (turned < as_named)
    return ends if votes >= 0 else (ends[1], ends[0])


def _describe(headings: Sequence[str], layout: _Headings, stated: dict[int, Quantity]) -> list[Column]:
    """Columns with what they state; rows that differ in any other column but the figures have no common baseline."""
    figures = {*layout.throughputs.values(), *layout.scalings.values(), layout.speedup, layout.gpus}
    columns = []
    for index, heading in enumerate(headings):
        plain = " ".join(heading.translate(_MARKUP).lower().replace("-", " ").split())
        is_group = index not in figures and not _OF_THE_JOB.fullmatch(plain)
        columns.append(Column(stated.get(index), "", index == layout.gpus, is_group))
    return columns
