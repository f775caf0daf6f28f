"""The benchmark that measures undisturbed steps adds up what a device did."""

from __future__ import annotations

from benchmarks.undisturbed_steps import add_up


def test_overlapping_kernels_count_once_and_those_that_spin_or_communicate_not_at_all() -> None:
    def event(name: str, start: float, duration: float, category: str = "kernel") -> dict[str, object]:
        return {"cat": category, "name": name, "ts": start, "dur": duration}

    events = [
        event("FillFunctor of the barrier", 0.5, 2.0),
        event("spin_kernel(long)", 3.0, 87.0),
        event("gemm", 100.0, 10.0),
        event("other", 105.0, 10.0),
        event("Memcpy HtoD", 120.5, 2.25, "gpu_memcpy"),
        event("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 101.0, 400.0),
        event("cudaLaunchKernel", 1.0, 50.0, "cuda_runtime"),
    ]
    assert add_up(events) == (15_000 + 2_250, 22_750)
