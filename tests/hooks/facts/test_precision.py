"""What the hooks see of the type that a model multiplies in, which its parameters do not tell."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from perfscope.hooks.facts.precision import PrecisionWatch, find_products
from perfscope.wire.model import PrecisionRecord
from tests.conftest import ROOT


class Model(nn.Module):
    """An embedding and two products; ``inside`` is the type of autocast inside of forward."""

    def __init__(self, inside: torch.dtype | None = None, *, recompute: bool = False) -> None:
        super().__init__()
        self.table, self.body, self.head = nn.Embedding(16, 8), nn.Linear(8, 8), nn.Linear(8, 32)
        self.inside, self.recompute = inside, recompute
        self.runs = 0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", self.inside or torch.bfloat16, enabled=self.inside is not None):
            hidden = self.table(ids)
            hidden = checkpoint(self.layer, hidden, use_reentrant=False) if self.recompute else self.layer(hidden)
            return self.head(hidden).float()

    def layer(self, hidden: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return self.body(hidden).relu()


IDS = torch.arange(10).reshape(2, 5)


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def seen(*models: nn.Module, call: Callable[[], object] | None = None) -> PrecisionRecord:
    watch = PrecisionWatch()
    if call is not None:
        watch.on_forward()
        watch.on_output(call())
    return watch.record(torch, models)


def test_autocast_inside_of_forward_is_in_the_graph_of_the_output() -> None:
    model = Model(torch.bfloat16)
    record = seen(model, call=lambda: model(IDS))
    assert record.products == {"bf16": 2 * 5 * (8 + 32)}
    assert record.autocast is None  # it was off where the model was called
    assert next(model.parameters()).dtype == torch.float32


@pytest.mark.parametrize(
    "wrap",
    [
        lambda loss: loss,
        lambda loss: {"loss": loss, "logits": None},
        lambda loss: (None, [loss]),
        lambda loss: SimpleNamespace(loss=loss),
    ],
    ids=["tensor", "dictionary", "nested", "object"],
)
def test_outputs_of_every_kind_are_looked_into(wrap: Callable[[torch.Tensor], object]) -> None:
    assert set(find_products(wrap(Model(torch.bfloat16)(IDS).sum()))) == {"bf16"}


def test_activations_are_not_computed_again_by_looking() -> None:
    model = Model(torch.bfloat16, recompute=True)
    output = model(IDS)
    assert set(find_products(output)) == {"bf16"}
    assert model.runs == 1
    output.sum().backward()
    assert model.runs == 2


def test_the_graph_is_not_kept_alive() -> None:
    model = Model()
    weight = weakref.ref(model.body.weight)
    watch = PrecisionWatch()
    watch.on_output(model(IDS))
    assert watch.is_settled
    del model
    gc.collect()
    assert weight() is None


def test_a_model_is_looked_at_a_few_times_only() -> None:
    watch = PrecisionWatch()
    looks = [watch.on_output(torch.ones(1)) or watch.is_settled for _ in range(10)]
    assert looks.index(True) == 3
    assert watch.on_output(Model()(IDS)) is False


def test_the_policy_of_fsdp2_says_what_parameters_are_cast_to(one_rank: None) -> None:
    model = Model()
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    record = seen(model)
    assert record.policy == "bf16"
    assert next(model.parameters()).dtype == torch.float32
    assert seen(fully_shard(Model())).policy is None


def test_layers_in_fp8_are_recognized() -> None:
    layer = type("Linear", (nn.Linear,), {"__module__": "transformer_engine.pytorch.module.linear"})(4, 4)
    assert seen(nn.Sequential(layer)).fp8 is None
    layer.fp8 = True  # what the layer notes where it runs inside fp8_autocast
    assert seen(nn.Sequential(layer)).fp8 == "Transformer Engine"
    layer.fp8_meta = {"recipe": type("NVFP4BlockScaling", (), {})()}
    assert seen(nn.Sequential(layer)).fp8 == "Transformer Engine in NVFP4"
    torchao = type("Float8Linear", (nn.Linear,), {"__module__": "torchao.float8.float8_linear"})(4, 4)
    assert seen(nn.Sequential(torchao)).fp8 == "torchao"


#: Settings of fp32 products, and what they make of them.
SETTINGS = {
    "": "fp32",
    "torch.set_float32_matmul_precision('high')": "tf32",
    "torch.set_float32_matmul_precision('medium')": "tf32",
    "torch.set_float32_matmul_precision('highest')": "fp32",
    "torch.backends.cuda.matmul.allow_tf32 = True": "tf32",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'": "tf32",
    "torch.backends.cuda.matmul.fp32_precision = 'ieee'": "fp32",
    "torch.backends.fp32_precision = 'tf32'": "tf32",
    "torch.set_float32_matmul_precision('high'); torch.backends.cuda.matmul.fp32_precision = 'ieee'": "fp32",
}


def test_products_of_fp32_are_told_by_either_interface() -> None:
    """The older interface raises once the newer one was used; the description of the model must not be lost by it."""
    program = (
        "import os, sys, torch\n"
        "from perfscope.hooks.facts.model import describe_model\n"
        "from perfscope.hooks.facts.precision import float32_products\n"
        "for setting in sys.argv[1:]:\n"
        "    child = os.fork()  # the settings are the whole process's\n"
        "    if not child:\n"
        "        exec(setting)\n"
        "        assert describe_model(torch.nn.Linear(2, 2)).parameters == 6\n"
        "        print(float32_products(torch), flush=True)\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, *SETTINGS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert dict(zip(SETTINGS, ended.stdout.split(), strict=True)) == SETTINGS
