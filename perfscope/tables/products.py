"""The operators of a trace that multiply, with their inputs, and where autograd's backward passes are."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from msgspec import Struct

from perfscope.constants import NS_PER_US
from perfscope.tables.columns import Bool, Int64

#: Times of older exporters are rounded to a quarter of a microsecond.
ROUNDING_NS = NS_PER_US // 2


class Product(Struct, frozen=True, array_like=True):
    """An operator that multiplies, with its inputs.

    Attributes:
        operator: Its name without ``aten::``.
        shapes: The shapes of its inputs, empty for an input that is no tensor; none where they are not stated.
        elements: The types of its inputs' elements, as the profiler names them.
        values: Its inputs that are numbers, as they are written; none where they are not needed.
        of_forward: It is a backward pass, and these are the inputs of its forward pass.
    """

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    elements: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    of_forward: bool = False


class ProductCalls(Struct, frozen=True, eq=False):
    """Calls of products; a call that contains others stands before them.

    Attributes:
        product: Index into ``Products.products``.
        parent: The row of the innermost call around it, or ABSENT.
        start_ns, end_ns: When it began and ended, on the trace's clock.
        thread: The thread, or ABSENT where it has no number.
        whole: The row of the call that it is a part of, or ABSENT. It is ``parent``, except for a forward pass that is
            repeated inside a backward pass: its products are not the backward pass's. Absent where there are none.
        is_tracked: Whether autograd tracks the call, so that a backward pass follows; absent where that is not known.
    """

    product: Int64
    parent: Int64
    start_ns: Int64
    end_ns: Int64
    thread: Int64
    whole: Int64 | None = None
    is_tracked: Bool | None = None

    @property
    def part_of(self) -> Int64:
        """``whole``, or ``parent`` where that is absent."""
        return self.parent if self.whole is None else self.whole

    def __len__(self) -> int:
        return len(self.product)


class Scope(IntEnum):
    """What a span of a thread is to autograd.

    Attributes:
        NODE: A node of the backward pass.
        FUNCTION_NODE: A node of a function that Python defines, such as that of reentrant checkpoints.
        COMPILED_NODE: The backward pass of a graph that torch.compile made.
        FUNCTION: The forward pass of a function that Python defines: autograd tracks nothing inside it.
        COMPILED: The forward pass of a graph that torch.compile made.
        CHEAP: An operator that does not multiply and is often recomputed: an activation, a softmax, a norm.
    """

    NODE = 0
    FUNCTION_NODE = 1
    COMPILED_NODE = 2
    FUNCTION = 3
    COMPILED = 4
    CHEAP = 5


class Scopes(Struct, frozen=True, eq=False):
    """Spans of threads that tell forward passes, backward passes and what is computed again.

    Attributes:
        scope: A value of Scope; FUNCTION, COMPILED and CHEAP where autograd tracks them.
        start_ns, end_ns: When each began and ended, on the trace's clock.
        thread: The thread, or ABSENT where it has no number.
    """

    scope: Int64
    start_ns: Int64
    end_ns: Int64
    thread: Int64

    def __len__(self) -> int:
        return len(self.scope)


class Launches(Struct, frozen=True, eq=False):
    """What the calls of products launched, and when they ran.

    Attributes:
        kernel_ns: Device time of the computing kernels that each call launched, those of calls inside it left out.
        multiplying_ns: The part of it in kernels whose names say that they multiply.
        is_recorded: Which calls a graph recorded; they ran nothing.
        other_ns: Device time of kernels that multiply and that none of these launched, but something in the trace did.
        replays_ns: Device time of the kernels that multiply in them; part of ``other_ns``.
    """

    kernel_ns: Int64
    multiplying_ns: Int64
    is_recorded: Bool
    other_ns: int
    replays: int
    replays_ns: int


class Products(Struct, frozen=True):
    """All products of a trace.

    Attributes:
        products: Each distinct one once.
        scopes: Where autograd's backward passes are.
        steps: How many training steps they are of; absent where they are of the trace's own steps.
        launches: What the calls launched, where they are of another window than the trace's own; absent else.
    """

    products: Sequence[Product]
    calls: ProductCalls
    scopes: Scopes
    steps: int | None = None
    launches: Launches | None = None
