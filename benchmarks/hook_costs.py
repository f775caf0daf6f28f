"""What perfscope's hooks cost in each step outside windows, counted by themselves and by clocks around their wrappers.

Run: ``python -m benchmarks.hook_costs --json FILE [--loops plain,ddp,fsdp2,deepspeed] [--seconds 12] [--small]``. All
but the plain loop train on two GPUs, or in two processes of a CPU; DeepSpeed with ZeRO 2. Every loop is trained below
``perfscope profile`` with all that is on by default, and then without perfscope: first with a batch so small that the
host bounds a step, then with a large one.

- Counted: ``hook_ns`` of the step's record, which holds the processor's time of the thread beside training.
- Around: clocks outside and inside of every wrapper that a step calls. What they say of a training without perfscope,
  which calls the clocks in the same places, is to be taken away.
- Beside: the processor's time of the thread that writes records, in a step.

The first turns of that thread come twice a second and are left out, as is what the batch's change disturbs. All
processes are started first, and then train one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tabulate import tabulate
from torch import distributed, nn
from torch.distributed import fsdp
from torch.utils.data import DataLoader, dataloader

from benchmarks.training_loop import Tokens
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.hooks import start
from perfscope.hooks.late_writer import FIRST_PERIOD_S, FIRST_TURNS
from perfscope.sources.runs.run import read_run
from perfscope.workloads.gpt import Gpt, GptConfig

ROOT = Path(__file__).resolve().parent.parent
LARGE = GptConfig(layers=12, hidden=768, heads=12, vocabulary=8192, seq_len=513)
SMALL = GptConfig(layers=4, hidden=64, heads=2, vocabulary=256, seq_len=33)
KINDS = ("host-bound", "device-bound")
COLUMNS = (
    "Hooks", "Training", "Bound", "Steps", "Step (ms)", "Counted, mean (us)", "median (us)", "share (%)",
    "Around, mean (us)", "median (us)", "share (%)",
)  # fmt: skip
_RANKS = {"plain": 1, "ddp": 2, "fsdp2": 2, "deepspeed": 2}
_ORIGINALS = ("original", "clear", "step", "forward")  # what wrappers call the function that they wrap
_WARM_UP, _SETTLING = 12, 8
_LONGEST_START_S = 90
_LONGEST_END_S = 60
_clock = time.perf_counter_ns


class Clocks:
    """What passed outside and inside of wrappers since this was last asked, in nanoseconds."""

    def __init__(self) -> None:
        self.outside_ns = 0
        self.inside_ns = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function with the clock outside of it."""

        def call(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - of any function
            began_ns = _clock()
            result = function(*args, **kwargs)
            self.outside_ns += _clock() - began_ns
            return result

        return call

    def within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function with the clock inside of what is put around it."""

        def call(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - of any function
            began_ns = _clock()
            result = function(*args, **kwargs)
            self.inside_ns += _clock() - began_ns
            return result

        return call

    def inside(self, function: Any) -> Callable[..., Any]:  # noqa: ANN401 - a function of Python
        """A wrapper of perfscope with the clock inside of it; of a function that has none, with the clock around it."""
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        names = [name for name in _ORIGINALS if name in cells]
        if not names or not Path(function.__code__.co_filename).is_relative_to(Path(start.__file__).parent):
            return self.within(function)
        cells[names[0]].cell_contents = self.within(cells[names[0]].cell_contents)
        return function  # type: ignore[no-any-return]

    def put_inside(self, owner: Any, name: str) -> None:  # noqa: ANN401 - a class
        """Put the clock inside of a function of a class."""
        setattr(owner, name, self.inside(getattr(owner, name)))

    def take_ns(self) -> int:
        """What wrappers took since the last call."""
        around_ns, self.outside_ns, self.inside_ns = self.outside_ns - self.inside_ns, 0, 0
        return around_ns


CLOCKS = Clocks()


class TimedGpt(Gpt):
    """A GPT whose class has a call of its own, which perfscope wraps."""

    def __call__(self, *args: object) -> Any:  # noqa: ANN401 - a tensor
        """The loss, as the model's."""
        began_ns = _clock()
        result = super().__call__(*args)
        CLOCKS.inside_ns += _clock() - began_ns
        return result


class Loop:
    """A training loop in plain torch, with clocks around all that perfscope wraps."""

    def __init__(self, loop: str, config: GptConfig) -> None:
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.cuda = torch.cuda.is_available()
        if self.cuda:
            torch.cuda.set_device(rank % torch.cuda.device_count())
        if loop != "plain":
            distributed.init_process_group("nccl" if self.cuda else "gloo")
        self.loop, self.device = loop, "cuda" if self.cuda else "cpu"
        torch.manual_seed(rank)
        model: Any = (TimedGpt if loop == "plain" else Gpt)(config).to(self.device)
        if loop == "ddp":
            model = nn.parallel.DistributedDataParallel(model)
        elif loop == "fsdp2":
            for block in model.blocks:
                fsdp.fully_shard(block)
            fsdp.fully_shard(model)
        self.config = config
        if loop == "deepspeed":
            self.engine = model = self._make_engine(model)
        else:
            self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.model = self.forward = model

    def _make_engine(self, model: object) -> Any:  # noqa: ANN401 - DeepSpeed's
        """An engine of ZeRO 2."""
        options = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": 2},
            "bf16": {"enabled": self.cuda},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        }
        engine, *_ = import_module("deepspeed").initialize(model=model, config=options)
        return engine

    def load(self, batch: int) -> None:
        """Train on batches of another size from now on."""
        self.batches = iter(DataLoader(Tokens(self.config), batch_size=batch))

    def put_clocks(self) -> None:
        """Begin to time; FSDP's layers have taken the wrappers off themselves in the first steps."""
        CLOCKS.put_inside(dataloader._BaseDataLoaderIter, "__next__")  # noqa: SLF001 - where the hook is
        if self.loop == "deepspeed":
            self.forward = CLOCKS.around(self.engine)
            for name in ("forward", "step"):
                CLOCKS.put_inside(type(self.engine), name)
            return
        CLOCKS.put_inside(torch.optim.Optimizer, "zero_grad")
        CLOCKS.put_inside(type(self.optimizer), "step")
        if self.loop == "fsdp2":
            state = self.model._get_fsdp_state()  # noqa: SLF001 - where the hook is
            function = CLOCKS.inside(type(state)._root_pre_forward)  # noqa: SLF001 - the same
            state._root_pre_forward = types.MethodType(CLOCKS.around(function), state)  # noqa: SLF001 - the same
        else:
            self.forward = CLOCKS.around(self.model)
            if self.loop == "ddp":
                CLOCKS.put_inside(nn.parallel.DistributedDataParallel, "forward")

    def step(self) -> tuple[int, int]:
        """Train one step: how long it took, and how long of it wrappers."""
        CLOCKS.take_ns()
        began_ns = _clock()
        tokens = CLOCKS.around(next)(self.batches).to(self.device)
        if self.loop == "deepspeed":
            loss = self.forward(tokens)
            self.engine.backward(loss)
            CLOCKS.around(self.engine.step)()
            loss.item()
            return _clock() - began_ns, CLOCKS.take_ns()
        CLOCKS.around(self.optimizer.zero_grad)()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.cuda):
            loss = self.forward(tokens)
        loss.backward()
        CLOCKS.around(self.optimizer.step)()
        loss.item()
        return _clock() - began_ns, CLOCKS.take_ns()

    def agree(self, count: int) -> int:
        """The first rank's number on all ranks."""
        if self.loop == "plain":
            return count
        number = torch.tensor([count], device=self.device)
        distributed.broadcast(number, 0)
        return int(number.item())

    def train_for(self, seconds: float) -> list[tuple[int, int]]:
        """Train for about so long, all ranks the same number of steps."""
        first = [self.step() for _ in range(_SETTLING)]
        step_s = statistics.median(wall_ns for wall_ns, _ in first) / 1e9
        count = self.agree(max(_SETTLING, round(seconds / step_s)))
        return [self.step() for _ in range(count)]


def spent_ns() -> int:
    """The processor's time of the thread that writes records, up to its last turn; 0 without perfscope."""
    capture = start.PROCESS.capture
    return 0 if capture is None else capture.files.claim().late._spent_ns  # noqa: SLF001 - no step asks for it


def run_child(loop: str, folder: Path, seconds: float, *, small: bool) -> None:
    """One rank: it trains when it is told to, and writes what its clocks said."""
    torch.set_num_threads(1)
    training = Loop(loop, SMALL if small else LARGE)
    (folder / f"ready-{os.environ.get('RANK', '0')}").touch()
    while not (folder / "begin").exists():
        time.sleep(0.02)
    began_s = time.monotonic()
    training.load(1)
    for _ in range(_WARM_UP):
        training.step()
    training.put_clocks()
    steps, phases = _WARM_UP, []
    is_hooked = start.PROCESS.capture is not None
    if is_hooked:
        steps += _SETTLING + len(training.train_for(FIRST_TURNS * FIRST_PERIOD_S + 1 - time.monotonic() + began_s))
    for kind, batch in zip(KINDS, (1, 8 if small else 40), strict=True):
        training.load(batch)
        before_ns = spent_ns()
        measured = training.train_for(seconds)
        first, steps = steps + _SETTLING + 1, steps + _SETTLING + len(measured)
        wall_ns, around_ns = zip(*measured, strict=True)
        phases.append(
            {
                "loop": loop,
                "kind": kind,
                "hooked": is_hooked,
                "first_step": first,
                "step_us": [round(time_ns / NS_PER_US, 1) for time_ns in wall_ns],
                "around_us": [round(time_ns / NS_PER_US, 1) for time_ns in around_ns],
                "beside_us": (spent_ns() - before_ns) / NS_PER_US / len(measured),
            }
        )
    name = f"{int(os.environ.get('RANK', '0'))}.json"
    (folder / name).write_text(json.dumps(phases))
    if loop != "plain":
        distributed.destroy_process_group()


class Processes:
    """The ranks of one training, which wait to begin."""

    def __init__(self, loop: str, folder: Path, seconds: float, *, hooked: bool, small: bool) -> None:
        folder.mkdir()
        self.folder, self.loop, self.hooked = folder, loop, hooked
        self._longest_s = _LONGEST_END_S + 4 * seconds
        words = ["-m", "benchmarks.hook_costs", "--child", loop, str(folder), "--seconds", str(seconds)]
        words += ["--small"] if small else []
        command = [sys.executable, *words]
        if loop != "plain":
            command = [sys.executable, str(ROOT / "benchmarks" / "start_ranks.py"), str(_RANKS[loop]), *words]
        if hooked:
            profile = [sys.executable, "-m", "perfscope", "--quiet", "profile", "-o", str(folder / "RUN"), "--exec"]
            command = [*profile, "--steps", "100000000", "--", *command]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
        with (folder / "output").open("w") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT, env=environment)

    def begin(self) -> None:
        """Let it train, when all of its ranks have come so far."""
        due_s = time.monotonic() + _LONGEST_START_S
        while len(list(self.folder.glob("ready-*"))) < _RANKS[self.loop] and self.process.poll() is None:
            if time.monotonic() > due_s:
                break
            time.sleep(0.05)
        (self.folder / "begin").touch()

    def wait(self) -> list[dict[str, Any]]:
        """What its ranks measured, with what their records count; nothing where it failed."""
        try:
            self.process.wait(self._longest_s)
        except subprocess.TimeoutExpired:
            self.process.terminate()
        files = sorted(self.folder.glob("[0-9].json"))
        if not files:
            print((self.folder / "output").read_text()[-3000:], flush=True)
        phases = [{"rank": int(file.stem), **phase} for file in files for phase in json.loads(file.read_text())]
        for phase in phases if self.hooked else ():
            with contextlib.suppress(IndexError):
                table = next(table for table in read_run(self.folder / "RUN").steps if table.rank == phase["rank"])
                chosen = (table.step >= phase["first_step"]) & table.steady
                chosen &= table.step < phase["first_step"] + len(phase["step_us"])
                phase["counted_us"] = (np.ma.filled(table.hook_ns[chosen], 0) / NS_PER_US).round(1).tolist()
        return phases


class Cost(NamedTuple):
    """What hooks cost in one kind of training, in microseconds a step.

    Attributes:
        loop, kind: The training.
        steps: How many were counted, of all ranks.
        step_ms: Their median.
        counted: Mean and median of what the hooks count.
        around: Mean and median of what passes around their wrappers.
        beside: Processor time of the thread that writes records.
    """

    loop: str
    kind: str
    steps: int
    step_ms: float
    counted: tuple[float, float]
    around: tuple[float, float]
    beside: float


def sum_up(phases: list[dict[str, Any]]) -> Iterator[Cost]:
    """The cost in each loop and kind that was trained with perfscope; its clocks are those without perfscope."""
    for loop, kind in dict.fromkeys((phase["loop"], phase["kind"]) for phase in phases):
        own = [phase for phase in phases if (phase["loop"], phase["kind"]) == (loop, kind)]
        clocks = [time_us for phase in own if not phase["hooked"] for time_us in phase["around_us"]] or [0.0]
        hooked = [phase for phase in own if phase["hooked"]]
        around = [time_us for phase in hooked for time_us in phase["around_us"]]
        counted = [time_us for phase in hooked for time_us in phase.get("counted_us", ())]
        if counted:
            yield Cost(
                loop,
                kind,
                len(counted),
                statistics.median(time_us for phase in hooked for time_us in phase["step_us"]) * NS_PER_US / NS_PER_MS,
                (statistics.mean(counted), statistics.median(counted)),
                (
                    statistics.mean(around) - statistics.mean(clocks),
                    statistics.median(around) - statistics.median(clocks),
                ),
                statistics.mean(phase["beside_us"] for phase in hooked),
            )


def describe(cost: Cost) -> str:
    """A line for the terminal."""
    shares = [f"{time_us * NS_PER_US / NS_PER_MS / cost.step_ms:.3%}" for time_us in (cost.counted[0], cost.around[0])]
    return (
        f"{cost.loop}, {cost.kind}: {cost.steps} steps of {cost.step_ms:.1f} ms; "
        f"counted mean {cost.counted[0]:.1f} us, median {cost.counted[1]:.1f} us, {shares[0]}; "
        f"around mean {cost.around[0]:.1f} us, median {cost.around[1]:.1f} us, {shares[1]}; beside {cost.beside:.1f} us"
    )


def to_table(runs: list[dict[str, Any]]) -> str:
    """Measurements of several trees or machines as a table; those of the same name are one."""
    rows = []
    for name in dict.fromkeys(run["name"] for run in runs):
        for cost in sum_up([phase for run in runs if run["name"] == name for phase in run["phases"]]):
            cells = [name, cost.loop, cost.kind, str(cost.steps), f"{cost.step_ms:.1f}"]
            for mean, median in (cost.counted, cost.around):
                cells += [f"{mean:.0f}", f"{median:.0f}", f"{mean * NS_PER_US / NS_PER_MS / cost.step_ms * 100:.2f}"]
            rows.append(cells)
    return str(tabulate(rows, COLUMNS, tablefmt="pipe", disable_numparse=True))


def main() -> None:
    """Train each loop with perfscope and without, and write what was measured as soon as it is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--loops", default="plain,fsdp2,ddp")
    parser.add_argument("--seconds", type=float, default=12.0, help="Of each kind of training, below perfscope.")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--report", type=Path, help="Print the table of a file of measurements, and train nothing.")
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    if options.child:
        return run_child(options.child[0], Path(options.child[1]), options.seconds, small=options.small)
    if options.report:
        print(to_table(json.loads(options.report.read_text())))
        return None
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores"
    machine = {"device": device, "torch": torch.__version__, "python": sys.version.split()[0]}
    phases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        order = [(loop, hooked) for loop in options.loops.split(",") for hooked in (True, False)]
        waiting = [
            Processes(
                loop,
                Path(folder) / str(index),
                options.seconds if hooked else options.seconds / 6,
                hooked=hooked,
                small=options.small,
            )
            for index, (loop, hooked) in enumerate(order)
        ]
        for processes in waiting:
            processes.begin()
            phases += processes.wait()
            if options.json:
                options.json.write_text(json.dumps({"machine": machine, "phases": phases}) + "\n")
            own = [phase for phase in phases if phase["loop"] == processes.loop]
            print(f"{time.time():.0f}", *map(describe, sum_up(own)), sep="\n", flush=True)
    return None


if __name__ == "__main__":
    main()
