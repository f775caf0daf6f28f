"""What hooks record of the configuration that a model was built from, without running any of its code."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from perfscope.hooks.facts.model import describe_model
from perfscope.wire.model import IN_USE

#: A configuration as torchtitan's, which nests another one.
Args = import_module("tests.scripts.split_decoder").Args


class Trap:
    """Whatever a script may write: each of these would run its code."""

    def __init__(self, **values: object) -> None:
        vars(self).update(values)

    @property
    def hidden_size(self) -> NoReturn:
        raise AssertionError("a property was read")

    def to_dict(self) -> NoReturn:
        raise AssertionError("a method was called")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)  # pytest asks for these
        raise AssertionError(f"{name} was looked for")

    def __eq__(self, other: object) -> NoReturn:
        raise AssertionError("it was compared")

    __hash__ = None  # type: ignore[assignment]


class Constants:
    """A bare class of constants."""

    n_layer = 12
    bias = False
    block = nn.Linear


class Slots:
    __slots__ = ("dim", "later")

    def __init__(self) -> None:
        self.dim = 64

    @property
    def width(self) -> NoReturn:
        raise AssertionError("a property was read")


@dataclass(slots=True)
class SlottedArgs:
    n_heads: int = 4
    inner: object = None


class HasProperties(nn.Module):
    """A module whose names of configurations, of modules and of parameters are the script's own code."""

    def __init__(self, config: object) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.options = config

    @property
    def config(self) -> NoReturn:
        raise AssertionError("a property was read")

    def parameters(self, recurse: bool = True) -> NoReturn:
        raise AssertionError(f"a method was called: {recurse}")

    named_parameters = modules = named_modules = parameters


def config_of(config: object) -> dict[str, Any]:
    module = nn.Linear(2, 2)
    module.config = config
    return describe_model(module).config


@pytest.mark.parametrize(
    ("config", "recorded"),
    [
        (Trap(n_layer=2, of_layer=[1, 2], unknown=object()), {"n_layer": 2, "of_layer": [1, 2]}),
        (Trap(inner=Trap(top_k=2), tensor=torch.zeros(2), text="a/b"), {"inner": {"top_k": 2}}),
        (Constants, {"n_layer": 12, "bias": False}),
        (Constants(), {"n_layer": 12, "bias": False}),
        (Slots(), {"dim": 64}),
        (SlottedArgs(inner=SlottedArgs(8)), {"n_heads": 4, "inner": {"n_heads": 8, "inner": None}}),
        (Args(), {"n_heads": 4, "moe_args": {"num_experts": 4, "top_k": 2}}),
        ({"n_layer": "12", "heads": None, 3: 4, "layer_types": ["full_attention"]},
         {"n_layer": "12", "heads": None, "layer_types": ["full_attention"]}),
        ("a text", {}),
        (7, {}),
        ([1, 2], {}),
        (None, {}),
    ],
)  # fmt: skip
def test_a_configuration_is_read_without_its_code(config: object, recorded: dict[str, object]) -> None:
    assert config_of(config) == recorded


def test_no_secret_of_a_nested_configuration_is_written() -> None:
    assert config_of({"login": {"api_token": "abc"}})["login"] == {"api_token": "[redacted]"}


def test_no_code_of_a_module_runs() -> None:
    record = describe_model(HasProperties(Args()))
    assert (record.parameters, record.config) == (32, {})


def test_layers_say_how_many_experts_a_token_uses() -> None:
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    for layer in model[1:]:
        layer.top_k = 2
    assert describe_model(model).config == {"layers": {"top_k": 2}}
    model.config = Args()
    assert describe_model(model).config == {
        "layers": {"top_k": 2},
        "n_heads": 4,
        "moe_args": {"num_experts": 4, "top_k": 2},
    }


def test_frozen_parameters_shards_and_checkpointing_are_what_they_are() -> None:
    """As an adapter trains, as ZeRO stage 3 shards, and as a layer or a wrapper says that it is recomputed."""
    model = nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64))
    model[0].weight.requires_grad = False
    model[1].weight.data = torch.empty(0)
    model[1].weight.ds_shape = torch.Size([64, 16])
    record = describe_model(model)
    assert (record.parameters, record.trainable) == (64 * 16 + 64 * 16 + 64, 64 * 16 + 64)
    assert record.checkpointing is None
    wrapped = nn.Sequential(nn.Embedding(64, 16), checkpoint_wrapper(nn.Linear(16, 64)))
    assert describe_model(wrapped).checkpointing == IN_USE, "what of it is up to the script"
    model[1].gradient_checkpointing = True  # what transformers sets on its layers
    assert describe_model(model).checkpointing == "full"


def test_a_table_of_a_class_that_extends_an_embedding_is_an_embedding() -> None:
    class VocabParallelEmbedding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(64, 16))

    class Words(VocabParallelEmbedding):
        """A class of somebody's own."""

    owners = [describe_model(module).weights[0].owner for module in (Words(), nn.Linear(16, 64, bias=False))]
    assert owners == ["Embedding", "Linear"]
