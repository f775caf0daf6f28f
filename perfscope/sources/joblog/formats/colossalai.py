"""Colossal-AI's examples: a line a step, or figures over the whole benchmark at its end.

    [12/20] Loss:9.123, Step time: 1.234s, TFLOPS: 45.600, FWD time: 0.310s, BWD time: 0.800s, OPTIM time: 0.124s
    INFO     colossalai - colossalai - INFO: Step time: 19.714
    num_samples: 24, dp_world_size: 8, ..., avg_duration: 58.2, avg_throughput: 3.299
    Throughput: 3.30 samples/sec, TFLOPS per GPU by Megatron: 181.20, TFLOPS per GPU: 175.90

TFLOPs are those of a GPU. The figures at the end are over all steps but the ignored first ones; the number of steps is
not printed, so that no step time follows from them.
"""

from __future__ import annotations

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.log_format import Format, FormatState, LineMatch, Rule, counts, ignore_line
from perfscope.sources.joblog.records import Record
from perfscope.sources.joblog.text import parse_number, parse_resolution

SOURCE = "Colossal-AI's step time"
END = "Colossal-AI's throughput"


def _on_step(state: FormatState, line: LineMatch) -> None:
    log, step = state.log, int(line["step"]) if line["step"] else None
    record = log.timed(line["seconds"], NS_PER_S, step, loss=parse_number(line["loss"]))
    if record is None:
        return
    if line["tflops"]:
        record.tflops_per_gpu, record.tflops_resolution = parse_number(line["tflops"]), parse_resolution(line["tflops"])
        log.tflops_label = "TFLOPS"
    log.add(SOURCE, record, line)
    if line["total"]:
        log.set_count("train_iterations", line["total"], "records")


def _on_end(state: FormatState, line: LineMatch) -> None:
    record = Record(samples_per_s=parse_number(line[1]), tflops_per_gpu=parse_number(line[2]))
    record.tflops_resolution = parse_resolution(line[2])
    state.log.tflops_label = state.log.tflops_label or "TFLOPS per GPU"
    state.log.add(END, record, line)
    state.log.set_fact("unnumbered_runs", 1, "records")


FORMAT = Format(
    framework="colossalai",
    state=FormatState,
    rules=(
        Rule(
            b"Step time: ",
            rb"(?:\[(?P<step>\d{1,9})/(?P<total>\d{1,9})\] ?(?:, ?)?(?:Loss:(?P<loss>[^\s,]{1,20}), )?"
            rb"|colossalai - INFO: )Step time: (?P<seconds>\d[\d.]{0,19})s?(?:, TFLOPS: (?P<tflops>[\d.]{1,20}))?",
            _on_step,
        ),
        Rule(
            b" samples/sec, TFLOPS per GPU",
            rb"Throughput: ([\d.]{1,20}) samples/sec, TFLOPS per GPU"
            rb"(?: by Megatron: [\d.]{1,20}, TFLOPS per GPU)?: ([\d.]{1,20})",
            _on_end,
        ),
        Rule(b", dp_world_size: ", rb"num_samples: \d{1,12}, dp_world_size: (\d{1,6}), ", counts("dp")),
        Rule(b"colossalai - colossalai - INFO", rb"colossalai - colossalai - INFO", ignore_line),
    ),
    sources=(SOURCE, END),
)
