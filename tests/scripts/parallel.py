"""Ten steps of two accumulated micro-batches of 4 x 16 tokens, under one of torch's ways to spread a model."""

import contextlib
import sys

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

STEPS, ACCUMULATION, VOCABULARY, HIDDEN = 10, 2, 64, 16


class Block(nn.Module):
    """Two matrices; its activations are computed again in the backward pass."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, 64), nn.Linear(64, HIDDEN)

    def forward(self, hidden):
        return hidden + self.down(torch.relu(self.up(hidden)))


class Model(nn.Module):
    """An embedding, two blocks and an output layer: 1,024 + 2 x 2,128 + 1,088 parameters."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.output = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        return self.output(hidden)


def spread(model, how):
    """The model as this way of parallelism wants it, and its optimizer."""
    world = distributed.get_world_size()
    if how == "zero":
        model = DistributedDataParallel(model)
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    if how.startswith("fsdp1"):
        options = {"use_orig_params": how.endswith("original"), "device_id": torch.device("cpu")}
        model.blocks[0] = FullyShardedDataParallel(model.blocks[0], **options)
        model = FullyShardedDataParallel(model, **options)
    elif how == "fsdp2":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    elif how == "tensor":
        mesh = init_device_mesh("cpu", (world,))
        for block in model.blocks:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def main(how):
    """Train."""
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model, optimizer = spread(Model(), how)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for micro_batch in range(ACCUMULATION):
            tokens = torch.randint(VOCABULARY, (4, 16))
            last = micro_batch == ACCUMULATION - 1
            with contextlib.nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync():
                loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
                loss.backward()
        optimizer.step()
    with torch.no_grad():
        model(tokens)
    distributed.destroy_process_group()


main(sys.argv[1])
