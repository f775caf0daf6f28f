"""In which types a run multiplies, by its kernels, its operators and its record; and the peak of a mixture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import kept_run
from perfscope.analyzers.tflops.operation_counts import TracedOperations, count_operations
from perfscope.analyzers.tflops.precision import find_precision, peak_of, read_signs
from perfscope.analyzers.tflops.repeats import Repeats
from perfscope.models.hardware import find_gpu
from perfscope.sources.runs.run import read_run
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.kernel_precision import SIXTEEN_BIT, UNNAMED, product_precision
from perfscope.tables.model import Model
from perfscope.tables.trace import BASIC_EVENTS, Events
from perfscope.wire.model import PrecisionRecord
from tests.analyzers.test_mfu import run_folder
from tests.analyzers.tflops.making import answer, ask
from tests.conftest import ROOT
from tests.sources.traces.making import Event, kernel, span, step, write

H200 = find_gpu("h200-sxm")

#: Names of kernels of real trainings, shortened behind what tells their type.
PRODUCTS = {
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT": "bf16",
    "nvjet_sss_128x256_32x4_1x2_h_bz_TNT": "tf32",
    "nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT": "fp8",
    "nvjet_sm100_ootst_128x256_Avec16UE4M3_Bvec16UE4M3_TNT": "fp4",
    "nvjet_sm100_qqsss_128x128_128x8_2x4_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_TNT": "fp8",
    "cutlass3x_sm120_bstensorop_s16864gemm_block_scaled_ue4m3xe2m1_ue4m3xe2m1_f32_bf16_bf16_128x128x256": "fp4",
    "cutlass3x_sm100_bstensorop_s256x192x64gemm_block_scaled_ue4m3xf4_ue4m3xf4_f32_f16_f16_256x192x256": "fp4",
    "cutlass3x_sm100_bstensorop_gemm_ue8m0xe4m3_ue8m0xe4m3_f32_void_bf16_128x128x256": "fp8",
    "cutlass3x_sm120_bstensorop_gemm_ue8m0xe3m2_ue8m0xe3m2_f32_void_f16": "fp6",
    "Cijk_Alik_Bljk_F4SS_MXA32_MXB32_BH_UserArgs_MT64x64x256_MI16x16x1_SN": "fp4",
    "_ZN5aiter41f4gemm_bf16_per1x32Fp4_BpreShuffle_32x128E": "fp4",
    "void deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl<128u, 8192u, 1536u>": "fp8",
    "_p_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128": "bf16",
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1": "tf32",
    "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_relu_f2f_stages_64x5_tn": "fp16",
    "volta_h884gemm_128x128_ldg8_nn": "fp16",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(Params)": "fp32",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4>(Params)": "tf32",
    "cutlass3x_sm90_tensorop_s64x128x32gemm_e4m3_e4m3_f32_bf16_bf16_64x128x128": "fp8",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>>": "bf16",
    "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>)": "bf16",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1": SIXTEEN_BIT,
    "Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x224x64_MI16x16x1": "bf16",
    "void gemv2T_kernel_val<int, int, float, float, float, float, 128>(float)": "fp32",
    "triton_tem_fused_mm_0": UNNAMED,
}  # fmt: skip
OTHER = [
    "triton_poi_fused_add_1",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16>",
    "void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*)",
    "void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float, false>(int)",
    "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda>",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
]


@pytest.mark.parametrize(("name", "precision"), PRODUCTS.items())
def test_the_name_of_a_kernel_tells_what_it_multiplies(name: str, precision: str) -> None:
    assert product_precision(name) == precision


@pytest.mark.parametrize("name", OTHER)
def test_kernels_that_do_not_multiply_tell_nothing(name: str) -> None:
    assert product_precision(name) is None


def operations(
    kernel_ns: dict[str, int] | None = None, by_precision: dict[str, float] | None = None, **more: Any
) -> TracedOperations:
    fields: dict[str, Any] = {
        "rank": 0, "steps": 1, "flops_per_step": None, "step_ns": None, "by_operator": {},
        "repeats": Repeats(None), "without_shapes": 0,
        "by_precision": by_precision or {}, "kernel_ns": kernel_ns or {}, **more,
    }  # fmt: skip
    return TracedOperations(**fields)


def model(rank: int = 0, weights: str | None = "fp32", **signs: Any) -> Model:
    return Model(rank, "Net", 1, 1, (), None, "", PrecisionRecord(**signs), None, weights_dtype=weights)


def test_the_peak_of_a_mixture_is_the_rate_at_the_peaks() -> None:
    assert peak_of(H200, {"fp8": 0.5, "bf16": 0.5}) == pytest.approx(1 / (0.5 / 1978.9 + 0.5 / 989.4))
    assert peak_of(H200, {"bf16": 1.0}) == H200.dense_tflops["bf16"]


def test_a_type_without_a_peak_has_none_unless_it_hardly_counts() -> None:
    assert peak_of(H200, {"fp64": 1.0}) is None
    assert peak_of(H200, {"bf16": 0.9, "fp64": 0.1}) is None
    assert peak_of(H200, {"bf16": 0.995, "fp64": 0.005}) == pytest.approx(989.4)


def test_kernels_go_before_what_was_recorded() -> None:
    precision = find_precision([model(engine="fp16")], [operations({"bf16": 100, SIXTEEN_BIT: 50})], H200)
    assert precision.by_type == {"bf16": 1.0}
    assert "kernels" in precision.evidence


def test_sixteen_bit_kernels_are_of_the_type_that_the_others_have_or_that_the_gpu_can() -> None:
    shown = [operations({"fp16": 10, SIXTEEN_BIT: 50})]
    assert find_precision([], shown, H200).shares == {"fp16": 1.0}
    alone = [operations({SIXTEEN_BIT: 50})]
    assert find_precision([], alone, H200).main == "bf16"
    assert find_precision([], alone, find_gpu("v100-32")).main == "fp16"


def test_the_time_of_kernels_is_weighed_by_their_peaks() -> None:
    """1 s of fp8 at twice the rate of 2 s in bf16: as many operations."""
    precision = find_precision([], [operations({"fp8": 1_000, "bf16": 2_000})], H200)
    assert precision.by_type["fp8"] == pytest.approx(0.5, abs=1e-3)
    peak = peak_of(H200, precision.by_type)
    assert peak == pytest.approx((1_000 * 1978.9 + 2_000 * 989.4) / 3_000)


def test_types_of_operators_count_operations_exactly() -> None:
    shown = operations({"bf16": 10, "tf32": 900}, {"bf16": 3e12, "fp32": 1e12})
    precision = find_precision([], [shown], H200)
    assert precision.by_type == {"bf16": 0.75, "tf32": 0.25}
    assert "operators" in precision.evidence


@pytest.mark.parametrize("float32", ["tf32", "fp32"])
def test_products_of_fp32_without_kernels_follow_the_recorded_setting(float32: str) -> None:
    shown = operations({}, {"fp32": 1e12})
    assert find_precision([model(float32=float32)], [shown], H200).main == float32
    assert find_precision([model()], [shown], H200).main is None


def test_kernels_of_another_library_make_the_operators_types_incomplete() -> None:
    """Transformer Engine's fp8 products state no types: the kernels must be asked."""
    shown = operations({"fp8": 800, "bf16": 200}, {"bf16": 1e12})
    precision = find_precision([], [shown], H200)
    assert precision.main == "fp8"
    assert "kernels" in precision.evidence


def test_kernels_that_hide_their_type_are_no_evidence() -> None:
    precision = find_precision([model(autocast="bf16")], [operations({UNNAMED: 90, "fp32": 10})], H200)
    assert (precision.main, precision.evidence) == ("bf16", "autocast")


def test_a_light_window_of_a_rank_does_not_hide_its_operators() -> None:
    with_operators = operations({"bf16": 50, "tf32": 50}, {"bf16": 3e12, "fp32": 1e12})
    light = operations({"bf16": 100})
    for traced in ([with_operators, light], [light, with_operators]):
        assert find_precision([], traced, H200).shares == {"bf16": 0.75, "tf32": 0.25}


@pytest.mark.parametrize(
    ("signs", "main", "evidence"),
    [
        ({"products": {"bf16": 9, "fp32": 1}, "engine": "fp16"}, "bf16", "operators of a forward pass"),
        ({"products": {"fp32": 9}, "float32": "tf32"}, "tf32", "PyTorch's setting"),
        ({"products": {"fp32": 9}, "float32": "fp32"}, "fp32", "PyTorch's setting"),
        ({"autocast": "fp16", "policy": "bf16"}, "fp16", "autocast"),
        ({"policy": "bf16"}, "bf16", "FSDP"),
        ({"engine": "fp16"}, "fp16", "configuration"),
        ({"fp8": "Transformer Engine", "products": {"bf16": 9}}, "fp8", "Transformer Engine"),
        ({"fp8": "Transformer Engine in NVFP4"}, "fp4", "fp4 layers of Transformer Engine"),
        ({"products": {"fp32": 9}}, None, "TF32 was not recorded"),
        ({}, None, "the parameters are fp32, but"),
        ({"float32": "tf32"}, None, "the parameters are fp32, but"),
    ],
)
def test_what_was_recorded_is_trusted_in_this_order(signs: dict[str, Any], main: str | None, evidence: str) -> None:
    found, source = read_signs(model(**signs))
    assert found == main
    assert evidence in source
    assert find_precision([model(**signs)], [], H200).main == main


@pytest.mark.parametrize("weights", ["fp32", "bf16", "fp16"])
def test_no_peak_is_taken_from_the_type_of_the_parameters_alone(weights: str, tmp_path: Path) -> None:
    run = run_folder(tmp_path, "NVIDIA H200", dtype=weights, precision=PrecisionRecord(float32="tf32"))
    result = answer("analyze", run, "--only", "mfu")["results"]["mfu"]
    assert (result["mfu"], result["peak_tflops"], result["dtype"]) == (None, None, None)
    assert result["tflops_per_gpu"] > 0
    assert result["precision"]["shares"] is None
    (reason,) = (note for note in result["notes"] if note.startswith("No MFU"))
    assert weights in reason
    assert "--precision" in reason
    assert "--peak" in reason


def test_the_user_may_state_the_precision_or_the_peak(tmp_path: Path) -> None:
    run = run_folder(tmp_path, "NVIDIA H200", dtype="fp32", precision=PrecisionRecord())
    by_precision = answer("analyze", run, "--only", "mfu", "--precision", "bf16")["results"]["mfu"]
    assert by_precision["peak_tflops"] == 989.4
    by_peak = answer("analyze", run, "--only", "mfu", "--peak", 500)["results"]["mfu"]
    assert by_peak["mfu"] == pytest.approx(by_precision["mfu"] * 989.4 / 500)
    refused = ask("analyze", run, "--peak", 1979)
    assert refused.code == 2
    assert "sparsity" in refused.stderr


def fsdp2_trace(path: Path) -> Path:
    """A step as FSDP2 with MixedPrecisionPolicy(bf16) shows it on an H200: parameters of fp32, products of bf16."""
    events: list[Event] = [
        step(4, 0, 1_000_000),
        span("cpu_op", "aten::mm", 1_000, 2_000, args={
            "External id": 1, "Input type": ["c10::BFloat16", "c10::BFloat16"], "Input Dims": [[8, 16], [16, 32]],
        }),
        span("cpu_op", "aten::addmm", 3_000, 4_000, args={
            "External id": 2, "Input type": ["float", "c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"],
            "Input Dims": [[32], [8, 16], [16, 32], [], []],
        }),
        kernel("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", 10_000, 60_000),
        kernel("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", 60_000, 70_000),
        kernel("void at::native::multi_tensor_apply_kernel<float>", 70_000, 90_000),
    ]  # fmt: skip
    return write(path, events)


def test_operators_and_kernels_of_a_trace_are_told_apart_by_type(tmp_path: Path) -> None:
    trace = read_trace(fsdp2_trace(tmp_path / "rank0.json"), BASIC_EVENTS | Events.PRODUCTS)
    assert trace.products is not None
    counted = count_operations(trace, trace.products)
    assert counted is not None
    # The first input of addmm is added, and it is the second one's type that is multiplied.
    assert counted.by_precision == {"bf16": 2 * 2 * 8 * 16 * 32}
    assert counted.kernel_ns == {"bf16": 50_000, SIXTEEN_BIT: 10_000}


RUNS = ROOT / "fixtures" / "precision"
BF16, FP32, TF32 = 989.4, 66.9, 494.7

#: What the parameters are stored in, and what they are multiplied in.
FRAMEWORKS = {
    "fsdp2": ("fp32", "bf16"),
    "zero3": ("bf16", "bf16"),
    "trainer": ("fp32", "bf16"),
    "lightning": ("fp32", "bf16"),
    "fp32": ("fp32", "fp32"),
    "tf32": ("fp32", "tf32"),
}


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    return {name: answer("analyze", kept_run(RUNS / name), "--only", "mfu")["results"] for name in FRAMEWORKS}


@pytest.mark.parametrize(("name", "types"), FRAMEWORKS.items())
def test_the_precision_is_that_of_the_products(name: str, types: tuple[str, str], runs: dict[str, Any]) -> None:
    stored, multiplied = types
    found = runs[name]
    model = read_run(kept_run(RUNS / name)).models[0]
    assert (model.weights_dtype, read_signs(model)[0], found["mfu"]["dtype"]) == (stored, multiplied, multiplied)
    assert found["mfu"]["doubt"] is None
    assert 0.1 < found["mfu"]["mfu"] < 0.8


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_count_is_the_formula(name: str, runs: dict[str, Any]) -> None:
    counted = runs[name]["mfu"]["counted"]
    assert counted["difference"] == pytest.approx(0, abs=2e-3)
    assert counted["explanation"] == []


def test_the_peak_is_that_of_the_products(runs: dict[str, Any]) -> None:
    peaks = {name: found["mfu"]["peak_tflops"] for name, found in runs.items()}
    mixture = peaks.pop("tf32")
    assert peaks == {**dict.fromkeys(peaks, BF16), "fp32": FP32}
    # Its attention runs in a kernel for fp32.
    shares = runs["tf32"]["mfu"]["precision"]["shares"]
    assert sum(shares.values()) == pytest.approx(1)
    assert mixture == pytest.approx(1 / (shares["tf32"] / TF32 + shares["fp32"] / FP32))
    assert shares["fp32"] == pytest.approx(0.067, abs=0.02)


def test_with_the_peak_of_the_parameters_type_fsdp2_would_be_withheld() -> None:
    wrong = answer("analyze", kept_run(RUNS / "fsdp2"), "--only", "mfu", "--precision", "fp32")["results"]["mfu"]
    assert wrong["mfu"] is None
    assert "571.4 %" in wrong["doubt"]
