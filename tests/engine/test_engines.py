"""Which engine connects the processes, and how both kinds of settings make one record."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from returnn_tf.config import Config, ConfigError
from returnn_tf.config.settings.distributed import HOROVOD, SEED, TENSORFLOW, Distributed
from returnn_tf.engine.distributed import engines, membership, world
from returnn_tf.engine.distributed.options import is_distributed, options_of
from returnn_tf.engine.passes.progress import data_settings
from returnn_tf.logging.log import log
from returnn_tf.tasks.setting_checks import check_options_in_settings

LAUNCHED = {
    "RETURNN_TF_RANK": "1",
    "RETURNN_TF_LOCAL_RANK": "1",
    "RETURNN_TF_LOCAL_SIZE": "2",
    "RETURNN_TF_ADDRESSES": "127.0.0.1:7001,127.0.0.1:7002",
}


def of_mpi(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, str]:
    """Return what Open MPI sets for a process."""
    values = {"RANK": rank, "SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size}
    return {"OMPI_COMM_WORLD_" + name: str(value) for name, value in values.items()}


MPI = of_mpi(1, 2, 1, 2)
ON_HOSTS = of_mpi(5, 8, 1, 4)  # the variables do not tell the other host
SRUN = {
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
PMI2 = {**SRUN, "PMI_RANK": "3", "PMI_SIZE": "4"}  # srun --mpi=pmi2
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}  # mpirun of MPICH
PLANE = {**SRUN, "SLURM_DISTRIBUTION": "plane=2"}  # the variables do not tell the node of each rank
OLD: dict[str, Any] = {"use_horovod": True}
NEW: dict[str, Any] = {"distributed": {}}


def of_engine(name: str) -> dict[str, Any]:
    return {"distributed": {"engine": name}}


@pytest.mark.parametrize(
    "settings,environ,installed,engine,remark",
    [
        (OLD, MPI, True, HOROVOD, ""),
        (OLD, ON_HOSTS, True, HOROVOD, ""),
        (OLD, PLANE, True, HOROVOD, ""),
        (OLD, {}, True, HOROVOD, ""),
        (OLD, {}, False, HOROVOD, ""),  # an error that tells how to install it
        (OLD, MPI, False, TENSORFLOW, "Horovod is not installed"),
        (OLD, SRUN, False, TENSORFLOW, "Horovod is not installed"),
        (OLD, LAUNCHED, True, TENSORFLOW, "returnn-tf launch has started"),
        (OLD, LAUNCHED, False, TENSORFLOW, "returnn-tf launch has started"),
        ({**OLD, **NEW}, LAUNCHED, True, TENSORFLOW, "returnn-tf launch has started"),
        (NEW, MPI, True, HOROVOD, ""),
        (NEW, MPI, False, TENSORFLOW, ""),
        (NEW, ON_HOSTS, True, HOROVOD, ""),
        (NEW, SRUN, True, TENSORFLOW, ""),
        (NEW, PMI2, True, TENSORFLOW, ""),
        (OLD, PMI2, True, HOROVOD, ""),
        (NEW, HYDRA, True, HOROVOD, ""),
        (NEW, {"HOROVOD_SIZE": "2"}, True, HOROVOD, ""),
        (NEW, {"HOROVOD_SIZE": "2"}, False, TENSORFLOW, ""),
        (NEW, LAUNCHED, True, TENSORFLOW, ""),
        (NEW, {**LAUNCHED, **MPI}, True, TENSORFLOW, ""),
        (NEW, {}, True, TENSORFLOW, ""),
        ({}, LAUNCHED, True, TENSORFLOW, ""),
        (of_engine(HOROVOD), LAUNCHED, False, HOROVOD, ""),
        (of_engine(TENSORFLOW), MPI, True, TENSORFLOW, ""),
    ],
)
def test_choice(
    settings: dict[str, Any],
    environ: dict[str, str],
    installed: bool,
    engine: str,
    remark: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "has_horovod", lambda: installed)
    choice = engines.choose(Config(settings), environ)
    assert (choice.engine, bool(choice.remark)) == (engine, bool(remark)) and remark in choice.remark
    if engine == TENSORFLOW:
        assert choice.member == membership.find(environ)


@pytest.mark.parametrize("settings", [OLD, NEW, of_engine(TENSORFLOW)], ids=str)
@pytest.mark.parametrize("environ,words", [(ON_HOSTS, "RETURNN_TF_HOSTS"), (PLANE, "SLURM_DISTRIBUTION")], ids=str)
def test_variables_that_do_not_tell_the_hosts(
    settings: dict[str, Any], environ: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error for TensorFlow's engine only, which needs them."""
    monkeypatch.setattr(engines, "has_horovod", lambda: False)
    with pytest.raises(ConfigError, match=words):
        engines.choose(Config(settings), environ)


@pytest.mark.parametrize(
    "settings,environ,wanted",
    [
        ({}, {}, False),
        ({}, MPI, False),
        ({}, LAUNCHED, True),
        ({"use_horovod": False}, LAUNCHED, False),
        ({"use_horovod": False, **NEW}, {}, True),
        (OLD, {}, True),
        (NEW, {}, True),
        ({"distributed": None}, {}, False),
    ],
)
def test_several_processes(settings: dict[str, Any], environ: dict[str, str], wanted: bool) -> None:
    assert engines.several_wanted(Config(settings), environ) == wanted


@pytest.mark.parametrize(
    "settings,environ,told",
    [
        ({}, MPI, "2 processes were started together (OMPI_COMM_WORLD_SIZE)"),
        ({}, SRUN, "4 processes were started together (SLURM_STEP_NUM_TASKS)"),
        ({"use_horovod": False}, SRUN, "4 processes were started together (SLURM_STEP_NUM_TASKS)"),
        ({"use_horovod": False}, LAUNCHED, "2 processes were started together (RETURNN_TF_ADDRESSES)"),
        ({}, {}, ""),
        ({}, {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "4"}, ""),
        ({}, of_mpi(0, 1, 0, 1), ""),
    ],
    ids=str,
)
def test_processes_that_are_not_connected(
    settings: dict[str, Any], environ: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning, once, with the setting that connects them."""
    monkeypatch.setattr(world, "_started", [])
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with log.collected_warnings() as warnings:
        alone = [world.start(Config(settings)) for _ in range(2)]
    assert [each.size for each in alone] == [1, 1] and len(warnings) == bool(told)
    for text in warnings:
        assert text.startswith(told) and text.endswith("distributed = {}")


def test_alone() -> None:
    """Asked for, but nobody has started several processes: a world of one process, without a server."""
    alone = world.start(Config(of_engine(TENSORFLOW)))
    assert type(alone) is world.World and alone.size == 1


SAME: list[tuple[str, Any, dict[str, Any]]] = [
    ("data", SEED, {"horovod_dataset_distribution": SEED}),
    ("reduce", "param", {"horovod_reduce_type": "param"}),
    ("sync_steps", 7, {"horovod_param_sync_step": 7}),
    ("sync_seconds", 2.5, {"horovod_param_sync_time_diff": 2.5}),
    ("sync_on_cpu", True, {"horovod_avg_param_on_cpu": True}),
    ("scale_learning_rate", True, {"horovod_scale_lr": True}),
    ("average_gradients", True, {"horovod_avg_grad": True}),
    ("compression", "fp16", {"horovod_compression": "fp16"}),
    ("timeout", 7.0, {"horovod_timeout": 7.0}),
    ("check_size", False, {"horovod_check_world_size": False}),
]


@pytest.mark.parametrize("name,value,older", SAME, ids=lambda value: value if isinstance(value, str) else "")
def test_both_settings_mean_the_same(name: str, value: Any, older: dict[str, Any]) -> None:
    """One record, whichever is used; both with one value are fine, with two they contradict each other."""
    expected = Distributed(**{name: value})
    assert expected != Distributed()
    for settings in ({**OLD, **older}, {"distributed": {name: value}}, {**older, "distributed": {name: value}}):
        assert options_of(Config(settings)) == expected and is_distributed(Config(settings))
    default = getattr(Distributed(), name)
    if default is not None:
        with pytest.raises(ConfigError, match="They mean the same: remove one of them") as error:
            options_of(Config({**older, "distributed": {name: default}}))
        assert next(iter(older)) in str(error.value) and repr(name) in str(error.value)


@pytest.mark.parametrize(
    "settings,words",
    [
        ({"distributed": {"engine": "mpi"}}, "option 'engine' is 'mpi'"),
        ({"distributed": {"engin": "auto"}}, "Did you mean 'engine'"),
        ({"distributed": {"timeout": 0}}, "above 0"),
        ({"distributed": {"communication": "mpi"}}, "option 'communication'"),
        ({**OLD, **of_engine(TENSORFLOW)}, "'use_horovod' is True, but"),
        ({"use_horovod": False, **of_engine(HOROVOD)}, "'use_horovod' is False, but"),
        ({"distributed": True}, "distributed"),
    ],
)
def test_wrong_options(settings: dict[str, Any], words: str) -> None:
    """Told before anything starts."""
    with pytest.raises(ConfigError, match=words):
        check_options_in_settings(Config(settings))


@pytest.mark.parametrize("value", [None, SEED])
def test_a_run_may_change_from_one_setting_to_the_other_within_an_epoch(value: Optional[str]) -> None:
    """The order of the data is the same."""
    old = {**OLD, **({"horovod_dataset_distribution": value} if value else {})}
    assert data_settings(Config(old)) == data_settings(Config({"distributed": {"data": value} if value else {}}))
