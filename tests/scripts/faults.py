"""Short trainings of one GPT, each with one fault that costs time, and a clean one: ``faults.py --out DIR CASE...``.

torch is imported once; each case trains in a process of its own (two where its ranks are two) that attaches perfscope.
Its run is ``DIR/CASE``. With ``--together N`` so many cases prepare at once, and then train in turns: preparing takes
longer than training, and only training is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import gc
import os
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from gpt_pipeline import Part, loss_of
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from perfscope.hooks import attach
from perfscope.workloads.gpt import Gpt, GptConfig

CONFIG = GptConfig(layers=2, hidden=96, heads=4, vocabulary=256, seq_len=65)


@dataclasses.dataclass
class Case:
    """One training; times are seconds."""

    ranks: int = 1
    batch: int = 4
    steps: int = 16
    in_step: object = None  # called before the optimizer
    holds_objects: bool = False
    sample_s: float = 0.0
    workers: int = 0
    padding: float = 0.0
    lengths: tuple = ()  # of sequences, for each of which the model is compiled
    save_every: int = 0
    saved: int = 0  # elements beside the model
    slow_rank: dict = dataclasses.field(default_factory=dict)  # what is different on the last rank
    microbatches: int = 0  # of a pipeline


CASES = {
    "clean": Case(batch=8),
    "pause": Case(in_step=lambda: time.sleep(0.15)),
    "garbage": Case(in_step=gc.collect, holds_objects=True),
    "slow_data": Case(sample_s=0.06),
    "few_workers": Case(sample_s=0.06, workers=2),
    "recompilation": Case(lengths=tuple(range(8, 65, 4)), steps=11),
    "saves": Case(save_every=6, saved=1 << 24),
    "padding": Case(batch=8, padding=0.6),
    "straggler_host": Case(ranks=2, slow_rank={"in_step": lambda: time.sleep(0.2)}),
    "straggler_data": Case(ranks=2, slow_rank={"sample_s": 0.04}),
    "straggler_garbage": Case(ranks=2, steps=32, slow_rank={"in_step": gc.collect, "holds_objects": True}),
    "straggler_saves": Case(ranks=2, steps=32, slow_rank={"save_every": 6, "saved": 1 << 24}),
    "pipeline_bubble": Case(ranks=2, microbatches=2, steps=10),
}


class Tokens(Dataset):
    """Random sequences; each sample takes its time."""

    def __init__(self, case):
        self.case = case
        self.tokens = torch.randint(CONFIG.vocabulary, (64, CONFIG.seq_len))

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        if self.case.sample_s:
            time.sleep(self.case.sample_s)
        sample = {"input_ids": self.tokens[index % len(self.tokens)]}
        if self.case.padding:
            kept = round(CONFIG.seq_len * (1 - self.case.padding))
            sample["attention_mask"] = (torch.arange(CONFIG.seq_len) < kept).long()
        return sample


def train(case, folder, turn):
    model = Gpt(CONFIG)
    if case.lengths:
        torch._dynamo.config.recompile_limit = 64
        model = torch.compile(model, backend="eager", dynamic=False)
    if case.ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    loader = DataLoader(Tokens(case), case.batch, num_workers=case.workers)
    turn.take()
    batches = iter(loader)
    for step in range(1, case.steps + 1):
        tokens = next(batches)["input_ids"]
        if case.lengths:
            tokens = tokens[:, : case.lengths[step % len(case.lengths)]]
        model(tokens).backward()
        if case.in_step is not None:
            case.in_step()
        optimizer.step()
        optimizer.zero_grad()
        if case.save_every and step % case.save_every == 0:
            torch.save([model.state_dict(), optimizer.state_dict(), torch.zeros(case.saved)], folder / "model.pt")


def train_pipeline(case, turn):
    rank = dist.get_rank()
    part = Part(CONFIG, rank, 2)
    schedule = Schedule1F1B(PipelineStage(part, rank, 2, torch.device("cpu")), case.microbatches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, foreach=False)
    turn.take()
    for _ in range(case.steps):
        tokens = torch.randint(CONFIG.vocabulary, (case.microbatches * case.batch, CONFIG.seq_len))
        if rank == 0:
            schedule.step(tokens[:, :-1].contiguous())
        else:
            schedule.step(target=tokens[:, 1:].contiguous())
        optimizer.step()
        optimizer.zero_grad()


class Turn:
    """The turn of a training that shares its machine: it begins when all of its group are prepared.

    The first rank locks a file in the folder of all trainings. ``prepared`` is a pipe that all of the group close.
    """

    def __init__(self, folder, rank, prepared):
        self.rank, self.prepared = rank, prepared
        self.file = (folder / "turn").open("w")
        self.store = None  # where the first rank tells the others

    def take(self):
        os.close(self.prepared)
        if self.rank == 0:
            fcntl.flock(self.file, fcntl.LOCK_EX)
            if self.store is not None:
                self.store.set("turn", "taken")
        else:
            self.store.wait(["turn"])


def run(name, folder, rank, turn):
    """Train one rank of a case in this process."""
    case = CASES[name]
    if rank == case.ranks - 1:
        case = dataclasses.replace(case, **case.slow_rank)
    sys.argv = ["faults.py", name]
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(case.ranks), LOCAL_RANK="0")
    attach(str(folder / name), steps="1000" if case.microbatches else "6-7", nvml_hz=0.0)
    torch.set_num_threads(1)
    held = [{"number": number, "list": [number]} for number in range(60_000 * case.holds_objects)]
    if case.ranks > 1:
        turn.store = dist.FileStore(str(folder / f"{name}.store"), case.ranks)
        dist.init_process_group("gloo", store=turn.store, rank=rank, world_size=case.ranks)
    torch.manual_seed(0)
    if case.microbatches:
        train_pipeline(case, turn)
    else:
        train(case, folder, turn)
    held.clear()
    if case.ranks > 1:
        dist.destroy_process_group()


def start(name, folder, rank, prepared):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with (folder / f"{name}.{rank}.log").open("w", buffering=1) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            run(name, folder, rank, Turn(folder, rank, prepared))
            code = 0
    except Exception:  # noqa: BLE001 - the parent process reports it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.exit(code)


def train_group(names, folder):
    """Train some cases, in turns."""
    all_prepared, prepared = os.pipe()
    with (folder / "turn").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        ranks = [(name, rank) for name in names for rank in range(CASES[name].ranks)]
        children = {start(name, folder, rank, prepared): name for name, rank in ranks}
        os.close(prepared)
        os.read(all_prepared, 1)
        os.close(all_prepared)
        fcntl.flock(turn, fcntl.LOCK_UN)  # the children have inherited the file: closing it would not unlock it
    for _ in children:
        pid, status = os.wait()
        print(children[pid], "FAILED" if status else "trained", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--together", type=int, default=1, help="cases that prepare at once")
    parser.add_argument("cases", nargs="*", default=list(CASES))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for first in range(0, len(options.cases), options.together):
        train_group(options.cases[first : first + options.together], options.out)


if __name__ == "__main__":
    main()
