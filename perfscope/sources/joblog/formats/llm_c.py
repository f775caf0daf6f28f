"""llm.c: a line a step, by its CUDA program, by its Python one, and by the one for processors.

    step   61/74 | loss 3.208939 (+nanz)| norm 1.4800 (+nanz)| lr 3.00e-04 | 44.57 ms | 38.1% bf16 MFU | 91886 tok/s

    step    2/19560 | train loss 10.829729 | norm 15.0011 | lr 5.71e-06 | (2391.52 ms | 191824 tok/s)

    step 1: train loss 4.301069 (took 1288.673000 ms)

The time is that of one step with all its micro-batches, without validation and sampling; steps count from 1, in the
last program from 0. The CUDA program's tokens a second are a moving average over earlier steps and are not used. The
Python program states tokens a second of the step itself, over all GPUs.
"""

from __future__ import annotations

from perfscope.constants import NS_PER_MS
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat, aside, counts
from perfscope.sources.joblog.text import parse_number

SOURCE = "llm.c's time of one step"


def _on_step(state: FormatState, line: LineMatch) -> None:
    groups = line.match.groupdict()
    step = int(line["step"]) + ("last" not in groups)
    record = state.log.timed(line["ms"], NS_PER_MS, step, loss=parse_number(line["loss"]))
    if record is None:
        return
    state.log.set_mfu(groups.get("mfu") or b"")
    if "speed" in groups:
        record.tokens_per_s = parse_number(line["speed"])
    state.log.add(SOURCE, record, line.label, stated_interval=1)
    if "last" in groups:
        state.log.set_count("train_iterations", line["last"], "records")


def _on_batch(state: FormatState, line: LineMatch) -> None:
    """``batch_size B=56 * seq_len T=1024 * num_processes=1 and total_batch_size=458752``, the last one in tokens."""
    micro, length, processes, tokens = (int(line[group]) for group in range(1, 5))
    for name, value in (("mbs", micro), ("seq_len", length), ("gpus", processes), ("dp", processes)):
        state.log.set_fact(name, value, "log")
    if length and tokens % length == 0:
        state.log.set_fact("gbs", tokens // length, "log")


_HEAD = rb"step +(?P<step>\d{1,15})/(?P<last>\d{1,15}) \| "

FORMAT = LogFormat(
    framework="llm.c",
    state=FormatState,
    rules=(
        LineRule(
            b"z)| norm",
            _HEAD + rb"loss +(?P<loss>\S{1,30}) \(\S{1,20}z\)\| norm +\S{1,30} \(\S{1,20}z\)\| lr \S{1,20} \| "
            rb"(?P<ms>[\d.]{1,30}) ms \| (?:(?P<mfu>-?[\d.]{1,10})% )?",
            _on_step,
            begin=(b"step ",),
        ),
        LineRule(
            b" | train loss ",
            _HEAD + rb"train loss (?P<loss>\S{1,30}) \| (?:norm \S{1,30} \| )?lr \S{1,20} \| "
            rb"\((?P<ms>[\d.]{1,30}) ms \| (?P<speed>\d{1,15}) tok/s\)",
            _on_step,
            begin=(b"step ",),
        ),
        LineRule(
            b" (took ",
            rb"step (?P<step>\d{1,15}): train loss (?P<loss>\S{1,30}) \(took (?P<ms>[\d.]{1,30}) ms\)",
            _on_step,
            begin=(b"step ",),
        ),
        LineRule(
            b" and total_batch_size=",
            rb"batch_size B=(\d{1,9}) \* seq_len T=(\d{1,9}) \* num_processes=(\d{1,9}) and "
            rb"total_batch_size=(\d{1,15})",
            _on_batch,
            begin=(b"batch_size B=",),
        ),
        aside(b"=> setting grad_accum_steps=", rb"=> setting grad_accum_steps=(\d{1,9})", counts("gas")),
        aside(b"num_parameters: ", rb"num_parameters: (\d{1,18}) => bytes", counts("parameters")),
    ),
    sources=(SOURCE,),
)
