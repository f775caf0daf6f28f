"""Runs and traces in a real S3 store give what they give on disk, and a store that refuses is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perfscope.engine.run import Analysis, Plan, analyze
from perfscope.errors import SourceError, UsageError
from tests.conftest import Ended, perfscope
from tests.engine.storing import copy_with_partials
from tests.sources.stores.conftest import RUN, without_keys
from tests.sources.stores.server import ACCESS_KEY, SECRET_KEY

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("stores")]

TRACES = sorted(path.name for path in (RUN / "traces").iterdir())
#: Two that read the run's records, and two that read its traces.
ONLY = frozenset(("steps", "setup", "breakdown", "collectives"))

Ask = Callable[..., Analysis]


@pytest.fixture
def ask(keys: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Analyze in this process, at the address of a server."""
    import s3fs

    for name, value in keys.items():
        monkeypatch.setenv(name, value)

    def analyze_at(address: str, location: str = "s3://runs/zero1", **plan: Any) -> Analysis:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        s3fs.S3FileSystem.clear_instance_cache()
        return analyze([location], Plan(only=ONLY, **plan))

    yield analyze_at
    s3fs.S3FileSystem.clear_instance_cache()


def say(address: str, location: str, keys: dict[str, str], tmp_path: Path, *words: str) -> Ended:
    return perfscope("analyze", "--format", "json", *words, location, cwd=tmp_path, AWS_ENDPOINT_URL=address, **keys)


def answers(analysis: Analysis) -> str:
    return json.dumps({name: result.data() for name, result in analysis.results.items()})


@pytest.fixture(scope="module")
def whole() -> str:
    """What the run says on disk."""
    return answers(analyze([RUN], Plan(only=ONLY))).replace(str(RUN), "s3://runs/zero1")


def test_a_run_in_a_store_gives_the_bytes_that_it_gives_on_disk(s3: str, keys: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "zero1").symlink_to(RUN)
    stored = say(s3, "s3://runs/zero1", keys, tmp_path, "--workers", "2")
    assert (stored.code, stored.stderr) == (0, "")
    assert len(json.loads(stored.stdout)["results"]) > 15
    on_disk = say(s3, "runs/zero1", keys, tmp_path, "--workers", "1")
    assert stored.stdout == on_disk.stdout.replace("runs/zero1", "s3://runs/zero1")


def test_traces_in_a_store_give_what_they_give_on_disk(s3: str, ask: Ask) -> None:
    on_disk = analyze([RUN / "traces"], Plan(only=ONLY))
    stored = ask(s3, "s3://runs/zero1/traces")
    assert answers(stored) == answers(on_disk).replace(str(RUN), "s3://runs/zero1")
    assert stored.inputs == tuple(f"s3://runs/zero1/traces/{name}" for name in TRACES)


def test_missing_credentials_are_one_plain_sentence(s3: str, tmp_path: Path) -> None:
    answer = say(s3, "s3://runs/zero1", without_keys(tmp_path), tmp_path)
    assert (answer.code, answer.stdout) == (1, "")
    (line,) = answer.stderr.splitlines()
    assert line.startswith("perfscope: s3://runs/zero1")
    assert "no credentials were found" in line


@pytest.mark.parametrize(("key", "secret"), [(ACCESS_KEY, "wrong"), ("stranger", SECRET_KEY)])
def test_credentials_that_are_refused_are_named_and_not_shown(
    s3: str, ask: Ask, monkeypatch: pytest.MonkeyPatch, key: str, secret: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    with pytest.raises(SourceError, match=r"^s3://runs/zero1 cannot be \w+: access is denied") as error:
        ask(s3)
    assert secret not in str(error.value)


@pytest.mark.parametrize("location", ["s3://nothing/run", "s3://runs/nothing", "s3://nothing"])
def test_a_bucket_or_a_folder_that_is_not_there_is_named(s3: str, ask: Ask, location: str) -> None:
    with pytest.raises(SourceError, match=f"^{location} does not exist"):
        ask(s3, location)


def test_credentials_are_neither_printed_nor_written(s3: str, keys: dict[str, str], tmp_path: Path) -> None:
    places = {"TMPDIR": str(tmp_path / "temporary")}
    Path(places["TMPDIR"]).mkdir()
    answer = say(s3, "s3://runs/zero1", {**keys, **places}, tmp_path, "--only", "steps,breakdown", "-v")
    assert SECRET_KEY not in answer.stdout + answer.stderr
    assert ACCESS_KEY not in answer.stdout + answer.stderr
    assert not any(SECRET_KEY.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert not list(Path(places["TMPDIR"]).glob("perfscope-*"))


def test_partials_in_a_store_are_taken_in_place_of_their_traces(s3: str, ask: Ask, tmp_path: Path, whole: str) -> None:
    import s3fs

    store = s3fs.S3FileSystem(key=ACCESS_KEY, secret=SECRET_KEY, endpoint_url=s3, skip_instance_cache=True)
    run = copy_with_partials(RUN, tmp_path)
    store.put(str(run), "runs/partials", recursive=True)
    for names in ((), TRACES):  # with the traces, and after they are gone
        if names:
            store.rm([f"runs/partials/traces/{name}" for name in names])
        assert answers(ask(s3, "s3://runs/partials")) == whole.replace("runs/zero1", "runs/partials")
    store.rm("runs/partials", recursive=True)


@pytest.mark.parametrize("command", ["analyze --only goodput", "compare"])
def test_other_commands_read_a_run_in_a_store(s3: str, keys: dict[str, str], tmp_path: Path, command: str) -> None:
    words = (*command.split(), "--format", "json")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "zero1").symlink_to(RUN)
    places = 2 if command == "compare" else 1
    stored = perfscope(*words, *["s3://runs/zero1"] * places, cwd=tmp_path, AWS_ENDPOINT_URL=s3, **keys)
    on_disk = perfscope(*words, *["runs/zero1"] * places, cwd=tmp_path)
    assert (stored.code, stored.stderr) == (on_disk.code, on_disk.stderr)
    assert stored.stdout == on_disk.stdout.replace("runs/zero1", "s3://runs/zero1")


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    with pytest.raises(UsageError, match=r"https://host/run was given with a password") as error:
        analyze(["https://me:what-nobody-may-see@host/run"])
    assert "what-nobody" not in str(error.value)
