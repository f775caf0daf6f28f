"""Forks in every way at three of twelve steps, and prints how each child ended; a child that does not end is killed."""

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import torch

LONGEST_S = 20


def say(*words):
    """Write a line at once, since children write at the same time."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def train(steps):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, steps + 1):
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss.item().hex()


def end(how):
    if how == "exit":
        sys.exit(3)
    if how == "_exit":
        os._exit(4)
    if how == "raise":
        raise RuntimeError("as the test asks")
    if how == "train":
        *_, last = train(9)
        say("child", last)
        sys.exit(0)
    if how == "atexit":
        atexit.register(say, "child's atexit")
        sys.stdout.write("child's line\n")
        sys.exit(5)
    if how == "daemon":
        if os.fork():
            sys.exit(0)
        os.setsid()
        os.write(daemons, b"daemon\n")
        sys.exit(0)


def fork(how):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        end(how)
    return pid


def wait(pid):
    ends = time.monotonic() + LONGEST_S
    while time.monotonic() < ends:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "it never ended"


def double(number):
    return float(torch.tensor(number) * 2)


def run_others():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        yield "pool", pool.map(double, range(4))
    words = [sys.executable, "-c", "print('started', flush=True)"]
    yield "preexec", subprocess.run(words, preexec_fn=os.getpgrp, check=True, capture_output=True).stdout
    loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, num_workers=2)
    yield "loader", [batch.sum().item() for batch in loader]


readable, daemons = os.pipe()
for step, loss in train(12):
    say("step", step, loss)
    if step == 5:  # in the window
        children = {how: fork(how) for how in ("exit", "_exit", "raise", "train", "atexit", "daemon")}
        for how, pid in children.items():
            say(how, wait(pid))
        say("daemon wrote", os.read(readable, 100))
        for name, result in run_others():
            say(name, result)
    elif step in (3, 9):  # in the warm-up, and after the window
        say("exit", wait(fork("exit")))
