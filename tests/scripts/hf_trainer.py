"""Hugging Face's Trainer: a tiny random GPT-2, 10 steps of 2 accumulated micro-batches of 4 x 16 tokens."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    """Random token ids."""

    def __len__(self):
        return 400

    def __getitem__(self, index):
        ids = torch.randint(128, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=128, n_positions=16))
arguments = TrainingArguments(
    output_dir=sys.argv[1],
    max_steps=10,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    eval_strategy="steps",
    eval_steps=5,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(), eval_dataset=Tokens())
trainer.train()
