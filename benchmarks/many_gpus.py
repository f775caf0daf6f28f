"""The runs that need four or eight GPUs, one after the other, in a folder where an interrupted series goes on.

Run: ``python -m benchmarks.many_gpus -o OUT [--ranks N] [--megatron FOLDER] [--only NAME,...] [--limit SECONDS]``. Each
run is a command with a folder of its own, OUT/NAME; OUT/NAME.json says how it ended and how long it took. The same
command skips what is done, and the benchmarks within a run skip what they have measured, so that a machine that
is taken away costs the training that was under way. ``--limit`` begins nothing behind that many seconds and ends what
still runs. ``--at-once`` starts several trainings together, which then train in turn. ``--tiny`` takes models for CPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

from benchmarks.pipeline_runs import SHARED, SLOW_HOST, SLOW_RANK, TINY, Framework, Setting
from benchmarks.processes import ROOT
from benchmarks.shared_gpus import WHOLE, equal_shares, sharing
from benchmarks.start_ranks import list_gpus

WORKLOADS = ROOT / "perfscope" / "workloads"
#: Faults that hang a training, of which each has to be named among all ranks.
FAULTS = tuple(f"{name}:{fault}" for name in ("ddp", "fsdp2", "deepspeed", "pipeline") for fault in ("skip", "host"))
#: Those of Megatron's own training.
_MEGATRON_FAULTS = ("megatron:skip", "megatron:host")
#: Megatron's tensor parallelism refuses to run without it.
_CONNECTIONS = {"megatron_tp2_pp": ("env", "CUDA_DEVICE_MAX_CONNECTIONS=1")}
_KILL_AFTER_S = 10
_POLL_S = 0.1
#: What is trained on shared GPUs beside pipelines, through sockets, and what is small enough to be saved on any disk:
#: 100 million parameters, and many tokens.
_SMALL_MODEL = ("--layers=8", "--hidden=1024", "--heads=16", "--seq-len=1024", "--micro-batch=16")
#: What is trained on GPUs of their own: 0.8 and 1.2 billion parameters.
_LARGE_MODEL = ("--layers=16", "--hidden=2048", "--heads=16", "--seq-len=1024", "--micro-batch=4")
_ZERO_MODEL = ("--layers=24", "--hidden=2048", "--heads=16", "--seq-len=1024")
#: Those that take one device a process.
_SHARED_STRATEGIES = "single,ddp,fsdp2,zero-1,zero-3,1f1b"
#: Those whose largest number of devices is predicted from the smaller ones, of a batch that three divide, too.
_LAW_STRATEGIES, _LAW_SIZES, _LAW_BATCH = "ddp,fsdp2,zero-3,1f1b", (1, 2, 3, 4, 6, 8), "48"
#: Always the same, as the command of a run must be, and not the launcher's own, which any other training takes.
_PORT = "--master_port=29571"


@dataclass(frozen=True)
class Series:
    """What all runs of a series have in common.

    Attributes:
        ranks: Of each training.
        is_tiny: Whether models are for CPUs.
        megatron: The folder of Megatron's script.
        shares: The percentage of a GPU that each rank has, where ranks share the GPUs.
        at_once: How many runs are started together, and train in turn.
    """

    ranks: int
    is_tiny: bool
    megatron: Path | None = None
    shares: tuple[int, ...] = ()
    at_once: int = 1

    @property
    def takes_turns(self) -> bool:
        """Whether a training waits for those of other runs."""
        return self.at_once > 1

    @property
    def has_launcher(self) -> bool:
        """Whether ranks are started by ``start_ranks``, and not by the launcher of their framework."""
        return bool(self.shares) or self.takes_turns

    def share_words(self, turn: Path | None = None) -> list[str]:
        """The options of a benchmark whose ranks share the GPUs, or train in turn with other runs."""
        words = ["--share", ",".join(map(str, self.shares))] if self.shares else []
        return [*words, "--turn", str(turn)] if turn and self.takes_turns else words


@dataclass(frozen=True)
class Run:
    """One run of the series: a name, which is that of its folder, and a command that writes below that folder.

    Attributes:
        finished: Exit codes of a command that has done its work; an answer that is wrong is an answer.
        goes_on: Whether the command goes on with what an interrupted one left; otherwise that is removed.
        takes_turns: Whether its trainings wait for those of other runs, so that it can go on beside them.
        is_timed: Whether it measures times, which others that take no turns would disturb.
        is_sharing: Whether its ranks are clients of NVIDIA's multi-process service: what is killed while its kernels
            run takes down the other ones.
    """

    name: str
    command: tuple[str, ...]
    finished: tuple[int, ...] = (0,)
    goes_on: bool = True
    takes_turns: bool = False
    is_timed: bool = True
    is_sharing: bool = False


def runs_of(series: Series, folder: Path) -> Iterator[Run]:
    """The runs, those first that no smaller machine can show."""
    yield from _sweeps(series, folder)
    yield from _zero_runs(series, folder)
    if series.megatron:
        yield _megatron_saves(series, series.megatron, folder)
    yield from _stopped_runs(series, folder)
    yield from _pair_runs(series, folder)
    yield from _scaling_runs(series, folder)


def _python(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", *words)


def _sweeps(series: Series, folder: Path) -> Iterator[Run]:
    tiny = ("--tiny",) if series.is_tiny else ()
    sweep = _python("benchmarks.bubble_sweep", "--ranks", str(series.ranks), *tiny)
    slow = ("--variants", "slow_host", *(("slow_device",) if series.shares else ()), "--others", "interleaved", "zb-h1")
    shared = series.share_words(folder / "turn")
    once = ("--plain-once",) if series.has_launcher else ()
    for name, more in (
        *(
            (("megatron_pp", ("--variants", "untied")), ("megatron_tp2_pp", ("--tensor", "2")))
            if series.megatron
            else ()
        ),
        ("deepspeed_pp", ()),
        ("torch_pp", slow),
    ):
        framework = name.partition("_")[0]
        scripts = ("--megatron", str(series.megatron)) if framework == "megatron" else ()
        words = (*_CONNECTIONS.get(name, ()), *sweep, "--microbatches", "4", "8", "16", "--framework", framework)
        words += (*scripts, *more, *once, *shared, "-o", str(folder / name))
        yield Run(name, words, takes_turns=series.takes_turns, is_sharing=bool(series.shares))
    if not series.shares:
        name = "torch_pp_slow_device"
        own = replace(series, shares=(WHOLE,) * series.ranks)
        words = (*sweep, "--microbatches", "8", "--variants", "slow_device", "--others", "--plain-once")
        words += (*own.share_words(folder / "turn"), "-o", str(folder / name))
        yield Run(name, words, takes_turns=series.takes_turns, is_sharing=True)


def _zero_runs(series: Series, folder: Path) -> Iterator[Run]:
    """ZeRO 3 under perfscope, without it, and with checkpoints."""
    zero = (str(WORKLOADS / "gpt_deepspeed.py"), "--zero-stage=3", "--steps=24")
    launcher = _python("deepspeed.launcher.runner", "--num_gpus", str(series.ranks), _PORT)
    if series.has_launcher:
        launcher = _start_ranks(series, folder)
    for name, is_profiled in (("deepspeed_zero3", True), ("deepspeed_zero3_plain", False), ("deepspeed_saves", True)):
        is_saving = name == "deepspeed_saves"
        size = _SMALL_MODEL if series.shares or is_saving else _ZERO_MODEL
        profile = _profile(folder / name / "run") if is_profiled else ()
        saves = ("--save", str(folder / name / "checkpoints")) if is_saving else ()
        words = (*profile, *launcher, *zero, *(() if series.is_tiny else size), *saves)
        yield Run(name, words, goes_on=False, takes_turns=series.takes_turns, is_sharing=bool(series.shares))


def _megatron_saves(series: Series, scripts: Path, folder: Path) -> Run:
    """Megatron's checkpoints, of a model that is small enough for any disk."""
    size = TINY if series.is_tiny else {**SHARED, "layers": 8, "hidden": 1024, "heads": 16}
    turn = folder / "turn" if series.at_once > 1 else None
    setting = Setting(Framework.MEGATRON, "1f1b", 8, series.ranks, size, scripts, shares=series.shares, turn=turn)
    name = "megatron_saves"
    saves = ("--save", str(folder / name / "checkpoints"), "--save-interval", "6")
    words = (*_profile(folder / name / "run"), *setting.command(), *saves)
    return Run(name, words, goes_on=False, takes_turns=series.takes_turns, is_sharing=bool(series.shares))


def _profile(run: Path) -> tuple[str, ...]:
    return _python("perfscope", "profile", "-o", str(run), "--")


def _start_ranks(series: Series, folder: Path | None = None) -> tuple[str, ...]:
    """The launcher of ranks that share the GPUs, or take turns."""
    words = series.share_words(folder and folder / "turn")
    return (sys.executable, str(ROOT / "benchmarks" / "start_ranks.py"), *words, str(series.ranks))


def _stopped_runs(series: Series, folder: Path) -> Iterator[Run]:
    """Trainings with a fault, which trains little: on GPUs of their own, several go on at the same time."""
    matrix = (*_python("benchmarks.postmortem"), "--ranks", str(series.ranks), *(() if series.is_tiny else ("--cuda",)))
    shared = series.share_words(folder / "turn") if series.shares else []
    if series.megatron:
        matrix += ("--megatron", str(series.megatron))
    for fault in FAULTS + (_MEGATRON_FAULTS if series.megatron else ()):
        name = "postmortem_" + fault.replace(":", "_")
        command = (*matrix, *shared, "--only", fault, "--json", str(folder / name / "results.json"))
        command += ("--keep", str(folder / name / "runs"))
        is_in_turn = bool(series.shares) and series.takes_turns
        yield Run(name, command, finished=(0, 1), goes_on=False, takes_turns=is_in_turn, is_timed=False)


def _pair_runs(series: Series, folder: Path) -> Iterator[Run]:
    """Trainings with and without communication, and with a device or a host that is slow."""
    size = () if series.is_tiny else _SMALL_MODEL if series.shares else _LARGE_MODEL
    shares = series.shares or (WHOLE,) * series.ranks
    half = tuple(share // (2 if rank == SLOW_RANK else 1) for rank, share in enumerate(shares))
    slow_host = (str(ROOT / "benchmarks" / "slow_host.py"), *SLOW_HOST)
    for name, parallel in (
        ("torch_ddp", "ddp"),
        ("torch_fsdp2", "fsdp2"),
        ("torch_none", "none"),
        ("torch_ddp_slow_device", "ddp"),
        ("torch_ddp_slow_host", "ddp"),
    ):
        takes_turns = series.takes_turns and parallel != "none"  # ranks wait for their turn in a process group
        own = replace(series, shares=half) if name.endswith("slow_device") else series
        launcher = _start_ranks(own, folder if takes_turns else None)
        delay = slow_host if name.endswith("slow_host") else ()
        script = (*delay, str(WORKLOADS / "gpt_torch.py"), "--parallel", parallel, "--steps=24", *size)
        words = (*_profile(folder / name / "run"), *launcher, *script)
        yield Run(name, words, goes_on=False, takes_turns=takes_turns, is_sharing=bool(own.shares))


def _scaling_runs(series: Series, folder: Path) -> Iterator[Run]:
    """All strategies on 1, 2, 4 ... devices; some on more numbers of them, for laws that predict the largest."""
    devices = ",".join(str(1 << power) for power in range(series.ranks.bit_length()))
    model = ("gpt:2x64x32", "--devices", "cpu") if series.is_tiny else ("gpt2-small",)
    bench = _python("perfscope", "bench", "--no-saves", "--model", *model)
    strategies = "all"
    if series.shares:
        launcher = shlex.join(_start_ranks(series)[:-1]) + " {nproc}"
        bench = ("env", f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={series.shares[0]}", *bench, "--launcher", launcher)
        strategies = _SHARED_STRATEGIES
    ahead = () if series.is_tiny else ("--start-ahead", "6" if series.shares else "12")
    strategies = "ddp,fsdp2" if series.is_tiny else strategies
    words = (*bench, *ahead, "--nproc", devices, "--strategies", strategies, "--weak", "--batch-size", "8")
    yield Run("scaling", (*words, "-o", str(folder / "scaling" / "bench")), is_sharing=bool(series.shares))
    sizes = ",".join(str(size) for size in _LAW_SIZES if size <= series.ranks)
    words = (*bench, *ahead, "--nproc", sizes, "--strategies", "ddp" if series.is_tiny else _LAW_STRATEGIES)
    words += ("--batch-size", _LAW_BATCH, "--repetitions", "3", "-o", str(folder / "scaling_law" / "bench"))
    yield Run("scaling_law", words, is_sharing=bool(series.shares))


def is_done(folder: Path, run: Run) -> bool:
    """Whether an earlier series has finished this run, by the same command."""
    record = folder / f"{run.name}.json"
    if not record.is_file():
        return False
    earlier = json.loads(record.read_text())
    return earlier["returncode"] in run.finished and tuple(earlier["command"]) == run.command


def perform(
    folder: Path, run: Run, limit_s: float, stop: Event | None = None, service: Mapping[str, str] | None = None
) -> int:
    """Run a command, its output in OUT/NAME.log, and write how it ended.

    Args:
        folder: OUT.
        run: Which.
        limit_s: The seconds after which it is ended.
        stop: Set where it is to be ended before.
        service: The environment by which ranks that share find the multi-process service.

    Returns:
        The exit code; 124 for a command that took too long or had to ``stop``.
    """
    if not run.goes_on:
        shutil.rmtree(folder / run.name, ignore_errors=True)
    (folder / run.name).mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    began_s = time.monotonic()
    with (folder / f"{run.name}.log").open("ab") as log:
        process = subprocess.Popen(
            run.command,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, **((run.is_sharing and service) or {}), "PYTHONPATH": path},
            start_new_session=True,
        )
        try:
            returncode = _wait_for(process, began_s + limit_s, stop)
        finally:
            _kill_group(process)
    ended = {"command": run.command, "returncode": returncode, "seconds": round(time.monotonic() - began_s, 1)}
    unfinished = folder / f"{run.name}.tmp"
    unfinished.write_text(json.dumps(ended, indent=1) + "\n")
    unfinished.replace(folder / f"{run.name}.json")
    return returncode


def _wait_for(process: subprocess.Popen[bytes], end_s: float, stop: Event | None) -> int:
    while process.poll() is None:
        if time.monotonic() > end_s or (stop is not None and stop.is_set()):
            os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_AFTER_S)
            return 124
        time.sleep(_POLL_S)
    return process.returncode


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def perform_all(
    folder: Path, series: Series, only: frozenset[str], limit_s: float, service: Mapping[str, str] | None = None
) -> bool:
    """Perform what is left of the series; whether every wanted run has ended well.

    Runs whose trainings take turns go on together, ``series.at_once`` of them; then those that measure no times; then
    each of the others alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    stop = Event()
    wanted = [run for run in runs_of(series, folder) if not only or run.name in only]

    def perform_one(run: Run) -> bool:
        left_s = limit_s - (time.monotonic() - began_s)
        if is_done(folder, run):
            print(f"{run.name}: done before", flush=True)
            return True
        if left_s <= 0 or stop.is_set():
            print(f"{run.name}: no time is left", flush=True)
            return False
        print(f"{run.name}: begins", flush=True)
        returncode = perform(folder, run, left_s, stop, service)
        print(f"{run.name}: exit code {returncode} after {time.monotonic() - began_s:.0f} s", flush=True)
        return returncode in run.finished

    in_turn = [run for run in wanted if run.takes_turns]
    untimed = [run for run in wanted if not run.takes_turns and not run.is_timed]
    ended: list[bool] = []
    for together in (in_turn, untimed):
        with ThreadPoolExecutor(series.at_once) as pool:
            try:
                ended += pool.map(perform_one, together)
            finally:
                stop.set()  # where this process is asked to end
        stop.clear()
    ended += [perform_one(run) for run in wanted if not run.takes_turns and run.is_timed]
    return all(ended)


def main() -> None:
    """Perform the series."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # so that the run is ended, too
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--megatron", type=Path, help="the folder of Megatron's pretrain_gpt.py")
    parser.add_argument("--only", default="", help="names of runs, separated by commas")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds")
    parser.add_argument("--tiny", action="store_true", help="models for CPUs")
    parser.add_argument("--share", action="store_true", help="ranks share the GPUs that are there")
    parser.add_argument("--at-once", type=int, default=1, help="runs that are started together, and train in turn")
    arguments = parser.parse_args()
    shares = equal_shares(arguments.ranks, len(list_gpus(os.environ))) if arguments.share else ()
    scripts = arguments.megatron and arguments.megatron.absolute()
    series = Series(arguments.ranks, arguments.tiny, scripts, shares, arguments.at_once)
    only = frozenset(word for word in arguments.only.split(",") if word)
    known = {run.name for run in runs_of(series, arguments.output)}
    if unknown := only - known:
        parser.error(f"{', '.join(sorted(unknown))}: no such run; known are {', '.join(sorted(known))}")
    with sharing() as service:
        is_complete = perform_all(arguments.output.absolute(), series, only, arguments.limit, service)
    sys.exit(0 if is_complete else 1)


if __name__ == "__main__":
    main()
