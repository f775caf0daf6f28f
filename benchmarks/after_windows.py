"""What a window may break on a GPU: each case trains below ``perfscope profile`` with three windows, and without it.

Run: ``python -m benchmarks.after_windows [--json FILE] [--megatron pretrain_gpt.py] [--timeout S] [CASE ...]`` on a
machine with a GPU. A case passes where both processes end with code 0 and print the same numbers to the last bit, and
where every window, each of which a light one follows, recorded as many kernels of its steps as the others of its rank
and left CUPTI detached. Kernels of the step before, which the device may still run when a window opens, are counted
apart: their number depends on how far the host is ahead. The cases are CUDA graphs, ``torch.compile`` with and without
``reduce-overhead``, NCCL, FSDP 2, DeepSpeed's ZeRO 1, a training that ends inside a window, a profiler of the script's
own afterwards, and Megatron-LM's own script, unmodified, with tensor parallelism where there are two GPUs: the numbers
are its losses and norms, to the last digit of its log. Of Megatron's steps its log gives the times, too: both trainings
run at the same time on the same GPUs, so that blocks of ten steps, ahead of all windows and behind them, are compared
with the same steps of the other.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

from perfscope.sources.runs.run import read_run
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import ABSENT, Trace, Work

STEPS = 34
WINDOWS = "5-6,14-15,23-24"
#: Megatron trains more steps: blocks of ten ahead of the windows, and behind them.
MEGATRON_STEPS = 330
_MEGATRON_WINDOWS = "104-105,113-114,122-123"  # one opens a step ahead, and a light one follows
_BLOCK = 10
_AHEAD, _BEHIND = range(21, 101), range(131, MEGATRON_STEPS + 1)
_RECORDED = 6  # each is followed by a light window
_WIDTH, _DEPTH, _ROWS = 256, 8, 64


class Loop:
    """A small training: its ``step`` runs forward and backward and returns the loss."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [layer for _ in range(_DEPTH) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.Tanh())]
        self.model: Any = nn.Sequential(*layers).cuda()
        self.batch = torch.randn(_ROWS, _WIDTH, device="cuda")

    def optimize(self) -> None:
        """Make the optimizer, when the model is as it is to be trained."""
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self) -> str:
        """Train one step; the loss to the last bit."""
        self.optimizer.zero_grad()
        loss = self.model(self.batch).square().mean()
        loss.backward()
        self.optimizer.step()
        return float(loss).hex()


def train_plainly() -> list[str]:
    """No more than the loop."""
    loop = Loop()
    loop.optimize()
    return [loop.step() for _ in range(STEPS)]


def train_with_graph() -> list[str]:
    """A CUDA graph that was captured ahead of all windows is replayed in every step."""
    loop = Loop()
    loop.optimize()
    static = torch.randn(_ROWS, _WIDTH, device="cuda")
    weight = torch.randn(_WIDTH, _WIDTH, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        result = (static @ weight).tanh()  # allocates what must exist ahead of the capture
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = (static @ weight).tanh()
    lines = []
    for step in range(STEPS):
        static.fill_(step / STEPS)
        graph.replay()
        lines.append(f"{loop.step()} {float(result.double().sum()).hex()}")
    return lines


def train_compiled(mode: str | None) -> list[str]:
    """The model is compiled."""
    loop = Loop()
    loop.optimize()
    loop.model = torch.compile(loop.model, mode=mode)
    return [loop.step() for _ in range(STEPS)]


def join_group() -> None:
    """A group of this process alone, with NCCL."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed.init_process_group("nccl", device_id=torch.device("cuda", 0))


def train_with_nccl() -> list[str]:
    """An all-reduce in every step."""
    join_group()
    loop = Loop()
    loop.optimize()
    lines = []
    for _ in range(STEPS):
        lines.append(loop.step())
        distributed.all_reduce(loop.batch)
    distributed.destroy_process_group()
    return lines


def train_with_fsdp2() -> list[str]:
    """Every linear layer is sharded."""
    join_group()
    loop = Loop()
    for layer in loop.model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(loop.model)
    loop.optimize()
    lines = [loop.step() for _ in range(STEPS)]
    distributed.destroy_process_group()
    return lines


def train_with_deepspeed() -> list[str]:
    """ZeRO 1."""
    import deepspeed  # optional: only this case needs it

    join_group()
    loop = Loop()
    config = {
        "train_micro_batch_size_per_gpu": _ROWS,
        "zero_optimization": {"stage": 1},
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    }
    engine, *_ = deepspeed.initialize(model=loop.model, config=config)
    lines = []
    for _ in range(STEPS):
        loss = engine(loop.batch.bfloat16()).float().square().mean()
        engine.backward(loss)
        engine.step()
        lines.append(float(loss).hex())
    distributed.destroy_process_group()
    return lines


def train_and_end_in_window() -> list[str]:
    """The last step is the first of the third window's two, so that no light window follows."""
    loop = Loop()
    loop.optimize()
    return [loop.step() for _ in range(23)]


def train_and_profile() -> list[str]:
    """A profiler of the script's own, when all windows are over: it records, and the process ends."""
    loop = Loop()
    loop.optimize()
    lines = [loop.step() for _ in range(STEPS)]
    with torch.profiler.profile() as profiler:
        lines.append(loop.step())
    kernels = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return [*lines, f"kernels of its own: {len(kernels) > 0}"]


CASES: dict[str, Callable[[], list[str]]] = {
    "plain": train_plainly,
    "graph": train_with_graph,
    "compile": lambda: train_compiled(None),
    "reduce-overhead": lambda: train_compiled("reduce-overhead"),
    "nccl": train_with_nccl,
    "fsdp2": train_with_fsdp2,
    "deepspeed": train_with_deepspeed,
    "ends-in-window": train_and_end_in_window,
    "own-profiler": train_and_profile,
}
_MEGATRON = "megatron"
_LOGGED = re.compile(r"iteration +(\d+)/.*?lm loss: (\S+) .*?grad norm: (\S+) .*?params norm: (\S+) ")
_ELAPSED = re.compile(r"iteration +(\d+)/.*?elapsed time per iteration \(ms\): (\S+)")


def megatron_words(script: Path, ranks: int) -> list[str]:
    """The command of Megatron's script: a small GPT on data that it makes up, with the same numbers in each run."""
    options = f"""
        --mock-data --tokenizer-type NullTokenizer --vocab-size 1000 --split 100,0,0 --transformer-impl local
        --num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128
        --micro-batch-size 2 --global-batch-size 4 --train-iters {MEGATRON_STEPS} --lr 1e-4 --bf16
        --attention-backend unfused --no-persist-layer-norm --no-masked-softmax-fusion --no-bias-gelu-fusion
        --no-bias-dropout-fusion --no-rope-fusion --no-gradient-accumulation-fusion --eval-iters 0
        --eval-interval 1000 --ckpt-format torch --log-interval 1 --log-params-norm --deterministic-mode
        --tensor-model-parallel-size {ranks}
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*launcher, str(script), *options.split()]


@dataclass(frozen=True)
class Verdict:
    """How a case went.

    Attributes:
        case: Its name.
        problem: What is wrong; empty where it passed.
        kernels: Kernels of its own steps that each window of the first rank recorded.
        others: What else each of them recorded: kernels of the step before, which still ran when it opened.
        steps: Of Megatron the medians of steps, and by how much steps behind windows take longer.
    """

    case: str
    problem: str
    kernels: tuple[int, ...]
    others: tuple[int, ...] = ()
    steps: dict[str, float] | None = None


def judge(case: str, folder: Path, script: Path | None, timeout_s: float) -> Verdict:
    """Run a case with perfscope and without; ``script`` is Megatron's."""
    child, ranks = [sys.executable, "-m", "benchmarks.after_windows", "--child", case], 1
    if case == _MEGATRON:
        ranks = min(2, torch.cuda.device_count())
        child = megatron_words(script or Path("pretrain_gpt.py"), ranks)
    profile = [sys.executable, "-m", "perfscope", "profile", "--exec", "--run-dir", str(folder / case)]
    windows_of = _MEGATRON_WINDOWS if case == _MEGATRON else WINDOWS
    words = [*profile, "--steps", windows_of, "--window", "both", "--", *child]
    try:
        with ThreadPoolExecutor(2) as pool:
            bare, ours = pool.map(lambda command: _run(command, timeout_s), (child, words))
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode(errors="replace")[-400:]
        return Verdict(case, f"did not end: {' '.join(error.cmd)}: {said}", ())
    if bare.returncode != 0:
        return Verdict(case, f"fails without perfscope: {bare.stderr[-400:]}", ())
    if ours.returncode != 0:
        return Verdict(case, f"ended with {ours.returncode}: {ours.stderr[-400:]}", ())
    windows = sorted(read_run(folder / case).windows, key=lambda window: window.first_step)
    kernels: dict[int, list[int]] = {}
    others: dict[int, list[int]] = {}
    named: dict[int, list[Counter[str]]] = {}
    for window in windows:
        trace = read_window(folder / case / "traces", window.trace)
        for total, count in zip((kernels, others), count_kernels(trace), strict=True):
            total.setdefault(window.rank, []).append(count)
        named.setdefault(window.rank, []).append(name_kernels(trace))
    expected = _RECORDED - (case == "ends-in-window")
    problems = [
        "no numbers" if not numbers(bare.stdout) else "",
        f"{len(windows)} windows" if len(windows) != ranks * expected else "",
        "other numbers" if numbers(ours.stdout) != numbers(bare.stdout) else "",
        "a window without kernels" if any(0 in counted for counted in kernels.values()) else "",
        "CUPTI stays attached" if not all(window.detached for window in windows) else "",
        *(find_differences(windows_of_rank) for windows_of_rank in named.values() if case != "ends-in-window"),
    ]
    first, around = (tuple(next(iter(counts.values()), ())) for counts in (kernels, others))
    of_steps = compare_steps(bare.stdout, ours.stdout) if case == _MEGATRON else None
    return Verdict(case, ", ".join(filter(None, problems)), first, around, of_steps)


def _run(words: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False)


def numbers(output: str) -> list[str]:
    """What the child itself printed, or Megatron in its log."""
    logged = [" ".join(match.groups()) for match in map(_LOGGED.search, output.splitlines()) if match]
    return [line for line in output.splitlines() if line.startswith("result ")] + logged


def compare_steps(bare: str, ours: str) -> dict[str, float]:
    """Steps of two of Megatron's logs ahead of all windows and behind them; the change behind them, with its error."""
    logs = [{int(step): float(ms) for step, ms in _ELAPSED.findall(log)} for log in (bare, ours)]
    figures: dict[str, float] = {}
    middles, errors = [], []
    for part, steps in (("ahead", _AHEAD), ("behind", _BEHIND)):
        times = np.array([[log[step] for step in steps] for log in logs]).reshape(2, -1, _BLOCK)
        without, captured = np.median(times, axis=2)
        ratios = captured / without
        figures |= {f"bare_{part}_ms": float(np.median(without)), f"captured_{part}_ms": float(np.median(captured))}
        middles.append(float(np.median(ratios)))
        errors.append(1.2533 * float(ratios.std(ddof=1)) / math.sqrt(len(ratios)) / middles[-1])
    change = 100 * (middles[1] / middles[0] - 1)
    return {**figures, "change_percent": change, "error_percent": 100 * math.hypot(*errors)}


def read_window(folder: Path, name: str) -> Trace:
    """The trace of a window, which may be compressed by now."""
    plain, compressed = folder / name, folder / f"{name}.gz"
    return read_trace(compressed if compressed.exists() else plain)


def count_kernels(trace: Trace) -> tuple[int, int]:
    """The kernels that the marked steps of a trace launched, and all others in it."""
    is_kernel = trace.device.work != Work.COPY
    of_steps = int((is_kernel & (trace.step != ABSENT)).sum())
    return of_steps, int(is_kernel.sum()) - of_steps


def name_kernels(trace: Trace) -> Counter[str]:
    """How often the marked steps of a trace launched each kernel."""
    of_steps = (trace.device.work != Work.COPY) & (trace.step != ABSENT)
    return Counter(trace.names[name] for name in trace.device.name[of_steps].tolist())


def find_differences(windows: Sequence[Counter[str]]) -> str:
    """Which windows have other kernels than most, and which; empty where all are equal."""
    usual, _ = Counter(window.total() for window in windows).most_common(1)[0]
    typical = next(window for window in windows if window.total() == usual)
    said = []
    for number, window in enumerate(windows, start=1):
        changes = {name: window[name] - typical[name] for name in window | typical if window[name] != typical[name]}
        if changes:
            listed = ", ".join(f"{count:+} {name}" for name, count in changes.items())
            said.append(f"window {number} differs: {listed}")
    return "; ".join(said)


def main() -> None:
    """Print a row a case; end with 1 where one fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", help="Cases to run; all of them by default.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--megatron", type=Path, help="Megatron-LM's pretrain_gpt.py.")
    parser.add_argument("--timeout", type=float, default=240, help="Seconds after which a process is ended.")
    parser.add_argument("--child", choices=tuple(CASES))
    options = parser.parse_args()
    if options.child:
        for line in CASES[options.child]():
            print("result", line)
        return
    if not torch.cuda.is_available():
        sys.exit("a GPU is needed")
    available = [case for case in CASES if case != "deepspeed" or find_spec("deepspeed")]
    available += [_MEGATRON] if options.megatron else []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(available)) as pool:
        cases = options.cases or available
        verdicts = list(pool.map(lambda case: judge(case, Path(folder), options.megatron, options.timeout), cases))
    rows = [(verdict.case, verdict.problem or "passed", *verdict.kernels) for verdict in verdicts]
    headings = ("case", "result", *(f"kernels {number}" for number in range(1, _RECORDED + 1)))
    print(tabulate(rows, headings, tablefmt="pipe"))
    print(*(verdict.steps for verdict in verdicts if verdict.steps))
    if options.json:
        options.json.write_text(json.dumps([vars(verdict) for verdict in verdicts], indent=2) + "\n")
    sys.exit(any(verdict.problem for verdict in verdicts))


if __name__ == "__main__":
    main()
