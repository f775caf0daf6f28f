"""The report on traces of other projects and on damaged ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from perfscope.constants import NS_PER_MS

_OUTCOMES = ("exact", "differing", "JAX", "no trace of torch.profiler")
#: Tools count in microseconds, and round.
_AGREES_US = 1.0
#: Smaller files are of toys, and those elsewhere are made.
_SMALLEST_GFLOP, _RECORDED = 100, ("tests/traces/", "tests/data/", "tb_plugin/", "et_replay/", "train")
_PEERS = {"hta": "HTA 0.5.0", "tracelens": "TraceLens 0.1.0 (171dd74)"}
#: What a peer's answer is the idle time of, where that is not the work of the device.
_PARTS = {
    "early": "Last step",
    "launched": "Launched",
    "calls": "Calls",
    "without_fills": "Fills",
    "doubles": "Doubles",
}
_INTRODUCTION = """\
# Traces of other projects, and damaged ones

The test traces of other projects, and traces that people left in public repositories, in all versions of their
histories, each content once (of particle_transformer every 45th of 500); files of 4 MiB and more are not in the copies
of the repositories that were used. Each is read by perfscope and by the json module, which parses the whole file:
names, times and correlations of all kernels, copies, calls, annotations and operators are compared, and so are the
window and the idle time of each device, in all and in each marked step, with sums over the events in integers.
"""
_NO_TRACE = """\
JAX is what it says: profiles in XPlane, read for what ran on devices, and compared with a second, slow reading of the
wire format: devices, streams, names, times and correlations. Of Ascend (msinsight) compute, communication and exposed
communication are compared with the intervals that torch_npu's profiler adds to its trace, `Overlap Analysis`,
to the rounding of each. What is no trace of torch.profiler is refused with a sentence: traces of rocprof, of IBM's AIU,
of eBPF, a profile of a TPU that was stored as text, execution traces, settings, expected results.
"""
_HALVES = """
A script of TraceLens has written these files again, with times of more than three decimals: where such a time lies half
a nanosecond between two, the one is rounded up and the other down. Neither is wrong, and no idle time differs.
"""
_PEERS_TEXT = """\
## Beside HTA and TraceLens

The idle time of the device, within one microsecond of the sum over its events, of the files of at most 2.5 MB with one
device of the first six projects to be compared. It does not depend on which kernels a tool takes for communication.
Both peers ran with their default settings, HTA without its rounding of nanoseconds.
"""
_REASONS = """\
The other columns are answers that are those of other events, to a microsecond, by the parse with the json module; the
work of a device is what perfscope takes, kernels, copies and fills:

- *Last step*: of what was launched before the last marked step, which HTA leaves out unless it is asked not to.
- *Launched*: of the events alone whose launch is in the trace, without what still ran from before it.
- *Calls*: of every event that names a stream. HTA takes calls of the host that name one for work of the device, and
  waits (`cuda_sync`, MTIA's `event_wait`), which last while nothing runs.
- *Fills*: of launched kernels and copies. TraceLens leaves out fills of memory, which the device does run.
- *Doubles*: of times as binary fractions. Microseconds since 1970 are then rounded to quarters.

Both fail on a bare list of events; TraceLens finds no GPU events in files most of which are from before torch 1.10,
which names categories otherwise. Its last answer is, to 0.2 %, that of kernels alone which operators launched, without
the 5,046 nodes of graphs, copies and fills: the device is busy in the rest, too.
"""
_LATE = """
## Who was late

The eight ranks of a DLRM (`dlrm_kineto`, of param) run eight collectives in the one step of their traces, of which the
profiler states nothing but the kernels' names. The rank with the shortest kernel came last; the others waited for as
long as theirs took longer (ns, `fixtures/benchmarks/dlrm-collectives.json`):

"""
_LATE_TEXT = """
*Caused* is the mean over the other ranks, added up over what a rank came last in: what perfscope answers. The mean
over all ranks, with the rank that came last and waited for nobody, is lower by an eighth, and of the exchanges alone it
is {exchanges:.2f} ms for rank 7. Which rank was late, all three say.
"""
_OPERATIONS = """\
## Operations

Files with shapes and at least 100 GFLOP, as perfscope counts them; those of launched graphs that the same file records
are in it. *Counted* is the share of the time of kernels that multiply in what is counted; below 95 % no MFU is drawn.
Graphs that were recorded before the trace do not state what they run; `vllm::moe_forward` states neither the width of
its experts nor how many a token is sent to.
"""
_MASK = """\
`ddp_resnet18_no_pool` has 27,864 GFLOP, and `resnet_act_checkpoint` 428, where the gradient of the image is counted,
which the first convolution's mask (`[False, True, False]`) says was not computed. The capture of `xdit_flux.1` has
5,480 GFLOP outside of its graph, whose recording runs nothing; the graph was then launched once.
"""
_DAMAGE = """\
## Damage

Copies of the traces in `fixtures/traces` with one damage each. *Word* flips each bit of `ph`, `cat`, `X` and `kernel`
in plain text; everything else damages compressed files at random places.
"""


def describe(projects: Sequence[dict[str, Any]], damage: dict[str, Any], late: dict[str, Any]) -> str:
    """The report."""
    return "\n".join(
        [
            _INTRODUCTION,
            *_outcomes(projects),
            "",
            _NO_TRACE,
            *_differences(projects),
            _PEERS_TEXT,
            *_peers(projects),
            "",
            _REASONS,
            *_answers_otherwise(projects),
            "",
            *_late_ranks(late),
            _OPERATIONS,
            *_operations(projects),
            "",
            _MASK,
            _DAMAGE,
            *_damage(damage),
            "",
        ]
    )


def _outcomes(projects: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "| Project | Commit | Files | Exact | Differing | JAX | Not of torch.profiler |"
    yield "|:---|:---|---:|---:|---:|---:|---:|"
    total: Counter[str] = Counter()
    for project in projects:
        counts = Counter(file["outcome"] for file in project["files"])
        total += counts
        yield _row(
            project["project"], project["commit"][:7], len(project["files"]), *(counts[key] for key in _OUTCOMES)
        )
    yield _row("all", "", total.total(), *(total[key] for key in _OUTCOMES))


def _differences(projects: Sequence[dict[str, Any]]) -> Iterator[str]:
    differing = [
        f"- {project['project']}, `{file['path']}`: {'; '.join(file['differences'][:3])}"
        for project in projects
        for file in project["files"]
        if file["differences"]
    ]
    if differing:
        yield "Differing:\n"
        yield from differing
        yield _HALVES
    warned = [
        f"- {project['project']}, `{file['path']}`: {'; '.join(file['warnings'])}"
        for project in projects
        for file in project["files"]
        if file["warnings"] and file["outcome"] != _OUTCOMES[3]
    ]
    if warned:
        yield "Warnings:\n"
        yield from warned
        yield ""


def _peers(projects: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield f"| Tool | Files | Agrees | {' | '.join(_PARTS.values())} | Otherwise | Fails |"
    yield f"|:---|{'---:|' * (len(_PARTS) + 4)}"
    files = [file for project in projects for file in project["files"] if file["peers"]]
    ours = sum(not any("idle time" in difference for difference in file["differences"]) for file in files)
    yield _row("perfscope", len(files), ours, *(0 for _ in _PARTS), len(files) - ours, 0)
    for peer, title in _PEERS.items():
        counts = Counter(_judge(file, file["peers"][peer]) for file in files if peer in file["peers"])
        keys = ("agrees", *_PARTS, "otherwise", "fails")
        yield _row(title, counts.total(), *(counts[key] for key in keys))


def _answers_otherwise(projects: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The answers of peers that are of no part of the events, and why they fail."""
    for peer, title in _PEERS.items():
        asked = [file for project in projects for file in project["files"] if peer in file["peers"]]
        failed = Counter(file["peers"][peer] for file in asked if _judge(file, file["peers"][peer]) == "fails")
        for reason, files in failed.most_common():
            yield f"- {title} fails on {files} files: `{reason}`"
        for file in asked:
            if _judge(file, file["peers"][peer]) == "otherwise":
                name = "/".join(file["path"].split("/")[-2:])
                yield f"- {title}, `{name}`: {file['peers'][peer]:,.1f} us for {file['idle_ns'] / 1000:,.1f}"


def _judge(file: dict[str, Any], answer: float | str) -> str:
    if isinstance(answer, str):
        return "fails"
    possible = {"agrees": file["idle_ns"], **file["idle_of_parts_ns"]}
    return next((key for key, idle_ns in possible.items() if abs(idle_ns / 1000 - answer) <= _AGREES_US), "otherwise")


def waits_caused(durations_ns: Sequence[Sequence[int]], ranks: int) -> list[int]:
    """The waits that each rank caused, in all: operations by their durations on each rank."""
    caused = [0] * ranks
    for row in durations_ns:
        shortest = min(row)
        caused[row.index(shortest)] += sum(row) - ranks * shortest
    return caused


def _late_ranks(late: dict[str, Any]) -> Iterator[str]:
    rows, names = late["duration_ns"], late["operations"]
    ranks = len(rows[0])
    yield _LATE + _row("Operation", *(f"Rank {rank}" for rank in range(ranks)))
    yield f"|:---|{'---:|' * ranks}"
    for name, row in zip(names, rows, strict=True):
        yield _row(name, *row)
    caused = waits_caused(rows, ranks)
    yield _row("*caused (ms)*", *(f"{sum_ns / (ranks - 1) / NS_PER_MS:.2f}" for sum_ns in caused))
    exchanges = waits_caused([row for name, row in zip(names, rows, strict=True) if name == "all_to_all"], ranks)
    yield _LATE_TEXT.format(exchanges=max(exchanges) / ranks / NS_PER_MS)


def _operations(projects: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "| File | GFLOP | of launched graphs | Counted (%) | Not counted (%) |"
    yield "|:---|---:|---:|---:|:---|"
    listed = [
        (project["project"], file)
        for project in projects
        for file in project["files"]
        if file.get("gflop", 0) + file.get("recorded_gflop", 0) >= _SMALLEST_GFLOP
        and file["path"].startswith(_RECORDED)
    ]
    for project, file in listed:
        covered = "n/a" if file["covered"] is None else f"{100 * file['covered']:.1f}"
        name = file["path"].removeprefix("tests/traces/").removeprefix("tests/data/")
        yield _row(
            f"{project.partition('/')[2]}: `{name}`",
            f"{file['gflop']:,.0f}",
            f"{file['replayed_gflop']:,.0f}",
            covered,
            _shares(file["not_counted"]),
        )
    shares: dict[str, list[float]] = {}
    for project in projects:
        for file in project["files"]:
            for name, share in file.get("not_counted", ()) if file["path"].startswith(_RECORDED) else ():
                shares.setdefault("launches of graphs" if "launches" in name else name, []).append(share)
    yield ""
    yield "This is not counted of all files, also of those without shapes, by its share of the time of kernels that"
    yield "multiply; what is in neither column are kernels whose operator is not in the trace (`sampled_rank`)."
    yield ""
    yield "| Operator | Files | Share (%), smallest and largest |"
    yield "|:---|---:|---:|"
    for name, members in sorted(shares.items(), key=lambda item: (-len(item[1]), item[0])):
        yield _row(f"`{name}`", len(members), f"{100 * min(members):.1f} to {100 * max(members):.1f}")


def _shares(not_counted: Sequence[Sequence[Any]]) -> str:
    """What is not counted, with its share in percent."""
    listed = sorted(not_counted, key=lambda pair: -pair[1])
    return ", ".join(f"{name}: {100 * share:.1f}" for name, share in listed) or "n/a"


def _damage(damage: dict[str, Any]) -> Iterator[str]:
    outcomes = sorted({outcome for counts in damage["counts"].values() for outcome in counts} | {"silent", "traceback"})
    yield _row("Damage", "files", *outcomes)
    yield f"|:---|{'---:|' * (len(outcomes) + 1)}"
    for kind, counts in damage["counts"].items():
        yield _row(kind, sum(counts.values()), *(counts.get(outcome, 0) for outcome in outcomes))
    yield ""
    yield "*Said* is a warning that names the loss, *nothing lost* the same events as in the whole file, *refused* one"
    yield "line that the file cannot be read. *Silent* would be other events without a warning."
    yield f"No file took more than {damage['most_beyond_twice_s']:.2f} s of computing beyond twice that of the whole"
    yield f"one, or more than {damage['most_times_the_whole']:.1f} times as long (a whole one of less than 0.1 s counts"
    yield f"as that long), and the process never took more than {damage['peak_memory_mb']} MB."
    yield ""
    yield "The figures are in `fixtures/benchmarks/foreign-traces.json` and `damaged-traces.json`,"
    yield "from `python -m benchmarks.foreign_traces` and `python -m benchmarks.damaged_traces`."


def _row(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"
