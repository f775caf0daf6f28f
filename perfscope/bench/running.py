"""Runs the trainings of a benchmark in turn; every one that ended is kept, whatever comes after it."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from perfscope.bench.launching import Started, TrainingPlace, start
from perfscope.bench.measuring import measure
from perfscope.bench.rows import Measurement, read_measurement
from perfscope.bench.settings import Machine, Settings, Variant, find_obstacle
from perfscope.errors import PerfscopeError, SourceError, UsageError
from perfscope.files import replace_file
from perfscope.report import Json
from perfscope.wire import RUN_FILE

_OUT_OF_MEMORY = re.compile(
    rb"(OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|DefaultCPUAllocator: can't allocate memory"
    rb"|std::bad_alloc|MemoryError)[^\n]*"
)
#: As torchrun and ``perfscope profile`` say it.
_KILLED = re.compile(rb"exitcode\s*: -9|exit code -9|SIGKILL")
#: What shells and ``perfscope profile`` end with where a command cannot be started.
_NOT_STARTED = (126, 127)
_MESSAGE = re.compile(rb"^perfscope: ([^\n]+)", re.MULTILINE)
#: An exception as Python prints it, behind the name of a rank that torchrun may put before it.
_ERROR = re.compile(
    rb"^(?:\[[^\]\n]*\]:\s?)?((?:[A-Za-z_][\w.]*)(?:Error|Exception|Interrupt)\b:?[^\n]*)", re.MULTILINE
)
#: What a launcher raises because a rank failed.
_FOLLOWS = (b"ChildFailedError", b"CalledProcessError", b"SignalException", b"KeyboardInterrupt")


def explain_failure(log: Path, exit_code: int | None, seconds: float) -> str:
    """Why a training failed, from its output; an exit code of None is one that was ended after so many seconds."""
    if exit_code is None:
        return f"failed: it did not end within {seconds:g} s"
    content = log.read_bytes() if log.exists() else b""
    if memory := _OUT_OF_MEMORY.search(content):
        return f"out of memory: {_to_text(memory.group())}"
    if _KILLED.search(content):
        return "failed: killed by SIGKILL, as a host kills what it has no memory for"
    if exit_code in _NOT_STARTED and (messages := _MESSAGE.findall(content)):
        return f"failed: {_to_text(messages[-1])}"
    errors = [error for error in _ERROR.findall(content) if not any(name in error for name in _FOLLOWS)]
    return f"failed: {_to_text(errors[0])}" if errors else f"failed: exit code {exit_code}"


def _to_text(line: bytes) -> str:
    return " ".join(line.decode(errors="replace").split())


SCHEMA = "perfscope/bench-settings/1"
_SETTINGS_FILE = "bench.json"
_LOCK_FILE = "bench.lock"
_ROWS_FOLDER = "rows"

#: Says what is done, in a line.
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The trainings of a benchmark: ``repetitions`` of each variant, each of which may take ``seconds``."""

    folder: Path
    settings: Settings
    machine: Machine
    variants: tuple[Variant, ...]
    repetitions: int
    seconds: float


def order_trainings(variants: Sequence[Variant], repetitions: int) -> list[tuple[Variant, int]]:
    """The trainings in turn: every row once, then every row again from the last to the first, and so on.

    What drifts with time, such as a temperature, is so spread over all rows: ABBA.

    >>> [variant.strategy + str(repetition) for variant, repetition in order_trainings(
    ...     [Variant("single", 1, "fp32"), Variant("ddp", 2, "fp32")], 3)]
    ['single0', 'ddp0', 'ddp1', 'single1', 'single2', 'ddp2']
    """
    rounds = ((variants if number % 2 == 0 else variants[::-1], number) for number in range(repetitions))
    return [(variant, number) for row, number in rounds for variant in row]


def prepare_folder(folder: Path, settings: Settings) -> Settings:
    """Begin a benchmark in a folder, or go on with the one there; returns the settings with that one's threads.

    Raises UsageError where the folder holds something else, or a benchmark with other settings.
    """
    path = folder / _SETTINGS_FILE
    document: dict[str, Json] = {"schema": SCHEMA, **asdict(settings)}
    if path.exists():
        earlier = read_settings(folder)
        settings = replace(settings, threads=int(str(earlier.get("threads", settings.threads))))
        document["threads"] = settings.threads
        differing = [name for name, value in document.items() if earlier.get(name) != value]
        if differing:
            changes = ", ".join(_describe_change(name, earlier.get(name), document[name]) for name in differing)
            raise UsageError(f"{folder} holds a benchmark with other settings: {changes}", hint="name another with -o")
        return settings
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder} exists and holds no benchmark", hint="name another folder with -o")
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(document, indent=1).encode())
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}", hint="name another folder with -o") from None
    return settings


def _describe_change(name: str, before: Json, now: Json) -> str:
    return "the content of the model's file" if name == "model_sha256" else f"{name} {before!r} to {now!r}"


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Keep other benchmarks out of a folder (UsageError) until the process ends."""
    with (folder / _LOCK_FILE).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"another perfscope bench is running in {folder}"
            raise UsageError(message, hint="wait for its end, or name another folder with -o") from None
        except OSError:
            pass  # this file system has no locks
        yield


def read_settings(folder: Path) -> dict[str, Json]:
    """The settings of the benchmark in a folder; SourceError where there is none."""
    try:
        document = json.loads((folder / _SETTINGS_FILE).read_bytes())
    except (OSError, ValueError):
        document = None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise SourceError(folder, "holds no benchmark", hint=f"`perfscope bench` writes its {_SETTINGS_FILE} there")
    return document


def read_rows(folder: Path) -> list[Measurement]:
    """The measurements of a benchmark's folder; SourceError where a file is none."""
    return [read_measurement(path) for path in sorted((folder / _ROWS_FOLDER).glob("*.json"))]


def run_trainings(plan: BenchPlan, tell: Tell) -> Iterator[Measurement]:
    """Run what is not yet measured, in turn, and yield each measurement once it is on disk."""
    earlier = read_rows(plan.folder)
    names = {measurement.name for measurement in earlier if measurement.reason is None}
    trainings = order_trainings(plan.variants, plan.repetitions)
    pending = []
    for variant, repetition in trainings:
        obstacle = find_obstacle(variant, plan.settings, plan.machine)
        measurement = Measurement(variant, repetition, reason=obstacle)
        if obstacle is not None and repetition == 0:
            yield measurement  # not on disk: what is missing today may be there tomorrow
        elif obstacle is None and measurement.name not in names:
            pending.append(measurement)
    for number, measurement in enumerate(pending):
        tell(f"{measurement.name}: {len(pending) - number} trainings to go")
        training = start(measurement.variant, plan.settings, TrainingPlace.below(plan.folder, measurement.name))
        try:
            training.train(plan.seconds)
            yield _finish(plan, measurement, training)
        finally:
            training.stop()


def _finish(plan: BenchPlan, measurement: Measurement, training: Started) -> Measurement:
    place, code = training.place, training.finish(plan.seconds)
    if code == 0:
        try:
            measurement = measure(measurement.variant, measurement.repetition, plan.settings, plan.machine, place)
        except PerfscopeError as error:
            measurement = replace(measurement, reason=f"failed: {error}")
    else:
        measurement = replace(measurement, reason=explain_failure(place.log, code, plan.seconds))
    measurement.write(plan.folder / _ROWS_FOLDER)
    description = place.run_dir / RUN_FILE
    if description.exists() and not (plan.folder / RUN_FILE).exists():
        shutil.copyfile(description, plan.folder / RUN_FILE)
    shutil.rmtree(place.result.parent, ignore_errors=True)
    if measurement.reason is None:
        place.log.unlink(missing_ok=True)
    return measurement
