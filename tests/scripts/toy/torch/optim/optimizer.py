"""Optimizers, with the functions that the hooks go around."""


class Optimizer:
    """The base of all optimizers."""

    def __init__(self):
        self._patch_step_function()

    def _patch_step_function(self):
        type(self).step.hooked = True

    def zero_grad(self):
        """Forget the gradients, of which there are none."""


class SGD(Optimizer):
    """One weight that goes down."""

    def __init__(self):
        super().__init__()
        self.weight = 1.0

    def step(self):
        self.weight *= 0.7
