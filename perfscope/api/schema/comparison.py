"""What ``perfscope compare`` says."""

from typing import TypedDict


class SideData(TypedDict):
    """One side of a comparison.

    Attributes:
        name: What was typed.
        kind: ``run``, ``traces``, ``log``, ``analysis`` or ``baseline``.
        runs: How many runs it is of.
        steps: Undisturbed steps of each run.
        parameters: Parameters of all of the model.
        gpus: Ranks, or GPUs.
        device: Name of the GPU; ``cpu`` where there was none.
        dtype: Type of the products, or of the weights.
        samples: Samples of a step over all ranks.
        tokens: Tokens of a step over all ranks.
        versions: Versions of software, by package.
    """

    name: str
    kind: str
    runs: int
    steps: list[int]
    parameters: int | None
    gpus: int | None
    device: str | None
    dtype: str | None
    samples: float | None
    tokens: float | None
    versions: dict[str, str]


class TermChangeData(TypedDict):
    """A term of the budget, and how it changed.

    Attributes:
        name: Its name.
        kind: What kind of time.
        kernel: The class of kernels, or the cause.
        operator: The operator that launched it.
        a_us: On side A; None where it is absent.
        b_us: On side B; None where it is absent.
        change_us: ``b_us - a_us``.
    """

    name: str
    kind: str
    kernel: str | None
    operator: str | None
    a_us: float | None
    b_us: float | None
    change_us: float


class DifferenceData(TypedDict):
    """Something that one side has, or has otherwise.

    Attributes:
        name: Its name.
        what: ``appeared``, ``vanished`` or what changed.
        a: On side A.
        b: On side B.
        time_us: What it costs in a step.
    """

    name: str
    what: str
    a: str | None
    b: str | None
    time_us: float | None


class UnchangedData(TypedDict):
    """What is the same on both sides.

    Attributes:
        kernels: Kernels that are launched equally often.
        products: Matrix products of the same shapes.
    """

    kernels: list[str]
    products: int


class SetupDifferenceData(TypedDict):
    """A difference of the set-ups.

    Attributes:
        fact: What differs.
        a: On side A.
        b: On side B.
        forbids: Whether the sides did not train the same.
    """

    fact: str
    a: str
    b: str
    forbids: bool


class LimitData(TypedDict):
    """What became of a limit.

    Attributes:
        limit: As it was typed.
        exceeded: Whether the whole interval is beyond it; None where it could not be checked.
        reason: In words.
    """

    limit: str
    exceeded: bool | None
    reason: str


class ChangeData(TypedDict):
    """The change of a figure from A to B.

    Attributes:
        change: ``b / a - 1``.
        interval: Its interval, with an allowance for runs of the same code.
        steps_interval: The same for these steps alone.
        covers: Which variation the interval covers: ``steps``, ``runs`` or ``none``.
        reason: Why there is no interval.
    """

    change: float
    interval: list[float] | None
    steps_interval: list[float] | None
    covers: str
    reason: str | None


class SecondsChangeData(ChangeData):
    """A change of seconds.

    Attributes:
        a_s: On side A.
        b_s: On side B.
    """

    a_s: float
    b_s: float


class RateChangeData(ChangeData):
    """A change of a rate.

    Attributes:
        a_per_s: On side A.
        b_per_s: On side B.
    """

    a_per_s: float
    b_per_s: float


class TflopsChangeData(ChangeData):
    """A change of TFLOPs.

    Attributes:
        a_per_gpu: On side A.
        b_per_gpu: On side B.
    """

    a_per_gpu: float
    b_per_gpu: float


class BytesChangeData(ChangeData):
    """A change of bytes.

    Attributes:
        a_bytes: On side A.
        b_bytes: On side B.
    """

    a_bytes: float
    b_bytes: float


class JoulesChangeData(ChangeData):
    """A change of joules.

    Attributes:
        a_j: On side A.
        b_j: On side B.
    """

    a_j: float
    b_j: float


class ReplayedTermData(TypedDict):
    """A kernel whose time changed, on the critical path.

    Attributes:
        kernel: Its name.
        change_us: Its change in the budget: a mean over ranks.
        replayed_us: By how much B's step is longer for it, by a replay of B with this kernel as on A.
        interval_us: Of that.
    """

    kernel: str
    change_us: float
    replayed_us: float
    interval_us: list[float]


class ComparisonData(TypedDict):
    """One comparison.

    Attributes:
        schema: ``perfscope/comparison/1``.
        verdict: ``slower``, ``faster``, ``same`` or ``incomparable``.
        reasons: Why it cannot be told.
        confidence: Of every interval.
        a: Side A.
        b: Side B.
        step_time: Time of a step, or of as much work as a step of A does.
        throughput: Work a second.
        tflops: TFLOPs per GPU.
        memory: Peak memory of tensors.
        energy: Energy of a step.
        exposed_communication: Exposed communication in a step.
        per: What the figures are of: ``step``, or ``token`` with ``anyway``.
        work: What throughput counts.
        missing: Why a figure is absent.
        change_us: The change of a step in the budget; None without budgets.
        explains: Which steps the change is of, in words.
        terms: The terms; with ``unexplained_us`` they add up to ``change_us`` exactly.
        traced_us: What events of the traces show of it: all terms but those that are differences of whole steps.
        unexplained_us: What no term explains.
        replays: What the largest terms cost on the critical path; None where ``--replay`` did not ask for it.
        appeared: Kernels and products that only B has.
        vanished: Kernels and products that only A has.
        changed: What is launched more or less often.
        unchanged: What is the same.
        setup: Differences of the set-ups.
        limits: What became of the limits.
        notes: What a reader must know.
        damage: What could not be read.
    """

    schema: str
    verdict: str
    reasons: list[str]
    confidence: float
    a: SideData
    b: SideData
    step_time: SecondsChangeData | None
    throughput: RateChangeData | None
    tflops: TflopsChangeData | None
    memory: BytesChangeData | None
    energy: JoulesChangeData | None
    exposed_communication: SecondsChangeData | None
    per: str
    work: str | None
    missing: dict[str, str]
    change_us: float | None
    explains: str | None
    terms: list[TermChangeData]
    traced_us: float | None
    unexplained_us: float | None
    replays: list[ReplayedTermData] | None
    appeared: list[DifferenceData]
    vanished: list[DifferenceData]
    changed: list[DifferenceData]
    unchanged: UnchangedData
    setup: list[SetupDifferenceData]
    limits: list[LimitData]
    notes: list[str]
    damage: list[str]
