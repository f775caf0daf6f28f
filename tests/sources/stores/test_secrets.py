"""No secret of a library's error gets into a report, whatever shape it has there, and what is none stays."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import BinaryIO, cast

import fsspec
import pytest

from perfscope.engine.run import analyze
from perfscope.errors import UsageError
from perfscope.sources.stores.location import describe, without_secrets
from perfscope.sources.stores.reading import StoredFile

SECRET = "S3cr3tS3cr3t+/x0="
SHAPES = [
    f"DefaultEndpointsProtocol=https;AccountName=me;AccountKey={SECRET};EndpointSuffix=core.windows.net",
    f"Endpoint=sb://x/;SharedAccessKeyName=root;SharedAccessKey={SECRET}",
    f"BlobEndpoint=https://x;SharedAccessSignature=sv=2020&ss=b&sig={SECRET}&se=2030",
    f"SharedAccessSignature sr=x&sig={SECRET}&se=1",
    f"GET https://x.blob.core.windows.net/c/b?sv=2020&sig={SECRET}",
    f"GET https://b.s3.amazonaws.com/k?X-Amz-Credential={SECRET}/20260101/us-east-1/s3/aws4_request",
    f"X-Amz-Date=1&X-Amz-Signature={SECRET}",
    f"X-Amz-Security-Token: {SECRET}",
    f"x-goog-signature={SECRET}",
    f"aws_secret_access_key = {SECRET}",
    f"AWS_SESSION_TOKEN={SECRET}",
    f"{{'aws_secret_access_key': '{SECRET}', 'region': 'x'}}",
    f'{{"SecretAccessKey": "{SECRET}", "Code": "x"}}',
    f'{{\\"client_secret\\": \\"{SECRET}\\"}}',
    f"<Error><SignatureProvided>{SECRET}</SignatureProvided></Error>",
    f"<AWSAccessKeyId>{SECRET}</AWSAccessKeyId>",
    f"headers: {{'Authorization': 'Bearer {SECRET}'}}",
    f"Authorization: SharedKey me:{SECRET}",
    f"Authorization: AWS4-HMAC-SHA256 Credential={SECRET}/2026/s3, SignedHeaders=host, Signature={SECRET}",
    f"was sent Bearer {SECRET}",
    f"Basic {SECRET}",
    "access_token=ya29.S3cr3tS3cr3t",
    "of eyJhbGciOiJI.S3cr3tS3cr3t.c2ln",
    "of ya29.S3cr3tS3cr3t",
    "the key AKIAS3CR3TS3CR3TAAAA",
    "-----BEGIN RSA PRIVATE KEY-----\nS3cr3tS3cr3t\n-----END RSA PRIVATE KEY-----",
    "Cannot connect to https://user:S3cr3tS3cr3t@host/run",
    "Cannot connect to https://user:S3cr3tS3cr3t@p@ss/word@host/run",
    "Cannot connect to https://S3cr3tS3cr3t@host/run",
    "proxy user:S3cr3tS3cr3t@proxy.local:3128 refused",
    "sftp://me:S3cr3tS3cr3t@[::1]:22/x",
    'password="S3cr3tS3cr3t and more"',
    "password: S3cr3tS3cr3t",
]


def holds_secret(text: str) -> bool:
    return any(part in text.lower() for part in ("s3cr3t", "and more", "word@"))


@pytest.mark.parametrize("text", SHAPES)
def test_a_secret_of_any_usual_shape_is_hidden(text: str) -> None:
    assert holds_secret(text)
    assert not holds_secret(describe(OSError(text)))
    assert not holds_secret(describe(PermissionError(errno.EACCES, text)))
    assert not holds_secret(describe(OSError(errno.EBUSY, f"{'x' * 200} {text}")))
    assert "***" in without_secrets(text)


@pytest.mark.parametrize(
    "text",
    [
        'Could not connect to the endpoint URL: "http://127.0.0.1:9000/runs/a@b"',
        "The provided token has expired.",
        "The AWS Access Key Id you provided does not exist in our records.",
        "abfs://container@account.dfs.core.windows.net/run",
        "The specified key does not exist.",
        "the design: it is basic",
        "[Errno 28] No space left on device: /tmp/a:b",
        "403, message='Forbidden', url='https://host:443/run/12:30'",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without_secrets(text) == text


def test_secrets_of_what_cannot_be_opened_or_read_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_told_too_little(*_: object, **__: object) -> None:
        raise ValueError(f"AccountKey={SECRET} is no key")

    monkeypatch.setattr(fsspec.core, "url_to_fs", is_told_too_little)
    with pytest.raises(UsageError, match=r"cannot be opened: AccountKey=\*\*\* is no key"):
        analyze(["abfs://runs/zero1"])

    def read(_: int) -> bytes:
        raise ConnectionResetError(errno.ECONNRESET, f"https://me:{SECRET}@host broke")

    opened = SimpleNamespace(read=read, close=lambda: None)
    with (
        StoredFile(cast(BinaryIO, opened)) as file,
        pytest.raises(ConnectionResetError, match=r"https://\*\*\*@host broke"),
    ):
        file.read(5)
