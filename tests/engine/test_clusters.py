"""Clusters that perfscope starts: on a real Slurm of one node, and on Kubernetes as far as its resource can tell."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from distributed import LocalCluster

from perfscope.engine import clusters
from perfscope.engine.cluster_choice import ClusterChoice, ClusterKind, read_cluster
from perfscope.engine.dask_cluster import measure_on_cluster
from perfscope.engine.measuring import measure
from perfscope.engine.tasks import MeasuredTrace
from perfscope.engine.windows import TraceFiles
from perfscope.errors import PerfscopeError, UsageError
from tests.conftest import ROOT, environment, perfscope
from tests.engine.slurm import jobs, slurm_node
from tests.engine.test_dask_workers import TASK, is_first, marks_of, require_all
from tests.engine.test_many_traces import groups, job

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("slurm")]

_DEFINITION = "dask_kubernetes/operator/deployment/helm/dask-kubernetes-operator/crds/daskcluster.yaml"
#: Jobs as small as the node, which reach the scheduler on this machine.
SMALL = 'cores = 1\nmemory = "500MB"\ninterface = "lo"\n'


KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: tests, cluster: {server: "http://127.0.0.1:PORT"}}]
users: [{name: tests, user: {}}]
contexts: [{name: tests, context: {cluster: tests, user: tests}}]
current-context: tests
"""


def documented(kind: str) -> str:
    """The file that the guide shows for a kind of cluster."""
    blocks: list[str] = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "many-ranks.md").read_text(), re.DOTALL)
    return next(block for block in blocks if f'kind = "{kind}"' in block)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with slurm_node(tmp_path_factory.mktemp("slurm") / "node") as variables:
        yield variables


def test_workers_that_are_jobs_of_slurm_give_the_same_bytes_and_end(tmp_path: Path, slurm: dict[str, str]) -> None:
    (tmp_path / "traces").mkdir()
    job(tmp_path / "traces", 6)
    (tmp_path / "cluster.toml").write_text(documented("slurm").replace('"ib0"', '"lo"'))
    before = len(jobs(slurm))
    words = ("--cluster", "cluster.toml", "--workers", "2", "--format", "json", "traces")
    answer = perfscope("analyze", *words, cwd=tmp_path, **slurm)
    assert (answer.code, answer.stderr) == (0, "")
    expected = perfscope("analyze", "--engine", "serial", "--format", "json", tmp_path / "traces", cwd=tmp_path)
    assert answer.stdout == expected.stdout
    new = jobs(slurm)[before:]
    assert len(new) == 2
    assert not {"RUNNING", "PENDING"} & set(new)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.toml", "traces"]


def cancels_its_job(marks: Path, files: TraceFiles) -> MeasuredTrace:
    if is_first(marks, files):
        subprocess.run(["scancel", os.environ["SLURM_JOB_ID"]], check=True)
        os.kill(os.getpid(), 9)
    return measure(files, TASK)


def test_a_job_that_slurm_ends_costs_no_trace(
    tmp_path: Path, slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**slurm, "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    paths = job(tmp_path, 8)
    choice = ClusterChoice(ClusterKind.SLURM, {"cores": 1, "memory": "500MB", "interface": "lo"})
    measuring = partial(cancels_its_job, marks_of(tmp_path))
    require_all(list(measure_on_cluster(measuring, groups(paths, 2), {}, 2, cluster=choice)), paths)
    assert "CANCELLED" in jobs(slurm)


def test_a_job_that_slurm_refuses_is_said_before_anything_waits(tmp_path: Path, slurm: dict[str, str]) -> None:
    job(tmp_path, 2)
    (tmp_path / "cluster.toml").write_text(f'kind = "slurm"\n{SMALL}queue = "nowhere"\n')
    answer = perfscope("analyze", "--cluster", "cluster.toml", ".", cwd=tmp_path, **slurm)
    assert (answer.code, answer.stdout) == (2, "")
    assert answer.stderr.startswith("perfscope: Slurm refuses the job of a worker: ")
    assert "invalid partition" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_ctrl_c_cancels_jobs_that_have_not_started(tmp_path: Path, slurm: dict[str, str]) -> None:
    job(tmp_path, 4)
    (tmp_path / "cluster.toml").write_text(f'kind = "slurm"\n{SMALL}job_extra_directives = ["--hold"]\n')
    before = len(jobs(slurm))
    words = [sys.executable, "-m", "perfscope", "analyze", "--cluster", "cluster.toml", "--workers", "2", "."]
    settings = {**environment(), **slurm}
    process = subprocess.Popen(words, cwd=tmp_path, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while jobs(slurm)[before:].count("PENDING") < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert set(jobs(slurm)[before:]) == {"CANCELLED"}


def test_a_machine_without_slurm_is_said_so(tmp_path: Path) -> None:
    job(tmp_path, 2)
    answer = perfscope("analyze", "--cluster", "slurm", ".", cwd=tmp_path, PATH=str(Path(sys.executable).parent))
    assert (answer.code, answer.stdout) == (2, "")
    assert answer.stderr.startswith("perfscope: --cluster slurm needs sbatch, which is not here")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("lsf", "--cluster takes slurm or kubernetes, or a file that ends in .toml, not lsf"),
        ("none.toml", "none.toml cannot be read: No such file"),
        ("bad.toml", "bad.toml is not TOML"),
        ("kind.toml", "kind.toml must say which kind of cluster: kind = slurm or kubernetes"),
    ],
)
def test_a_choice_that_cannot_work_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text("kind = slurm")
    Path("kind.toml").write_text('kind = "lsf"')
    with pytest.raises(PerfscopeError, match=problem):
        read_cluster(text)


def test_two_clusters_at_once_are_refused(tmp_path: Path) -> None:
    job(tmp_path, 1)
    answer = perfscope("analyze", "--cluster", "slurm", "--scheduler", "tcp://127.0.0.1:1", ".", cwd=tmp_path)
    assert answer.code == 2
    assert "give one of them" in answer.stderr
    answer = perfscope("analyze", "--cluster", "slurm", "--engine", "process", ".", cwd=tmp_path)
    assert answer.code == 2
    assert "--cluster needs --engine dask, not process" in answer.stderr


@pytest.mark.parametrize(("kind", "package"), [("slurm", "dask_jobqueue"), ("kubernetes", "dask_kubernetes")])
def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, kind: str, package: str) -> None:
    for module in (package, f"{package}.operator"):
        monkeypatch.setitem(sys.modules, module, None)
    with (
        pytest.raises(UsageError, match=f"--cluster {kind} needs {package}") as error,
        clusters.connect(1, None, ClusterChoice(ClusterKind(kind), {"image": "any"})),
    ):
        pass
    assert error.value.hint == f"pip install 'perfscope-toolkit[{kind}]'"


def resource_of(**options: object) -> dict[str, Any]:
    """The resource that dask-kubernetes would ask Kubernetes for, which must fit the definition that it installs."""
    from dask_kubernetes.operator import KubeCluster, make_cluster_spec

    inspect.signature(KubeCluster.__init__).bind(None, **options)
    taken = inspect.signature(make_cluster_spec).parameters
    resource: dict[str, Any] = make_cluster_spec(**{name: value for name, value in options.items() if name in taken})
    package = distribution("dask-kubernetes")
    definition = yaml.safe_load(Path(str(package.locate_file(_DEFINITION))).read_text())
    (version,) = (entry for entry in definition["spec"]["versions"] if entry["name"] == "v1")
    jsonschema.validate(resource, version["schema"]["openAPIV3Schema"])
    return resource


def test_kubernetes_is_asked_for_a_resource_that_its_definition_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    class Started(LocalCluster):
        """Stands for the operator: as many workers as the resource says, as processes of this machine."""

        def __init__(self, **options: object) -> None:
            asked.append(resource_of(**options))
            super().__init__(asked[0]["spec"]["worker"]["replicas"], threads_per_worker=1, dashboard_address=":0")

    monkeypatch.setattr("dask_kubernetes.operator.KubeCluster", Started)
    monkeypatch.setattr(clusters, "_require_kubernetes", lambda: None)
    (tmp_path / "cluster.toml").write_text(documented("kubernetes"))
    paths = job(tmp_path, 4)
    choice = read_cluster(str(tmp_path / "cluster.toml"))
    require_all(list(measure_on_cluster(partial(measure, task=TASK), groups(paths), {}, 2, cluster=choice)), paths)
    (resource,) = asked
    assert resource["kind"] == "DaskCluster"
    worker = resource["spec"]["worker"]["spec"]["containers"][0]
    assert worker["image"] == "registry/perfscope:1"
    assert worker["resources"] == {"limits": {"memory": "4Gi"}}
    assert {"name": "AWS_ENDPOINT_URL", "value": "http://store:9000"} in worker["env"]


def test_kubernetes_needs_an_image_and_a_cluster(tmp_path: Path) -> None:
    job(tmp_path, 2)
    answer = perfscope("analyze", "--cluster", "kubernetes", ".", cwd=tmp_path)
    assert (answer.code, answer.stdout) == (2, "")
    assert answer.stderr.startswith("perfscope: --cluster kubernetes needs an image in which perfscope is installed")
    (tmp_path / "cluster.toml").write_text('kind = "kubernetes"\nimage = "registry/perfscope:1"\n')
    nobody = {"KUBECONFIG": str(tmp_path / "none"), "HOME": str(tmp_path)}
    answer = perfscope("analyze", "--cluster", "cluster.toml", ".", cwd=tmp_path, **nobody)
    assert (answer.code, answer.stdout) == (2, "")
    assert answer.stderr == "perfscope: Kubernetes cannot be reached: Unable to find valid credentials\n"
    gone = KUBECONFIG.replace("PORT", "9")
    (tmp_path / "none").write_text(gone)
    answer = perfscope("analyze", "--cluster", "cluster.toml", ".", cwd=tmp_path, **nobody)
    assert (answer.code, answer.stdout) == (2, "")
    assert answer.stderr == "perfscope: Kubernetes cannot be reached: All connection attempts failed\n"
