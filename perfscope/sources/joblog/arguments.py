"""Model, batch and parallel layout from argument dumps and start-up lines.

Only lines that a framework prints are read. A shell that runs with ``set -x`` echoes ``MSIZE=`` and whole command
lines, and a run can be told anything there; DeepSpeed's ``world_size`` is the size of the data-parallel group.
"""

from __future__ import annotations

import re

from perfscope.sources.joblog.draft import Draft, Hit, Rule, number

_ARGUMENTS = {
    b"world_size": "gpus",
    b"tensor_model_parallel_size": "tp",
    b"model_parallel_size": "tp",
    b"pipeline_model_parallel_size": "pp",
    b"pipe_parallel_size": "pp",
    b"data_parallel_size": "dp",
    b"context_parallel_size": "cp",
    b"expert_model_parallel_size": "ep",
    b"micro_batch_size": "mbs",
    b"train_micro_batch_size_per_gpu": "mbs",
    b"global_batch_size": "gbs",
    b"train_batch_size": "gbs",
    b"gradient_accumulation_steps": "gas",
    b"seq_length": "seq_len",
    b"hidden_size": "hidden",
    b"num_layers": "layers",
    b"num_attention_heads": "heads",
    b"padded_vocab_size": "vocab",
    b"ffn_hidden_size": "ffn",
    b"train_iters": "train_iterations",
    b"log_interval": "log_interval",
    b"zero_stage": "zero_stage",
}
_DEEPSPEED = {
    b"train_batch_size": "gbs",
    b"train_micro_batch_size_per_gpu": "mbs",
    b"gradient_accumulation_steps": "gas",
    b"zero_optimization_stage": "zero_stage",
    b"steps_per_print": "steps_per_print",
    b"world_size": "dp",
}
_BANNER = {
    b"data-parallel": "dp",
    b"tensor-model-parallel": "tp",
    b"pipeline-model-parallel": "pp",
    b"context-parallel": "cp",
    b"expert-model-parallel": "ep",
}
_DTYPES = {b"bf16": "bf16", b"fp16": "fp16"}
_EXACT_DECIMALS = 3
_UPDATED = re.compile(rb"\.{3,}(?:updated|default)\s*$|(?:updated|default)$")
_BANNER_SIZE = re.compile(rb"([a-z][a-z-]*parallel)[- ]size: (\d+)")
_COORDINATE = re.compile(rb"(pipe|data|model)=(\d+)")


def _argument(draft: Draft, hit: Hit) -> None:
    name, value = hit[1], _UPDATED.sub(b"", hit[2]).strip()
    draft.evidence["arguments"] += 1
    if name in _ARGUMENTS:
        draft.note_number(_ARGUMENTS[name], value, "arguments")
    elif name == b"deepspeed" and value == b"False":
        draft.scratch["without deepspeed"] = True
    elif name in _DTYPES and value == b"True":
        draft.note("precision", _DTYPES[name], "arguments")
    elif name == b"checkpoint_activations":
        draft.note("checkpointing", "full" if value == b"True" else "none", "arguments")
    elif name in (b"recompute_granularity", b"activations_checkpoint_granularity"):
        draft.note("checkpointing", "none" if value == b"None" else value.decode(errors="replace"), "arguments")
    elif name in (b"swiglu", b"group_query_attention", b"untie_embeddings_and_output_weights"):
        draft.note(name.decode(), value == b"True", "arguments")
    elif name == b"num_experts" and value != b"None":
        draft.note_number("experts", value, "arguments")


def _deepspeed_setting(draft: Draft, hit: Hit) -> None:
    draft.evidence["deepspeed"] += 1
    if hit[1] in _DEEPSPEED:
        draft.note_number(_DEEPSPEED[hit[1]], hit[2], "deepspeed config")
    elif hit[1] in (b"fp16_enabled", b"bfloat16_enabled", b"float16_enabled") and hit[2].strip() == b"True":
        draft.note("precision", "bf16" if hit[1].startswith(b"b") else "fp16", "deepspeed config")


def _deepspeed_json(draft: Draft, hit: Hit) -> None:
    draft.note_number(_DEEPSPEED[hit[1]], hit[2], "deepspeed config")


def _banner(draft: Draft, hit: Hit) -> None:
    draft.evidence["megatron"] += 1
    draft.note_number("gpus", hit[1], "log")
    for name, size in _BANNER_SIZE.findall(hit.text[hit.line : hit.end]):
        if name in _BANNER:
            draft.note_number(_BANNER[name], size, "log")


def _shard(draft: Draft, hit: Hit) -> None:
    draft.evidence["megatron"] += 1
    count = number(hit[2])
    place = hit[1].replace(b",", b" ").split()
    if count is not None and count > 0 and place:
        draft.shards[tuple(int(part) for part in place)] = int(count)


def _stage(draft: Draft, hit: Hit) -> None:
    draft.evidence["deepspeed"] += 1
    draft.note_number("parameters", hit[3], "log")
    for name, value in (("gpus", hit[1]), ("pp", hit[2])):
        known = draft.scratch.get(name, 0)
        largest = max(int(value), known if isinstance(known, int) else 0)
        draft.scratch[name] = largest
        draft.note(name, largest + 1, "deepspeed config")


def _topology(draft: Draft, hit: Hit) -> None:
    """``Using topology: {ProcessCoord(pipe=0, data=0): 0, ...}``: every rank's coordinates."""
    draft.evidence["deepspeed"] += 1
    largest = {b"pipe": 0, b"data": 0, b"model": 0}
    for axis, index in _COORDINATE.findall(hit[0]):
        largest[axis] = max(largest[axis], int(index))
    draft.note("gpus", hit[0].count(b"ProcessCoord("), "log")
    for axis, name in ((b"pipe", "pp"), (b"data", "dp"), (b"model", "tp")):
        if axis != b"model" or b"model=" in hit[0]:
            draft.note(name, largest[axis] + 1, "log")


def _micro_batches(draft: Draft, hit: Hit) -> None:
    draft.evidence["deepspeed"] += 1
    draft.note_number("gas", hit[1], "deepspeed config")
    draft.note_number("mbs", hit[2], "deepspeed config")


def _launched(draft: Draft, hit: Hit) -> None:
    draft.evidence["deepspeed"] += 1
    draft.note_number("gpus", hit[1], "log")


def _launched_nodes(draft: Draft, hit: Hit) -> None:
    draft.evidence["deepspeed"] += 1
    draft.note_number("nodes", hit[1], "log")


def _billions(draft: Draft, hit: Hit) -> None:
    value = number(hit[1])
    if value is not None and value > 0:
        draft.note("parameters", round(value * 10**9), "log")
        draft.note("parameters_rounded", b"." in hit[1] and len(hit[1].partition(b".")[2]) < _EXACT_DECIMALS, "log")


def _parameters(draft: Draft, hit: Hit) -> None:
    draft.note_number("parameters", hit[1], "log")


def _old_model_size(draft: Draft, hit: Hit) -> None:
    """The seed's scripts once printed the size in units of 2**30 and called them B."""
    value = number(hit[1])
    if value is not None and not draft.has("model_size_line"):
        draft.note("model_size_line", value, "log")


def _vocabulary(draft: Draft, hit: Hit) -> None:
    draft.note_number("vocab", hit[1], "log")


def _accumulation(draft: Draft, hit: Hit) -> None:
    draft.evidence["megatron"] += 1
    draft.note_number("gas", hit[1], "log")


def _sequence(draft: Draft, hit: Hit) -> None:
    draft.note_number("seq_len", hit[1], "log")


RULES = (
    Rule(b"[config.py:", re.compile(rb"\[config\.py:\d+:\w+\]\s+([A-Za-z_]\w*)[ .]+ (.*)"), _deepspeed_setting),
    Rule(b" ..", re.compile(rb"^[^\[\n]{0,60}?\s{1,4}([A-Za-z_]\w*) \.{2,}(?: (.*))?$", re.MULTILINE), _argument),
    *(
        Rule(b'"' + name + b'":', re.compile(rb'"(' + name + rb')":\s*([-+\d.eE]+)'), _deepspeed_json)
        for name in (b"train_batch_size", b"train_micro_batch_size_per_gpu", b"gradient_accumulation_steps")
    ),
    Rule(b"using world size:", re.compile(rb"using world size: (\d+)"), _banner),
    Rule(
        b"number of parameters on",
        re.compile(rb"number of parameters on \([^)]*\) *model parallel rank \(([\d, ]+)\):? *([\d,]+)(?![.\d])"),
        _shard,
    ),
    Rule(b"UNIQUE_PARAMS=", re.compile(rb"RANK=(\d+) STAGE=(\d+) .*?UNIQUE_PARAMS=(\d+)"), _stage),
    Rule(b"Using topology:", re.compile(rb"Using topology: .*"), _topology),
    Rule(b"CONFIG: micro_batches=", re.compile(rb"CONFIG: micro_batches=(\d+) micro_batch_size=(\d+)"), _micro_batches),
    Rule(b"dist_world_size=", re.compile(rb"dist_world_size=(\d+)"), _launched),
    Rule(b"nnodes=", re.compile(rb"launch\.py.*\bnnodes=(\d+)"), _launched_nodes),
    Rule(
        b"Total number of parameters in billions",
        re.compile(rb"Total number of parameters in billions:\s*([\d.]+)"),
        _billions,
    ),
    Rule(b" Billion", re.compile(rb"number of parameters[^\n]*?([\d.]+) Billion"), _billions),
    Rule(b"trainable parameters", re.compile(rb"Number of trainable parameters = ([\d,]+)"), _parameters),
    Rule(b"total parameters", re.compile(rb"size: (?:\x1b\[\d+m)?([\d,]+) total parameters"), _parameters),
    Rule(b"Model size:", re.compile(rb"Model size: (\d+(?:\.\d+)?)B\b"), _old_model_size),
    Rule(b"padded vocab (size:", re.compile(rb"padded vocab \(size: \d+\).*?\(new size: (\d+)\)"), _vocabulary),
    Rule(
        b"number of micro-batches to constant",
        re.compile(rb"setting number of micro-?batches to constant (\d+)"),
        _accumulation,
    ),
    Rule(b"equence length", re.compile(rb"[Ss]equence length[ :=]+(\d+)"), _sequence),
)
