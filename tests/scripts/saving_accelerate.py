"""Accelerate: 6 updates of 4 x 16 tokens, the state after the second, and the model after the fourth."""

import sys

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.Linear(16, 64))
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(torch.randint(64, (6 * 4 * accelerator.num_processes, 16)), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for step, tokens in enumerate(loader, 1):
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if step == 2:
        accelerator.save_state(f"{sys.argv[1]}/state")
    if step == 4:
        accelerator.save_model(model, f"{sys.argv[1]}/model")
accelerator.end_training()
