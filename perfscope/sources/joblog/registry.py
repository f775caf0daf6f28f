"""Every log format that is read. A new one is a module in ``formats`` and a line here.

The order decides where a log fits several formats: the step time comes from the first one's best source, and the
framework is the first one that some line identifies.
"""

from __future__ import annotations

from perfscope.sources.joblog.formats import (
    composer,
    deepspeed,
    gluon_nlp,
    hf_trainer,
    job,
    megatron,
    nemo,
    oneflow,
    torchtitan,
    torchtune,
)
from perfscope.sources.joblog.log_format import LogFormat

FORMATS: tuple[LogFormat, ...] = (
    job.FORMAT,
    megatron.FORMAT,
    deepspeed.FORMAT,
    nemo.FORMAT,
    gluon_nlp.FORMAT,
    composer.FORMAT,
    oneflow.FORMAT,
    torchtitan.FORMAT,
    torchtune.FORMAT,
    hf_trainer.FORMAT,
)
