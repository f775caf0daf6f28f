"""What the commands print for the fixtures, as JSON and as markdown.

``python -m tests.golden.masters FOLDER [WORD ...]`` writes one file an answer, of the cases whose names hold a word:
two folders, of two commits, are compared with ``diff -r``. ``python -m tests.golden.masters`` writes the digests anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from perfscope.api.opened_run import OpenedRun, open_each
from perfscope.cli import main
from perfscope.commands import analyze
from perfscope.engine.run import Plan

ROOT = Path(__file__).parents[2]
DIGESTS = Path(__file__).parent / "digests.json"
FIXTURES = ROOT / "fixtures"
_RUNS = ("runs", "real_runs", "light", "findings", "memory", "saves", "modules", "whatif")
_JOBS = (("goodput/megatron-1.log", "goodput/megatron-2.log"), ("goodput/killed",), ("real_runs/llama8b_pp2",))
_COMMANDS = (
    ("compare", "runs/h200_zero2", "runs/h200_zero3"),
    ("compare", "published_logs/megatron-lm.log", "published_logs/megatron-lm.log"),
    ("whatif", "whatif/base"),
    ("tflops", "--size", "52B", "--gbs", "1024", "--time", "127"),
    ("plan", "--size", "13B", "--gpus", "64", "--gpu", "a100"),
)


@dataclass(frozen=True)
class Case:
    """A command, as it is typed in the folder of the fixtures, or of its log.

    Attributes:
        name: Unique.
        words: The words behind ``perfscope``.
        text: A log, which is ``a.log`` among the words; None where the fixtures hold the input.
        archive: A run of the words that the fixtures hold as an archive; empty for a folder.
    """

    name: str
    words: tuple[str, ...]
    text: bytes | None = None
    archive: str = ""

    def answer(self) -> str:
        """Standard output, standard error and the exit code; JSON has a key a line, in order."""
        printed, errors = io.StringIO(), io.StringIO()
        code: object = 0
        is_made = self.text is not None or self.archive
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder if is_made else FIXTURES):
            if self.text is not None:
                Path("a.log").write_bytes(self.text)
            if self.archive:
                with tarfile.open(FIXTURES / f"{self.archive}.tar.gz") as archive:
                    archive.extractall(Path(self.archive).parent, filter="data")
            before, sys.argv = sys.argv, ["perfscope", *self.words]
            try:
                with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
                    main()
            except SystemExit as end:
                code = end.code
            finally:
                sys.argv = before
        text = printed.getvalue() + errors.getvalue()
        with contextlib.suppress(ValueError):
            text = json.dumps(json.loads(text), indent=1, sort_keys=True)
        return f"exit code {code}\n{_without_versions(text)}\n"


def cases() -> Iterator[Case]:
    """Every master, in the order of their names."""
    for folder in _RUNS:
        for name, archive in _runs(folder):
            yield Case(f"analyze/{name}.json", ("analyze", name, "-f", "json"), archive=archive)
            yield Case(f"analyze/{name}.md", ("analyze", name, "-f", "md"), archive=archive)
    for name, archive in _runs("postmortem"):
        yield Case(f"postmortem/{name}.json", ("postmortem", name, "-f", "json"), archive=archive)
    for path in sorted((FIXTURES / "traces").iterdir()):
        if ".json" in path.name:
            name = path.relative_to(FIXTURES).as_posix()
            yield Case(f"analyze/{name}.json", ("analyze", name, "-f", "json"))
    for path in sorted({found.parent for found in (FIXTURES / "pipeline").glob("*/*.json.gz")}):
        name = path.relative_to(FIXTURES).as_posix()
        yield Case(f"analyze/{name}.json", ("analyze", name, "-f", "json"))
    for path in sorted(
        found for found in (FIXTURES / "checkpoints").iterdir() if not found.name.endswith((".md", ".csv", ".py"))
    ):
        name = path.relative_to(FIXTURES).as_posix()
        yield Case(f"checkpoint/{name}.json", ("checkpoint", name, "-f", "json"))
    yield from _others()
    yield from _logs()


def _runs(folder: str) -> Iterator[tuple[str, str]]:
    """The runs in a folder of the fixtures, and the same name again where a run is an archive."""
    folders = {path.parent.relative_to(FIXTURES).as_posix(): "" for path in (FIXTURES / folder).rglob("run.json")}
    archives = {
        path.relative_to(FIXTURES).as_posix()[: -len(".tar.gz")] for path in (FIXTURES / folder).rglob("*.tar.gz")
    }
    yield from sorted({**folders, **{name: name for name in archives}}.items())


def _others() -> Iterator[Case]:
    """Commands over several inputs, and those that need no trace."""
    for name, archive in _runs("stragglers"):
        yield Case(f"{name}.json", ("analyze", name, "--only", "late_ranks", "-f", "json"), archive=archive)
    for paths in _JOBS:
        name = "_".join(paths).replace("/", "_")
        yield Case(f"goodput/{name}.json", ("analyze", *paths, "--only", "goodput", "-f", "json"))
    for words in _COMMANDS:
        yield Case(f"{words[0]}/{'_'.join(words[1:]).replace('/', '_')}.json", (*words, "-f", "json"))


def _logs() -> Iterator[Case]:
    """Each excerpt as it is, and as eight ranks, two attempts and a long job print it."""
    for path in sorted(
        (*FIXTURES.glob("published_logs/*"), *FIXTURES.glob("foreign_logs/*"), *FIXTURES.glob("logs/*.log"))
    ):
        if path.suffix in (".toml", ".md") or not path.is_file():
            continue
        name = path.relative_to(FIXTURES).as_posix()
        text = path.read_bytes()
        yield Case(f"logs/{name}.json", ("logs", name, "-f", "json"))
        if path.parent.name == "foreign_logs":
            continue
        lines = text.splitlines(keepends=True)
        texts = {
            "ranks": b"".join(line for line in lines for _ in range(8)),
            "labels": b"".join(b"[rank%d]: %s" % (rank, line) for line in lines for rank in range(4)),
            "restart": text.rstrip(b"\n") + b"\n" + text,
            "thrice": (text.rstrip(b"\n") + b"\n") * 3,
        }
        for kind, changed in texts.items():
            yield Case(f"logs/{name}.{kind}.json", ("logs", "a.log", "-f", "json"), changed)


@contextlib.contextmanager
def analyzed_once() -> Iterator[None]:
    """Formats of one input follow each other: its analysis is kept for the next one."""
    kept: list[tuple[Sequence[str], Plan, list[OpenedRun]]] = []

    def open_kept(paths: Sequence[str], plan: Plan) -> list[OpenedRun]:
        if not kept or kept[-1][:2] != (paths, plan):
            kept[:] = [(paths, plan, open_each(paths, plan))]
        return kept[-1][2]

    with mock.patch.object(analyze, "open_each", open_kept):
        yield


def _without_versions(text: str) -> str:
    """The text without what another checkout changes: the version, and when files were written."""
    return re.sub(r"(perfscope |\"modified_ns\": )\d+[\d.]*", r"\1", text)


def digest(answer: str) -> str:
    """Short, and the same on every machine."""
    return hashlib.sha256(answer.encode()).hexdigest()[:12]


def write(folder: Path, words: tuple[str, ...]) -> None:
    """One file an answer."""
    with analyzed_once():
        for case in cases():
            if words and not any(word in case.name for word in words):
                continue
            path = folder / case.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(case.answer())


if __name__ == "__main__":
    os.environ["COLUMNS"] = "120"
    if len(sys.argv) > 1:
        write(Path(sys.argv[1]), tuple(sys.argv[2:]))
    else:
        with analyzed_once():
            found = {case.name: digest(case.answer()) for case in cases()}
        DIGESTS.write_text(json.dumps(found, indent=0) + "\n")
