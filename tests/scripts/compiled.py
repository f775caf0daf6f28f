"""Eight steps where torch.compile has the model, the optimizer's step, or a function around it."""

import sys

import torch

what = sys.argv[1]
model = torch.nn.Linear(4, 4)
forward = torch.compile(model, backend="eager") if what == "model" else model
optimizer = torch.optim.AdamW(model.parameters())


def step_inside():
    optimizer.step()


step = {
    "model": optimizer.step,
    "step": torch.compile(optimizer.step, backend="eager"),
    "function": torch.compile(step_inside, backend="eager"),
}[what]
for _ in range(8):
    forward(torch.randn(2, 4)).sum().backward()
    step()
    optimizer.zero_grad()
