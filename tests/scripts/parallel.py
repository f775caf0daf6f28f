"""Ten steps of two accumulated micro-batches of 4 x 16 tokens, under one of torch's ways to spread a model."""

import contextlib
import sys

import torch
from torch import distributed, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
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


class Experts(nn.Module):
    """Four matrices, in place of a block, of which each rank has some; it exchanges its tokens for those of others."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, HIDDEN, HIDDEN))
        self.group = None

    def forward(self, hidden):
        if self.group is None:
            return hidden
        sent = all_to_all_single_autograd(hidden.flatten(), None, None, self.group).view_as(hidden)
        return hidden + sent @ self.weight.to_local().mean(0)


class SplitExperts(ParallelStyle):
    """Expert parallelism as torchtitan does it."""

    def _apply(self, module, device_mesh):
        def split(_name, part, mesh):
            part.weight = nn.Parameter(distribute_tensor(part.weight, mesh, [Shard(0)]))
            part.group = mesh.get_group()

        return distribute_module(module, device_mesh, split)


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
    elif how == "fsdp2_tensor":
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        for block in model.blocks:
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    elif how == "fsdp2_experts":
        ranks = init_device_mesh("cpu", (world,), mesh_dim_names=("world",))
        dense = ranks._unflatten(0, (1, world, 1), ("dp_replicate", "fsdp", "tp"))
        sparse = ranks._unflatten(0, (world // 2, 2), ("efsdp", "ep"))
        model.blocks[1] = Experts()
        parallelize_module(model.blocks[1], sparse["ep"], SplitExperts())
        fully_shard(model.blocks[1], mesh=sparse["efsdp"])
        fully_shard(model, mesh=dense["fsdp"])
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
