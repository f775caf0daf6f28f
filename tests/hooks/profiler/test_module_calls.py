"""Ranges of modules: around every forward while a window is open, compiled ones included, and none after it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from perfscope.hooks.facts.model_search import report_calls
from perfscope.hooks.memory.history import ModuleMarks
from perfscope.hooks.module_calls import ModuleCalls, ModuleNames


class Layer(nn.Module):
    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.fails = fails

    def forward(self, states: Tensor) -> Tensor:
        if self.fails:
            raise ValueError("no forward")
        output: Tensor = torch.relu(self.inner(states))
        return output


class Net(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, states: Tensor) -> Tensor:
        for layer in self.layers:
            states = layer(states)
        return states


def marks(run: Callable[[], object], ranges: ModuleCalls) -> list[str]:
    """The names of the ranges that a run leaves in a window, in the order of their start."""
    start(ranges)
    try:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            run()
    finally:
        ranges.stop()
    return names_in(profiler)


def start(ranges: ModuleCalls) -> None:
    ranges.start(torch.autograd.profiler.record_function, torch.autograd._profiler_enabled)


def names_in(profiler: profile) -> list[str]:
    events = [event for event in profiler.events() or () if event.name.startswith("nn.Module: ")]
    ordered = sorted(events, key=lambda event: (event.time_range.start, -event.time_range.end))
    return [event.name.removeprefix("nn.Module: ") for event in ordered]


def ignore(_output: object) -> None:
    """What a model returned does not matter here."""


def test_every_forward_is_marked_with_its_path() -> None:
    net, states = Net(Layer(), Layer()), torch.ones(2, 4)
    ranges = ModuleCalls("nn.Module: ")
    assert marks(lambda: net(states), ranges) == ["Net", "layers.0", "layers.0.inner", "layers.1", "layers.1.inner"]
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        net(states)
    assert names_in(profiler) == []


@pytest.mark.parametrize("has_own_call", [False, True])
def test_a_model_whose_calls_are_watched_is_marked_as_any_other(
    monkeypatch: pytest.MonkeyPatch, has_own_call: bool
) -> None:
    monkeypatch.setattr(torch._dynamo.utils, "counters", {})  # compiled models of other tests

    class Watched(Net):
        if has_own_call:

            def __call__(self, states: Tensor) -> Tensor:
                output: Tensor = super().__call__(states)
                return output

    net, states = Watched(Layer(), Layer()), torch.ones(2, 4)
    calls: list[object] = []
    report_calls(torch, [net], lambda args, _kwargs, *, in_training_mode: calls.append(args), ignore)
    found = marks(lambda: net(states), ModuleCalls("nn.Module: "))
    assert found == ["Watched", "layers.0", "layers.0.inner", "layers.1", "layers.1.inner"]
    assert len(calls) == 1


def test_an_exception_in_a_forward_closes_its_marks_and_reaches_the_caller() -> None:
    net, states = Net(Layer(), Layer(fails=True)), torch.ones(2, 4)

    def run() -> None:
        with pytest.raises(ValueError, match="no forward"):
            net(states)
        net.layers[0](states)

    expected = ["Net", "layers.0", "layers.0.inner", "layers.1", "layers.0", "layers.0.inner"]
    assert marks(run, ModuleCalls("nn.Module: ")) == expected


class Attention(nn.Module):
    """Makes modules where it needs them, as Megatron's softmax does."""

    def forward(self, states: Tensor) -> Tensor:
        weights: Tensor = nn.Sequential(nn.Softmax(dim=-1), nn.Identity())(states)
        output: Tensor = nn.Dropout(0.1)(weights)
        return output


def test_a_module_that_a_forward_makes_is_named_below_the_one_that_calls_it() -> None:
    net, states = Net(Attention(), Attention()), torch.ones(2, 4)
    ranges = ModuleCalls("nn.Module: ")

    def run() -> None:
        for _ in range(3):
            nn.ReLU()(net(states))
        assert len(ranges._names.by_number) == 4, "what is gone is forgotten: its number may become another module's"

    found = marks(run, ranges)
    inside = ["Sequential", "Sequential.0", "Sequential.1", "Dropout"]
    layers = [name for layer in ("layers.0", "layers.1") for name in (layer, *(f"{layer}.{made}" for made in inside))]
    assert found == ["Net", *layers, "ReLU"] * 3


def test_recording_may_begin_inside_a_forward() -> None:
    """As where an optimizer steps inside of a module's forward: that ends a step, and the profiler goes on."""

    class Trainer(nn.Module):
        def forward(self, profiler: profile, states: Tensor) -> Tensor:
            inner(states)
            profiler.step()
            return inner(states)

    inner, ranges, trainer, states = Layer(), ModuleCalls("nn.Module: "), Trainer(), torch.ones(2, 4)
    steps = torch.profiler.schedule(wait=0, warmup=1, active=3)
    start(ranges)
    try:
        with profile(activities=[ProfilerActivity.CPU], schedule=steps) as profiler:
            assert trainer(profiler, states).shape == (2, 4)
    finally:
        ranges.stop()
    assert names_in(profiler) == ["Layer", "inner"]


def test_the_call_of_modules_is_torchs_own_again_also_below_another_wrapper() -> None:
    original = nn.Module.__call__
    ranges = ModuleCalls("nn.Module: ")
    start(ranges)
    ours = nn.Module.__call__
    assert ours is not original

    def of_another(module: nn.Module, *inputs: object) -> object:
        return ours(module, *inputs)

    nn.Module.__call__ = of_another
    try:
        ranges.stop()
        assert nn.Module.__call__ is of_another
        assert nn.Identity()(5) == 5
    finally:
        nn.Module.__call__ = original


def test_a_wrapper_below_the_marks_of_memory_stays_silent_in_the_next_window() -> None:
    original, net, states = nn.Module.__call__, Net(Layer()), torch.ones(2, 4)
    ranges, until_error, names = ModuleCalls(), ModuleMarks(), list[str]()

    def around(name: str) -> nullcontext[None]:
        names.append(name)
        return nullcontext()

    try:
        ranges.start(around)
        until_error.start(1)
        ranges.stop()
        net(states)
        assert names == []
        for _ in range(2):
            ranges.start(around)
            net(states)
            ranges.stop()
    finally:
        until_error.stop()
        nn.Module.__call__ = original
    assert names == ["Net", "layers.0", "layers.0.inner"] * 2
    assert until_error.signs.count(">") == 3 * 3


def test_a_compiled_module_is_marked_and_not_compiled_again() -> None:
    compiled = 0

    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., object]:
        nonlocal compiled
        compiled += 1
        forward: Callable[..., object] = graph.forward
        return forward

    layer, states = Layer(), torch.ones(2, 4)
    layer.compile(backend=backend)
    net = Net(layer)
    net(states)
    late = Layer()
    late.compile(backend=backend)
    found = marks(lambda: (net(states), late(states)), ModuleCalls("nn.Module: "))
    in_window = compiled
    net(states)
    late(states)
    assert found == ["Net", "layers.0", "Layer"]
    assert compiled == in_window
    torch._dynamo.utils.counters.clear()  # by them the hooks know that models were compiled


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
