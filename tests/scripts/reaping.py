"""Ten steps in one process, which is told of every child that ends, and waits for all of them at its end."""

import os
import signal
import time

import torch

told: list[int] = []
signal.signal(signal.SIGCHLD, lambda number, _: told.append(number))
read, write = os.pipe()
os.set_blocking(write, False)
signal.set_wakeup_fd(write)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    model(torch.randn(4, 8)).square().sum().backward()
    optimizer.step()
time.sleep(1)
print("SIGCHLD", len(told), flush=True)
children = 0
for _ in range(3):
    own = os.fork()
    if own == 0:
        os._exit(0)
    children += os.waitpid(-1, 0)[0] == own
print("own children", children, flush=True)
os.set_blocking(read, False)
print("wakeups", len(os.read(read, 100)), flush=True)
others = 0
while True:
    try:
        os.wait()
        others += 1
    except ChildProcessError:
        break
print("other children", others, flush=True)
