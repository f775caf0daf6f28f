"""Twelve steps, two of which a profiler of the script's own records; prints how many operators it saw."""

import sys

import torch

first = int(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
profiler = torch.profiler.profile()
for step in range(1, 13):
    if step == first:
        profiler.start()
    loss = model(torch.randn(4, 8)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == first + 1:
        profiler.stop()
seen = {event.key: event.count for event in profiler.key_averages()}
print(loss.item().hex(), seen["aten::addmm"], seen["Optimizer.step#SGD.step"])
