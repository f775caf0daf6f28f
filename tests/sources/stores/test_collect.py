"""A run in a store comes together as one on other hosts does, and what the store does not give is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from perfscope.collect.parts import Unreachable
from perfscope.commands.collect import collect
from perfscope.engine.analysis_report import to_report
from perfscope.engine.run import Plan, analyze
from perfscope.renderers import Format, render
from tests.engine.storing import copy_with_partials
from tests.sources.stores.conftest import RUN
from tests.sources.stores.faults import ALWAYS, Faults, faulty
from tests.sources.stores.server import ACCESS_KEY, SECRET_KEY
from tests.sources.stores.test_s3 import PARTIALS, TRACES

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("stores")]

RECORD = "ranks/00002/steps.jsonl"
URL = "s3://hosts/run"

Bring = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on a disk, with partials beside its traces."""
    run = copy_with_partials(RUN, tmp_path_factory.mktemp("hosts"))
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "run_id": "one"}))  # it is older than these
    return run


@pytest.fixture(scope="module")
def server(s3: str, run: Path) -> Iterator[str]:
    """The address of a store that holds the run, too."""
    import s3fs

    store = s3fs.S3FileSystem(key=ACCESS_KEY, secret=SECRET_KEY, endpoint_url=s3, skip_instance_cache=True)
    store.mkdir("hosts")  # a bucket of its own: other tests list that of the other runs
    store.put(str(run), "hosts/run", recursive=True)
    yield s3
    store.rm("hosts", recursive=True)


@pytest.fixture
def bring(keys: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bring]:
    """Collect at the address of a server: the status, and what the command says in JSON."""
    import s3fs

    for name, value in keys.items():
        monkeypatch.setenv(name, value)

    def collect_at(address: str, *names: str, **options: Any) -> tuple[int, dict[str, Any]]:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        s3fs.S3FileSystem.clear_instance_cache()
        outcome = collect([*(names or (URL,))], tmp_path / "run", format=Format.JSON, **options)
        assert outcome.report is not None
        assert isinstance(outcome.report.data, dict)
        return outcome.exit_code, {**outcome.report.data, "warnings": list(outcome.report.warnings)}

    yield collect_at
    s3fs.S3FileSystem.clear_instance_cache()


def traces(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "traces").rglob("*.gz"))


def contents(run: Path) -> dict[str, bytes]:
    """The files of a run, but those on what it is and how it came together, which `collect` writes."""
    paths = (path for path in run.rglob("*") if path.is_file() and path.name not in ("run.json", "collected.json"))
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in paths}


def answer(run: Path) -> list[str]:
    plan = Plan(only=frozenset({"steps", "breakdown", "kernels", "collectives", "stragglers", "idle"}))
    return [render(to_report(analyze([run], plan)), to).replace(str(run), "RUN") for to in Format]


def test_a_run_in_a_store_comes_together_without_its_traces_and_with_those_that_are_asked_for(
    server: str, bring: Bring, run: Path, tmp_path: Path
) -> None:
    faults = Faults()
    with faulty(server, faults) as address:
        code, data = bring(address, partials=True)
        assert not any(sent and name.endswith(".gz") for name, sent in faults.bytes_sent.items())
    assert (code, data["parts"][0]["left_traces"], data["parts"][0]["hosts"]) == (0, 4, ["vm"])
    assert traces(tmp_path / "run") == []
    assert answer(tmp_path / "run") == answer(run)
    for ranks, names in (("2", TRACES[2:3]), ("all", TRACES)):
        code, data = bring(server, traces=ranks)
        assert (code, data["warnings"], traces(tmp_path / "run")) == (0, [], names)
    assert contents(tmp_path / "run") == contents(run)


def test_parts_in_a_store_and_in_a_folder_are_one_run(server: str, bring: Bring, run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "folder"))
    shutil.rmtree(folder / "ranks" / "00000")
    code, data = bring(server, URL, str(folder), partials=True)
    assert (code, data["ranks"]) == (0, [0, 1, 2, 3])


@pytest.mark.parametrize(
    "faults",
    [
        {"throttled": {RECORD: 2, PARTIALS: 2, TRACES[0]: 2}},
        {"cut": {RECORD: 1, PARTIALS: 1, TRACES[0]: 1}},
    ],
    ids=str,
)
def test_a_store_that_fails_for_a_while_gives_all_of_it(
    server: str, bring: Bring, run: Path, tmp_path: Path, faults: Any
) -> None:
    with faulty(server, Faults(**faults)) as address:
        assert bring(address, traces="0")[0] == 0
        assert traces(tmp_path / "run")[:1] == TRACES[:1]
        assert answer(tmp_path / "run") == answer(run)


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        ({"throttled": ALWAYS}, "the store refused it each time that it was asked"),
        ({"cut": ALWAYS}, ""),
        ({"shortened": ALWAYS}, ""),
        ({"lost": True}, "it does not exist"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", [RECORD, f"traces/{PARTIALS}", f"traces/{TRACES[2]}"])
def test_what_the_store_loses_is_named_and_comes_with_the_next_collect(
    server: str, bring: Bring, run: Path, tmp_path: Path, faults: dict[str, Any], reason: str, name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    faults = {key: name if key == "lost" else {name: value} for key, value in faults.items()}
    wanted = {"traces": "2"} if name.endswith(".gz") else {"partials": True}
    with faulty(server, Faults(**faults)) as address:
        code, data = bring(address, **wanted)
    (line,) = data["warnings"]
    assert line.startswith(f"{URL}/{name} cannot be read: {reason}")
    assert (code, data["parts"][0]["lost"], data["ranks"]) == (4, [line], [0, 1, 2, 3])
    assert not (tmp_path / "run" / name).exists()
    assert not list((tmp_path / "run").rglob(".*"))
    if name.endswith(".partials"):  # its trace takes their place
        assert traces(tmp_path / "run") == [TRACES[2]]
        assert answer(tmp_path / "run") == answer(run)
    assert bring(server, **wanted)[0] == 0
    assert (tmp_path / "run" / name).read_bytes() == (run / name).read_bytes()
    assert answer(tmp_path / "run") == answer(run)


def test_a_store_that_gives_nothing_changes_nothing(
    server: str, bring: Bring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with faulty(server, Faults(lost="hosts/")) as address, pytest.raises(Unreachable, match=r"no part could be copied"):
        bring(address)
    assert not (tmp_path / "run").exists()
