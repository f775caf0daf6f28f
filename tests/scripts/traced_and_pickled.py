"""Trains below a capture, traces the model in each step, and pickles the script's own classes by value."""

import subprocess
import sys
import warnings

import cloudpickle
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from perfscope import hooks

warnings.simplefilter("ignore", DeprecationWarning)
hooks.attach("RUN", steps="4-5", nvml_hz=0)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, batch):
        return self.layer(batch)


class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


model = Model()
optimizer, batch, nodes = Optimizer(model.parameters(), lr=0.1), torch.ones(4, 8), set()
for _ in range(8):
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
    torch.jit.trace(model, batch)
    nodes.add(len(make_fx(model)(batch).graph.nodes))
    torch.func.vmap(model)(batch)
print("nodes", len(nodes))
content = cloudpickle.dumps((Model, Optimizer, model, optimizer, lambda: Optimizer))
code = (
    "import pickle, sys, torch\n"
    "_, _, model, optimizer, make = pickle.load(sys.stdin.buffer)\n"
    "model(torch.ones(1, 8)).sum().backward()\n"
    "optimizer.step()\n"
    "print(make().__name__)\n"
)
print(subprocess.run([sys.executable, "-c", code], input=content, capture_output=True, check=True).stdout.decode())
_, _, model, optimizer, _ = cloudpickle.loads(content)
model(batch).sum().backward()
optimizer.step()
