"""Twelve steps; the first attempt of one rank, or of all, raises in one: ``raising_at_first.py STEP RANK|all [ddp]``.

Without ``ddp`` there is no process group: gloo finds the addresses of the first attempt in the store of torchrun, and
fails or hangs by itself.
"""

import os
import sys

import torch
from torch import distributed, nn

step_of_fault, rank_of_fault, *group = sys.argv[1:]
torch.set_num_threads(1)
model = nn.Linear(4, 4)
if group:
    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for step in range(1, 13):
    if is_first and step == int(step_of_fault) and rank_of_fault in ("all", os.environ["RANK"]):
        raise RuntimeError("the first attempt")
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
if not is_first:  # the other rank of the first attempt may have ended, too
    print("done", flush=True)
if group:
    distributed.destroy_process_group()
