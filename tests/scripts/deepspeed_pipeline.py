"""DeepSpeed's PipelineEngine: 2 stages, 8 steps of 4 micro-batches of 2 samples, or as many steps as STEPS says."""

import argparse
import os

import deepspeed
import torch
from deepspeed.pipe import PipelineModule

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.parse_args()
deepspeed.init_distributed(dist_backend="gloo")
torch.manual_seed(0)
layers = [torch.nn.Linear(16, 16) for _ in range(4)]
model = PipelineModule(layers=layers, num_stages=2, loss_fn=torch.nn.MSELoss(), partition_method="uniform")
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=[parameter for parameter in model.parameters() if parameter.requires_grad],
    config={
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "steps_per_print": 10**9,
    },
)
for _ in range(int(os.environ.get("STEPS", "8"))):
    engine.train_batch(data_iter=iter([(torch.randn(2, 16), torch.randn(2, 16)) for _ in range(4)]))
torch.distributed.destroy_process_group()
