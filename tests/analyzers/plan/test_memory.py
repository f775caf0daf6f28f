"""Estimates of memory, against what papers count, what frameworks log and what a reader can add up."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks import kept_run
from benchmarks.real_runs import kept_runs
from perfscope.analyzers.plan import (
    Attention,
    Duration,
    Loss,
    MemoryEstimate,
    OptimizerKind,
    ParallelLayout,
    PipelineEnd,
    StatePrecision,
    activation_bytes,
    estimate_ends,
    estimate_memory,
    solve_duration,
    state_bytes_of,
)
from perfscope.models.conventions import Checkpointing
from perfscope.models.parameter_counts import total_parameters
from perfscope.models.transformer import Transformer
from perfscope.renderers.markdown import render_sections
from perfscope.sources.models.presets import find_preset
from tests.analyzers.plan.published import (
    compare_probabilities,
    errors,
    find_failures,
    fit_probabilities,
    read_rows,
    sections,
    torchtitan_errors,
)
from tests.conftest import ROOT

#: Activations of 2 bytes, which stay until the backward pass.
HALF = state_bytes_of(StatePrecision.MIXED, OptimizerKind.ADAM)


def preset(name: str) -> Transformer:
    known = find_preset(name)
    assert known is not None
    return known.transformer


def layout(**degrees: Any) -> ParallelLayout:
    usual = {"data": 1, "tensor": 1, "pipeline": 1, "zero": 0, "checkpointing": Checkpointing.NONE, "micro_batch": 1}
    return ParallelLayout(**{**usual, **degrees})


@pytest.mark.parametrize("attention", list(Attention))
def test_a_gpt_layer_keeps_what_the_paper_counts(attention: Attention) -> None:
    """Korthikanti et al. 2022, equations 1 to 4: s b h (34 + 5 a s / h), and its forms in parallel."""
    model = preset("megatron-22b")
    seq_len, batch, tensor = 2048, 4, 8
    sbh = seq_len * batch * model.hidden
    scores = 5 * model.heads * seq_len / model.hidden if attention is Attention.EAGER else 0.0
    # A pipeline of one layer a stage with one micro-batch leaves a single layer and no output layer.
    single = {"pipeline": model.layers, "micro_batches": 1, "micro_batch": batch}
    found = {
        "alone": activation_bytes(model, seq_len, HALF, attention, layout(**single)),
        "tensor": activation_bytes(model, seq_len, HALF, attention, layout(**single, tensor=tensor)),
        "sequence": activation_bytes(
            model, seq_len, HALF, attention, layout(**single, tensor=tensor, sequence_parallel=True)
        ),
        "selective": activation_bytes(
            model, seq_len, HALF, attention, layout(**single, tensor=tensor, checkpointing=Checkpointing.SELECTIVE)
        ),
    }
    assert found["alone"] == pytest.approx(sbh * (34 + scores))
    assert found["tensor"] == pytest.approx(sbh * (10 + (24 + scores) / tensor))
    assert found["sequence"] == pytest.approx(sbh * (34 + scores) / tensor)
    assert found["selective"] == pytest.approx(sbh * (10 + 24 / tensor))


def test_megatron_cores_own_estimate_is_reproduced() -> None:
    """Its log of 16 layers, tensor and pipeline parallel 2, says 4019.66 MB of states and 88.0 MB a layer."""
    model = Transformer(
        name="logged",
        layers=16,
        hidden=2048,
        heads=16,
        kv_heads=16,
        head_dim=128,
        ffn=8192,
        mlp_matrices=2,
        vocabulary=32000,
        tied=True,
    )
    spread = layout(tensor=2, pipeline=2, micro_batch=2, micro_batches=16)
    memory = estimate_memory(
        model,
        spread,
        parameters=total_parameters(model),
        seq_len=1024,
        precision=state_bytes_of(StatePrecision.MEGATRON, OptimizerKind.ADAM),
        attention=Attention.FLASH,
    )
    mebi = 2**20
    assert (memory.weights + memory.gradients + memory.optimizer) / mebi == pytest.approx(4019.66, rel=0.001)
    assert memory.activations / (8 * 2) / mebi == pytest.approx(88.0, abs=0.05)  # 8 layers, 2 micro-batches in flight


def test_interleaving_holds_a_little_more_in_flight() -> None:
    """Korthikanti et al. 2022, section 4.2.3: 1 + (p - 1) / (p v) times as much."""
    model = preset("gpt3-13b")
    plain = activation_bytes(model, 1024, HALF, Attention.FLASH, layout(pipeline=4))
    interleaved = activation_bytes(model, 1024, HALF, Attention.FLASH, layout(pipeline=4, virtual=5))
    assert interleaved / plain == pytest.approx(1 + 3 / (4 * 5))
    few = activation_bytes(model, 1024, HALF, Attention.FLASH, layout(pipeline=4, virtual=5, micro_batches=2))
    assert few / plain == pytest.approx(2 / 4)


def test_grouped_heads_and_experts_are_counted_as_they_are() -> None:
    """An expert has its copy of a token. TransformerEngine keeps norms' outputs and the products' inputs in fp8."""
    single = {"pipeline": 32, "micro_batches": 1}
    llama, mixtral = preset("llama3-8b"), preset("mixtral-8x7b")
    rest = 4 * 4096 + 2 * 4096 + 2 * 1024
    assert activation_bytes(llama, 1, HALF, Attention.FLASH, layout(**single)) == 2 * (rest + 4 * 14336)
    visited = activation_bytes(mixtral, 1, HALF, Attention.FLASH, layout(**single))
    assert visited == 2 * (rest + 2 * 4096 + 2 * 4 * 14336)
    fp8 = state_bytes_of(StatePrecision.MIXED, OptimizerKind.ADAM, in_fp8=True)
    fused = layout(**single, loss=Loss.SHARDED)
    assert activation_bytes(llama, 1, HALF, Attention.FLASH, fused) == 2 * (rest + 3 * 14336)
    assert activation_bytes(llama, 1, fp8, Attention.FLASH, fused) == 2 * rest - 4096 + 5 * 14336


def test_published_layouts_that_ran_are_said_to_fit() -> None:
    """What Megatron-Bridge's recipes offload or recompute in parts is not said to fit (reports/predictions.md)."""
    least = {"vtrain": 1, "llm-foundry": 0.93, "dgxc": 0.97, "dgxc-experts": 1}
    for source, found in fit_probabilities().items():
        assert sum(one >= 0.5 for one in found) / len(found) >= least.get(source, 0.45), source


with (ROOT / "fixtures" / "memory" / "peaks.csv").open() as file:
    TRAININGS = {row["training"]: row for row in csv.DictReader(file)}


def read_model(row: dict[str, str]) -> Transformer:
    if row["model"]:
        return preset(row["model"])
    hidden = int(row["hidden"])
    return Transformer(
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


def estimate(row: dict[str, str]) -> MemoryEstimate:
    model = read_model(row)
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


NANOTRON = read_rows()
TESTED = [row for row in NANOTRON if row.is_test]


def test_published_memory_is_estimated_on_rows_that_fitted_nothing() -> None:
    assert (len(NANOTRON), sum(row.measured is not None for row in NANOTRON)) == (3287, 1758)
    without_tensor = [row for row in TESTED if row.layout.tensor == 1]
    for found, worst in ((errors(TESTED), 0.069), (errors(without_tensor), 0.046), (torchtitan_errors(), 0.07)):
        assert median(map(abs, found)) < worst
    startable = [row for row in TESTED if row.can_start]
    *_, precision, recall = find_failures(startable, 0.5)
    assert precision > 0.96
    assert recall > 0.90
    for low, high, _, _, share in compare_probabilities(startable):
        assert low - 0.06 <= share <= high + 0.06
    report = (ROOT / "reports" / "predictions.md").read_text()
    assert render_sections(sections(TESTED), 2) in report


def test_stages_of_nanotron_have_equal_costs() -> None:
    """Measured: from one sequence to two 8.1 GiB more, 11 layers with two micro-batches; equal stages are 8 layers."""
    wanted = (16, 64, 1, 2, 1)
    rows = {
        row.setup.micro_batch: row
        for row in NANOTRON
        if (row.setup.model.layers, *(getattr(row.setup, axis) for axis in ("data", "tensor", "pipeline", "zero")))
        == wanted
    }
    assert [rows[1].stage(end)[:3] for end in PipelineEnd] == [(0, 11, 2), (1, 5, 1)]
    first, second = (rows[size].estimates()[0].total for size in (1, 2))
    assert rows[1].measured
    assert rows[2].measured
    assert second - first == pytest.approx(rows[2].measured - rows[1].measured, rel=0.03)


def most_memory(run: Path, rank: int) -> tuple[int, int]:
    """The most that a rank of a recorded run allocated and reserved."""
    lines = (run / "ranks" / f"{rank:05}" / "steps.jsonl").read_text().splitlines()
    steps = [step for step in map(json.loads, lines) if "memory_peak_bytes" in step]
    return max(step["memory_peak_bytes"] for step in steps), max(step["memory_reserved_bytes"] for step in steps)


def test_allocators_of_real_runs_reserve_more_than_they_allocate() -> None:
    """The estimate's 9 % is inside of what torchtitan, Megatron, nanoGPT and the Trainer reserved."""
    runs = [run for run in kept_runs() if run.parent.name != "pairs"]  # which have no reserved memory
    ratios = [reserved / peak for peak, reserved in (most_memory(run, 0) for run in runs)]
    assert 1.01 < min(ratios) < 1.09 < median(ratios) < max(ratios) < 1.39


@pytest.mark.parametrize(("name", "tensor", "pipeline", "batches"), [("pp4", 1, 4, 16), ("tp2_pp2", 2, 2, 8)])
def test_both_ends_of_megatrons_pipelines_are_estimated(name: str, tensor: int, pipeline: int, batches: int) -> None:
    gpt = Transformer("gpt", 16, 2048, 16, 16, 128, 8192, 2, vocabulary=32000, tied=True, positions=1024)
    spread = layout(tensor=tensor, pipeline=pipeline, micro_batch=4, micro_batches=batches, loss=Loss.SHARDED)
    ends = estimate_ends(
        gpt,
        spread,
        parameters=total_parameters(gpt),
        seq_len=1024,
        precision=state_bytes_of(StatePrecision.MEGATRON, OptimizerKind.ADAM),
        attention=Attention.EAGER,
    )
    run = kept_run(ROOT / "fixtures" / "real_runs" / f"megatron_{name}")
    assert [end.total for end in ends] == pytest.approx([most_memory(run, rank)[0] for rank in (0, 3)], rel=0.035)


SOLVED = {
    "time": solve_duration(10**9, 10**12, gpus=4, tflops_per_gpu=50.0, seconds=None),
    "tflops": solve_duration(10**9, 10**12, gpus=4, tflops_per_gpu=None, seconds=5_000_000.0),
    "tokens": solve_duration(10**9, None, gpus=4, tflops_per_gpu=50.0, seconds=5_000_000.0),
}


@pytest.mark.parametrize(("missing", "duration"), SOLVED.items())
def test_any_of_the_three_follows_from_the_others(missing: str, duration: Duration) -> None:
    """10**21 operations by 2 * 10**14 a second are 5,000,000 seconds."""
    assert duration.solved_for == missing
    assert duration.tokens == 10**12
    assert duration.tflops_per_gpu == pytest.approx(50.0)
    assert duration.seconds == pytest.approx(5_000_000.0)
    assert duration.hours == pytest.approx(5_000_000 / 3600)
    assert duration.days == pytest.approx(5_000_000 / 86400)
    assert duration.gpu_hours == pytest.approx(4 * 5_000_000 / 3600)
