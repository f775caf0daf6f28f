"""How far predicted steps are from measured ones, and whether they find the fastest configuration."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from perfscope.analyzers.plan.step_time.calibration import Calibration, stack_of
from perfscope.tables.columns import Float64
from perfscope.tables.step_time import UNKNOWN, MeasuredStep, MeasuredSteps

#: Rows of a model that a calibration takes, and how many more it must have.
FEW_ROWS = 5
_FOLDS, _SEED = 10, 43
_WITHIN = (0.05, 0.10, 0.15)
_FASTEST_IS_WITHIN, _LEAST_GROUP = 0.05, 3


class Errors(NamedTuple):
    """Relative errors of predicted steps: how many, median, 90th percentile, and shares of them.

    ``bias`` is the median with its sign. ``covered`` is the share of measured steps in their interval.
    """

    rows: int
    median: float
    p90: float
    within_5: float
    within_10: float
    within_15: float
    bias: float
    covered: float


class Orders(NamedTuple):
    """How often the fastest predicted configuration is nearly the fastest measured one, and what it costs.

    A group is three configurations or more of one model, batch, sequence, GPU and number of GPUs.
    """

    groups: int
    within_5: float
    median_loss: float
    worst_loss: float


@dataclass(frozen=True, slots=True)
class SourceJudgement:
    """The judgement of the rows of one source on one kind of stack.

    ``used`` are those that its constants were fitted to, ``unused`` all others; each is None without rows.
    ``calibrated`` are the rest of each model's rows after five of them calibrated, or each of few rows by all others.
    ``by_one`` are a model's rows after each single one of them whose kernels are known.
    """

    source: str
    stack: str
    is_measured: bool
    refused: int
    used: Errors | None
    unused: Errors | None
    orders: Orders | None
    calibrated: Errors | None
    by_one: Errors | None


def judge(steps: MeasuredSteps) -> tuple[SourceJudgement, ...]:
    """Judge each source on each stack; UsageError where a GPU is unknown."""
    refused = [source for source, _ in steps.refused]
    return tuple(_judge_source(rows, refused.count(rows[0].source)) for rows in _group(steps.rows, _source_and_stack))


def _judge_source(rows: Sequence[MeasuredStep], refused: int) -> SourceJudgement:
    first = rows[0]
    stack = stack_of(first.setup)
    halves: tuple[Sequence[MeasuredStep], Sequence[MeasuredStep]] = ([], rows)
    if first.source in stack.tables:
        halves = split_models(rows)
    used, unused = (compare(part, Calibration()) if part else None for part in halves)
    return SourceJudgement(
        first.source,
        stack.name,
        stack.is_measured,
        refused,
        used,
        unused,
        find_orders(rows),
        _calibrate_by_few(rows) or check_each_by_others(rows),
        _calibrate_by_one(rows),
    )


def split_models(rows: Sequence[MeasuredStep]) -> tuple[list[MeasuredStep], list[MeasuredStep]]:
    """Rows of every second model by size, of each source, and those of the others."""
    keys = sorted({_size(row) for row in rows})
    first = set(keys[::2])
    return [row for row in rows if _size(row) in first], [row for row in rows if _size(row) not in first]


def _size(row: MeasuredStep) -> tuple[int, str]:
    model = row.setup.model
    return model.layers * model.hidden**2, row.source


def compare(rows: Sequence[MeasuredStep], calibration: Calibration) -> Errors:
    """The errors of predictions from a calibration."""
    prediction = calibration.predict([row.setup for row in rows])
    return _summarize(prediction.seconds / _seconds(rows), prediction.error)


def check_each_by_others(rows: Sequence[MeasuredStep]) -> Errors | None:
    """The errors of each row predicted from the others: one left out, of many rows a tenth; None for a single row."""
    if len(rows) == 1:
        return None
    order = np.random.default_rng(_SEED).permutation(len(rows))
    ratios, errors = np.ones(len(rows)), np.zeros(len(rows))
    for fold in np.array_split(order, min(len(rows), _FOLDS)):
        left_out = set(fold.tolist())
        known = tuple(row for index, row in enumerate(rows) if index not in left_out)
        asked = [rows[index] for index in fold]
        prediction = Calibration(known).predict([row.setup for row in asked])
        ratios[fold], errors[fold] = prediction.seconds / _seconds(asked), prediction.error
    return _summarize(ratios, errors)


def find_orders(rows: Sequence[MeasuredStep]) -> Orders | None:
    """Whether the fastest predicted is the fastest measured; None without a group of three."""
    losses = []
    for group in _group(rows, _question):
        if len(group) < _LEAST_GROUP:
            continue
        seconds = _seconds(group)
        fastest = int(np.argmin(Calibration().predict([row.setup for row in group]).seconds))
        losses.append(seconds[fastest] / seconds.min() - 1)
    if not losses:
        return None
    loss = np.array(losses)
    within = float(np.mean(loss <= _FASTEST_IS_WITHIN))
    return Orders(len(loss), within, float(np.median(loss)), float(loss.max()))


def _calibrate_by_few(rows: Sequence[MeasuredStep]) -> Errors | None:
    generator = np.random.default_rng(_SEED)
    parts = []
    for group in _group(rows, _trained_on):
        order = generator.permutation(len(group)) if len(group) > FEW_ROWS else range(0)
        known = tuple(group[index] for index in order[:FEW_ROWS])
        parts.append((known, [group[index] for index in order[FEW_ROWS:]]))
    return _compare_all(parts)


def _calibrate_by_one(rows: Sequence[MeasuredStep]) -> Errors | None:
    """Predict the rows of a model from each row that states its kernels."""
    groups = _group(rows, _trained_on)
    known = [(row, group) for group in groups for row in group if row.terms != UNKNOWN]
    return _compare_all([((row,), [other for other in group if other != row]) for row, group in known])


def _compare_all(parts: Iterable[tuple[tuple[MeasuredStep, ...], Sequence[MeasuredStep]]]) -> Errors | None:
    """The errors of rows, each part after a calibration of its own; None where none is asked for."""
    ratios, errors = [], []
    for known, asked in parts:
        if asked:
            prediction = Calibration(known).predict([row.setup for row in asked])
            ratios.append(prediction.seconds / _seconds(asked))
            errors.append(prediction.error)
    return _summarize(np.concatenate(ratios), np.concatenate(errors)) if ratios else None


def _trained_on(row: MeasuredStep) -> Hashable:
    return row.source, row.setup.gpu, row.setup.model


def _source_and_stack(row: MeasuredStep) -> Hashable:
    return row.source, stack_of(row.setup).name


def _question(row: MeasuredStep) -> Hashable:
    setup = row.setup
    return setup.model, setup.gbs, setup.seq_len, setup.gpu, setup.gpus, setup.dtype


def _group(rows: Iterable[MeasuredStep], key: Callable[[MeasuredStep], Hashable]) -> list[list[MeasuredStep]]:
    groups: dict[Hashable, list[MeasuredStep]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


def _seconds(rows: Sequence[MeasuredStep]) -> Float64:
    return np.array([row.seconds for row in rows])


def _summarize(ratios: Float64, errors: Float64) -> Errors:
    """The errors of predicted over measured seconds; an interval reaches as far down as up, as a factor."""
    far = np.abs(ratios - 1)
    within_5, within_10, within_15 = (float(np.mean(far <= limit)) for limit in _WITHIN)
    covered = float(np.mean(np.abs(np.log(ratios)) <= np.log1p(errors)))
    median, p90 = float(np.median(far)), float(np.quantile(far, 0.9))
    return Errors(len(far), median, p90, within_5, within_10, within_15, float(np.median(ratios - 1)), covered)
