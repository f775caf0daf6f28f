"""Training over two hosts without a shared file system, by real launchers over real ssh, becomes one run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.collect.hosts import Host, finish, hosts, scripts, write_on

pytestmark = [pytest.mark.timeout(500), pytest.mark.slow]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    with hosts(tmp_path_factory.mktemp("hosts"), 2) as pair:
        yield pair


def collected_and_analyzed(host: Host, *words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Collect on a host over ssh, again to see that nothing changes, and analyze the whole run there."""
    first = host.perfscope("collect", "--format", "json", *words)
    assert first.code == 0, first.stderr
    again = host.perfscope("collect", "--format", "json", *words)
    assert again.code == 0, again.stderr
    answer = host.perfscope("analyze", "--format", "json", words[-1])
    assert answer.code == 0, answer.stderr
    return json.loads(first.stdout), json.loads(answer.stdout)


def test_hosts_see_nothing_of_each_other_but_over_the_network(two: list[Host]) -> None:
    write_on(two[0], "mine", ["x"])
    assert two[0].run("ls").stdout.split() == ["mine"]
    assert two[1].run("ls").stdout == ""
    assert two[0].run("ssh", "node2", "hostname").stdout == "node2\n"


def test_deepspeed_over_pdsh_reaches_ranks_of_both_hosts(two: list[Host]) -> None:
    one, other = two
    write_on(one, "hostfile", ["node1 slots=1", "node2 slots=1"])
    launch = ["--hostfile", "hostfile", "--master_addr", one.address, "--master_port", "29511", "--launcher", "pdsh"]
    options = ["-o", "RUN", "--steps", "4-6"]
    script = scripts() / "deepspeed_engine.py"
    ended = one.perfscope("profile", *options, "--", "deepspeed", *launch, script, "--stage", "1")
    assert ended.code == 0, ended.stderr
    assert "1 of 2 ranks never reported: 1" in ended.stderr  # its files are on the other host
    assert one.run("ls", "RUN/ranks").stdout.split() == ["00000"]
    assert other.run("ls", "RUN/ranks").stdout.split() == ["00001"]

    collected, analysis = collected_and_analyzed(one, f"node2:{other.work}/RUN", "-o", "RUN")
    assert (collected["ranks"], collected["missing_ranks"]) == ([0, 1], [])
    assert [part["hosts"] for part in collected["parts"]] == [["node2"]]
    steps = analysis["results"]["steps"]
    assert [(rank["rank"], rank["count"]) for rank in steps["ranks"]] == [(0, 8), (1, 8)]
    assert {rank["rank"] for rank in analysis["results"]["host"]["ranks"]} == {0, 1}


def test_torchrun_on_each_host_becomes_one_run_wherever_its_parts_are_collected(two: list[Host]) -> None:
    one, other = two
    meeting = ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"{one.address}:29512", "--rdzv_id", "job"]
    torchrun = ["torchrun", "--nnodes", "2", "--nproc_per_node", "1", *meeting, str(scripts() / "ddp.py")]
    command = [sys.executable, "-m", "perfscope", "profile", "-o", "PART", "--", *torchrun]
    for ended in [finish(process) for process in [host.start(*command) for host in two]]:
        assert ended.code == 0, ended.stderr
    collected, analysis = collected_and_analyzed(other, f"node1:{one.work}/PART", "PART", "-o", "WHOLE")
    assert (collected["ranks"], collected["missing_ranks"]) == ([0, 1], [])
    assert sorted(host for part in collected["parts"] for host in part["hosts"]) == ["node1", "node2"]
    assert analysis["results"]["steps"]["count"] == 10
    assert sorted(other.run("ls", "WHOLE/hosts").stdout.split()) == ["node1.json", "node2.json"]

    # A host that is gone is named, and its ranks are missing.
    ended = one.perfscope(
        "collect", "PART", f"10.99.0.9:{other.work}/PART", "-o", "REST", "--ssh", "ssh -o ConnectTimeout=2"
    )
    assert ended.code == 4
    assert "warning: 10.99.0.9:" in ended.stderr
    assert "1 of 2 ranks are missing" in ended.stderr
