"""What the tree of modules and the roofline predict of four changes to a model, beside what the changes saved.

    python -m benchmarks.module_changes [--write fixtures/modules/changes.csv]

The traces and the times of unprofiled steps are in ``fixtures/modules``. The prediction for a part of the model is
its time in the trace before the change, less the attainable time of the same work as one operator: operations at the
measured ceiling of products, or each byte that must move once at that of memory.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from perfscope.analyzers.modules.attribution import Owner
from perfscope.analyzers.modules.measurement import RankModules, measure_modules
from perfscope.constants import MS_PER_S, NS_PER_MS, TERA
from perfscope.engine.registry import BUILT_IN
from perfscope.sources.traces.reader import read_trace

FOLDER = Path(__file__).parents[1] / "fixtures" / "modules"
HEADINGS = (
    "Change", "Part", "Before (ms)", "Attainable (ms)", "Predicted saving (ms)", "Saved in the trace (ms)",
    "Saved in a step (ms)", "Of the prediction (%)",
)  # fmt: skip
LAYERS, HIDDEN, VOCABULARY, TOKENS, BATCH = 4, 2048, 32_000, 8192, 4
BF16 = 2
#: Matrices of hidden x hidden in a layer: 4 of attention, 12 of the MLP.
MATRICES = 16


class Ceilings(NamedTuple):
    """The highest measured rates: TFLOP/s of products, TB/s of memory."""

    tflops: float
    tb_s: float

    def ms_of_bytes(self, size: float) -> float:
        """The attainable time of bytes that must move."""
        return MS_PER_S * size / (self.tb_s * TERA)

    def ms_of_flops(self, flops: float) -> float:
        """The attainable time of operations."""
        return MS_PER_S * flops / (self.tflops * TERA)


def measure(folder: str) -> RankModules:
    """The modules of one of the traces."""
    needs = next(analyzer.needs for analyzer in BUILT_IN if analyzer.name == "modules")
    rank = measure_modules(read_trace(FOLDER / folder / "rank0.json.gz", needs))
    if rank is None:
        raise SystemExit(f"{folder} marks no modules")
    return rank


def own_ms(rank: RankModules, end: str) -> float:
    """Time of a step in modules whose path ends so, without those inside them."""
    own = sum(sum(module.device_ns) for module in rank.modules if module.path.split(".")[-1].startswith(end))
    return own / rank.steps / NS_PER_MS


def optimizer_ms(rank: RankModules) -> float:
    """Time of a step in the optimizer."""
    return rank.owners[Owner.OPTIMIZER][0] / rank.steps / NS_PER_MS


def rows() -> list[tuple[str | float, ...]]:
    """One row a change, and one for all of them."""
    truth: dict[str, Any] = json.loads((FOLDER / "truth.json").read_text())
    rates = truth["ceilings"]
    ceilings = Ceilings(
        max(rate for name, rate in rates.items() if name.startswith("bf16")),
        max(rate for name, rate in rates.items() if not name.startswith("bf16")),
    )
    steps = {name: median(times) for name, times in truth["single_gpu_ms"].items()}
    before, after = measure("llama"), measure("llama_changed")
    states = BF16 * TOKENS * HIDDEN
    sequence = TOKENS // BATCH
    attention = 3 * 2 * 2 * LAYERS * BATCH * sequence**2 * HIDDEN
    parameters = LAYERS * MATRICES * HIDDEN**2 + 2 * VOCABULARY * HIDDEN
    logits = BF16 * TOKENS * VOCABULARY
    changes = (
        ("scaled_dot_product_attention", "attention", "sdpa", ceilings.ms_of_flops(attention)),
        ("rms_norm of torch", "norm", "norm", ceilings.ms_of_bytes(5 * states * (2 * LAYERS + 1))),
        ("cross entropy of bf16 logits", "loss", "loss", ceilings.ms_of_bytes(5 * logits)),
        ("fused AdamW", "(optimizer)", "adamw", ceilings.ms_of_bytes(7 * BF16 * parameters)),
    )
    made: list[tuple[str | float, ...]] = []
    for change, part, variant, attainable in changes:
        times = [optimizer_ms(rank) if part[0] == "(" else own_ms(rank, part) for rank in (before, after)]
        predicted, saved = times[0] - attainable, steps["base"] - steps[variant]
        made.append(
            (change, part, times[0], attainable, predicted, times[0] - times[1], saved, 100 * saved / predicted)
        )
    totals = [sum(float(row[column]) for row in made) for column in (2, 3, 4, 5)]
    saved = steps["base"] - steps["sdpa_norm_loss_adamw"]
    return [*made, ("all of them", "", *totals, saved, 100 * saved / totals[2])]


def document() -> str:
    """The rows as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADINGS)
    for row in rows():
        writer.writerow([f"{cell:.2f}" if isinstance(cell, float) else cell for cell in row])
    return text.getvalue()


def main() -> None:
    """Print the rows, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    text = document()
    if options.write:
        options.write.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
