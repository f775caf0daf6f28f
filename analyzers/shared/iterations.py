"""The iterations of an inference engine, by the annotations that engines put around them.

vLLM writes ``execute_context_2(6144)_generation_3(3)``: requests, and in parentheses tokens, of prefill and of decode.
With more detail the parentheses state sums over the requests: ``sq`` of tokens, ``sk`` of tokens that they attend to,
``sqsq`` of sq x sq and ``sqsk`` of sq x sk. SGLang writes ``step[EXTEND bs=2 toks=14721]`` and ``step[DECODE bs=64]``,
with ``c_sqsk=`` and so on where it states the sums; ATOM ``prefill[bs=2 tok=14721]`` and ``decode[bs=64 tok=64]``.
Pipelines of diffusion models are marked ``execute_diffusion_1_1024x1024``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum

import numpy as np
from msgspec import Struct

from perfscope.patterns import compile_later
from perfscope.tables.trace import HostSpans, Trace

_SUMS = r"sq(\d+)sk(\d+)sqsq(\d+)sqsk(\d+)"
_VLLM_IN_DETAIL = compile_later(rf"execute_\d+_context_(\d+)\({_SUMS}\)_generation_(\d+)\({_SUMS}\)")
_VLLM = compile_later(r"execute_context_(\d+)\((\d+)(?:_(\d+))?\)_generation_(\d+)\((\d+)(?:_\d+)?\)")
_BRACKETS = compile_later(r"(step|prefill|decode)\[(.*)\]")
_FIELD = compile_later(r"(\w+)=(\d+)")
_DIFFUSION = compile_later(r"execute_diffusion_(\d+)_\d+x\d+")
_RECORDING = compile_later(r"capture_(\d+)_(\w+)")


class Phase(StrEnum):
    """What an iteration does for its requests."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "prefill and decode"
    DIFFUSION = "diffusion"


class Iteration(Struct, frozen=True, array_like=True):
    """One iteration of an engine.

    Attributes:
        phase: What it does.
        requests: How many requests it works on.
        prefill_tokens: Tokens of prompts; absent where the annotation does not state it.
        decode_tokens: Tokens that are generated; likewise.
        attended_twice: Twice the pairs of a token and one that it attends to, where attention is causal: 2 sq x sk of
            a request less sq x sq for a prompt. Absent where the annotation does not state the sums.
    """

    phase: Phase
    requests: int
    prefill_tokens: int | None
    decode_tokens: int | None
    attended_twice: int | None = None

    @property
    def tokens(self) -> int | None:
        """All tokens that it computes; absent where the annotation does not state them."""
        if self.prefill_tokens is None or self.decode_tokens is None:
            return None
        return self.prefill_tokens + self.decode_tokens


def parse_iteration(annotation: str) -> Iteration | None:
    """The iteration that an annotation marks; None where it marks none.

    >>> parse_iteration("execute_context_2(6144)_generation_3(3)")
    Iteration(phase=<Phase.MIXED: 'prefill and decode'>, requests=5, prefill_tokens=6144, decode_tokens=3, \
attended_twice=None)
    >>> parse_iteration("step[DECODE bs=64]").phase
    <Phase.DECODE: 'decode'>
    """
    for pattern, read in _READERS:
        match = pattern.fullmatch(annotation)
        if match:
            return read(match)
    return None


def parse_recording(annotation: str) -> tuple[int, str] | None:
    """The batch and the kind of the graphs that an engine records inside an annotation; None where it records none.

    >>> parse_recording("capture_32_FULL")
    (32, 'FULL')
    """
    match = _RECORDING.fullmatch(annotation)
    return (int(match[1]), match[2]) if match else None


def find_iterations(trace: Trace) -> tuple[HostSpans, tuple[Iteration, ...]]:
    """The iterations of a trace in the order of their start: where they are, and what they do.

    Where two annotations mark the same iterations, those that state more count.
    """
    by_name = {index: parse_iteration(name) for index, name in enumerate(trace.names) if name.startswith(_BEGINNINGS)}
    marks = [
        (row, iteration)
        for row, name in enumerate(trace.annotations.name.tolist())
        if (iteration := by_name.get(name)) is not None
    ]
    most = max((_detail(iteration) for _, iteration in marks), default=0)
    chosen = [(row, iteration) for row, iteration in marks if _detail(iteration) == most]
    rows = np.array([row for row, _ in chosen], np.int64)
    return trace.annotations.take(rows), tuple(iteration for _, iteration in chosen)


def _detail(iteration: Iteration) -> int:
    return 2 * (iteration.attended_twice is not None) + (iteration.phase is not Phase.DIFFUSION)


def _read_sums(match: re.Match[str]) -> Iteration:
    prompts, prompt_tokens, _, prompt_squares, prompt_pairs, generations, tokens, _, _, pairs = map(int, match.groups())
    attended_twice = 2 * prompt_pairs - prompt_squares + 2 * pairs
    return _iteration(prompts, generations, prompt_tokens, tokens, attended_twice)


def _read_vllm(match: re.Match[str]) -> Iteration:
    prompts, prompt_tokens, _, generations, tokens = (int(group or 0) for group in match.groups())
    return _iteration(prompts, generations, prompt_tokens, tokens)


def _read_brackets(match: re.Match[str]) -> Iteration | None:
    kind, text = match.groups()
    fields = {name: int(number) for name, number in _FIELD.findall(text)}
    requests = fields.get("bs")
    if requests is None:
        return None
    if kind == "step":
        return _read_sglang(text.split()[0], requests, fields)
    attended = 2 * fields["sqsk"] - (fields["sqsq"] if kind == "prefill" else 0) if "sqsk" in fields else None
    if kind == "prefill":
        return Iteration(Phase.PREFILL, requests, fields.get("tok"), 0, attended)
    prompts = fields.get("p", 0)
    if prompts:
        return Iteration(Phase.MIXED, requests, None, None)
    return Iteration(Phase.DECODE, requests, 0, fields.get("tok"), attended)


def _read_sglang(mode: str, requests: int, fields: Mapping[str, int]) -> Iteration | None:
    phase = {"EXTEND": Phase.PREFILL, "DECODE": Phase.DECODE, "MIXED": Phase.MIXED}.get(mode)
    if phase is None:
        return None
    attended = None
    if "c_sqsk" in fields or "g_sqsk" in fields:
        attended = 2 * fields.get("c_sqsk", 0) - fields.get("c_sqsq", 0) + 2 * fields.get("g_sqsk", 0)
    if phase is Phase.DECODE:
        return Iteration(phase, requests, 0, fields.get("g_sq", requests), attended)
    prompt_tokens = fields.get("c_sq", fields.get("toks"))
    return Iteration(phase, requests, prompt_tokens, 0 if phase is Phase.PREFILL else fields.get("g_sq"), attended)


def _read_diffusion(match: re.Match[str]) -> Iteration:
    return Iteration(Phase.DIFFUSION, int(match[1]), None, None)


def _iteration(
    prompts: int, generations: int, prompt_tokens: int, tokens: int, attended_twice: int | None = None
) -> Iteration:
    phase = Phase.DECODE if not prompts else Phase.MIXED if generations else Phase.PREFILL
    return Iteration(phase, prompts + generations, prompt_tokens, tokens, attended_twice)


_READERS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Iteration | None]], ...] = (
    (_VLLM_IN_DETAIL, _read_sums),
    (_VLLM, _read_vllm),
    (_BRACKETS, _read_brackets),
    (_DIFFUSION, _read_diffusion),
)
_BEGINNINGS = ("execute_", "step[", "prefill[", "decode[")
