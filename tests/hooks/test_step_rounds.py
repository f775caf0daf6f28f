"""Claims about any sequence of optimizers' steps, and about any training of a kind."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from perfscope.hooks.step_source import LARGEST_ROUND, StepRounds

_NUMBERS = st.integers(1, 4)


def steps(events: Sequence[int], *, finished: dict[int, int] | None = None, built: bool = True) -> tuple[int, ...]:
    """The sizes of all steps.

    Args:
        events: The optimizers.
        finished: The index of the event from which on an optimizer is gone.
        built: All optimizers are built before training.
    """
    index = 0
    rounds = StepRounds(lambda number: index >= (finished or {}).get(number, len(events) + 1))
    sizes: tuple[int, ...] = ()
    unused = set(events) if built else set()
    for index, event in enumerate(events):
        unused.discard(event)
        new = rounds.on_event(event, awaits_others=bool(unused))
        if new:
            unused.clear()
        assert all(size > 0 for size in new)
        sizes += new
        assert sum(sizes) <= index + 1
    return sizes + rounds.finish()


@given(st.lists(_NUMBERS, max_size=200), st.booleans())
def test_no_event_is_in_two_steps(events: list[int], built: bool) -> None:
    sizes = steps(events, built=built)
    assert sum(sizes) <= len(events)
    assert not events or len(set(events)) > 1 or sizes == (1,) * len(events)


@given(st.lists(_NUMBERS, max_size=150))
def test_events_wait_for_a_bounded_time(events: list[int]) -> None:
    rounds = StepRounds(lambda _: False)
    waiting = 0
    for event in events:
        waiting += 1 - sum(rounds.on_event(event))
        assert waiting <= 4 * LARGEST_ROUND


@given(st.integers(2, 8).flatmap(lambda size: st.lists(st.permutations(range(1, size + 1)), min_size=3, max_size=12)))
def test_each_optimizer_once_in_any_order_is_a_step(rounds: list[list[int]]) -> None:
    assert len(steps([event for round_ in rounds for event in round_])) == len(rounds)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.booleans())
def test_of_folds_each_step_counts(lengths: list[int], keeps: bool) -> None:
    """A new optimizer each fold; the one before is gone, or never used again."""
    events = [fold for fold, length in enumerate(lengths) for _ in range(length)]
    finished = {} if keeps else {fold: sum(lengths[: fold + 1]) for fold in range(len(lengths))}
    assert steps(events, finished=finished, built=False) == (1,) * len(events)
