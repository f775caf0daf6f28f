"""What ends a step where several things could."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.hooks.step_source import LARGEST_ROUND, StepRounds, StepSource


class Optimizer:
    """Has parameters of its own, or those of another one."""

    def __init__(self, source: StepSource | None = None, like: Optimizer | None = None) -> None:
        self.param_groups: list[dict[str, list[object]]] = [{"params": [object()]}]
        if like is not None:
            self.param_groups = like.param_groups
        if source is not None:
            source.add_optimizer(self)


class Adam(Optimizer):
    """Another class."""


class Training:
    """A loop; each letter is an optimizer, which is built before the loop or when it first steps."""

    def __init__(self, chosen: int | str | None = None) -> None:
        self.source = StepSource(chosen)
        self.optimizers: dict[str, Optimizer] = {}
        self.count = 0
        #: Where a step ended, by the number of events so far; and when windows may begin.
        self.ends: list[int] = []
        self.settled_at: int | None = None
        self._events = 0

    def build(self, names: str) -> None:
        self.optimizers |= {name: Optimizer(self.source) for name in names}

    def delete(self, names: str) -> None:
        for name in names:
            del self.optimizers[name]

    def step(self, names: str, *, continues: bool = False) -> None:
        for name in names:
            if name not in self.optimizers:
                self.build(name)
            self._events += 1
            sizes = self.source.on_boundary("optimizer", self.optimizers[name], continues=continues)
            assert sizes is not None
            self.count += len(sizes)
            if self.settled_at is None and self.source.is_settled:
                self.settled_at = self.count

    def finish(self) -> int:
        self.count += len(self.source.finish())
        return self.count


def train(names: str, built: str = "", chosen: int | str | None = None) -> int:
    training = Training(chosen)
    training.build(built)
    training.step(names)
    return training.finish()


SCRIPTED: dict[str, tuple[str, str, int]] = {
    "one model": ("a" * 9, "a", 9),
    "two models one after the other": ("a" * 7 + "b" * 9, "ab", 16),
    "two models one after the other, built when they train": ("a" * 7 + "b" * 9, "", 16),
    "two models in turn, an epoch each": (("a" * 10 + "b" * 10) * 4, "ab", 80),
    "three models in turn, an epoch each": (("a" * 4 + "b" * 4 + "c" * 4) * 3, "abc", 36),
    "a warm-up with an optimizer of its own": ("aaa" + "b" * 6, "ab", 9),
    "a GAN": ("dg" * 12, "dg", 12),
    "a GAN, 5 steps of the discriminator to one": ("dddddg" * 8, "dg", 8),
    "a GAN, 20 to one": (("d" * 20 + "g") * 6, "dg", 6),
    "a GAN, two steps of the generator to one": ("dgg" * 7, "dg", 7),
    "a GAN that ends within a round": ("dddddg" * 4 + "ddd", "dg", 4),
    "a GAN that trains its discriminator until it is good enough": ("dddgdgddgdddgdddddgdg", "dg", 6),
    "an optimizer a parameter group": ("abcd" * 6, "abcd", 6),
    "an optimizer a parameter group, in any order": ("abccabbcaacbbac", "abc", 5),
    "one optimizer goes on alone": ("ab" * 50 + "a" * 30, "ab", 80),
    "two GANs one after the other": ("ddg" * 9 + "eeh" * 9, "dgeh", 18),
    "an optimizer that never steps": ("a" * 50, "ab", 50),
}


@pytest.mark.parametrize("name", SCRIPTED)
def test_the_count_is_the_true_one(name: str) -> None:
    events, built, count = SCRIPTED[name]
    assert train(events, built) == count


@pytest.mark.parametrize(
    ("events", "built", "count"),
    [("a" * 2000, "ab", 2000), ("a" * 200 + "ab" * 100, "ab", 300), (("a" * 50 + "b") * 5, "ab", 250)],
)
def test_steps_are_counted_while_training_goes_on_where_no_loader_shows_when_they_begin(
    events: str, built: str, count: int
) -> None:
    """Nothing shows that anything was done between two steps, as in a loop that makes its batches itself."""
    training = Training()
    training.build(built)
    training.step(events, continues=True)
    assert abs(training.count - count) <= 2
    assert training.settled_at is not None
    assert training.settled_at <= 100


def test_events_that_wait_at_the_end_are_rounds_where_optimizers_return() -> None:
    assert train("ab" * 8, "abc") == 8


def test_a_plain_optimizer_s_step_before_a_scaler_s_first_one_is_part_of_that_one_s_step() -> None:
    source = StepSource()
    discriminator, generator, scaler = Optimizer(source), Optimizer(source), object()
    sizes: list[int] = []
    for _ in range(3):
        sizes += source.on_boundary("optimizer", discriminator) or ()
        source.arm("grad_scaler")
        sizes += source.on_boundary("grad_scaler", scaler) or ()
    assert sizes == [2, 1, 1]
    assert not source.is_last(generator)


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("size", [2, 100])
def test_an_optimizer_for_each_of_many_parameters(size: int, built: bool) -> None:
    """They step right after each other, in another order each time."""
    training = Training()
    names = "".join(map(chr, range(1000, 1000 + size)))
    training.build(names if built else "")
    for _ in range(9):
        training.step(names[0])
        training.step(names[1:], continues=True)
        names = names[1:] + names[0]
    assert training.finish() == 9


@pytest.mark.parametrize("round_", ["dddddg", "dg", "dgg"])
def test_windows_may_begin_after_the_second_round(round_: str) -> None:
    training = Training()
    training.build("dg")
    training.step(round_ * 4)
    assert training.settled_at == 2


def test_an_optimizer_that_wraps_another_one_is_not_awaited() -> None:
    """Sharpness-aware minimization and schedule-free wrappers hold the parameters of the optimizer that steps."""
    source = StepSource()
    base = Optimizer(source)
    wrapper = Optimizer(source, like=base)
    assert source.on_boundary("optimizer", base) == (1,)
    assert source.is_settled
    del wrapper


def test_no_optimizer_is_kept_alive() -> None:
    training = Training()
    training.build("ab")
    training.step("abab")
    references = [weakref.ref(optimizer) for optimizer in training.optimizers.values()]
    training.delete("ab")
    assert [read() for read in references] == [None, None]


def test_a_fold_that_ends_within_a_round_costs_the_next_one_no_step() -> None:
    training = Training()
    for _ in range(3):
        training.build("dg")
        training.step("dddg" * 7 + "dd")
        training.delete("dg")
    assert training.finish() == 21


@pytest.mark.parametrize("chosen", [None, 2])
def test_a_new_inner_optimizer_each_iteration_takes_the_place_of_the_one_before(chosen: int | None) -> None:
    """Meta-learning: three steps of an optimizer that is built anew, then one of the outer optimizer."""
    source, count = StepSource(chosen), 0
    outer = Adam(source)
    for _ in range(12):
        inner = Optimizer(source)
        for optimizer in (inner, inner, inner, outer):
            count += len(source.on_boundary("optimizer", optimizer) or ())
    assert count + len(source.finish()) == 12


@pytest.mark.parametrize(
    ("chosen", "events", "count"),
    [
        (1, "dddddg" * 8, 40),
        (2, "dddddg" * 8, 8),
        ("every", "dddddg" * 8, 48),
        ("every", "abab", 4),
        (2, "abcabc", 2),
        (3, "abab", 0),
    ],
)
def test_the_user_s_choice_counts(chosen: int | str, events: str, count: int) -> None:
    assert train(events, "", chosen) == count


def test_the_report_is_told_once() -> None:
    training = Training()
    training.build("dg")
    notes = []
    for _ in range(20):
        training.step("dg")
        notes.append(training.source.pop_note())
    told = [note for note in notes if note]
    assert len(told) == 1
    assert "ends with number 2" in told[0]


def test_a_framework_is_above_the_optimizers_inside_it() -> None:
    source, optimizer = StepSource(), Optimizer()
    assert source.on_boundary("optimizer", optimizer)
    source.arm("megatron_optimizer")
    assert source.on_boundary("optimizer", optimizer) is None
    assert source.on_boundary("megatron_optimizer", optimizer)
    source.arm("megatron")
    assert source.on_boundary("megatron_optimizer", optimizer) is None
    assert source.on_boundary("megatron", optimizer)


def test_a_new_scaler_each_epoch_leaves_the_optimizer_inside_it_uncounted() -> None:
    source, optimizer, count = StepSource(), Optimizer(), 0
    for _ in range(3):
        scaler = Optimizer()
        for _ in range(4):
            source.arm("grad_scaler")
            assert source.on_boundary("optimizer", optimizer) is None
            count += len(source.on_boundary("grad_scaler", scaler) or ())
        del scaler
    assert count == 12


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
