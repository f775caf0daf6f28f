"""What ran again in the backward pass, in traces of real trainings, each of which says itself what it recomputes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from perfscope.analyzers.tflops.repeats import Repeats, find_repeats, largest_repeats
from perfscope.models.conventions import Checkpointing, Recomputed
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS, Events
from tests.conftest import ROOT

#: What torch.compile itself triggers.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")


@pytest.fixture(autouse=True)
def forgotten_compilations() -> Iterator[None]:
    """Hooks, which other tests try in this process, ask torch whether anything was compiled."""
    yield
    torch._dynamo.utils.counters.clear()


WIDTH, HEADS, LAYERS, WORDS = 64, 4, 4, 128
#: Products of a layer: seven with weights, and attention; and the output layer's one.
OF_LAYER, FORWARD = 8, 8 * LAYERS + 1
SAVED = {torch.ops.aten.mm.default, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default}

reentrant = partial(checkpoint, use_reentrant=True)
not_reentrant = partial(checkpoint, use_reentrant=False)


class Layer(nn.Module):
    """A layer as Llama has it; ``around`` runs its attention."""

    def __init__(self, around: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down, self.around = nn.Linear(3 * WIDTH, WIDTH, bias=False), around

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        heads = [layer(states).view(*states.shape[:2], HEADS, -1).transpose(1, 2)
                 for layer in (self.query, self.key, self.value)]  # fmt: skip
        attend = functional.scaled_dot_product_attention
        mixed = self.around(attend, *heads) if self.around else attend(*heads)
        states = states + self.output(mixed.transpose(1, 2).reshape(states.shape))
        inner = functional.silu(self.gate(states)) * self.up(states)
        return states + self.down(inner)


def no_product() -> Any:
    """All products are saved: what is recomputed multiplies nothing."""
    return create_selective_checkpoint_contexts(list(SAVED))


class Training:
    """A small language model that trains; ``runs`` calls each layer, ``attend`` the attention inside it."""

    def __init__(
        self, *runs: Callable[..., Any], attend: Callable[..., Any] | None = None, compiled: bool = False
    ) -> None:
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(attend) for _ in range(LAYERS))
        self.words, self.output = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.calls: list[Any] = [
            torch.compile(layer, backend="aot_eager") if compiled else layer for layer in self.layers
        ]
        self.runs: Sequence[Callable[..., Any]] = runs or (plain,)

    def forward(self) -> torch.Tensor:
        words = torch.randint(WORDS, (2, 32))
        states = self.words(words)
        for number, layer in enumerate(self.calls):
            states = self.runs[number % len(self.runs)](layer, states)
        return functional.cross_entropy(self.output(states).flatten(0, 1), words.flatten())

    def step(self) -> None:
        self.forward().backward()


def plain(layer: Any, states: torch.Tensor) -> Any:
    return layer(states)


def repeats_of(step: Callable[[], None], path: Path) -> Repeats:
    step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    profiler.export_chrome_trace(str(path))
    return read_repeats(path)


def read_repeats(path: Path) -> Repeats:
    trace = read_trace(path, BASIC_EVENTS | Events.PRODUCTS)
    assert trace.products is not None
    return find_repeats(trace, trace.products)


ALL = (OF_LAYER * LAYERS / FORWARD, 7 * LAYERS / (7 * LAYERS + 1), 1.0)


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        (Training(), (0, 0, 0)),
        (Training(reentrant), ALL),
        (Training(not_reentrant), ALL),
        (Training(not_reentrant, compiled=True), ALL),
        (Training(plain, not_reentrant), (16 / FORWARD, 14 / 29, 0.5)),
        (Training(partial(not_reentrant, context_fn=no_product)), (0, 0, 0)),
        (Training(attend=reentrant), (4 / FORWARD, 0, 1.0)),
    ],
    ids=[
        "none", "reentrant", "not reentrant", "compiled inside", "every second layer",
        "no product", "attention",
    ],
)  # fmt: skip
def test_the_share_is_that_of_the_products_that_ran_again(
    training: Training, expected: tuple[float, ...], tmp_path: Path
) -> None:
    found = repeats_of(training.step, tmp_path / "rank0.json")
    assert found[:3] == pytest.approx(expected)
    assert not found.reason


@pytest.mark.parametrize(
    ("repeats", "kind", "recomputed"),
    [
        (Repeats(0.0, 0.0, 0.0), Checkpointing.NONE, (0, 0)),
        (Repeats(0.0, 0.0, 0.0, is_cheap=True), Checkpointing.SELECTIVE, (0, 0)),
        (Repeats(0.36, 0.41, 0.0), Checkpointing.SELECTIVE, (0.41, 0)),
        (Repeats(0.97, 0.96, 1.0), Checkpointing.FULL, (1, 1)),
        (Repeats(None), None, (0, 0)),
    ],
)
def test_the_kind_follows_from_the_share(
    repeats: Repeats, kind: Checkpointing | None, recomputed: tuple[float, float]
) -> None:
    assert (repeats.checkpointing, repeats.recomputed) == (kind, Recomputed(*recomputed))


def test_products_that_were_saved_leave_activations_to_recompute(tmp_path: Path) -> None:
    found = repeats_of(Training(partial(not_reentrant, context_fn=no_product)).step, tmp_path / "rank0.json")
    assert found.is_cheap
    assert found.checkpointing is Checkpointing.SELECTIVE


def test_in_compiled_layers_it_is_unknown(tmp_path: Path) -> None:
    found = repeats_of(Training(compiled=True).step, tmp_path / "rank0.json")
    assert (found.share, found.checkpointing, found.is_compiled) == (None, None, True)


def test_gradients_of_gradients_are_no_recomputation(tmp_path: Path) -> None:
    training = Training(attend=lambda _, *heads: heads[0] * heads[1] * heads[2])

    def step() -> None:
        weights = list(training.layers.parameters())
        gradients = torch.autograd.grad(training.forward(), weights, create_graph=True)
        sum(gradient.square().sum() for gradient in gradients).backward()

    found = repeats_of(step, tmp_path / "rank0.json")
    assert (found.share, found.is_compiled) == (None, False)
    assert "cannot be told" in found.reason


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ("modules/fsdp2/rank0.json.gz", (0, 0, 0)),
        ("modules/fsdp2_recomputed/rank0.json.gz", (60 / 123, 48 / 99, 0.5)),
        ("modules/fsdp2_compiled/rank0.json.gz", (None, None, None)),
        ("modules/megatron/rank0.json.gz", (48 / 147, 0, 1)),
    ],
    ids=["none", "every second layer", "compiled", "the core of attention, by Megatron"],
)
def test_traces_of_gpus(trace: str, expected: tuple[float | None, ...]) -> None:
    """What launched no kernel was saved, but for the product at which a checkpoint stops."""
    found = read_repeats(ROOT / "fixtures" / trace)
    assert found[:3] == (expected if expected[0] is None else pytest.approx(expected))


def test_the_rank_that_recomputes_the_most_speaks_for_all() -> None:
    hidden, unknown, none, half = Repeats(None, is_compiled=True), Repeats(None), Repeats(0.0), Repeats(0.5)
    assert largest_repeats([unknown, none, half, hidden]) is half
    assert largest_repeats([unknown, hidden]) is hidden
    assert largest_repeats([]) is None
