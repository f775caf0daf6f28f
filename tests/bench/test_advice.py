"""The advice: the fastest that fits, the cheapest, and the rows that no other beats."""

from __future__ import annotations

import random
from dataclasses import replace

from perfscope.bench.advice import advice_lines, advise, explain, find_front
from perfscope.bench.rows import Row, sum_up
from perfscope.bench.tables import name_rows
from tests.bench.examples import measurement, variant

GB = 10**9


def row(strategy: str, step_ms: float, memory_gb: float, **figures: object) -> Row:
    plain = measurement(variant(strategy), step_ms, memory=(round(memory_gb * GB),))
    return sum_up([replace(plain, **figures)])[0]  # type: ignore[arg-type]


def test_the_fastest_that_fits_is_not_the_fastest_of_all() -> None:
    rows = [row("ddp", 10, 40), row("fsdp2", 12, 20), row("zero-3", 15, 18)]
    assert advise(rows).fastest is rows[0]
    assert advise(rows, 30 * GB).fastest is rows[1]
    assert advise(rows, 19 * GB).fastest is rows[2]
    assert advise(rows, GB).fastest is None
    assert list(advice_lines(advise(rows, GB), rows, name_rows(rows))) == ["No row was measured that fits."]


def test_the_cheapest_is_by_energy_and_is_left_out_where_energy_is_unknown() -> None:
    rows = [row("ddp", 500, 40, step_j=100.0), row("fsdp2", 600, 20, step_j=80.0), row("tp", 400, 10, step_j=None)]
    assert advise(rows).cheapest is rows[1]
    assert advise(rows[2:]).cheapest is None
    some, all_of_them = (list(advice_lines(advise(those), those, name_rows(those))) for those in (rows, rows[:2]))
    assert any(line.startswith("Least energy among the 2 of 3 rows that have one: fsdp2 x 2, 5 J") for line in some)
    assert any(line.startswith("Least energy: fsdp2 x 2, 5 J") for line in all_of_them)


def test_the_front_is_what_comparing_every_pair_finds() -> None:
    draw = random.Random(3)
    for _ in range(50):
        rows = [row("ddp", draw.randint(1, 9), draw.randint(1, 9)) for _ in range(8)]
        places = [(1 / (each.samples_per_s or 0.0), each.largest_memory_bytes or 0) for each in rows]
        unbeaten = {
            place
            for place in places
            if not any(other != place and other[0] <= place[0] and other[1] <= place[1] for other in places)
        }
        front = list(find_front(rows))
        assert {(1 / (each.samples_per_s or 0.0), each.largest_memory_bytes) for each in front} == unbeaten
        assert front == sorted(front, key=lambda each: -(each.samples_per_s or 0.0))


def test_a_row_that_is_not_shown_to_be_slower_is_named() -> None:
    trainings = [measurement(variant("ddp"), ms, number) for number, ms in enumerate((10.0, 10.2, 10.1))]
    rivals = [measurement(variant("fsdp2"), ms, number) for number, ms in enumerate((10.3, 10.1, 10.2))]
    slow = [measurement(variant("tp"), ms, number) for number, ms in enumerate((20.3, 20.1, 20.2))]
    rows = sum_up([*trainings, *rivals, *slow])
    assert [each.variant.strategy for each in advise(rows).as_fast] == ["fsdp2"]


def test_a_row_that_looks_slower_is_not_said_to_be_as_fast_where_two_trainings_cannot_tell() -> None:
    trainings = [measurement(variant("ddp"), ms, number) for number, ms in enumerate((10.0, 10.1))]
    close = [measurement(variant("fsdp2"), ms, number) for number, ms in enumerate((10.3, 10.1))]
    noisy = [measurement(variant("tp"), ms, number) for number, ms in enumerate((20.0, 30.0))]
    rows = sum_up([*trainings, *close, *noisy])
    lines = list(advice_lines(advise(rows), rows, name_rows(rows)))
    assert "Not shown to be slower: fsdp2 x 2." in lines
    assert "Looked slower, but the trainings are too few or too different to show it: tp x 2 (2.5 times)." in lines


def test_the_reason_names_what_the_step_waits_for() -> None:
    shares = {"compute": 0.6, "exposed_communication": 0.3, "exposed_copy": 0.0, "idle": 0.1}
    rows = [row("single", 20, 40), row("ddp", 10, 44, shares=shares, overlap=0.25, bubble=None)]
    lines = list(advice_lines(advise(rows), rows, name_rows(rows)))
    assert lines[0] == (
        "Fastest: ddp x 2, 1600.0 samples/s (10.0 ms a step): 30 % of its step is waiting for communication; "
        "10 % of its step is an idle GPU; computation hides 25 % of its communication; "
        "its fullest device needs 44.00 GB, 10% more."
    )


def test_the_reason_says_how_memory_differs_from_the_first_row() -> None:
    rows = [row("single", 20, 40), row("ddp", 15, 30), row("fsdp2", 14, 40.1)]
    assert [explain(each, rows[0]).rpartition(", ")[2] for each in rows[1:]] == ["25% less", "as much"]
