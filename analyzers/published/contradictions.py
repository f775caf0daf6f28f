"""Which rows of published tables contradict themselves.

A global batch is accumulation x micro batch x DP; GPUs are TP x PP x DP, and nodes x GPUs per node. The row does not
show which of its columns is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from perfscope.tables.published import Constant, PublishedTable, Quantity, Row

_Q = Quantity


@dataclass(frozen=True, slots=True)
class _Product:
    """A quantity that is the product of others, one of which a table may leave out."""

    total: Quantity
    factors: tuple[Quantity, ...]
    optional: Quantity | None = None


_PRODUCTS = (
    _Product(_Q.GLOBAL_BATCH, (_Q.ACCUMULATION, _Q.MICRO_BATCH, _Q.DATA_PARALLEL), _Q.ACCUMULATION),
    _Product(_Q.GPUS, (_Q.TENSOR_PARALLEL, _Q.PIPELINE_PARALLEL, _Q.DATA_PARALLEL), _Q.PIPELINE_PARALLEL),
    _Product(_Q.GPUS, (_Q.NODES, _Q.GPUS_PER_NODE)),
)


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A row whose columns cannot all be right."""

    table_title: str
    line: int
    row: str
    problem: str


def find_contradictions(tables: Sequence[PublishedTable]) -> tuple[Contradiction, ...]:
    """List every row that contradicts itself."""
    return tuple(
        Contradiction(table.title, row.line, row.label, problem)
        for table in tables
        for row in table.rows
        for problem in _contradictions(row, table.constants)
    )


def _contradictions(row: Row, constants: Mapping[Quantity, Constant]) -> Iterator[str]:
    """Say which columns of a row cannot all be right."""
    values = {quantity: figure.number for quantity, figure in row.figures.items()}
    texts = {
        quantity: f"{_SHORT[quantity]} {figure.text}" for quantity, figure in row.figures.items() if quantity in _SHORT
    }
    for quantity in (_Q.TENSOR_PARALLEL, _Q.GPUS):
        if quantity not in values and quantity in constants:
            values[quantity] = Fraction(constants[quantity].value)
            texts[quantity] = f"{_SHORT[quantity]} {constants[quantity].value} ({constants[quantity].origin})"
    for product in _PRODUCTS:
        yield from _check_product(values, texts, product)


def _check_product(
    values: Mapping[Quantity, Fraction], texts: Mapping[Quantity, str], product: _Product
) -> Iterator[str]:
    """Compare a total with its factors; without the optional factor it must at least be a multiple of the others."""
    present = [factor for factor in product.factors if factor in values]
    required = set(product.factors) - {product.optional}
    if product.total not in values or not required <= set(present):
        return
    value = prod((values[factor] for factor in present), start=Fraction(1))
    written = " x ".join(texts[factor] for factor in present)
    if len(present) == len(product.factors) and values[product.total] != value:
        yield f"{texts[product.total]}, but {written} = {value}"
    elif values[product.total] % value:
        yield f"{texts[product.total]} is not a multiple of {written} = {value}"


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
