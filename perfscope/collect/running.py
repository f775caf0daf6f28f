"""A running job, looked at and asked from outside: through its folder, or over ssh where hosts share none.

One small shell command reads the ends of the ranks' files, here and on other hosts alike, so that a look costs the same
after a million steps.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import msgspec

from perfscope import wire
from perfscope.collect.parts import LocalPart, Part, RemotePart, execute
from perfscope.constants import NS_PER_S
from perfscope.errors import SourceError
from perfscope.wire import incidents, requests

_STEPS = 40
_MARK = "@perfscope "
_LOOK = f"""
cd {{folder}} || exit 9
printf '{_MARK}now %s\\n' "$(date +%s%N)"
printf '{_MARK}run\\n'; cat {wire.RUN_FILE} 2>/dev/null; echo
for rank in {wire.RANKS_FOLDER}/*/; do
  printf '{_MARK}rank %s\\n' "$rank"; cat "$rank/{wire.RANK_FILE}" 2>/dev/null; echo
  printf '{_MARK}steps\\n'; tail -n {_STEPS} "$rank/{wire.STEPS_FILE}" 2>/dev/null
  printf '{_MARK}written\\n'; stat -c %Y "$rank/{wire.STEPS_FILE}" 2>/dev/null
  printf '{_MARK}events\\n'; tail -n 1 "$rank/{wire.EVENTS_FILE}" 2>/dev/null
  printf '{_MARK}answers\\n'; cat "$rank/{requests.ANSWERS_FILE}" 2>/dev/null
done
printf '{_MARK}deaths\\n'; cat {incidents.DEATHS_FOLDER}/*.jsonl 2>/dev/null
printf '{_MARK}requests\\n'
for request in {incidents.CONTROL_FOLDER}/{requests.WINDOW_PREFIX}*; do
  [ -f "$request" ] && printf '%s ' "${{{{request##*/}}}}" && cat "$request"
done
exit 0
"""


@dataclass(frozen=True, slots=True)
class RunningRank:
    """One rank of a running job.

    Attributes:
        rank: Its number.
        host: Its host.
        world_size: How many ranks there are.
        steps: Training steps that it had completed by its last record.
        step_ns: The median of its last steps; None before the second one.
        age_ns: How long ago its last step ended.
        has_ended: Whether its process is gone.
        answers: What it does about requests, by the name of the request.
    """

    rank: int
    host: str
    world_size: int
    steps: int
    step_ns: float | None
    age_ns: int
    has_ended: bool
    answers: Mapping[str, requests.Answer] = field(default_factory=dict)

    @property
    def steps_by_now(self) -> int:
        """Steps that it has probably completed: records are up to two seconds old."""
        return self.steps + (int(self.age_ns / self.step_ns) if self.step_ns and self.age_ns > 0 else 0)


@dataclass(frozen=True, slots=True)
class RunningPart:
    """The ranks in one folder of a running job, and the windows that were asked for.

    Attributes:
        part: The folder, here or on another host.
        ranks: Its ranks.
        requests: The requests for windows, by the names of their files.
        exit_status: How the command ended, where it has.
    """

    part: Part
    ranks: tuple[RunningRank, ...]
    requests: Mapping[str, requests.WindowRequest]
    exit_status: str | None


class _Line(msgspec.Struct):
    """What is read of any record, with what it is where the record does not say."""

    kind: str = ""
    rank: int = -1
    attempt: int = -1
    step: int = -1
    end_ns: int = -1
    wall_ns: int = -1
    monotonic_ns: int = -1
    world_size: int = 1
    exit_status: str | None = None


class _RankLine(_Line):
    """What is read of a rank's record: ``host`` of a step's record is something else."""

    host: str = ""


_R = TypeVar("_R")


def _read(kind: type[_R], text: str) -> list[_R]:
    """The lines of a text that are records of a kind; the others are damaged, or of another version."""
    records = []
    for line in text.splitlines():
        try:
            records.append(msgspec.json.decode(line, type=kind))
        except (msgspec.MsgspecError, RecursionError):
            continue
    return records


def look_at(part: Part) -> RunningPart:
    """Look at the ranks of one folder.

    Raises:
        Unreachable: The other host does not answer.
        SourceError: The folder is not a run.
    """
    output = _execute(part, _LOOK, b"").decode(errors="replace")
    sections = [section.partition("\n") for section in output.split(_MARK)[1:]]
    of_ranks: dict[str, dict[str, str]] = {}
    contents = files = dict[str, str]()
    for heading, _, body in sections:
        name, _, value = heading.partition(" ")
        if name == "rank":
            files = of_ranks.setdefault(value.rstrip("/").rpartition("/")[2], {})
        elif name == "deaths":
            files = contents
        files[name] = value if name == "now" else body
    now_ns = int(contents.get("now", 0))
    deaths = {(death.rank, death.attempt) for death in _read(_Line, contents.get("deaths", ""))}
    run = next(iter(_read(_Line, contents.get("run", "").replace("\n", " "))), None)
    latest: dict[int, tuple[int, RunningRank]] = {}
    for name, of_rank in of_ranks.items():
        parsed = wire.parse_rank_folder(name)
        if parsed is not None and parsed[1] >= latest.get(parsed[0], (0, None))[0]:
            latest[parsed[0]] = parsed[1], _to_rank(parsed[0], of_rank, now_ns, is_dead=parsed in deaths)
    if not latest and run is None:
        raise SourceError(part.name, "is not a run", hint="it has neither run.json nor ranks/")
    ranks = tuple(rank for _, (_, rank) in sorted(latest.items()))
    asked = {}
    for line in contents.get("requests", "").splitlines():
        name, _, content = line.partition(" ")
        try:
            asked[name] = requests.WindowRequest.from_json(content.encode())
        except ValueError:
            continue  # ranks say so
    return RunningPart(part, ranks, asked, None if run is None else run.exit_status)


def publish(part: Part, name: str, request: requests.WindowRequest) -> bool:
    """Write a request, which appears with its whole content; False where there is one of that name.

    Raises:
        Unreachable: The other host does not answer, or the folder cannot be written to.
    """
    control, hidden = incidents.CONTROL_FOLDER, f".{name}.$$.tmp"
    command = (
        f"cd {{folder}} && mkdir -p {control} || exit 9\n"
        f"cat > {control}/{hidden} || {{{{ rm -f {control}/{hidden}; exit 9; }}}}\n"
        f"if ln {control}/{hidden} {control}/{name} 2>/dev/null; then echo done; fi\nrm -f {control}/{hidden}"
    )
    return _execute(part, command, request.to_json()).strip() == b"done"


def _execute(part: Part, command: str, content: bytes) -> bytes:
    if isinstance(part, RemotePart):
        words = [*part.ssh, part.host, command.format(folder=part.quoted_path())]
    else:
        assert isinstance(part, LocalPart)
        words = ["/bin/sh", "-c", command.format(folder=shlex.quote(part.name))]
    return execute(part.name, words, content)


def _to_rank(rank: int, files: Mapping[str, str], now_ns: int, *, is_dead: bool) -> RunningRank:
    record = next(iter(_read(_RankLine, files.get("rank", ""))), _RankLine())
    steps = [
        (line.step, line.end_ns) for line in _read(_Line, files.get("steps", "")) if min(line.step, line.end_ns) >= 0
    ]
    times_ns = [
        (end_ns - begin_ns) / (step - first) for (first, begin_ns), (step, end_ns) in pairwise(steps) if step > first
    ]
    age_ns = 0
    if steps and min(record.wall_ns, record.monotonic_ns) >= 0:
        age_ns = max(0, now_ns - (steps[-1][1] - record.monotonic_ns + record.wall_ns))
        written = files.get("written", "").strip()
        if written.isdigit():  # a clock that was set forward since the process began makes no step old
            age_ns = min(age_ns, max(0, now_ns - int(written) * NS_PER_S) + incidents.LATEST_WRITE_NS)
    return RunningRank(
        rank=rank,
        host=record.host,
        world_size=record.world_size,
        steps=steps[-1][0] if steps else 0,
        step_ns=statistics.median(times_ns) if times_ns else None,
        age_ns=age_ns,
        has_ended=is_dead or any(line.kind == "end" for line in _read(_Line, files.get("events", ""))),
        answers={answer.request: answer for answer in _read(requests.Answer, files.get("answers", ""))},
    )


def is_stalled(rank: RunningRank) -> bool:
    """Whether a rank has finished no step for so long that it may answer nothing."""
    return rank.age_ns > max(60 * NS_PER_S, 20 * (rank.step_ns or 0))
