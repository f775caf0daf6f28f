"""Keeps secrets out of every file: only selected environment variables are written, suspicious values are replaced."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

REDACTED = "[redacted]"

_SECRET_NAME = re.compile(
    r"token|secret|passw|passphrase|passcode|pswd|((^|[_.-])|db|user|root|admin)pass$|credential|auth|bearer|cookie|jwt"
    r"|signature|private|webhook|hmac|key(_?id)?$|(^|[_.-])(dsn|otp|psk)$"
    r"|(^|[_.-])(pw|pwd|pat|sas|sig|login|conn(ection)?([_-]?str(ing)?)?)$"
    r"|(^|[_.-])key([_.-]|$)|(api|access|secret|private|ssh|license|encryption)[_-]?key",
    re.I,
)
#: Tokens by their makers' forms. A path can begin like one (``hf_finetuned/``, ``sk-experiment-long-name-1/``), but its
#: words are short, or of letters of one case, where a token holds a long part of letters and digits, or of both cases.
_RANDOM_PART = r"(?<![A-Za-z0-9])(?=[A-Za-z0-9]*(?:[0-9][A-Za-z]|[A-Za-z][0-9]|[a-z][A-Z]))[A-Za-z0-9]{12}"
_SECRET_VALUE = re.compile(
    r"\b((?:sk-|[rs]k_(?:live|test)_|gh[oprsu]_|github_pat_|xox[abeprs]-|xapp-|gl(?:pat|ptt|dt)-|wandb_|npm_|pypi-|dckr_pat_"
    r"|nvapi-|gsk_|r8_|hv[bs]\.|shpat_|ya29\.|GOCSPX-|SG\.|dop_v1_|lin_api_|ntn_|sbp_|xai-|pplx-|tskey-|AIza|dapi)"
    rf"(?=[\w.-]*?{_RANDOM_PART})[\w.-]+"
    r"|hf_(?!transformers)[A-Za-z0-9]{12,}|api_org_[A-Za-z0-9]{12,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}(?:[\s:,]+[A-Za-z0-9/+]{40}\b)?"
    r"|AIza[A-Za-z0-9_-]{30,}|dapi[0-9a-f]{32}"
    r"|eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*|[A-Za-z0-9_-]{32,}=*))"
)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY.*?(?:-----END [A-Z ]*-----|$)", re.DOTALL)
_URL_USER = re.compile(r"((?<!\w)\w+://|(?<![\w/.:@-])(?=[\w.+-]+:[^/\s@]+@\w))[^/\s@]+@")
#: A signed URL carries its key in its query, a webhook in its path.
_URL_QUERY = re.compile(r"((?<!\w)\w+://[^\s?#\"']*[?#])[^\s\"']+")
_URL_HOOK = re.compile(
    r"(\bhooks\.slack\.com/|\bapi\.telegram\.org/bot|\w+://[^\s\"']*?webhook\w*[^\s/\"']*/)[^\s\"']+"
)
#: One of several settings in a value, as in ``AccountName=a;AccountKey=b``.
_SETTING = re.compile(r"(?<=[;&=])([\w.-]+)=([^\s;&\"']+)")
_AUTHORIZATION = re.compile(
    r"\b(?:bearer|basic)\s+[^\s\"']+|(?<=authorization:)[^\"'\n]+|(?<=cookie:)[^\"'\n]+|\blogin \S+ password \S+", re.I
)
#: ``NAME="some words"`` in a line of a shell, and ``name = value`` in TOML.
_QUOTED_VALUE = re.compile(r"""(?<![\w.-])([\w.-]+)(?:=(?=["'])| *= +)("[^"]*"|'[^']*'|[^\s"',]+)""")
#: ``"name": "value"``, as in an argument that holds JSON or YAML; a long word is searched once, from its beginning.
_NAMED_VALUE = re.compile(r"""(?<![\w.-])([\w.-]+)(\\?["']?\s*:\s*)("[^"]*"|'[^']*'|[^\s,{}\[\]]+)""")
#: What follows one of these words, or a key of AWS, is a secret where it looks like ``user:password`` or a long key.
_LOGINS = {"-u", "--user", "--proxy-user", "login", "--relogin"}
_LOGIN = re.compile(r"[^:/\s]+:\S+|(?:[A-Za-z0-9_]{32,}|[A-Za-z0-9/+]{40})\W*")
#: Long, and about the container image instead of the run.
_OMITTED_VARIABLES = {"NVIDIA_REQUIRE_CUDA"}
#: A longer word says nothing about a run's speed, and searching it for secrets would delay the start of the training.
_LONGEST_CHARACTERS = 16_384
_RECORDED_VARIABLES = re.compile(
    r"(CUDA|NCCL|TORCH|PYTORCH|OMP|MKL|GLOO|SLURM|OMPI|DS|DEEPSPEED|MASTER|HOROVOD|UCX|NVIDIA|KINETO|TEARDOWN)(_|$)"
    r"|(RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|NODE_RANK|HOSTNAME|CONDA_DEFAULT_ENV|VIRTUAL_ENV)$"
)
#: Option names that hold "token" or "key" and no secret, as every language-model script has them.
_HARMLESS_NAME = re.compile(
    r"tokenizer|tokens|token[_-]?(ids?|index|type|length|drop)|num[_-]?token|max[_-]?token"
    r"|(bos|eos|pad|mask|unk|sep|cls)[-_]token|(query|value|kv)[_-]key|key[_-](value|dim|size|len)",
    re.I,
)

_NEVER_HARMLESS = re.compile(r"auth|passw|secret", re.I)


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Select the variables that explain a run's speed, without any whose name or value looks like a secret."""
    return {
        name: redact_text(value)
        for name, value in sorted(environment.items())
        if _RECORDED_VARIABLES.match(name) and not _is_secret_name(name) and name not in _OMITTED_VARIABLES
    }


def redact_arguments(arguments: Iterable[str]) -> list[str]:
    """Replace the values of secret options in a command line.

    >>> redact_arguments(["train.py", "--api-key", "abc", "--lr", "1", "HF_TOKEN=xyz"])
    ['train.py', '--api-key', '[redacted]', '--lr', '1', 'HF_TOKEN=[redacted]']
    >>> redact_arguments(["bash", "-c", "export KEY=abc; train --password xyz"])
    ['bash', '-c', 'export KEY=[redacted] train --password [redacted]']
    """
    redacted = []
    value_is_secret = False
    before = ""
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        is_login = before in _LOGINS or before.startswith(("AKIA", "ASIA"))
        if (is_login and _LOGIN.fullmatch(argument)) or (value_is_secret and not argument.startswith("--")):
            redacted.append(REDACTED)
        elif len(argument) > _LONGEST_CHARACTERS:
            redacted.append(f"[{len(argument)} characters]")
        elif re.search(r"\s", argument):
            redacted.append(redact_text(argument))
        elif equals and _is_secret_name(name):
            redacted.append(f"{name}={REDACTED}")
        else:
            redacted.append(redact_value(argument))
        value_is_secret = argument.startswith("-") and not equals and _is_secret_name(name)
        before = argument
    return redacted


def redact_text(text: str) -> str:
    """Replace the secrets in a text that may contain command lines, JSON or HTTP headers.

    >>> redact_text('{"api_key": "abc", "lr": 1}')
    '{"api_key": [redacted], "lr": 1}'
    """
    if len(text) > _LONGEST_CHARACTERS:
        return f"[{len(text)} characters]"
    plain = redact_value(text)
    if not re.search(r"\s", plain):
        name, equals, _ = plain.partition("=")
        return f"{name}={REDACTED}" if equals and _is_secret_name(name) else plain
    pieces = re.split(r"(\s+)", plain)
    pieces[::2] = redact_arguments(pieces[::2])
    return "".join(pieces)


def redact_value(value: str) -> str:
    """Replace users in URLs, what looks like an access token, and values whose name says that they are secret."""
    value = _PRIVATE_KEY.sub(REDACTED, value)
    value = _URL_USER.sub(rf"\1{REDACTED}@", value)
    for part in (_URL_QUERY, _URL_HOOK):
        value = part.sub(rf"\1{REDACTED}", value)
    value = _AUTHORIZATION.sub(REDACTED, value)
    for settings in (_SETTING, _QUOTED_VALUE):
        value = settings.sub(
            lambda setting: f"{setting[1]}={REDACTED}" if _is_secret_name(setting[1]) else setting[0], value
        )
    value = _NAMED_VALUE.sub(_without_secret, value)
    return _SECRET_VALUE.sub(REDACTED, value)


def _without_secret(match: re.Match[str]) -> str:
    name, colon, _ = match.groups()
    return f"{name}{colon}{REDACTED}" if _is_secret_name(name) else match[0]


def redact_facts(facts: Mapping[str, object]) -> dict[str, object]:
    """Replace the secrets in plain values of a configuration: by the names of texts, and inside all other texts."""
    return {
        name: REDACTED if isinstance(value, str) and _is_secret_name(str(name)) else _redact_fact(value)
        for name, value in facts.items()
    }


def _redact_fact(value: object) -> object:
    if isinstance(value, Mapping):
        return redact_facts(value)
    if isinstance(value, (list, tuple)):
        return [_redact_fact(element) for element in value]
    return redact_text(value) if isinstance(value, str) else value


def redact_path(path: str) -> str:
    """Replace the user and the query of a URL, where a signed one carries its key.

    >>> redact_path("s3://me:pw@bucket/step_3?X-Amz-Signature=abc")
    's3://[redacted]@bucket/step_3?[redacted]'
    """
    location, mark, _ = path.partition("?") if "://" in path else (path, "", "")
    return redact_value(location) + (f"{mark}{REDACTED}" if mark else "")


def _is_secret_name(name: str) -> bool:
    is_harmless = _HARMLESS_NAME.search(name) and not _NEVER_HARMLESS.search(name)
    return bool(_SECRET_NAME.search(name)) and not is_harmless
