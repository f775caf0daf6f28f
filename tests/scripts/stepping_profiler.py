"""Twenty steps, under a profiler that waits, warms up and records two of its steps; prints what it recorded.

Arguments: the first of its own steps that it records, and how many of its steps it makes in each training step.
"""

import sys

import torch

first, steps_each = int(sys.argv[1]), int(sys.argv[2])
seen = []


def on_trace(profiler: torch.profiler.profile) -> None:
    counts = {event.key: event.count for event in profiler.key_averages()}
    seen.append([(key, counts[key]) for key in sorted(counts) if key.startswith(("aten::addmm", "ProfilerStep"))])


torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.profiler.schedule(wait=first - 1, warmup=1, active=2, repeat=1)
with torch.profiler.profile(schedule=schedule, on_trace_ready=on_trace) as profiler:
    for _ in range(20):
        loss = model(torch.randn(4, 8)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for _ in range(steps_each):
            profiler.step()
print(loss.item().hex(), seen)
