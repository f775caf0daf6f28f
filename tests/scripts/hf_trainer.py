"""Hugging Face's Trainer: a tiny random GPT-2, steps of 2 accumulated micro-batches of 4 x 16 tokens.

``hf_trainer.py FOLDER`` trains 10 steps and evaluates. ``hf_trainer.py FOLDER saving`` trains 6, with a tokenizer and a
checkpoint after every third, and saves the model.
"""

import sys

import torch
from tokenizers import Tokenizer, models
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    """Random token ids."""

    def __len__(self):
        return 400

    def __getitem__(self, index):
        ids = torch.randint(128, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


saves = "saving" in sys.argv
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=128, n_positions=16))
words = {f"word{number}": number for number in range(128)}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words)), pad_token="word0")
arguments = TrainingArguments(
    output_dir=sys.argv[1],
    max_steps=6 if saves else 10,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    eval_strategy="no" if saves else "steps",
    eval_steps=5,
    save_strategy="steps" if saves else "no",
    save_steps=3,
    report_to=[],
    use_cpu=True,
)
trainer = Trainer(
    model=model, args=arguments, train_dataset=Tokens(), eval_dataset=Tokens(), processing_class=tokenizer
)
trainer.train()
if saves:
    model.save_pretrained(f"{sys.argv[1]}/final", max_shard_size="20KB")
    tokenizer.save_pretrained(f"{sys.argv[1]}/final")
    torch.save(trainer.optimizer.state_dict(), f"{sys.argv[1]}/final/optimizer.pt")
