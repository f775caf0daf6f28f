"""Fits the constants of step times to measured rows, and carries what they leave to configurations beside them.

The constants start from those of a stack, and move as far as the rows ask for. Each is known to a factor before, and
each row has an error of its own. What the rows then still differ by is a property of their configurations. It holds for
one near to them, and less the farther it is away (kriging: Matheron 1963).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import log1p
from statistics import NormalDist

import numpy as np
from scipy.optimize import least_squares

from perfscope.analyzers.plan.step_time import TERMS, Predictor
from perfscope.constants import NS_PER_S
from perfscope.models.hardware import Gpu, find_gpu, lookup_gpu
from perfscope.models.step_constants import SHARES, Stack, StepConstants, find_stack, spread
from perfscope.tables.ceiling import Ceiling
from perfscope.tables.columns import Float64, Int64
from perfscope.tables.step_time import MeasuredStep, StepSetup, StepTerms

#: What software that is not tuned may take.
_UNTUNED = {"host_s": 2e-3, "gather_host_s": 5e-3, "weight_bytes": 20.0}
#: A row so many times farther off than configurations differ by says little of those beside it.
_STRAY = 3


@dataclass(frozen=True, slots=True)
class Prediction:
    """Steps of some configurations: their terms in nanoseconds, and the relative error that 90 % stay below."""

    terms_ns: Int64
    error: Float64

    @property
    def seconds(self) -> Float64:
        """The time of each step."""
        return np.asarray(self.terms_ns.sum(axis=0) / NS_PER_S, np.float64)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured rows that predictions start from; without any they start from the published stacks.

    No share of a peak is higher than a ``ceiling`` of the same GPU. ``stack`` has the constants that all configurations
    start from; None: each from those of its own stage of ZeRO.
    """

    rows: tuple[MeasuredStep, ...] = ()
    ceiling: Ceiling | None = None
    stack: Stack | None = None

    def predict(self, setups: Sequence[StepSetup]) -> Prediction:
        """Predict steps; UsageError where a GPU is unknown or lacks the data type."""
        groups: dict[Stack, list[int]] = {}
        for index, setup in enumerate(setups):
            groups.setdefault(self.stack_of(setup), []).append(index)
        terms, error = np.zeros((len(TERMS), len(setups)), np.int64), np.zeros(len(setups))
        for indices in groups.values():
            some = [setups[index] for index in indices]
            factor, error[indices] = self._correct(some)
            terms[:, indices] = np.rint(Predictor(some).terms_ns(self.constants(some[0])) * factor)
        return Prediction(terms, error)

    def stack_of(self, setup: StepSetup) -> Stack:
        """The stack that the prediction of a configuration starts from."""
        return self.stack or stack_of(setup)

    def constants(self, setup: StepSetup) -> StepConstants:
        """The constants for the GPU and the sharding of a configuration."""
        start = self.stack_of(setup).constants
        gpu = find_gpu(setup.gpu)
        if self.ceiling is not None and lookup_gpu(self.ceiling.device) == gpu:
            start = _limit(start, gpu, self.ceiling)
        return fit_constants(self.rows, start) if self.rows else start

    def _correct(self, setups: Sequence[StepSetup]) -> tuple[Float64, Float64]:
        """The factor that the measured rows still ask for at each configuration, and its relative error of 90 %."""
        stack = self.stack_of(setups[0])
        if not self.rows:
            return np.ones(len(setups)), np.array([max(stack.error, stack_of(setup).error) for setup in setups])
        measured = [row.setup for row in self.rows]
        left = np.log([row.seconds for row in self.rows]) - np.log(
            Predictor(measured).seconds(self.constants(setups[0]))[0]
        )
        known, asked = _positions(measured), _positions(setups)
        quantile = NormalDist().inv_cdf(0.95)
        whole = spread()["local"] ** 2 + spread()["common"] ** 2
        wider = max(1, (log1p(stack.error) / quantile) ** 2 / whole)  # far away as wide as without a calibration
        shared = wider * _covariance(asked, known)
        doubt = spread()["run"] ** 2 + np.where(left**2 > _STRAY**2 * wider * whole, left**2, 0)
        inverse = np.linalg.inv(wider * _covariance(known, known) + np.diag(doubt))
        variance = np.maximum(wider * whole - ((shared @ inverse) * shared).sum(axis=1), 0) + spread()["run"] ** 2
        variance *= max(1, left @ inverse @ left / len(left))  # rows that differ by more than was expected
        return np.exp(shared @ inverse @ left), np.expm1(quantile * np.sqrt(variance))


def _limit(start: StepConstants, gpu: Gpu, ceiling: Ceiling) -> StepConstants:
    """Shares of peaks that are no higher than a machine attains; what it did not measure stays."""
    rates = {
        "products": (ceiling.tflops("bf16"), gpu.dense_16bit_tflops),
        "fp8_products": (ceiling.tflops("fp8"), gpu.dense_tflops.get("fp8")),
        "memory": (ceiling.tb_s, gpu.memory_tb_s),
        "link": (ceiling.busbw_gb_s("all_reduce"), gpu.link.gb_s if gpu.link else None),
    }
    known = {name: rate / peak for name, (rate, peak) in rates.items() if rate and peak}
    return start._replace(**{name: min(share, getattr(start, name)) for name, share in known.items()})


def stack_of(setup: StepSetup) -> Stack:
    """The stack whose constants a configuration starts from."""
    return find_stack(find_gpu(setup.gpu), setup.zero, setup.software, has_experts=setup.model.experts is not None)


def _positions(setups: Sequence[StepSetup]) -> Float64:
    """Where configurations lie, in doublings, times the power: farther apart in what changes the kernels."""
    rows = [
        (
            setup.tensor**2,
            setup.micro_batch,
            setup.model.hidden**2,
            setup.seq_len,
            setup.pipeline**0.25,
            setup.data**0.25,
            setup.micro_batches**0.25,
            setup.model.layers**0.25,
            setup.context,
            setup.expert,
            find_gpu(setup.gpu).peak_tflops(setup.dtype),
            4.0 ** (setup.zero > 1),
        )
        for setup in setups
    ]
    return np.asarray(np.log2(np.array(rows, np.float64)), np.float64)


def _covariance(first: Float64, second: Float64) -> Float64:
    distance = np.abs(first[:, None] - second[None]).sum(axis=-1)
    return np.asarray(
        spread()["local"] ** 2 * np.exp(-distance / spread()["reach"]) + spread()["common"] ** 2, np.float64
    )


@cache
def fit_constants(
    rows: tuple[MeasuredStep, ...], start: StepConstants, row: float | None = None, loss: str = "soft_l1"
) -> StepConstants:
    """The most probable constants for some rows; single rows far off count little.

    ``row`` is the error of a row as a logarithm, unless as of a calibration. ``loss`` is one of ``least_squares``.
    """
    predictor = Predictor([row.setup for row in rows])
    measured = np.log([row.seconds for row in rows])
    terms = np.array([row.terms for row in rows], np.float64).T
    is_known = ~np.isnan(terms)
    doubt = np.where(is_known.any(axis=0), spread()["term"], row or spread()["row"])
    least = spread()["least_term"] * np.exp(measured)
    kinds = np.where(np.array(StepTerms._fields) == "host", spread()["host"], spread()["term"])
    term_doubt = np.broadcast_to(kinds[:, None], terms.shape)[is_known]
    log_terms = np.log(terms + least)[is_known]

    names = np.array([name for name, value in start._asdict().items() if value])  # what software lacks stays 0
    values = np.array([getattr(start, name) for name in names])
    wide = spread() if row or is_known.any() else {}  # many rows and kernels tell apart what few times do not
    width = np.array([wide.get(name, spread()["constant"]) for name in names])
    is_share = np.array([name in SHARES for name in names])

    def at(logs: Float64) -> StepConstants:
        odds = np.exp(logs)
        return start._replace(**dict(zip(names, np.where(is_share, odds / (1 + odds), odds), strict=True)))

    first = np.log(np.where(is_share, values / (1 - values), values))

    def residuals(logs: Float64) -> Float64:
        seconds, kernels = predictor.seconds(at(logs))
        of_rows = (np.log(seconds) - measured) / doubt
        of_terms = (np.log(kernels + least)[is_known] - log_terms) / term_doubt
        return np.concatenate([of_rows, of_terms, (logs - first) / width])

    starts = [first]
    if row is None:  # the longer of kernels and launching hides what is known of the other: start on several sides
        starts += [np.where(names == name, np.log(value), first) for name, value in _UNTUNED.items()]
    fits = [least_squares(residuals, logs, loss=loss, ftol=1e-5) for logs in starts]
    return at(min(fits, key=lambda fit: fit.cost).x)
