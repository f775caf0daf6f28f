"""Short trainings of two ranks, one of them late for one reason, and clean twins: ``late_ranks.py --out DIR CASE...``.

A case is ``STRATEGY.CAUSE``, as ``ddp.garbage``; ``STRATEGY.CAUSE.rare`` puts the cause into a few steps only, and
``STRATEGY.clean.large`` has batches as large as where devices are compared. On GPUs ``STRATEGY.device50`` lets another
process use the late rank's GPU half of the time. ``CASE:100`` trains for 100 steps.
torch is imported once; each rank trains in a process of its own, on a processor of its own where there are two.

``--overlap`` lets the processes of the next case start while one trains, on the other half of the processors: they wait
for a file before they do. ``--limit`` begins no case that would not end within so many seconds. The variable ``LATE``
chooses the late rank. Trainings on GPUs are short: devices are probed more often than in those of hours.

The variable ``SHARE`` lets both ranks use halves of one GPU (``shared_gpu.py``). ``STRATEGY.slow33`` then gives the
late rank 33 % of it instead of 50 %, and the work of ``STRATEGY.device50`` is launched by a thread of the late rank.
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
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import shared_gpu
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from perfscope.hooks import attach, late_writer
from perfscope.hooks.timers import probes
from perfscope.workloads.gpt import Gpt, GptConfig
from perfscope.workloads.gpt_pipeline import Part, loss_of

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
#: The step behind which another process uses a GPU: the start of a training is no part of the matter.
WARM = 3
#: A training that takes longer hangs.
MOST_S = 40


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
        self.is_large = GPU and (self.cause.startswith(("work", "microbatches", "device", "slow")) or "large" in rest)
        self.batch = BATCH * (4 if self.is_large else 1)
        self.config = ON_GPU if GPU else ON_CPU
        if shared_gpu.IS_SHARED and GPU:
            self.config = shared_gpu.LARGE if self.is_large else shared_gpu.SMALL
        self.rank, self.folder = rank, folder
        self.passes = 2 if self.causes("microbatches") else 1
        self.step = 1
        gc.freeze()  # what the imports made is not looked through
        self.held = [[number] for number in range(400_000)] if self.causes("garbage") else []
        self.rival = None
        self.is_over = threading.Event()
        self.processor, self.others = None, set()
        self.gate = None
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
        if self.step == WARM and self.gate is not None:
            self.gate.with_suffix(".warm").touch()
        if self.step == WARM:
            self.disturb_later()
        if self.causes("save") and self.step % 6 == 0:
            torch.save([state, torch.zeros(1 << 24)], self.folder / "model.pt")
        self.step += 1

    def disturb_later(self):
        """Do what needs the threads of a training that runs, where ranks share a GPU."""
        if self.processor is not None:
            shared_gpu.bind_training(self.processor, self.others)
        if shared_gpu.IS_SHARED and GPU and self.causes(self.cause) and self.cause.startswith("device"):
            share = int(self.cause.removeprefix("device")) / 100
            use = threading.Thread(target=shared_gpu.use_part, args=(share, self.device, self.is_over), daemon=True)
            use.start()

    def start_rival(self):
        """Let a process compete for this rank's processor, or for its GPU."""
        if self.causes(self.cause) and self.cause.startswith("device") and not shared_gpu.IS_SHARED:
            self.rival = os.fork()
            if self.rival == 0:
                use_gpu(int(self.cause.removeprefix("device")) / 100, self.gate)
        if not self.causes("contention"):
            return
        self.rival = os.fork()
        if self.rival == 0:
            parent = os.getppid()
            if self.processor is not None:
                os.sched_setaffinity(0, {self.processor})
            wait_for(self.gate)
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


def wait_for(gate):
    """Wait until the case before has ended; a process whose parent is gone ends."""
    parent = os.getppid()
    while gate is not None and not gate.exists():
        if os.getppid() != parent:
            os._exit(1)
        time.sleep(0.005)


def use_gpu(share, gate):
    """Multiply matrices on the late rank's GPU for a share of the time, until the rank ends.

    A burst is launched at once: a GPU leaves a process as soon as that has nothing more to do.
    """
    parent = os.getppid()
    torch.cuda.set_device(LATE)
    matrix = torch.ones(4096, 4096, dtype=torch.bfloat16, device=f"cuda:{LATE}")
    wait_for(None if gate is None else gate.with_suffix(".warm"))
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
        # On a third of an H200 gradients of this model are not finite: updates are not skipped for it.
        "bf16": {"enabled": GPU, "check_grad_overflow": not shared_gpu.IS_SHARED},
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


def prepare(case, rank, plan):
    """All that a process does before it trains and that another training does not notice."""
    sys.argv = ["late_ranks.py", case.name]
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1")
    os.environ["MASTER_PORT"] = str(case.port)
    torch.set_num_threads(1)
    processors = sorted(os.sched_getaffinity(0))
    if case.half is not None and len(processors) > 3:
        processors = [processor for processor in processors if processor % 2 == case.half]
        os.sched_setaffinity(0, processors)
    processor = processors[rank % len(processors)]
    if shared_gpu.IS_SHARED:
        is_slow = plan.causes(plan.cause) and plan.cause.startswith("slow")
        shared_gpu.take_part(rank, int(plan.cause.removeprefix("slow")) if is_slow else shared_gpu.HALF)
        if plan.cause == "contention":
            plan.processor, plan.others = processor, set(processors[2:] or processors)
    elif not GPU or plan.cause == "contention":
        os.sched_setaffinity(0, {processor})
    plan.gate = case.gate
    plan.start_rival()
    if GPU:
        plan.device = torch.device("cuda", 0 if shared_gpu.IS_SHARED else rank)
        torch.cuda.set_device(plan.device)
        torch.zeros(1, device=plan.device)
        late_writer.PERIOD_S = late_writer.FIRST_PERIOD_S = 0.25
        probes._FEWEST_STEPS, probes._LATER_TURNS = 8, 1
    if plan.strategy == "deepspeed":
        import deepspeed  # noqa: F401
    wait_for(case.gate)


def run(case, out, rank):
    plan = Plan(case.name, rank, out, case.steps)
    prepare(case, rank, plan)
    attach(str(out / case.name), steps="100000", nvml_hz=5.0 if GPU else 0)
    plan.slow_network()
    if plan.strategy == "deepspeed":
        import deepspeed

        deepspeed.init_distributed("nccl" if GPU else "gloo")
    else:
        dist.init_process_group("nccl" if GPU else "gloo")
    torch.manual_seed(0)
    {"deepspeed": train_deepspeed, "pipeline": train_pipeline}.get(plan.strategy, train)(plan)
    plan.is_over.set()
    dist.barrier()
    if plan.rival is not None:
        os.kill(plan.rival, signal.SIGKILL)
    if case.gate is not None:
        case.gate.with_suffix(f".done{rank}").touch()
    dist.destroy_process_group()


@dataclass
class Case:
    """One training: its gate is a file that lets its processes train, and its half that of the processors."""

    name: str
    steps: int
    port: int
    gate: Path | None = None
    half: int | None = None
    children: list[int] = field(default_factory=list)
    has_failed: bool = False

    def start(self, out):
        self.children = [start(self, out, rank) for rank in (0, 1)]

    def wait(self, began, *, to_the_end):
        """Wait until both processes have trained, or have ended; those that hang are killed."""
        while self.children and (to_the_end or not self.has_trained()):
            for child in list(self.children):
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    self.children.remove(child)
                    self.has_failed |= bool(status)
                elif time.monotonic() - began > MOST_S * (1 if self.gate else 10):
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.01)

    def has_trained(self):
        return self.gate is not None and all(self.gate.with_suffix(f".done{rank}").exists() for rank in (0, 1))


def start(case, out, rank):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with (out / f"{case.name}.{rank}.log").open("w", buffering=1) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            run(case, out, rank)
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
    parser.add_argument("--port", type=int, default=0, help="of the first training; a free one for each where 0")
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds")
    parser.add_argument("cases", nargs="+")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    first = time.monotonic()
    cases = []
    for number, text in enumerate(options.cases):
        name, _, steps = text.partition(":")
        gate = options.out / f"{name.replace('.', '-')}.gate" if options.overlap else None
        half = number % 2 if options.overlap else None
        cases.append(
            Case(name, int(steps or STEPS), options.port + number if options.port else free_port(), gate, half)
        )
    for number, (case, following) in enumerate(zip(cases, [*cases[1:], None], strict=True)):
        began = time.monotonic()
        if (began - first) * (number + 1.5) / max(number, 1) > options.limit:  # as long as the others took
            break
        if not case.children:
            case.start(options.out)
        if case.gate is not None:
            case.gate.touch()
            if following is not None:
                following.start(options.out)
        case.wait(began, to_the_end=case.gate is None)
        print(f"{case.name}: {time.monotonic() - began:.1f} s{' FAILED' if case.has_failed else ''}", flush=True)
    for case in cases:
        if case.gate is not None and case.gate.exists():
            case.wait(time.monotonic(), to_the_end=True)
            print(f"{case.name} FAILED\n" if case.has_failed else "", end="", flush=True)
            for suffix in (".gate", ".warm", ".done0", ".done1"):
                case.gate.with_suffix(suffix).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
