"""How many steps the run time of a Trainer is of: those since its last start.

``train_runtime`` begins when training starts or goes on from a checkpoint. ``train_steps_per_second`` is planned steps
over it (``max_steps``, transformers up to 4) or steps done since the start (transformers 5), see ``speed_metrics`` and
its call in ``transformers/trainer.py``. A speed that does not fit the planned steps is therefore of the steps done.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10

#: An inclusive range of whole numbers.
Range = tuple[int, int]

_HALF_A_PRINTED_DIGIT = 0.0005
_DIGITS = 4  # transformers 5 prints so many, between quotes
_HALF_AN_EPOCHS_DIGIT = 0.005

NO_STEPS = "train_runtime is known, the number of steps is not: no step time"
NO_BEGIN = "the step at which training started or went on is unknown, train_runtime is of those since: no step time"
NO_END = "training ended before its planned steps, at which step is not stated: no step time"
EVALUATIONS = "train_runtime holds evaluations: the time of a step from it is too long"
NOTHING_DONE = "no step was done since the last start: no step time"


@dataclass(frozen=True, slots=True)
class RunEnd:
    """What is known of the last start of a run, and of its end.

    Attributes:
        of_speed: The steps that the stated speed times the run time allows.
        planned: The step that training is to reach.
        begin: The step that it started at; None where it went on from an unknown one.
        reached: The steps that it may have reached; None without a statement.
    """

    of_speed: Range | None
    planned: int | None
    begin: int | None
    reached: Range | None

    @property
    def is_speed_of_planned(self) -> bool:
        """Whether the stated speed fits the planned steps."""
        least, most = self.of_speed or (1, 0)
        return self.planned is not None and least <= self.planned <= most

    def count_steps(self) -> int | str:
        """The steps that the run time is of, or why they are unknown."""
        steps = self._count()
        return NOTHING_DONE if isinstance(steps, int) and steps <= 0 else steps

    @property
    def is_speed_of_done(self) -> bool:
        """Whether the stated speed is of the steps done, or nothing shows another meaning."""
        return self.begin == 0 if self.planned is None else not self.is_speed_of_planned

    def samples_per_s(self, stated: float | None, steps: int | str) -> float | None:
        """Samples a second of the steps done; None where the planned samples are stated, and the steps unknown."""
        if stated is None or not self.is_speed_of_planned or not self.planned:
            return stated
        return stated * steps / self.planned if isinstance(steps, int) else None

    def _count(self) -> int | str:
        begin, planned, reached = self.begin, self.planned, self.reached
        since = None if begin is None or reached is None else (reached[0] - begin, reached[1] - begin)
        if self.of_speed is not None and planned is not None and not self.is_speed_of_planned:
            least, most = self.of_speed
            if since is not None and max(least, since[0]) <= min(most, since[1]):
                least, most = max(least, since[0]), min(most, since[1])
            return least if least == most else NO_STEPS
        if since is not None and since[0] == since[1]:
            return since[0]
        if begin is None:
            return NO_BEGIN
        if planned is not None:
            return NO_END if reached is not None and reached[1] < planned else planned - begin
        if begin == 0 and self.of_speed is not None and self.of_speed[0] == self.of_speed[1]:
            return self.of_speed[0]
        return NO_STEPS


def steps_of_speed(steps_per_s: float | None, runtime_s: float, *, is_short: bool = False) -> Range | None:
    """The steps that give a rounded speed, of four digits where it is short; None where no whole number does."""
    if steps_per_s is None:
        return None
    half = _half_a_digit(steps_per_s, is_short=is_short)
    half_s = _half_a_digit(runtime_s, is_short=True) if is_short else _HALF_A_PRINTED_DIGIT
    least = max(ceil((steps_per_s - half) * (runtime_s - half_s)), 1)
    most = floor((steps_per_s + half) * (runtime_s + half_s))
    return (least, most) if least <= most else None


def _half_a_digit(value: float, *, is_short: bool) -> float:
    if not is_short or value <= 0:
        return _HALF_A_PRINTED_DIGIT
    return float(max(_HALF_A_PRINTED_DIGIT, 0.5 * 10.0 ** (floor(log10(value)) - _DIGITS + 1)))


def steps_of_epoch(epoch: float, least_per_epoch: int, most_per_epoch: int) -> Range | None:
    """The steps after which a rounded epoch is printed; None where no whole number fits."""
    half = max(_HALF_AN_EPOCHS_DIGIT, epoch * 10.0**-_DIGITS * 5)
    least, most = ceil((epoch - half) * least_per_epoch), floor((epoch + half) * most_per_epoch)
    return (max(least, 0), most) if least <= most else None


def goes_on(first_epoch: float, second_epoch: float) -> bool:
    """Whether the first two epochs that are logged, at equal distances, show that training began before them."""
    distance = second_epoch - first_epoch
    return first_epoch - distance > max(4 * _HALF_AN_EPOCHS_DIGIT, distance / 2)


def is_part_of_losses(mean: float | None, first: float | None, last: float | None) -> bool:
    """Whether the mean loss is too small for these steps: transformers 4 divides its sum by all steps reached."""
    if mean is None or first is None or last is None or min(first, last) <= 0:
        return False
    return 2 * mean < min(first, last)
