"""Megatron-LM and its children: Megatron-DeepSpeed, GPT-NeoX, Megatron-core.

One line, cells between bars::

    iteration   10/  1000 | consumed samples:  40 | elapsed time per iteration (ms): 5837.9 | ...

The time is the mean over ``log_interval`` iterations. A version that dates its lines prints the first iteration of a
start by itself and counts it again in the mean of the next line. Cells come and go with the version; the unit has been
ms and s; a forerunner of one version printed ``samples per second`` a thousand times too small. A record may be glued
to another one, broken over lines, or cut off.

Of the set-up only lines that the framework prints are read. A shell that runs with ``set -x`` echoes ``MSIZE=`` and
whole command lines, and anything can stand there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from perfscope.constants import GIGA, KILO, MEGA, MIB, NS_PER_MS, NS_PER_S, PETA, TERA
from perfscope.sources.joblog import timer_lines
from perfscope.sources.joblog.log_format import (
    MOST_OF_LINE,
    FormatState,
    LineMatch,
    LineRule,
    LogFormat,
    WriterRole,
    aside,
    counts,
    disturbs,
    on_restart,
    sets,
    uses_memory,
)
from perfscope.sources.joblog.records import Record, RecordSeries
from perfscope.sources.joblog.text import LABEL, LARGEST, parse_label, parse_number, parse_resolution
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.joblog import Disturbance

_UNSET = ("None", "False", "")
_ANCHOR = b"elapsed time per iteration (ms): "
_TAIL = b" number of skipped iterations:   0 | number of nan iterations:   0 |"
_NONE = b"ns:   0 "
_CONSUMED = b"| consumed samples: "
_NUMBER_WIDTH, _CONSUMED_WIDTH, _WIDEST_TIME = 8, 12, 7
_WORD = np.dtype(np.uint64).itemsize


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text.ljust(_WORD)[:_WORD], "little"))


def _are_saves(words: npt.NDArray[np.uint64]) -> Bool:
    flags: Bool = (words == _word(b"save-che")) | (words == _word(b"load-che"))
    return flags


class PlainLines:
    """The plain lines of a block of whole lines: iteration, samples consumed and time of each."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._buffer = np.frombuffer(text, np.uint8)
        self._words = np.ndarray((max(len(text) - _WORD + 1, 0),), "<u8", text, strides=(1,))
        self.iteration = self.consumed = self.wall_ns = np.empty(0, np.int64)
        self._plain = self._needed = np.empty(0, np.int64)
        anchor = text.find(_ANCHOR)
        start = text.rfind(b"\n", 0, anchor) + 1
        line = text[start : anchor + len(_ANCHOR)]
        iteration, consumed = line.find(b" iteration "), line.find(_CONSUMED)
        if anchor < 0 or min(iteration, consumed) < 0 or parse_label(line, 0) or not text.endswith(b"\n"):
            return
        self._ends = np.flatnonzero(self._buffer == ord("\n"))
        self._starts = np.concatenate((np.zeros(1, np.int64), self._ends[:-1] + 1))
        self._find(line, iteration, consumed)

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """All lines that are for the rules: how many plain lines stand before some, and these."""
        if not len(self._plain):
            yield 0, self._text
            return
        before = np.searchsorted(self._plain, self._needed)
        for rows in np.split(self._needed, np.flatnonzero(np.diff(before)) + 1) if len(before) else ():
            spans = zip(self._starts[rows].tolist(), (self._ends[rows] + 1).tolist(), strict=True)
            yield int(np.searchsorted(self._plain, rows[0])), b"".join(self._text[start:end] for start, end in spans)

    def _find(self, line: bytes, iteration: int, consumed: int) -> None:
        """Find the lines that are as one but for their numbers, and those that are needed besides."""
        starts, ends, time = self._starts, self._ends, len(line)
        first = self._at(starts)
        lengths = ends - starts
        rows = np.flatnonzero((first == _word(line)) & (lengths > time + _WIDEST_TIME + len(_TAIL)))
        # A line that two records share is longer than another by the head of a record.
        rows = rows[lengths[rows] < lengths[rows].min(initial=len(self._text)) + time]
        for place, text in ((iteration, b" iteration "), (consumed, _CONSUMED), (time - len(_ANCHOR), _ANCHOR)):
            rows = rows[self._at(starts[rows] + (place + len(text) - _WORD)) == _word(text[-_WORD:])]
        for place in (_TAIL.index(_NONE), len(_TAIL) - _WORD):
            rows = rows[self._at(ends[rows] - len(_TAIL) + place) == _word(_TAIL[place:])]
        times, is_time = self._times(starts[rows] + time)
        rows, times = rows[is_time], times[is_time]
        numbers = self._integers(starts[rows] + iteration + len(b" iteration "), _NUMBER_WIDTH)
        is_before_last = numbers != numbers[-1:]  # which several ranks may print
        rows, self.iteration, self.wall_ns = rows[is_before_last], numbers[is_before_last], times[is_before_last]
        self.consumed = self._integers(starts[rows] + consumed + len(_CONSUMED), _CONSUMED_WIDTH)
        is_needed = ~self._are_timers(first)
        is_needed[rows] = False
        self._plain, self._needed = rows, np.flatnonzero(is_needed)

    def _are_timers(self, first: npt.NDArray[np.uint64]) -> Bool:
        """Lines of timers, all on one or a line a timer, and the headings above them, but not the timer of a save."""
        flags: Bool = (first == _word(b"time (ms")) | (first == _word(b"(min, ma"))
        together = np.flatnonzero(flags)
        flags[together] = ~_are_saves(self._at(self._starts[together] + len(b"time (ms) | ")))
        core = np.flatnonzero(first == _word(b"INFO:meg"))
        flags[core] = self._at(self._starts[core] + 15) == _word(b"ore.time")
        pairs = np.flatnonzero((first & np.uint64(0xFFFFFFFF)) == int.from_bytes(b"    ", "little"))
        is_save = _are_saves(self._at(self._starts[pairs] + len(b"    ")))
        flags[pairs] = ~is_save & (self._buffer[self._ends[pairs] - 1] == ord(")"))
        return flags

    def _at(self, places: Int64) -> npt.NDArray[np.uint64]:
        """The eight bytes at each place."""
        return self._words[np.minimum(places, len(self._words) - 1)]

    def _integers(self, places: Int64, width: int) -> Int64:
        """Right-aligned numbers of a fixed width."""
        digits = self._buffer[places[:, np.newaxis] + np.arange(width)] & 0x0F  # a blank is 0, too
        numbers: Int64 = digits @ (10 ** np.arange(width - 1, -1, -1, dtype=np.int64))
        return numbers

    def _times(self, places: Int64) -> tuple[Int64, Bool]:
        """Times in ns of ``5837.9 |``, and which are so."""
        cells = self._buffer[places[:, np.newaxis] + np.arange(_WIDEST_TIME + 4)]
        dot = np.argmax(cells == ord("."), axis=1)
        tenths, is_time = np.zeros(len(places), np.int64), np.zeros(len(places), np.bool_)
        for width in set(dot.tolist()) - {0} & set(range(1, _WIDEST_TIME + 1)):
            rows = np.flatnonzero(dot == width)
            digits = cells[rows][:, [*range(width), width + 1]]
            ends = cells[rows][:, [width + 2, width + 3]] == (ord(" "), ord("|"))
            is_time[rows] = ((digits >= ord("0")) & (digits <= ord("9"))).all(axis=1) & ends.all(axis=1)
            tenths[rows] = (digits & 0x0F) @ (10 ** np.arange(width, -1, -1, dtype=np.int64))
        return tenths * (NS_PER_MS // 10), is_time & (tenths > 0)


@dataclass(slots=True)
class _State(FormatState):
    """What is collected over several of Megatron's lines.

    Attributes:
        consumed_samples, consumed_at: Up to the last record that was read, be it another rank's, and its iteration.
        batch: The batch of the last record that states one.
        train_iterations: The run's last iteration, as the last record states it.
        utilisation: Seconds and TFLOPs that a line of Megatron-Bridge states before its record, as text.
        shards: Parameters by tensor and pipeline rank.
    """

    consumed_samples: int | None = None
    consumed_at: int | None = None
    batch: int | None = None
    train_iterations: int | None = None
    utilisation: tuple[bytes, bytes] = (b"", b"")
    is_gpt_neox: bool = False
    shards: dict[tuple[int, ...], int] = field(default_factory=dict)
    has_all_arguments: bool = False
    is_without_deepspeed: bool = False


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
_UPDATED = re.compile(rb"\.{3,}(?:updated|default)\s*$|(?:updated|default)$")
_BANNER_SIZE = re.compile(rb"([a-z][a-z-]*parallel)[- ]size: (\d+)")


def _on_argument(state: _State, line: LineMatch) -> None:
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


def _on_world_size(state: FormatState, line: LineMatch) -> None:
    state.log.set_count("gpus", line[1], "log")
    for name, size in _BANNER_SIZE.findall(line.full_line):
        if name in _BANNER:
            state.log.set_count(_BANNER[name], size, "log")


def _on_shard(state: _State, line: LineMatch) -> None:
    count = parse_number(line[2])
    rank = tuple(int(index) for index in line[1].replace(b",", b" ").split())
    if count is not None and count > 0 and rank:
        state.shards[rank] = int(count)


def _on_billions(state: FormatState, line: LineMatch) -> None:
    value = parse_number(line[1])
    if value is not None and value > 0:
        state.log.set_fact("parameters", round(value * GIGA), "log")
        state.log.set_fact("parameters_rounded", 1, "log")


def _on_vocabulary(state: FormatState, line: LineMatch) -> None:
    state.log.set_count("vocab_tokens", line[1], "log")
    state.log.set_count("vocab", line[2], "log")


def _conclude_setup(state: _State) -> None:
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
    if arguments.get("fp4", "None") not in _UNSET:
        return "fp4"
    if arguments.get("fp8", "None") not in _UNSET:
        return "fp8"
    return _DTYPES.get(arguments.get("params_dtype", "").removeprefix("torch."))


_SETUP_RULES: tuple[LineRule[_State], ...] = (
    LineRule(
        b" ..",
        rb"^(?:" + LABEL + rb")?[^\[\n]{0,60}?\s{1,4}(?P<name>[A-Za-z_]\w*) \.{2,}(?: (?P<value>.*))?$",
        _on_argument,
    ),
    LineRule(b"end of arguments --", b"", sets("has_all_arguments")),
    LineRule(b"using world size:", rb"using world size: (\d+)", _on_world_size),
    LineRule(
        b"number of parameters on",
        rb"number of parameters on \([^)]*\) *model parallel rank \(([\d, ]+)\):? *([\d,]+)(?![.\d])",
        _on_shard,
    ),
    aside(
        b"Total number of parameters in billions", rb"Total number of parameters in billions:\s*([\d.]+)", _on_billions
    ),
    aside(
        b" Billion",
        rb"number of parameters[^\n]{0,999}?(?<![\d.])([\d.]{1,20}+) Billion",
        _on_billions,
        begin=(b"number of parameters",),
    ),
    aside(
        b"padded vocab (size:",
        rb"padded vocab \(size: (\d+)\)[^\n]{0,100}?\(new size: (\d+)\)",
        _on_vocabulary,
        begin=(b"padded vocab (size:",),
    ),
    LineRule(
        b"number of micro-batches to constant", rb"setting number of micro-?batches to constant (\d+)", counts("gas")
    ),
)


_RANK_TIME = re.compile(rb" rank +\d+: ([\d.]+)")


def _on_save_begin(state: FormatState, line: LineMatch) -> None:
    state.log.on_disturbance(Disturbance.SAVE)
    iteration = parse_number(line[1])
    path = line[2].decode("utf-8", "replace").strip() or None
    state.log.saves.on_begin(None if iteration is None else int(iteration), path, line.timestamp_ns)


def _on_save_timer(state: FormatState, line: LineMatch) -> None:
    """The slowest rank's time: the second of a pair (min, max), the only one, or the largest of a line a rank."""
    times = [parse_number(text) for text in _RANK_TIME.findall(line["ranks"])]
    printed = parse_number(line["slowest"] or line["only"])
    slowest = max((time for time in times if time is not None), default=printed)
    if slowest is not None and slowest > 0:
        state.log.saves.set_time(round(slowest * NS_PER_MS), "timer")


_SAVES_RULES: tuple[LineRule[_State], ...] = (
    LineRule(b"[before the start of training step]", b"", on_restart),
    LineRule(
        b"saving checkpoint at iteration", rb"saving checkpoint at iteration\s+(\d+)(?: to (\S+))?", _on_save_begin
    ),
    aside(
        b"successfully saved checkpoint",
        rb"successfully saved checkpoint(?: (?:from|at) iteration\s+(\d+))?",
        lambda state, line: state.log.saves.on_end(parse_number(line[1]), line.timestamp_ns),
    ),
    aside(
        b"save-checkpoint",
        rb"save-checkpoint(?: \.*)?: *(?:\([\d.]+, *(?P<slowest>[\d.]+)\)|(?P<only>[\d.]+)"
        rb"|(?P<ranks>(?:\n[^\n]{0,40}? rank +\d+: [\d.]+)+))",
        _on_save_timer,
        spans_lines=True,
        begin=(b"save-checkpoint",),
    ),
    aside(
        b"an async checkpoint save",
        rb"scheduled an async checkpoint save",
        lambda state, line: state.log.saves.on_scheduled(line.timestamp_ns),
    ),
    aside(b"validation loss at ", rb"validation loss at (?:iteration )?", disturbs(Disturbance.EVALUATION)),
    aside(b"validation results at ", rb"validation results at iteration", disturbs(Disturbance.EVALUATION)),
    aside(
        b"memory (MB) |",
        rb"memory \(MB\) \|[^\n]{0,60}?max allocated: ([\d.]+) \|[^\n]{0,60}?max reserved: ([\d.]+)",
        uses_memory(MIB, "allocated", "reserved"),  # Megatron divides by 2**20 and writes MB
        begin=(b"memory (MB) |",),
    ),
)


SOURCE = "elapsed time per iteration"

#: Of further records number, time and batch are read alone.
_READ_IN_FULL = 1 << 11

_START = re.compile(rb"iteration(?:=\s*|\s+)(\d{1,18})\s*/\s*(\d{1,18})\s*\|")
_TIME = re.compile(rb"e\s*lapsed[\s_]*time")
_SPACE = re.compile(rb"[\s_]+")
_SPEED_IN_FRONT = re.compile(rb"samples/sec:\s*([\d.]+)\s*\|\s*$")
_DATE_IN_FRONT = re.compile(rb"\[\d{4}-\d\d-\d\d[ T][\d:.]+\]\s*$")
_NEXT_LINE = re.compile(rb"\s*(?:time \(ms\)|\[\d{4}-|\(min, max\)|\[Rank|INFO:)")
_FLOPS = re.compile(rb"\s*([\d.]+)([KMGTPE]?)FLOPS")
_PREFIXES = {b"": 1, b"K": KILO, b"M": MEGA, b"G": GIGA, b"T": TERA, b"P": PETA, b"E": KILO * PETA}
_LONGEST = 2000

_TIMES = {
    b"elapsedtimeperiteration(ms)": NS_PER_MS,
    b"elapsedtimeperiterationms": NS_PER_MS,
    b"elapsedtimeperiteration(s)": NS_PER_S,
    b"elapsedtimeperiterations": NS_PER_S,
}
_FLOATS = {
    b"samplespersecond": "samples_per_s",
    b"samples/sec": "samples_per_s",
    b"tokenspersecond": "tokens_per_s",
    b"tokenspergpupersecond(tgs)": "tokens_per_s_per_gpu",
    b"tokenspergpupersecondtgs": "tokens_per_s_per_gpu",
    b"tokens/s/gpu": "tokens_per_s_per_gpu",
    b"tflops": "tflops_per_gpu",
    b"throughputpergpu(tflop/s/gpu)": "tflops_per_gpu",
    b"throughput(tflop/s/gpu)": "tflops_per_gpu",
    b"computepergpu(tflop/s/gpu)": "tflops_per_gpu",
    b"lmloss": "loss",
    b"lm-loss": "loss",
    b"loss": "loss",
    b"trainloss": "loss",
    b"lossscale": "loss_scale",
}
_COUNTS = {b"globalbatchsize": "samples", b"numberofskippediterations": "skipped", b"numberofnaniterations": "nan"}

_CELLS_BESIDE = {b"approxflopspergpu", b"consumedsamples", b"actualseqlen"}


@dataclass(frozen=True, slots=True)
class _RecordRule(LineRule[_State]):
    """Finds records by their beginning, not by lines: two may share a line, and one may be broken over several."""

    def find(self, text: bytes) -> Iterator[LineMatch]:
        """Yield every record of a block, of a line of more than eight the first; ``end`` is the end of the record."""
        starts = list(_START.finditer(text))
        line = skipped = 0
        for index, match in enumerate(starts):
            limit = starts[index + 1].start() if index + 1 < len(starts) else len(text)
            if match.start() < skipped:
                continue
            line = text.rfind(b"\n", line, match.start()) + 1 or line
            further = starts[index + MOST_OF_LINE].start() if index + MOST_OF_LINE < len(starts) else len(text)
            if further < len(text) and text.find(b"\n", match.start(), further) < 0:
                skipped = text.find(b"\n", further) % (len(text) + 1)  # its end, or that of the text
            record = _record_text(text, match.start(), min(limit, match.start() + _LONGEST))
            if _TIME.search(record):
                yield LineMatch(text, line, match.start() + len(record), match)


def _record_text(text: bytes, start: int, limit: int) -> bytes:
    """A record from its start to its last bar: one line, or more where it is broken."""
    end = text.find(b"\n", start, limit)
    if end < 0:
        return text[start:limit]
    line = text[start:end]
    if line.rstrip().endswith(b"|") and b"elapsed" in line:
        return line
    for following in text[end + 1 : limit].split(b"\n"):
        if _NEXT_LINE.match(following) or (not following.strip() and b"elapsed" in line):
            break
        line += b"\n" + following
        if following.rstrip().endswith(b"|") and _TIME.search(line):
            break
    return line


def _on_record(state: _State, line: LineMatch) -> None:
    start = line.match.start()
    record = Record(iteration=int(line[1]))
    front = line.text[line.line : start]
    speed = _SPEED_IN_FRONT.search(front) if b"|" in front else None
    if speed:
        record.samples_per_s = parse_number(speed[1])
        state.is_gpt_neox = True
    for key, label, value in _cells(line.text[start : line.end]):
        _fill(state, record, key, label, value)
    log = state.log
    (seconds, tflops), state.utilisation = state.utilisation, (b"", b"")
    if record.tflops_per_gpu is None and f"{(record.wall_ns or 0) / NS_PER_S:.2f}".encode() == seconds:
        _set_tflops(state, record, b"GPU utilization (MODEL_TFLOP/s/GPU)", float(tflops), parse_resolution(tflops))
    state.batch = record.samples if record.samples is not None else state.batch
    if record.wall_ns is None:
        log.unreadable += 1
        return
    series = log.series_of(SOURCE)
    is_dated = b"[" in front and _DATE_IN_FRONT.search(front) is not None
    series.clock_runs_on, series.starts_over = not is_dated, is_dated
    series.add(record, parse_label(line.text, line.line) if front.strip() else None)
    if state.train_iterations != int(line[2]):
        state.train_iterations = int(line[2])
        log.on_end_of_records(state.train_iterations, record.iteration or 0)


_RECORD_RULE = _RecordRule(b"iteration", _START, _on_record)
_UTILISATION_RULE: LineRule[_State] = LineRule(
    b"GPU utilization: ",
    rb"Step Time : (\d{1,9}\.\d\d)s GPU utilization: (?!0\.0)(\d{1,9}\.\d)(?:MODEL_)?TFLOP/s/GPU",
    lambda state, line: setattr(state, "utilisation", (line[1], line[2])),
    begin=(b"Step Time : ",),
)


def _cells(record: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Key, label and value of every complete cell that is needed; the key is without blanks, which line breaks add."""
    for cell in record.split(b"|")[1:-1]:
        label, colon, value = cell.rpartition(b":")
        if not colon:
            label, _, value = cell.partition(b"=")
        key = _key(label)
        if key:
            yield key, label, value


@lru_cache(maxsize=1024)
def _key(label: bytes) -> bytes:
    """A cell's label without blanks; empty where the cell is not needed."""
    key = _SPACE.sub(b"", label).lower()
    return key if key in _TIMES or key in _FLOATS or key in _COUNTS or key in _CELLS_BESIDE else b""


def _value(text: bytes) -> float | None:
    """A cell's number, even where the line was broken inside it."""
    try:
        value = float(text)
    except ValueError:
        return parse_number(_SPACE.sub(b"", text))
    return value if abs(value) < LARGEST else None


def _fill(state: _State, record: Record, key: bytes, label: bytes, text: bytes) -> None:
    log = state.log
    if key == b"approxflopspergpu":
        state.is_gpt_neox = True
        flops = _FLOPS.match(text.upper())
        value = parse_number(flops[1]) if flops else None
        if flops and value is not None:
            scale = _PREFIXES[flops[2]] / TERA
            _set_tflops(state, record, label, value * _PREFIXES[flops[2]] / TERA, parse_resolution(flops[1]) * scale)
        return
    value = _value(text)
    if value is None:
        return
    if key in _TIMES:
        unit_ns = _TIMES[key]
        record.wall_ns = round(value * unit_ns) if value > 0 else None
        record.wall_resolution_ns = round(parse_resolution(text) * unit_ns)
    elif key in _FLOATS:
        name = _FLOATS[key]
        if name == "tflops_per_gpu":
            _set_tflops(state, record, label, value, parse_resolution(text))
            return
        if key == b"samplespersecond":
            log.frameworks.add("deepspeed")  # Megatron-LM itself never printed it
        if key != b"lossscale" or value > 0:
            setattr(record, name, value)
    elif key in _COUNTS:
        setattr(record, _COUNTS[key], int(value))
    elif key == b"consumedsamples":
        state.consumed_samples, state.consumed_at = int(value), record.iteration
    else:
        log.set_fact("seq_len", int(value), "records")


def _set_tflops(state: _State, record: Record, label: bytes, tflops: float, resolution: float) -> None:
    record.tflops_per_gpu, record.tflops_resolution = tflops, resolution
    state.log.tflops_label = label.strip().decode(errors="replace")


def _take_plain(state: _State, text: bytes) -> Iterator[bytes]:
    """Add the plain lines of a long log for their number, time and batch, in the order of all lines."""
    series = state.log.series.get(SOURCE)
    if series is None or series.rows < _READ_IN_FULL:
        yield text
        return
    lines, done = PlainLines(text), 0
    for before, others in lines.pieces():
        _add_plain(state, series, lines, slice(done, before))
        done = before
        yield others
    _add_plain(state, series, lines, slice(done, len(lines.iteration)))


def _add_plain(state: _State, series: RecordSeries, lines: PlainLines, rows: slice) -> None:
    numbers, consumed = lines.iteration[rows], lines.consumed[rows]
    if not len(numbers):
        return
    state.log.add_remark(
        "long-log", f"of most records after the first {_READ_IN_FULL:,} only number, time and batch are read"
    )
    before = numbers[0] if state.consumed_at is None else state.consumed_at
    steps = np.diff(numbers, prepend=before)
    samples = np.diff(consumed, prepend=consumed[0] if state.consumed_samples is None else state.consumed_samples)
    batches = np.where((steps > 0) & (samples > 0), samples // np.maximum(steps, 1), state.batch or np.nan)
    series.add_many(numbers, lines.wall_ns[rows], batches)
    state.consumed_samples, state.consumed_at = int(consumed[-1]), int(numbers[-1])


def _close(state: _State) -> None:
    """Conclude the set-up, the run's last iteration, and how many iterations a record is the mean of."""
    log = state.log
    _conclude_setup(state)
    if state.train_iterations is not None:
        log.set_fact("train_iterations", state.train_iterations, "records")
    if SOURCE in log.series:
        log.series[SOURCE].stated_interval = log.count("log_interval")
    is_deepspeed = "deepspeed" in log.frameworks
    state.name = "gpt-neox" if state.is_gpt_neox else "megatron-deepspeed" if is_deepspeed else "megatron-lm"


FORMAT = LogFormat(
    framework="megatron",
    state=_State,
    rules=(*_SETUP_RULES, *_SAVES_RULES, *timer_lines.MEGATRON_RULES, _RECORD_RULE, _UTILISATION_RULE),
    sources=(SOURCE,),
    close=_close,
    role=WriterRole.LIBRARY,
    take_plain=_take_plain,
)
