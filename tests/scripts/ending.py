"""Ten steps in one process; ends in the named way after the given step."""

import os
import signal
import sys

import torch

how, when = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 11):
    loss = model(torch.randn(4, 8)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.17g}", flush=True)
    if step == when:
        if how == "exit":
            sys.exit(5)
        if how.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, how))
