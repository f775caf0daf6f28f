"""Prints, as JSON, what the thread beside training calls in each of its turns: hooks' functions, and calls into C."""

import json
import os
import sys
import threading
from collections import Counter
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from perfscope import hooks
from perfscope.hooks import late_writer

TURNS, STEPS, WARM_UP = 12, 24, 30

folder = str(Path(hooks.__file__).parent)
turns = [Counter()]
begin, end = threading.Semaphore(0), threading.Semaphore(0)
sleep = late_writer.time.sleep


def watch(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith((folder, str(Path(folder).parent))):
        turns[-1]["hooks: " + frame.f_code.co_qualname] += 1
    elif event == "c_call" and not argument.__name__.startswith(("acquire", "release")):
        turns[-1]["C: " + argument.__qualname__] += 1


class Clock:
    """Lets the thread have a turn when the steps before it are done, and no other time."""

    thread_time_ns = staticmethod(late_writer.time.thread_time_ns)

    @staticmethod
    def sleep(duration_s):
        if duration_s < late_writer.FIRST_PERIOD_S:
            return sleep(duration_s)
        sys.setprofile(None)
        end.release()
        begin.acquire()
        turns.append(Counter())
        sys.setprofile(watch)
        return None


late_writer.time = Clock
hooks.attach("run", steps="1000000", nvml_hz=0)
model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = iter(DataLoader(torch.randn(10000, 8), batch_size=4))


def step():
    batch = next(batches)
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


for _ in range(WARM_UP):
    step()
end.acquire()
for _ in range(TURNS):
    for _ in range(STEPS):
        step()
    begin.release()
    end.acquire()
print(json.dumps(turns[-1 - TURNS :][-4:]), flush=True)
os._exit(0)
