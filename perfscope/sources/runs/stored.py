"""A run at a path or a URL, and its versions: small files of a store are copied for as long as they are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from perfscope import wire
from perfscope.errors import SourceError
from perfscope.sources.memory import find_histories, read_histories
from perfscope.sources.runs.records import read_object
from perfscope.sources.runs.run import read_run
from perfscope.sources.stores.location import is_url, join
from perfscope.sources.stores.reading import copy_stored, list_below
from perfscope.tables.memory import AllocatorHistory
from perfscope.tables.run import Run
from perfscope.wire.memory import MEMORY_FOLDER

#: What ``read_run`` reads; a file of a rank that lies deeper was left behind by a failure, and is large.
_READ = re.compile(
    rf"(?!{wire.PAGE_FILE})[^/]+|({wire.RANKS_FOLDER}|{wire.NVML_FOLDER}|{wire.HOSTS_FOLDER})(/[^/]+){{1,2}}"
)
_FACTS = {"driver": "Driver", "python": "Python", "git_commit": "Commit of the training code"}
#: Variables that NVIDIA's images set; torch can bring libraries of its own.
_IMAGE_VERSIONS = {"CUDA_VERSION": "CUDA of the image", "NCCL_VERSION": "NCCL of the image"}
_LIBRARIES = (
    (re.compile(r"nvidia-cuda-runtime(-cu\d+)?|cuda"), "CUDA"),
    (re.compile(r"nvidia-nccl(-cu\d+)?|nccl"), "NCCL"),
    (re.compile(r"nvidia-cudnn(-cu\d+)?|cudnn"), "cuDNN"),
    (re.compile(r"torch|pytorch"), "PyTorch"),
    (re.compile(r"deepspeed"), "DeepSpeed"),
)


def read_run_at(location: str, read: Callable[[Path], Run] = read_run) -> Run:
    """Read the run's folder at a path or a URL, traces excepted; ``read`` reads a folder on this machine.

    Raises SourceError: it is no run, the store does not list its files, or the disk of temporary files is full.
    """
    if not is_url(location):
        return read(Path(location))
    with _copied(location, _is_read) as (folder, lost):
        run = read(folder)
        damage = tuple(line.replace(str(folder), location) for line in run.damage)
    return replace(run, path=location, damage=(*lost, *damage), read_memory=partial(_read_memory, location))


def read_versions_at(location: str) -> dict[str, str]:
    """The versions of a run's software under their usual names, the libraries of training first."""
    if not is_url(location):
        return _read_versions(Path(location))
    with _copied(location, _is_read) as (folder, _):
        return _read_versions(folder)


def _read_versions(run: Path) -> dict[str, str]:
    stated = read_object(run / wire.RUN_FILE) or {}
    facts = {name: _lines(stated.get(key)) for key, name in _FACTS.items()}
    by_name = {name: value for name, value in facts.items() if value}
    environment = _as_dict(stated.get("environment"))
    versions = {name: environment[key] for key, name in _IMAGE_VERSIONS.items() if key in environment}
    versions |= _as_dict(stated.get("versions"))
    for file in sorted((run / wire.RANKS_FOLDER).glob(f"*/{wire.RANK_FILE}"))[:1]:
        torch = (read_object(file) or {}).get("torch")  # with the CUDA that it was built for
        versions |= {"torch": torch} if isinstance(torch, str) else {}
    found = {_usual_name(package): str(version) for package, version in versions.items()}
    libraries = [name for _, library in _LIBRARIES for name in (library, f"{library} of the image") if name in found]
    return by_name | {name: found[name] for name in dict.fromkeys((*libraries, *sorted(found)))}


def _usual_name(package: str) -> str:
    return next((name for pattern, name in _LIBRARIES if pattern.fullmatch(package.lower())), package)


def _lines(text: object) -> str:
    """The different lines of a text, of one line for each GPU."""
    return ", ".join(dict.fromkeys(line.strip() for line in text.splitlines())) if isinstance(text, str) else ""


def _as_dict(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _read_memory(location: str) -> tuple[AllocatorHistory, ...]:
    with _copied(location, lambda name: name.startswith(f"{MEMORY_FOLDER}/")) as (folder, lost):
        if lost:
            raise SourceError(location, f"cannot be read in full: {lost[0]}")
        return tuple(
            replace(history, path=history.path.replace(str(folder), location.rstrip("/")))
            for path in find_histories(folder)
            for history in read_histories(path)
        )


def _is_read(name: str) -> bool:
    return _READ.fullmatch(name) is not None


@contextmanager
def _copied(location: str, is_wanted: Callable[[str], bool]) -> Iterator[tuple[Path, list[str]]]:
    """A folder with copies of the wanted files, and what of them is lost, as sentences."""
    names = sorted(filter(is_wanted, list_below(location)))
    with TemporaryDirectory(prefix="perfscope-") as folder:
        try:
            lost = copy_stored({join(location, name): Path(folder) / name for name in names})
        except OSError as error:
            hint = "TMPDIR names a folder on another disk"
            problem = f"cannot be copied to {folder}: {error.strerror or error}"
            raise SourceError(location, problem, hint=hint) from None
        yield Path(folder), lost
