"""What of the forward pass ran again in the backward pass: what activation checkpointing recomputes, from a trace.

A product inside a node of autograd is one of the backward pass, unless autograd tracks it: then it is one of the
forward pass, computed again. A product that launched nothing was saved, not computed, but the last one of a part:
torch's checkpoint begins it and stops there, and it counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfscope.analyzers.tflops.counted_calls import add_up
from perfscope.measures.nesting import Nesting
from perfscope.models.conventions import Checkpointing, Recomputed
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.product_launches import find_launches
from perfscope.tables.products import Launches, ProductCalls, Products, Scope, Scopes
from perfscope.tables.trace import ABSENT, Trace, distinct

IS_ATTENTION = re.compile(r"attention|attn|Attn|fmha|mha_|sage_fwd")
#: Where no operator computes attention.
_PRODUCTS_OF_ATTENTION = {"bmm", "baddbmm"}
#: From this share on all of the layers are recomputed: the products outside of them never are.
_FULL = 0.9
_NODES = (Scope.NODE, Scope.FUNCTION_NODE, Scope.COMPILED_NODE)


class Repeats(NamedTuple):
    """The share of the products of the forward pass that ran again for the backward pass; absent with a reason.

    ``weights`` is of the products with weights, ``attention`` of those of the attention matrix. ``is_cheap``: operators
    that do not multiply were recomputed. ``is_compiled``: compiled graphs do not show the share.
    """

    share: float | None
    weights: float | None = None
    attention: float | None = None
    is_cheap: bool = False
    reason: str = ""
    is_compiled: bool = False

    @property
    def checkpointing(self) -> Checkpointing | None:
        """The kind of checkpointing; absent where the share is."""
        if self.share is None:
            return None
        if self.share > _FULL:
            return Checkpointing.FULL
        return Checkpointing.SELECTIVE if self.share or self.is_cheap else Checkpointing.NONE

    @property
    def recomputed(self) -> Recomputed:
        """What of the layers ran again; all of it with full checkpointing, whose products outside of layers do not."""
        if self.checkpointing is Checkpointing.FULL:
            return Recomputed(1, 1)
        return Recomputed(self.weights or 0.0, self.attention or 0.0)

    def describe(self) -> str:
        """Which shares ran again, where only a part did."""
        if self.checkpointing is not Checkpointing.SELECTIVE:
            return ""
        attention = "" if self.attention is None else f", and of attention {self.attention:.0%}"
        return f": of the products with weights {self.weights or 0:.0%} ran again{attention}"


def largest_repeats(all_repeats: Sequence[Repeats]) -> Repeats | None:
    """Of the rank on which the most ran again; where no rank knows it, of one whose graphs do not show it."""
    known = [repeats for repeats in all_repeats if repeats.share is not None]
    if known:
        return max(known, key=lambda repeats: repeats.share or 0.0)
    return max(all_repeats, key=lambda repeats: repeats.is_compiled, default=None)


def find_repeats(trace: Trace, products: Products) -> Repeats:
    """What of the forward pass ran again."""
    calls = products.calls
    if not len(calls) or calls.is_tracked is None:
        return Repeats(None, reason="the trace shows no product")
    places = _Places(calls, products.scopes)
    if not places.has_nodes:
        return Repeats(None, reason="the trace shows no backward pass")
    launches = find_launches(trace, products)
    names: dict[str, int] = {}
    operator = np.array([names.setdefault(each.operator, len(names)) for each in products.products], np.int64)
    outer = calls.part_of == ABSENT
    repeated = outer & places.is_inside_node & places.is_tracked
    forward = outer & ~places.is_inside_node
    ran = _find_ran(calls, operator[calls.product], launches, forward)
    counted = repeated & (ran | _find_last(places.node, repeated, ran))
    is_attention = np.array([bool(IS_ATTENTION.search(name)) for name in names], np.bool_)
    attention = is_attention[operator[calls.product]]
    if not (attention & forward).any():
        attention = np.array([name in _PRODUCTS_OF_ATTENTION for name in names], np.bool_)[operator[calls.product]]

    def share_of(chosen: Bool) -> float | None:
        of_forward = int((forward & chosen & places.is_tracked).sum())
        untracked = int((forward & chosen).sum()) - of_forward
        of_forward += min(untracked, int((repeated & chosen & places.is_of_function).sum()))
        return int((counted & chosen).sum()) / of_forward if of_forward else None

    share = share_of(outer)
    # Where compiled graphs have most of the products, or hide most of the time of kernels that multiply, they decide.
    in_graphs = 2 * int((forward & places.is_compiled).sum()) > int(forward.sum())
    is_hidden = launches.other_ns > int(launches.multiplying_ns.sum())
    if not share and places.has_compiled_nodes and (in_graphs or is_hidden):
        return Repeats(None, reason="layers ran in compiled graphs, which do not show it", is_compiled=True)
    if share is None or share > 1:
        return Repeats(None, reason="the products of the backward pass cannot be told from those of the forward pass")
    return Repeats(share, share_of(~attention), share_of(attention), places.repeats_cheap)


class _Places:
    """For each call the innermost node of autograd around it, or ABSENT, and whether autograd tracks it.

    ``is_of_function``: this node is one of a function of Python, whose forward pass autograd did not track.
    """

    def __init__(self, calls: ProductCalls, scopes: Scopes) -> None:
        is_cheap = scopes.scope == Scope.CHEAP
        rows = np.flatnonzero(~is_cheap)
        scope, start_ns, thread = scopes.scope[rows], scopes.start_ns[rows], scopes.thread[rows]
        nesting = Nesting(start_ns, scopes.end_ns[rows], thread)
        is_node = np.isin(scope, _NODES)
        self.has_nodes, self.has_compiled_nodes = bool(is_node.any()), bool((scope == Scope.COMPILED_NODE).any())
        # The innermost node of each span, itself included; ABSENT is the last row.
        node_of = np.full(len(rows) + 1, ABSENT, np.int64)
        for row in nesting.order.tolist():  # a span stands behind those around it
            node_of[row] = row if is_node[row] else node_of[nesting.parent[row]]
        around = nesting.innermost(calls.start_ns, calls.thread)
        kind = np.append(scope, ABSENT)
        self.node = node_of[around]
        self.is_inside_node = self.node != ABSENT
        self.is_of_function = np.isin(kind[self.node], (Scope.FUNCTION_NODE, Scope.COMPILED_NODE))
        self.is_compiled = np.isin(kind[around], (Scope.COMPILED, Scope.COMPILED_NODE))
        assert calls.is_tracked is not None
        self.is_tracked = calls.is_tracked | np.isin(kind[around], (Scope.FUNCTION, Scope.COMPILED))
        cheap = nesting.innermost(scopes.start_ns[is_cheap], scopes.thread[is_cheap])
        self.repeats_cheap = bool((node_of[cheap] != ABSENT).any())


def _find_ran(calls: ProductCalls, operator: Int64, launches: Launches, forward: Bool) -> Bool:
    """Which calls launched a kernel or, on a CPU, went on as most do: a mode of Python calls an operator once more."""
    parent = calls.part_of.tolist()
    kernel_ns = add_up(launches.kernel_ns, parent)
    if (kernel_ns[forward] > 0).any():
        return np.asarray((kernel_ns > 0) | launches.is_recorded)
    calls_itself = (calls.part_of != ABSENT) & (operator == operator[calls.part_of])
    depth = add_up(calls_itself.astype(np.int64), parent) - calls_itself
    needed = np.zeros(int(operator.max(initial=0)) + 1, np.int64)
    for number in distinct(operator[forward]):
        needed[number] = np.bincount(depth[forward & (operator == number)]).argmax()
    return np.asarray(depth >= needed[operator])


def _find_last(node: Int64, repeated: Bool, ran: Bool) -> Bool:
    found = np.zeros(len(node), np.bool_)
    rows = np.flatnonzero(repeated)
    _, part = np.unique(node[rows], return_inverse=True)
    parts = int(part.max(initial=-1)) + 1
    skipped = np.bincount(part[~ran[rows]], minlength=parts)
    last = np.full(parts, ABSENT, np.int64)
    np.maximum.at(last, part, rows)
    found[last[skipped == 1]] = True
    return found & ~ran
