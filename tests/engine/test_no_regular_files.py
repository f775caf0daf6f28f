"""What stands in the place of a run's file and is none is named at once, and waited for by nobody."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfscope.engine.run import Plan, analyze
from perfscope.sources.runs.folder import find_runs
from tests.conftest import ROOT
from tests.engine.storing import copy_with_partials

RUN = ROOT / "fixtures" / "runs" / "h200_zero2"
PARTIALS = "traces/*.partials"
#: One file of each kind that an analysis reads.
FILES = (PARTIALS, "traces/*.json.gz", "ranks/00000/*.json*", "nvml/*", "run.json")
PLAN = Plan(only=frozenset({"steps", "breakdown", "gpus"}))

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_with_partials(RUN, tmp_path_factory.mktemp("measured"))


@pytest.fixture
def run(measured: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(measured, tmp_path / "run"))


OTHERS: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
}


def places(run: Path) -> Iterator[Path]:
    for pattern in FILES:
        yield from sorted(run.glob(pattern))[: None if pattern.startswith("ranks") else 1]


def in_place_of(file: Path, make: Callable[[Path], object]) -> None:
    file.unlink()
    make(file)


@pytest.mark.parametrize("kind", ["a FIFO", "a link to a device"])
def test_what_stands_in_the_place_of_any_file_of_a_run_is_named_at_once(
    kind: str, measured: Path, tmp_path: Path
) -> None:
    names = [place.relative_to(measured) for place in places(measured)]
    assert len(names) > 7
    for number, name in enumerate(names):
        run = Path(shutil.copytree(measured, tmp_path / str(number)))
        in_place_of(run / name, OTHERS[kind])
        analysis = analyze([run], PLAN)
        said = " ".join([*analysis.damage, *analysis.notes])
        assert name.name in said, (name, said)


def test_links_in_circles_are_no_runs(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "self").symlink_to(".")
    assert find_runs(str(tmp_path)) == []
