"""Ten steps in one process that save a checkpoint after every second one, each in another way."""

import sys
import time
from pathlib import Path

import torch
from torch.distributed import checkpoint

folder = Path(sys.argv[1])
torch.distributed.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=0, world_size=1)
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(1, 11):
    loss = model(torch.randn(4, 64)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 2:
        torch.save(model.state_dict(), folder / "whole.pt")
    if step == 4:
        with (folder / "open.pt").open("wb") as file:
            torch.save(model.state_dict(), file)
    if step == 6:
        checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder / "dcp")
    if step == 8:
        written = checkpoint.async_save({"model": model.state_dict()}, checkpoint_id=str(folder / "async"))
        time.sleep(0.05)
    if step == 9:
        written.result()
        time.sleep(0.05)  # its callbacks run in another thread
print(f"loss {loss.item():.17g}")
torch.distributed.destroy_process_group()
