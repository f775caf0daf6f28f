"""The table of peaks: dense, sourced, found under every name that a GPU has, and never guessed."""

from __future__ import annotations

import pytest

from perfscope.errors import UsageError
from perfscope.models.hardware import (
    SPARSITY_GAIN,
    check_dense,
    find_gpu,
    gpus,
    lookup_gpu,
    resolve_family,
)

#: Dense 16-bit peaks of the datasheets, in TFLOP/s.
DENSE_16BIT = {
    "v100-32": 125,
    "a100-80": 312,
    "h100-sxm": 989.4,
    "h200-sxm": 989.4,
    "b200-sxm": 2250,
    "mi300x": 1307.4,
}


@pytest.mark.parametrize(("name", "tflops"), DENSE_16BIT.items())
def test_peaks_are_the_dense_ones(name: str, tflops: float) -> None:
    assert find_gpu(name).dense_16bit_tflops == pytest.approx(tflops)


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("Tesla V100-SXM2-32GB", "v100-32"),
        ("AMD Instinct MI300X", "mi300x"),
        ("H100_SXM", "h100-sxm"),
        ("b200", "b200-sxm"),
        ("h100_80gb", "h100-sxm"),
        ("B200 192GB", "b200-sxm"),
        ("MI250", "mi250"),
        ("a100_40gb", "a100-40"),
        ("DGX-GB300", "gb300"),
        ("8xH100", "h100-sxm"),
        ("H100 x8", "h100-sxm"),
        ("1280xNVIDIA GB200", "gb200"),
        # accelerator_model_name in the systems of MLPerf Training 4.1 to 5.1
        ("NVIDIA Blackwell Ultra GPU (B300-SXM-270GB)", "b300-sxm"),
        ("NVIDIA A100 - PCIe - 80 GB", "a100-80-pcie"),
        ("H100 NVL Tensor Core GPU (PCIe)", "h100-nvl"),
        ("AMD Instinct MI325X 256GB HBM3E", "mi325x"),
    ],
)
def test_a_gpu_is_found_by_name_by_alias_and_by_what_cuda_calls_it(name: str, gpu: str) -> None:
    assert find_gpu(name).name == gpu


@pytest.mark.parametrize(
    "name", ["h100-sxm-sparse", "A100-SXM4-80GB MIG 3g.40gb", "NVIDIA", "h300", "", "dgx", "H100 40GB", "A10G"]
)
def test_what_is_not_listed_is_not_guessed(name: str) -> None:
    assert lookup_gpu(name) is None
    with pytest.raises(UsageError, match="is not in hardware"):
        find_gpu(name)


def test_a_name_of_several_gpus_says_which_one_is_taken() -> None:
    assert resolve_family("h100") == "h100-sxm"
    assert resolve_family("h100-sxm") is None


def test_every_entry_is_whole_and_every_name_is_of_one_gpu() -> None:
    seen: set[str] = set()
    for gpu in gpus():
        names = {gpu.name, *gpu.aliases, *(name.lower() for name in gpu.cuda_names)}
        assert not names & seen, names & seen
        seen |= names
        assert gpu.source
        assert gpu.cuda_names
        assert gpu.memory_bytes >= 16e9
        assert set(gpu.dense_tflops) <= {"bf16", "fp16", "fp8", "tf32", "fp32", "mxfp8", "fp4", "nvfp4", "mxfp4"}
        assert bool(gpu.fp4_source) == ("fp4" in gpu.dense_tflops)
        assert find_gpu(gpu.name) == gpu
        assert all(find_gpu(name) == gpu for name in gpu.cuda_names)


def test_no_listed_peak_is_another_formats_sparse_one() -> None:
    """An entry whose bf16 were copied from the sparse column would be as fast as its own fp8."""
    for gpu in gpus():
        if "fp8" in gpu.dense_tflops:
            assert gpu.dense_tflops["fp8"] == pytest.approx(SPARSITY_GAIN * gpu.dense_16bit_tflops, rel=0.02)


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("DGX-B200", "nvfp4", 72_000 / 8),  # sums over a system, without sparsity
        ("gb300", "nvfp4", 1_080_000 / 72),
        ("gb200", "mxfp4", 720_000 / 72),
        ("b300", "mxfp8", 36_000 / 8),
        ("mi355x", "mxfp4", 10_066.3),
    ],
)
def test_peaks_of_block_formats_are_dense(name: str, dtype: str, tflops: float) -> None:
    assert find_gpu(name).peak_tflops(dtype) == tflops


@pytest.mark.parametrize(("name", "dtype"), [("v100-32", "fp4"), ("h100", "mxfp8"), ("mi355x", "nvfp4")])
def test_a_format_that_a_gpu_does_not_multiply_is_refused_with_the_reason(name: str, dtype: str) -> None:
    with pytest.raises(UsageError, match=f"has no peak in {dtype}: its products need NVIDIA's Blackwell"):
        find_gpu(name).peak_tflops(dtype)


def test_documents_that_differ_are_both_stated() -> None:
    stated = find_gpu("b300").describe_others("nvfp4")[0]
    assert "105 PFLOPS" in stated
    assert "15 PFLOPS" in stated


def test_a_sparse_peak_is_refused_and_a_capped_one_is_not() -> None:
    h100 = find_gpu("h100-sxm")
    assert check_dense(800, "bf16", h100) == 800
    assert check_dense(989, "bf16", h100) == 989
    assert check_dense(1978.9, "fp8", h100) == 1978.9
    with pytest.raises(UsageError, match="sparsity"):
        check_dense(1979, "bf16", h100)
    with pytest.raises(UsageError, match="sparsity"):
        check_dense(624, "bf16", None)
