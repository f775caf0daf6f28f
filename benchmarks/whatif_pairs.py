"""Changes that were really made, beside what ``perfscope whatif`` predicts from traces without them.

``python -m benchmarks.whatif_pairs`` prints the table of reports/what-if.md. A pair has the traces of one training, a
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
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.analyzers.replay.scenarios import needs_operators
from perfscope.analyzers.whatif import answer, measure
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
        return _median_ms(self.traces, Path(self.traces).name)

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
    events = BASIC_EVENTS | Events.WAITS | (Events.OPERATORS | Events.SEQUENCES if with_operators else NO_EVENTS)
    paths = sorted((FOLDER / traces).glob("*.json.gz"))
    return tuple(partial for path in paths if (partial := measure(read_trace(path, events))))


def _pairs(kind: str, traces: str, *scenarios: tuple[str, str]) -> list[Pair]:
    return [Pair(kind, traces, scenario, made) for scenario, made in scenarios]


PAIRS: tuple[Pair, ...] = (
    *_pairs("communication", "base", ("communication-free", "base without communication")),
    *_pairs("communication", "no_overlap", ("communication-free", "base without communication")),
    *_pairs("communication", "pairs/buckets/base", ("communication-free", "nosync")),
    *_pairs("overlap", "no_overlap", ("perfect-overlap", "base")),
    *_pairs("overlap", "pairs/buckets/bucket2000", ("perfect-overlap", "base")),
    *_pairs("stragglers", "slow_gpu", ("no-stragglers", "base"), ("median-device=1", "base")),
    *_pairs(
        "bucket size",
        "pairs/buckets/base",
        ("bucket=5", "bucket5"),
        ("bucket=100", "bucket100"),
        ("bucket=2000", "bucket2000"),
    ),
    *_pairs(
        "bucket size",
        "pairs/buckets/bucket2000",
        ("bucket=5", "bucket5"),
        ("bucket=25", "base"),
        ("bucket=100", "bucket100"),
    ),
    *_pairs("accumulation", "pairs/buckets/base", ("accumulation=2", "acc2"), ("accumulation=4", "acc4")),
    *_pairs("micro-batches", "pairs/pipelines/1f1b_m4", ("microbatches=8", "1f1b_m8"), ("microbatches=16", "1f1b_m16")),
    *_pairs("schedule", "pairs/pipelines/1f1b_m4", ("schedule=gpipe", "gpipe_m4")),
    *_pairs(
        "device of a stage", "pairs/pipelines/slow_device", ("median-device=2", "1f1b_m8"), ("no-stragglers", "1f1b_m8")
    ),
    *_pairs("host of a stage", "pairs/pipelines/slow_host", ("median-host=1", "1f1b_m8")),
    *_pairs("stragglers of a stage", "pairs/pipelines/pp2dp2_slow", ("no-stragglers", "pp2dp2")),
)


#: What the model misses, and the report says so.
MISSED: tuple[Pair, ...] = (
    *_pairs("schedule", "pairs/pipelines/1f1b_m4", ("schedule=interleaved:2", "interleaved_m4")),
    *_pairs("device of a stage", "pairs/pipelines/pp2dp2_slow", ("median-device=3", "pp2dp2")),
)


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


if __name__ == "__main__":
    print(document(), document(MISSED), sep="\n\n")
