"""Short trainings of one GPT, each with one fault that costs time, and clean twins: ``faults.py --out DIR CASE...``.

torch is imported once; each case trains in a process of its own (two where its ranks are two) that attaches perfscope.
Its run is ``DIR/CASE``. On a GPU the model is larger.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import math
import os
import shutil
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from perfscope.hooks import attach
from perfscope.workloads.gpt import Gpt, GptConfig

# Asking CUDA would start it, and a process that did so cannot fork.
GPU = Path("/dev/nvidia0").exists() or Path("/proc/driver/nvidia").exists()
LARGE = GptConfig(layers=3, hidden=2048, heads=16, vocabulary=8192, seq_len=1025)
MIDDLE = GptConfig(layers=4, hidden=1024, heads=16, vocabulary=4096, seq_len=257)
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
    sample_s: float = 0.0
    workers: int = 0
    pin_memory: bool = True
    feed: int = 0  # bytes that are copied to the device beside each batch
    padding: float = 0.0
    lengths: tuple = ()
    compiles: bool = False
    save_every: int = 0
    ddp: dict | None = None
    no_sync: bool = True
    reduce: object = None  # called with the model behind the backward pass
    fsdp: bool = False
    slow_rank: dict = dataclasses.field(default_factory=dict)  # what is different on the last rank
    stages: tuple = ()
    microbatches: int = 0
    prepare: object = None
    stack: bool = False
    shapes: bool = False


def log_norm(states):
    states.float().norm().item()


def select(states):
    return states.flatten(0, 1)[states.flatten(0, 1)[:, 0] > 0].sum()


def to_host(states):
    states.detach().cpu()


def pause(seconds):
    def sleep(*_):
        time.sleep(seconds)

    return sleep


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


def empty_cache(*_):
    torch.cuda.empty_cache()


def reduce_each(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def reduce_flat(model):
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


SMALL = {"batch": 4}
NEVER = "1000"
CASES = {
    "clean": Case(),
    "clean_small": Case(**SMALL),
    "clean_8": Case(batch=8),
    "eager_attention": Case(eager_attention=True),
    "recomputation": Case(recompute=True),
    "optimizer_loop": Case(**SMALL, optimizer={"foreach": False}),
    "optimizer_foreach": Case(**SMALL, optimizer={}),
    "item": Case(batch=8, in_block=log_norm, stack=True),
    "nonzero": Case(batch=8, in_block=select),
    "to_cpu": Case(batch=8, in_block=to_host),
    "host_bound": Case(MIDDLE, batch=4, in_block=count(4000)),
    "batch_too_small": Case(TINY, batch=2, steps=40),
    "pause": Case(**SMALL, in_step=pause(0.012)),
    "garbage": Case(**SMALL, in_step=collect, prepare=hold_objects),
    "slow_data": Case(**SMALL, sample_s=0.005),
    "few_workers": Case(**SMALL, sample_s=0.012, workers=2, steps=60),
    "unpinned": Case(**SMALL, feed=64 << 20, pin_memory=False),
    "pinned": Case(**SMALL, feed=64 << 20),
    "empty_cache": Case(**SMALL, in_step=empty_cache),
    "recompilation": Case(MIDDLE, batch=4, compiles=True, lengths=tuple(range(32, 257, 8)), steps=40),
    "saves": Case(**SMALL, save_every=6, steps=48),
    "padding": Case(padding=0.6),
    "fp32": Case(batch=2, dtype=torch.float32, steps=28),
    "ddp_clean": Case(ranks=2, ddp={}),
    "ddp_clean_accumulation": Case(ranks=2, ddp={}, batch=4, accumulation=4),
    "ddp_no_no_sync": Case(ranks=2, ddp={}, batch=4, accumulation=4, no_sync=False),
    "ddp_clean_small": Case(ranks=2, ddp={}, **SMALL),
    "ddp_tiny_buckets": Case(ranks=2, ddp={"bucket_cap_mb": 0.05}, **SMALL),
    "ddp_find_unused": Case(MIDDLE, ranks=2, batch=8, ddp={"find_unused_parameters": True}),
    "reduce_each": Case(MIDDLE, ranks=2, batch=8, reduce=reduce_each),
    "reduce_flat": Case(ranks=2, reduce=reduce_flat, **SMALL),
    "fsdp": Case(ranks=2, fsdp=True, batch=1),
    "straggler_host": Case(ranks=2, ddp={}, slow_rank={"in_step": pause(0.03)}, **SMALL),
    "straggler_data": Case(ranks=2, ddp={}, slow_rank={"sample_s": 0.01}, **SMALL),
    "straggler_work": Case(ranks=2, ddp={}, slow_rank={"batch": 24}),
    "pipeline_clean": Case(MIDDLE, ranks=2, batch=8, stages=(4, 4), microbatches=40, windows=NEVER),
    "pipeline_uneven": Case(MIDDLE, ranks=2, batch=8, stages=(3, 5), microbatches=40, windows=NEVER),
    "pipeline_bubble": Case(MIDDLE, ranks=2, batch=8, stages=(4, 4), microbatches=2, windows=NEVER),
}


def on_cpu(name, case):
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


class Tokens(Dataset):
    """Random sequences; each sample takes its time."""

    def __init__(self, case):
        generator = torch.Generator().manual_seed(0)
        shape = 64, case.config.seq_len
        self.tokens = torch.randint(case.config.vocabulary, shape, generator=generator)
        self.case = case

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        if self.case.sample_s:
            time.sleep(self.case.sample_s)
        sample = {"input_ids": self.tokens[index % len(self.tokens)]}
        if self.case.padding:
            kept = round(self.case.config.seq_len * (1 - self.case.padding))
            sample["attention_mask"] = (torch.arange(self.case.config.seq_len) < kept).long()
        return sample


def attend(query, key, value, *, is_causal):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ value


def build(case, device):
    model = Gpt(case.config).to(device, case.dtype)
    for block in model.blocks:
        forward = block.forward

        def run(states, forward=forward):
            states = checkpoint(forward, states, use_reentrant=False) if case.recompute else forward(states)
            if case.in_block is not None:
                case.in_block(states)
            return states

        block.forward = run
    if case.fsdp:
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    if case.compiles:
        torch._dynamo.config.recompile_limit = 64
        model = torch.compile(model, backend="aot_eager" if GPU else "eager", dynamic=False)
    if case.ddp is not None:
        model = DistributedDataParallel(model, device_ids=[device.index] if GPU else None, **case.ddp)
    return model


def train(case, device, folder):
    if case.eager_attention:
        functional.scaled_dot_product_attention = attend
    model = build(case, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **case.optimizer)
    loader = DataLoader(Tokens(case), case.batch, num_workers=case.workers, pin_memory=case.pin_memory)
    batches = iter(loader)
    feed = torch.zeros(case.feed, dtype=torch.uint8, pin_memory=case.pin_memory and GPU)
    for step in range(1, case.steps + 1):
        for part in range(case.accumulation):
            batch = {name: tensor.to(device, non_blocking=True) for name, tensor in next(batches).items()}
            feed.to(device, non_blocking=True)
            tokens = batch["input_ids"]
            if case.lengths:
                tokens = tokens[:, : case.lengths[step % len(case.lengths)]]
            keeps = case.ddp is not None and case.no_sync and part < case.accumulation - 1
            with model.no_sync() if keeps else contextlib.nullcontext():
                loss = model(tokens)
                loss.backward()
        if case.reduce is not None:
            case.reduce(model)
        if case.in_step is not None:
            case.in_step(step, loss, model)
        optimizer.step()
        optimizer.zero_grad()
        if case.save_every and step % case.save_every == 0 and os.environ["RANK"] == "0":
            torch.save([model.state_dict(), optimizer.state_dict()], folder / "model.pt")


def train_pipeline(case, device):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    from perfscope.workloads.gpt_pipeline import Part, loss_of

    rank = dist.get_rank()
    config = dataclasses.replace(case.config, layers=len(case.stages) * case.stages[rank])
    part = Part(config, rank, len(case.stages)).to(device, case.dtype)
    schedule = Schedule1F1B(PipelineStage(part, rank, len(case.stages), device), case.microbatches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, **case.optimizer)
    shape = case.microbatches * case.batch, config.seq_len
    for _ in range(case.steps):
        tokens = torch.randint(config.vocabulary, shape, generator=torch.Generator().manual_seed(0)).to(device)
        if rank == 0:
            schedule.step(tokens[:, :-1].contiguous())
        else:
            schedule.step(target=tokens[:, 1:].contiguous())
        optimizer.step()
        optimizer.zero_grad()


def run(name, folder, rank, gpu):
    """Train one rank of a case in this process."""
    case = CASES[name]
    case = case if GPU else on_cpu(name, case)
    if rank == case.ranks - 1:
        case = dataclasses.replace(case, **case.slow_rank)
    sys.argv = ["faults.py", name]
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(case.ranks), LOCAL_RANK=str(gpu))
    run_dir = folder / name
    attach(str(run_dir), steps=case.windows, nvml_hz=5.0 if GPU else 0.0, stack=case.stack, shapes=case.shapes)
    device = torch.device("cuda", gpu) if GPU else torch.device("cpu")
    if GPU:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    if case.prepare is not None:
        case.prepare(case)
    if case.ranks > 1:
        store = f"file://{folder / name}.store"
        dist.init_process_group("nccl" if GPU else "gloo", init_method=store, rank=rank, world_size=case.ranks)
    torch.manual_seed(0)
    train_pipeline(case, device) if case.stages else train(case, device, folder)
    if GPU:
        torch.cuda.synchronize()
    if case.ranks > 1:
        dist.destroy_process_group()


def start(name, folder, rank, gpu):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with (folder / f"{name}.{rank}.log").open("w", buffering=1) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            run(name, folder, rank, gpu)
            code = 0
    except Exception:  # noqa: BLE001 - the parent process reports it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.exit(code)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--at-once", type=int, default=1, help="ranks that train at once, each on a GPU of its own")
    parser.add_argument("cases", nargs="*", default=list(CASES))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = [name for name in options.cases if CASES[name].ranks == 1]
    groups = [names[start : start + options.at_once] for start in range(0, len(names), options.at_once)]
    pairs = [name for name in options.cases if CASES[name].ranks > 1]
    side_by_side = max(options.at_once // 2, 1)
    groups += [pairs[start : start + side_by_side] for start in range(0, len(pairs), side_by_side)]
    for group in groups:
        began = time.monotonic()
        children = {}
        for name in group:
            shutil.rmtree(options.out / name, ignore_errors=True)
            for rank in range(CASES[name].ranks):
                children[start(name, options.out, rank, group.index(name) * CASES[name].ranks + rank)] = name
        failed = set()
        for _ in range(len(children)):
            pid, status = os.wait()
            if status:
                failed.add(children[pid])
        print(f"{' '.join(group)}: {time.monotonic() - began:.1f} s{''.join(f', {name} FAILED' for name in failed)}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
