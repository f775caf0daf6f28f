"""Backward passes whose products are no operators are counted by their forward passes, as Transformer Engine's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from perfscope.analyzers.tflops.operation_counts import count_operations
from perfscope.analyzers.tflops.operator_rules import count_flops
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.products import Product
from perfscope.tables.trace import BASIC_EVENTS, Events
from tests.analyzers.tflops.making import FIXTURES
from tests.analyzers.tflops.outside_torch import Layer, Twin
from tests.analyzers.tflops.test_counted_calls import GEMM, counted, launched
from tests.analyzers.tflops.test_operator_flops import counted_by_pytorch, counted_in_trace
from tests.sources.traces.making import AUTOGRAD, LAYOUTS, MAIN, Event, span, step

HIDDEN, INNER = 8, 24
FORWARD = {"_Linear": 2 * 30 * HIDDEN * HIDDEN, "_LayerNormMLP": 2 * 30 * 2 * HIDDEN * INNER}
INPUTS = [[64, 32], [4, 16, 32], []]
LINEAR = 2 * 4 * 16 * 32 * 64


def train(layer: torch.nn.Module, *, is_checkpointed: bool = False) -> Callable[[], None]:
    def run() -> None:
        states = torch.randn(2, 15, HIDDEN, requires_grad=True)
        for _ in range(2):
            with set_checkpoint_early_stop(False):  # PyTorch stops as soon as the backward pass has all it wants
                states = checkpoint(layer, states, use_reentrant=False) if is_checkpointed else layer(states)
        states.sum().backward()

    return run


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_functions_have_as_many_operations_as_pytorch_counts_of_their_twins(
    is_checkpointed: bool, tmp_path: Path
) -> None:
    run = train(Layer(HIDDEN, INNER), is_checkpointed=is_checkpointed)
    operations = counted_in_trace(run, tmp_path / "rank0.json")
    assert operations.flops_per_step == counted_by_pytorch(train(Twin(HIDDEN, INNER), is_checkpointed=is_checkpointed))
    passes = 2 if is_checkpointed else 1
    expected = {name: (2.0 * passes, 2 * passes * flops) for name, flops in FORWARD.items()}
    expected |= {f"{name}Backward": (2.0, 4 * flops) for name, flops in FORWARD.items()}
    assert dict(operations.by_operator) == expected
    assert not operations.not_counted


def test_a_recorded_trace_of_such_functions() -> None:
    trace = read_trace(FIXTURES / "functions.json.gz", BASIC_EVENTS | Events.PRODUCTS)
    assert trace.products is not None
    operations = count_operations(trace, trace.products)
    assert operations is not None
    assert operations.flops_per_step == 3 * sum(2 * flops for flops in FORWARD.values())
    assert not operations.not_counted


def linear(name: str, start: int, number: int | None, shapes: list[list[int]] = INPUTS, thread: int = MAIN) -> Event:
    numbers = {} if number is None else {"Sequence number": number}
    event = span("cpu_op", name, start, start + 1_000, args={"Input Dims": shapes, **numbers})
    return {**event, "tid": thread}


def gradient(start: int, number: int | None) -> Event:
    return linear("_LinearBackward", start, number, [[4, 16, 64]], thread=AUTOGRAD)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_backward_pass_is_that_of_the_last_forward_pass_with_its_number(
    layout: Callable[..., str], tmp_path: Path
) -> None:
    other = [[8, 32], [4, 16, 32], []]
    events = [
        step(1, 0, 50_000),
        linear("_Linear", 1_000, 7, other),  # without gradients: the number is that of the next one
        linear("_Linear", 3_000, 7),
        linear("_LayerNormLinear", 5_000, 7, other),  # another function
        gradient(9_000, 7),
        linear("_Linear", 11_000, 7, other),  # later
    ]
    assert counted(tmp_path, events, layout).by_operator["_LinearBackward"] == (1.0, 2 * LINEAR)


@pytest.mark.parametrize("case", ["no number", "no forward pass", "threads differ"])
def test_a_backward_pass_whose_forward_pass_is_not_told_is_named_with_its_share(case: str, tmp_path: Path) -> None:
    backward = gradient(9_000, None if case == "no number" else 7)
    forwards = {
        "no number": [linear("_Linear", 3_000, 7)],
        "no forward pass": [linear("_Linear", 3_000, 6)],
        "threads differ": [
            linear("_Linear", 3_000, 7), linear("_Linear", 3_000, 7, [[8, 32], [4, 16, 32], []], thread=3)
        ],
    }[case]  # fmt: skip
    launches = [*launched(GEMM, 3_100, 100, 1), *launched(GEMM, 9_100, 300, 2)]
    launches[2]["tid"] = AUTOGRAD
    operations = counted(tmp_path, [step(1, 0, 50_000), *forwards, backward, *launches])
    assert [(named.operator, named.share) for named in operations.not_counted] == [("_LinearBackward", 0.75)]
    assert "_LinearBackward" not in operations.by_operator
    assert not operations.is_covered


def test_gradients_of_an_mlp_and_of_attention() -> None:
    mlp = Product("_LayerNormMLPBackward", ((4, 16, 32), (32,), (), (256, 32), (256,), (32, 128)), of_forward=True)
    forward = 2 * 64 * 32 * (256 + 128)
    assert count_flops(mlp) == 2 * forward
    dense = (2, 32, 4, 16)
    attention = Product("FlashAttnFuncBackward", (dense,) * 3, of_forward=True)
    assert count_flops(attention) == 2 * (2 * 2 * 4 * 32 * 32 * 2 * 16)
    assert count_flops(Product("FlashAttnFuncBackward", (dense,) * 3)) is None
