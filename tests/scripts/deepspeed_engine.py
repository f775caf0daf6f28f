"""DeepSpeed: 8 steps of 2 accumulated micro-batches of 3 samples; ZeRO stage 3 steps its optimizer by sub-groups.

With --save it saves a checkpoint after the 7th step.
"""

import argparse
import time

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int)
parser.add_argument("--local_rank", type=int)
parser.add_argument("--save")
arguments = parser.parse_args()
stage = arguments.stage
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(4)))
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage, **({"sub_group_size": 700} if stage == 3 else {})},
        "steps_per_print": 10**9,
    },
)
for micro_batch in range(8 * 2):
    loss = engine(torch.randn(3, 32)).square().mean()
    engine.backward(loss)
    engine.step()
    if arguments.save and micro_batch == 13:
        engine.save_checkpoint(arguments.save)
torch.distributed.barrier()
time.sleep(0.5)  # a thread of gloo that still drops a tensor when Python ends aborts the rank
torch.distributed.destroy_process_group()
