"""Six iterations with a GradScaler on the CPU, whose second, third and fifth gradients overflow: three are skipped."""

import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
for iteration in range(6):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).mean()
    if iteration in (1, 2, 4):
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
