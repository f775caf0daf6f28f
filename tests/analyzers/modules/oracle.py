"""The owner of each device event by a plain walk over the JSON of a trace: slow, and without perfscope's tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Event = dict[str, Any]
#: (path of a module or name of an owner, phase or ""), and its nanoseconds.
Totals = Counter[tuple[str, str]]

NODE, MODULE, REGION = "autograd::engine::evaluate_function: ", "nn.Module: ", "Torch-Compiled Region: "
FSDP = re.compile(r"^FSDP::\w+(?: \((.*)\)| for (\S+))?$")
COMMUNICATES = re.compile(r"nccl", re.IGNORECASE)
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def _ns(event: Event, key: str) -> int:
    return round(float(event[key]) * 1000)


def walk(events: Sequence[Event], threads: Mapping[int, int], root: str) -> Totals:
    """Time by module and phase, or owner, of the marked steps.

    Args:
        events: The events of a trace.
        threads: The thread behind each number of a forward thread.
        root: The outermost module, to which FSDP's marks without a name belong.
    """
    host = [event for event in events if event.get("ph") == "X" and event["cat"] not in DEVICE]
    ranges = [event for event in host if event["cat"] in ("cpu_op", "user_annotation")]
    calls = {
        event["args"]["correlation"]: event
        for event in reversed(host)
        if event["cat"] in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    stacks: dict[int, list[Event]] = {}
    made: dict[tuple[int, int], str | None] = {}
    before: dict[int, str | None] = {}
    answers: dict[int, tuple[str | None, str, bool, list[Event]]] = {}
    launches = [(_ns(call, "ts"), 1, call) for call in calls.values()]
    begins = [(_ns(event, "ts"), 0, event) for event in ranges]
    order = sorted(begins + launches, key=lambda item: (item[0], item[1], -_ns(item[2], "dur")))
    for moment, is_launch, event in order:
        thread = event["tid"]
        stack = [outer for outer in stacks.get(thread, []) if _ns(outer, "ts") + _ns(outer, "dur") > moment]
        stacks[thread] = stack
        if is_launch:
            module, phase, is_numberless = _place(stack, root)
            answers[event["args"]["correlation"]] = module, phase, is_numberless, list(stack)
            continue
        arguments = event.get("args", {})
        if event["name"].startswith(NODE):
            if "Sequence number" not in arguments:
                arguments |= _function_inside(event, ranges)
            number = arguments.get("Sequence number")
            if number is None:
                event["module"] = before.get(thread)
            else:
                forward = threads[arguments.get("Fwd thread id", 1)]
                earlier = number if (forward, number) in made else _number_before(made, forward, number)
                event["module"] = before[thread] = made.get((forward, earlier))
        elif _is_forward(event):
            made[thread, arguments["Sequence number"]] = _place(stack, root)[0]
        stack.append(event)
    return _add_up(events, answers)


def _number_before(made: Mapping[tuple[int, int], str | None], thread: int, number: int) -> int:
    """The number of the operator that made a node with a later number than its own, its second or third one."""
    return max((earlier for of, earlier in made if of == thread and earlier < number), default=-1)


def _function_inside(node: Event, ranges: Sequence[Event]) -> dict[str, int]:
    """The numbers of the function that a node without numbers calls."""
    name, start, end = node["name"].removeprefix(NODE), _ns(node, "ts"), _ns(node, "ts") + _ns(node, "dur")
    for event in ranges:
        if event["name"] == name and event["tid"] == node["tid"] and start <= _ns(event, "ts") < end:
            numbers = event.get("args", {})
            return {key: numbers[key] for key in ("Sequence number", "Fwd thread id") if key in numbers}
    return {}


def _is_forward(event: Event) -> bool:
    """Whether an operator makes, or may make, a node of autograd."""
    arguments = event.get("args", {})
    is_function = re.search(r"Backward\d*$", event["name"])
    return "Sequence number" in arguments and not arguments.get("Fwd thread id") and not is_function


def _place(stack: Sequence[Event], root: str) -> tuple[str | None, str, bool]:
    """The module and the phase of what is launched inside some ranges, the outermost first."""
    module: str | None = None
    phase, is_numberless, in_node = "forward", False, False
    for event in stack:
        name, arguments = event["name"], event.get("args", {})
        sharding = FSDP.match(name) if name != "FSDP::cast_forward_inputs" else None
        if name.startswith(NODE):
            module, phase, in_node = event["module"], "backward", True
            is_numberless = "Sequence number" not in arguments
        elif name == MODULE + "GraphModule" and any("CompiledFunctionBackward" in outer["name"] for outer in stack):
            phase, is_numberless = "backward", False
        elif name.startswith(MODULE):
            module = name.removeprefix(MODULE)
            phase, is_numberless = "recomputation" if in_node else "forward", False
        elif name.startswith(REGION):
            module = f"{module or ''}::compiled {name.removeprefix(REGION)}"
            phase, is_numberless = "recomputation" if in_node else "forward", False
        elif sharding:
            named = sharding[1] or sharding[2]
            module = named or module or root
            phase, is_numberless = "communication", False
        elif in_node and phase == "backward" and _is_forward(event):
            phase = "recomputation"
    return module, phase, is_numberless


def _add_up(events: Sequence[Event], answers: Mapping[int, tuple[str | None, str, bool, list[Event]]]) -> Totals:
    totals: Totals = Counter()
    steps = [event for event in events if event.get("name", "").startswith("ProfilerStep#") and event["ph"] == "X"]
    steps = [event for event in steps if event["cat"] == "user_annotation"]
    for event in events:
        if event.get("cat") not in DEVICE or event.get("ph") != "X":
            continue
        answer = answers.get(event["args"].get("correlation", -1))
        if answer is None:
            if not steps:
                totals["NOT_LAUNCHED", ""] += _ns(event, "dur")
            continue
        module, phase, is_numberless, stack = answer
        if steps and not any(outer["name"].startswith("ProfilerStep#") for outer in stack):
            moment = _moment(events, event)
            if not any(_ns(step, "ts") <= moment < _ns(step, "ts") + _ns(step, "dur") for step in steps):
                continue
        communicates = event["cat"] == "kernel" and bool(COMMUNICATES.search(event["name"]))
        optimizes = any(outer["name"].startswith("Optimizer.") for outer in stack)
        if communicates and is_numberless:
            module = None
        if module is not None:
            phase = "communication" if communicates else "optimizer" if optimizes else phase
            totals[module, phase] += _ns(event, "dur")
        elif communicates:
            totals["COMMUNICATION", ""] += _ns(event, "dur")
        elif optimizes:
            totals["OPTIMIZER", ""] += _ns(event, "dur")
        elif any(outer["name"].startswith("enumerate(DataLoader)") for outer in stack):
            totals["DATA", ""] += _ns(event, "dur")
        else:
            totals["COPIES" if event["cat"] != "kernel" else "OUTSIDE", ""] += _ns(event, "dur")
    return totals


_CALLS: dict[int, dict[int, Event]] = {}


def _moment(events: Sequence[Event], event: Event) -> int:
    """When a device event was launched."""
    calls = _CALLS.setdefault(
        id(events),
        {
            call["args"]["correlation"]: call
            for call in reversed(events)
            if call.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in call.get("args", {})
        },
    )
    return _ns(calls[event["args"]["correlation"]], "ts")
