"""Records read many at once, by the shape of their lines, give what the rules give that read them one by one."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.advancing_logs import AdvancingLog, advancing_logs
from benchmarks.log_excerpts import EXCERPTS
from benchmarks.record_logs import RecordLog, find_records, record_logs
from perfscope.sources.joblog import read_log, reading
from perfscope.sources.joblog.registry import FORMATS
from perfscope.tables.joblog import JobLog

#: Records of which no excerpt has a whole one.
WRITTEN = {
    "composer": b"""[epoch=1/2][batch=366/48000]:
         Train time/batch: 365
         Train time/sample: 93440
         Train memory/peak_allocated_mem: 44.6420
         Train trainer/device_train_microbatch_size: 16
         Train loss/train/total: 10.3750
         Train throughput/samples_per_sec: 2.7330
         Train time/train: 0.5249
""",
}
LOGS = [*record_logs(), *filter(None, (find_records(name, text) for name, text in WRITTEN.items()))]
ADVANCING = list(advancing_logs())
#: Of Megatron's timers many lines are enough.
LEFT_OUT = {"megatron-bert": "log.timers"}
KEPT = 24
FIRST = 2001
RECORDS = 400
#: Of the formats with a fast path, those that are tested with lines written by hand.
WITHOUT_EXCERPT = {"megatron-lm", "colossalai", "oneflow"}


def name(log: RecordLog) -> str:
    return log.name


def alterations(log: RecordLog) -> dict[str, str]:
    """What happens in a long log."""
    lines = [log.line(number) for number in range(FIRST, FIRST + RECORDS)]
    middle = RECORDS // 2
    draw = random.Random(1)
    moments = [(number + draw.random() + 1.5 * (rank == 3), rank) for number in range(RECORDS) for rank in range(4)]
    left = [iter(lines) for _ in range(4)]
    turns = [f"[rank{rank}]:{next(left[rank])}" for _, rank in sorted(moments)]
    unlabelled = [iter(lines) for _ in range(4)]
    lost = [line * (3 if number % 90 == 7 else 4) for number, line in enumerate(lines)]
    torn = lines[middle][: len(lines[middle]) // 2]
    return {
        "nothing": "".join(lines),
        "other lines between": "\n".join(f"{line}worker {n} fetched shard {n}" for n, line in enumerate(lines)) + "\n",
        "a restart": "".join([*lines[:middle], *lines[middle - 5 :]]),
        "a restart every few lines": "".join(lines[first + n] for first in range(0, middle, 3) for n in range(7)),
        "restarts of different length": "".join(
            "".join(lines[start : start + length])
            for start, length in ((draw.randrange(middle), draw.randrange(1, 40)) for _ in range(40))
        ),
        "ranks without a label in any order": "".join(next(unlabelled[rank]) for _, rank in sorted(moments)),
        "ranks without a label, a line lost": "".join(lost),
        "ranks without a label": "".join(line * 4 for line in lines),
        "the same few lines again and again": "".join(lines[:5]) * 80,
        "a line again and again": lines[0] * RECORDS,
        "copies, then a start, then others": "".join([*(lines[:5] * 60), *lines[:9], *(lines[:3] * 30), *lines[5:99]]),
        "copies with other times": "".join([*(lines[:4] * 60), *(lines[20:24] * 30), *lines[24:60], *(lines[4:8] * 9)]),
        "a gap": "".join([*lines[:middle], *lines[middle + 3 :]]),
        "a copy": "".join([*lines[:middle], lines[middle - 1], *lines[middle:]]),
        "a torn line": "".join([*lines[:middle], torn, *lines[middle:]]),
        "two on a line": "".join([*lines[:middle], lines[middle].rstrip("\n"), *lines[middle + 1 :]]),
        "another number": "".join([*lines[:middle], lines[middle].replace("1", "1.2.3"), *lines[middle + 1 :]]),
        "no number": "".join([*lines[:middle], lines[middle].replace(".", "nan"), *lines[middle + 1 :]]),
        "a label": "".join(f"[default3]:{line}" for line in lines),
        "two labels": "".join(f"[rank0]:{line}[rank1]:{line}" for line in lines),
        "ranks in any order": "".join(turns),
        "a rank that goes back behind the others": "".join(
            [f"[rank{rank}]:{line}" for n, line in enumerate(lines) for rank in range(4 if n < middle else 3)]
            + [f"[rank3]:{line}" for line in lines[middle - 20 :]]
        ),
        "carriage returns": "".join(lines).replace("\n", "\r\n"),
        "losses of their own": "".join(
            re.sub(r"(loss'?\"?[:= ]+)\d+\.\d", rf"\g<1>{number % 10}.{number // 10 % 10}", line)
            for number, line in enumerate(lines)
        ),
        "copies at the end": "".join([*lines, *lines[-3:], *lines[-2:]]),
        "half a line at the end": "".join(lines)[: -len(lines[-1]) // 2],
    }


ALTERATIONS = sorted(alterations(LOGS[0]))


def differences(left: object, right: object, at: str = "log") -> list[str]:
    """Where two tables differ."""
    names = getattr(left, "__struct_fields__", None) or getattr(left, "__dataclass_fields__", None)
    if names is not None and type(left) is type(right):
        return [
            text
            for field in names
            if field != "path"
            for text in differences(getattr(left, field), getattr(right, field), f"{at}.{field}")
        ]
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        is_same = left.shape == right.shape and bool(
            (np.ma.getmaskarray(left) == np.ma.getmaskarray(right)).all()
            and (np.ma.getdata(left) == np.ma.getdata(right)).all()
        )
        return [] if is_same else [at]
    return [] if left == right else [f"{at}: {left} and {right}"]


def read_both(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[JobLog, JobLog, int]:
    """A log read by the rules alone, and with the fast path; and how many records that added at once."""
    at_once = 0
    with monkeypatch.context() as patch:
        patch.setattr(reading, "RECORDS_KEPT", KEPT)
        patch.setattr(reading, "_RECORDS_BETWEEN_LOOKS", 4)
        patch.setattr(reading, "find_period", lambda _text: None)
        apply_split = reading._LogReader._apply_split

        def count(reader: reading._LogReader, bulk: object, block: object) -> None:
            nonlocal at_once
            at_once += len(block.plain.wall_ns)  # type: ignore[attr-defined]
            apply_split(reader, bulk, block)  # type: ignore[arg-type]

        patch.setattr(reading._LogReader, "_apply_split", count)
        fast = read_log(path)
        patch.setattr(reading._LogReader, "_bulk_reading", lambda _reader: None)
        patch.setattr(reading._LogReader, "_bulk_of_ranks", lambda _reader: None)
        slow = read_log(path)
    return slow, fast, at_once


@pytest.mark.parametrize("log", LOGS, ids=name)
def test_a_long_log_is_read_as_by_its_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: RecordLog) -> None:
    path = tmp_path / "run.log"
    for what, text in alterations(log).items():
        path.write_text(text, encoding="latin-1", newline="")
        slow, fast, at_once = read_both(path, monkeypatch)
        assert differences(fast, slow) == [], what
        if what == "nothing":
            assert at_once >= RECORDS / 4


@pytest.mark.parametrize("log", ADVANCING, ids=lambda log: log.name)
def test_a_long_log_of_whole_excerpts_is_read_as_by_its_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: AdvancingLog
) -> None:
    path = tmp_path / "run.log"
    path.write_text(log.text(60_000), encoding="latin-1", newline="")
    slow, fast, _ = read_both(path, monkeypatch)
    assert unexpected(differences(fast, slow), log.name) == []


@pytest.mark.parametrize("excerpt", sorted(EXCERPTS.glob("*.log")), ids=lambda path: path.stem)
def test_an_excerpt_again_and_again_is_read_as_by_its_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, excerpt: Path
) -> None:
    path, text = tmp_path / "run.log", excerpt.read_bytes()
    path.write_bytes(text * (60_000 // len(text)))
    slow, fast, _ = read_both(path, monkeypatch)
    assert unexpected(differences(fast, slow), excerpt.stem) == []


@pytest.mark.parametrize("name", ["ms-swift-dpo", "megatron-bert"])
def test_lines_of_labelled_ranks_are_read_at_once_though_records_share_one_or_timers_stand_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path, log = tmp_path / "run.log", next(log for log in ADVANCING if log.name == name)
    lines = log.text(120_000).splitlines(keepends=True)
    text = "".join(f"[default{rank}]:{line}" for line in lines for rank in range(4))
    path.write_text(text, encoding="latin-1", newline="")
    slow, fast, at_once = read_both(path, monkeypatch)
    assert unexpected(differences(fast, slow), name) == []
    assert at_once >= len(lines) / 4


def unexpected(texts: list[str], name: str) -> list[str]:
    """The differences without what is left out on purpose."""
    return [text for text in texts if name not in LEFT_OUT or not text.startswith(LEFT_OUT[name])]


def test_every_format_with_a_fast_path_has_an_excerpt_that_takes_it() -> None:
    tested = {log.framework for log in LOGS}
    assert {str(item.framework) for item in FORMATS if item.fast_paths} - {"megatron"} - WITHOUT_EXCERPT <= tested
