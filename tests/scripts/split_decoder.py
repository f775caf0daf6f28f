"""Seven steps of a small decoder on four ranks, whose tensors or whose experts are split as torchtitan splits them."""

import sys
from dataclasses import dataclass, field

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

HIDDEN, HEADS, HEAD, FFN, VOCABULARY, LAYERS = 32, 4, 16, 96, 128, 3


@dataclass
class MoeArgs:
    """What the configuration nests."""

    num_experts: int = 4
    top_k: int = 2


@dataclass
class Args:
    """The configuration; only of a mixture there is more to say than its shapes do."""

    n_heads: int = HEADS
    moe_args: MoeArgs = field(default_factory=MoeArgs)


class Attention(nn.Module):
    """Twice as wide as the hidden size; a rank computes the heads that it has."""

    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(HIDDEN, HEADS * HEAD, bias=False) for _ in range(3))
        self.wo = nn.Linear(HEADS * HEAD, HIDDEN, bias=False)

    def forward(self, states):
        batch, tokens, _ = states.shape
        heads = [
            project(states).view(batch, tokens, -1, HEAD).transpose(1, 2) for project in (self.wq, self.wk, self.wv)
        ]
        attended = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.wo(attended.transpose(1, 2).reshape(batch, tokens, -1))


class Experts(nn.Module):
    """The experts of a layer in one tensor each; a rank computes those that it has."""

    def __init__(self):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(4, FFN, HIDDEN) / 10)
        self.w2 = nn.Parameter(torch.randn(4, HIDDEN, FFN) / 10)

    def forward(self, states):
        w1, w2 = (weight.to_local() if isinstance(weight, DTensor) else weight for weight in (self.w1, self.w2))
        return torch.einsum("btf,ehf->bth", torch.relu(torch.einsum("bth,efh->btf", states, w1)), w2)


class Mixture(nn.Module):
    """Experts, and the router that weighs them."""

    def __init__(self):
        super().__init__()
        self.experts, self.router = Experts(), nn.Linear(HIDDEN, 4, bias=False)

    def forward(self, states):
        return self.experts(states) * self.router(states).softmax(-1).amax(-1, keepdim=True)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, FFN, bias=False), nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, states):
        return self.down(torch.relu(self.up(states)))


class Layer(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.attention, self.norm = Attention(), nn.RMSNorm(HIDDEN)
        if how == "experts":
            self.moe = Mixture()
        else:
            self.mlp = Mlp()

    def forward(self, states):
        states = states + self.attention(self.norm(states))
        return states + (self.moe if hasattr(self, "moe") else self.mlp)(states)


class Decoder(nn.Module):
    """An embedding, layers and an output layer."""

    def __init__(self, how):
        super().__init__()
        self.model_args = Args()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer(how) for _ in range(LAYERS))
        self.output = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens):
        states = self.embedding(tokens)
        for layer in self.layers:
            states = layer(states)
        return self.output(states)


def split_tensors(model):
    """Tensor parallelism of 2 inside of layers, under FSDP of 2."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "tp"))
    plan = {f"attention.w{name}": ColwiseParallel() for name in "qkv"}
    plan |= {"attention.wo": RowwiseParallel(), "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()}
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], plan)
        fully_shard(layer, mesh=mesh["dp_shard"])
    fully_shard(model, mesh=mesh["dp_shard"])


def split_experts(model):
    """Experts over 2 ranks and under FSDP of the other 2, on a mesh of their own; all else under FSDP of 4."""
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("fsdp",))
    of_experts = init_device_mesh("cpu", (2, 2), mesh_dim_names=("efsdp", "ep"))
    for layer in model.layers:
        experts = layer.moe.experts
        for name, weight in list(experts.named_parameters()):
            experts.register_parameter(name, nn.Parameter(distribute_tensor(weight, of_experts["ep"], [Shard(0)])))
        fully_shard(experts, mesh=of_experts["efsdp"])
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def main(how):
    """Train."""
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = Decoder(how)
    {"tensors": split_tensors, "experts": split_experts}[how](model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    for _ in range(7):
        tokens = torch.randint(VOCABULARY, (2, 16))
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
