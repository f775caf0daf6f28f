"""Operations per token of a row whose model is known by its name, by every convention.

A published figure follows a convention if it is within 1 % of it: publishers round the tokens/s or the step time that
they computed it from. A column follows the convention of most of its cells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from perfscope.analyzers.tflops.comparison import Step, compare, variants
from perfscope.analyzers.tflops.per_token import scores_and_values
from perfscope.models.conventions import FORWARD_AND_BACKWARD, Checkpointing
from perfscope.models.own_figures import find_faults
from perfscope.models.parameter_counts import active_parameters
from perfscope.models.transformer import Transformer
from perfscope.tables.published import PublishedRow, Quantity

_MTP = re.compile(r"(?P<without>w/o|without|no)?\s*\bmtp\b", re.IGNORECASE)
# Versions of one code, whose figures stand in one column.
_VERSIONS = {"megatron_bridge_before_26_06": "megatron_core"}
# The framework in whose tables the tied embedding was found twice, and the convention that its figures follow.
_WITH_FAULT, _BY_PARAMETERS = "nanotron", "palm"


class Count(NamedTuple):
    """Operations per token by one convention.

    ``reading`` says what it counts beside the model as named. ``is_fault`` says that something counts twice.
    """

    convention: str
    flops: int
    reading: str = ""
    is_fault: bool = False
    counts_recomputation: bool = False


def count_operations(row: PublishedRow, seq_len: int) -> Iterator[Count]:
    """The operations per token of a row with a model, by each convention and reading of its name.

    Fine-tuning packs short samples into a sequence: attention is then far less. Tables do not state their lengths.
    Source: NVIDIA-NeMo/Megatron-Bridge 067f987, src/megatron/bridge/training/utils/flop_utils.py.
    """
    stated = row.figures.get(Quantity.PARAMETERS)
    readings = [(reading, model, seq_len) for reading, model in _read_model(row)]
    if row.subject.is_fine_tuned:
        readings += [("without the attention of packed sequences", model, 0) for _, model, _ in readings]
    for reading, model, length in readings:
        if stated is not None:
            flops = FORWARD_AND_BACKWARD * int(stated.number) + scores_and_values(model, length)
            yield Count(_BY_PARAMETERS, flops, reading)
        for count in _by_convention(model, length):
            yield count._replace(reading=f"{reading} {count.reading}".strip())


@cache
def _by_convention(model: Transformer, seq_len: int) -> tuple[Count, ...]:
    """The operations by every convention that does not assume another shape."""
    step = Step(active_parameters(model), model, 1, seq_len, Checkpointing.NONE, 1, 1, None)
    found = []
    for each in (*compare(step), *variants(step)):
        if each.flops_per_token is None or each.reason is not None:
            continue
        version = each.name if each.name in _VERSIONS else ""
        name = _VERSIONS.get(each.name, each.name)
        found.append(Count(name, each.flops_per_token, version, counts_recomputation=each.counts_recomputation))
        if name == _BY_PARAMETERS:
            for _, extra in find_faults(_WITH_FAULT, model).values():
                twice = each.flops_per_token + extra
                found.append(Count(name, twice, "with the tied embedding twice", is_fault=True))
    return tuple(found)


def _read_model(row: PublishedRow) -> Iterator[tuple[str, Transformer]]:
    """The models that a name can mean: with and without multi-token prediction, unless the row says which."""
    named = row.subject.model
    assert named is not None
    model = named.transformer
    layers = row.figures.get(Quantity.LAYERS)
    if layers is not None and not (model.experts or model.mixers):
        model = model._replace(layers=int(layers.number))
    if row.subject.is_adapter:
        model = model._replace(trained=0.0)
    said = _MTP.search(row.subject.about)
    if not named.mtp_layers:
        yield "", model
        return
    if said is None or not said["without"]:
        yield "with multi-token prediction", model._replace(mtp_layers=named.mtp_layers)
    if said is None or said["without"]:
        yield "without multi-token prediction", model
