"""The state of a running job: its ranks, their last steps, its GPUs; each look reads what is new."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec

from perfscope import wire
from perfscope.analyzers.mfu import analyze as analyze_mfu
from perfscope.analyzers.steps import StepTimes, analyze
from perfscope.constants import NS_PER_S
from perfscope.errors import PerfscopeError, SourceError
from perfscope.files import open_regular, read_regular
from perfscope.hooks.config import Config
from perfscope.hooks.watch.watch import publish
from perfscope.sources.runs.folder import is_run
from perfscope.sources.runs.model_record import read_model_record
from perfscope.sources.runs.nvml import GpuValues, SampleLine
from perfscope.sources.runs.records import DAMAGE, decode_step, read_rank_record
from perfscope.sources.runs.run import read_rank
from perfscope.sources.runs.step_columns import to_steps
from perfscope.tables.run import Run
from perfscope.wire import incidents, requests
from perfscope.wire.records import RankRecord, StepRecord

_R = TypeVar("_R")

#: How much is read of the end of a file.
_MOST_BYTES = 65536
#: Steps that figures are of.
RECENT = 100
#: Ranks that appear later, the GPUs' names and MFU are found out in each so many looks.
_SCAN_EVERY = 8
#: A job whose ranks have all ended may start again for so long; then it is over, where nothing noted its end.
_GONE_NS = 300 * NS_PER_S


class _DeathLine(msgspec.Struct):
    kind: str = ""
    rank: int = -1
    attempt: int = -1


_decode_death = msgspec.json.Decoder(_DeathLine).decode
_decode_sample = msgspec.json.Decoder(SampleLine).decode
_decode_answer = msgspec.json.Decoder(requests.WindowAnswer).decode


@dataclass
class WatchedRank:
    """One rank, with its last steps, the oldest first, and its answers by the name of the request.

    ``is_stalled`` is what its own watchdog says. ``written_ns`` is when the steps were written, on the wall clock.
    """

    rank: int
    record: RankRecord
    steps: list[StepRecord] = field(default_factory=list)
    has_ended: bool = False
    is_stalled: bool = False
    written_ns: int | None = None
    answers: dict[str, requests.WindowAnswer] = field(default_factory=dict)

    @property
    def pace_ns(self) -> float | None:
        """The median time from the end of one of its last steps to the next one's."""
        times = [
            (later.end_ns - step.end_ns) / (later.step - step.step)
            for step, later in pairwise(self.steps)
            if later.step > step.step
        ]
        return statistics.median(times) if times else None

    def steps_by_now(self, wall_ns: int) -> int:
        """Steps that it has probably completed: records are up to two seconds old."""
        return self.step + (int((self.age_ns(wall_ns) or 0) / self.pace_ns) if self.pace_ns else 0)

    @property
    def step(self) -> int:
        """Completed training steps."""
        return self.steps[-1].step if self.steps else 0

    def longest_ns(self) -> int:
        """The longest of its last steps outside profiler windows; 0 before the first one."""
        return max((step.wall_ns or 0 for step in self.steps if step.window is None), default=0)

    def age_ns(self, wall_ns: int) -> int | None:
        """How long ago its last step ended, also where a clock was set forward since the process began."""
        if not self.steps:
            return None
        age_ns = max(0, wall_ns - (self.steps[-1].end_ns - self.record.monotonic_ns + self.record.wall_ns))
        if self.written_ns is None:
            return age_ns
        return min(age_ns, max(0, wall_ns - self.written_ns) + incidents.LATEST_WRITE_NS)


def read_end(path: Path) -> list[bytes]:
    """The whole lines at the end of a file; none where it cannot be read."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(begin := max(size - _MOST_BYTES, 0))
            content = file.read(size - begin)
    except OSError:
        return []
    return [line for line in content.split(b"\n")[1 if begin else 0 : -1] if line]


def _decode_all(decode: Callable[[bytes], _R], lines: Iterable[bytes]) -> Iterator[_R]:
    for line in lines:
        try:
            yield decode(line)
        except DAMAGE:
            continue


@dataclass
class _Samples:
    """The file of a host's GPUs, their description in it and their last sample."""

    path: Path
    began_ns: int
    described: list[GpuValues]
    gpus: list[GpuValues]


def _last_sample(samples: _Samples) -> list[GpuValues]:
    """The last sample of each GPU, with what does not change."""
    for line in reversed(read_end(samples.path)):
        for sample in _decode_all(_decode_sample, [line]):
            gpus = sample.gpus or []
            if len(gpus) == len(samples.described) and b'"uuid"' not in line:
                for values, described in zip(gpus, samples.described, strict=True):
                    for name in ("host", "uuid", "name", "index", "memory_total_bytes"):
                        setattr(values, name, getattr(described, name))
                return gpus
    return samples.gpus


def _read_first(path: Path) -> SampleLine:
    try:
        with open_regular(path) as file:
            return _decode_sample(file.readline())
    except (OSError, *DAMAGE):
        return SampleLine()


class WatchedJob:
    """A running job, as it was when it was last looked at; ``exit_status`` says how the command ended."""

    def __init__(self, path: Path) -> None:
        if not is_run(path):
            raise SourceError(path, "is not a run of `perfscope profile`", hint="it has neither run.json nor ranks/")
        self.path = path
        self.exit_status: str | None = None
        self.wall_ns = time.time_ns()
        self.mfu: float | None = None
        self.mfu_reason = "too few steps"
        self._by_folder: dict[str, WatchedRank] = {}
        self._dead: set[str] = set()
        self._samples: dict[str, _Samples] = {}  # of each host, the latest
        self._known: dict[Path, tuple[int, int, int]] = {}
        self._gone_since_ns: int | None = None
        self._looks = 0
        self._times: StepTimes | None = None

    @property
    def ranks(self) -> dict[int, WatchedRank]:
        """The ranks, by number; of restarted ones the last process."""
        by_attempt = sorted(self._by_folder.items(), key=lambda item: wire.parse_rank_folder(item[0]) or (0, 0))
        return {rank.rank: rank for _, rank in by_attempt}

    @property
    def gpus(self) -> list[GpuValues]:
        """The GPUs, by host."""
        return [gpu for _, samples in sorted(self._samples.items()) for gpu in samples.gpus]

    @property
    def missing_ranks(self) -> list[int]:
        """The ranks of which nothing is known, where others are known."""
        world_size = max((rank.record.world_size for rank in self.ranks.values()), default=0)
        return sorted(set(range(world_size)) - set(self.ranks))

    @property
    def is_over(self) -> bool:
        """Whether the command has ended, or all ranks have for minutes, as where the command was killed as well."""
        if self.exit_status is not None:
            return True
        return self._gone_since_ns is not None and time.monotonic_ns() - self._gone_since_ns >= _GONE_NS

    def look(self) -> None:
        """Read what is new."""
        is_due = self._looks % _SCAN_EVERY == 0
        if is_due:
            self._scan()
        self._looks += 1
        self.wall_ns = time.time_ns()
        has_new = [self._read_rank(name, rank) for name, rank in self._by_folder.items()]
        if any(has_new) or is_due:
            run = self._run()
            self._times = None if run is None else analyze(run)
            if run is not None and self._times is not None and self._times.step_time_s and is_due:
                self._find_mfu(run)
        for path in (self.path / incidents.DEATHS_FOLDER).glob("*.jsonl"):
            if self._is_new(path):  # processes that were killed write no end of their own
                for death in _decode_all(_decode_death, read_end(path)):
                    if death.kind == "death" and death.rank >= 0:
                        self._dead.add(wire.rank_folder(death.rank, max(death.attempt, 0)))
        for name in self._dead & self._by_folder.keys():  # a process may die before it is found
            self._by_folder[name].has_ended = True
        for samples in self._samples.values():
            if self._is_new(samples.path):
                samples.gpus = _last_sample(samples)
        is_gone = bool(self._by_folder) and all(rank.has_ended for rank in self.ranks.values())
        self._gone_since_ns = (self._gone_since_ns or time.monotonic_ns()) if is_gone else None

    def _is_new(self, path: Path) -> bool:
        try:
            status = path.stat()
        except OSError:
            return False
        now = status.st_ino, status.st_size, status.st_mtime_ns
        is_new = self._known.get(path) != now
        self._known[path] = now
        return is_new

    def _read_rank(self, name: str, rank: WatchedRank) -> bool:
        """Whether there are new steps."""
        folder = self.path / wire.RANKS_FOLDER / name
        steps, events, stalls = (
            folder / file for file in (wire.STEPS_FILE, wire.EVENTS_FILE, incidents.INCIDENTS_FILE)
        )
        if self._is_new(events):
            rank.has_ended |= any(b'"kind":"end"' in line for line in read_end(events))
        if self._is_new(stalls) and (lines := read_end(stalls)):
            rank.is_stalled = b'"kind":"resumed"' not in lines[-1]
        if self._is_new(answers := folder / requests.ANSWERS_FILE):
            rank.answers = {answer.request: answer for answer in _decode_all(_decode_answer, read_end(answers))}
        if not self._is_new(steps):
            return False
        rank.written_ns = self._known[steps][2]
        rank.steps = list(_decode_all(decode_step, read_end(steps)[-RECENT:]))
        return True

    def _scan(self) -> None:
        """Look for ranks and hosts that appeared, and whether the command has ended."""
        for folder in sorted((self.path / wire.RANKS_FOLDER).glob("*")):
            parsed = wire.parse_rank_folder(folder.name)
            if parsed is not None and folder.name not in self._by_folder and (record := read_rank_record(folder)):
                self._by_folder[folder.name] = WatchedRank(parsed[0], record)
        for path in sorted((self.path / wire.NVML_FOLDER).glob("*.jsonl")):
            first = _read_first(path)
            host = first.host or path.name.removesuffix(".jsonl")
            latest = self._samples.get(host)
            if first.gpus and (latest is None or first.t_ns > latest.began_ns):
                gpus = [msgspec.structs.replace(gpu, host=host) for gpu in first.gpus]
                self._samples[host] = _Samples(path, first.t_ns, gpus, gpus)
        try:
            status = msgspec.json.decode(read_regular(self.path / wire.RUN_FILE)).get("exit_status")
            self.exit_status = status if isinstance(status, str) else None
        except (OSError, *DAMAGE, AttributeError):
            return

    def read_requests(self) -> dict[str, requests.WindowRequest]:
        """The windows that were asked for, by the names of the requests; ranks say which ones are malformed."""
        asked = {}
        for path in sorted((self.path / incidents.CONTROL_FOLDER).glob(f"{requests.WINDOW_PREFIX}*")):
            with suppress(OSError, ValueError):
                asked[path.name] = requests.WindowRequest.from_json(read_regular(path))
        return asked

    def publish(self, name: str, request: requests.WindowRequest) -> bool:
        """Write a request; False where there is one of that name. Raises SourceError: the folder cannot be written."""
        control = self.path / incidents.CONTROL_FOLDER
        try:
            control.mkdir(exist_ok=True)
            return publish(str(control), name, request.to_json())
        except OSError as error:
            raise SourceError(control, f"cannot be written: {error.strerror or error}") from None

    def _run(self) -> Run | None:
        """The last steps as those of a finished run; None before the first one, and of damaged ones."""
        try:
            steps = [to_steps(rank.rank, 0, list(rank.steps)) for rank in self.ranks.values() if rank.steps]
        except OverflowError:  # a damaged record has a number that no clock has
            return None
        numbered = [(name, wire.parse_rank_folder(name)) for name in self._by_folder]
        folder = self.path / wire.RANKS_FOLDER
        ranks = [read_rank(folder / name, number, (), (), []) for name, number in numbered if number is not None]
        known = tuple(rank for rank in ranks if rank is not None)
        return Run(str(self.path), (), None, known, tuple(steps), (), ()) if steps else None

    def _find_mfu(self, run: Run) -> None:
        """MFU of the last steps by the headline convention, or why there is none."""
        folder = self.path / wire.RANKS_FOLDER
        models = [read_model_record(folder / name, rank.rank, []) for name, rank in self._by_folder.items()]
        run = msgspec.structs.replace(run, models=tuple(model for model in models if model is not None))
        try:
            headline = analyze_mfu(run).headline
        except PerfscopeError as error:
            self.mfu_reason = error.problem
            return
        self.mfu, self.mfu_reason = headline.mfu, headline.reason or "the run had no GPU whose peak is known"

    def step_ns(self, rank: int | None = None) -> float | None:
        """The step time over the last steps: of the job, or of one rank."""
        ranks = () if self._times is None else self._times.ranks
        times = self._times if rank is None else next((times for times in ranks if times.rank == rank), None)
        return None if times is None or times.step_time_s is None else times.step_time_s * NS_PER_S

    def per_second(self, count: str) -> float | None:
        """``samples`` or ``tokens`` of all ranks per second, over the last steps."""
        rate: float | None = None if self._times is None else getattr(self._times, f"{count}_per_s")
        return rate

    def is_stalled(self, rank: WatchedRank) -> bool:
        """Whether a rank that has not ended finishes no steps."""
        age_ns = rank.age_ns(self.wall_ns)
        if rank.has_ended or age_ns is None or self.exit_status is not None:
            return False
        step_ns = self.step_ns(rank.rank) or rank.longest_ns()
        return rank.is_stalled or age_ns > max(Config.stall_s * NS_PER_S, Config.stall_factor * step_ns)
