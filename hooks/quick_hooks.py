"""What the hooks do in a step like nearly all others: they count, and put one row of numbers into a queue.

Such a quiet step is one of an object that trains alone, far from windows, saves and validations, and no peaks of memory
are due. In it the processor's caches are full of the training's code, so that each function, object and lock that a
hook touches costs up to a microsecond. Each hook here is therefore one method, and all of them share one object. It
holds what the running step has shown so far, and says whether the step is still quiet: at any other moment a hook
calls the guarded method whose place it takes, which takes over what was counted (``hooks/quiet_steps.py``).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from perfscope.hooks.introspection import is_grad_enabled
from perfscope.hooks.quiet_rows import make_line
from perfscope.hooks.timers.host_counters import EACH_READ_MASK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perfscope.hooks.late_writer import QueuedRow
    from perfscope.hooks.record_files import RecordFile
    from perfscope.hooks.timers.exchanges import RawWaits
    from perfscope.hooks.timers.host_counters import HostCounters, RawCounters

#: A step is long where it takes longer than usual by this part of that, as a power of two.
_LONG_SHIFT = 3
#: How far one step moves what is usual, as powers of two: by at most a quarter of it, of which a sixteenth counts.
_LIMIT_SHIFT, _WEIGHT_SHIFT = 2, 4
_IDS = 2  # token ids have a dimension of samples and one of positions
_clock, _get_ident = time.monotonic_ns, threading.get_ident
_SEQUENCES = list, tuple
_NO_NEWS: tuple[int, Mapping[str, Any] | None] = 0, None


def _make_forward(name: str, *, watches_precision: bool) -> Callable[..., Any]:
    """One function for each of both hooks: a call of another one would take as long as the rest."""

    def on_forward(self: QuietSteps, args: Any, kwargs: Any, *, in_training_mode: bool = True, **model: Any) -> Any:
        """In place of the guarded method."""
        began_ns = _clock()
        if (
            not (self.is_on and in_training_mode)
            or self.dead
            or (watches_precision and not self.knows_precision)
            or _get_ident() != self.thread
            or not self.is_grad_enabled()
        ):
            return self.guarded[name](args, kwargs, in_training_mode=in_training_mode, **model)
        try:
            first: Any = args[0] if args and not kwargs else None
            if type(first) is not self.tensor_class:
                first = self.find_input(args, kwargs)
                if type(first) is not self.tensor_class and self.is_traced_alone():
                    return None
            if not self.sign_ns:
                self.sign_ns = self.batch_ns or began_ns
            self.batch_ns = self.batch_wait_ns = 0
            self.has_forward = True
            self.micro_batches += 1
            shape = None if first is None else first.shape
            if shape:
                self.forward_samples += shape[0]
                if len(shape) == _IDS:
                    dtype = first.dtype
                    if dtype is not self.dtype:
                        self.dtype, self.are_ids = dtype, not first.is_floating_point()
                    if self.are_ids:
                        self.forward_tokens += shape[0] * shape[1]
            on_end = self.begin_forward() if self.is_probing else None
        except Exception as error:  # noqa: BLE001 - the hooks' outer edge, as in the guard
            self.fail(error)
            return None
        self.hook_ns += _clock() - began_ns
        return on_end

    return on_forward


class QuietSteps:
    """The steps of a process, and the running one while it is quiet. Times and counts are 0 for what there is not.

    Attributes:
        steps: Completed steps, quiet or not.
        started_ns: When the last one ended.
        hook_ns: Time that the hooks took since then.
        dead: Nothing more is recorded.
        is_on: The running step is quiet so far: what it shows is counted here.
        last: Up to so many completed steps a step may end here.
        alone: Reads the object whose boundaries are steps of their own, and ``name`` is their name.
        thread: The one that trains.
        sign_ns: When the running step first showed that it trains.
        batch_ns: When the first batch was asked for that nothing has used yet, and ``batch_wait_ns`` the wait for it.
        micro_batches: Forward passes; ``forward_samples`` and ``forward_tokens`` entered them.
        loaded_samples: Of data loaders, as ``loaded_tokens``, ``data_wait_ns`` and ``has_loader``.
        optimizer_steps: Of optimizers inside a framework's step; ``has_cleared`` where others cleared gradients.
        has_forward: Whether a model that trains was ever seen here.
        has_news: Whether the thread that writes records has something for the next step's row.
        has_waits: Whether waits for other ranks are timed on the host.
        is_probing: Whether the device is timed in the running step.
        knows_precision: Whether further calls of the model would show nothing new of it.
        usual_ns: How long a quiet step takes; one that takes longer than ``long_ns`` reads the kernel's counters.
        guarded: The guarded methods by their names; the other attributes are functions that the hooks call.
    """

    __slots__ = (
        "advance_probes", "alone", "append", "are_ids", "batch_ns", "batch_wait_ns", "begin_forward", "counters",
        "data_wait_ns", "dead", "dtype", "fail", "file", "find_input", "find_loaded", "forward_samples",
        "forward_tokens", "guarded", "has_cleared", "has_forward", "has_loader", "has_news", "has_waits", "hook_ns",
        "is_grad_enabled", "is_on", "is_probing", "is_traced_alone", "knows_precision", "last", "loaded_samples",
        "loaded_tokens", "long_ns", "micro_batches", "name", "optimizer_steps",
        "read_counters", "reevaluates", "sign_ns", "started_ns", "stepped_class", "steps", "take_news", "take_waits",
        "tensor_class", "thread", "usual_ns",
    )  # fmt: skip
    append: Callable[[QueuedRow], None]
    advance_probes: Callable[[int, bool], bool]
    begin_forward: Callable[[], Callable[[], None] | None]
    counters: HostCounters
    fail: Callable[[Exception], None]
    file: RecordFile
    find_input: Callable[[Any, Any], Any]
    find_loaded: Callable[[Any], Any]
    is_traced_alone: Callable[[], bool]
    read_counters: Callable[[], RawCounters | None]
    reevaluates: Callable[[object], bool]
    take_news: Callable[[], tuple[int, Mapping[str, Any] | None]]
    take_waits: Callable[[], RawWaits | None]

    def __init__(self) -> None:
        self.steps = self.last = self.started_ns = self.hook_ns = self.sign_ns = self.batch_ns = self.batch_wait_ns = 0
        self.micro_batches = self.forward_samples = self.forward_tokens = self.optimizer_steps = 0
        self.loaded_samples = self.loaded_tokens = self.data_wait_ns = self.thread = 0
        self.long_ns = self.usual_ns = 0
        self.dead = self.is_on = self.has_loader = self.has_cleared = self.has_forward = self.has_news = False
        self.has_waits = self.is_probing = self.knows_precision = self.are_ids = False
        self.alone: Callable[[], object] = lambda: None
        self.name: str | None = None
        self.tensor_class: object = None
        self.dtype: object = None
        self.stepped_class: type | None = None
        self.is_grad_enabled: Callable[[], bool] = is_grad_enabled
        self.guarded: Mapping[str, Callable[..., Any]] = {}

    def on_batch_loaded(self, batch: Any, wait_ns: int, now_ns: int | None = None) -> None:
        """In place of the guarded method; a thread that loads ahead adds what is in its batch."""
        began_ns = _clock() if now_ns is None else now_ns
        trains = _get_ident() == self.thread
        if not self.is_on or self.dead or (trains and not self.is_grad_enabled()):
            self.guarded["on_batch_loaded"](batch, wait_ns, now_ns)
            return
        try:
            first = batch[0] if type(batch) in _SEQUENCES and batch else batch
            if type(first) is not self.tensor_class:
                first = self.find_loaded(batch)
            # Also where what enters the model is counted: where several optimizers take turns, the batches decide.
            shape = None if first is None else first.shape
            if shape:
                self.loaded_samples += shape[0]
                if len(shape) == _IDS and not first.is_floating_point():
                    self.loaded_tokens += shape[0] * shape[1]
        except Exception as error:  # noqa: BLE001 - the hooks' outer edge, as in the guard
            self.fail(error)
            return
        if trains:
            if not self.batch_ns:
                self.batch_ns = began_ns - wait_ns
            self.batch_wait_ns += wait_ns
            self.data_wait_ns += wait_ns
            self.has_loader = True
        self.hook_ns += _clock() - began_ns

    on_forward = _make_forward("on_forward", watches_precision=False)
    on_model_call = _make_forward("on_model_call", watches_precision=True)

    def on_gradients_cleared(self, optimizer: object, now_ns: int | None = None) -> None:
        """In place of the guarded method."""
        began_ns = _clock() if now_ns is None else now_ns
        if not self.is_on or self.dead:
            self.guarded["on_gradients_cleared"](optimizer)
            return
        if self.alone() is not optimizer:
            self.has_cleared = True
        self.hook_ns += _clock() - began_ns

    def on_step_begin(self) -> None:
        """In place of the guarded method."""
        began_ns = _clock()
        if not self.is_on or self.dead or _get_ident() != self.thread:
            self.guarded["on_step_begin"]()
            return
        if not self.sign_ns:
            self.sign_ns = self.batch_ns or began_ns
        self.batch_ns = self.batch_wait_ns = 0
        self.hook_ns += _clock() - began_ns

    def on_optimizer_step(self, optimizer: Any, _result: object = None, now_ns: int | None = None) -> None:
        """In place of the guarded method."""
        began_ns = _clock() if now_ns is None else now_ns
        if self.name == "optimizer":
            if not self._end_step("optimizer", optimizer, None, began_ns):
                self.guarded["on_optimizer_step"](optimizer)
            return
        if not (self.is_on and self.last) or self.dead or self.alone() is None or _get_ident() != self.thread:
            self.guarded["on_optimizer_step"](optimizer)
            return
        if type(optimizer) is not self.stepped_class:
            if self.reevaluates(optimizer):
                self.guarded["on_optimizer_step"](optimizer)
                return
            self.stepped_class = type(optimizer)
        self.optimizer_steps += 1
        self.hook_ns += _clock() - began_ns

    def on_scaler_update(self, scaler: Any, *, has_stepped: bool | None) -> None:
        """In place of the guarded method."""
        is_skipped = has_stepped and not self.optimizer_steps
        if is_skipped or not self._end_step("grad_scaler", scaler, None, _clock()):
            self.guarded["on_scaler_update"](scaler, has_stepped=has_stepped)

    def on_step_end(
        self, boundary: str, emitter: object, read: Callable[[], dict[str, Any]] | None = None, **stated: Any
    ) -> None:
        """In place of the guarded method."""
        began_ns = ended_ns = _clock()
        if read is not None:
            try:
                stated = read()
            except Exception as error:  # noqa: BLE001 - the hooks' outer edge, as in the guard
                self.fail(error)
                return
            ended_ns = _clock()
        if not self._end_step(boundary, emitter, stated, ended_ns):
            self.guarded["on_step_end"](boundary, emitter, **stated)
        self.hook_ns += ended_ns - began_ns

    def _end_step(self, boundary: str, emitter: object, stated: Mapping[str, Any] | None, ended_ns: int) -> bool:
        """End a step, and say whether that was done: at any other moment nothing is."""
        if not self.is_on or self.dead or self.steps >= self.last or boundary != self.name:
            return False
        if self.alone() is not emitter or _get_ident() != self.thread:
            return False
        self.steps = step = self.steps + 1
        try:
            had_news, self.has_news = self.has_news, False
            spent_ns, peaks = self.take_news() if had_news else _NO_NEWS
            waits = self.take_waits() if self.has_waits else None
            used = None
            # Where waits are timed on the host, it waits in each step, and what else it did decides who is late.
            if ended_ns - self.started_ns > self.long_ns or waits is not None or not step & EACH_READ_MASK:
                used = self.read_counters()
            if self.is_probing or had_news:
                self.is_probing = self.advance_probes(step, had_news)
        except Exception as error:  # noqa: BLE001 - the hooks' outer edge, as in the guard
            self.fail(error)
            return True
        row = (
            step, ended_ns, boundary, (self.started_ns, self.sign_ns or self.batch_ns or None, self.hook_ns + spent_ns),
            (self.micro_batches, self.forward_samples, self.forward_tokens),
            (self.loaded_samples, self.loaded_tokens, self.data_wait_ns if self.has_loader else None),
            stated, peaks, (used, waits), self.counters,
        )  # fmt: skip
        self.append((self.file, make_line, row))
        self.sign_ns = self.batch_ns = self.batch_wait_ns = 0  # as clear() does
        self.micro_batches = self.forward_samples = self.forward_tokens = self.optimizer_steps = 0
        self.loaded_samples = self.loaded_tokens = self.data_wait_ns = 0
        self.has_loader = self.has_cleared = False
        self.learn_length(ended_ns - self.started_ns)
        self.started_ns = now_ns = _clock()
        self.hook_ns = now_ns - ended_ns
        return True

    def learn_length(self, wall_ns: int) -> None:
        """A step of such a length ended: what is long follows what is usual, to which one step adds little."""
        usual_ns = self.usual_ns or wall_ns
        most_ns, change_ns = usual_ns >> _LIMIT_SHIFT, wall_ns - usual_ns
        change_ns = most_ns if change_ns > most_ns else -most_ns if change_ns < -most_ns else change_ns
        self.usual_ns = usual_ns = usual_ns + (change_ns >> _WEIGHT_SHIFT)
        self.long_ns = usual_ns + (usual_ns >> _LONG_SHIFT)

    def clear(self) -> None:
        """Another step begins, of which nothing was seen yet."""
        self.sign_ns = self.batch_ns = self.batch_wait_ns = 0
        self.micro_batches = self.forward_samples = self.forward_tokens = self.optimizer_steps = 0
        self.loaded_samples = self.loaded_tokens = self.data_wait_ns = 0
        self.has_loader = self.has_cleared = False
