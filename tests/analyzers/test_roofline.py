"""Operators against the ceilings of a GPU: operations as torch counts them, bytes as Nsight Compute counts them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers import roofline
from perfscope.analyzers.roofline import COMPUTE, MEMORY, Ceilings, OperatorWork, RankWork, find_bound
from perfscope.analyzers.tflops.byte_rules import count_bytes
from perfscope.engine.registry import BUILT_IN
from perfscope.errors import NoDevice
from perfscope.models.hardware import find_gpu
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.ceiling import Ceiling, CollectiveRate, MemoryRate, ProductRate
from perfscope.tables.operator_details import Operand, OperatorInputs
from perfscope.tables.operator_details import TensorInput as Shape
from tests.sources.traces.making import Event, call, kernel, span, write

FIXTURES = Path(__file__).parents[2] / "fixtures" / "modules"
NEEDS = next(analyzer.needs for analyzer in BUILT_IN if analyzer.name == "roofline")
H200 = Ceilings(find_gpu("h200-sxm"))
BF16, FP32, LONG = "c10::BFloat16", "float", "long int"


#: Kernels of long rows, statistics and gradients of weights read their inputs again; one list was given twice.
_READS_AGAIN = re.compile(r"^_log_softmax|norm|embedding_dense|^_foreach_addcmul")


def measured(path: Path) -> RankWork:
    rank = roofline.measure(read_trace(path, NEEDS))
    assert rank is not None
    return rank


@pytest.mark.parametrize(
    ("folder", "calls"), [("llama", 4), ("operators", 1)], ids=["a training step", "single operators"]
)
def test_bytes_are_those_of_nsight_compute_where_each_byte_moves_once(folder: str, calls: int) -> None:
    """Not among them: products, whose tiles are read again, and what reads its input twice."""
    counted = {(work.operator, work.shapes): work for work in measured(FIXTURES / folder / "rank0.json.gz").operators}
    compared = 0
    for entry in json.loads((FIXTURES / "ncu.json").read_text()):
        work = counted.get((entry["operator"].removeprefix("aten::"), entry["inputs"]))
        if work is None or not work.bytes or work.flops or entry["bytes"] < 5e8 or entry["calls"] < calls:
            continue
        if _READS_AGAIN.search(work.operator):
            continue
        assert work.bytes / work.calls == pytest.approx(entry["bytes"], rel=0.1)
        compared += 1
    assert compared >= 6


def tensors(*operands: Operand, values: tuple[str, ...] = ()) -> OperatorInputs:
    return OperatorInputs(operands, (), values)


LIST = (Shape((4, 5)), Shape((7,)))
_CASES: list[tuple[str, OperatorInputs, str, int | None]] = [
    ("aten::add", tensors(Shape((4, 1), (1, 1), FP32), Shape((5,), (1,), FP32)), "", 4 * (4 + 5 + 20)),
    ("aten::add_", tensors(Shape((4, 5), (5, 1), BF16), Shape((4, 5), (5, 1), BF16)), "", 2 * 60),
    ("aten::mul", tensors(Shape((4, 5), (0, 1), FP32), None), "", 4 * (5 + 20)),  # expanded
    ("aten::copy_", tensors(Shape((4, 5), (5, 1), FP32), Shape((4, 5), (5, 1), BF16), None), "", 80 + 40),
    ("aten::sum", tensors(Shape((4, 5), (5, 1), BF16)), "", 40),
    ("aten::mm", tensors(Shape((4, 5), (5, 1), BF16), Shape((5, 6), (6, 1), BF16)), "", 2 * (20 + 30 + 24)),
    ("aten::addmm", tensors(Shape((6,), (1,), BF16), Shape((4, 5), (5, 1), BF16), Shape((5, 6), (6, 1), BF16)), "",
     2 * (6 + 20 + 30 + 24)),
    ("aten::bmm", tensors(Shape((3, 4, 5), (20, 5, 1), FP32), Shape((3, 5, 6), (30, 6, 1), FP32)), "",
     4 * (60 + 90 + 72)),
    ("aten::_scaled_mm", tensors(Shape((4, 16), (16, 1), "c10::Float8_e4m3fn"), Shape((16, 8), (1, 16),
     "c10::Float8_e4m3fn"), Shape((), (), FP32), Shape((), (), FP32)), "", 64 + 128 + 4 + 4 + 2 * 32),
    ("aten::_grouped_mm", tensors(Shape((10, 4), (4, 1), BF16), Shape((3, 4, 6), (24, 6, 1), BF16)), "",
     2 * (40 + 72 + 60)),
    ("aten::native_layer_norm", tensors(Shape((4, 8), (8, 1), BF16), None, Shape((8,), (1,), BF16)), "",
     2 * (32 + 8 + 32)),
    ("aten::_fused_adamw_", tensors(LIST, LIST, LIST, LIST, (), (Shape(()), Shape(()))), "Functor<float, 4>",
     4 * 27 * 7),
    ("aten::_fused_adamw_", tensors(LIST, LIST, LIST, LIST), "", None),  # of unknown elements
    ("aten::_foreach_mul_", tensors(LIST, None), "multi_tensor<c10::BFloat16>", 2 * 27 * 2),
    ("aten::_flash_attention_forward", tensors(*(Shape((2, 8, 4, 16), (512, 64, 16, 1), BF16),) * 3), "",
     2 * 1024 * 4 + 4 * 64),
    ("triton_poi_fused_add_0", tensors(Shape((4, 5), (5, 1), BF16), Shape((4, 5), (5, 1), FP32)), "", 40 + 80),
    ("aten::something_else", tensors(Shape((4,), (1,), FP32)), "", None),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "inputs", "kernel_name", "expected"), _CASES)
def test_bytes_follow_from_inputs_and_outputs(
    operator: str, inputs: OperatorInputs, kernel_name: str, expected: int | None
) -> None:
    assert count_bytes(operator, inputs, kernel_name) == expected


def work(**fields: Any) -> OperatorWork:
    plain: dict[str, Any] = {
        "operator": "mm", "shapes": "", "dtype": "bf16", "calls": 1, "kernels": 1, "device_ns": 10**6,
        "flops": 0, "bytes": 0,
    }  # fmt: skip
    return OperatorWork(**{**plain, **fields})


def test_the_longer_of_both_times_bounds_an_operator_and_the_rest_can_be_regained() -> None:
    bound = find_bound(work(flops=494_700_000_000, bytes=48_000_000), H200)
    assert bound.bound == COMPUTE
    assert bound.tflops == pytest.approx(494.7)
    assert bound.share == pytest.approx(0.5)
    assert bound.regain_ns == pytest.approx(500_000)
    bound = find_bound(work(bytes=1_200_000_000), H200)
    assert (bound.bound, bound.tflops) == (MEMORY, None)
    assert bound.tb_s == pytest.approx(1.2)
    assert bound.share == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"bytes": 6_000_000_000}, "faster than the memory"),
        ({"flops": 2 * 10**12}, "faster than the peak"),
    ],
)
def test_a_share_above_one_is_doubted_and_never_printed(fields: dict[str, Any], reason: str) -> None:
    bound = find_bound(work(**fields), H200)
    assert (bound.share, bound.regain_ns) == (None, None)
    assert reason in (bound.doubt or "")


def test_a_measured_ceiling_counts_until_an_operator_exceeds_it() -> None:
    ceiling = Ceiling(
        "NVIDIA H200", 2, "2.11", (ProductRate("bf16", 1, 1, 1, 700.0),), (MemoryRate("add", 1, 4.4),),
        (CollectiveRate("all_reduce", 2, 1, 350.0),),
    )  # fmt: skip
    both = Ceilings(find_gpu("h200-sxm"), ceiling)
    assert find_bound(work(flops=350_000_000_000), both).share == pytest.approx(0.5)
    assert find_bound(work(flops=800_000_000_000), both).share == pytest.approx(800 / 989.4)


def test_an_unknown_gpu_has_rates_but_no_share() -> None:
    bound = find_bound(work(flops=10**12, bytes=10**9), Ceilings(None))
    assert (bound.tflops, bound.tb_s, bound.share, bound.bound) == (1000.0, 1.0, None, None)


def operator(name: str, start: int, end: int, dims: list[Any] | None = None) -> Event:
    args: dict[str, Any] = {"External id": start}
    if dims is not None:
        args |= {"Input Dims": dims, "Input type": [FP32] * len(dims), "Input Strides": [[] for _ in dims]}
    return span("cpu_op", name, start, end, args=args)


def test_nested_operators_count_once_and_unknown_ones_keep_their_time(tmp_path: Path) -> None:
    events = [
        operator("aten::linear", 0, 100, [[4, 8], [6, 8]]),
        operator("aten::mm", 10, 90, [[4, 8], [8, 6]]),
        call("cudaLaunchKernel", 20, 21, launch=1),
        kernel("gemm_a", 1000, 3000, launch=1, **{"External id": 10}),
        call("cudaLaunchKernel", 30, 31, launch=2),
        kernel("gemm_b", 3000, 4000, launch=2, **{"External id": 10}),
        operator("mine::op", 200, 300),
        call("cudaLaunchKernel", 220, 221, launch=3),
        kernel("mine", 5000, 5700, launch=3, **{"External id": 200}),
        call("cudaGraphLaunch", 400, 401, launch=4),
        kernel("in_graph", 6000, 6050, launch=4),
    ]
    rank = measured(write(tmp_path / "rank0.json", events))
    assert [(work.operator, work.calls, work.kernels, work.device_ns, work.flops) for work in rank.operators] == [
        ("mm", 1, 2, 3000, 2 * 4 * 8 * 6),
        ("mine::op", 1, 1, 700, None),
    ]
    assert (rank.graph_ns, rank.device_ns) == (50, 3750)
    assert rank.operators[0].bytes == 4 * (32 + 48 + 24)


def test_without_shapes_a_note_says_how_to_record_them(tmp_path: Path) -> None:
    events = [operator("aten::mm", 0, 100), call("cudaLaunchKernel", 20, 21, launch=1), kernel("k", 200, 300, launch=1)]
    section, _ = roofline.analyze([measured(write(tmp_path / "rank0.json", events))]).sections()
    assert any("--shapes" in note for note in section.notes)
    assert any("no listed rate of memory" in note for note in section.notes)
    with pytest.raises(NoDevice):
        roofline.analyze([])


@pytest.mark.parametrize("folder", ["llama", "fsdp2_compiled", "operators"])
def test_real_traces_add_up_and_no_share_is_above_one(folder: str) -> None:
    rank = measured(FIXTURES / folder / "rank0.json.gz")
    data: Any = roofline.analyze([rank]).data()
    (entry,) = data["ranks"]
    assert all(work["share"] is None or 0 <= work["share"] <= 1 for work in entry["operators"])
    assert sum(work.device_ns for work in rank.operators) <= rank.device_ns
    by_kind = sum(kind["device_us"] for kind in entry["categories"])
    assert by_kind == pytest.approx(sum(work["device_us"] for work in entry["operators"]))
    unknown = sum(kind["device_us"] for kind in entry["categories"] if kind["category"] == "other")
    assert unknown < 0.05 * entry["total_us"]
    known = sum(work["device_us"] for work in entry["operators"] if work["share"] is not None)
    assert known / entry["total_us"] > (0.6 if folder == "llama" else 0.3)
