"""No byte of a run holds a secret of the command line, of the environment or of the model's configuration."""

from __future__ import annotations

import gzip
import itertools
import sys
from pathlib import Path

import pytest

from perfscope.hooks.facts.secrets import REDACTED, redact_arguments, redact_environment, redact_facts, redact_text
from tests.conftest import SCRIPTS, profile

pytestmark = pytest.mark.slow

NAMES = (
    "TOKEN", "KEY", "PASSWORD", "SECRET", "CREDENTIAL", "CREDENTIALS", "API_KEY", "APIKEY", "SSH_KEY", "SSHKEY",
    "PASSWD", "DB_PASS", "AWS_ACCESS_KEY_ID", "AUTH", "AUTH_HEADER", "JWT", "COOKIE", "PRIVATE_PEM", "BEARER",
    "PASSPHRASE", "KEY_FILE_CONTENT", "SIGNATURE",
)  # fmt: skip
PLANTED = "C4n4ry"
#: Forms that are in use; ``|`` parts arguments.
ARGUMENTS = (
    "--aws-secret-access-key|SECRET", "mc|alias|AKIAIOSFODNN7EXAMPLE|SECRETwJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPL",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=SECRET==;EndpointSuffix=core.windows.net",
    "BlobEndpoint=https://a;SharedAccessSignature=sv=1&sig=SECRET", "postgresql+psycopg2://u:SECRET@h/db",
    "mongodb+srv://u:SECRET@h", "redis://:SECRET@h:6379", "u:SECRET@db.internal:5432/x", "host=h password=SECRET",
    "jdbc:postgresql://h/db?user=u&password=SECRET", "hf_SECRETabcdefghijklmno", "api_org_SECRETabcdefghijk",
    "wandb|login|--relogin|SECRET0f3a9bc4d15e278e0f3a9bc4d15e27ab12", "wandb_v1_SECRET8e0f3a9bc4d15e27",
    "xoxb-123456789012-SECRETaB3dE5gH7jK9", "https://hooks.slack.com/services/T0/B0/SECRET",
    "https://discord.com/api/webhooks/123/SECRET", "https://api.telegram.org/bot123:SECRET/sendMessage",
    "github_pat_11ABCDEFG0_SECRETaB3dE5gH7jK9", "nvapi-SECRETaB3dE5gH7jK9mN1p", "sk-ant-api03-SECRETaB3dE5gH7jK9mN1p",
    "AIzaSyDSECRETaB3dE5gH7jK9mN1pQ3sT5vW7", "ya29.a0SECRETaB3dE5gH7jK9",
    "eyJhcGlfYWRkcmVzcyI6Imh0dHBzOi8vYXBwLm5lcHSECRET",
    "--pem=-----BEGIN RSA PRIVATE KEY-----\nMIIESECRET\n-----END RSA PRIVATE KEY-----",
    "--header|Authorization: AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=h, Signature=SECRET",
    "-H|PRIVATE-TOKEN: SECRET", "-H|Cookie: a=1; session=SECRET", "curl|-u|me:SECRET|https://h",
    "https://storage.googleapis.com/b/o?X-Goog-Signature=SECRET", "https://a.blob.core.windows.net/c/b?sv=1&sig=SECRET",
    "https://h/cb#access_token=SECRET", '--config|{\\"api_key\\": \\"SECRET\\"}', 'password = "SECRET"',
    "machine h login u password SECRET", "--sentry-dsn|SECRET",
)  # fmt: skip
PREFIXES = ("", "NCCL_", "CUDA_", "SLURM_", "DS_", "HF_", "WANDB_")


def test_a_whole_run_of_secrets_is_written_without_one(tmp_path: Path) -> None:
    canaries = (f"canary-{number:04d}-leaked" for number in itertools.count())
    variables = {f"{prefix}{name}": next(canaries) for prefix in PREFIXES for name in NAMES}
    variables["CANARY"] = next(canaries)
    variables["CANARY_URL"] = f"https://me:{next(canaries)}@host/saved.pt"
    variables["NCCL_EXTRA"] = f"--api-key {next(canaries)} https://u:{next(canaries)}@h TOKEN={next(canaries)}"
    words: list[str] = []
    for name in NAMES:
        option = name.lower().replace("_", "-")
        words += [f"--{option}={next(canaries)}", f"--{option}", next(canaries), f"{name}={next(canaries)}"]
        words += [f"+wandb.{name.lower()}={next(canaries)}", f'{{"{name.lower()}": "{next(canaries)}"}}']
    words += ["--api-key", f"-{next(canaries)}", f"https://user:{next(canaries)}@host/x"]
    words += [f"https://host/?token={next(canaries)}&a=1", f"Authorization: Bearer {next(canaries)}", "--lr", "0.25"]
    words += [f"bash -c 'export HF_TOKEN={next(canaries)}; run --password {next(canaries)}'"]
    planted = [argument.replace("SECRET", PLANTED) for argument in ARGUMENTS]
    words += [word for argument in planted for word in argument.split("|")]
    variables |= {f"NCCL_{number}": text.replace("|", " ") for number, text in enumerate(planted)}
    variables["FAILURE"] = " ".join(planted).replace("|", " ")
    script: list[str | Path] = [sys.executable, SCRIPTS / "with_secrets.py"]
    ended = profile(*script, *words, cwd=tmp_path, options=["--shapes", "--modules"], **variables)
    assert ended.code == 1
    assert "ConnectionError" in ended.stderr
    files = [path for path in (tmp_path / "RUN").rglob("*") if path.is_file()]
    contents = {path: path.read_bytes() for path in files}
    contents.update({path: gzip.decompress(data) for path, data in contents.items() if path.suffix == ".gz"})
    names = {path.name for path in files}
    assert {"run.json", "rank.json", "model.json", "checkpoints.jsonl", "steps.jsonl", "events.jsonl"} <= names
    assert {"page.html", "incidents.jsonl"} <= names, ended.stderr
    assert any("trace.json" in name for name in names)
    leaked = {str(path) for path, data in contents.items() if b"-leaked" in data or PLANTED.encode() in data}
    assert not leaked, [data[data.index(b"-leaked") - 80 :][:100] for data in contents.values() if b"-leaked" in data]
    assert b"0.25" in contents[tmp_path / "RUN" / "run.json"]


@pytest.mark.parametrize(
    "harmless",
    [
        ["--tokenizer-type", "GPT2"], ["--token_index=3"], ["--num-query-key", "4"], ["--image-token-index", "7"],
        ["--author-less"], ["--monkey-business", "1"], ["--train-tokens=3B"], ["a: b"], ["s3://bucket/key"],
        ["--eos_token=</s>"], ["/data/tokens/part:1"],
    ],
)  # fmt: skip
def test_what_is_no_secret_is_kept(harmless: list[str]) -> None:
    assert redact_arguments(harmless) == harmless


@pytest.mark.parametrize(
    "argument",
    [
        "--s3=s3://b/x?X-Amz-Signature=SECRET&X-Amz-Credential=SECRET", "s3://b/x?X-Amz-Signature=SECRET",
        "--conn=AccountName=a;AccountKey=SECRET;x=1", "--storage=a=b;AccountKey=SECRET;x=1", "--sas=sig=SECRET",
        "--url=sv=1&sig=SECRET", "--login=user:SECRET", "--pw=SECRET", "--pat=SECRET", "--connection-string=SECRET",
        '--config={"wandb": {"api_key": "SECRET"}}', '--config={"a": [{"token": "SECRET"}]}',
        "--db=Server=h;Pwd=SECRET;", "--header=Authorization: Token SECRET", "--passwd='abc SECRET'",
        "--tokenizer_auth_token=SECRET", *ARGUMENTS,
    ],
)  # fmt: skip
def test_a_secret_inside_an_argument_is_not_kept(argument: str) -> None:
    kept = redact_arguments(argument.split("|"))
    assert "SECRET" not in " ".join(kept)
    assert " ".join(kept)[:2] in (argument[:2], REDACTED[:2])
    assert "SECRET" not in redact_text(f"train.py {argument.replace('|', ' ')} --lr 1")


def test_a_text_and_a_configuration_are_searched() -> None:
    assert redact_text("open https://me:pw@host failed") == f"open https://{REDACTED}@host failed"
    facts = {"hidden": 8, "auth": "x", "layers": [{"secret": "y", "size": 2}], "eos_token_id": 5, "token": 7}
    kept = {"hidden": 8, "auth": REDACTED, "layers": [{"secret": REDACTED, "size": 2}], "eos_token_id": 5, "token": 7}
    assert redact_facts(facts) == kept
    assert redact_environment({"NCCL_X": "PASSWORD=a b"}) == {"NCCL_X": f"PASSWORD={REDACTED} b"}
    assert redact_environment({"NCCL_X": "PASSWORD='a b'"}) == {"NCCL_X": f"PASSWORD={REDACTED}"}
