"""The training commands of the pipeline benchmark: torch.distributed.pipelining, DeepSpeed and Megatron-core.

Megatron's training script is not part of its wheel; ``--megatron`` names the folder of a checkout that holds
``pretrain_gpt.py``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchmarks.processes import ROOT, find_free_port

WORKLOADS = ROOT / "perfscope" / "workloads"
STEPS = 16
LARGE = {"layers": 16, "hidden": 2048, "heads": 16, "vocabulary": 2048, "seq-len": 1024, "micro-batch": 4}
#: Where ranks share a GPU and talk through sockets: much to compute for each byte that goes to the next stage.
SHARED = {**LARGE, "hidden": 4096, "heads": 32, "micro-batch": 1}
TINY = {"layers": 8, "hidden": 64, "heads": 2, "vocabulary": 256, "seq-len": 64, "micro-batch": 2}
_MEGATRON_ITERATION = re.compile(r"elapsed time per iteration \(ms\): ([\d.]+)")
_MEGATRON_WARMUP = 3
#: The rank with half a share, and the rank whose host waits, with the milliseconds of each forward pass: more than a
#: host is ahead of its device.
SLOW_RANK = 2
SLOW_HOST = ("1", "60")
#: Kernels of torch alone, so that no extension has to be built; data are random.
_MEGATRON_ARGUMENTS = (
    "--mock-data --tokenizer-type NullTokenizer --vocab-size 32000 --lr 1e-4 --bf16 --transformer-impl local "
    "--no-persist-layer-norm --no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion "
    "--no-rope-fusion --no-gradient-accumulation-fusion --attention-backend unfused --log-interval 1 --log-throughput "
    "--eval-iters 0 --eval-interval 1000 --split 100,0,0 --ckpt-format torch"
)


class Framework(StrEnum):
    """The framework that trains the pipeline."""

    TORCH = "torch"
    DEEPSPEED = "deepspeed"
    MEGATRON = "megatron"


#: Schedules beside 1F1B that each framework is run with, at one number of micro-batches.
OTHER_SCHEDULES = {
    Framework.TORCH: ("gpipe", "interleaved", "zb-h1", "zbv"),
    Framework.DEEPSPEED: (),
    Framework.MEGATRON: ("interleaved",),
}


#: Trainings in which one thing is else: the third rank has half of its share of the device, the host of the second
#: takes longer for each forward pass, Megatron's output layer has weights of its own.
VARIANTS = ("slow_device", "slow_host", "untied")


@dataclass(frozen=True)
class Setting:
    """One training run: its framework, schedule and micro-batches, on how many ranks, and the model's size.

    Attributes:
        scripts: The folder of Megatron's ``pretrain_gpt.py``.
        tensor: The ranks of a stage, by Megatron's tensor parallelism.
        shares: The percentage of a GPU that each rank has, where ranks share GPUs or one of them is slow.
        turn: The file whose lock a training has while it trains, where trainings start together.
        variant: What is else with this training, one of ``VARIANTS``; nothing where it is empty.
    """

    framework: Framework
    schedule: str
    microbatches: int
    ranks: int
    size: Mapping[str, int]
    scripts: Path | None = None
    tensor: int = 1
    shares: tuple[int, ...] = ()
    turn: Path | None = None
    variant: str = ""

    def __post_init__(self) -> None:
        if self.ranks % self.tensor:
            raise ValueError(f"{self.ranks} ranks are not divisible into stages of {self.tensor}")
        if self.tensor != 1 and self.framework is not Framework.MEGATRON:
            raise ValueError(f"{self.framework} has no tensor parallelism here")
        if self.variant == "slow_device" and not self.shares:
            raise ValueError("a device is slow where ranks have shares of GPUs")

    @property
    def stages(self) -> int:
        """The stages of the pipeline."""
        return self.ranks // self.tensor

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return f"{self.framework}_{self.schedule}_m{self.microbatches}" + (f"_{self.variant}" if self.variant else "")

    def command(self) -> list[str]:
        """The training command, for subprocess."""
        if self.framework is Framework.MEGATRON:
            return [*self._launcher(), *self._megatron()]
        words = [f"--{name}={value}" for name, value in self.size.items()]
        words += [f"--microbatches={self.microbatches}", f"--steps={STEPS}"]
        if self.framework is Framework.DEEPSPEED:
            return [*self._launcher(), str(WORKLOADS / "gpt_deepspeed_pipeline.py"), *words]
        delay = [str(ROOT / "benchmarks" / "slow_host.py"), *SLOW_HOST] if self.variant == "slow_host" else []
        return [*self._launcher(), *delay, str(WORKLOADS / "gpt_pipeline.py"), f"--schedule={self.schedule}", *words]

    def median_step_ms(self, printed: str) -> float:
        """The median step of a run without perfscope, as the training script itself prints it.

        Raises:
            ValueError: It printed none.
        """
        if self.framework is Framework.MEGATRON:
            steps = sorted(float(text) for text in _MEGATRON_ITERATION.findall(printed)[_MEGATRON_WARMUP:])
            if steps:
                return steps[len(steps) // 2]
        elif match := re.search(r"median step ([\d.]+) ms", printed):
            return float(match[1])
        raise ValueError(f"{self.name} printed no time of a step")

    def _launcher(self) -> list[str]:
        if self.shares or self.turn:
            return self._start_ranks()
        if self.framework is Framework.DEEPSPEED:
            launcher = [sys.executable, "-m", "deepspeed.launcher.runner", f"--master_port={find_free_port()}"]
            return [*launcher, "--num_gpus", str(self.ranks)]
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}"]

    def _start_ranks(self) -> list[str]:
        shares = list(self.shares)
        if self.variant == "slow_device":
            shares[SLOW_RANK] //= 2
        share = ["--share", ",".join(map(str, shares))] if shares else []
        turn = ["--turn", str(self.turn)] if self.turn else []
        launcher = [sys.executable, str(ROOT / "benchmarks" / "start_ranks.py")]
        return [*launcher, *share, *turn, str(self.ranks)]

    def _megatron(self) -> list[str]:
        if self.scripts is None:
            raise SystemExit("--megatron is needed: the folder that holds pretrain_gpt.py")
        size = self.size
        chunks = ["--num-layers-per-virtual-pipeline-stage", str(size["layers"] // self.stages // 2)]
        return [
            str(self.scripts / "pretrain_gpt.py"),
            *_MEGATRON_ARGUMENTS.split(),
            *("--num-layers", str(size["layers"]), "--hidden-size", str(size["hidden"])),
            *("--num-attention-heads", str(size["heads"]), "--seq-length", str(size["seq-len"])),
            *("--max-position-embeddings", str(size["seq-len"]), "--train-iters", str(STEPS)),
            *("--micro-batch-size", str(size["micro-batch"])),
            *("--global-batch-size", str(size["micro-batch"] * self.microbatches)),
            *("--pipeline-model-parallel-size", str(self.stages)),
            *("--tensor-model-parallel-size", str(self.tensor)),
            *(chunks if self.schedule == "interleaved" else []),
            *(["--untie-embeddings-and-output-weights"] if self.variant == "untied" else []),
        ]
