"""Short trainings of two ranks, one of them late for one reason, and clean twins: ``late_ranks.py --out DIR CASE...``.

A case is ``STRATEGY.CAUSE``, as ``ddp.garbage``; ``STRATEGY.CAUSE.rare`` puts the cause into a few steps only, and
``STRATEGY.clean.large`` has batches as large as where devices are compared. On GPUs ``STRATEGY.device50`` lets another
process use the late rank's GPU half of the time. ``CASE:100`` trains for 100 steps.
torch is imported once; each rank trains in a process of its own, on a processor of its own where there are two. The
variable ``LATE`` chooses the late rank. Trainings on GPUs are short: devices are
probed more often than in those of hours.
"""

from __future__ import annotations

import argparse
import contextlib
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

from perfscope.hooks import attach, late_writer
from perfscope.hooks.timers import probes
from perfscope.workloads.gpt import Gpt, GptConfig

STRATEGIES = ("ddp", "fsdp2", "deepspeed", "pipeline")
CAUSES = ("clean", "garbage", "data", "contention", "faults", "work", "microbatches", "sleep", "network", "save")
# Asking CUDA would start it, and a process that did so cannot fork.
GPU = Path("/dev/nvidia0").exists() or Path("/proc/driver/nvidia").exists()
LATE = int(os.environ.get("LATE", "1"))
ON_CPU = GptConfig(layers=2, hidden=128, heads=4, vocabulary=512, seq_len=129)
ON_GPU = GptConfig(layers=8, hidden=1024, heads=16, vocabulary=8192, seq_len=513)
STEPS = 300 if GPU else 32
BATCH = 16 if GPU else 4
DTYPE = torch.bfloat16 if GPU else torch.float32
MICROBATCHES = 4
RARE = (9, 14, 15, 22, 28)
DELAY_S = 0.03
RARE_DELAY_S = 0.24
#: A training that takes longer hangs.
MOST_S = 400


class Tokens(Dataset):
    """Random sequences; a sample of the late rank takes its time."""

    def __init__(self, plan):
        self.plan = plan

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        if index % self.plan.batch == 0 and self.plan.is_due("data"):
            time.sleep(self.plan.delay_s)
        config = self.plan.config
        length = config.seq_len if self.plan.is_due("work") else config.seq_len // 2
        return torch.randint(config.vocabulary, (length,), generator=torch.Generator().manual_seed(index))


class Plan:
    """What happens to this rank, and when."""

    def __init__(self, name, rank, folder, steps):
        self.steps = steps
        self.strategy, self.cause, *rest = name.split(".")
        self.is_rare = "rare" in rest
        self.delay_s = RARE_DELAY_S if self.is_rare else DELAY_S
        # Small steps take as long as their launches: more work, or a slower GPU, then makes no rank late.
        self.is_large = GPU and (self.cause.startswith(("work", "microbatches", "device")) or "large" in rest)
        self.batch = BATCH * (4 if self.is_large else 1)
        self.config = ON_GPU if GPU else ON_CPU
        self.rank, self.folder = rank, folder
        self.passes = 2 if self.causes("microbatches") else 1
        self.step = 1
        gc.freeze()  # what the imports made is not looked through
        self.held = [[number] for number in range(400_000)] if self.causes("garbage") else []
        self.rival = None
        self.device = torch.device("cpu")

    def load(self):
        """Batches, pinned where they are large: the host does not wait for their copies."""
        for batch in DataLoader(Tokens(self), self.batch, pin_memory=self.is_large):
            yield batch.to(self.device, non_blocking=True)

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
        if self.rival is not None and self.is_rare:
            os.kill(self.rival, signal.SIGCONT if self.step + 1 in RARE else signal.SIGSTOP)

    def end_step(self, state):
        if self.causes("save") and self.step % 6 == 0:
            torch.save([state, torch.zeros(1 << 24)], self.folder / "model.pt")
        self.step += 1

    def start_rival(self, processor):
        """Let a process compete for this rank's processor, or for its GPU."""
        if self.causes(self.cause) and self.cause.startswith("device"):
            self.rival = os.fork()
            if self.rival == 0:
                use_gpu(int(self.cause.removeprefix("device")) / 100)
        if not self.causes("contention"):
            return
        self.rival = os.fork()
        if self.rival == 0:
            parent = os.getppid()
            os.sched_setaffinity(0, {processor})
            while os.getppid() == parent:
                sum(range(10_000))
            os._exit(0)

    def slow_network(self):
        """Let work of process groups take longer in some steps, on both ranks alike, before perfscope sees it."""
        if self.cause != "network":
            return
        if self.strategy == "ddp":
            return  # its exchange is delayed by a hook for communication
        wait, last = dist.distributed_c10d.Work.wait, [0]

        def delayed(work, *args):
            if self.step in RARE and last[0] != self.step:
                last[0] = self.step
                time.sleep(RARE_DELAY_S)
            return wait(work, *args)

        dist.distributed_c10d.Work.wait = delayed

    def hook(self, _state, bucket):
        if self.step in RARE and bucket.is_last():
            time.sleep(RARE_DELAY_S)
        work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])


def use_gpu(share):
    """Multiply matrices on the late rank's GPU for a share of the time, until the rank ends.

    A burst is launched at once: a GPU leaves a process as soon as that has nothing more to do.
    """
    parent = os.getppid()
    torch.cuda.set_device(LATE)
    matrix = torch.ones(4096, 4096, dtype=torch.bfloat16, device=f"cuda:{LATE}")
    while os.getppid() == parent:
        for _ in range(round(90 * share)):  # 20 ms on an H200 for a share of 1
            matrix @ matrix
        torch.cuda.synchronize()
        time.sleep(0.02 * (1 - share))
    os._exit(0)


def train(plan):
    model = Gpt(plan.config).to(plan.device, DTYPE)
    if plan.strategy == "ddp":
        model = DistributedDataParallel(model)
        if plan.cause == "network":
            model.register_comm_hook(None, plan.hook)
    elif plan.strategy == "fsdp2":
        for block in model.blocks:
            fully_shard(block, reshard_after_forward=plan.cause != "microbatches")
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = plan.load()
    for _ in range(plan.steps):
        for left in reversed(range(plan.passes)):
            with accumulates(model, plan, is_last=not left):
                model(next(batches)).backward()
        plan.disturb()
        optimizer.step()
        optimizer.zero_grad()
        plan.end_step({})


@contextlib.contextmanager
def accumulates(model, plan, *, is_last):
    """A pass that holds no exchange, where another one of the same step follows: only the late rank has two."""
    if plan.passes == 1:
        yield
    elif plan.strategy == "ddp":
        with contextlib.nullcontext() if is_last else model.no_sync():
            yield
    else:
        model.set_requires_gradient_sync(is_last)
        model.set_reshard_after_backward(is_last)
        yield


def train_deepspeed(plan):
    import deepspeed

    model = Gpt(plan.config)
    config = {
        "train_micro_batch_size_per_gpu": plan.batch,
        "gradient_accumulation_steps": plan.passes,
        "bf16": {"enabled": GPU},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
        "steps_per_print": 10**9,
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    batches = plan.load()
    for _ in range(plan.steps):
        for left in reversed(range(plan.passes)):
            engine.backward(engine(next(batches)))
            if not left:
                plan.disturb()
            engine.step()
        plan.end_step({})


def train_pipeline(plan):
    part = Part(plan.config, plan.rank, 2).to(plan.device, DTYPE)
    schedule = Schedule1F1B(PipelineStage(part, plan.rank, 2, plan.device), MICROBATCHES, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4)
    batches = plan.load()
    generator = torch.Generator().manual_seed(0)
    for _ in range(plan.steps):
        next(batches)  # each rank reads, as scripts do
        tokens = torch.randint(
            plan.config.vocabulary, (MICROBATCHES * plan.batch // 4, plan.config.seq_len), generator=generator
        )
        tokens = (tokens.pin_memory() if plan.is_large else tokens).to(plan.device, non_blocking=True)
        if plan.rank == 0:
            schedule.step(tokens[:, :-1].contiguous())
        else:
            schedule.step(target=tokens[:, 1:].contiguous())
        plan.disturb()
        optimizer.step()
        optimizer.zero_grad()
        plan.end_step({})


def prepare(name, port, rank, plan):
    """All that a process does before it trains."""
    sys.argv = ["late_ranks.py", name]
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1")
    os.environ["MASTER_PORT"] = str(port)
    torch.set_num_threads(1)
    processors = sorted(os.sched_getaffinity(0))
    processor = processors[rank % len(processors)]
    if not GPU or plan.cause == "contention":
        os.sched_setaffinity(0, {processor})
    plan.start_rival(processor)
    if GPU:
        plan.device = torch.device("cuda", rank)
        torch.cuda.set_device(plan.device)
        torch.zeros(1, device=plan.device)
        late_writer.PERIOD_S = late_writer.FIRST_PERIOD_S = 0.25
        probes._FEWEST_STEPS, probes._LATER_TURNS = 8, 1


def run(name, steps, port, out, rank):
    plan = Plan(name, rank, out, steps)
    prepare(name, port, rank, plan)
    attach(str(out / name), steps="100000", nvml_hz=5.0 if GPU else 0)
    plan.slow_network()
    if plan.strategy == "deepspeed":
        import deepspeed

        deepspeed.init_distributed("nccl" if GPU else "gloo")
    else:
        dist.init_process_group("nccl" if GPU else "gloo")
    torch.manual_seed(0)
    {"deepspeed": train_deepspeed, "pipeline": train_pipeline}.get(plan.strategy, train)(plan)
    dist.barrier()
    if plan.rival is not None:
        os.kill(plan.rival, signal.SIGKILL)
    dist.destroy_process_group()


def start(name, steps, port, out, rank):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with (out / f"{name}.{rank}.log").open("w", buffering=1) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            run(name, steps, port, out, rank)
            code = 0
    except Exception:  # noqa: BLE001 - the parent process reports it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.exit(code)


def wait(children):
    """Wait until all processes have ended, and say whether they have failed; those that hang are killed."""
    began, has_failed = time.monotonic(), False
    while children:
        for child in list(children):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                children.remove(child)
                has_failed |= bool(status)
            elif time.monotonic() - began > MOST_S:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return has_failed


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
    for text in options.cases:
        name, _, steps = text.partition(":")
        began, port = time.monotonic(), free_port()
        children = [start(name, int(steps or STEPS), port, options.out, rank) for rank in (0, 1)]
        has_failed = wait(children)
        print(f"{name}: {time.monotonic() - began:.1f} s{' FAILED' if has_failed else ''}", flush=True)


if __name__ == "__main__":
    main()
