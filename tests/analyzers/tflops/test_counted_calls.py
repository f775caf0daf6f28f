"""Which calls count: nested ones once, recorded graphs when they are launched, and what cannot be counted is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.tflops.operation_counts import NotCountedOperator, TracedOperations, count_operations
from perfscope.analyzers.tflops.operator_rules import count_flops
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.products import Product
from perfscope.tables.trace import BASIC_EVENTS, Events
from tests.analyzers.tflops.making import answer
from tests.sources.traces.making import AUTOGRAD, LAYOUTS, MAIN, Event, call, kernel, kineto, span, step, write

Layout = Callable[[Mapping[str, Any]], str]
SHAPES = [[8, 16], [16, 32]]
PRODUCT = 2 * 8 * 16 * 32
GEMM, OTHER = "nvjet_tst_128x128", "void at::native::vectorized_elementwise_kernel"


def operator(name: str, start: int, end: int, shapes: Sequence[Sequence[int]] = SHAPES, **args: Any) -> Event:
    return span("cpu_op", name, start, end, args={"Input Dims": shapes, **args})


def launched(name: str, at: int, duration: int, number: int) -> list[Event]:
    """A launch at a time, and its kernel somewhat later."""
    return [
        call("cudaLaunchKernel", at, at + 10, launch=number),
        kernel(name, 100_000 + at, 100_000 + at + duration, launch=number),
    ]


def counted(path: Path, events: Sequence[Event], layout: Layout = kineto) -> TracedOperations:
    trace = read_trace(write(path / "rank0.json", events, layout), BASIC_EVENTS | Events.PRODUCTS)
    assert trace.products is not None
    operations = count_operations(trace, trace.products)
    assert operations is not None
    return operations


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_convolution_inside_another_counts_once_in_every_layout(layout: Layout, tmp_path: Path) -> None:
    shapes: list[list[int]] = [[1, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], [], [], []]
    values = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    concrete: dict[str, Any] = {"Concrete Inputs": values, "Input type": ["float", "float"], "Input Dims": shapes}
    operations = counted(
        tmp_path,
        [
            step(1, 0, 50_000),
            span("cpu_op", "aten::convolution", 1_000, 9_000, args=concrete),
            span("cpu_op", "aten::_convolution", 2_000, 8_000, args=concrete),
            span("cpu_op", "aten::cudnn_convolution", 3_000, 7_000, args=concrete),
            *launched("sm90_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32", 4_000, 500, 1),
            span("user_annotation", "the end", 40_000, 41_000),
        ],
        layout,
    )
    assert dict(operations.by_operator) == {"convolution": (1.0, 2 * 4 * 4 * 4 * 27)}
    assert (operations.covered, operations.not_counted) == (1.0, ())


def test_an_operator_around_others_counts_what_they_count(tmp_path: Path) -> None:
    operations = counted(
        tmp_path,
        [
            operator("aiter::gemm_a16w16", 1_000, 5_000, [[8, 16], [32, 16]]),
            operator("aten::mm", 2_000, 4_000),
            *launched(GEMM, 3_000, 100, 1),
        ],
    )
    assert dict(operations.by_operator) == {"mm": (1.0, PRODUCT)}


def test_what_cannot_be_counted_is_named_with_its_share_of_the_time(tmp_path: Path) -> None:
    events = [
        step(1, 0, 50_000),
        operator("aten::mm", 1_000, 2_000),
        *launched(GEMM, 1_100, 600, 1),
        operator("vllm::moe_forward", 3_000, 6_000, [[8, 16], [8, 4]]),
        *launched("triton_moe_kernel", 3_100, 250, 2),
        *launched(GEMM, 3_500, 50, 3),
        operator("aten::add", 7_000, 8_000),
        *launched(OTHER, 7_100, 5_000, 4),
        *launched("flash_fwd_kernel", 9_100, 100, 5),  # outside of all operators
    ]
    operations = counted(tmp_path, events)
    assert operations.not_counted == (NotCountedOperator("vllm::moe_forward", 1.0, 0.3),)
    assert operations.covered == 0.6
    assert (operations.flops_per_step, operations.tflops) == (PRODUCT, None)
    found = answer("analyze", tmp_path / "rank0.json", "--only", "operations")["results"]["operations"]["ranks"][0]
    assert found["covered"] == 0.6
    assert found["not_counted"] == [{"operator": "vllm::moe_forward", "calls_per_step": 1.0, "share": 0.3}]
    assert found["tflops"] is None
    # Without what cannot be counted there is a rate.
    assert counted(tmp_path, [*events[:4], *events[-4:-2]]).tflops is not None


def recording(start: int, products: int) -> list[Event]:
    """A graph of some products that is recorded, which runs nothing."""
    events = [call("cudaStreamBeginCapture", start, start + 10, launch=start)]
    for place in range(products):
        at = start + 1_000 * (place + 1)
        events += [
            operator("aten::mm", at, at + 500),
            call("cudaLaunchKernel", at + 100, at + 110, launch=start + place + 1),
        ]
    end = start + 1_000 * (products + 1)
    return [*events, call("cudaStreamEndCapture", end, end + 10, launch=start + 900)]


def replay(at: int, kernels: int) -> list[Event]:
    begin = 200_000 + at
    gemms = [kernel(GEMM, begin + 10 * place, begin + 10 * place + 5, launch=at) for place in range(kernels)]
    return [call("cudaGraphLaunch", at, at + 10, launch=at), *gemms]


def test_recording_a_graph_runs_nothing_and_launching_it_is_not_counted_and_said(tmp_path: Path) -> None:
    eager = [step(1, 0, 60_000), operator("aten::mm", 500, 900), *launched(GEMM, 600, 50, 1)]
    alone = counted(tmp_path, [*eager, *recording(10_000, 3)])
    assert (alone.flops_per_step, alone.replays) == (PRODUCT, 0)
    assert alone.tflops is not None
    operations = counted(tmp_path, [*eager, *recording(10_000, 3), *replay(40_000, 10), *replay(41_000, 10)])
    assert (operations.flops_per_step, operations.replays) == (PRODUCT, 2)
    assert (operations.covered, operations.replays_share) == (50 / 150, 100 / 150)
    assert operations.tflops is None


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
