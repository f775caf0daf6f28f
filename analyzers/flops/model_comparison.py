"""The conventions that need the dimensions of the model, counted for one step."""

from __future__ import annotations

from perfscope.analyzers.flops import per_token
from perfscope.analyzers.flops.comparison import FORMS, PAPER_FORMS, Convention, Step, counted, plain_six_n, recomputing
from perfscope.models.conventions import Checkpointing
from perfscope.models.transformer import Transformer


def dimensioned(step: Step, model: Transformer) -> tuple[Convention, ...]:
    """``megatron_paper``, ``megatron_core``, ``torchtitan`` and ``palm``."""
    return (_megatron_paper(step, model, step.checkpointing, "megatron_paper"), *_modern(step, model))


def other_forms(step: Step, model: Transformer) -> tuple[Convention, ...]:
    """The paper's three forms, older code, and the conventions with recomputation added."""
    dimensions = _dimensions(step, model)
    before = per_token.megatron_whole_attention(model, step.seq_len)
    code = per_token.bigscience_code(model, step.seq_len, step.checkpointing)
    return (
        *(_megatron_paper(step, model, form, f"megatron_paper_{form}") for form in Checkpointing),
        counted(step, "megatron_before_2025", FORMS["megatron_before_2025"], before, dimensions),
        counted(
            step,
            "bigscience_code",
            FORMS["bigscience_code"],
            code,
            dimensions,
            recomputes=step.checkpointing is Checkpointing.FULL,
        ),
        *_with_recomputation(step, model),
    )


def _modern(step: Step, model: Transformer) -> tuple[Convention, ...]:
    dimensions = _dimensions(step, model)
    with_parameters = {"N": step.parameters, **dimensions}
    core = per_token.megatron_core(model, step.seq_len)
    titan = per_token.torchtitan(model, step.seq_len)
    return (
        counted(step, "megatron_core", FORMS["megatron_core"], core, dimensions),
        counted(step, "torchtitan", FORMS["torchtitan"], titan, with_parameters),
        counted(step, "palm", FORMS["palm"], per_token.palm(model, step.seq_len), with_parameters),
    )


def _megatron_paper(step: Step, model: Transformer, checkpointing: Checkpointing, name: str) -> Convention:
    return counted(
        step,
        name,
        PAPER_FORMS[checkpointing],
        per_token.megatron_paper(model, step.seq_len, checkpointing),
        _dimensions(step, model),
        recomputes=checkpointing is not Checkpointing.NONE,
        reason="" if model.is_plain_gpt else "assumes multi-head attention and a plain MLP of 4h",
    )


def _dimensions(step: Step, model: Transformer) -> dict[str, int]:
    return {
        "L": model.layers,
        "h": model.hidden,
        "a": model.heads,
        "d_qk": model.query_dim // model.heads,
        "d_v": model.value_dim // model.heads,
        "V": per_token.vocabulary_rows(model),
        "s": step.seq_len,
    }


def _with_recomputation(step: Step, model: Transformer) -> tuple[Convention, ...]:
    """The conventions that count none, with the recomputed operations added: an HFU for each."""
    if step.checkpointing is Checkpointing.NONE:
        return ()
    return tuple(
        recomputing(step, plain, *_recomputed(step, model, plain.name))
        for plain in (plain_six_n(step), *_modern(step, model))
    )


def _recomputed(step: Step, model: Transformer, name: str) -> tuple[int, str]:
    """Operations that are done twice, counted as the convention counts them the first time."""
    full = step.checkpointing is Checkpointing.FULL
    products = per_token.recomputed_products(model) if full else 0
    if name == "6n":
        return products, "2 N of the layers" if full else "0"
    halved = name == "megatron_core"
    scores = per_token.recomputed_scores(model, step.seq_len) // (2 if halved else 1)
    said = f"{1 if halved else 2} L a (d_qk + d_v) s"
    return products + scores, f"2 N of the layers + {said}" if full else said
