"""Runs of one job on different numbers of GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """Nodes of a job, and GPUs on each node."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return self.nodes * self.gpus_per_node

    def __str__(self) -> str:
        return f"{self.nodes}n{self.gpus_per_node}g"


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

    Attributes:
        path: The log.
        cluster: Nodes and GPUs, from the folder's name.
        model: From the file's name.
        batch_per_gpu: From the file's name.
        precision: From the file's name.
        run: Number of the run, from the file's name.
        speeds: The speed of every line, in the order of the file.
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
        path: Its log or folder.
        cluster: Nodes and GPUs.
        model: The trained model, by name or size.
        batch: Global batch size; absent where unknown.
        precision, seq_len, zero_stage: Of the training set-up; absent where unknown.
        samples_per_s: Throughput; absent where the run failed or logged none.
        out_of_memory: It ran out of memory.
        notes: Doubts about the run.
    """

    path: str
    cluster: ClusterSize
    model: str
    batch: int | None
    precision: str | None
    seq_len: int | None
    zero_stage: int | None
    samples_per_s: float | None
    out_of_memory: bool
    notes: tuple[str, ...] = field(default=())

    @property
    def batch_per_gpu(self) -> float | None:
        """Samples per step and GPU."""
        return None if self.batch is None else self.batch / self.cluster.gpus
