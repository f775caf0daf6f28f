"""Operations counted from a trace's shapes: by hand, against PyTorch's counter, and beside the formula."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import profile, record_function

from tests.analyzers.tflops.making import answer
from tests.analyzers.tflops.networks import Decoder, Shape, counted_flops_per_token

pytestmark = pytest.mark.slow

SEQ_LEN, BATCH, STEPS = 96, 2, 2
SHAPE = Shape(layers=3)


def trace_of(path: Path, recompute: bool = False, steps: int = STEPS, batch: int = BATCH) -> Path:
    """Some steps of a small decoder under the real profiler, with shapes."""
    torch.manual_seed(0)
    network = Decoder(SHAPE)
    with profile(record_shapes=True) as profiler:
        for step in range(steps):
            with record_function(f"ProfilerStep#{step}"):
                network(torch.randint(256, (batch, SEQ_LEN)), recompute).logsumexp(-1).sum().backward()
    profiler.export_chrome_trace(str(path))
    return path


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps without recomputation."""
    return trace_of(tmp_path_factory.mktemp("trace") / "rank0.pt.trace.json")


@pytest.fixture(scope="module")
def recomputed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps in which every layer is recomputed."""
    return trace_of(tmp_path_factory.mktemp("trace") / "rank0.pt.trace.json", recompute=True)


def event(name: str, *shapes: tuple[int, ...]) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "user_annotation" if name.startswith("ProfilerStep") else "cpu_op",
        "name": name,
        "ts": 1,
        "dur": 1,
        "args": {"Input Dims": [list(s) for s in shapes]},
    }


F, B = "aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_flash_attention_backward"
NODE = "autograd::engine::evaluate_function: ScaledDotProductFlashAttentionBackward0"


@pytest.mark.parametrize(
    ("order", "recomputed"),
    [
        ("f f b b", "none"),
        ("f f rb rb", "full"),  # each of two layers again, inside the node of its backward pass
        ("f f b b f f b b", "none"),  # two micro-batches
        ("f f rb b", "selective"),
        ("e e f f b b", "none"),  # an evaluation before the step
        ("f f rb rb e e", "full"),  # or after it
        ("f f e", None),  # nothing ran backward
    ],
)
def test_layers_that_run_forward_again_inside_their_backward_passes_were_recomputed(
    tmp_path: Path, order: str, recomputed: str | None
) -> None:
    """Calls in turn: forward, forward without gradients, again and backward; those in one node are one word."""
    query, calls = (2, 4, 8, 16), []
    for start, word in enumerate(order.split()):
        calls += [event(NODE) | {"ts": 10 * start, "dur": 9, "args": {}}] if "b" in word else []
        for place, letter in enumerate(word):
            call = event(B, *(query,) * 4) if letter == "b" else event(F, *(query,) * 3)
            call["args"] |= {"Fwd thread id": 0, "Sequence number": start} if letter in "fr" else {}
            calls.append(call | {"ts": 10 * start + 2 * place + 1})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [event("ProfilerStep#4"), *reversed(calls)]}))
    (rank,) = answer("analyze", path, "--only", "operations")["results"]["operations"]["ranks"]
    assert rank["recomputed"] == recomputed
    assert (rank["recomputed_reason"] is None) == (recomputed is not None)


def test_a_trace_alone_tells_its_operations(traced: Path, recomputed: Path) -> None:
    (plain,) = answer("analyze", traced, "--only", "operations")["results"]["operations"]["ranks"]
    (again,) = answer("analyze", recomputed, "--only", "operations")["results"]["operations"]["ranks"]
    per_token = counted_flops_per_token(SHAPE, SEQ_LEN)
    assert plain["flops_per_step"] == per_token * BATCH * SEQ_LEN
    assert sum(each["flops_per_step"] for each in plain["operators"]) == plain["flops_per_step"]
    assert (plain["steps"], plain["recomputed"], again["recomputed"]) == (STEPS, "none", "full")
    assert again["flops_per_step"] == counted_flops_per_token(SHAPE, SEQ_LEN, recompute=True) * BATCH * SEQ_LEN
    assert (plain["recomputed_share"], again["recomputed_attention"]) == (0, 1)
    assert 0.9 < again["recomputed_share"] < 1


def test_attention_without_a_kernel_is_not_counted_twice(tmp_path: Path) -> None:
    """Where PyTorch writes attention out as products, its name stands around them."""
    operand = (2, 4, 8, 16)
    calls = [
        event("aten::_scaled_dot_product_attention_math", operand, operand, operand),
        event("aten::bmm", (8, 8, 16), (8, 16, 8)),
        event("aten::bmm", (8, 8, 8), (8, 8, 16)),
    ]
    path = tmp_path / "rank0.trace.json"
    path.write_text(json.dumps({"traceEvents": [event("ProfilerStep#4"), *calls]}))
    (rank,) = answer("analyze", path, "--only", "operations")["results"]["operations"]["ranks"]
    assert rank["flops_per_step"] == 2 * 2 * 8 * 8 * 8 * 16
