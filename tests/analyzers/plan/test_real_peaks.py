"""Estimates of memory are within 5 % of the peaks that torch counted in real trainings on H200."""

from __future__ import annotations

import csv

import pytest

from perfscope.analyzers.plan import (
    Attention,
    Loss,
    MemoryEstimate,
    OptimizerKind,
    ParallelLayout,
    StatePrecision,
    estimate_memory,
    state_bytes_of,
)
from perfscope.models.conventions import Checkpointing
from perfscope.models.parameter_counts import total_parameters
from perfscope.models.transformer import Transformer
from tests.conftest import ROOT

with (ROOT / "fixtures" / "memory" / "peaks.csv").open() as file:
    TRAININGS = {row["training"]: row for row in csv.DictReader(file)}


def estimate(row: dict[str, str]) -> MemoryEstimate:
    hidden = int(row["hidden"])
    model = Transformer(
        name="gpt",
        layers=int(row["layers"]),
        hidden=hidden,
        heads=int(row["heads"]),
        kv_heads=int(row["heads"]),
        head_dim=hidden // int(row["heads"]),
        ffn=4 * hidden,
        mlp_matrices=2,
        vocabulary=int(row["vocabulary"]),
        tied=True,
        positions=int(row["seq_len"]) + 1,
    )
    layout = ParallelLayout(
        data=int(row["data"]),
        tensor=1,
        pipeline=1,
        zero=int(row["zero"]),
        checkpointing=Checkpointing(row["checkpointing"]),
        micro_batch=int(row["micro_batch"]),
        loss=Loss(row["loss"]),
        dropout=False,
    )
    return estimate_memory(
        model,
        layout,
        parameters=total_parameters(model),
        seq_len=int(row["seq_len"]),
        precision=state_bytes_of(StatePrecision(row["states"]), OptimizerKind.ADAM),
        attention=Attention.FLASH,
    )


@pytest.mark.parametrize("training", TRAININGS)
def test_an_estimate_is_within_5_percent_of_the_peak_of_a_real_training(training: str) -> None:
    row = TRAININGS[training]
    assert estimate(row).total == pytest.approx(int(row["peak_bytes"]), rel=0.05)
