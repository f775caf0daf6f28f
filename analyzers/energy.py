"""The energy of a training step, and how many tokens a joule buys.

A step's energy is the power of its GPUs, integrated from the step's beginning to its end by the trapezoidal rule over
NVML's samples. NVML's power is itself a mean over up to a second, so that the energy of one short step is smoothed over
its neighbours; the mean over many steps is not. The GPUs' own energy counters are an independent second measurement:
both are taken over the same time, and a difference over 5 % is said. Processors, memory and fans of the host are in
neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers import steps as step_times
from perfscope.analyzers.shared.gpu_steps import UsedGpu, intervals_ns, ranks_text, used_gpus
from perfscope.errors import MissingInput
from perfscope.report import Cell, Column, Json, Section
from perfscope.tables.run import Rank, Run

#: A difference between counter and integrated power over this is said.
DISAGREEMENT = 0.05
#: Shorter than this, NVML's averaging at both ends can be 5 % of the energy by itself.
_SHORTEST_COMPARED_NS = 10 * 10**9
_LONGEST_GAP_NS = 2_500_000_000
_MILLIJOULES_PER_MW_NS = 1e-9


@dataclass(frozen=True, slots=True)
class GpuEnergy:
    """The energy of one GPU.

    Attributes:
        host, uuid, name: Which one.
        ranks: The ranks that trained on it.
        steps: Undisturbed steps that the samples cover.
        step_j: Mean energy of these; absent where there is none.
        power_w: Mean power in these; absent with it.
        counter_j: What the energy counter moved by over ``compared_s``; absent where there is none.
        integrated_j: The integral of power over the same time.
        compared_s: That time; absent where it would be too short to compare.
        reason: Why the step's energy is absent.
    """

    host: str
    uuid: str
    name: str
    ranks: tuple[int, ...]
    steps: int
    step_j: float | None
    power_w: float | None
    counter_j: float | None
    integrated_j: float | None
    compared_s: float | None
    reason: str | None

    @property
    def difference(self) -> float | None:
        """Integrated power over the counter, less 1; absent without a comparison."""
        if self.counter_j is None or self.integrated_j is None:
            return None
        return self.integrated_j / self.counter_j - 1


@dataclass(frozen=True, slots=True)
class Energy:
    """The energy of a run's steps.

    Attributes:
        gpus: Each GPU that a rank trained on.
        step_j: Energy of a step over all GPUs; absent where one is not known.
        tokens_per_j, samples_per_j: Work of a step over its energy; absent where either is not known.
        notes: What a reader must know.
    """

    gpus: tuple[GpuEnergy, ...]
    step_j: float | None
    tokens_per_j: float | None
    samples_per_j: float | None
    notes: tuple[str, ...]

    def data(self) -> Json:
        """The value of ``results.energy``."""
        return {
            "step_j": self.step_j,
            "tokens_per_j": self.tokens_per_j,
            "samples_per_j": self.samples_per_j,
            "gpus": [
                {
                    "host": gpu.host,
                    "uuid": gpu.uuid,
                    "name": gpu.name,
                    "ranks": list(gpu.ranks),
                    "steps": gpu.steps,
                    "step_j": gpu.step_j,
                    "power_w": gpu.power_w,
                    "counter_j": gpu.counter_j,
                    "integrated_j": gpu.integrated_j,
                    "compared_s": gpu.compared_s,
                    "difference": gpu.difference,
                    "reason": gpu.reason,
                }
                for gpu in self.gpus
            ],
        }

    def sections(self) -> tuple[Section, ...]:
        """A row a GPU, and one for all."""
        columns = (
            Column("Host"),
            Column("Rank"),
            Column("GPU"),
            Column("Energy a step (J)"),
            Column("Power (W)"),
            Column("Counter (kJ)", 2),
            Column("Power x time (kJ)", 2),
            Column("Difference (%)"),
            Column("Steps"),
        )
        rows: list[tuple[Cell, ...]] = [
            (
                gpu.host,
                ranks_text(gpu.ranks),
                gpu.name,
                gpu.step_j,
                gpu.power_w,
                _scaled(gpu.counter_j, 1e-3),
                _scaled(gpu.integrated_j, 1e-3),
                _scaled(gpu.difference, 100),
                gpu.steps,
            )
            for gpu in self.gpus
        ]
        if len(rows) > 1:
            rows.append(("all", None, None, self.step_j, None, None, None, None, min(gpu.steps for gpu in self.gpus)))
        return (Section("Energy", columns, tuple(rows), notes=(*self._rates(), *self.notes)),)

    def _rates(self) -> tuple[str, ...]:
        rates = [
            f"{rate:,.3g} {unit} a joule"
            for rate, unit in ((self.tokens_per_j, "tokens"), (self.samples_per_j, "samples"))
            if rate is not None
        ]
        return (f"{', '.join(rates)}, over all GPUs.",) if rates else ()


def analyze(run: Run) -> Energy:
    """Integrate power over the steps of every GPU that a rank trained on.

    Raises:
        MissingInput: No such GPU was sampled, or none told its power.
    """
    used = used_gpus(run)
    gpus = tuple(_energy(gpu, run) for gpu in used)
    if all(gpu.step_j is None and gpu.counter_j is None for gpu in gpus):
        raise MissingInput(next((gpu.reason for gpu in gpus if gpu.reason), "no GPU told its power"))
    uncovered = _uncovered_ranks(run, used)
    known = [gpu.step_j for gpu in gpus if gpu.step_j is not None]
    step_j = sum(known) if len(known) == len(gpus) and not uncovered else None
    times = step_times.analyze(run)
    return Energy(
        gpus=gpus,
        step_j=step_j,
        tokens_per_j=_work_per_joule(times.tokens_per_s, times.median_s, step_j),
        samples_per_j=_work_per_joule(times.samples_per_s, times.median_s, step_j),
        notes=_notes(gpus, uncovered, run.ranks),
    )


def _energy(used: UsedGpu, run: Run) -> GpuEnergy:
    power = _PowerCurve(used)
    reason = _why_no_energy(used, run)
    starts, ends, rows = intervals_ns(used.steps)
    chosen = power.covers(starts, ends) & used.steps.steady[rows]
    joules = power.energy_j(starts[chosen], ends[chosen])
    if reason is None and not chosen.any():
        reason = "no undisturbed step lies between two samples of power"
    counter_j, integrated_j, compared_s = _compare(used, power, starts, ends)
    seconds = float((ends[chosen] - starts[chosen]).sum()) / 1e9
    return GpuEnergy(
        host=used.samples.host,
        uuid=used.samples.uuid,
        name=used.samples.name,
        ranks=used.ranks,
        steps=int(chosen.sum()),
        step_j=float(joules.mean()) if reason is None else None,
        power_w=float(joules.sum()) / seconds if reason is None and seconds > 0 else None,
        counter_j=counter_j,
        integrated_j=integrated_j,
        compared_s=compared_s,
        reason=reason,
    )


def _why_no_energy(used: UsedGpu, run: Run) -> str | None:
    if not used.samples.power_mw.count():
        return "NVML does not tell the power of this GPU"
    ours = {uuid for rank in run.ranks for uuid in rank.device_uuids}
    others = [one for one in used.samples.instances if one.uuid not in ours]
    if others:
        return f"power is the whole GPU's, and {len(others)} of its {used.instances} MIG instances are not this run's"
    return None


class _PowerCurve:
    """Power over time, integrated."""

    def __init__(self, used: UsedGpu) -> None:
        known = ~np.ma.getmaskarray(used.samples.power_mw)
        self.t_ns = used.samples.t_ns[known]
        power_mw = np.asarray(used.samples.power_mw.data[known], float)
        spans_ns = np.diff(self.t_ns)
        pieces = (power_mw[1:] + power_mw[:-1]) / 2 * spans_ns * _MILLIJOULES_PER_MW_NS
        self._energy_mj = np.concatenate([[0.0], np.cumsum(pieces)]) if len(self.t_ns) else np.zeros(0)
        # A second sampled every five is sampled; a silence among dense samples is a hole.
        longest = max(_LONGEST_GAP_NS, 3 * float(np.median(spans_ns))) if len(spans_ns) else 0
        self._holes = np.concatenate([[0], np.cumsum(spans_ns > longest)]) if len(self.t_ns) else np.zeros(0, int)

    def covers(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Which intervals lie between samples, without a hole."""
        if len(self.t_ns) < 2:  # noqa: PLR2004 - a line has two ends
            return np.zeros(len(starts), bool)
        inside = (starts >= self.t_ns[0]) & (ends <= self.t_ns[-1])
        before = np.clip(np.searchsorted(self.t_ns, starts, "right") - 1, 0, len(self.t_ns) - 1)
        after = np.clip(np.searchsorted(self.t_ns, ends, "left"), 0, len(self.t_ns) - 1)
        return np.asarray(inside & (self._holes[before] == self._holes[after]))

    def energy_j(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """The energy of intervals that are covered."""
        if not len(starts):
            return np.zeros(0)
        origin = self.t_ns[0]
        known = (self.t_ns - origin).astype(float)
        begun, ended = (np.interp((times - origin).astype(float), known, self._energy_mj) for times in (starts, ends))
        return np.asarray((ended - begun) / 1e3)


def _compare(
    used: UsedGpu, power: _PowerCurve, starts: np.ndarray, ends: np.ndarray
) -> tuple[float | None, float | None, float | None]:
    """Counter and integral between the first and the last reading of the counter while training went on."""
    samples = used.samples
    read = ~np.ma.getmaskarray(samples.energy_mj)
    if not read.any() or not len(starts):
        return None, None, None
    times = np.asarray(np.where(np.ma.getmaskarray(samples.energy_t_ns), samples.t_ns, samples.energy_t_ns.data)[read])
    values = np.asarray(samples.energy_mj.data[read])
    training = (times >= starts.min()) & (times <= ends.max())
    if len(power.t_ns):
        training &= (times >= power.t_ns[0]) & (times <= power.t_ns[-1])
    times, values = times[training], values[training]
    if len(times) < 2 or times[-1] - times[0] < _SHORTEST_COMPARED_NS:  # noqa: PLR2004 - a difference has two ends
        return None, None, None
    first, last = times[:1], times[-1:]
    moved_j = float(values[-1] - values[0]) / 1e3
    if moved_j <= 0 or (np.diff(values) < 0).any() or not power.covers(first, last)[0]:
        return None, None, None
    return moved_j, float(power.energy_j(first, last)[0]), float(times[-1] - times[0]) / 1e9


def _uncovered_ranks(run: Run, used: Sequence[UsedGpu]) -> list[int]:
    """Ranks whose GPU was not sampled or is not known, those that never reported included."""
    covered = {rank for gpu in used for rank in gpu.ranks}
    return sorted(set(range(max(rank.world_size for rank in run.ranks))) - covered)


def _work_per_joule(rate: float | None, step_s: float | None, step_j: float | None) -> float | None:
    return rate * step_s / step_j if rate is not None and step_s is not None and step_j else None


def _notes(gpus: Sequence[GpuEnergy], uncovered: Sequence[int], ranks: Sequence[Rank]) -> tuple[str, ...]:
    notes = [
        "The energy of GPU boards alone, without their host: power integrated over the undisturbed steps, which NVML "
        "averages over up to a second."
    ]
    if uncovered:
        notes.append(f"No energy of all GPUs, because it is not known for ranks {uncovered[:16]}.")
    notes += [f"{gpu.host}, ranks {list(gpu.ranks)}: {gpu.reason}." for gpu in gpus if gpu.reason]
    compared = [gpu for gpu in gpus if gpu.difference is not None]
    for gpu in compared:
        if gpu.difference is not None and abs(gpu.difference) > DISAGREEMENT:
            notes.append(
                f"Warning: over {gpu.compared_s:.0f} s of training {gpu.host} {gpu.uuid} drew {gpu.counter_j:,.0f} J "
                f"by its energy counter and {gpu.integrated_j:,.0f} J by integrated power: "
                f"{100 * gpu.difference:+.1f} %, more than 5 % apart, so one of them is wrong."
            )
    if compared:
        seconds = min(gpu.compared_s or 0.0 for gpu in compared)
        notes.append(f"Counter and power x time are over the same {seconds:.0f} s of training, windows included.")
    else:
        shortest = _SHORTEST_COMPARED_NS // 10**9
        notes.append(f"The energy counter was not compared: it was read for less than {shortest} s of training.")
    if len({rank.host for rank in ranks}) > len({gpu.host for gpu in gpus}):
        notes.append("Not every host was sampled.")
    return tuple(notes)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
