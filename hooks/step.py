"""What a process's running step has shown so far: one object into which all hooks write.

Each function, object and lock that a hook touches costs up to a microsecond: the training evicts it from the caches.
"""

from __future__ import annotations

import sys
from collections import UserDict
from typing import TYPE_CHECKING, Any, NamedTuple

from perfscope.hooks.introspection import is_grad_enabled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Token ids have a dimension of samples and one of positions.
DIMENSIONS_OF_IDS = 2
#: Levels of sequences, mappings and objects around a value that are looked into.
DEEPEST = 2
#: A step is long where it takes longer than usual by this part of that, as a power of two.
_LONG_SHIFT = 3
#: How far one step moves what is usual, as powers of two: by at most a quarter of it, of which a sixteenth counts.
_LIMIT_SHIFT, _WEIGHT_SHIFT = 2, 4
_SEQUENCES = (list, tuple)


class BatchWork(NamedTuple):
    """Samples that went in, and tokens where the input is integers of two dimensions."""

    samples: int = 0
    tokens: int = 0

    def with_batch(self, batch: Any) -> BatchWork:
        """The sum with a batch, which is its token ids, else its first tensor; None where there is none."""
        shape = () if batch is None or batch.is_nested else batch.shape
        if not shape:
            return self
        are_ids = len(shape) == DIMENSIONS_OF_IDS and not batch.is_floating_point()
        return BatchWork(self.samples + shape[0], self.tokens + (shape[0] * shape[1] if are_ids else 0))


class StepAccumulator:
    """The steps of a process, and the running one. Times and counts are 0 for what there is not.

    Attributes:
        started_ns: When the last one ended, or the first one began.
        hook_ns: Time that the hooks took since then.
        next_event: The next step at whose end anything special may happen; 0 where that is the running one.
        sign_ns: When the running step first showed that it trains.
        batch_ns: When the first batch was asked for that nothing has used yet, and ``batch_wait_ns`` the wait for it.
        micro_batches: Forward passes of a wrapped model; ``forward_samples`` and ``forward_tokens`` entered them.
        pipelined: What entered a pipeline, to be cut into micro-batches; None without one.
        passes: The micro-batches that a pipeline ran forward, as far as they were looked at.
        loaded_samples: Samples that data loaders handed out, and ``loaded_tokens`` their tokens.
        data_wait_ns: Time spent waiting for data loaders; ``has_loader`` where one was used.
        reevaluates: The optimizer runs the model forward several times on the same batch, as L-BFGS does.
        has_cleared: Gradients were cleared, or an optimizer was built: another update begins.
        usual_ns: How long a step takes; one that takes longer than ``long_ns`` reads the kernel's counters.
        is_grad_enabled: torch's function; ``tensor_class`` its class, and ``dtype`` the type that was seen last.
    """

    __slots__ = (
        "are_ids", "batch_ns", "batch_wait_ns", "data_wait_ns", "dead", "dtype", "forward_samples", "forward_tokens",
        "has_cleared", "has_loader", "has_news", "has_training_mode", "hook_ns", "is_grad_enabled", "is_in_call",
        "loaded_samples", "loaded_tokens", "long_ns", "micro_batches", "next_event", "optimizer_steps", "passes",
        "pipelined", "reevaluates", "sign_ns", "started_ns", "steps", "tensor_class", "usual_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.steps = self.started_ns = self.hook_ns = self.next_event = 0
        self.long_ns = self.usual_ns = 0
        self.dead = self.is_in_call = self.has_training_mode = self.has_news = self.are_ids = False
        self.is_grad_enabled: Callable[[], bool] = is_grad_enabled
        self.tensor_class: object = None
        self.dtype: object = None
        self.clear()

    def clear(self) -> None:
        """Another step begins, of which nothing was seen yet."""
        self.sign_ns = self.batch_ns = self.batch_wait_ns = 0
        self.micro_batches = self.forward_samples = self.forward_tokens = self.optimizer_steps = 0
        self.loaded_samples = self.loaded_tokens = self.data_wait_ns = 0
        self.has_loader = self.has_cleared = self.reevaluates = False
        self.pipelined: BatchWork | None = None
        self.passes: set[int] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether anything was seen that an update begins with."""
        has_pipelined = self.pipelined is not None and self.pipelined.samples > 0
        return bool(self.has_cleared or self.has_loader or self.micro_batches or self.passes or has_pipelined)

    def add_forward(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Count one micro-batch by its token ids, else by the first tensor among the inputs."""
        first: Any = args[0] if args and not kwargs else None
        if type(first) is not self.tensor_class:
            first = find_tensor((kwargs.get("input_ids"), args, kwargs))
        self.micro_batches += 1
        shape = None if first is None or first.is_nested else first.shape
        if shape:
            self.forward_samples += shape[0]
            if len(shape) == DIMENSIONS_OF_IDS:
                dtype = first.dtype
                if dtype is not self.dtype:
                    self.dtype, self.are_ids = dtype, not first.is_floating_point()
                if self.are_ids:
                    self.forward_tokens += shape[0] * shape[1]

    def add_wait(self, wait_ns: int) -> None:
        """Training waited for a data loader."""
        self.has_loader = True
        self.data_wait_ns += wait_ns

    def add_batch(self, batch: Any) -> None:
        """Count a batch of a data loader, in the same way."""
        first = batch[0] if type(batch) in _SEQUENCES and batch else batch
        if type(first) is not self.tensor_class:
            first = find_tensor((entry(batch, "input_ids"), batch))
        shape = None if first is None or first.is_nested else first.shape
        if shape:
            self.loaded_samples += shape[0]
            if len(shape) == DIMENSIONS_OF_IDS and not first.is_floating_point():
                self.loaded_tokens += shape[0] * shape[1]

    def learn_length(self, wall_ns: int) -> None:
        """A step of such a length ended: what is long follows what is usual, to which one step adds little."""
        usual_ns = self.usual_ns or wall_ns
        most_ns, change_ns = usual_ns >> _LIMIT_SHIFT, wall_ns - usual_ns
        change_ns = most_ns if change_ns > most_ns else -most_ns if change_ns < -most_ns else change_ns
        self.usual_ns = usual_ns = usual_ns + (change_ns >> _WEIGHT_SHIFT)
        self.long_ns = usual_ns + (usual_ns >> _LONG_SHIFT)


def find_tensor(value: Any, depth: int = DEEPEST) -> Any:
    """The first tensor among lists, tuples and mappings inside each other, or its outline; None where there is none."""
    torch = sys.modules["torch"]
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        return value if kind is torch.Tensor else outline(value)
    if depth < 0:
        return None
    for inner in elements(value):
        first = find_tensor(inner, depth - 1)
        if first is not None:
            return first
    return None


class Outline(NamedTuple):
    """What is counted of a tensor whose class may have operators of its own, read without calling one."""

    shape: Any
    dtype: Any
    is_nested: bool
    is_float: bool

    def is_floating_point(self) -> bool:
        """As the tensor's method."""
        return self.is_float


def outline(tensor: Any) -> Outline:
    """The outline of a tensor."""
    with sys.modules["torch"]._C.DisableTorchFunction():
        return Outline(tensor.shape, tensor.dtype, tensor.is_nested, tensor.is_floating_point())


def as_dict(value: object) -> dict[Any, Any]:
    """What a dictionary or a ``UserDict`` holds, to be read by methods of ``dict`` alone; empty for anything else.

    A class of the script may override every method, and load what is asked for: none is called.
    """
    if issubclass(type(value), UserDict):
        value = object.__getattribute__(value, "__dict__").get("data")
    return value if issubclass(type(value), dict) else {}  # type: ignore[return-value]


def entry(batch: object, name: str) -> Any:
    """What a batch holds under a name; None where it holds nothing or is no mapping."""
    return dict.get(as_dict(batch), name)


def elements(value: Any) -> Iterable[Any]:
    """What a list, a tuple or a mapping holds, read in the same way; nothing for anything else."""
    for kind in _SEQUENCES:
        if issubclass(type(value), kind):
            return kind.__iter__(value)
    return dict.values(as_dict(value))
