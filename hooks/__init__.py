"""Capture inside a training job: the standard library, ``perfscope.wire`` and a torch that is already there."""
