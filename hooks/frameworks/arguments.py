"""Finds an argument of a call by its name, wherever a version of the framework puts it."""

from __future__ import annotations

from typing import Any


def parameter_names(function: Any) -> tuple[str, ...]:
    """The names of a function's positional parameters; empty where it is not written in Python."""
    code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
    return () if code is None else tuple(code.co_varnames[: code.co_argcount])


def argument(function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One argument of a call; None where it was not given."""
    if name in kwargs:
        return kwargs[name]
    names = parameter_names(function)
    place = names.index(name) if name in names else len(args)
    return args[place] if place < len(args) else None
