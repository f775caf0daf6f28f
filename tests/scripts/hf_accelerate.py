"""Accelerate: 10 updates of 2 accumulated micro-batches of 4 x 16 tokens.

With a folder it saves its state after the second update, and its model after the fourth.
"""

import sys

import torch
from accelerate import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
model = torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.Linear(16, 64))
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(torch.randint(64, (20 * 4 * accelerator.num_processes, 16)), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for micro_batch, tokens in enumerate(loader, 1):
    with accelerator.accumulate(model):
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    if sys.argv[1:] and micro_batch == 4:
        accelerator.save_state(f"{sys.argv[1]}/state")
    if sys.argv[1:] and micro_batch == 8:
        accelerator.save_model(model, f"{sys.argv[1]}/model")
accelerator.end_training()
