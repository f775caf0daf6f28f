"""Each parameter has an optimizer of its own, which steps in a hook of its gradient, as in PyTorch's tutorial."""

import torch

model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(4)])
optimizers = {parameter: torch.optim.Adam([parameter], foreach=False) for parameter in model.parameters()}


def step(parameter: torch.Tensor) -> None:
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step)
for _ in range(20):
    model(torch.randn(4, 4)).sum().backward()
