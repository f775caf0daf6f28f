"""TFLOPs per GPU by the BigScience convention, which needs no more than the size of the model.

TFLOPs per GPU = operations of one training step / (time of the step x GPUs x 10**12). What counts as an operation is a
convention; a figure without the convention's name cannot be compared with another.
"""

from __future__ import annotations

from typing import NamedTuple

from perfscope.constants import NS_PER_S, TERA
from perfscope.models.conventions import Checkpointing, bigscience, bigscience_passes
from perfscope.report import Column, Json, Section


class Throughput(NamedTuple):
    """TFLOPs per GPU by the BigScience convention, with everything that went into it.

    Attributes:
        parameters: Size of the model.
        samples: Global batch size: sequences in one step over all GPUs.
        step_ns: Time of one step.
        gpus: Number of GPUs.
        seq_len: Tokens in a sequence.
        checkpointing: Activation checkpointing: what is recomputed.
    """

    parameters: int
    samples: int
    step_ns: int
    gpus: int
    seq_len: int
    checkpointing: Checkpointing

    @property
    def passes(self) -> int:
        """Number of passes, a backward pass counted as two: 4 where all activations are recomputed, else 3."""
        return bigscience_passes(self.checkpointing)

    @property
    def tflops_per_gpu(self) -> float:
        """TFLOPs per GPU."""
        operations = bigscience(self.parameters, self.checkpointing) * self.samples * self.seq_len
        return operations / (self.step_ns / NS_PER_S) / self.gpus / TERA

    def data(self) -> dict[str, Json]:
        """The result for JSON."""
        return {
            "tflops_per_gpu": self.tflops_per_gpu,
            "convention": "bigscience",
            "formula": "parameters * passes * 2 * seq_len * gbs / (time_s * gpus)",
            "inputs": {
                "parameters": self.parameters,
                "gbs": self.samples,
                "time_s": self.step_ns / NS_PER_S,
                "passes": self.passes,
            },
            "assumptions": {
                "gpus": self.gpus,
                "seq_len": self.seq_len,
                "checkpointing": str(self.checkpointing),
            },
        }

    def section(self) -> Section:
        """The result for people."""
        recomputation = {
            Checkpointing.FULL: "all activations recomputed: 4 passes of 2 operations per parameter and token",
            Checkpointing.SELECTIVE: "selective recomputation is not counted: 3 passes",
            Checkpointing.NONE: "nothing recomputed: 3 passes of 2 operations per parameter and token",
        }[self.checkpointing]
        return Section(
            "TFLOPs per GPU",
            columns=(
                Column("Parameters"),
                Column("GPUs"),
                Column("Global batch"),
                Column("Seq length"),
                Column("Checkpointing"),
                Column("Step time (s)", 3),
                Column("TFLOPs per GPU"),
            ),
            rows=(
                (
                    self.parameters,
                    self.gpus,
                    self.samples,
                    self.seq_len,
                    str(self.checkpointing),
                    self.step_ns / NS_PER_S,
                    self.tflops_per_gpu,
                ),
            ),
            notes=(
                "Convention `bigscience`: parameters x passes x 2 x seq length x global batch / (time x GPUs); "
                "attention's quadratic term is not counted.",
                f"Checkpointing `{self.checkpointing}`: {recomputation}.",
            ),
        )
