"""Eight steps of torch.distributed.pipelining: 2 ranks, 4 micro-batches of 2 x 16 tokens; one stage a rank, or two."""

import sys

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

STEPS, MICRO_BATCHES, SAMPLES, TOKENS, HIDDEN = 8, 4, 8, 16, 16

distributed.init_process_group("gloo")
rank, ranks = distributed.get_rank(), distributed.get_world_size()
torch.manual_seed(0)
chunks = 2 if sys.argv[1] == "interleaved" else 1
modules, stages = [], []
for chunk in range(chunks):
    index = chunk * ranks + rank
    first = [nn.Embedding(64, HIDDEN)] if index == 0 else []
    modules.append(nn.Sequential(*first, nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)))
    stages.append(PipelineStage(modules[-1], index, chunks * ranks, torch.device("cpu")))


def loss(output, target):
    return (output - target).square().mean()


schedule = (
    Schedule1F1B(stages[0], MICRO_BATCHES, loss_fn=loss)
    if chunks == 1
    else ScheduleInterleaved1F1B(stages, MICRO_BATCHES, loss_fn=loss)
)
optimizer = torch.optim.AdamW([weight for module in modules for weight in module.parameters()])
for _ in range(STEPS):
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(torch.randint(64, (SAMPLES, TOKENS)))
    else:
        schedule.step(target=torch.randn(SAMPLES, TOKENS, HIDDEN))
    optimizer.step()
distributed.destroy_process_group()
