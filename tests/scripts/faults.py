"""Short trainings of one GPT, each with one fault that costs time, and a clean one: ``faults.py --out DIR CASE...``.

torch is imported once; each case trains in a process of its own (two where its ranks are two) that attaches perfscope.
Its run is ``DIR/CASE``.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import os
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
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
    save_every: int = 0
    saved: int = 0  # elements beside the model
    slow_rank: dict = dataclasses.field(default_factory=dict)  # what is different on the last rank


CASES = {
    "clean": Case(batch=8),
    "pause": Case(in_step=lambda: time.sleep(0.15)),
    "garbage": Case(in_step=gc.collect, holds_objects=True),
    "slow_data": Case(sample_s=0.06),
    "saves": Case(save_every=6, saved=1 << 24),
    "straggler_host": Case(ranks=2, slow_rank={"in_step": lambda: time.sleep(0.2)}),
    "straggler_data": Case(ranks=2, slow_rank={"sample_s": 0.04}),
    "straggler_garbage": Case(ranks=2, steps=32, slow_rank={"in_step": gc.collect, "holds_objects": True}),
    "straggler_saves": Case(ranks=2, steps=32, slow_rank={"save_every": 6, "saved": 1 << 24}),
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
        return {"input_ids": self.tokens[index % len(self.tokens)]}


def train(case, folder):
    model = Gpt(CONFIG)
    if case.ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    batches = iter(DataLoader(Tokens(case), case.batch))
    for step in range(1, case.steps + 1):
        model(next(batches)["input_ids"]).backward()
        if case.in_step is not None:
            case.in_step()
        optimizer.step()
        optimizer.zero_grad()
        if case.save_every and step % case.save_every == 0:
            torch.save([model.state_dict(), optimizer.state_dict(), torch.zeros(case.saved)], folder / "model.pt")


def run(name, folder, rank):
    """Train one rank of a case in this process."""
    case = CASES[name]
    if rank == case.ranks - 1:
        case = dataclasses.replace(case, **case.slow_rank)
    sys.argv = ["faults.py", name]
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(case.ranks), LOCAL_RANK="0")
    attach(str(folder / name), steps="6-7", nvml_hz=0.0)
    torch.set_num_threads(1)
    held = [{"number": number, "list": [number]} for number in range(60_000 * case.holds_objects)]
    if case.ranks > 1:
        store = dist.FileStore(str(folder / f"{name}.store"), case.ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=case.ranks)
    torch.manual_seed(0)
    train(case, folder)
    held.clear()
    if case.ranks > 1:
        dist.destroy_process_group()


def start(name, folder, rank):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with (folder / f"{name}.{rank}.log").open("w", buffering=1) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            run(name, folder, rank)
            code = 0
    except Exception:  # noqa: BLE001 - the parent process reports it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.exit(code)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.cases:
        for _ in [start(name, options.out, rank) for rank in range(CASES[name].ranks)]:
            print(name, "FAILED" if os.wait()[1] else "trained", flush=True)


if __name__ == "__main__":
    main()
