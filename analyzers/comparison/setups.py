"""Whether two sides trained the same: what differs so that a comparison of steps means nothing, and what may differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfscope.analyzers.comparison.side import Setup, Side
from perfscope.report import Json
from perfscope.units import format_parameters

#: Sequences of many lengths make the tokens of a step vary.
_SAME_TOKENS = 0.01
_DIMENSIONS = ("layers", "hidden size", "vocabulary")


@dataclass(frozen=True, slots=True)
class SetupDifference:
    """A fact that is not the same on both sides.

    Attributes:
        fact: What differs.
        a, b: What it is.
        forbids: Whether steps are not comparable with it.
    """

    fact: str
    a: str
    b: str
    forbids: bool

    def data(self) -> dict[str, Json]:
        """One entry of ``setup.differences``."""
        return {"fact": self.fact, "a": self.a, "b": self.b, "forbids": self.forbids}

    def sentence(self) -> str:
        """It in words."""
        return f"different {self.fact}: {self.a} against {self.b}"


def compare_setups(a: Setup, b: Setup) -> tuple[SetupDifference, ...]:
    """What differs, of what is known of both sides."""
    return (*_model(a, b), *_batch(a, b), *_facts(a, b), *_versions(a, b))


def list_unknown(a: Side, b: Side) -> tuple[str, ...]:
    """The facts that must be equal and that a side does not state."""
    facts = {"model": "parameters", "batch": "samples", "GPU count": "gpus"}
    unknown = {
        side.name: [
            fact
            for fact, name in facts.items()
            if getattr(side.setup, name) is None and not (fact == "batch" and side.setup.tokens is not None)
        ]
        for side in (a, b)
    }
    return tuple(
        f"{name} does not state its {', '.join(missing)}: that it is the same on both sides is not checked."
        for name, missing in unknown.items()
        if missing
    )


def work_of(a: Setup, b: Setup) -> tuple[str, float, float] | None:
    """Tokens of a step on both sides, or samples, with their unit; None where neither is known of both."""
    if a.tokens and b.tokens:
        return "tokens", a.tokens, b.tokens
    if a.samples and b.samples:
        return "samples", a.samples, b.samples
    return None


def _model(a: Setup, b: Setup) -> Iterator[SetupDifference]:
    if a.parameters is not None and b.parameters is not None and a.parameters != b.parameters:
        words = [format_parameters(count) for count in (a.parameters, b.parameters)]
        if words[0] == words[1]:
            words = [f"{count:,}" for count in (a.parameters, b.parameters)]
        yield SetupDifference("model", f"{words[0]} parameters", f"{words[1]} parameters", forbids=True)
    elif a.dimensions is not None and b.dimensions is not None and a.dimensions != b.dimensions:
        words = [
            ", ".join(f"{count:,} {name}" for count, name in zip(dimensions, _DIMENSIONS, strict=True))
            for dimensions in (a.dimensions, b.dimensions)
        ]
        yield SetupDifference("model", words[0], words[1], forbids=True)


def _batch(a: Setup, b: Setup) -> Iterator[SetupDifference]:
    if a.samples and b.samples and abs(a.samples / b.samples - 1) > _SAME_TOKENS:
        yield SetupDifference("batch", f"{a.samples:g} samples a step", f"{b.samples:g} samples a step", forbids=True)
    elif a.tokens and b.tokens and abs(a.tokens / b.tokens - 1) > _SAME_TOKENS:
        yield SetupDifference("batch", f"{a.tokens:,.0f} tokens a step", f"{b.tokens:,.0f} tokens a step", forbids=True)


def _facts(a: Setup, b: Setup) -> Iterator[SetupDifference]:
    if a.gpus is not None and b.gpus is not None and a.gpus != b.gpus:
        yield SetupDifference("GPU count", str(a.gpus), str(b.gpus), forbids=True)
    for fact, first, second in (
        ("device", a.device, b.device),
        ("data type", a.dtype, b.dtype),
        ("model class", a.model, b.model),
    ):
        if first is not None and second is not None and first != second:
            yield SetupDifference(fact, first, second, forbids=False)


def _versions(a: Setup, b: Setup) -> Iterator[SetupDifference]:
    for package in sorted({*a.versions, *b.versions}):
        first, second = a.versions.get(package), b.versions.get(package)
        if first != second and a.versions and b.versions:
            yield SetupDifference(f"version of {package}", first or "not stated", second or "not stated", forbids=False)
