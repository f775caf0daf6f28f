"""torch's own ways to spread a model over ranks: what went into a step, each rank's place, and whose parameters."""

from __future__ import annotations

import gzip
import json
from importlib import import_module
from pathlib import Path

import pytest

from perfscope.analyzers.tflops.model_inference import infer_dimensions
from perfscope.analyzers.tflops.trained_run import find_trained_model
from perfscope.hooks.facts.model import describe_model
from perfscope.models.parameter_counts import total_parameters
from perfscope.sources.models.config_fields import read_stated
from perfscope.sources.runs.run import read_run
from perfscope.tables.model import Weight
from perfscope.workloads.gpt import GptConfig
from tests.conftest import analysis, step_lines
from tests.hooks.frameworks.running import field, layout, parameters, rank_file, torchrun
from tests.scripts.gpt_pipeline import Part

pytestmark = pytest.mark.slow

#: The model of scripts/parallel.py: an embedding, two blocks and an output layer.
WHOLE = 64 * 16 + 2 * (16 * 64 + 64 + 64 * 16 + 16) + 16 * 64 + 64


def opened(trace: Path) -> bytes:
    """A trace, which may not be compressed yet."""
    return gzip.decompress(trace.read_bytes()) if trace.suffix == ".gz" else trace.read_bytes()


@pytest.mark.parametrize("how", ["zero", "fsdp1", "fsdp1_original", "fsdp2"])
def test_replicas_each_count_the_whole_model_and_their_own_samples(how: str, tmp_path: Path) -> None:
    run = torchrun(2, "parallel.py", how, cwd=tmp_path)
    for rank in (0, 1):
        assert [line["step"] for line in step_lines(run, f"{rank:05d}")] == list(range(1, 11))
        # The evaluation after the last step is no micro-batch, and neither is what checkpointing computes again.
        work = [field(run, rank, name) for name in ("source", "micro_batches", "samples", "tokens")]
        assert work == [{"optimizer"}, {2}, {8}, {128}]
        assert layout(run, rank) == ({"dp": rank, "pp": 0, "tp": 0}, {"dp": 2, "pp": 1, "tp": 1})
    assert parameters(run) == [WHOLE, WHOLE]
    model = rank_file(run, 0, "model.json")
    shapes = {weight["name"]: (weight["owner"], weight["shape"], weight["count"]) for weight in model["weights"]}
    assert model["module"] == "Model"
    assert shapes["embedding.weight"] == ("Embedding", [64, 16], 1)
    assert shapes["blocks.*.up.weight"] == ("Linear", [64, 16], 2)


@pytest.mark.parametrize("how", ["tensors", "experts"])
def test_a_model_that_is_split_over_ranks_has_the_dimensions_of_the_whole_one(how: str, tmp_path: Path) -> None:
    run = torchrun(4, "split_decoder.py", how, cwd=tmp_path)
    counted = parameters(run)
    if how == "tensors":
        places = [({"dp": dp, "pp": 0, "tp": tp}, {"dp": 2, "pp": 1, "tp": 2}) for dp in (0, 1) for tp in (0, 1)]
        assert counted[1] == 3 * (4 * 32 * 64 + 2 * 32 * 96) // 2, "of each layer a rank holds half of the matrices"
    else:
        places = [
            ({"dp": rank, "pp": 0, "tp": 0, "ep": rank % 2}, {"dp": 4, "pp": 1, "tp": 1, "ep": 2}) for rank in range(4)
        ]
        assert analysis(run)["results"]["steps"]["tokens_per_step"] == 4 * 32
        axes = [json.loads(opened(trace))["perfscope"]["axes"] for trace in (run / "traces").glob("*.json*")]
        assert sorted(axes, key=str) == [
            {"dp": [0, 1, 2, 3], "ep": experts} for experts in ([0, 1], [0, 1], [2, 3], [2, 3])
        ]
    assert [layout(run, rank) for rank in range(4)] == places
    split = find_trained_model(read_run(run)).model
    record = describe_model(import_module("tests.scripts.split_decoder").Decoder(how))
    weights = [Weight(each.name, each.owner == "Embedding", each.shape, each.count) for each in record.weights]
    assert split == infer_dimensions(weights, "Decoder", read_stated(record.config)).model
    assert (split.layers, split.query_dim, split.hidden, split.vocabulary) == (3, 64, 32, 128)
    assert total_parameters(split) == record.parameters
    ranks = 2 if how == "tensors" else 1
    assert [sum(counted[rank : rank + ranks]) for rank in range(0, 4, ranks)] == [record.parameters] * (4 // ranks)
    shapes = {
        weight["name"]: (weight["shape"], weight["parts"]) for weight in rank_file(run, 0, "model.json")["weights"]
    }
    assert shapes["layers.*.attention.wq.weight"] == ([64, 32], 2 if how == "tensors" else 1)
    if how == "experts":
        assert shapes["layers.*.moe.experts.w1"] == ([4, 96, 32], 1)
        assert split.experts is not None
        assert (split.experts.routed, split.experts.active, split.experts.layers) == (4, 2, 3)


def test_tensor_parallelism_alone(tmp_path: Path) -> None:
    run = torchrun(2, "parallel.py", "tensor", cwd=tmp_path)
    assert [len(step_lines(run, f"{rank:05d}")) for rank in (0, 1)] == [10, 10]
    assert [layout(run, rank)[0] for rank in (0, 1)] == [{"dp": 0, "pp": 0, "tp": 0}, {"dp": 0, "pp": 0, "tp": 1}]


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("interleaved", 2)])
def test_stages_of_a_pipeline(schedule: str, chunks: int, tmp_path: Path) -> None:
    size = ("--layers", "4", "--hidden", "16", "--heads", "2", "--seq-len", "16", "--vocabulary", "64")
    words = ("--schedule", schedule, "--microbatches", "4", "--micro-batch", "2", "--steps", "8", *size)
    run = torchrun(2, "gpt_pipeline.py", *words, cwd=tmp_path)
    for rank in (0, 1):
        assert [line["step"] for line in step_lines(run, f"{rank:05d}")] == list(range(1, 9))
        assert [field(run, rank, name) for name in ("micro_batches", "samples")] == [{4}, {8}]
        assert layout(run, rank) == ({"dp": 0, "pp": rank, "tp": 0}, {"dp": 1, "pp": 2, "tp": 1})
    assert field(run, 0, "tokens") == {128}
    config = GptConfig(4, 16, 2, 64, seq_len=16)
    parts = [Part(config, stage, 2 * chunks) for stage in range(2 * chunks)]
    assert sum(parameters(run)) == sum(weight.numel() for part in parts for weight in part.parameters())
    found = analysis(run)["results"]
    assert (found["pipeline_steps"]["schedule"], found["pipeline_steps"]["microbatches"]) == (schedule, 4)
    # One of each pipeline's ranks speaks for its samples.
    assert found["steps"]["samples_per_step"] == 8
