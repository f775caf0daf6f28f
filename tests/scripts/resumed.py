"""Trains, saves and resumes: ``resumed.py RUN CHECKPOINT TRUTH --steps N [--kill-after N]``; it adds times to TRUTH."""

import argparse
import json
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from perfscope.hooks import attach

parser = argparse.ArgumentParser()
parser.add_argument("run")
parser.add_argument("checkpoint", type=Path)
parser.add_argument("truth", type=Path)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--kill-after", type=int)
parser.add_argument("--step-s", type=float, default=0.6)
options = parser.parse_args()
attach(options.run, steps="100000", nvml_hz=0)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
filler = torch.zeros(1 << 24)
first = 1
if options.checkpoint.exists():
    state = torch.load(options.checkpoint)
    model.load_state_dict(state["model"])
    first = state["step"] + 1
times = {"pid": os.getpid(), "first": first, "steps_ns": [], "saves_ns": [], "ends_ns": []}


def write():
    with options.truth.open("a") as file:
        file.write(json.dumps({**times, "written_ns": time.time_ns()}) + "\n")


began_ns = time.time_ns()
for step, batch in enumerate(DataLoader(torch.randn(options.steps * 4, 8), batch_size=4), 1):
    if step < first:
        continue
    loss = model(batch).square().mean()
    time.sleep(options.step_s)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    ended_ns = time.time_ns()
    times["steps_ns"].append(ended_ns - began_ns)
    times["ends_ns"].append(ended_ns)
    if step % 3 == 0:
        saved_ns = time.time_ns()
        torch.save({"model": model.state_dict(), "step": step, "filler": filler}, options.checkpoint)
        times["saves_ns"].append(time.time_ns() - saved_ns)
    if step == options.kill_after:
        time.sleep(options.step_s)  # in the middle of the next step
        write()
        os.kill(os.getpid(), signal.SIGKILL)
    began_ns = time.time_ns()
write()
