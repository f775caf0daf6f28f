"""Backward passes whose products are no operators are counted by their forward passes, as Transformer Engine's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfscope.analyzers.tflops.operator_rules import count_flops
from perfscope.tables.products import Product
from tests.analyzers.tflops.test_counted_calls import GEMM, counted, launched
from tests.sources.traces.making import AUTOGRAD, LAYOUTS, MAIN, Event, span, step

INPUTS = [[64, 32], [4, 16, 32], []]
LINEAR = 2 * 4 * 16 * 32 * 64


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


def test_gradients_of_attention() -> None:
    dense = (2, 32, 4, 16)
    attention = Product("FlashAttnFuncBackward", (dense,) * 3, of_forward=True)
    assert count_flops(attention) == 2 * (2 * 2 * 4 * 32 * 32 * 2 * 16)
    assert count_flops(Product("FlashAttnFuncBackward", (dense,) * 3)) is None
