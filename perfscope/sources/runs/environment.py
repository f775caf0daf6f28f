"""Where a run ran, as Environment: from a run's ``run.json``, or a JSON file with the same keys."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfscope import wire
from perfscope.errors import SourceError
from perfscope.files import read_text

_GPU_LINE = re.compile(r"GPU \d+: (?P<name>.+?)(?: \(UUID: .*\))?")
_VERSIONS = (
    (re.compile(r"nvidia-cuda-runtime(-cu\d+)?|cuda"), "CUDA"),
    (re.compile(r"nvidia-nccl(-cu\d+)?|nccl"), "NCCL"),
    (re.compile(r"nvidia-cudnn(-cu\d+)?|cudnn"), "cuDNN"),
    (re.compile(r"torch|pytorch"), "PyTorch"),
    (re.compile(r"deepspeed"), "DeepSpeed"),
    (re.compile(r"mxnet"), "MXNet"),
)
_FACTS = (
    ("host", "Host"),
    ("system", "System"),
    ("cpu", "CPU"),
    ("memory", "Memory"),
    ("network", "Network"),
    ("driver", "Driver"),
    ("python", "Python"),
    ("git_commit", "Commit of the training code"),
)
#: Variables that NVIDIA's images set; torch can bring libraries of its own.
_IMAGE_VERSIONS = (("CUDA_VERSION", "CUDA of the image"), ("NCCL_VERSION", "NCCL of the image"))


@dataclass(frozen=True, slots=True)
class Environment:
    """Where something ran.

    Attributes:
        facts: Names and values in the order of the report.
    """

    facts: tuple[tuple[str, str], ...]


def read_environment(path: Path) -> Environment:
    """Read where something ran.

    Args:
        path: A run's folder, or a JSON file.

    Raises:
        SourceError: It is not a JSON object, or describes no environment.
    """
    file = path / wire.RUN_FILE if path.is_dir() else path
    try:
        stated = json.loads(read_text(file))
    except (ValueError, RecursionError):
        raise SourceError(file, "is not complete JSON") from None
    if not isinstance(stated, dict):
        raise SourceError(file, "is not a JSON object")
    versions = {**_image_versions(stated), **_as_dict(stated.get("versions")), **_torch_version(file.parent)}
    facts = (*_list_gpus(stated), *_list_facts(stated), *_list_versions(versions))
    if not facts:
        raise SourceError(file, "describes no environment", hint="it should be a run.json of `perfscope profile`")
    return Environment(facts)


def _list_gpus(stated: Mapping[str, object]) -> list[tuple[str, str]]:
    gpus = stated.get("gpus")
    lines = gpus.splitlines() if isinstance(gpus, str) else [str(line) for line in _as_list(gpus)]
    names = [match["name"] if (match := _GPU_LINE.fullmatch(line.strip())) else line.strip() for line in lines]
    counts = Counter(name for name in names if name)
    return [("GPUs", ", ".join(f"{count} x {name}" for name, count in counts.items()))] if counts else []


def _list_facts(stated: Mapping[str, object]) -> list[tuple[str, str]]:
    facts = []
    for key, name in _FACTS:
        text = stated.get(key)
        if isinstance(text, str) and text.strip():
            facts.append((name, ", ".join(dict.fromkeys(line.strip() for line in text.splitlines()))))
    return facts


def _as_dict(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _image_versions(stated: Mapping[str, object]) -> dict[str, object]:
    """The versions in the environment of a container."""
    environment = _as_dict(stated.get("environment"))
    return {name: environment[variable] for variable, name in _IMAGE_VERSIONS if variable in environment}


def _torch_version(run: Path) -> dict[str, object]:
    """Torch as the first rank recorded it: with the CUDA that it was built for."""
    for file in sorted((run / wire.RANKS_FOLDER).glob(f"*/{wire.RANK_FILE}"))[:1]:
        try:
            torch = _as_dict(json.loads(read_text(file))).get("torch")
        except (ValueError, RecursionError):
            continue
        if isinstance(torch, str):
            return {"torch": torch}
    return {}


def _list_versions(versions: Mapping[str, object]) -> list[tuple[str, str]]:
    """Versions under their usual names, the libraries of training first."""
    by_name: dict[str, str] = {}
    for package, version in versions.items():
        name = next((name for pattern, name in _VERSIONS if pattern.fullmatch(str(package).lower())), str(package))
        by_name[name] = str(version)
    libraries = [name for _, library in _VERSIONS for name in (library, f"{library} of the image") if name in by_name]
    return [(name, by_name[name]) for name in [*libraries, *sorted(set(by_name) - set(libraries))]]
