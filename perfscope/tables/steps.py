"""The training steps of a run."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from perfscope.tables.columns import Bool, Int64, MaskedInt64

if TYPE_CHECKING:  # slow to import, and no command needs it
    import pandas as pd

#: Fewer steps than this make no median to be trusted.
FEWEST_STEPS = 5


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The training steps of one process, in order.

    Attributes:
        rank: The rank they belong to.
        attempt: 0 for the rank's first process in the run, 1 after a restart.
        step: Number of the training step, from 1.
        end_ns: When it completed, on the host's monotonic clock.
        wall_ns: Host time of the step; masked where its beginning was not seen.
        source: What told that a step completed.
        window: ``""``, ``"warmup"``, ``"profiled"`` or ``"export"``.
        skipped: The weights were not updated.
        micro_batches: Forward passes in the step; masked where unknown.
        samples: Samples this rank took in; masked where unknown.
        tokens: Tokens this rank took in; masked where unknown.
        global_samples: Samples over all ranks as the framework states them; masked where unknown.
        data_wait_ns: Time spent waiting for the data loader; masked where unknown.
        save_ns: How long checkpoint saves held training, which ``wall_ns`` leaves out; masked where none did.
        draining: An asynchronous checkpoint save was writing beside the step.
        hook_ns: Time that perfscope's hooks took; masked where it was not told.
        memory_peak_bytes: Peak device memory of tensors so far; masked where unknown.
    """

    rank: int
    attempt: int
    step: Int64
    end_ns: Int64
    wall_ns: MaskedInt64
    source: npt.NDArray[np.str_]
    window: npt.NDArray[np.str_]
    skipped: Bool
    micro_batches: MaskedInt64
    samples: MaskedInt64
    tokens: MaskedInt64
    global_samples: MaskedInt64
    data_wait_ns: MaskedInt64
    save_ns: MaskedInt64
    draining: Bool
    hook_ns: MaskedInt64
    memory_peak_bytes: MaskedInt64

    def __len__(self) -> int:
        return len(self.step)

    @property
    def undisturbed(self) -> Bool:
        """The steps that neither start-up nor a window nor a checkpoint save disturbed, as a mask.

        Those beside an asynchronous save are among them where hardly any others are left: some jobs always save.
        """
        alone = (self.window == "") & (self.step > 1) & np.ma.getmaskarray(self.save_ns)
        quiet = alone & ~self.draining
        return np.asarray(quiet if quiet.sum() >= FEWEST_STEPS else alone, np.bool_)

    def frame(self) -> pd.DataFrame:
        """The table as a pandas DataFrame, with <NA> for what is absent."""
        import pandas as pd  # slow to import, and no command needs it

        columns = {}
        for field in fields(self):
            column = getattr(self, field.name)
            if isinstance(column, np.ma.MaskedArray):
                columns[field.name] = pd.array(column.data, dtype="Int64")
                columns[field.name][np.ma.getmaskarray(column)] = pd.NA
            else:
                columns[field.name] = column
        return pd.DataFrame(columns)
