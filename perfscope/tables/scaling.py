"""Runs of one job on different numbers of GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """GPUs of a job, and its nodes where they are known; each has the same number of GPUs."""

    gpus: int
    nodes: int | None = None

    @property
    def gpus_per_node(self) -> int | None:
        """GPUs of a node."""
        return None if self.nodes is None else self.gpus // self.nodes

    def __str__(self) -> str:
        return f"{self.gpus} GPUs" if self.nodes is None else f"{self.nodes}n{self.gpus_per_node}g"


@dataclass(frozen=True, slots=True)
class LoggedSpeed:
    """The speed that one line of a log states.

    Attributes:
        step: Its iteration; absent where the line does not name it.
        value: Latency of a batch in milliseconds (gluon-nlp), or samples/s (DeepSpeed).
    """

    step: int | None
    value: float


@dataclass(frozen=True, slots=True)
class ProtocolRun:
    """One run of a benchmark, as its own extraction script would read it.

    All but ``speeds``, the speed of every line, is from the names of the folder and the file.
    """

    path: str
    cluster: ClusterSize
    model: str
    batch_per_gpu: int
    precision: str
    run: int
    speeds: tuple[LoggedSpeed, ...]


@dataclass(frozen=True, slots=True)
class ScalingRun:
    """One run of a scaling study.

    Attributes:
        model: The trained model, by name or size.
        batch: Global batch size; this and what follows of the set-up is absent where unknown.
        samples_per_s: Throughput in its unit; absent where the run failed or logged none.
        notes: Doubts about the run.
    """

    path: str
    cluster: ClusterSize
    model: str
    batch: int | None
    samples_per_s: float | None
    precision: str | None = None
    seq_len: int | None = None
    zero_stage: int | None = None
    out_of_memory: bool = False
    notes: tuple[str, ...] = field(default=())
    unit: str = "samples/s"

    @property
    def batch_per_gpu(self) -> float | None:
        """Samples per step and GPU."""
        return None if self.batch is None else self.batch / self.cluster.gpus
