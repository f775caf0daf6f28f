"""Accelerate: 10 updates of 2 accumulated micro-batches of 4 x 16 tokens."""

import torch
from accelerate import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
model = torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.Linear(16, 64))
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(torch.randint(64, (20 * 4 * accelerator.num_processes, 16)), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for tokens in loader:
    with accelerator.accumulate(model):
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
accelerator.end_training()
