"""Which rows of published tables contradict themselves.

A global batch is accumulation x micro batch x DP; GPUs are TP x PP x DP, and nodes x GPUs per node. Which of the
columns is wrong cannot be told from the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from perfscope.tables.published import Constant, PublishedTable, Quantity, Row

_Q = Quantity


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A row whose columns cannot all be right."""

    table_title: str
    line: int
    row: str
    problem: str


def analyze(tables: Sequence[PublishedTable]) -> tuple[Contradiction, ...]:
    """List every row that contradicts itself."""
    return tuple(
        Contradiction(table.title, row.line, row.label, problem)
        for table in tables
        for row in table.rows
        for problem in _contradictions(row, table.constants)
    )


def _contradictions(row: Row, constants: Mapping[Quantity, Constant]) -> Iterator[str]:
    """Say which columns of a row cannot all be right."""
    known = {quantity: figure.number for quantity, figure in row.figures.items()}
    names = {
        quantity: f"{_SHORT[quantity]} {figure.text}" for quantity, figure in row.figures.items() if quantity in _SHORT
    }
    for quantity in (_Q.TENSOR_PARALLEL, _Q.GPUS):
        if quantity not in known and quantity in constants:
            known[quantity] = Fraction(constants[quantity].value)
            names[quantity] = f"{_SHORT[quantity]} {constants[quantity].value} ({constants[quantity].origin})"
    yield from _product(
        known, names, _Q.GLOBAL_BATCH, (_Q.ACCUMULATION, _Q.MICRO_BATCH, _Q.DATA_PARALLEL), _Q.ACCUMULATION
    )
    yield from _product(
        known, names, _Q.GPUS, (_Q.TENSOR_PARALLEL, _Q.PIPELINE_PARALLEL, _Q.DATA_PARALLEL), _Q.PIPELINE_PARALLEL
    )
    yield from _product(known, names, _Q.GPUS, (_Q.NODES, _Q.GPUS_PER_NODE), None)


def _product(
    known: Mapping[Quantity, Fraction],
    names: Mapping[Quantity, str],
    whole: Quantity,
    factors: Sequence[Quantity],
    optional: Quantity | None,
) -> Iterator[str]:
    """A whole against its factors; without the optional one it must at least divide."""
    present = [factor for factor in factors if factor in known]
    if whole not in known or any(factor not in known for factor in factors if factor is not optional):
        return
    product = Fraction(1)
    for factor in present:
        product *= known[factor]
    written = " x ".join(names[factor] for factor in present)
    if len(present) == len(factors) and known[whole] != product:
        yield f"{names[whole]}, but {written} = {product}"
    elif known[whole] % product:
        yield f"{names[whole]} is no multiple of {written} = {product}"


_SHORT = {
    _Q.GLOBAL_BATCH: "GBS",
    _Q.ACCUMULATION: "GAS",
    _Q.MICRO_BATCH: "MBS",
    _Q.DATA_PARALLEL: "DP",
    _Q.TENSOR_PARALLEL: "TP",
    _Q.PIPELINE_PARALLEL: "PP",
    _Q.GPUS: "GPUs",
    _Q.NODES: "nodes",
    _Q.GPUS_PER_NODE: "GPUs per node",
}
