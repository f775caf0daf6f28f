"""The model of a script that no framework wraps: found by its optimizer, counted by its calls, and left as it was."""

from __future__ import annotations

import copy
import gc
import io
import json
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from perfscope import wire
from perfscope.hooks.facts import model_search
from perfscope.hooks.facts.model import describe_model
from perfscope.hooks.facts.model_search import find_model, report_calls
from perfscope.wire.model import IN_USE
from perfscope.workloads.gpt import Block, Gpt, GptConfig
from tests.analyzers.tflops.making import answer, ask

CONFIG = GptConfig(layers=3, hidden=64, vocabulary=512, seq_len=128)

SCRIPT = """
import torch
from perfscope.workloads.gpt import Gpt, GptConfig
model = Gpt(GptConfig(layers=3, hidden=64, vocabulary=512, seq_len=128))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(11):
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(torch.randint(512, (4, 129)))
    logits.float().logsumexp(-1).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        model(torch.randint(512, (4, 129)))
    model.train()
"""


class Tiny(nn.Module):
    """A class of its own, so that wrapping its calls touches no other test."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids))


class Around(nn.Module):
    """Holds a model and nothing else, as trainers do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids)


@pytest.fixture
def tiny() -> type[Tiny]:
    """A new class, because its calls are wrapped for good."""
    return type("Tiny", (Tiny,), {})


def watch(*chain: nn.Module, is_over: Callable[[], bool] = lambda: False) -> list[tuple[Any, Any, bool]]:
    """The arguments and the modes of the calls that are reported from now on."""
    calls: list[tuple[Any, Any, bool]] = []

    def on_call(args: Any, kwargs: Any, *, in_training_mode: bool) -> None:
        calls.append((args, kwargs, in_training_mode))

    assert report_calls(torch, chain, on_call, lambda _output: None, is_over)
    return calls


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def test_a_plain_loop_tells_its_model_and_tokens(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    run = tmp_path / "RUN"
    words = ("profile", "--run-dir", run, "--steps", 4, "--shapes", "--nvml-hz", 0, "--", sys.executable)
    assert ask(*words, tmp_path / "train.py").code == 0
    results = answer("analyze", run, "--only", "mfu,steps")["results"]
    exact = sum(parameter.numel() for parameter in Gpt(CONFIG).parameters())
    assert results["mfu"]["parameters"] == exact
    assert results["mfu"]["dtype"] == "bf16"
    assert (results["mfu"]["layers"], results["mfu"]["hidden"], results["mfu"]["vocabulary"]) == (3, 64, 512)
    lines = (run / wire.RANKS_FOLDER / wire.rank_folder(0) / wire.STEPS_FILE).read_text().splitlines()
    # The first step found the model; evaluation is no part of a step's work.
    assert [json.loads(line).get("tokens") for line in lines] == [None, *[4 * 129] * 10]
    # Step 4 holds an evaluation: one forward pass more than the three of the formula.
    counted = results["mfu"]["counted"]
    assert counted["difference"] == pytest.approx(1 / 3, abs=0.02)


def test_the_model_is_what_holds_the_parameters_of_the_optimizer(tiny: type[Tiny]) -> None:
    model, other = tiny(), tiny()
    around = Around(Around(model))
    chain = find_model(torch, optimizer_of(around))
    assert [type(module).__name__ for module in chain] == ["Around", "Around", "Tiny"]
    assert chain[-1] is model
    assert find_model(torch, optimizer_of(other)) == [other]
    loose = [nn.Parameter(torch.zeros(2))]
    assert find_model(torch, torch.optim.SGD(loose, lr=0.1)) == []


def test_calls_are_reported_once_with_the_mode_of_the_model(tiny: type[Tiny]) -> None:
    model, stranger = tiny(), tiny()
    around = Around(model)
    calls = watch(around, model)
    ids = torch.zeros(2, 3, dtype=torch.long)
    around(ids)
    model(ids=ids)
    stranger(ids)
    around.eval()(ids)
    assert [(len(args), list(kwargs), is_training) for args, kwargs, is_training in calls] == [
        (1, [], True),
        (0, ["ids"], True),
        (1, [], False),
    ]


@pytest.mark.parametrize("old_model_is", ["deleted", "trained no more"])
def test_the_model_of_the_next_fold_takes_the_place_of_one_that_nothing_trains(
    old_model_is: str, tiny: type[Tiny]
) -> None:
    model, teacher, following = tiny(), tiny(), tiny()
    is_over: list[int] = []
    calls = watch(model, is_over=lambda: bool(is_over))
    ids = torch.zeros(2, 3, dtype=torch.long)
    model(ids)
    following(ids)
    assert len(calls) == 1
    if old_model_is == "deleted":
        del model
    else:
        is_over.append(1)
    teacher.eval()(ids)
    with torch.no_grad():
        following(ids)
    assert len(calls) == 1
    following(ids)
    is_over.clear()
    following.eval()(ids)
    assert [is_training for _, _, is_training in calls] == [True, True, False]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_a_model_is_saved_copied_and_freed_as_before(tiny: type[Tiny]) -> None:
    globals()["Tiny_"] = tiny
    tiny.__qualname__ = tiny.__name__ = "Tiny_"
    model = tiny()
    state = dict(vars(model))
    watch(model)
    assert vars(model) == state
    file = io.BytesIO()
    torch.save(model, file)
    assert b"perfscope.hooks" not in file.getvalue()
    file.seek(0)
    ids = torch.zeros(2, 3, dtype=torch.long)
    assert torch.equal(torch.load(file, weights_only=False)(ids), model(ids))
    assert torch.equal(copy.deepcopy(model)(ids), model(ids))
    assert torch.equal(torch.jit.script(model)(ids), model(ids))
    freed = weakref.ref(model)
    del model
    gc.collect()
    assert freed() is None


def test_an_error_in_the_model_stays_its_own(tiny: type[Tiny]) -> None:
    model = tiny()
    calls = watch(model)
    for _ in range(2):
        with pytest.raises(IndexError):
            model(torch.full((1, 1), 99))
    assert len(calls) == 2


def test_compiled_code_is_left_alone(tiny: type[Tiny], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is called from outside the compiled code is wrapped; what cannot be told apart is not."""
    compiled = torch.compile(tiny(), backend="eager")
    chain = find_model(torch, optimizer_of(compiled))
    assert [type(module).__name__ for module in chain] == ["OptimizedModule", "Tiny"]
    calls = watch(*chain)
    assert tiny.__call__ is nn.Module.__call__
    compiled(torch.zeros(2, 3, dtype=torch.long))
    assert len(calls) == 1
    monkeypatch.setattr(model_search, "_has_compiled", lambda _torch: True)
    assert not report_calls(torch, [tiny()], lambda *_args, **_options: None, lambda _output: None)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore:FSDP is switching", "ignore:.*_get_pg_default_device.*")
def test_sharded_models_tell_their_whole_shapes() -> None:
    plain = describe_model(Gpt(CONFIG))
    sharded = Gpt(CONFIG)
    for block in sharded.blocks:
        fully_shard(block)
    fully_shard(sharded)
    assert describe_model(sharded) == plain
    for use_orig_params in (True, False):
        flat = FullyShardedDataParallel(
            Gpt(CONFIG),
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            use_orig_params=use_orig_params,
            device_id=torch.device("cpu"),
        )
        found = describe_model(flat)
        assert (found.module, found.parameters) == (plain.module, plain.parameters)
        shapes = sorted((weight.owner, weight.shape, weight.count) for weight in found.weights)
        assert shapes == sorted((weight.owner, weight.shape, weight.count) for weight in plain.weights)


def test_recomputation_is_noticed_in_both_of_pytorchs_ways(tmp_path: Path) -> None:
    script = (
        "import torch, perfscope.hooks as hooks\n"
        "from torch import nn\n"
        "from torch.utils.checkpoint import checkpoint\n"
        "import sys\n"
        "model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 8), nn.Linear(8, 16))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(2):\n"
        "    x = model[0](torch.zeros(2, 3, dtype=torch.long))\n"
        "    x = checkpoint(model[1], x, use_reentrant=sys.argv[1] == 'reentrant') if sys.argv[1] != 'none' else x\n"
        "    model[2](x).sum().backward()\n"
        "    optimizer.step()\n"
    )
    (tmp_path / "train.py").write_text(script)
    seen = {}
    for way in ("reentrant", "other", "none"):
        run = tmp_path / way
        ended = ask("profile", "--run-dir", run, "--nvml-hz", 0, "--", sys.executable, tmp_path / "train.py", way)
        assert ended.code == 0, ended.stderr
        record = json.loads((run / wire.RANKS_FOLDER / wire.rank_folder(0) / wire.MODEL_FILE).read_text())
        seen[way] = record.get("checkpointing")
    assert seen == {"reentrant": IN_USE, "other": IN_USE, "none": None}  # one call says nothing of the other layers
