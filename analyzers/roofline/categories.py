"""Kinds of operators, by their names."""

from __future__ import annotations

import re

from perfscope.analyzers.roofline.measurement import NO_OPERATOR, OperatorWork

OTHER = "other"
#: The first pattern that a name has decides.
_CATEGORIES = (
    ("no operator", re.compile(rf"^{re.escape(NO_OPERATOR)}$")),
    ("fused (Triton)", re.compile(r"^triton")),
    ("optimizer", re.compile(r"^_fused_(?:adam|adamw|sgd|adagrad)|^_foreach_(?!copy|zero)|(?i:lamb|muon)")),
    ("convolution", re.compile(r"conv")),
    ("attention", re.compile(r"attention|attn|fmha|mha_")),
    ("matrix product", re.compile(r"mm\w*$|gemm|linear|matmul|experts")),
    ("norm", re.compile(r"norm")),
    ("softmax and loss", re.compile(r"softmax|nll_loss|cross_entropy|logsumexp|mse_loss|loss")),
    ("embedding and indexing", re.compile(r"embedding|index|gather|scatter|topk|sort|masked|one_hot|unique")),
    ("copy and layout", re.compile(r"copy|clone|^cat$|^stack|contiguous|transpose|permute|^fill|^zero|empty|pad")),
    ("random", re.compile(r"dropout|bernoulli|normal_|uniform_|rand")),
    ("reduction", re.compile(r"^(?:sum|mean|max|min|amax|amin|prod|var|std|any|all|argmax|argmin|cumsum|count)")),
    ("pooling", re.compile(r"pool|upsample|interpolate")),
    (
        "elementwise",
        re.compile(
            r"^(?:add|sub|rsub|mul|div|pow|sqrt|rsqrt|exp|log|neg|abs|sigmoid|tanh|silu|gelu|relu|threshold|clamp|where|"
            r"maximum|minimum|sin|cos|reciprocal|lerp|addc|eq|ne|lt|le|gt|ge|isnan|isinf|logical|bitwise|triu|tril|arange)"
        ),
    ),
)  # fmt: skip


def categorize(work: OperatorWork) -> str:
    """The kind of an operator.

    >>> work = OperatorWork("native_layer_norm", "", "", 1, 1, 1, 0, None, None)
    >>> categorize(work)
    'norm'
    """
    if work.moved_over_link:
        return "communication"
    return next((name for name, pattern in _CATEGORIES if pattern.search(work.operator)), OTHER)
