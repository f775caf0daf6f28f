"""Operations counted from a trace's shapes: by hand, against PyTorch's counter, and beside the formula."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile, record_function

from tests.analyzers.tflops.making import answer
from tests.analyzers.tflops.networks import Decoder, Shape, counted_flops_per_token

SEQ_LEN, BATCH, STEPS = 96, 2, 2
SHAPE = Shape(layers=3)


def trace_of(path: Path, recompute: bool = False) -> Path:
    """Some steps of a small decoder under the real profiler, with shapes."""
    torch.manual_seed(0)
    network = Decoder(SHAPE)
    with profile(record_shapes=True) as profiler:
        for step in range(STEPS):
            with record_function(f"ProfilerStep#{step}"):
                network(torch.randint(256, (BATCH, SEQ_LEN)), recompute).logsumexp(-1).sum().backward()
    profiler.export_chrome_trace(str(path))
    return path


def event(name: str, *shapes: tuple[int, ...]) -> dict[str, Any]:
    kind = "user_annotation" if name.startswith("ProfilerStep") else "cpu_op"
    return {"ph": "X", "cat": kind, "name": name, "ts": 1, "dur": 1, "args": {"Input Dims": [list(s) for s in shapes]}}


def test_a_trace_alone_tells_its_operations(tmp_path: Path) -> None:
    traced, recomputed = (trace_of(tmp_path / f"rank{kind:d}.pt.trace.json", kind) for kind in (False, True))
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
