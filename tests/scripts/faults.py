"""Short trainings of one GPT, each with one fault that costs time, and clean twins: ``faults.py --out DIR CASE...``.

torch is imported once; each case trains in a process of its own (two where its ranks are two) that attaches perfscope.
Its run is ``DIR/CASE``. On a GPU the model is larger. With ``--together N`` so many cases prepare at once,
and then train in turns: preparing takes longer than training, and only training is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import math
import os
import shutil
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from fault_cases import CASES, GPU, on_cpu
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from perfscope.hooks import attach
from perfscope.workloads.gpt import Block, Gpt


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


class Logits(Gpt):
    """A GPT that returns its logits, and leaves to the script what is trained on them."""

    def forward(self, tokens):
        states = self.tokens(tokens[:, :-1]) + self.positions.weight[: tokens.shape[1] - 1]
        for block in self.blocks:
            states = block(states)
        return functional.linear(self.norm(states), self.tokens.weight)


def loss_of(case, model, tokens):
    if not case.returns_logits:
        return model(tokens)
    return model(tokens).square().mean()


class NormByHand(torch.nn.LayerNorm):
    """A norm of many operators, each of which goes over all states."""

    def forward(self, states):
        wide = states.float()
        centred = wide - wide.mean(-1, keepdim=True)
        scaled = centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + self.eps)
        return scaled.to(states.dtype) * self.weight + self.bias


def change_parts(case, model):
    if case.norm_by_hand:
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.__class__ = NormByHand


def build(case, device):
    with device:  # a processor takes many seconds for the random numbers of a large model
        model = (Logits if case.returns_logits else Gpt)(case.config).to(case.dtype)
    change_parts(case, model)
    for block in model.blocks:
        forward = block.forward

        def run(states, forward=forward):
            states = checkpoint(forward, states, use_reentrant=False) if case.recompute else forward(states)
            if case.in_block is not None:
                case.in_block(states)
            return states

        block.forward = run
    if case.fsdp1 is not None:
        model = shard_by_fsdp1(case, model, device)
    if case.compiles:
        torch._dynamo.config.recompile_limit = 64
        model = torch.compile(model, backend="aot_eager" if GPU else "eager", dynamic=False)
    if case.ddp is not None:
        model = DistributedDataParallel(model, device_ids=[device.index] if GPU else None, **case.ddp)
    return model


def shard_by_fsdp1(case, model, device):
    from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    prefetch = case.fsdp1["backward_prefetch"]
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        use_orig_params=True,
        device_id=device if GPU else None,
        backward_prefetch=BackwardPrefetch[prefetch] if prefetch else None,
        forward_prefetch=case.fsdp1["forward_prefetch"],
    )


def train(case, device, folder, turn):
    if case.eager_attention:
        functional.scaled_dot_product_attention = attend
    model = build(case, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **case.optimizer)
    loader = DataLoader(Tokens(case), case.batch, num_workers=case.workers, pin_memory=case.pin_memory)
    turn.take()
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
                loss = loss_of(case, model, tokens)
                loss.backward()
        if case.reduce is not None:
            case.reduce(model)
        if case.in_step is not None:
            case.in_step(step, loss, model)
        optimizer.step()
        optimizer.zero_grad()
        if case.save_every and step % case.save_every == 0 and os.environ["RANK"] == "0":
            torch.save([model.state_dict(), optimizer.state_dict()], folder / "model.pt")


def train_pipeline(case, device, turn):
    from gpt_pipeline import Part, loss_of
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank = dist.get_rank()
    config = dataclasses.replace(case.config, layers=len(case.stages) * case.stages[rank])
    with device:
        part = Part(config, rank, len(case.stages)).to(case.dtype)
    schedule = Schedule1F1B(PipelineStage(part, rank, len(case.stages), device), case.microbatches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, **case.optimizer)
    shape = case.microbatches * case.batch, config.seq_len
    turn.take()
    for _ in range(case.steps):
        tokens = torch.randint(config.vocabulary, shape, generator=torch.Generator().manual_seed(0)).to(device)
        if rank == 0:
            schedule.step(tokens[:, :-1].contiguous())
        else:
            schedule.step(target=tokens[:, 1:].contiguous())
        optimizer.step()
        optimizer.zero_grad()


def multiply(gpu, turn):
    """Multiply matrices on a GPU from its turn on, until the process that started this one ends."""
    os.close(turn.prepared)
    parent = os.getppid()
    torch.cuda.set_device(gpu)
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    while os.getppid() == parent:
        if not turn.taken.exists():
            time.sleep(0.001)
            continue
        for _ in range(20):
            matrix @ matrix
        torch.cuda.synchronize()
    os._exit(0)


class Turn:
    """The turn of a training that shares its machine: it begins when all of its group are prepared.

    Args:
        folder: Of all trainings. A file in it is locked by the training whose turn it is.
        name: The training.
        rank: The rank; the first one takes the turn.
        prepared: A pipe that all of the group close when they are prepared.
    """

    def __init__(self, folder, name, rank, prepared):
        self.taken, self.rank, self.prepared = folder / f"{name}.{rank}.turn", rank, prepared
        self.file = (folder / "turn").open("w")
        self.store = None  # where the first rank tells the others

    def take(self):
        if GPU:
            torch.cuda.synchronize()
        os.close(self.prepared)
        if self.rank == 0:
            fcntl.flock(self.file, fcntl.LOCK_EX)
            if self.store is not None:
                self.store.set("turn", "taken")
        else:
            self.store.wait(["turn"])
        self.taken.touch()


def run(name, folder, rank, gpu, turn):
    """Train one rank of a case in this process."""
    case = CASES[name]
    case = case if GPU else on_cpu(case)
    if rank == case.ranks - 1:
        case = dataclasses.replace(case, **case.slow_rank)
    sys.argv = ["faults.py", name]
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(case.ranks), LOCAL_RANK=str(gpu))
    if case.rival and GPU and os.fork() == 0:
        multiply(gpu, turn)
    run_dir = folder / name
    recorded = {"stack": case.stack, "shapes": case.shapes, "modules": case.modules}
    attach(str(run_dir), steps=case.windows, nvml_hz=5.0 if GPU else 0.0, **recorded)
    device = torch.device("cuda", gpu) if GPU else torch.device("cpu")
    if GPU:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    if case.prepare is not None:
        case.prepare(case)
    if case.ranks > 1:
        turn.store = dist.FileStore(str(folder / f"{name}.store"), case.ranks)
        dist.init_process_group("nccl" if GPU else "gloo", store=turn.store, rank=rank, world_size=case.ranks)
    torch.manual_seed(0)
    if case.stages:
        train_pipeline(case, device, turn)
    else:
        train(case, device, folder, turn)
    if GPU:
        torch.cuda.synchronize()
    if case.ranks > 1:
        dist.destroy_process_group()


def start(name, folder, rank, gpu, prepared):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with (folder / f"{name}.{rank}.log").open("w", buffering=1) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            run(name, folder, rank, gpu, Turn(folder, name, rank, prepared))
            code = 0
    except Exception:  # noqa: BLE001 - the parent process reports it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.exit(code)


def train_group(names, folder, gpus):
    """Train some cases at once; they take turns where there are more of them than GPUs."""
    began = time.monotonic()
    all_prepared, prepared = os.pipe()
    with (folder / "turn").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        children = {}
        for name in names:
            shutil.rmtree(folder / name, ignore_errors=True)
            for file in folder.glob(f"{name}.*"):
                file.unlink()
            for rank in range(CASES[name].ranks):
                gpu = (names.index(name) * CASES[name].ranks + rank) % gpus
                children[start(name, folder, rank, gpu, prepared)] = name
        os.close(prepared)
        os.read(all_prepared, 1)
        os.close(all_prepared)
        fcntl.flock(turn, fcntl.LOCK_UN)  # the children have inherited the file: closing it would not unlock it
    failed = set()
    for _ in range(len(children)):
        pid, status = os.wait()
        if status:
            failed.add(children[pid])
    print(f"{' '.join(names)}: {time.monotonic() - began:.1f} s{''.join(f', {name} FAILED' for name in failed)}")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=1, help="how many GPUs there are")
    parser.add_argument("--together", type=int, default=1, help="cases that prepare at once")
    parser.add_argument("cases", nargs="*", default=list(CASES))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for start_at in range(0, len(options.cases), options.together):
        train_group(options.cases[start_at : start_at + options.together], options.out, options.gpus)


if __name__ == "__main__":
    main()
