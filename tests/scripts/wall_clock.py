"""A training whose parts take times that it measures itself: it ends with one line of JSON that says what it did.

Words choose the parts: validation, bare_validation, loading, saves, logging.
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS, STEP_S, EVALUATED = 16, 0.01, (8, 12)
words = set(sys.argv[1:])
truth = {"begun_ns": time.monotonic_ns(), "validation_ns": 0, "loading_ns": 0, "save_ns": 0, "other_ns": 0}


class Samples(Dataset):
    """Samples that take a while to load where that was asked for."""

    def __init__(self, count, seconds):
        self.count, self.seconds = count, seconds

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.seconds:
            began_ns = time.monotonic_ns()
            time.sleep(self.seconds)
            truth["loading_ns"] += time.monotonic_ns() - began_ns
        return torch.full((8,), float(index))


class Model(nn.Module):
    """A model whose forward pass takes a set time at least."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, batch):
        time.sleep(STEP_S)
        return self.layer(batch)


def validate():
    """Run the model without gradients, over a loader or without one."""
    began_ns = time.monotonic_ns()
    model.eval()
    if "bare_validation" in words:
        for batch in validation_loader:
            with torch.no_grad():
                model(batch)
    else:
        with torch.inference_mode():
            for batch in validation_loader:
                model(batch)
    time.sleep(0.03)  # figures are put together
    model.train()
    truth["validation_ns"] += time.monotonic_ns() - began_ns


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
loader = DataLoader(Samples(STEPS * 2, 0.02 if "loading" in words else 0), batch_size=2)
validation_loader = DataLoader(Samples(40, 0), batch_size=2)
for step, batch in enumerate(loader, 1):
    loss = nn.functional.mse_loss(model(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step in EVALUATED and words & {"validation", "bare_validation"}:
        validate()
    if step in EVALUATED and "saves" in words:
        began_ns = time.monotonic_ns()
        torch.save(torch.zeros(40_000_000), Path("saved.pt"))
        truth["save_ns"] += time.monotonic_ns() - began_ns
    if step in EVALUATED and "logging" in words:
        began_ns = time.monotonic_ns()
        time.sleep(0.2)
        truth["other_ns"] += time.monotonic_ns() - began_ns
truth["ended_ns"] = time.monotonic_ns()
print(f"loss {loss.item():.17g}")
print(json.dumps(truth))
