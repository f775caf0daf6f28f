"""Twenty steps, two of which a profiler of the script's own records; prints what it saw.

``own_profiler.py FIRST`` starts and stops it by hand. ``own_profiler.py FIRST STEPS_EACH`` lets it wait and warm up; it
makes so many steps of its own in each training step, and records two of these from the first one on.
"""

import sys

import torch

first, *steps_each = map(int, sys.argv[1:])
seen = []


def on_trace(profiler: torch.profiler.profile) -> None:
    counts = {event.key: event.count for event in profiler.key_averages()}
    names = "aten::addmm", "Optimizer.step#", "ProfilerStep"
    seen.append([(key, counts[key]) for key in sorted(counts) if key.startswith(names)])


torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.profiler.schedule(wait=first - 1, warmup=1, active=2, repeat=1) if steps_each else None
profiler = torch.profiler.profile(schedule=schedule, on_trace_ready=on_trace)
for step in range(1, 21):
    if step == (1 if steps_each else first):
        profiler.start()
    loss = model(torch.randn(4, 8)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for _ in range(sum(steps_each)):
        profiler.step()
    if step == (20 if steps_each else first + 1):
        profiler.stop()
print(loss.item().hex(), seen)
