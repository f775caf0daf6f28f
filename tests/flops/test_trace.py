"""Operations counted from a trace's shapes: by hand, against PyTorch's counter, and beside the formula."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import profile, record_function

from perfscope.analyzers.counted import flops
from perfscope.tables.products import Product
from tests.flops.making import answer, refused
from tests.flops.networks import Decoder, Shape, counted_flops_per_token

SEQ_LEN, BATCH, STEPS = 96, 2, 2
SHAPE = Shape(layers=3)
WORDS = ("tflops", "--layers", 3, "--hidden", 64, "--heads", 4, "--vocab", 256, "--seq-len", SEQ_LEN, "--gpus", 1)


@pytest.mark.parametrize(
    ("operator", "shapes", "operations"),
    [
        ("mm", ((2, 3), (3, 5)), 2 * 2 * 3 * 5),
        ("addmm", ((5,), (2, 3), (3, 5)), 2 * 2 * 3 * 5),
        ("bmm", ((7, 2, 3), (7, 3, 5)), 7 * 2 * 2 * 3 * 5),
        ("baddbmm", ((7, 2, 5), (7, 2, 3), (7, 3, 5)), 7 * 2 * 2 * 3 * 5),
        ("_scaled_dot_product_flash_attention", ((2, 4, 8, 16),) * 3, 2 * 2 * 4 * 8 * 8 * (16 + 16)),
        ("_scaled_dot_product_flash_attention_backward", ((2, 4, 8, 16),) * 4, 2 * 2 * 2 * 4 * 8 * 8 * 32),
        ("mm", ((), ()), 0),
    ],
)
def test_a_product_has_two_operations_a_multiplication(
    operator: str, shapes: tuple[tuple[int, ...], ...], operations: int
) -> None:
    assert flops(Product(operator, shapes, 1)) == operations


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of a small decoder under the real profiler, with shapes."""
    path = tmp_path_factory.mktemp("trace") / "rank0.pt.trace.json"
    torch.manual_seed(0)
    network = Decoder(SHAPE)
    with profile(record_shapes=True) as profiler:
        for step in range(STEPS):
            with record_function(f"ProfilerStep#{step}"):
                network(torch.randint(256, (BATCH, SEQ_LEN))).logsumexp(-1).sum().backward()
    profiler.export_chrome_trace(str(path))
    return path


def test_a_real_trace_gives_what_pytorchs_counter_and_the_formula_give(traced: Path) -> None:
    found: dict[str, Any] = answer(*WORDS, "--gbs", BATCH, "--time", 1, "--trace", traced)["trace"]
    assert found["steps"] == STEPS
    assert found["flops_per_token"] == counted_flops_per_token(SHAPE, SEQ_LEN)
    assert found["difference"] == 0
    assert found["explanation"] == []


@pytest.mark.parametrize("wrong", [("--gbs", 3), ("--gbs", 2, "--ffn", 320)])
def test_a_difference_is_explained_and_not_hidden(traced: Path, wrong: tuple[object, ...]) -> None:
    found = answer(*WORDS, *(str(word) for word in wrong), "--time", 1, "--trace", traced)["trace"]
    assert abs(found["difference"]) > 0.02
    assert found["explanation"]


def event(name: str, *shapes: tuple[int, ...]) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "ts": 1,
        "dur": 1,
        "args": {"Input Dims": [list(s) for s in shapes]},
    }


def test_layers_that_run_forward_twice_were_recomputed(tmp_path: Path) -> None:
    """Attention is called forward twice and backward once."""
    query = (2, 4, 8, 16)
    attention = "aten::_scaled_dot_product_flash_attention"
    calls = [event(attention, query, query, query)] * 2 + [event(f"{attention}_backward", *(query,) * 4)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [event("ProfilerStep#4"), *calls]}))
    words = (*WORDS, "--gbs", 1, "--time", 1, "--trace", path)
    assert answer(*words)["trace"]["recomputed"] is True
    found = answer(*words, "--checkpointing", "none")["trace"]
    assert any("Recomputation is in the trace" in line for line in found["explanation"])


def test_a_trace_without_shapes_or_steps_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [event("ProfilerStep#4")]}))
    assert "--shapes" in refused(*WORDS, "--gbs", 1, "--time", 1, "--trace", path)
