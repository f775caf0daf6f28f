"""MFU of a run: what the hooks see of a model, what is inferred of it, and the arithmetic of the result."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.profiler import profile, record_function

from perfscope import wire
from perfscope.analyzers import mfu
from perfscope.analyzers.steps import analyze as analyze_steps
from perfscope.analyzers.tflops.model_inference import infer_dimensions
from perfscope.analyzers.tflops.operation_counts import TracedOperations
from perfscope.analyzers.tflops.per_token import megatron_whole_attention
from perfscope.analyzers.tflops.repeats import Repeats
from perfscope.errors import MissingInput
from perfscope.hooks.facts.model import describe_model
from perfscope.models.parameter_counts import total_parameters
from perfscope.models.transformer import Transformer
from perfscope.sources.runs.model_record import read_model_record
from perfscope.sources.runs.run import read_run
from perfscope.tables.model import Model
from perfscope.wire.model import IN_USE, ModelRecord, PrecisionRecord
from perfscope.wire.records import RankRecord, StepRecord, to_line
from perfscope.workloads.gpt import Gpt, GptConfig
from tests.analyzers.tflops.making import answer
from tests.analyzers.tflops.networks import Decoder, Shape, counted_flops_per_token

GPT = Shape(layers=3)
UNTIED = Shape(layers=3, ffn=224, gated=True, vocabulary=384, tied=False)
#: 4 heads of 32 on a hidden size of 64, and 2 of keys and values.
WIDE = Shape(layers=3, head_dim=32, kv_heads=2, vocabulary=384)


def read(tmp_path: Path, record: ModelRecord, rank: int = 0) -> Model:
    folder = tmp_path / "ranks" / wire.rank_folder(rank)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / wire.MODEL_FILE).write_bytes(to_line(record))
    model = read_model_record(folder, rank, [])
    assert model is not None
    return model


def inferred(tmp_path: Path, module: nn.Module) -> Transformer:
    model = read(tmp_path, describe_model(module))
    return infer_dimensions(model.weights, "module", model.stated).model


@pytest.mark.parametrize("shape", [GPT, UNTIED, WIDE], ids=["tied", "untied and gated", "wide, with grouped queries"])
def test_the_shapes_alone_give_the_operations_that_pytorch_counts(tmp_path: Path, shape: Shape) -> None:
    model = inferred(tmp_path, Decoder(shape))
    assert megatron_whole_attention(model, 96) == counted_flops_per_token(shape, 96)
    assert total_parameters(model) == sum(parameter.numel() for parameter in Decoder(shape).parameters())
    assert (model.layers, model.hidden, model.vocabulary) == (3, shape.hidden, shape.vocabulary)
    assert (model.query_dim, model.kv_heads * model.head_dim) == (4 * shape.head_dim, shape.kv_heads * shape.head_dim)


@pytest.mark.parametrize("shared", [0, 96])
def test_of_experts_those_are_counted_that_a_token_uses(tmp_path: Path, shared: int) -> None:
    shape = Shape(layers=3, experts=8, top_k=2, shared_ffn=shared, ffn=128)
    model = inferred(tmp_path, Decoder(shape))
    routers = 6 * shape.layers * shape.hidden * shape.experts  # PyTorch counts them, Megatron-LM does not
    assert megatron_whole_attention(model, 96) + routers == counted_flops_per_token(shape, 96)
    assert total_parameters(model) == sum(parameter.numel() for parameter in Decoder(shape).parameters())


def without_top_k(module: nn.Module) -> nn.Module:
    for part in module.modules():
        vars(part).pop("top_k", None)
    return module


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Sequential(nn.Linear(16, 16)), "no embedding table"),
        (nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64)), "not those of a transformer"),
        (without_top_k(Decoder(Shape(experts=4, top_k=2))), "how many of them a token uses"),
    ],
)
def test_what_is_no_countable_transformer_is_said(tmp_path: Path, module: nn.Module, said: str) -> None:
    with pytest.raises(MissingInput, match=said):
        inferred(tmp_path, module)


def run_folder(tmp_path: Path, device: str | None, dtype: str = "bf16", **model: Any) -> Path:
    """A run of 2 ranks and 8 steps of 100 ms, one of 200 ms; a rank takes 4 samples of 128 tokens a step."""
    run = tmp_path / "RUN"
    run.mkdir()
    (run / wire.RUN_FILE).write_text(json.dumps({"command": ["python", "train.py"]}))
    record = describe_model(Gpt(GptConfig(layers=3, hidden=64, vocabulary=512, seq_len=128)))
    for rank in range(2):
        folder = run / wire.RANKS_FOLDER / wire.rank_folder(rank)
        folder.mkdir(parents=True)
        fact = RankRecord(
            rank=rank,
            world_size=2,
            host="node",
            pid=1,
            wall_ns=0,
            monotonic_ns=0,
            python="3.11",
            device_type="cuda" if device else "cpu",
            device_name=device,
        )
        (folder / wire.RANK_FILE).write_bytes(to_line(fact))
        lines = [
            StepRecord(
                step=step,
                end_ns=step * 10**8,
                source="optimizer",
                wall_ns=10**8 if step != 4 else 2 * 10**8,
                samples=4,
                tokens=4 * 128,
            )
            for step in range(1, 9)
        ]
        (folder / wire.STEPS_FILE).write_bytes(b"".join(to_line(line) for line in lines))
        signs = {"precision": PrecisionRecord(engine=dtype, float32="fp32"), **model}
        described = ModelRecord(
            record.parameters, record.trainable, record.weights, record.module, dtype=dtype, **signs
        )
        (folder / wire.MODEL_FILE).write_bytes(to_line(described))
    return run


def test_the_mfu_of_a_run_is_its_operations_over_the_peak(tmp_path: Path) -> None:
    result: Any = mfu.analyze(read_run(run_folder(tmp_path, "NVIDIA H200"))).data()
    layers, hidden, vocabulary, seq_len = 3, 64, 512, 128
    per_token = 6 * (12 * layers * hidden**2 + vocabulary * hidden) + 6 * layers * hidden * seq_len
    step_s = 0.7 / 6  # steps 3 to 8
    tflops = per_token * 2 * 4 * 128 / step_s / 2 / 1e12
    assert result["convention"] == "megatron_core"
    assert result["tflops_per_gpu"] == pytest.approx(tflops)
    assert result["mfu"] == pytest.approx(tflops / 989.4)
    assert (result["gpu"], result["dtype"], result["peak_tflops"]) == ("h200-sxm", "bf16", 989.4)
    assert [each["name"] for each in result["conventions"]][:2] == ["bigscience", "6n"]
    assert [each["step"] for each in result["steps"]] == [3, 4, 5, 6, 7, 8]
    assert result["steps"][1]["mfu"] == pytest.approx(result["mfu"] * step_s / 0.2)


@pytest.mark.parametrize(
    ("devices", "count"),
    [
        ((("GPU-a", "GPU-b"), ("GPU-c", "GPU-d")), 4),
        ((("GPU-a",), ("GPU-a",)), 1),
        ((("GPU-a", "GPU-b"),), 4),  # the other rank did not report
    ],
    ids=["two each", "one shared", "two each, one rank unknown"],
)
def test_a_gpu_is_a_device_and_not_a_rank(tmp_path: Path, devices: tuple[tuple[str, ...], ...], count: int) -> None:
    run = read_run(run_folder(tmp_path, "NVIDIA H200"))
    one_each = mfu.analyze(run).headline.tflops_per_gpu
    assert one_each is not None
    ranks = (replace(rank, device_uuids=uuids) for rank, uuids in zip(run.ranks, devices, strict=False))
    placed = mfu.analyze(replace(run, ranks=tuple(ranks)))
    assert placed.headline.tflops_per_gpu == pytest.approx(one_each * 2 / count)


def test_the_steps_with_an_mfu_are_those_of_the_step_time(tmp_path: Path) -> None:
    """A step that a save stalled is in neither, also on the rank that did not save."""
    run = run_folder(tmp_path, "NVIDIA H200")
    file = run / wire.RANKS_FOLDER / wire.rank_folder(1) / wire.STEPS_FILE
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[4] |= {"save_ns": 5 * 10**7}
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    result: Any = mfu.analyze(read_run(run)).data()
    assert [each["step"] for each in result["steps"]] == [3, 4, 6, 7, 8]
    assert analyze_steps(read_run(run)).ranks[0].undisturbed == 5


def test_recomputation_that_was_seen_is_counted(tmp_path: Path) -> None:
    result = mfu.analyze(read_run(run_folder(tmp_path, "NVIDIA H200", checkpointing="full")))
    found = {each.name: each for each in result.conventions}
    assert found["bigscience"].hfu == pytest.approx((found["6n"].mfu or 0) * 4 / 3)
    assert found["megatron_core"].mfu is not None


def traced(repeats: Repeats) -> TracedOperations:
    """The operations of a trace that states no shapes."""
    return TracedOperations(0, 1, None, None, {}, repeats, 0)


def test_a_measured_share_goes_before_what_the_model_says(tmp_path: Path) -> None:
    run = read_run(run_folder(tmp_path, "NVIDIA H200", checkpointing="full"))
    result = mfu.analyze(run, [traced(Repeats(0.5, weights=0.6, attention=0.25))])
    found = {each.name: each for each in result.conventions}
    layers, hidden, vocabulary, seq_len = 3, 64, 512, 128
    paper = 72 * layers * hidden**2 + 16 * layers * seq_len * hidden + 6 * hidden * vocabulary
    assert found["megatron_paper"].flops_per_token == paper
    assert (found["megatron_core"].hfu, result.recomputed_share) == (None, 0.5)
    assert any("60% ran again, and of attention 25%" in note for note in result.notes)
    assert any("configured with `full`" in note for note in result.notes)


@pytest.mark.parametrize(
    ("repeats", "seen", "said"),
    [
        (Repeats(None, reason="graphs do not show it", is_compiled=True), "full", "is unknown, and none is counted"),
        (Repeats(None, reason="the trace shows no product"), IN_USE, "No trace shows what is recomputed"),
        (None, IN_USE, "No trace shows what is recomputed"),
    ],
    ids=["compiled", "no operators", "no trace"],
)
def test_what_is_recomputed_may_be_unknown(tmp_path: Path, repeats: Repeats | None, seen: str, said: str) -> None:
    run = read_run(run_folder(tmp_path, "NVIDIA H200", checkpointing=seen))
    result = mfu.analyze(run, [] if repeats is None else [traced(repeats)])
    data: Any = result.data()
    assert (data["checkpointing"], data["recomputed_share"]) == (None, None)
    assert any(said in note for note in data["notes"])
    assert all(each["hfu"] is None for each in data["conventions"])


@pytest.mark.parametrize(
    ("device", "dtype", "said"),
    [
        ("NVIDIA H900", "bf16", "NVIDIA H900"),
        ("Tesla V100-SXM2-32GB", "bf16", "no peak in bf16"),
        (None, "fp32", "no GPU"),
    ],
)
def test_without_a_peak_there_is_no_mfu_and_a_reason(tmp_path: Path, device: str | None, dtype: str, said: str) -> None:
    result: Any = mfu.analyze(read_run(run_folder(tmp_path, device, dtype))).data()
    assert result["mfu"] is None
    assert result["tflops_per_gpu"] > 0
    assert any(said in note for note in result["notes"])


@pytest.mark.parametrize("axis", ["dp", "cp", "unknown"])
def test_of_ranks_that_have_the_same_part_of_the_model_one_is_counted(tmp_path: Path, axis: str) -> None:
    run = run_folder(tmp_path, "NVIDIA H200")
    whole = mfu.analyze(read_run(run)).parameters
    ranks = run / wire.RANKS_FOLDER
    for rank in range(4):
        folder = ranks / wire.rank_folder(rank)
        if rank > 1:
            shutil.copytree(ranks / wire.rank_folder(0), folder)
            fact = json.loads((folder / wire.RANK_FILE).read_bytes())
            (folder / wire.RANK_FILE).write_text(json.dumps(fact | {"rank": rank, "pid": rank}) + "\n")
        coordinates = {"pp": rank // 2, "tp": 0, axis: rank % 2}
        (folder / wire.PARALLEL_FILE).write_text(json.dumps({"coordinates": coordinates}))
    tables = (512 + 128) * 64  # of the same name on both stages: the second has a copy
    assert mfu.analyze(read_run(run)).parameters == 2 * whole - tables


def describe_again(run: Path, changes: dict[int, dict[str, Any]]) -> None:
    """Change what each rank recorded of its model."""
    for rank, changed in changes.items():
        path = run / wire.RANKS_FOLDER / wire.rank_folder(rank) / wire.MODEL_FILE
        path.write_text(json.dumps(json.loads(path.read_bytes()) | changed))


def test_experts_that_megatron_spreads_over_ranks_are_whole_in_its_arguments(tmp_path: Path) -> None:
    run = run_folder(tmp_path, "NVIDIA H200")
    arguments = {
        "num_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "padded_vocab_size": 512, "ffn_hidden_size": 128,
        "num_experts": 8, "moe_router_topk": 2, "add_bias_linear": False, "normalization": "RMSNorm",
        "untie_embeddings_and_output_weights": True, "position_embedding_type": "rope",
    }  # fmt: skip
    shapes = {
        "embedding.word_embeddings.weight": ("Embedding", [512, 64], 1),
        "decoder.layers.*.self_attention.linear_qkv.weight": ("Linear", [192, 64], 3),
        "decoder.layers.*.self_attention.linear_proj.weight": ("Linear", [64, 64], 3),
        "decoder.layers.*.mlp.router.weight": ("TopKRouter", [8, 64], 3),
        "decoder.layers.*.mlp.experts.local_experts.*.linear_fc1.weight": ("Linear", [128, 64], 12),
        "decoder.layers.*.mlp.experts.local_experts.*.linear_fc2.weight": ("Linear", [64, 128], 12),
        "output_layer.weight": ("Linear", [512, 64], 1),
    }
    weights = [
        {"name": name, "owner": owner, "shape": shape, "dtype": "bf16", "trainable": True, "count": count}
        for name, (owner, shape, count) in shapes.items()
    ]
    stored = sum(int(np.prod(shape)) * count for _, shape, count in shapes.values())
    recorded = {"config": arguments, "weights": weights, "parameters": stored, "trainable": stored}
    describe_again(run, dict.fromkeys(range(2), recorded))
    result = mfu.analyze(read_run(run))
    assert result.notes[0] == "Dimensions: the config of Gpt."
    # The other four experts of each layer are on other ranks.
    norms = 3 * 2 * 64 + 64
    assert result.parameters == stored + 3 * 4 * 2 * 128 * 64 + norms
    products = 3 * (4 * 64 * 64 + 2 * 2 * 128 * 64) + 512 * 64
    assert result.headline.flops_per_token == 6 * products + 6 * 3 * 64 * 128
    # Arguments of another model are not believed.
    describe_again(run, {rank: {"config": arguments | {"hidden_size": 96}} for rank in range(2)})
    assert "the shapes of Gpt's parameters" in mfu.analyze(read_run(run)).notes[0]


def test_a_run_without_a_model_says_so(tmp_path: Path) -> None:
    run = run_folder(tmp_path, "NVIDIA H200")
    for path in run.rglob(wire.MODEL_FILE):
        path.unlink()
    with pytest.raises(MissingInput, match="no rank recorded which model"):
        mfu.analyze(read_run(run))


def test_a_model_file_that_is_cut_is_damage(tmp_path: Path) -> None:
    run = run_folder(tmp_path, "NVIDIA H200")
    path = run / wire.RANKS_FOLDER / wire.rank_folder(0) / wire.MODEL_FILE
    path.write_bytes(path.read_bytes()[:50])
    assert any(wire.MODEL_FILE in line for line in read_run(run).damage)


def test_a_run_is_held_against_the_shapes_of_its_trace(tmp_path: Path) -> None:
    """The run's 2 ranks train 4 sequences of 128 tokens each; rank 0's trace has one such step."""
    run = run_folder(tmp_path, "NVIDIA H200", checkpointing="selective")
    (run / wire.TRACES_FOLDER).mkdir()
    torch.manual_seed(0)
    network = Gpt(GptConfig(layers=3, hidden=64, vocabulary=512, seq_len=128))
    with profile(record_shapes=True) as profiler, record_function("ProfilerStep#4"):
        network(torch.randint(512, (4, 129))).logsumexp(-1).sum().backward()
    profiler.export_chrome_trace(str(run / wire.TRACES_FOLDER / "node_1.1.pt.trace.json"))
    result = answer("analyze", run, "--only", "mfu")["results"]["mfu"]
    layers, hidden, vocabulary, seq_len = 3, 64, 512, 128
    per_token = 6 * (12 * layers * hidden**2 + vocabulary * hidden) + 12 * layers * hidden * seq_len
    assert result["counted"]["flops_per_token"] == per_token
    assert result["counted"]["difference"] == pytest.approx(0)
    assert result["counted"]["explanation"] == []
    # What the trace shows goes before what the model says.
    assert result["checkpointing"] == "none"
    assert any("The model is configured with `selective`" in note for note in result["notes"])
    # The same trace of two devices of one process: as many operations a token.
    for folder in (run / wire.RANKS_FOLDER).iterdir():
        record = json.loads((folder / wire.RANK_FILE).read_bytes())
        record["device_uuids"] = [f"GPU-{record['rank']}-{device}" for device in range(2)]
        (folder / wire.RANK_FILE).write_text(json.dumps(record) + "\n")
    on_two = answer("analyze", run, "--only", "mfu")["results"]["mfu"]
    assert on_two["counted"]["flops_per_token"] == per_token
    assert on_two["tflops_per_gpu"] == pytest.approx(result["tflops_per_gpu"] / 2)
