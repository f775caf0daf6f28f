"""A training step measured in this process, and compared with a saved baseline: what ``perfscope.testing`` does."""

from __future__ import annotations

import json
import platform
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from perfscope.analyzers.compare.change import Samples
from perfscope.analyzers.compare.comparison import Comparison, compare_sides, parse_limit
from perfscope.analyzers.compare.report import describe_verdict
from perfscope.analyzers.compare.side import Compared, Origin, Side, TrainedSetup, to_baseline
from perfscope.constants import NS_PER_S
from perfscope.engine.sides import read_saved
from perfscope.errors import UsageError
from perfscope.files import replace_file

DEFAULT_LIMIT = "step_time>+5%"


class StepBaseline(Struct, frozen=True):
    """Compares steps with baselines.

    Attributes:
        root: What paths of baselines are relative to.
        is_update: Whether baselines are saved instead.
    """

    root: Path
    is_update: bool = False

    def check(
        self,
        step: Callable[[], object],
        baseline: str | Path,
        *,
        steps: int = 50,
        warmup: int = 5,
        fail_on: str | Sequence[str] = (DEFAULT_LIMIT,),
    ) -> Comparison | None:
        """Call a step many times, and compare its times with a baseline.

        Args:
            step: A training step; where it uses a GPU, each call is timed until the GPU is done.
            baseline: The file.
            steps: Number of calls that are timed.
            warmup: Number of calls before them.
            fail_on: Limits, as ``perfscope compare --fail-on`` takes them. One that cannot be checked is a warning.

        Returns:
            The comparison; None where the baseline was saved.

        Raises:
            AssertionError: A limit is exceeded, or the baseline is of another training or device.
            UsageError: There is no such baseline, or a limit cannot be parsed.
        """
        limits = [parse_limit(limit) for limit in ([fail_on] if isinstance(fail_on, str) else fail_on)]
        path = self.root / baseline
        side = measure_step(step, steps, warmup, name="this test")
        if self.is_update:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, (json.dumps(to_baseline(side), indent=1) + "\n").encode())
            return None
        if not path.exists():
            raise UsageError(f"there is no baseline {path}", hint="save it: pytest --perfscope-update")
        saved = read_saved(path)
        if saved.setup.device != side.setup.device:
            raise AssertionError(
                f"{path} was saved on {saved.setup.device}, and this is {side.setup.device}: steps of different "
                "devices do not tell whether the code became slower"
            )
        comparison = compare_sides(saved, side, limits=limits)
        exceeded = [verdict for verdict in comparison.limits if verdict.is_exceeded]
        if comparison.is_refused or exceeded:
            reasons = [f"{verdict.limit.text} is {verdict.reason}" for verdict in exceeded]
            raise AssertionError("\n".join((describe_verdict(comparison), *reasons)))
        for verdict in comparison.limits:
            if verdict.is_exceeded is None:
                warnings.warn(f"{path}: {verdict.limit.text}: {verdict.reason}", UserWarning, stacklevel=2)
        return comparison


def measure_step(step: Callable[[], object], steps: int, warmup: int, name: str) -> Side:
    """Time calls of a training step.

    Raises:
        UsageError: There is no call to time.
    """
    if steps < 1 or warmup < 0:
        raise UsageError(f"{steps} steps after {warmup} of warm-up cannot be measured")
    torch = sys.modules.get("torch")  # a test that uses it has imported it
    has_gpu = torch is not None and torch.cuda.is_available()
    synchronize: Callable[[], object] = torch.cuda.synchronize if torch is not None and has_gpu else lambda: None
    for _ in range(warmup):
        step()
    synchronize()
    if torch is not None and has_gpu:
        torch.cuda.reset_peak_memory_stats()  # tests before this one may have held more
    times_ns = []
    for _ in range(steps):
        begin_ns = time.perf_counter_ns()
        step()
        synchronize()
        times_ns.append(max(time.perf_counter_ns() - begin_ns, 1))
    peak = torch.cuda.max_memory_allocated() if torch is not None and has_gpu else 0
    return Side(
        name=name,
        kind=Origin.RUN,
        setup=TrainedSetup(
            gpus=1,
            device=torch.cuda.get_device_name() if torch is not None and has_gpu else platform.processor() or "cpu",
            versions={"Python": platform.python_version(), **({"PyTorch": str(torch.__version__)} if torch else {})},
        ),
        step_time_s=Samples((np.array(times_ns, np.float64) / NS_PER_S,)),
        memory_bytes=Samples((np.array([float(peak)]),)) if peak else None,
        reasons={
            **dict.fromkeys(
                (Compared.THROUGHPUT, Compared.TFLOPS, Compared.ENERGY), "a test of one step does not know it"
            ),
            Compared.MEMORY: "it used no GPU",
            "budget": "a test of one step has no traces",
        },
    )
