"""Changes of a pipeline that a sweep has really made, beside what ``perfscope whatif`` predicts from its other traces.

Run: ``python -m benchmarks.sweep_pairs OUT/runs...`` on what ``python -m benchmarks.bubble_sweep -o OUT`` has left. The
truth is the median of the steady-state steps of the changed training.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks.pipeline_runs import VARIANTS
from perfscope.analyzers.replay.graphs import measure
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.analyzers.replay.scenarios import needs_operators
from perfscope.analyzers.whatif import WhatIf, answer
from perfscope.constants import NS_PER_MS
from perfscope.errors import PerfscopeError
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS, NO_EVENTS, Events

_SCHEDULES = {"gpipe": "gpipe", "interleaved": "interleaved:2", "zb-h1": "zb-h1", "zbv": "zbv", "1f1b": "1f1b"}


@dataclass(frozen=True)
class SweepPair:
    """A training with traces, a change, and the training in which it was made.

    Attributes:
        traced: The name of the run with the traces.
        scenario: The change.
        made: The name of the run in which it was made.
    """

    traced: str
    scenario: str
    made: str


def list_pairs(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[SweepPair]:
    """Every change of one thing between two runs: micro-batches, the schedule, or a slow rank that is as the others."""
    for traced, first in rows.items():
        for made, second in rows.items():
            is_slow, is_other_m = "_slow_" in traced, first["microbatches"] != second["microbatches"]
            if traced == made or made.endswith(VARIANTS) or traced.endswith("untied") or (is_slow and is_other_m):
                continue
            if first["schedule"] == second["schedule"]:
                if is_other_m:
                    yield SweepPair(traced, f"microbatches={second['microbatches']}", made)
                elif is_slow:
                    rank = "median-device=2" if traced.endswith("device") else "median-host=1"
                    yield SweepPair(traced, rank, made)
                    yield SweepPair(traced, "no-stragglers", made)
            elif not is_slow and not is_other_m:
                yield SweepPair(traced, f"schedule={_SCHEDULES[second['schedule']]}", made)


def predict(folder: Path, scenario: str, step_ms: float) -> WhatIf:
    """The answer from the traces of a run, and the median of its steps without a profiler."""
    graphs = _graphs(folder, with_operators=needs_operators((scenario,)))
    return answer(graphs, (scenario,), step_ms * NS_PER_MS)


@cache
def _graphs(folder: Path, *, with_operators: bool) -> tuple[tuple[RankGraph, ...], ...]:
    events = BASIC_EVENTS | Events.WAITS | Events.GRIDS
    events |= Events.OPERATORS | Events.SEQUENCES if with_operators else NO_EVENTS
    paths = sorted(folder.glob("traces/*.json.gz"))
    return tuple(partial for path in paths if (partial := measure(read_trace(path, events))))


def judge(runs: Path) -> Iterator[dict[str, Any]]:
    """Each pair whose first run has traces: what was predicted, what the changed training took, or why not."""
    rows = {path.stem: json.loads(path.read_text()) for path in sorted(runs.glob("*_m*.json"))}
    for pair in list_pairs(rows):
        if not any((runs / pair.traced).glob("traces/*.json.gz")):
            continue
        truth_ms = rows[pair.made]["step_ms"]
        judged = {"traced": pair.traced, "scenario": pair.scenario, "made": pair.made, "took_ms": truth_ms}
        try:
            found = predict(runs / pair.traced, pair.scenario, rows[pair.traced]["step_ms"])
        except PerfscopeError as error:
            yield judged | {"reason": error.problem}
            continue
        if found.refused:
            yield judged | {"reason": found.refused[0][1]}
            continue
        (outlook,) = found.outlooks
        predicted_ms = outlook.step_ns / NS_PER_MS
        yield judged | {
            "predicted_ms": predicted_ms,
            "uncertain_ms": outlook.uncertain_ns / NS_PER_MS,
            "error": predicted_ms / truth_ms - 1,
            "replay_error": found.error,
        }


def document(judged: Sequence[Mapping[str, Any]]) -> str:
    """The pairs as a table."""
    headings = ("Traces of", "Scenario", "Predicted (ms)", "Took (ms)", "Error (%)", "Within the interval")
    rows = []
    for pair in judged:
        took = f"{pair['took_ms']:.1f}"
        if "reason" in pair:
            rows.append((f"`{pair['traced']}`", f"`{pair['scenario']}`", "n/a", took, "n/a", pair["reason"]))
            continue
        is_within = abs(pair["predicted_ms"] - pair["took_ms"]) <= pair["uncertain_ms"]
        predicted = f"{pair['predicted_ms']:.1f} ± {pair['uncertain_ms']:.1f}"
        error = f"{100 * pair['error']:+.1f}"
        rows.append(
            (f"`{pair['traced']}`", f"`{pair['scenario']}`", predicted, took, error, "yes" if is_within else "no")
        )
    table: str = tabulate(rows, headings, tablefmt="pipe", disable_numparse=True)
    return table


def main() -> None:
    """Print the pairs of each folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    arguments = parser.parse_args()
    judged = [pair for runs in arguments.runs for pair in judge(runs)]
    if arguments.json:
        arguments.json.write_text(json.dumps(judged, indent=1) + "\n")
    print(document(judged))


if __name__ == "__main__":
    main()
