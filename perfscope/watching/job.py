"""The state of a running job: its ranks, their last steps, its GPUs; each look reads what is new.

A rank that makes others wait waits least itself. The hooks record the host's waits for other ranks where collectives
block the host, as on CPUs; on GPUs the device waits, and who is late is for `perfscope analyze`.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from perfscope import wire
from perfscope.analyzers.mfu import analyze as analyze_mfu
from perfscope.analyzers.steps import StepTimes, analyze
from perfscope.constants import NS_PER_S, TERA
from perfscope.errors import PerfscopeError, SourceError
from perfscope.files import open_regular
from perfscope.sources.runs.folder import is_run
from perfscope.sources.runs.model_record import read_model_record
from perfscope.sources.runs.records import decode_step, read_rank_record
from perfscope.sources.runs.run import read_rank
from perfscope.sources.runs.step_records import to_steps
from perfscope.tables.run import Run
from perfscope.wire import incidents
from perfscope.wire.records import RankRecord, StepRecord

#: Of a file that is seen for the first time, or has grown by more, only so much is read.
_MOST_BYTES = 65536


class Tail:
    """The end of one file.

    Args:
        path: The file.
        most_bytes: How much is read at once.

    Attributes:
        written_ns: When it was written last, on the wall clock; None before it was there.
    """

    def __init__(self, path: Path, most_bytes: int = _MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self.written_ns: int | None = None
        self._offset = 0
        self._rest = b""
        self._identity = 0

    def read_lines(self) -> list[bytes]:
        """The whole lines that are new; none where the file does not exist."""
        try:
            status = self._path.stat()
            self.written_ns = status.st_mtime_ns
            if status.st_size == self._offset and status.st_ino == self._identity:
                return []
            if status.st_ino != self._identity or status.st_size < self._offset:  # it was replaced or cut
                self._offset, self._rest, self._identity = 0, b"", status.st_ino
            begin = max(self._offset, status.st_size - self._most_bytes)
            with open_regular(self._path) as file:
                file.seek(begin)
                content = file.read(status.st_size - begin)
        except OSError:
            return []
        if begin > self._offset:
            content, self._rest = content.partition(b"\n")[2], b""
        self._offset = begin + len(content) if begin == self._offset else status.st_size
        *lines, self._rest = (self._rest + content).split(b"\n")
        return [line for line in lines if line]


#: What a line is that is damaged, or was made to be.
_DAMAGE = (msgspec.MsgspecError, RecursionError)
#: Steps that figures are of.
RECENT = 100
#: Ranks that appear later, and the GPUs' names, are looked for in each so many looks.
_SCAN_EVERY = 8
#: A rank is late where others wait for it this share of a step longer than it does.
_LATE_SHARE = 0.05
_STALL_NS = 60 * NS_PER_S
_STALL_STEPS = 20
#: What is read of processes that ended at once: each has some kilobytes of its last collectives.
_MOST_DEATH_BYTES = 1 << 26
#: A job whose ranks have all ended may start again for so long; then it is over, where nothing noted its end.
_GONE_NS = 300 * NS_PER_S


class GpuValues(msgspec.Struct):
    """The last sample of one GPU, or its description in the first line; absent values are None."""

    uuid: str = ""
    name: str = ""
    index: int | None = None
    power_mw: int | None = None
    gpu_util_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    sm_clock_mhz: int | None = None
    temperature_c: int | None = None


class _SampleLine(msgspec.Struct):
    gpus: list[GpuValues] = []
    host: str = ""
    t_ns: int = 0


class _DeathLine(msgspec.Struct):
    kind: str = ""
    rank: int = -1
    attempt: int = -1


_decode_death = msgspec.json.Decoder(_DeathLine).decode
_decode_sample = msgspec.json.Decoder(_SampleLine).decode


@dataclass
class WatchedRank:
    """One rank; times are in nanoseconds.

    Attributes:
        rank: Its number.
        record: Who it is.
        steps: Its last steps, the oldest first.
        has_ended: Whether its process is gone.
        is_stalled: Whether its own watchdog has noticed a stall.
        written_ns: When its last steps were written, on the wall clock.
    """

    rank: int
    record: RankRecord
    steps: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=RECENT))
    has_ended: bool = False
    is_stalled: bool = False
    written_ns: int | None = None

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

    def wait_ns(self) -> float | None:
        """The median of its waits for other ranks in a step."""
        waits = [sum(step.waits[:2]) for step in self.steps if step.waits is not None]
        return statistics.median(waits) if waits else None


@dataclass(frozen=True)
class WatchedGpu:
    """One GPU of a host."""

    host: str
    values: GpuValues


class _RankFiles:
    def __init__(self, folder: Path, rank: WatchedRank) -> None:
        self.folder = folder
        self.rank = rank
        self._steps = Tail(folder / wire.STEPS_FILE)
        self._events = Tail(folder / wire.EVENTS_FILE)
        self._incidents = Tail(folder / incidents.INCIDENTS_FILE)

    def read(self) -> bool:
        """Read what is new; return whether there are new steps."""
        lines = self._steps.read_lines()[-RECENT:]
        for line in lines:
            try:
                self.rank.steps.append(decode_step(line))
            except _DAMAGE:
                continue  # a line of a version that is not known
        self.rank.written_ns = self._steps.written_ns
        self.rank.has_ended |= any(b'"kind":"end"' in line for line in self._events.read_lines())
        for line in self._incidents.read_lines():
            self.rank.is_stalled = b'"kind":"resumed"' not in line
        return bool(lines)


class _GpuFile:
    def __init__(self, path: Path) -> None:
        self._tail = Tail(path)
        first = _read_first(path)
        self.host = first.host or path.name.removesuffix(".jsonl")
        self.began_ns = first.t_ns
        self._described = first.gpus
        self.gpus: list[WatchedGpu] = [WatchedGpu(self.host, gpu) for gpu in self._described]

    def read(self) -> None:
        for line in reversed(self._tail.read_lines()):
            try:
                values = _decode_sample(line).gpus
            except _DAMAGE:
                continue
            if len(values) == len(self._described) and b'"uuid"' not in line:
                self.gpus = [
                    WatchedGpu(self.host, _with_names(value, described))
                    for value, described in zip(values, self._described, strict=True)
                ]
                return


def _with_names(values: GpuValues, described: GpuValues) -> GpuValues:
    named = {"uuid": described.uuid, "name": described.name, "index": described.index}
    return msgspec.structs.replace(values, **named, memory_total_bytes=described.memory_total_bytes)


def _read_first(path: Path) -> _SampleLine:
    try:
        with open_regular(path) as file:
            return _decode_sample(file.readline())
    except (OSError, *_DAMAGE):
        return _SampleLine()


class WatchedJob:
    """A running job.

    Attributes:
        path: The run's folder.
        ranks: Its ranks, by number; of restarted ones the last process.
        gpus: Its GPUs.
        exit_status: How the command ended, once it has.
        wall_ns: When it was last looked at.
    """

    def __init__(self, path: Path) -> None:
        if not is_run(path):
            raise SourceError(path, "is not a run of `perfscope profile`", hint="it has neither run.json nor ranks/")
        self.path = path
        self.exit_status: str | None = None
        self.wall_ns = time.time_ns()
        self._files: dict[str, _RankFiles] = {}
        self._samples: dict[str, _GpuFile] = {}  # of each host, the latest
        self._seen: set[str] = set()
        self._deaths: dict[str, Tail] = {}
        self._dead: set[str] = set()  # folders of their ranks
        self._gone_since_ns: int | None = None
        self._looks = 0
        self._times: StepTimes | None = None

    @property
    def ranks(self) -> dict[int, WatchedRank]:
        """The ranks, by number."""
        return {files.rank.rank: files.rank for _, files in sorted(self._files.items())}

    @property
    def gpus(self) -> list[WatchedGpu]:
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
        if self._looks % _SCAN_EVERY == 0:
            self._scan()
        self._looks += 1
        self.wall_ns = time.time_ns()
        has_new = [files.read() for files in self._files.values()]
        if any(has_new):
            run = self._run()
            self._times = None if run is None else analyze(run)
        self._read_deaths()
        for samples in self._samples.values():
            samples.read()
        is_gone = bool(self._files) and all(rank.has_ended for rank in self.ranks.values())
        self._gone_since_ns = (self._gone_since_ns or time.monotonic_ns()) if is_gone else None

    def _read_deaths(self) -> None:
        """Processes that were killed write no end of their own."""
        for tail in self._deaths.values():
            for line in tail.read_lines():
                try:
                    death = _decode_death(line)
                except _DAMAGE:
                    continue
                if death.kind == "death":
                    self._dead.add(wire.rank_folder(death.rank, death.attempt))
        for name in self._dead & self._files.keys():
            self._files[name].rank.has_ended = True

    def _scan(self) -> None:
        for folder in sorted((self.path / wire.RANKS_FOLDER).glob("*")):
            parsed = wire.parse_rank_folder(folder.name)
            if parsed is None or folder.name in self._files:
                continue
            record = read_rank_record(folder)
            if record is not None:
                self._files[folder.name] = _RankFiles(folder, WatchedRank(parsed[0], record))
        for path in sorted((self.path / wire.NVML_FOLDER).glob("*.jsonl")):
            if path.name not in self._seen:
                samples = _GpuFile(path)
                if samples.gpus:  # else its first line is not written yet, or there are none
                    self._seen.add(path.name)
                    latest = self._samples.get(samples.host)
                    if latest is None or samples.began_ns > latest.began_ns:
                        self._samples[samples.host] = samples
        for path in (self.path / incidents.DEATHS_FOLDER).glob("*.jsonl"):
            self._deaths.setdefault(path.name, Tail(path, _MOST_DEATH_BYTES))
        try:
            status = msgspec.json.decode((self.path / wire.RUN_FILE).read_bytes()).get("exit_status")
            self.exit_status = status if isinstance(status, str) else None
        except (OSError, *_DAMAGE, AttributeError):
            return

    def _run(self) -> Run | None:
        """The last steps as those of a finished run; None before the first one, and of damaged ones."""
        try:
            steps = [to_steps(rank.rank, 0, list(rank.steps)) for rank in self.ranks.values() if rank.steps]
        except OverflowError:  # a damaged record has a number that no clock has
            return None
        numbered = [(files, wire.parse_rank_folder(name)) for name, files in self._files.items()]
        ranks = [read_rank(files.folder, number, (), (), []) for files, number in numbered if number is not None]
        known = tuple(rank for rank in ranks if rank is not None)
        return Run(str(self.path), (), None, known, tuple(steps), (), ()) if steps else None

    def mfu_per_token_rate(self) -> tuple[float | None, str]:
        """MFU for each token per second, by the headline convention; None with the reason in words."""
        run = self._run()
        if run is None:
            return None, "too few steps"
        models = [read_model_record(files.folder, files.rank.rank, []) for files in self._files.values()]
        run = msgspec.structs.replace(run, models=tuple(model for model in models if model is not None))
        try:
            step = analyze_mfu(run).headline
        except PerfscopeError as error:
            return None, error.problem
        if step.mfu is None or not step.flops_per_token or not step.tflops_per_gpu:
            return None, step.reason or "the run had no GPU whose peak is known"
        tokens_per_s = step.tflops_per_gpu * TERA * len(self.ranks) / float(step.flops_per_token)
        return step.mfu / tokens_per_s, ""

    def step_ns(self, rank: int | None = None) -> float | None:
        """The step time over the last steps: of the job, or of one rank."""
        ranks = () if self._times is None else self._times.ranks
        times = self._times if rank is None else next((times for times in ranks if times.rank == rank), None)
        return None if times is None or times.step_time_s is None else times.step_time_s * NS_PER_S

    def per_second(self, count: str) -> float | None:
        """``samples`` or ``tokens`` of all ranks per second, over the last steps."""
        rate: float | None = None if self._times is None else getattr(self._times, f"{count}_per_s")
        return rate

    def late_ranks(self) -> list[tuple[int, float]]:
        """The ranks that others wait for, and how much of a step: the longest wait less their own, in nanoseconds."""
        waits = {rank.rank: wait for rank in self.ranks.values() if (wait := rank.wait_ns()) is not None}
        step_ns = self.step_ns()
        if len(waits) < 2 or not step_ns:  # noqa: PLR2004 - one rank waits for nobody
            return []
        longest = max(waits.values())
        late = [(rank, longest - wait) for rank, wait in waits.items() if longest - wait > _LATE_SHARE * step_ns]
        usual = statistics.median(waits.values())
        return sorted(((rank, wait) for rank, wait in late if waits[rank] < usual), key=lambda item: -item[1])

    def is_stalled(self, rank: WatchedRank) -> bool:
        """Whether a rank that has not ended finishes no steps."""
        age_ns = rank.age_ns(self.wall_ns)
        if rank.has_ended or age_ns is None or self.exit_status is not None:
            return False
        return rank.is_stalled or age_ns > max(_STALL_NS, _STALL_STEPS * (self.step_ns(rank.rank) or rank.longest_ns()))
