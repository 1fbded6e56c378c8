"""Rank, size and addresses of a process, from the variables of what started it."""

from __future__ import annotations

import json

import pytest

from returnn_tf.config import ConfigError
from returnn_tf.engine.distributed.membership import expand_hosts, find, host_of, port_of, tasks_per_node


def _launched(rank="1", local_rank="1", local_size="2", addresses="a:1001,a:1002,b:1001", **others):
    return {
        "RETURNN_TF_RANK": rank,
        "RETURNN_TF_LOCAL_RANK": local_rank,
        "RETURNN_TF_LOCAL_SIZE": local_size,
        "RETURNN_TF_ADDRESSES": addresses,
        **others,
    }


def _tf_config(cluster, kind, index):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def test_nothing_is_set():
    assert find({}) is None
    assert find({"HOME": "/", "OMP_NUM_THREADS": "2"}) is None


@pytest.mark.parametrize(
    "environ, expected",
    [
        (_launched(), (1, 3, 1, 2)),
        (_launched("2", "0", "1"), (2, 3, 0, 1)),
        (_launched("0", "0", "1", "[::1]:80"), (0, 1, 0, 1)),
    ],
)
def test_launched(environ, expected):
    found = find(environ)
    assert (found.rank, found.size, found.local_rank, found.local_size) == expected
    assert ",".join(found.addresses) == environ["RETURNN_TF_ADDRESSES"]


def test_a_token_is_that_of_a_run():
    """Equal for its ranks, another one with other addresses or another secret."""
    of_ranks = {find(_launched(rank, rank, RETURNN_TF_SECRET="x")).token for rank in "01"}
    others = {
        find(_launched()).token,
        find(_launched(RETURNN_TF_SECRET="y")).token,
        find(_launched(addresses="a:1001,a:1002,b:1002", RETURNN_TF_SECRET="x")).token,
    }
    assert len(of_ranks) == 1 and len(others) == 3 and not of_ranks & others


def test_parts_of_addresses():
    assert [(host_of(address), port_of(address)) for address in ("a.b:1", "[::1]:80")] == [("a.b", 1), ("::1", 80)]


def _slurm(procid, localid, nodeid, tasks, nodelist, per_node, **others):
    """Return the variables of a task as srun of Slurm 22.05 sets them."""
    numbers = {
        "PROCID": procid,
        "LOCALID": localid,
        "NODEID": nodeid,
        "STEP_NUM_TASKS": tasks,
        "JOB_ID": 7,
        "STEP_ID": 0,
    }
    texts = {"STEP_NODELIST": nodelist, "STEP_TASKS_PER_NODE": per_node, **others}
    return {"SLURM_" + name: str(value) for name, value in {**numbers, **texts}.items()}


_CYCLIC = {"DISTRIBUTION": "cyclic"}


@pytest.mark.parametrize(
    "nodelist, per_node, others, tasks",
    [
        ("n[1-2]", "3,1", {}, [("n1", 0, 0), ("n1", 1, 0), ("n1", 2, 0), ("n2", 0, 1)]),
        ("n[1-3]", "2,1(x2)", {}, [("n1", 0, 0), ("n1", 1, 0), ("n2", 0, 1), ("n3", 0, 2)]),
        ("n[1-2]", "2,1", {"DISTRIBUTION": "block"}, [("n1", 0, 0), ("n1", 1, 0), ("n2", 0, 1)]),
        ("n[1-2]", "1(x2)", _CYCLIC, [("n1", 0, 0), ("n2", 0, 1)]),
        ("n[1-2]", "4,1", _CYCLIC, [("n1", 0, 0), ("n2", 0, 1), ("n1", 1, 0), ("n1", 2, 0), ("n1", 3, 0)]),
        ("a,b", "2(x2)", {"DISTRIBUTION": "cyclic:block"}, [("a", 0, 0), ("b", 0, 1), ("a", 1, 0), ("b", 1, 1)]),
    ],
)
def test_slurm(nodelist, per_node, others, tasks):
    """Recorded from srun on several nodes: host, local rank and node of each task."""
    found = [
        find(_slurm(rank, local, node, len(tasks), nodelist, per_node, **others))
        for rank, (_, local, node) in enumerate(tasks)
    ]
    hosts = [host for host, _, _ in tasks]
    assert [(m.rank, m.size, m.local_rank, m.local_size) for m in found] == [
        (rank, len(tasks), local, hosts.count(host)) for rank, (host, local, _) in enumerate(tasks)
    ]
    assert len({m.addresses for m in found}) == len({m.token for m in found}) == 1
    assert [host_of(address) for address in found[0].addresses] == hosts
    ports = [port_of(address) for address in found[0].addresses]
    assert [port - ports[0] for port in ports] == [local for _, local, _ in tasks]


def test_slurm_on_one_node():
    """By the address of the machine itself, whatever the name of the node is, and however tasks are distributed."""
    found = [find(_slurm(rank, rank, 0, 2, "n1", "2", DISTRIBUTION="plane")) for rank in range(2)]
    assert [(m.rank, m.local_rank, m.local_size) for m in found] == [(0, 0, 2), (1, 1, 2)]
    assert [host_of(address) for address in found[0].addresses] == ["127.0.0.1"] * 2


def _ports(environ, **others):
    return [port_of(address) for address in find({**environ, **others}).addresses]


def test_ports_of_jobs_and_steps():
    """Different for jobs and steps that run at the same time, the same in all ranks, and no ports of connections."""
    jobs = [{**_slurm(0, 0, 0, 4, "n[1-2]", "2(x2)"), "SLURM_JOB_ID": str(job)} for job in range(1000, 1030)]
    environs = [{**job, "SLURM_STEP_ID": step} for job in jobs for step in ("0", "1")]
    first = [_ports(environ)[0] for environ in environs]
    assert len(set(first)) == len(first) and all(12000 <= port < 32000 for port in first)
    assert min(abs(one - other) for one in first for other in first if one != other) >= 2


def test_ports_that_are_given():
    """By Slurm for the step, if they suffice; by the user before all."""
    environ = _slurm(0, 0, 0, 3, "n[1-2]", "2,1")
    assert _ports(environ, SLURM_STEP_RESV_PORTS="12001-12003") == [12001, 12002, 12001]
    assert _ports(environ, SLURM_STEP_RESV_PORTS="12001,12007-12008") == [12001, 12007, 12001]
    assert _ports(environ, SLURM_STEP_RESV_PORTS="12001") == _ports(environ)
    assert _ports(environ, SLURM_STEP_RESV_PORTS="12001-12003", RETURNN_TF_PORT="500") == [500, 501, 500]


def test_many_ranks_on_a_host():
    ports = _ports(_slurm(0, 0, 0, 200, "n1", "200"))
    assert len(set(ports)) == 200 and max(ports) < 32000


def test_single_tasks_are_alone():
    """As of srun --pty bash, and in a job script, which is no step."""
    assert find(_slurm(0, 0, 0, 1, "n1", "1")) is None
    script = {"SLURM_PROCID": "0", "SLURM_NTASKS": "3", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2,1"}
    assert find(script) is None
    assert find(_mpi(0, 1, 0, 1)) is None
    assert find(_tf_config({"worker": ["a:1"]}, "worker", 0)) is None
    assert find({"TF_CONFIG": ""}) is None


def _mpi(rank, size, local_rank, local_size, names="OMPI_COMM_WORLD_%s", **others):
    values = {"RANK": rank, "SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size}
    return {**{names % name: str(value) for name, value in values.items()}, "PMIX_NAMESPACE": "818216961", **others}


def test_mpi_on_one_host():
    found = [find(_mpi(rank, 2, rank, 2)) for rank in range(2)]
    assert [(m.rank, m.size, m.local_rank, m.local_size) for m in found] == [(0, 2, 0, 2), (1, 2, 1, 2)]
    assert found[0].addresses == found[1].addresses and found[0].token == found[1].token
    assert [host_of(address) for address in found[0].addresses] == ["127.0.0.1"] * 2
    assert _ports(_mpi(0, 2, 0, 2)) != _ports(_mpi(0, 2, 0, 2), PMIX_NAMESPACE="818216962")


def test_mpich():
    found = find({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "8"})
    assert (found.rank, found.size, found.local_rank, found.local_size) == (1, 2, 1, 2)


def test_mpi_on_several_hosts(tmp_path):
    """By a list of the user, the machine file of Grid Engine, or the nodes of a job of Slurm."""
    file = tmp_path / "pe_hostfile"
    file.write_text("a 2 all.q@a UNDEFINED\nb.c 1 all.q@b <NULL>\n")
    for others in ({"RETURNN_TF_HOSTS": "a:2,b.c:1"}, {"PE_HOSTFILE": str(file), "JOB_ID": "12"}):
        found = [find(_mpi(*numbers, **others)) for numbers in ((0, 3, 0, 2), (1, 3, 1, 2), (2, 3, 0, 1))]
        assert [host_of(address) for address in found[0].addresses] == ["a", "a", "b.c"]
        assert len({m.token for m in found}) == 1
    found = find(_mpi(3, 4, 1, 2, SLURM_JOB_NODELIST="n[1-2]", SLURM_JOB_ID="5"))
    assert [host_of(address) for address in found.addresses] == ["n1", "n1", "n2", "n2"]
    found = find(_mpi(1, 2, 0, 1, RETURNN_TF_HOSTS="[fd00::1]:1,[fd00::2]:1"))
    assert found.addresses[1].startswith("[fd00::2]:") and host_of(found.addresses[1]) == "fd00::2"


def test_an_mpi_in_a_step_of_slurm():
    """Daemons that srun has started: the processes have its variables, too, which are those of the daemons."""
    daemon = _slurm(1, 0, 1, 2, "n[1-2]", "1(x2)", JOB_NODELIST="n[1-2]")
    found = find({**daemon, **_mpi(2, 4, 0, 2)})
    assert (found.rank, found.size, found.source) == (2, 4, "SLURM_JOB_NODELIST")
    script = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}  # of the processes that mpirun itself starts
    assert find({**script, **_mpi(0, 4, 0, 2)}).token == found.token


def test_srun_with_pmi2_is_slurm():
    found = find({**_slurm(1, 1, 0, 2, "n1", "2"), "PMI_RANK": "1", "PMI_SIZE": "2"})
    assert found.source == "SLURM_STEP_NODELIST" and found.rank == 1


@pytest.mark.parametrize(
    "cluster, task, expected",
    [
        ({"worker": ["a:1", "b:1"]}, ("worker", 1), (1, 2, 0, 1)),
        ({"worker": ["a:1", "a:2", "b:1"]}, ("worker", 1), (1, 3, 1, 2)),
        ({"worker": ["a:1", "a:2"], "chief": ["c:1"]}, ("worker", 0), (1, 3, 0, 2)),
        ({"worker": ["a:1"], "chief": ["c:1"]}, ("chief", 0), (0, 2, 0, 1)),
    ],
)
def test_tf_config(cluster, task, expected):
    found = find(_tf_config(cluster, *task))
    assert (found.rank, found.size, found.local_rank, found.local_size) == expected
    assert list(found.addresses) == cluster.get("chief", []) + cluster["worker"]


def test_the_first_that_is_there_counts():
    """The processes of launch in a job, TF_CONFIG in one, and an MPI before Slurm."""
    slurm = _slurm(1, 1, 0, 2, "n1", "2")
    config = _tf_config({"worker": ["a:1", "b:1"]}, "worker", 0)
    assert find({**slurm, **config, **_launched()}).source == "RETURNN_TF_ADDRESSES"
    assert find({**slurm, **config, **_mpi(0, 2, 0, 2)}).source == "TF_CONFIG"


def test_lists_of_slurm():
    assert expand_hosts("n[1-2,7],gpu[008-011]-ib,a.b,r[1-2]n[1,3]") == [
        *("n1", "n2", "n7"),
        *("gpu008-ib", "gpu009-ib", "gpu010-ib", "gpu011-ib"),
        "a.b",
        *("r1n1", "r1n3", "r2n1", "r2n3"),
    ]
    assert expand_hosts("") == []
    assert tasks_per_node("2(x3),1,10(x2)") == [2, 2, 2, 1, 10, 10]


@pytest.mark.parametrize(
    "environ, error",
    [
        ({"RETURNN_TF_RANK": "0"}, "RETURNN_TF_RANK is set, but not RETURNN_TF_LOCAL_RANK and RETURNN_TF_LOCAL_SIZE"),
        (_launched(rank="-1"), "RETURNN_TF_RANK must be a number from 0, not '-1'"),
        (_launched(local_size="two"), "RETURNN_TF_LOCAL_SIZE must be a number from 0, not 'two'"),
        (_launched(rank="3"), "RETURNN_TF_RANK=3 is not a rank of 3 processes"),
        (_launched(addresses=""), "RETURNN_TF_ADDRESSES: '' is not host:port"),
        (_launched(addresses="a:1,a"), "'a' is not host:port"),
        (_launched(addresses="a:1,a:65536"), "'a:65536' is not host:port, with a port from 1 to 65535"),
        (_launched(addresses="a:1,b:1,a:1"), "RETURNN_TF_ADDRESSES names a:1 for several ranks"),
        (_launched(local_size="1"), "has local rank 1 of 1, but by RETURNN_TF_ADDRESSES it has local rank 1 of 2 on a"),
        (_launched(local_rank="0"), "has local rank 0 of 2, but by RETURNN_TF_ADDRESSES it has local rank 1 of 2 on a"),
        ({"SLURM_STEP_NUM_TASKS": "2"}, "SLURM_STEP_NUM_TASKS is 2, but SLURM_PROCID and SLURM_LOCALID and"),
        (_slurm(0, 0, 0, 3, "n[1-2]", "1(x2)"), r"TASKS_PER_NODE = 1\(x2\) does not fit 3 tasks on .*\[1-2\], 2 nodes"),
        (_slurm(0, 0, 0, 2, "n[1-3]", "1(x2)"), "does not fit 2 tasks .* 3 nodes"),
        (_slurm(0, 0, 0, 2, "n[1-2", "1(x2)"), r"'n\[1-2' is not a list of hosts"),
        (_slurm(0, 0, 0, 2, "n[1-x]", "1(x2)"), r"'n\[1-x\]' is not a list of hosts"),
        (_slurm(0, 0, 0, 2, "n1,,n2", "1(x2)"), "'n1,,n2' is not a list of hosts"),
        (_slurm(0, 0, 0, 2, "n[1-2]", "one"), "'one' is not a list of numbers of tasks"),
        (_slurm(0, 0, 0, 3, "n[1-2]", "2,1", DISTRIBUTION="plane"), "SLURM_DISTRIBUTION = plane does not tell"),
        (_slurm(0, 0, 1, 3, "n[1-2]", "1,2", DISTRIBUTION="arbitrary"), "srun --distribution=block"),
        (_slurm(1, 0, 1, 3, "n[1-2]", "2,1"), "SLURM_NODEID=1 and SLURM_LOCALID=0 are not the place of SLURM_PROCID=1"),
        (_slurm(0, 0, 0, 2, "n[1-2]", "1(x2)", STEP_RESV_PORTS="x"), "'x' is not a list"),
        (
            {**_slurm(0, 0, 0, 2, "n1", "2"), "RETURNN_TF_PORT": "65535"},
            "RETURNN_TF_PORT = 65535: a host needs 2 ports",
        ),
        ({**_slurm(0, 0, 0, 2, "n1", "2"), "RETURNN_TF_PORT": "any"}, "RETURNN_TF_PORT must be a number"),
        (
            _mpi(0, 4, 0, 2),
            "mpirun has started 4 processes, 2 of them on this host.*-x RETURNN_TF_HOSTS=node1:2,node2:2",
        ),
        (_mpi(0, 4, 0, 2, RETURNN_TF_HOSTS="a:2"), "RETURNN_TF_HOSTS has hosts for 2 processes, but there are 4"),
        (_mpi(0, 4, 0, 2, RETURNN_TF_HOSTS="a,b"), "RETURNN_TF_HOSTS: 'a' is no host with a number of processes"),
        (_mpi(1, 4, 0, 2, RETURNN_TF_HOSTS="a:2,b:2"), "RANK=1 has local rank 0 of 2, but by RETURNN_TF_HOSTS it has"),
        (
            _mpi(0, 3, 0, 1, RETURNN_TF_HOSTS="a:2,b:2"),
            "local rank 0 of 1, but by RETURNN_TF_HOSTS it has local rank 0 of 2",
        ),
        (_mpi(0, 2, 0, 1, PE_HOSTFILE="/nowhere/file"), "PE_HOSTFILE: /nowhere/file: No such file"),
        (
            _tf_config({"worker": ["a:1", "b:1"]}, "worker", 2),
            "this is to be worker 2, but the cluster has no such task",
        ),
        (_tf_config({"worker": ["a:1", "b:1"]}, "chief", 0), "this is to be chief 0, but"),
        (_tf_config({"worker": ["a:1"], "ps": ["b:1"]}, "worker", 0), "tasks of type ps, but all train"),
        (_tf_config({"worker": ["a:1", "a:1"]}, "worker", 0), "TF_CONFIG names a:1 for several ranks"),
        (_tf_config({"worker": ["a:1", "b"]}, "worker", 0), "TF_CONFIG: 'b' is not host:port"),
        ({"TF_CONFIG": "{}"}, "TF_CONFIG must be like"),
        ({"TF_CONFIG": "worker"}, "TF_CONFIG must be like .*, not worker"),
        ({"TF_CONFIG": "[1]"}, "TF_CONFIG must be like"),
    ],
)
def test_contradictions(environ, error):
    with pytest.raises(ConfigError, match=error):
        find(environ)
