"""Trains a small model and reports its loss to a slow server; it knows nothing of perfscope."""

import time

import torch

torch.manual_seed(0)
torch.set_num_threads(1)


def report(loss):
    time.sleep(0.05)  # what the server takes to answer


model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters())

for step in range(60):
    features, labels = torch.randn(64, 256), torch.randint(10, (64,))
    loss = torch.nn.functional.cross_entropy(model(features), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(loss.item())
print(f"loss {loss.item():.3f}")
