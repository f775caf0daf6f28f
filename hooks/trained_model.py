"""What frameworks report of the model that a process trains, and its description in the files of the rank."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from perfscope.hooks.facts.model_watch import ModelWatch
from perfscope.hooks.facts.setup import SetupWatch
from perfscope.hooks.guard import call_safely, hook_entry
from perfscope.hooks.introspection import is_grad_enabled
from perfscope.hooks.rank_position import RankPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perfscope.hooks.rank_files import RankFiles


class TrainedModel(RankPosition):
    """The model of one process; its methods are safe to call from training.

    Attributes:
        steps: Completed training steps.
        setup: How it is trained.
    """

    def __init__(self, files: RankFiles) -> None:
        super().__init__(files)
        self.steps = 0
        self._model = ModelWatch()
        self.setup = SetupWatch()

    @abstractmethod
    def _begin_forward(
        self,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        *,
        in_training_mode: bool,
    ) -> Callable[[], None] | None:
        """A model is about to run forward; see ``on_forward`` of the capture."""

    @hook_entry
    def set_model(
        self,
        *parts: Any,
        config: dict[str, Any] | None = None,
        zero_stage: int | None = None,
        dtype: str | None = None,
    ) -> None:
        """A module is trained, or the parts of a model that this rank has; only the first call counts.

        ``config`` is what the framework was configured with for it, beside what the module says itself; ``dtype`` is
        the type that it is configured to compute in.
        """
        self._model.set_parts(parts, config or {}, zero_stage)
        if dtype is not None:
            self._model.precision.set_engine(dtype)
        if self.steps == 0:
            self._model.precision.on_forward()

    @hook_entry
    def add_model_part(self, part: object) -> None:
        """This rank holds one more part of a model that is cut into stages."""
        if self.steps == 0:
            self._model.add_part(part)

    @hook_entry
    def on_model_call(
        self, args: tuple[object, ...], kwargs: dict[str, object], *, in_training_mode: bool
    ) -> Callable[[], None] | None:
        """The model that the search after the first step returned is about to run; see ``on_forward``."""
        if in_training_mode and self._model.precision.on_forward():
            self._describe_model()
        return self._begin_forward(args, kwargs, in_training_mode=in_training_mode)

    @property
    def wants_output(self) -> bool:
        """Whether the graph of a model's output is still to be looked at."""
        return not self._model.precision.is_settled

    @hook_entry
    def on_model_output(self, output: object) -> bool:
        """A model that trains returned; whether further outputs are wanted."""
        if self.wants_output and is_grad_enabled() and self._model.precision.on_output(output) and self.steps:
            self._describe_model()
        return self.wants_output

    @hook_entry
    def on_recompute(self) -> None:
        """A part of the model is about to run so that its activations are recomputed."""
        self._model.on_recompute()

    @hook_entry
    def on_loader(self, loader: object) -> None:
        """An iteration over a data loader begins."""
        self.setup.add_loader(loader)

    @hook_entry
    def on_batch(self, batch: object) -> None:
        """A data loader returned one of its first batches."""
        call_safely(lambda: self.setup.add_batch(batch))  # a mapping of the script's own may do anything

    @hook_entry
    def set_ddp(self, wrapper: object) -> None:
        """DistributedDataParallel replicates the model."""
        self.setup.set_ddp(wrapper)

    @hook_entry
    def set_engine(self, options: Mapping[str, object]) -> None:
        """DeepSpeed's engine trains, with these options."""
        self.setup.set_engine(options)

    def note(self, text: str) -> None:
        """Keep something that a reader of the report must know."""
        self.files.note(text)

    def _describe_model(self) -> None:
        record, error = call_safely(lambda: self._model.record(self.on_model_call, self.on_model_output))
        if error is not None:  # a model that cannot be described must not cost the steps
            self.note(f"the model is not recorded: {error!r}")
        elif record is not None:
            self.files.claim().write_model(record)
        if self._model.uncounted:
            self.note(self._model.uncounted)
        self._describe_setup()

    def _describe_setup(self) -> None:
        """Write how the model is trained, where it is and that is not written yet."""
        if not self.steps:
            return
        record, error = call_safely(lambda: self.setup.take_record(self._model.optimizer))
        if error is not None:
            self.note(f"the set-up of training is not recorded: {error!r}")
        if record is not None:
            self.files.claim().write_setup(record)
