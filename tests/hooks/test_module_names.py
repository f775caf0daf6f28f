"""Names of modules: paths that mean one module each, also where several networks train."""

from __future__ import annotations

import gc

from torch import nn

from perfscope.hooks.memory.history import ModuleMarks
from perfscope.hooks.module_calls import ModuleNames


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(nn.Linear(2, 2), nn.ReLU())


class Discriminator(Generator):
    pass


def names_of(names: ModuleNames, model: nn.Module) -> list[str]:
    return [names.by_number[id(module)] for module in model.modules()]


def test_two_networks_with_the_same_paths_have_names_of_their_own() -> None:
    names, generator, discriminator, again = ModuleNames(), Generator(), Discriminator(), Generator()
    assert names.add(generator, None) == "Generator"
    assert names.add(discriminator, None) == "Discriminator"
    assert names.add(again, None) == "Generator#2"
    inside = ["main", "main.0", "main.1"]
    assert names_of(names, generator) == ["Generator", *inside]
    assert names_of(names, discriminator) == ["Discriminator", *(f"Discriminator.{path}" for path in inside)]
    assert names_of(names, again) == ["Generator#2", *(f"Generator#2.{path}" for path in inside)]


def test_a_module_that_is_gone_gives_its_name_and_its_number_free() -> None:
    names, kept = ModuleNames("nn.Module: "), Generator()
    names.add(kept, None)
    for _ in range(3):
        loss = nn.MSELoss()
        assert names.add(loss, None) == "nn.Module: MSELoss"
        inner = nn.Softmax(dim=-1)
        assert names.add(inner, "nn.Module: main") == "nn.Module: main.Softmax"
        del loss, inner
        gc.collect()
        assert len(names.by_number) == 4
    names.clear()
    del kept
    assert not names.by_number


def test_replicas_of_data_parallel_are_one_module() -> None:
    names, model, replica = ModuleNames(), Generator(), Generator()
    replica._is_replica = True
    names.add(model, None)
    names.add(replica, None)
    assert names_of(names, replica) == names_of(names, model)


def test_what_a_forward_makes_is_named_below_it_in_the_history_of_memory_too() -> None:
    class Attention(nn.Module):
        def forward(self, states: object) -> object:
            return nn.Identity()(states)

    model, marks = nn.Sequential(Attention(), Attention()), ModuleMarks()
    marks.start(1)
    try:
        model(5)
        model(5)
    finally:
        marks.stop()
    layers = [">0", ">0.Identity", "<0.Identity", "<0", ">1", ">1.Identity", "<1.Identity", "<1"]
    signs = [sign + name for sign, name in zip(marks.signs, marks.names, strict=True)]
    assert signs == ["|1", *([">Sequential", *layers, "<Sequential"] * 2)]
