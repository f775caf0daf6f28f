"""Which cluster ``--cluster`` asks for, read without what starts it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from msgspec import Struct, field

from perfscope.errors import SourceError, UsageError


class ClusterKind(StrEnum):
    """What starts the workers of a cluster."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"


class ClusterChoice(Struct, frozen=True):
    """A cluster to be started.

    Attributes:
        kind: What starts its workers.
        options: What dask-jobqueue's ``SLURMCluster`` or dask-kubernetes' ``KubeCluster`` takes.
    """

    kind: ClusterKind
    options: Mapping[str, object] = field(default_factory=dict)


def read_cluster(text: str) -> ClusterChoice:
    """Read what ``--cluster`` was given: ``slurm``, ``kubernetes``, or a file of TOML with ``kind`` and options.

    Raises:
        SourceError: The file cannot be read.
        UsageError: It names no kind of cluster.
    """
    kinds = " or ".join(ClusterKind)
    if text in set(ClusterKind):
        return ClusterChoice(ClusterKind(text))
    if not text.endswith(".toml"):
        raise UsageError(f"--cluster takes {kinds}, or a file that ends in .toml, not {text}")
    try:
        options = tomllib.loads(Path(text).read_text())
    except OSError as error:
        raise SourceError(text, f"cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SourceError(text, f"is not TOML: {error}") from None
    kind = options.pop("kind", None)
    if kind not in set(ClusterKind):
        raise UsageError(f"{text} must say which kind of cluster: kind = {kinds}, in quotes")
    return ClusterChoice(ClusterKind(kind), options)
