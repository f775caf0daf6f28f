"""What ends a step where several things could."""

from __future__ import annotations

import threading

import pytest

from perfscope.hooks.step_source import StepSource


def ended(events: str) -> str:
    """The events that end a step; each letter is an optimizer that stepped."""
    source, optimizers = StepSource(), {name: object() for name in set(events)}
    return "".join(name if source.on_boundary("optimizer", optimizers[name]) else "." for name in events)


@pytest.mark.parametrize(
    ("events", "steps"),
    [
        ("aaa", "aaa"),
        ("abababab", "a.a.a.a."),
        # A discriminator is stepped five times for each step of the generator: the loop is the generator's.
        ("dddddg" * 5, "ddddd.ddddd.dddddg.....g.....g"),
        # Warm-up with an optimizer of its own.
        ("aaa" + "b" * 6, "aaa..bbbb"),
        # Something rare beside the loop, such as an embedding that is stepped now and then.
        ("a" * 30 + "r" + "a" * 30 + "r" + "a" * 30 + "r" + "a", "a" * 30 + "." + "a" * 30 + "." + "a" * 30 + ".a"),
        # Something irregular beside the loop.
        ("aaaraaraaaaraa", "aaa.aa.aaaa.aa"),
    ],
)
def test_of_several_optimizers_the_one_that_the_loop_is_as_long_as(events: str, steps: str) -> None:
    assert ended(events) == steps


def test_a_framework_is_above_the_optimizers_inside_it() -> None:
    source, optimizer = StepSource(), object()
    assert source.on_boundary("optimizer", optimizer)
    source.arm("megatron_optimizer")
    assert not source.on_boundary("optimizer", optimizer)
    assert source.on_boundary("megatron_optimizer", optimizer)
    source.arm("megatron")
    assert not source.on_boundary("megatron_optimizer", optimizer)
    assert source.on_boundary("megatron", optimizer)


def test_another_thread_ends_no_step() -> None:
    source, optimizer, answers = StepSource(), object(), list[bool]()
    source.set_training_thread()
    thread = threading.Thread(target=lambda: answers.append(source.on_boundary("optimizer", optimizer)))
    thread.start()
    thread.join()
    assert answers == [False]
    assert source.on_boundary("optimizer", optimizer)
