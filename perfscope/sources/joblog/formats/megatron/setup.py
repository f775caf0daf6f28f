"""Megatron's set-up: the arguments that rank 0 prints, and its start-up lines.

Only lines that the framework prints are read. A shell that runs with ``set -x`` echoes ``MSIZE=`` and whole command
lines, and anything can stand there.
"""

from __future__ import annotations

import re
from math import prod

from perfscope.constants import GIGA
from perfscope.sources.joblog.formats.megatron.state import MegatronState
from perfscope.sources.joblog.log_format import FormatState
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.text.line_fields import LABEL, parse_number

_ARGUMENTS = {
    "world_size": "gpus",
    "tensor_model_parallel_size": "tp",
    "model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "pipe_parallel_size": "pp",
    "data_parallel_size": "dp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "micro_batch_size": "mbs",
    "train_micro_batch_size_per_gpu": "mbs",
    "global_batch_size": "gbs",
    "train_batch_size": "gbs",
    "gradient_accumulation_steps": "gas",
    "seq_length": "seq_len",
    "hidden_size": "hidden",
    "num_layers": "layers",
    "num_attention_heads": "heads",
    "padded_vocab_size": "vocab",
    "ffn_hidden_size": "ffn",
    "train_iters": "train_iterations",
    "log_interval": "log_interval",
    "zero_stage": "zero_stage",
}
_BANNER = {
    b"data-parallel": "dp",
    b"tensor-model-parallel": "tp",
    b"pipeline-model-parallel": "pp",
    b"context-parallel": "cp",
    b"expert-model-parallel": "ep",
}
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_RECOMPUTATION = (
    "recompute_granularity",
    "activations_checkpoint_granularity",
    "checkpoint_activations",
    "recompute_activations",
)
_EXACT_DECIMALS = 3
_UPDATED = re.compile(rb"\.{3,}(?:updated|default)\s*$|(?:updated|default)$")
_BANNER_SIZE = re.compile(rb"([a-z][a-z-]*parallel)[- ]size: (\d+)")


def _on_argument(state: MegatronState, line: LineMatch) -> None:
    log = state.log
    name, text = line["name"].decode(), _UPDATED.sub(b"", line["value"]).strip()
    value = text.decode(errors="replace")
    log.arguments[name] = value
    if name in _ARGUMENTS:
        log.set_count(_ARGUMENTS[name], text, "arguments")
    elif name == "deepspeed" and value == "False":
        state.is_without_deepspeed = True
    elif name in ("bf16", "fp16") and value == "True":
        log.set_fact("precision", name, "arguments")
    elif name in ("swiglu", "group_query_attention", "untie_embeddings_and_output_weights"):
        log.set_fact(name, value == "True", "arguments")
    elif name == "num_experts" and value != "None":
        log.set_count("experts", text, "arguments")


def _on_last_argument(state: MegatronState, _line: LineMatch) -> None:
    state.has_all_arguments = True


def _on_world_size(state: FormatState, line: LineMatch) -> None:
    state.log.set_count("gpus", line[1], "log")
    for name, size in _BANNER_SIZE.findall(line.full_line):
        if name in _BANNER:
            state.log.set_count(_BANNER[name], size, "log")


def _on_shard(state: MegatronState, line: LineMatch) -> None:
    count = parse_number(line[2])
    rank = tuple(int(index) for index in line[1].replace(b",", b" ").split())
    if count is not None and count > 0 and rank:
        state.shards[rank] = int(count)


def _on_billions(state: FormatState, line: LineMatch) -> None:
    value = parse_number(line[1])
    if value is not None and value > 0:
        state.log.set_fact("parameters", round(value * GIGA), "log")
        is_rounded = b"." in line[1] and len(line[1].partition(b".")[2]) < _EXACT_DECIMALS
        state.log.set_fact("parameters_rounded", is_rounded, "log")


def _on_vocabulary(state: FormatState, line: LineMatch) -> None:
    state.log.set_count("vocab_tokens", line[1], "log")
    state.log.set_count("vocab", line[2], "log")


def _on_accumulation(state: FormatState, line: LineMatch) -> None:
    state.log.set_count("gas", line[1], "log")


def conclude(state: MegatronState) -> None:
    """Set the facts that follow from several arguments, or from the shards of all ranks."""
    log = state.log
    if state.is_without_deepspeed:
        log.drop_fact("zero_stage")  # an argument without effect
    checkpointing = _checkpointing(log.arguments, is_complete=state.has_all_arguments)
    if checkpointing is not None:
        log.set_fact("checkpointing", checkpointing, "arguments")
    dtype = _matmul_dtype(log.arguments)
    if dtype is not None:
        log.set_fact("matmul_dtype", dtype, "arguments")
    if state.shards:
        sizes = [max(index) + 1 for index in zip(*state.shards, strict=False)]
        if prod(sizes) == len(state.shards):
            log.set_fact("parameters_of_shards", sum(state.shards.values()), "log")


def _checkpointing(arguments: dict[str, str], *, is_complete: bool) -> str | None:
    """What is recomputed; if all arguments are known and none of them states it, nothing: Megatron's default."""
    for name in ("recompute_granularity", "activations_checkpoint_granularity"):
        if arguments.get(name, "None") != "None":
            return arguments[name]
    if arguments.get("checkpoint_activations") == "True":
        return "full"
    if arguments.get("recompute_activations") == "True":
        return "selective"
    return "none" if is_complete or any(name in arguments for name in _RECOMPUTATION) else None


def _matmul_dtype(arguments: dict[str, str]) -> str | None:
    if arguments.get("fp8", "None") not in ("None", "False", ""):
        return "fp8"
    return _DTYPES.get(arguments.get("params_dtype", "").removeprefix("torch."))


RULES = (
    Rule(
        b" ..",
        re.compile(
            rb"^(?:" + LABEL + rb")?[^\[\n]{0,60}?\s{1,4}(?P<name>[A-Za-z_]\w*) \.{2,}(?: (?P<value>.*))?$",
            re.MULTILINE,
        ),
        _on_argument,
        at_line_start=True,
        sign=re.compile(rb" \.{2,}+(?: |$)", re.MULTILINE),
    ),
    Rule(b"end of arguments --", re.compile(rb"end of arguments --"), _on_last_argument),
    Rule(b"using world size:", re.compile(rb"using world size: (\d+)"), _on_world_size),
    Rule(
        b"number of parameters on",
        re.compile(rb"number of parameters on \([^)]*\) *model parallel rank \(([\d, ]+)\):? *([\d,]+)(?![.\d])"),
        _on_shard,
    ),
    Rule(
        b"Total number of parameters in billions",
        re.compile(rb"Total number of parameters in billions:\s*([\d.]+)"),
        _on_billions,
        identifies=False,
    ),
    Rule(
        b" Billion",
        re.compile(rb"number of parameters[^\n]{0,999}?(?<![\d.])([\d.]{1,20}+) Billion"),
        _on_billions,
        identifies=False,
        begin=(b"number of parameters",),
    ),
    Rule(
        b"padded vocab (size:",
        re.compile(rb"padded vocab \(size: (\d+)\)[^\n]{0,100}?\(new size: (\d+)\)"),
        _on_vocabulary,
        identifies=False,
        begin=(b"padded vocab (size:",),
    ),
    Rule(
        b"number of micro-batches to constant",
        re.compile(rb"setting number of micro-?batches to constant (\d+)"),
        _on_accumulation,
    ),
)
