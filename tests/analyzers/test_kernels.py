"""Where device time went by kernel and by operator, and which kernels communicate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.analyzers import kernels, overlap, pipeline_bubble
from perfscope.analyzers.collectives.process_groups import described_role, roles_in
from perfscope.analyzers.pipeline_bubble.extraction import find_marks
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.kernel_classes import classify, classify_copy
from perfscope.tables.trace import ProcessGroup, Work
from tests.sources.traces.making import Event, copy, distributed, kernel, span, write

COMMUNICATION = [
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    "void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
    "void sglang::cross_device_reduce_1stage<half, 8>(sglang::RankData*)",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<...>(...)",
    "void deep_ep::internode_ll::dispatch<true, false, 3, 10, 7168>(void*)",
    "nvshmemi_transfer_rma_p",
    "ctranKernelAllReduceTree(int*, CtranAlgoDeviceState*, ctran::allreduce::tree::KernArgs)",
    "void hybrid_ep::dispatch_kernel<hybrid_ep::INTRA_NODE_S2G_warp_group<4>, 8>(dispatch_kernel_param_t<bf16>)",
    "void mori::moe::EpCombineInterNodeKernel<__hip_bfloat16>(mori::moe::EpDispatchCombineArgs<__hip_bfloat16>)",
    "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8, false>(int const*)",
    "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half, 8>, true>, __half>(half*)",
]
COMPUTE = [
    "void at::native::batch_norm_SyncBatchNorm_kernel<float>(float*)",
    "void at::native::Sync_something(int)",
    "void fused_dma_gemm<float>(float*)",
    "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_gemm",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
    "void memorize_kernel<float>(float*)",
    "void deep_ep::layout::get_dispatch_layout<256>(long const*)",
    "void at::native::moe_dispatch_combine_kernel<float>(float*)",
    "void dispatchKernel<Sum>(float*)",
]


KINDS = dict.fromkeys(COMMUNICATION, Work.COMMUNICATION) | dict.fromkeys(COMPUTE, Work.COMPUTE)


@pytest.mark.parametrize("name", [*KINDS, "__amd_rocclr_fillBufferAligned", "__amd_rocclr_copyBuffer"])
def test_kernels_that_compute_communicate_and_copy_are_told_apart(name: str) -> None:
    assert classify(name) is KINDS.get(name, Work.COPY)


@pytest.mark.parametrize("name", ["flux::gemm_rs_kernel<...>", "fused_all_gather_matmul_kernel", "gemm_reduce_scatter"])
def test_a_kernel_that_does_both_counts_as_both(tmp_path: Path, name: str) -> None:
    trace = read_trace(write(tmp_path / "rank0.json", [kernel(name, 0, 100)]))
    assert trace.device.work.tolist() == [Work.FUSED]
    (group,) = overlap.measure(trace) or ()
    assert (group.times.communication, group.times.hidden, group.times.exposed) == (100, 100, 0)


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("Memcpy PtoP (Device -> Device)", Work.COMMUNICATION),
        ("Memcpy HtoD (Pageable -> Device)", Work.COPY),
        ("Memcpy DtoH (Device -> Pinned)", Work.COPY),
        ("Memcpy DtoD (Device -> Device)", Work.COPY),
        ("hipMemcpyDtoD", Work.COPY),
    ],
)
def test_copies_between_devices_communicate_and_others_do_not(name: str, work: Work) -> None:
    assert classify_copy(name) is work


def test_metadata_is_believed_before_names(tmp_path: Path) -> None:
    stated: dict[str, Any] = {"Collective name": "all_gather", "Process Group Name": "3"}
    trace = read_trace(write(tmp_path / "rank0.json", [kernel("a_kernel_nobody_knows", 0, 10, **stated)]))
    assert trace.device.work.tolist() == [Work.COMMUNICATION]


@pytest.mark.parametrize(
    ("description", "role"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "TP"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "PP"),
        ("MODEL_PARALLEL_GROUP", "MP"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "DP"),
        ("CONTEXT_PARALLEL_GROUP", "CP"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "EP"),
        ("mesh_dp_shard_cp", "DP"),
        ("mesh_tp", "TP"),
        ("mesh_ep", "EP"),
        ("mesh_batch", "DP"),
        ("mesh_data_parallel", "DP"),
        ("default_pg", ""),
        ("undefined", ""),
        ("my own group", ""),
    ],
)
def test_the_axis_of_a_group_is_told_by_its_description(description: str, role: str) -> None:
    assert described_role(description) == role


#: Of rank 0 of eight: replicas over two, stages over two, tensors over two; and of FSDP over four with their experts.
_THREE = {"dp": (0, 2), "pp": (0, 4), "tp": (0, 1)}
_EXPERTS = {"dp": (0, 1, 2, 3), "ep": (0, 1, 2, 3)}


@pytest.mark.parametrize(
    ("lines", "description", "ranks", "operation", "role"),
    [
        ({}, "default_pg", "0123", "allreduce", "world"),
        ({}, "undefined", "0123", "allreduce", "world"),
        ({}, "undefined", "01", "allreduce", ""),
        ({}, "undefined", "01", "send", "PP"),
        ({"dp": (0, 1, 2, 3)}, "default_pg", "0123", "allreduce", "DP"),
        ({"dp": (0, 1, 2, 3)}, "default_pg", "", "allreduce", "DP"),
        ({"dp": (0, 1, 2, 3)}, "mesh_world", "0123", "_allgather_base", "DP"),
        ({"dp": (0, 1, 2, 3)}, "undefined", "02", "allreduce", "DP"),
        ({"dp": (0, 1, 2, 3)}, "undefined", "0", "allreduce", ""),
        (_EXPERTS, "default_pg", "0123", "_reduce_scatter_base", "DP"),
        (_EXPERTS, "default_pg", "0123", "alltoallv", "EP"),
        (_EXPERTS, "mesh_fsdp", "0123", "alltoall", "DP"),
        (_THREE, "undefined", "02", "allreduce", "DP"),
        (_THREE, "undefined", "04", "allreduce", "PP"),
        (_THREE, "undefined", "01", "send", "TP"),
        (_THREE, "undefined", "0145", "allreduce", ""),
        (_THREE, "default_pg", "01234567", "allreduce", "world"),
    ],
)
def test_the_axis_of_a_group_that_nothing_describes_is_that_of_its_ranks(
    lines: dict[str, tuple[int, ...]], description: str, ranks: str, operation: str, role: str, tmp_path: Path
) -> None:
    numbers = tuple(int(rank) for rank in ranks)
    group = ProcessGroup("0", description, len(numbers), numbers)
    size = 8 if lines is _THREE else 4
    trace = read_trace(write(tmp_path / "rank0.json", []))
    trace = replace(trace, groups={"0": group}, axes=lines, world_size=size)
    assert roles_in(trace)("0", operation) == role


def told(tmp_path: Path, *traces: list[Event]) -> dict[str, Any]:
    paths = [write(tmp_path / f"rank{rank}.json", events, **distributed(rank)) for rank, events in enumerate(traces)]
    partials = [kernels.measure(read_trace(path)) for path in paths]
    data: Any = kernels.analyze([partial for partial in partials if partial is not None]).data()
    result: dict[str, Any] = data
    return result


def test_kernels_are_added_up_over_ranks_by_name(tmp_path: Path) -> None:
    found = told(
        tmp_path,
        [kernel("gemm", 0, 100), kernel("gemm", 200, 500), kernel("add", 600, 650)],
        [kernel("gemm", 0, 200), copy("Memcpy HtoD", 0, 350)],
    )
    assert found["total_us"] == 1.0
    assert [(each["name"], each["work"], each["calls"], each["total_us"]) for each in found["names"]] == [
        ("gemm", "compute", 3, 0.6),
        ("Memcpy HtoD", "copy", 1, 0.35),
        ("add", "compute", 1, 0.05),
    ]
    gemm = found["names"][0]
    assert (gemm["mean_us"], gemm["min_us"], gemm["max_us"], gemm["fraction"]) == (0.2, 0.1, 0.3, 0.6)


def test_kernels_are_told_by_the_operator_around_their_launch(tmp_path: Path) -> None:
    found = told(
        tmp_path,
        [
            span("cpu_op", "aten::linear", 0, 100, args={"External id": 1}),
            span("cpu_op", "aten::addmm", 10, 90, args={"External id": 2}),
            kernel("gemm", 200, 300, **{"External id": 2}),
            kernel("splitk", 300, 350, **{"External id": 2}),
            kernel("stray", 400, 410),
        ],
    )
    assert [(each["name"], each["calls"], each["total_us"]) for each in found["operators"]] == [
        ("aten::addmm", 2, 0.15),
        ("(no operator)", 1, 0.01),
    ]


def test_without_operators_in_the_trace_there_are_none(tmp_path: Path) -> None:
    assert told(tmp_path, [kernel("gemm", 0, 10)])["operators"] is None


def test_compute_that_sounds_like_communication_is_doubted(tmp_path: Path) -> None:
    found = told(tmp_path, [kernel("my_all_reduce_v2", 0, 300), kernel("gemm", 300, 400)])
    assert found["doubtful_us"] == 0.3


def test_merging_partials_in_any_order_gives_the_same(tmp_path: Path) -> None:
    made = [
        kernels.measure(
            read_trace(write(tmp_path / f"{index}.json", [kernel("gemm", 0, index + 1), kernel("b", 0, 2)]))
        )
        for index in range(3)
    ]
    one, two, three = (each for each in made if each is not None)
    forwards, backwards = kernels.merge(kernels.merge(one, two), three), kernels.merge(three, kernels.merge(two, one))
    assert forwards == backwards


@pytest.mark.parametrize(
    "name",
    ["PP:2F3", "Forward 3", "perfscope: forward 1 stage 0 device 0 of 4", "ncclDevKernel_SendRecv(ncclDevKernelArgs)"],
)
def test_a_trace_that_speaks_of_a_pipeline_is_measured_for_one(name: str) -> None:
    """What measures pipelines is imported for such traces alone; whatever it knows must therefore be noticed."""
    assert find_marks((name,)) or "SendRecv" in name
    assert pipeline_bubble.PIPELINE_NAMES.search(name)
    assert not pipeline_bubble.PIPELINE_NAMES.search("ncclDevKernel_AllReduce_Sum_f32_RING_LL")
