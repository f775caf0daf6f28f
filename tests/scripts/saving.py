"""Ten steps in one process that save a checkpoint in another way each: ``saving.py FOLDER [safetensors]``."""

import sys
import time
from pathlib import Path

import torch
from torch.distributed import checkpoint

folder = Path(sys.argv[1])


def save(step):
    """By torch, into a file and into an open one, and by torch.distributed.checkpoint."""
    state = {"model": model.state_dict()}
    if step == 2:
        torch.save(model.state_dict(), folder / "whole.pt")
    if step == 4:
        with (folder / "open.pt").open("wb") as file:
            torch.save(model.state_dict(), file)
    if step == 6:
        checkpoint.save(state, checkpoint_id=folder / "dcp")
    if step == 8:
        written.append(checkpoint.async_save(state, checkpoint_id=str(folder / "async")))
        time.sleep(0.05)
    if step == 9:
        written[0].result()
        time.sleep(0.05)  # its callbacks run in another thread


def save_tensors(step):
    """By safetensors alone; the third save is slow."""
    if step == 2:
        save_file(model.state_dict(), folder / "file.safetensors")
    if step == 4:
        safetensors.torch.save_model(model, str(folder / "model.safetensors"))
        save_arrays({"bias": model.bias.detach().numpy()}, filename=folder / "arrays.safetensors")
    if step == 6:
        state = {f"part{number}": torch.zeros(1024, 1024) for number in range(16)}
        for number in range(8):
            save_file(state, folder / f"model-{number + 1:05}-of-00008.safetensors")


written = []
if sys.argv[2:]:
    import safetensors.torch
    from safetensors.numpy import save_file as save_arrays
    from safetensors.torch import save_file

    save = save_tensors
torch.distributed.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=0, world_size=1)
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(1, 11):
    loss = model(torch.randn(4, 64)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    save(step)
print(f"loss {loss.item():.17g}")
torch.distributed.destroy_process_group()
