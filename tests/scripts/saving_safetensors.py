"""Ten steps of 20 ms in one process that save with safetensors alone; the third save is slow."""

import sys
import time
from pathlib import Path

import safetensors.torch
import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file

folder = Path(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
state = {f"part{number}": torch.zeros(1024, 1024) for number in range(16)}
for step in range(1, 11):
    loss = model(torch.randn(4, 64)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    time.sleep(0.02)
    optimizer.step()
    if step == 2:
        save_file(model.state_dict(), folder / "file.safetensors")
    if step == 4:
        safetensors.torch.save_model(model, str(folder / "model.safetensors"))
        save_arrays({"bias": model.bias.detach().numpy()}, filename=folder / "arrays.safetensors")
    if step == 6:
        for number in range(8):
            save_file(state, folder / f"model-{number + 1:05}-of-00008.safetensors")
print(f"loss {loss.item():.17g}")
