"""Changes that were really made, beside what ``perfscope whatif`` predicts from traces without them.

``python -m benchmarks.whatif_pairs`` prints the table of reports/what-if.md. A pair has the traces of one training, a
scenario, and the median of unprofiled steps of the training in which the change was made. Where the unprofiled steps of
the traced training are known, too, the host is taken as fast as there.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.processes import ROOT
from perfscope.analyzers.whatif import answer, measure
from perfscope.constants import NS_PER_MS
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS

FOLDER = ROOT / "fixtures" / "whatif"
#: The step of ``base`` without any communication, on the same machine.
_BASE_WITHOUT_COMMUNICATION_MS = 48.2


@dataclass(frozen=True)
class Pair:
    """A change that was really made.

    Attributes:
        traces: The folder of the traces, below ``fixtures/whatif``.
        scenario: The change.
        made: The training in which it was made: one of the set's ``truth.json``, or of a folder with its own.
    """

    traces: str
    scenario: str
    made: str

    def _median_ms(self, name: str) -> float:
        if name == "base without communication":
            return _BASE_WITHOUT_COMMUNICATION_MS
        own = "/" not in self.traces
        truth = json.loads((FOLDER / (name if own else Path(self.traces).parent) / "truth.json").read_text())
        median: float = (truth if own else truth[name])["median_ms"]
        return median

    @cached_property
    def truth_ms(self) -> float:
        """The median of the unprofiled steps of the changed training."""
        return self._median_ms(self.made)

    @cached_property
    def undisturbed_ms(self) -> float:
        """The median of the unprofiled steps of the traced training."""
        return self._median_ms(Path(self.traces).name)

    @cached_property
    def predicted_ms(self) -> float:
        """The predicted step."""
        paths = sorted((FOLDER / self.traces).glob("*.json.gz"))
        graphs = [partial for path in paths if (partial := measure(read_trace(path, BASIC_EVENTS)))]
        (outlook,) = answer(graphs, (self.scenario,), self.undisturbed_ms * NS_PER_MS).scenarios
        return outlook.step_ns / NS_PER_MS

    @property
    def error(self) -> float:
        """Of the prediction, as a share."""
        return self.predicted_ms / self.truth_ms - 1


PAIRS = (
    Pair("base", "communication-free", "base without communication"),
    Pair("no_overlap", "communication-free", "base without communication"),
    Pair("no_overlap", "perfect-overlap", "base"),
    Pair("slow_gpu", "no-stragglers", "base"),
    Pair("slow_gpu", "median-device=1", "base"),
    Pair("pairs/changes/delay", "median-host=1", "item"),
    Pair("pairs/changes/load", "data-loading-free", "load0"),
    Pair("pairs/changes/recompute", "recomputation-off", "base"),
    Pair("pairs/transfers/tf32_off", "faster-kernel=gemm:5.649", "tf32_on"),
    Pair("pairs/axes/tensor_narrow", "communication-free=TP", "base"),
    Pair("pairs/axes/tensor_narrow", "faster-communication=TP:2.129", "tensor"),
    Pair("pairs/axes/eager", "launch-free", "graph"),
)


def document() -> str:
    """The pairs as a table, with their median error."""
    lines = [
        "| Traces of | Scenario | Predicted (ms) | Really made | Took (ms) | Error (%) |",
        "|:----------|:---------|---------------:|:------------|----------:|----------:|",
    ]
    lines += [
        f"| `{pair.traces}` | `{pair.scenario}` | {pair.predicted_ms:.2f} | {pair.made} | {pair.truth_ms:.2f} | "
        f"{100 * pair.error:+.1f} |"
        for pair in PAIRS
    ]
    errors = [abs(pair.error) for pair in PAIRS]
    return "\n".join(
        [*lines, f"\nMedian error {100 * statistics.median(errors):.1f} %, largest {100 * max(errors):.1f} %."]
    )


if __name__ == "__main__":
    print(document())
