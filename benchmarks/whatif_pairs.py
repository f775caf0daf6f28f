"""Changes that were really made, beside what ``perfscope whatif`` predicts from traces without them.

``python -m benchmarks.whatif_pairs`` prints the tables of reports/what-if.md. A pair has the traces of one training, a
scenario, and the median of unprofiled steps of the training in which the change was made. Where the unprofiled steps of
the traced training are known, too, the host is taken as fast as there.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.processes import ROOT
from perfscope.analyzers.replay.graphs import measure
from perfscope.analyzers.replay.measured import prepare
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.analyzers.replay.scenarios import needs_operators
from perfscope.analyzers.whatif import answer
from perfscope.constants import NS_PER_MS
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS, NO_EVENTS, Events

FOLDER = ROOT / "fixtures" / "whatif"
#: The step of ``base`` without any communication, on the same machine.
BASE_WITHOUT_COMMUNICATION_MS = 48.2


@dataclass(frozen=True)
class Pair:
    """A change that was really made.

    Attributes:
        kind: The kind of scenario.
        traces: The folder of the traces, below ``fixtures/whatif``.
        scenario: The change.
        made: The training in which it was made: one of the set's ``truth.json``, or of a folder with its own.
    """

    kind: str
    traces: str
    scenario: str
    made: str

    @property
    def truth_ms(self) -> float:
        """The median of the unprofiled steps of the changed training."""
        if self.made == "base without communication":
            return BASE_WITHOUT_COMMUNICATION_MS
        return _median_ms(self.traces, self.made)

    @property
    def undisturbed_ms(self) -> float | None:
        """The median of the unprofiled steps of the traced training; absent where they were not on this machine."""
        return _median_ms(self.traces, Path(self.traces).name.removesuffix("_sync"))

    @cache  # noqa: B019 (pairs live as long as the process)
    def predict_ms(self) -> float:
        """The predicted step."""
        (outlook,) = answer(
            _graphs(self.traces, with_operators=needs_operators((self.scenario,))),
            (self.scenario,),
            None if self.undisturbed_ms is None else self.undisturbed_ms * NS_PER_MS,
        ).outlooks
        return outlook.step_ns / NS_PER_MS


def _median_ms(traces: str, name: str) -> float:
    own = FOLDER / name / "truth.json"
    if "/" not in traces:
        median: float = json.loads(own.read_text())["median_ms"]
        return median
    of_set: float = json.loads((FOLDER / traces).parent.joinpath("truth.json").read_text())[name]["median_ms"]
    return of_set


@cache
def _graphs(traces: str, *, with_operators: bool) -> tuple[tuple[RankGraph, ...], ...]:
    events = (
        BASIC_EVENTS
        | Events.WAITS
        | Events.GRIDS
        | (Events.OPERATORS | Events.SEQUENCES if with_operators else NO_EVENTS)
    )
    paths = sorted((FOLDER / traces).glob("*.json.gz"))
    return tuple(partial for path in paths if (partial := measure(read_trace(path, events))))


def _pairs(kind: str, traces: str, *scenarios: tuple[str, str]) -> list[Pair]:
    return [Pair(kind, traces, scenario, made) for scenario, made in scenarios]


#: Every pair that was measured and whose traces are kept.
_BUCKETS, _PIPELINES, _CHANGES = "pairs/buckets", "pairs/pipelines", "pairs/changes"
_TRANSFERS, _DEEPSPEED = "pairs/transfers", "pairs/deepspeed"
_AXES, _STAGES, _ZERO_3 = "pairs/axes", "pairs/stages", "pairs/zero3"
ALL: tuple[Pair, ...] = (
    *_pairs("communication", "base", ("communication-free", "base without communication")),
    *_pairs("communication", "no_overlap", ("communication-free", "base without communication")),
    *_pairs("communication", f"{_BUCKETS}/base", ("communication-free", "nosync")),
    *_pairs("communication", f"{_BUCKETS}/bucket2000", ("communication-free", "nosync")),
    *_pairs("communication", f"{_CHANGES}/base_sync", ("communication-free", "nosync")),
    *_pairs("communication", f"{_CHANGES}/bucket5", ("communication-free", "nosync")),
    *_pairs("overlap", "no_overlap", ("perfect-overlap", "base")),
    *_pairs("overlap", f"{_BUCKETS}/bucket2000", ("perfect-overlap", "base")),
    *_pairs("stragglers", "slow_gpu", ("no-stragglers", "base")),
    *_pairs("device of a rank", "slow_gpu", ("median-device=1", "base")),
    *_pairs("host of a rank", f"{_CHANGES}/delay", ("median-host=1", "item"), ("no-stragglers", "item")),
    *_pairs("bucket size", f"{_BUCKETS}/base", ("bucket=5", "bucket5"), ("bucket=100", "bucket100")),
    *_pairs("bucket size", f"{_BUCKETS}/base", ("bucket=2000", "bucket2000")),
    *_pairs("bucket size", f"{_BUCKETS}/bucket2000", ("bucket=5", "bucket5"), ("bucket=25", "base")),
    *_pairs("bucket size", f"{_BUCKETS}/bucket2000", ("bucket=100", "bucket100")),
    *_pairs("bucket size", f"{_CHANGES}/bucket5", ("bucket=25", "base")),
    *_pairs("accumulation", f"{_BUCKETS}/base", ("accumulation=2", "acc2"), ("accumulation=4", "acc4")),
    *_pairs("accumulation", f"{_BUCKETS}/acc4", ("accumulation=2", "acc2"), ("accumulation=1", "base")),
    *_pairs("micro-batches", f"{_PIPELINES}/1f1b_m4", ("microbatches=8", "1f1b_m8")),
    *_pairs("micro-batches", f"{_PIPELINES}/1f1b_m4", ("microbatches=16", "1f1b_m16")),
    *_pairs("schedule", f"{_PIPELINES}/1f1b_m4", ("schedule=gpipe", "gpipe_m4")),
    *_pairs("schedule", f"{_PIPELINES}/1f1b_m4", ("schedule=interleaved:2", "interleaved_m4")),
    *_pairs("device of a stage", f"{_PIPELINES}/slow_device", ("median-device=2", "1f1b_m8")),
    *_pairs("device of a stage", f"{_PIPELINES}/slow_device", ("no-stragglers", "1f1b_m8")),
    *_pairs("host of a stage", f"{_PIPELINES}/slow_host", ("median-host=1", "1f1b_m8"), ("no-stragglers", "1f1b_m8")),
    *_pairs("device of a pipeline", f"{_PIPELINES}/pp2dp2_slow", ("median-device=3", "pp2dp2")),
    *_pairs("device of a pipeline", f"{_PIPELINES}/pp2dp2_slow", ("no-stragglers", "pp2dp2")),
    *_pairs("launches", f"{_CHANGES}/eager", ("launch-free", "graph")),
    *_pairs("data loading", f"{_CHANGES}/load", ("data-loading-free", "load0")),
    *_pairs("recomputation", f"{_CHANGES}/recompute", ("recomputation-off", "base")),
    *_pairs("module", f"{_CHANGES}/mlp2", ("faster-module=mlp:2", "base")),
    *_pairs("operator", f"{_CHANGES}/norm6", ("faster-operator=layer_norm:6", "base")),
    *_pairs("faster communication", f"{_TRANSFERS}/narrow", ("faster-communication=2.118", "base")),
    *_pairs("faster communication", f"{_TRANSFERS}/narrow_late", ("faster-communication=2.694", "late")),
    *_pairs("faster communication", f"{_TRANSFERS}/fp32_late", ("faster-communication=2", "bf16hook_late")),
    *_pairs("kernel", f"{_TRANSFERS}/tf32_off", ("faster-kernel=gemm:5.649", "tf32_on")),
    *_pairs("overlap", f"{_TRANSFERS}/late", ("perfect-overlap", "base")),
    *_pairs("overlap", f"{_TRANSFERS}/narrow_late", ("perfect-overlap", "narrow")),
    *_pairs("bucket size", f"{_TRANSFERS}/base", ("bucket=4000", "late")),
    *_pairs("accumulation", f"{_DEEPSPEED}/zero1", ("accumulation=2", "zero1_acc2"), ("accumulation=4", "zero1_acc4")),
    *_pairs("accumulation", f"{_DEEPSPEED}/zero1_acc2", ("accumulation=1", "zero1")),
    *_pairs("accumulation", f"{_DEEPSPEED}/zero1_acc4", ("accumulation=2", "zero1_acc2")),
    *_pairs("accumulation", f"{_DEEPSPEED}/zero2", ("accumulation=2", "zero2_acc2")),
    *_pairs("accumulation", f"{_DEEPSPEED}/zero3", ("accumulation=2", "zero3_acc2")),
    *_pairs("micro-batches", f"{_DEEPSPEED}/pipe_m4", ("microbatches=8", "pipe_m8")),
    *_pairs("micro-batches", f"{_DEEPSPEED}/pipe_m4", ("microbatches=16", "pipe_m16")),
    *_pairs("micro-batches", f"{_DEEPSPEED}/pipe_m8", ("microbatches=4", "pipe_m4")),
    *_pairs("communication of an axis", f"{_AXES}/tensor", ("communication-free=TP", "base")),
    *_pairs("communication of an axis", f"{_AXES}/tensor_narrow", ("communication-free=TP", "base")),
    *_pairs("faster communication", f"{_AXES}/tensor_narrow", ("faster-communication=TP:2.129", "tensor")),
    *_pairs("launches", f"{_AXES}/eager", ("launch-free", "graph")),
    *_pairs("accumulation", f"{_AXES}/fsdp", ("accumulation=2", "fsdp_acc2")),
    *_pairs("schedule", f"{_STAGES}/gpipe_m8", ("schedule=1f1b", "1f1b_m8")),
    *_pairs("schedule", f"{_STAGES}/1f1b_m8", ("schedule=gpipe", "gpipe_m8")),
    *_pairs("schedule", f"{_STAGES}/1f1b_m8", ("schedule=interleaved:2", "interleaved_m8")),
    *_pairs("micro-batches", f"{_STAGES}/gpipe_m3", ("microbatches=8", "gpipe_m8")),
    *_pairs("accumulation", f"{_ZERO_3}/zero3", ("accumulation=2", "zero3_acc2")),
)
#: What the model misses by more than 5 %: traces and scenario. The report says what is known about each.
_MISSED = {
    (f"{_CHANGES}/bucket5", "communication-free"),
    (f"{_BUCKETS}/acc4", "accumulation=1"),
    (f"{_PIPELINES}/1f1b_m4", "schedule=interleaved:2"),
    (f"{_PIPELINES}/slow_host", "no-stragglers"),
    (f"{_STAGES}/1f1b_m8", "schedule=interleaved:2"),
    (f"{_ZERO_3}/zero3", "accumulation=2"),
}
MISSED = tuple(pair for pair in ALL if (pair.traces, pair.scenario) in _MISSED)
PAIRS = tuple(pair for pair in ALL if pair not in MISSED)


def document(pairs: Sequence[Pair] = PAIRS) -> str:
    """Pairs as a table, with their median error."""
    lines = [
        "| Kind | Traces of | Scenario | Predicted (ms) | Really made | Took (ms) | Error (%) |",
        "|:-----|:----------|:---------|---------------:|:------------|----------:|----------:|",
    ]
    errors = []
    for pair in pairs:
        predicted, truth = pair.predict_ms(), pair.truth_ms
        errors.append(abs(predicted / truth - 1))
        cells = (
            *(pair.kind, f"`{pair.traces}`", f"`{pair.scenario}`", f"{predicted:.2f}", pair.made),
            *(f"{truth:.2f}", f"{100 * (predicted / truth - 1):+.1f}"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines.append(f"\nMedian error {100 * statistics.median(errors):.1f} %, largest {100 * max(errors):.1f} %.")
    return "\n".join(lines)


def sets() -> tuple[str, ...]:
    """Every folder of traces with marked steps, as ``FOLDER`` has it."""
    own = sorted({path.parent.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.json.gz")})
    return *own, *_OTHERS


#: Real traces that belong to no pair.
_OTHERS = ("../traces/ddp4", "../traces/single")


def document_errors() -> str:
    """How far the replay of the measured durations is from the measured step, for every set of traces, as a table."""
    lines = [
        "| Traces | Ranks | Step (ms) | Replayed (ms) | Error (%) |",
        "|:-------|------:|----------:|--------------:|----------:|",
    ]
    errors = []
    for traces in sets():
        graphs = _graphs(traces, with_operators=False)
        measured = prepare([graph for partial in graphs for graph in partial])
        errors.append(abs(measured.error))
        cells = (
            *(f"`{traces.removeprefix('../')}`", f"{len(measured.job.ranks)}"),
            *(f"{span.step_ns / NS_PER_MS:.2f}" for span in (measured.steps, measured.exact)),
            f"{100 * measured.error:+.3f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines.append(f"\nMedian error {100 * statistics.median(errors):.3f} %, largest {100 * max(errors):.2f} %.")
    return "\n".join(lines)


if __name__ == "__main__":
    print(document(), document(MISSED), document_errors(), sep="\n\n")
    print(f"\n{len(PAIRS)} of {len(ALL)} pairs are within 5 %.")
