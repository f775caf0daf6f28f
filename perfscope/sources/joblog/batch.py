"""The global batch from the set-up that a log states."""

from __future__ import annotations

from perfscope.sources.joblog.builder import JobLogBuilder


def find_global_batch(log: JobLogBuilder) -> int | None:
    """Samples of a step: as stated, else from micro-batches; accumulation counts as 1 where it is not stated."""
    stated, micro = log.count("gbs"), log.count("mbs")
    if stated is not None or micro is None:
        return stated
    gpus, tensor, pipeline = log.count("gpus"), log.count("tp") or 1, log.count("pp") or 1
    replicas = log.count("dp") or (gpus // (tensor * pipeline) if gpus else None)
    return micro * replicas * (log.count("gas") or 1) if replicas else None
