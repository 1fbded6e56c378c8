"""Choice of the engine that connects the processes of a training: Horovod, or TensorFlow's own collectives."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from returnn_tf.config import Config
from returnn_tf.config.settings.distributed import AUTO, HOROVOD, TENSORFLOW, HorovodSettings
from returnn_tf.engine.distributed import membership
from returnn_tf.engine.distributed.membership import Membership
from returnn_tf.engine.distributed.options import is_distributed, options_of

#: Set by horovodrun, by the mpirun of Open MPI, and by that of MPICH and Intel MPI for each process that they start.
#: PMI_SIZE is not among them: srun may set it for any program, whether Horovod was built for that or not.
_OF_HOROVOD = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS")


@dataclass(frozen=True)
class Choice:
    """The engine, and what it needs to know.

    :param engine: `HOROVOD` or `TENSORFLOW`
    :param setting: what asks for it, for messages
    :param member: for TensorFlow: the place of this process; None if it is alone
    :param remark: why it is not the engine that ``use_horovod`` names; "" if it is
    """

    engine: str
    setting: str
    member: Optional[Membership] = None
    remark: str = ""


def several_wanted(config: Config, environ: Mapping[str, str]) -> bool:
    """Return whether this process is one of several.

    The config says so; or ``returnn-tf launch`` has started it, and the config has no ``use_horovod = False``.
    """
    refused = HorovodSettings(config).is_set("use_horovod")
    return is_distributed(config) or (membership.RANK in environ and not refused)


def choose(config: Config, environ: Mapping[str, str]) -> Choice:
    """Return the engine for a config in a process with these variables.

    :raises ConfigError: wrong settings; or variables that contradict each other
    """
    engine = options_of(config).engine
    use_horovod = HorovodSettings(config).use_horovod
    setting = "use_horovod" if use_horovod else "'engine': %r in distributed" % engine
    launched = membership.RANK in environ
    wanted = use_horovod or any(name in environ for name in _OF_HOROVOD)
    if engine == HOROVOD or (engine == AUTO and wanted and not launched and has_horovod()):
        return Choice(HOROVOD, setting)
    # not before: Horovod finds the ranks itself, also where the variables do not tell the hosts
    member = membership.find(environ)
    if not use_horovod:
        return Choice(TENSORFLOW, setting, member)
    if launched:
        return Choice(
            TENSORFLOW, setting, member, "use_horovod is set, but returnn-tf launch has started the processes"
        )
    if member is None:
        return Choice(HOROVOD, setting)  # its error tells how to install it
    return Choice(TENSORFLOW, setting, member, "use_horovod is set, but Horovod is not installed")


def has_horovod() -> bool:
    """Return whether Horovod is installed."""
    return importlib.util.find_spec("horovod") is not None
