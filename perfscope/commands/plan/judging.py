"""``perfscope plan --calibrate TABLE`` without a model: how far predictions are from a table's own step times."""

from __future__ import annotations

from dataclasses import asdict

from perfscope.analyzers.plan.step_time.judgement import FEW_ROWS, Errors, SourceJudgement, judge
from perfscope.report import Column, Json, Report, Row, Section, percent
from perfscope.tables.step_time import MeasuredSteps
from perfscope.units import format_count

_ERRORS = (
    Column("Rows"),
    Column("Median (%)"),
    Column("90 % below (%)"),
    Column("Within 5 % (%)"),
    Column("Within 10 % (%)"),
    Column("Within 15 % (%)"),
    Column("Bias (%)"),
    Column("In the interval (%)"),
)
_SOURCE = (Column("Source"), Column("Constants of"))


def report_judgement(steps: MeasuredSteps) -> Report:
    """Write how far the predictions of a table's rows are."""
    judged = judge(steps)
    kinds = (("used to fit", "used"), ("not used", "unused"))
    predicted = [
        (one.source, one.stack, kind, *_cells(errors))
        for one in judged
        for kind, name in kinds
        if (errors := getattr(one, name)) is not None
    ]
    calibrated = [(one.source, one.stack, *_cells(one.calibrated)) for one in judged if one.calibrated]
    by_one = [(one.source, one.stack, *_cells(one.by_one)) for one in judged if one.by_one]
    orders = [
        (one.source, one.orders.groups, *map(percent, one.orders[1:])) for one in judged if one.orders is not None
    ]
    refused = [f"{source}: {reason}" for source, reason in steps.refused]
    sections = [
        Section(
            "Predicted steps",
            (*_SOURCE, Column("Rows that were"), *_ERRORS),
            tuple(predicted),
            (
                "Errors are relative to the measured step. Every row that could be read counts.",
                "Used to fit: every second model by size. The interval is made for 90 %.",
            ),
        ),
        Section(
            "Steps predicted after a calibration",
            (*_SOURCE, *_ERRORS),
            tuple(calibrated),
            (
                f"{FEW_ROWS} random rows of each model calibrate; the errors are of its other rows.",
                "Where a source has no more, each row is predicted from its others.",
            ),
        ),
        Section(
            "Steps predicted from one run",
            (*_SOURCE, *_ERRORS),
            tuple(by_one),
            ("Each run whose kernels are known calibrates alone; the errors are of all other rows of its model.",),
        ),
        Section(
            "Orders",
            (
                Column("Source"),
                Column("Groups"),
                Column("Fastest within 5 % (%)"),
                Column("Median loss (%)"),
                Column("Worst loss (%)"),
            ),
            tuple(orders),
            (
                "A group is three or more configurations of one model, batch, sequence, GPU and number of GPUs.",
                "The loss is how much longer the fastest predicted one takes than the fastest measured one.",
            ),
        ),
        Section("Refused rows", notes=(*refused, f"{len(refused)} rows of {len(refused) + len(steps.rows)}.")),
    ]
    data: dict[str, Json] = {
        "schema": "perfscope/predictions/1",
        "sources": [_data(one) for one in judged],
        "refused": refused,
    }
    return Report(f"{format_count(len(steps.rows), 'measured step')} beside their predictions", data, tuple(sections))


def _cells(errors: Errors) -> Row:
    return (errors.rows, *map(percent, errors[1:]))


def _data(one: SourceJudgement) -> dict[str, Json]:
    parts = ("used", "unused", "orders", "calibrated", "by_one")
    return asdict(one) | {name: part._asdict() if (part := getattr(one, name)) is not None else None for name in parts}
