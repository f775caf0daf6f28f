"""Keeps secrets out of every file: only chosen environment variables are kept, and suspicious values are replaced."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

REDACTED = "[redacted]"

_SECRET_NAME = re.compile(
    r"token|secret|passw|passphrase|credential|api_?key|access_?key|private_?key|auth|(^|[_-])key$", re.I
)
_SECRET_VALUE = re.compile(r"\b(hf_|sk-|ghp_|gho_|github_pat_|xox[abp]-|AKIA|glpat-|wandb_)[A-Za-z0-9_-]{8,}")
_URL_USER = re.compile(r"(\w+://)[^/\s@]+@")
#: Long, and about the container image rather than the run.
_UNWANTED = {"NVIDIA_REQUIRE_CUDA"}
_KEPT = re.compile(
    r"(CUDA|NCCL|TORCH|PYTORCH|OMP|MKL|GLOO|SLURM|OMPI|DS|DEEPSPEED|MASTER|HOROVOD|UCX|NVIDIA|KINETO|TEARDOWN)(_|$)"
    r"|(RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|NODE_RANK|HOSTNAME|CONDA_DEFAULT_ENV|VIRTUAL_ENV)$"
)
#: Option names that hold "token" and no secret, as every language-model script has them.
_HARMLESS = re.compile(
    r"tokenizer|tokens|token-?(ids?|type|length|drop)|num-?token|max-?token|(bos|eos|pad)[-_]token", re.I
)


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that explain a run's speed, without any whose name or value looks like a secret."""
    return {
        name: redact_value(value)
        for name, value in sorted(environment.items())
        if _KEPT.match(name) and not _is_secret_name(name) and name not in _UNWANTED
    }


def redact_arguments(arguments: Iterable[str]) -> list[str]:
    """A command line with the values of secret options replaced.

    >>> redact_arguments(["train.py", "--api-key", "abc", "--lr", "1", "HF_TOKEN=xyz"])
    ['train.py', '--api-key', '[redacted]', '--lr', '1', 'HF_TOKEN=[redacted]']
    """
    kept = []
    value_is_secret = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if value_is_secret and not argument.startswith("-"):
            kept.append(REDACTED)
        elif equals and _is_secret_name(name):
            kept.append(f"{name}={REDACTED}")
        else:
            kept.append(redact_value(argument))
        value_is_secret = argument.startswith("-") and not equals and _is_secret_name(name)
    return kept


def redact_value(value: str) -> str:
    """A value without user names in URLs and without what looks like an access token."""
    return _SECRET_VALUE.sub(REDACTED, _URL_USER.sub(rf"\1{REDACTED}@", value))


def redact_path(path: str) -> str:
    """Where something was written, without the user and the query of a URL: a signed one carries its key there.

    >>> redact_path("s3://me:pw@bucket/step_3?X-Amz-Signature=abc")
    's3://[redacted]@bucket/step_3?[redacted]'
    """
    where, mark, _ = path.partition("?") if "://" in path else (path, "", "")
    return redact_value(where) + (f"{mark}{REDACTED}" if mark else "")


def _is_secret_name(name: str) -> bool:
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS.search(name)
