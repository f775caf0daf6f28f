"""Measures what a machine attains at best: products of matrices, copies in memory, and collectives.

``torchrun --nproc-per-node 2 ceiling.py --write FILE --seconds 20``: rank 0 writes JSON. All devices run at once, as in
training. A product of random data takes more power than one of zeros, and is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch import distributed as dist

#: Rows, columns and inner dimension, as training has them: square, projections of a transformer, logits.
SHAPES = (
    (8192, 8192, 8192),
    (8192, 2048, 2048),
    (8192, 8192, 2048),
    (8192, 2048, 8192),
    (8192, 32000, 2048),
    (4096, 4096, 4096),
    (2048, 2048, 2048),
)
SMALL_SHAPES = ((256, 256, 256), (128, 512, 128))
MEMORY_BYTES = (1 << 28, 1 << 30, 1 << 32)
COLLECTIVE_BYTES = (1 << 20, 1 << 24, 1 << 28, 1 << 30)
_REPETITIONS = 4
_SHORTEST_S = 0.02


class CeilingClock:
    """Times calls on one device, until its time is over."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self.device = device
        self.ends = time.monotonic() + seconds

    def is_over(self) -> bool:
        """Whether the time is up, on any rank."""
        over = torch.tensor([float(time.monotonic() > self.ends)], device=self.device)
        if dist.is_initialized():
            dist.all_reduce(over, op=dist.ReduceOp.MAX)
        return bool(over.item())

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds_of(self, call: Callable[[], object]) -> float:
        """The time of one call: the shortest mean of several repetitions, each of some calls."""
        for _ in range(2):
            call()
        self.synchronize()
        began = time.perf_counter()
        call()
        self.synchronize()
        calls = max(1, min(100, int(_SHORTEST_S / max(time.perf_counter() - began, 1e-6))))
        if dist.is_initialized():  # collectives need as many calls on all ranks
            agreed = torch.tensor([calls], device=self.device)
            dist.all_reduce(agreed, op=dist.ReduceOp.MIN)
            calls = int(agreed.item())
        best = float("inf")
        for _ in range(_REPETITIONS):
            self.synchronize()
            began = time.perf_counter()
            for _ in range(calls):
                call()
            self.synchronize()
            best = min(best, (time.perf_counter() - began) / calls)
        return best


def measure_products(clock: CeilingClock) -> Iterator[dict[str, object]]:
    """Products of each data type and shape, in TFLOP/s."""
    is_gpu = clock.device.type == "cuda"
    kinds: list[tuple[str, torch.dtype]] = [("fp32", torch.float32)]
    if is_gpu:
        kinds = [("bf16", torch.bfloat16), ("fp16", torch.float16), ("tf32", torch.float32), *kinds]
    for name, dtype in kinds:
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        for rows, columns, inner in SHAPES if is_gpu else SMALL_SHAPES:
            if clock.is_over():
                return
            if name == "fp32" and is_gpu and rows * columns * inner > 1 << 38:
                continue  # takes long, and attains no more than smaller ones
            first = torch.randn(rows, inner, device=clock.device).to(dtype)
            second = torch.randn(inner, columns, device=clock.device).to(dtype)
            seconds = clock.seconds_of(_product(first, second))
            tflops = 2e-12 * rows * columns * inner / seconds
            yield {"dtype": name, "rows": rows, "columns": columns, "inner": inner, "tflops": tflops}


def _product(first: Tensor, second: Tensor) -> Callable[[], Tensor]:
    return lambda: first @ second


def measure_memory(clock: CeilingClock) -> Iterator[dict[str, object]]:
    """Copies, sums and fills in memory, in TB/s of what is read and written."""
    for size in MEMORY_BYTES if clock.device.type == "cuda" else (1 << 22,):
        if clock.is_over():
            return
        source = torch.empty(size // 2, dtype=torch.bfloat16, device=clock.device).fill_(1)
        target, output = torch.empty_like(source), torch.empty_like(source)
        calls: tuple[tuple[str, int, Callable[[], object]], ...] = (
            ("copy", 2, partial(target.copy_, source)),
            ("add", 3, partial(torch.add, source, target, out=output)),
            ("fill", 1, target.zero_),
        )
        for name, moved, call in calls:
            yield {"operation": name, "bytes": size, "tb_s": moved * size * 1e-12 / clock.seconds_of(call)}


def measure_collectives(clock: CeilingClock) -> Iterator[dict[str, object]]:
    """Collectives of all ranks, in GB/s as nccl-tests defines them."""
    ranks = dist.get_world_size()
    around = (ranks - 1) / ranks
    for size in COLLECTIVE_BYTES if clock.device.type == "cuda" else (1 << 16, 1 << 20):
        if clock.is_over():
            return
        dtype = torch.bfloat16 if clock.device.type == "cuda" else torch.float32
        whole = torch.ones(size // dtype.itemsize // ranks * ranks, dtype=dtype, device=clock.device)
        part = torch.ones(len(whole) // ranks, dtype=dtype, device=clock.device)
        calls: list[tuple[str, float, Callable[[], object]]] = [
            ("all_reduce", 2 * around, partial(dist.all_reduce, whole)),
            ("all_gather", around, partial(dist.all_gather_into_tensor, whole, part)),
        ]
        if clock.device.type == "cuda":
            calls.append(("reduce_scatter", around, partial(dist.reduce_scatter_tensor, part, whole)))
        for name, factor, call in calls:
            seconds = clock.seconds_of(call)
            entry = {"operation": name, "ranks": ranks, "bytes": size}
            yield {**entry, "seconds": seconds, "busbw_gb_s": factor * size * 1e-9 / seconds}


def measure(device: torch.device, seconds: float) -> dict[str, object]:
    """Everything that this machine attains, within some seconds."""
    third = seconds / 3
    result: dict[str, object] = {
        "schema": "perfscope/ceiling/1",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "",
        "devices": dist.get_world_size() if dist.is_initialized() else 1,
        "torch": torch.__version__,
        "measured_ns": time.time_ns(),
        "memory": list(measure_memory(CeilingClock(device, third))),
        "products": list(measure_products(CeilingClock(device, 2 * third))),
    }
    is_parallel = dist.is_initialized() and dist.get_world_size() > 1
    result["collectives"] = list(measure_collectives(CeilingClock(device, third))) if is_parallel else []
    return result


def main() -> None:
    """Measure, and write the answer on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    with torch.no_grad():
        result = measure(device, options.seconds)
    if not dist.is_initialized() or dist.get_rank() == 0:
        options.write.write_text(json.dumps(result))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
