"""Operations per token of a row whose model is known by its name, by every convention.

A published figure follows a convention if it is within 1 % of it: publishers round the tokens/s or the step time that
they computed it from. A column follows the convention of most of its cells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from perfscope.analyzers.tflops.comparison import Step, compare, variants
from perfscope.analyzers.tflops.per_token import scores_and_values
from perfscope.models.conventions import FORWARD_AND_BACKWARD, Checkpointing
from perfscope.models.parameter_counts import active_parameters, embedding_parameters
from perfscope.models.transformer import Transformer
from perfscope.tables.published import PublishedRow, Quantity

_MTP = re.compile(r"(?P<without>w/o|without|no)?\s*\bmtp\b", re.IGNORECASE)


# Versions of one code, whose figures stand in one column.
_VERSIONS = {"megatron_bridge_before_26_06": "megatron_core"}
# Conventions that count a tied embedding table once.
_WITH_TABLE = ("palm", "torchtitan_since_may_2026")


class Count(NamedTuple):
    """Operations per token by one convention.

    ``reading`` says what it counts beside the model as named.
    """

    convention: str
    flops: int
    reading: str = ""
    is_tied_twice: bool = False
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
            yield Count("palm", FORWARD_AND_BACKWARD * int(stated.number) + scores_and_values(model, length), reading)
        step = Step(active_parameters(model), model, 1, length, Checkpointing.NONE, 1, 1, None)
        for each in (*compare(step), *variants(step)):
            if each.flops_per_token is None or each.reason is not None:  # a reason: it assumes another shape
                continue
            name = _VERSIONS.get(each.name, each.name)
            said = reading if name == each.name else f"{reading} {each.name}".strip()
            yield Count(name, each.flops_per_token, said, counts_recomputation=each.counts_recomputation)
            if model.tied and each.name in _WITH_TABLE:
                twice = each.flops_per_token + FORWARD_AND_BACKWARD * embedding_parameters(model)
                yield Count(name, twice, said, is_tied_twice=True)


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
