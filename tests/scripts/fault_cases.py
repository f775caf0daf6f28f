"""The trainings of ``faults.py``: what each of them does to itself."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import time
from pathlib import Path

import torch
import torch.distributed as dist

from perfscope.workloads.gpt import GptConfig

# Asking CUDA would start it, and a process that did so cannot fork.
GPU = Path("/dev/nvidia0").exists() or Path("/proc/driver/nvidia").exists()
LARGE = GptConfig(layers=3, hidden=2048, heads=16, vocabulary=8192, seq_len=1025)
MIDDLE = GptConfig(layers=4, hidden=1024, heads=16, vocabulary=4096, seq_len=257)
DEEP = GptConfig(layers=8, hidden=4096, heads=32, vocabulary=8192, seq_len=513)
WIDE = GptConfig(layers=2, hidden=8192, heads=64, vocabulary=8192, seq_len=513)
TINY = GptConfig(layers=6, hidden=128, heads=4, vocabulary=512, seq_len=65)
ON_CPU = GptConfig(layers=2, hidden=96, heads=4, vocabulary=256, seq_len=65)


@dataclasses.dataclass
class Case:
    """One training; see ``CASES``. Times are seconds."""

    config: GptConfig = LARGE
    ranks: int = 1
    batch: int = 16
    accumulation: int = 1
    steps: int = 34
    windows: str = "20-21"
    optimizer: dict = dataclasses.field(default_factory=lambda: {"fused": True})
    eager_attention: bool = False
    recompute: bool = False
    dtype: torch.dtype = torch.bfloat16
    in_block: object = None  # called with the states behind each block
    in_step: object = None  # called with (step, loss, model) before the optimizer
    rival: bool = False  # whether another process multiplies matrices on the GPU
    sample_s: float = 0.0
    workers: int = 0
    pin_memory: bool = True
    feed: int = 0  # bytes that are copied to the device beside each batch
    padding: float = 0.0
    lengths: tuple = ()
    compiles: bool = False
    returns_logits: bool = False  # whether the loss is computed outside of the model
    norm_by_hand: bool = False
    save_every: int = 0
    ddp: dict | None = None
    no_sync: bool = True
    reduce: object = None  # called with the model behind the backward pass
    fsdp1: dict | None = None  # options of FullyShardedDataParallel, which wraps each block
    slow_rank: dict = dataclasses.field(default_factory=dict)  # what is different on the last rank
    stages: tuple = ()
    microbatches: int = 0
    prepare: object = None
    stack: bool = False
    shapes: bool = False
    modules: bool = False


def log_norm(states):
    states.float().norm().item()


def pause(seconds):
    def sleep(*_):
        time.sleep(seconds)

    return sleep


def stall_device(microseconds):
    """The device of this rank does nothing for a while, which no trace shows: CUDA calls the C library's ``usleep``."""

    def stall(*_):
        runtime = ctypes.CDLL(next(path for path in loaded_libraries() if "libcudart" in path))
        function = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        runtime.cudaLaunchHostFunc(stream, function, ctypes.c_void_p(microseconds))

    return stall


def loaded_libraries():
    """The files that are mapped into this process."""
    return {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}


def count(numbers):
    def work(*_):
        total = 0
        for number in range(numbers):
            total += number * number
        return total

    return work


def collect(step, *_):
    gc.collect()


def hold_objects(case):
    case.held = [{"number": number, "list": [number]} for number in range(400_000 if GPU else 60_000)]


def outgrow_cache(step, *_):
    """Ask for more than any cached block, on a device without room for all: the allocator empties its cache.

    What trains takes parts of the blocks, which then cannot be freed: where that is too much, the step goes on without.
    """
    gib = 1 << 30
    if step == FIRST_OUTGROWN:
        limit = torch.cuda.max_memory_reserved() + 4 * gib
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties().total_memory)
    if step >= FIRST_OUTGROWN:
        with contextlib.suppress(torch.OutOfMemoryError):
            torch.empty(2 * gib + step * (16 << 20), dtype=torch.uint8, device="cuda")


def reduce_each(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


FIRST_OUTGROWN = 3
SMALL = {"batch": 4}
#: Large batches: the device, and not the host or the network, is what these trainings wait for.
GATHERED = {"config": DEEP, "ranks": 2, "batch": 20, "steps": 26, "windows": "14-15"}
POWERFUL = {"config": WIDE, "batch": 16, "steps": 40, "windows": "28-29"}
NEVER = "1000"
BY_OPERATORS = {"batch": 8, "shapes": True, "modules": True}
CASES = {
    "clean": Case(),
    "clean_small": Case(**SMALL),
    "clean_8": Case(batch=8),
    "eager_attention": Case(eager_attention=True),
    "recomputation": Case(recompute=True),
    "optimizer_loop": Case(**SMALL, optimizer={"foreach": False}),
    "item": Case(batch=8, in_block=log_norm, stack=True),
    "host_bound": Case(MIDDLE, batch=4, in_block=count(4000)),
    "batch_too_small": Case(TINY, batch=2, steps=40),
    "pause": Case(**SMALL, in_step=pause(0.012)),
    "garbage": Case(**SMALL, in_step=collect, prepare=hold_objects),
    "slow_data": Case(**SMALL, sample_s=0.005),
    "few_workers": Case(**SMALL, sample_s=0.012, workers=2, steps=60),
    "unpinned": Case(**SMALL, feed=64 << 20, pin_memory=False),
    "pinned": Case(**SMALL, feed=64 << 20),
    "recompilation": Case(MIDDLE, batch=4, compiles=True, lengths=tuple(range(32, 257, 8)), steps=40),
    "saves": Case(**SMALL, save_every=6, steps=48),
    "padding": Case(padding=0.6),
    "clean_operators": Case(**BY_OPERATORS, returns_logits=True),
    "norm_by_hand": Case(**BY_OPERATORS, returns_logits=True, norm_by_hand=True),
    "ddp_clean": Case(ranks=2, ddp={}),
    "ddp_no_no_sync": Case(ranks=2, ddp={}, batch=4, accumulation=4, no_sync=False),
    "ddp_tiny_buckets": Case(ranks=2, ddp={"bucket_cap_mb": 0.05}, **SMALL),
    "reduce_each": Case(MIDDLE, ranks=2, batch=8, reduce=reduce_each),
    "fsdp1_clean": Case(**GATHERED, fsdp1={"backward_prefetch": "BACKWARD_PRE", "forward_prefetch": True}),
    "fsdp1_no_prefetch": Case(**GATHERED, fsdp1={"backward_prefetch": None, "forward_prefetch": False}),
    "straggler_host": Case(ranks=2, ddp={}, slow_rank={"in_step": pause(0.03)}, **SMALL),
    "straggler_data": Case(ranks=2, ddp={}, slow_rank={"sample_s": 0.01}, **SMALL),
    "straggler_work": Case(ranks=2, ddp={}, slow_rank={"batch": 24}),
    "straggler_device": Case(ranks=2, ddp={}, slow_rank={"rival": True}),
    "straggler_stall": Case(ranks=2, ddp={}, slow_rank={"in_block": stall_device(3000)}),
    "allocator_retries": Case(**SMALL, in_step=outgrow_cache),
    "power": Case(**POWERFUL),  # products so large that the limit of power is reached
    "pipeline_uneven": Case(MIDDLE, ranks=2, batch=8, stages=(3, 5), microbatches=40, windows=NEVER),
    "pipeline_bubble": Case(MIDDLE, ranks=2, batch=8, stages=(4, 4), microbatches=2, windows=NEVER),
}


def on_cpu(case):
    """The case as it trains on a processor, smaller and with longer faults."""
    changes = {"config": ON_CPU, "dtype": torch.float32, "steps": 16, "batch": min(case.batch, 8)}
    changes |= {"optimizer": {"foreach": False}, "feed": 0, "stack": False, "pin_memory": False}
    if case.sample_s:
        changes |= {"sample_s": 0.06}
    if case.stages:
        stages = (1, 1) if len(set(case.stages)) == 1 else (1, 3)
        changes |= {"stages": stages, "batch": 4, "microbatches": min(case.microbatches, 8), "steps": 10}
    if case.windows != NEVER:
        changes |= {"windows": "6-7"}
    if case.in_step is not None and case.in_step.__name__ == "sleep":
        changes |= {"in_step": pause(0.15)}
    if "sample_s" in case.slow_rank:
        changes |= {"slow_rank": {"sample_s": 0.04}}
    elif "in_step" in case.slow_rank:
        changes |= {"slow_rank": {"in_step": pause(0.2)}}
    if case.compiles:
        changes |= {"lengths": tuple(range(8, 65, 4)), "steps": 11}
    return dataclasses.replace(case, **changes)
