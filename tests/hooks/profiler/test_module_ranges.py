"""Marks of modules: on every forward while a window is open, compiled ones included, and nothing behind it."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from perfscope.constants import NS_PER_S
from perfscope.hooks.facts.model_search import report_calls
from perfscope.hooks.profiler.module_ranges import ModuleRanges
from perfscope.hooks.profiler.trace_marks import add_marks


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


def marks(run: Callable[[], object], ranges: ModuleRanges) -> list[str]:
    """The names of the marks that a run leaves in a window, in the order of their start."""
    ranges.start()
    try:
        with profile(activities=[ProfilerActivity.CPU]):
            run()
    finally:
        found = ranges.stop()
    return [name.removeprefix("nn.Module: ") for name, *_ in sorted(found, key=lambda mark: (mark[1], -mark[2]))]


def ignore(_output: object) -> None:
    """What a model returned does not matter here."""


def test_every_forward_is_marked_with_its_path() -> None:
    net, states = Net(Layer(), Layer()), torch.ones(2, 4)
    ranges = ModuleRanges()
    assert marks(lambda: net(states), ranges) == ["Net", "layers.0", "layers.0.inner", "layers.1", "layers.1.inner"]
    net(states)
    assert ranges.stop() == []


def test_a_call_is_marked_while_a_profiler_records() -> None:
    net, states = Net(Layer()), torch.ones(2, 4)
    ranges = ModuleRanges()
    ranges.start()
    net(states)
    assert ranges.stop() == []


def test_marks_in_a_trace_are_around_the_operators_of_their_modules_as_ranges_of_torch_are(tmp_path: Path) -> None:
    net, states, ranges, file = Net(Layer(), Layer()), torch.ones(2, 4), ModuleRanges(), tmp_path / "trace.json"
    steps = torch.profiler.schedule(wait=0, warmup=1, active=40)
    ranges.start()
    with profile(activities=[ProfilerActivity.CPU], schedule=steps) as profiler:
        for _ in range(21):
            with torch.profiler.record_function("around"):
                net(states)
            profiler.step()
    found = ranges.stop()
    profiler.export_chrome_trace(str(file))
    assert add_marks(str(file), found)
    events = [event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]
    own = [event for event in events if event["name"].startswith("nn.Module: ")]
    around, operators = ([event for event in events if event["name"] == name] for name in ("around", "aten::linear"))
    assert len(own) == 5 * 20 == 5 * len(around)
    assert {(event["cat"], event["pid"], event["tid"]) for event in own} == {
        ("user_annotation", around[0]["pid"], around[0]["tid"])
    }
    inner = [event for event in own if event["name"].endswith("inner")]
    assert all(any(is_inside(event, outer) for outer in around) for event in own)
    assert len(operators) == len(inner)
    assert all(any(is_inside(operator, event) for event in inner) for operator in operators)


def is_inside(event: dict[str, float], outer: dict[str, float]) -> bool:
    return outer["ts"] <= event["ts"] and event["ts"] + event["dur"] <= outer["ts"] + outer["dur"]


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
    report_calls(torch, [net], lambda args, _kwargs, *, in_training_mode: calls.append(args), ignore, bool)
    found = marks(lambda: net(states), ModuleRanges())
    assert found == ["Watched", "layers.0", "layers.0.inner", "layers.1", "layers.1.inner"]
    assert len(calls) == 1


def test_an_exception_in_a_forward_closes_its_marks_and_reaches_the_caller() -> None:
    net, states = Net(Layer(), Layer(fails=True)), torch.ones(2, 4)

    def run() -> None:
        with pytest.raises(ValueError, match="no forward"):
            net(states)
        net.layers[0](states)

    expected = ["Net", "layers.0", "layers.0.inner", "layers.1", "layers.0", "layers.0.inner"]
    assert marks(run, ModuleRanges()) == expected


class Attention(nn.Module):
    """Makes modules where it needs them, as Megatron's softmax does."""

    def forward(self, states: Tensor) -> Tensor:
        weights: Tensor = nn.Sequential(nn.Softmax(dim=-1), nn.Identity())(states)
        output: Tensor = nn.Dropout(0.1)(weights)
        return output


def test_a_module_that_a_forward_makes_is_named_below_the_one_that_calls_it() -> None:
    net, states = Net(Attention(), Attention()), torch.ones(2, 4)
    ranges = ModuleRanges()

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

    inner, ranges, trainer, states = Layer(), ModuleRanges(), Trainer(), torch.ones(2, 4)
    steps = torch.profiler.schedule(wait=0, warmup=1, active=3)
    ranges.start()
    try:
        with profile(activities=[ProfilerActivity.CPU], schedule=steps) as profiler:
            assert trainer(profiler, states).shape == (2, 4)
    finally:
        found = ranges.stop()
    assert [name for name, *_ in found] == ["nn.Module: inner", "nn.Module: Layer"]


def test_the_call_of_modules_is_torchs_own_again_also_below_another_wrapper() -> None:
    original = nn.Module.__call__
    ranges = ModuleRanges()
    ranges.start()
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


def test_what_never_began_ends_in_a_process_that_never_imports_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    ModuleRanges().stop()


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
    found = marks(lambda: (net(states), late(states)), ModuleRanges())
    in_window = compiled
    net(states)
    late(states)
    assert found == ["Net", "layers.0", "Layer"]
    assert compiled == in_window
    torch._dynamo.utils.counters.clear()  # by them the hooks know that models were compiled


def test_a_mark_takes_less_than_what_torchs_hooks_and_ranges_take() -> None:
    """About a tenth; the best of several rounds in turn, for a machine that is busy."""

    class Hooks:
        def start(self) -> None:
            modules = nn.modules.module
            self.spans: list[torch.autograd.profiler.record_function] = []
            self.handles = [
                modules.register_module_forward_pre_hook(self.open),
                modules.register_module_forward_hook(self.close, always_call=True),
            ]

        def open(self, _module: nn.Module, _inputs: object) -> None:
            self.spans.append(torch.autograd.profiler.record_function("nn.Module: x"))
            self.spans[-1].__enter__()

        def close(self, _module: nn.Module, _inputs: object, _output: object) -> None:
            self.spans.pop().__exit__(None, None, None)

        def stop(self) -> None:
            for handle in self.handles:
                handle.remove()

    net = Net(*(nn.Identity() for _ in range(500)))
    states = torch.ones(1)
    best: dict[str, float] = {}
    ranges, hooks = ModuleRanges(), Hooks()
    kinds: dict[str, tuple[Callable[[], None], Callable[[], object]]] = {
        "ours": (ranges.start, ranges.stop),
        "hooks": (hooks.start, hooks.stop),
    }
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True):
        for _ in range(8):
            for name, (begin, stop) in kinds.items():
                begin()
                net(states)
                began = time.process_time()
                net(states)
                best[name] = min(best.get(name, math.inf), time.process_time() - began)
                stop()
    assert best["ours"] < best["hooks"] / 2


@pytest.mark.parametrize("set_by_ns", [-NS_PER_S, NS_PER_S])
def test_no_call_is_marked_where_the_clock_was_set_in_the_window(
    set_by_ns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    net, states, ranges = Net(Layer()), torch.ones(2, 4), ModuleRanges()
    time_ns = time.time_ns

    def set_clock() -> None:
        net(states)
        monkeypatch.setattr(time, "time_ns", lambda: time_ns() + set_by_ns)

    assert marks(set_clock, ranges) == []
    assert "clock was set" in capsys.readouterr().err
    assert marks(lambda: net(states), ranges) == ["Net", "layers.0", "layers.0.inner"]
