"""Short trainings of two ranks, one of them late for one reason, and clean twins: ``late_ranks.py --out DIR CASE...``.

A case is ``STRATEGY.CAUSE``, as ``ddp.garbage``; ``STRATEGY.CAUSE.rare`` puts the cause into a few steps only. torch is
imported once. Each rank trains in a process of its own, on a processor of its own where there are two.
"""

from __future__ import annotations

import argparse
import gc
import mmap
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from gpt_pipeline import Part, loss_of
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from perfscope.hooks import attach
from perfscope.workloads.gpt import Gpt, GptConfig

CONFIG = GptConfig(layers=2, hidden=128, heads=4, vocabulary=512, seq_len=129)
LATE, STEPS, BATCH, MICROBATCHES = 1, 32, 4, 4
RARE = (9, 14, 15, 22, 28)
DELAY_S, RARE_DELAY_S = 0.03, 0.24


class Plan:
    """What happens to this rank, and when."""

    def __init__(self, name, rank, folder):
        self.strategy, self.cause, *rest = name.split(".")
        self.is_rare = "rare" in rest
        self.delay_s = RARE_DELAY_S if self.is_rare else DELAY_S
        self.rank, self.folder, self.step = rank, folder, 1
        gc.freeze()  # what the imports made is not looked through
        self.held = [[number] for number in range(400_000)] if self.causes("garbage") else []
        self.rival = None

    def causes(self, cause):
        return self.cause == cause and self.rank == LATE

    def is_due(self, cause):
        return self.causes(cause) and (not self.is_rare or self.step in RARE)

    def disturb(self):
        """Do on the host what makes this rank late, in the middle of a step."""
        if self.is_due("garbage"):
            gc.collect()
        if self.is_due("sleep"):
            time.sleep(self.delay_s)
        if self.is_due("faults"):
            with mmap.mmap(-1, 128 << 20) as memory:
                for page in range(0, len(memory), mmap.PAGESIZE):
                    memory[page] = 1

    def end_step(self, optimizer):
        self.disturb()
        optimizer.step()
        optimizer.zero_grad()
        if self.causes("save") and self.step % 6 == 0:
            torch.save(torch.zeros(1 << 24), self.folder / "model.pt")
        self.step += 1

    def start_rival(self, processor):
        """Let a process compete for this rank's processor."""
        self.rival = os.fork() if self.causes("contention") else None
        if self.rival == 0:
            parent = os.getppid()
            os.sched_setaffinity(0, {processor})
            while os.getppid() == parent:
                sum(range(10_000))
            os._exit(0)


class Tokens(Dataset):
    """Random sequences; a sample of the late rank takes its time."""

    def __init__(self, plan):
        self.plan = plan

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        if index % BATCH == 0 and self.plan.is_due("data"):
            time.sleep(self.plan.delay_s)
        length = CONFIG.seq_len if self.plan.is_due("work") else CONFIG.seq_len // 2
        return torch.randint(CONFIG.vocabulary, (length,), generator=torch.Generator().manual_seed(index))


def train(plan):
    model = Gpt(CONFIG)
    if plan.strategy == "ddp":
        model = DistributedDataParallel(model)
    else:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = iter(DataLoader(Tokens(plan), BATCH))
    for _ in range(STEPS):
        model(next(batches)).backward()
        plan.end_step(optimizer)


def train_pipeline(plan):
    part = Part(CONFIG, plan.rank, 2)
    schedule = Schedule1F1B(PipelineStage(part, plan.rank, 2, torch.device("cpu")), MICROBATCHES, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4)
    batches = iter(DataLoader(Tokens(plan), BATCH))
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        next(batches)  # each rank reads, as scripts do
        tokens = torch.randint(CONFIG.vocabulary, (BATCH, CONFIG.seq_len), generator=generator)
        if plan.rank == 0:
            schedule.step(tokens[:, :-1].contiguous())
        else:
            schedule.step(target=tokens[:, 1:].contiguous())
        plan.end_step(optimizer)


def run(name, port, out, rank):
    plan = Plan(name, rank, out)
    sys.argv = ["late_ranks.py", name]
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1")
    os.environ["MASTER_PORT"] = str(port)
    torch.set_num_threads(1)
    processors = sorted(os.sched_getaffinity(0))
    processor = processors[rank % len(processors)]
    os.sched_setaffinity(0, {processor})
    plan.start_rival(processor)
    attach(str(out / name), steps="100000", nvml_hz=0)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    (train_pipeline if plan.strategy == "pipeline" else train)(plan)
    dist.barrier()
    if plan.rival is not None:
        os.kill(plan.rival, signal.SIGKILL)
    dist.destroy_process_group()


def start(name, port, out, rank):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with (out / f"{name}.{rank}.log").open("w", buffering=1) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            run(name, port, out, rank)
            code = 0
    except Exception:  # noqa: BLE001 - the parent process reports it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.exit(code)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("cases", nargs="+")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.cases:
        port = free_port()
        children = [start(name, port, options.out, rank) for rank in (0, 1)]
        statuses = [os.waitpid(child, 0)[1] for child in children]
        print(name, "FAILED" if any(statuses) else "trained", flush=True)


if __name__ == "__main__":
    main()
