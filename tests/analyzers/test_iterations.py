"""Iterations of inference engines, their graphs that another trace recorded, and what was launched before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.shared.iterations import Iteration, Phase, parse_iteration
from tests.analyzers.flops.making import answer
from tests.sources.traces.making import Event, call, copy, kernel, span, write

SHAPES = [[8, 16], [16, 32]]
PRODUCT = 2 * 8 * 16 * 32
DECODE = "execute_6_context_0(sq0sk0sqsq0sqsk0)_generation_6(sq6sk60sqsq6sqsk60)"
MIXED = "execute_7_context_1(sq5sk8sqsq25sqsk40)_generation_2(sq2sk7sqsq2sqsk7)"


@pytest.mark.parametrize(
    ("annotation", "iteration"),
    [
        (MIXED, Iteration(Phase.MIXED, 3, 5, 2, 2 * 40 - 25 + 2 * 7)),
        (DECODE, Iteration(Phase.DECODE, 6, 0, 6, 120)),
        ("execute_context_2(14721)_generation_0(0)", Iteration(Phase.PREFILL, 2, 14721, 0)),
        ("execute_context_0(0)_generation_64(64)", Iteration(Phase.DECODE, 64, 0, 64)),
        ("execute_context_1(888_788544)_generation_0(0)", Iteration(Phase.PREFILL, 1, 888, 0)),
        ("step[EXTEND bs=2 toks=14721]", Iteration(Phase.PREFILL, 2, 14721, 0)),
        ("step[EXTEND bs=1 toks=5 c_sq=5 c_sqsq=25 c_sqsk=40 c_sk=8]", Iteration(Phase.PREFILL, 1, 5, 0, 55)),
        ("step[DECODE bs=64]", Iteration(Phase.DECODE, 64, 0, 64)),
        ("step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=900 g_sk=9]", Iteration(Phase.DECODE, 64, 0, 128, 1800)),
        ("step[MIXED bs=2]", Iteration(Phase.MIXED, 2, None, None)),
        ("prefill[bs=2 tok=14721 ctx=[7803, 6918]]", Iteration(Phase.PREFILL, 2, 14721, 0)),
        ("prefill[bs=1 tok=5 ctx=[5] sqsq=25 sqsk=25 sk=5]", Iteration(Phase.PREFILL, 1, 5, 0, 25)),
        ("decode[bs=117/128 tok=117 d=117]", Iteration(Phase.DECODE, 117, 0, 117)),
        ("execute_diffusion_1_1024x1024", Iteration(Phase.DIFFUSION, 1, None, None)),
        ("execute_model", None),
        ("step[OTHER bs=2]", None),
        ("step 12", None),
    ],
)
def test_annotations_of_engines(annotation: str, iteration: Iteration | None) -> None:
    assert parse_iteration(annotation) == iteration


def product(at: int, number: int | None = None) -> list[Event]:
    """A product and its launch, 100 ns before its kernel of 50 ns."""
    event = span("cpu_op", "aten::mm", at, at + 40, args={"Input Dims": SHAPES})
    if number is None:
        return [event, call("cudaLaunchKernel", at + 10, at + 20, launch=9_000 + at)]
    launch = call("cudaLaunchKernel", at + 10, at + 20, launch=number)
    return [event, launch, kernel("nvjet_tst_64", at + 100, at + 150, launch=number)]


def replay(at: int, events: int) -> list[Event]:
    return [
        call("cudaGraphLaunch", at, at + 10, launch=at),
        *(kernel("nvjet_tst_64", at + 100 + 20 * place, at + 110 + 20 * place, launch=at) for place in range(events)),
    ]


def attention(at: int) -> list[Event]:
    shapes = [[6, 4, 16], [6, 1, 16], [6, 1, 16]]
    return [
        span("cpu_op", "vllm::unified_attention_with_output", at, at + 40, args={"Input Dims": shapes}),
        call("cudaLaunchKernel", at + 10, at + 20, launch=9_000 + at),
    ]


def recording(batch: int, members: Sequence[Sequence[Event]]) -> list[Event]:
    """One graph, recorded for a batch; members are one launch each, 100 ns apart."""
    end = 1_000 + 100 * len(members)
    return [
        span("user_annotation", f"capture_{batch}_FULL", 500, end + 500),
        call("cudaStreamBeginCapture", 900, 910, launch=1),
        *(event for member in members for event in member),
        call("cudaStreamEndCapture", end, end + 10, launch=2),
    ]


def iterations(folder: Path, **traces: Sequence[Event]) -> Any:
    paths = [
        write(folder / f"{name}_rank0.json", list(events), baseTimeNanoseconds=place * 10**9)
        for place, (name, events) in enumerate(traces.items())
    ]
    return answer("analyze", *paths, "--only", "iterations")["results"]["iterations"]


def test_prefill_and_decode_are_told_apart(tmp_path: Path) -> None:
    found = iterations(
        tmp_path,
        engine=[
            span("user_annotation", MIXED, 1_000, 2_000),
            *product(1_100, 1),
            copy("Memcpy HtoD", 1_500, 1_600, launch=2),
            call("cudaMemcpyAsync", 1_300, 1_310, launch=2),
            span("user_annotation", DECODE, 3_000, 3_600),
            *product(3_100, 3),
            span("user_annotation", DECODE, 4_000, 4_200),
            *product(4_100, 4),
            *product(5_000, 5),  # behind all iterations
            kernel("leftover", 0, 700, launch=77),
        ],
    )
    decode, mixed = found["phases"]
    assert (decode["phase"], mixed["phase"]) == ("decode", "prefill and decode")
    assert (mixed["iterations"], mixed["prefill_tokens"], mixed["decode_tokens"]) == (1, 5, 2)
    assert (decode["iterations"], decode["prefill_tokens"], decode["decode_tokens"]) == (2, 0, 12)
    assert decode["host_us_median"] == 0.4
    assert (mixed["device"]["window_us"], mixed["device"]["compute_us"], mixed["device"]["exposed_copy_us"]) == (
        0.4, 0.05, 0.1,
    )  # fmt: skip
    for phase in found["phases"]:
        device = phase["device"]
        parts = ("compute_us", "exposed_communication_us", "exposed_copy_us", "idle_us")
        assert sum(device[part] for part in parts) == pytest.approx(device["window_us"], abs=1e-12)
    assert (mixed["flops"], decode["flops"]) == (PRODUCT, 2 * PRODUCT)
    assert found["launched_before"] == {"device_events": 1, "busy_us": 0.7}


def test_a_launched_graph_is_that_of_the_smallest_batch_that_was_recorded_with_as_much(tmp_path: Path) -> None:
    """6 tokens run in the graph for 8; that for 16 has as many kernels, that for 4 is too small."""
    eight = recording(8, [product(1_000), product(1_100), attention(1_200)])
    sixteen = recording(16, [product(1_000), attention(1_100), attention(1_200)])
    four = recording(4, [product(1_000), product(1_100), product(1_200)])
    engine = [span("user_annotation", DECODE, 1_000, 2_000), *product(1_100, 1), *replay(1_200, 3)]
    found = iterations(tmp_path, four=four, eight=eight, sixteen=sixteen, engine=engine)
    (iteration,) = found["iterations"]
    assert (iteration["graphs"], iteration["graph_launches"]) == ("capture_8_FULL", 1)
    assert iteration["flops"] == 3 * PRODUCT + 120 * 4 * (16 + 16)
    assert [graphs["name"] for graphs in found["recorded_graphs"]] == [
        "capture_4_FULL", "capture_8_FULL", "capture_16_FULL",
    ]  # fmt: skip


def test_operations_of_an_unknown_graph_are_unknown(tmp_path: Path) -> None:
    engine = [span("user_annotation", DECODE, 1_000, 2_000), *product(1_100, 1), *replay(1_200, 3)]
    alone = iterations(tmp_path, engine=engine)
    assert (alone["iterations"][0]["graphs"], alone["iterations"][0]["flops"]) == (None, None)
    assert alone["phases"][0]["flops"] is None
    other = iterations(tmp_path, engine=engine, eight=recording(8, [product(1_000)] * 2))
    assert other["iterations"][0]["graphs"] is None


def test_what_a_graph_leaves_out_is_named(tmp_path: Path) -> None:
    experts = span("cpu_op", "vllm::moe_forward", 1_100, 1_140, args={"Input Dims": [[8, 16], [8, 4]]})
    eight = recording(8, [product(1_000), [experts, call("cudaLaunchKernel", 1_110, 1_120, launch=55)]])
    engine = [span("user_annotation", DECODE, 1_000, 2_000), *replay(1_200, 2)]
    (iteration,) = iterations(tmp_path, engine=engine, eight=eight)["iterations"]
    assert (iteration["flops"], iteration["not_counted"]) == (PRODUCT, ["vllm::moe_forward"])


def test_a_training_is_no_inference_and_hears_nothing_of_it(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", [span("user_annotation", "ProfilerStep#1", 0, 900), *product(100, 1)])
    found = answer("analyze", path)
    assert "iterations" not in found["results"]
    assert "iterations" not in [skipped["analyzer"] for skipped in found["skipped"]]
    asked = answer("analyze", path, "--only", "iterations")
    assert [skipped["analyzer"] for skipped in asked["skipped"]] == ["iterations"]
