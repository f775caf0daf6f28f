"""Nine steps of a model that was built from a configuration with a secret, then an error that quotes many."""

import os
from types import SimpleNamespace

import torch


class Model(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(8, 8)
        self.config = SimpleNamespace(hidden_size=8, hub_auth=os.environ["CANARY"], origin=os.environ["CANARY_URL"])


model = torch.nn.DataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
batches = torch.utils.data.DataLoader(torch.randn(36, 8), batch_size=4)
for batch in batches:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
torch.save(model.state_dict(), os.environ["CANARY_URL"].rpartition("/")[2])
raise ConnectionError(os.environ["FAILURE"])
