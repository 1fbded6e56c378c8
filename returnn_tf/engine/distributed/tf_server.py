"""TensorFlow's server for collectives: all that is reached by names of TensorFlow that are not public.

What is public is ``tf.distribute.MultiWorkerMirroredStrategy``, which does the same when it is created. But it also
starts a coordination service, which ends all ranks when one is silent for 10 s, whatever their timeout, and reports an
error to those that are still saving when the first rank is done. The watchdog has that task here.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from returnn_tf.config.errors import DistributedError
from returnn_tf.util.lazy_tf import tf

_JOB = "worker"
#: Methods of the context, the same in TensorFlow 2.16 - 2.21.
_METHODS = ("configure_collective_ops", "enable_collective_ops", "ensure_initialized")


def start(addresses: Sequence[str], rank: int) -> None:
    """Start the server of this process with TensorFlow's devices, so that collective ops reach the other processes.

    It waits for no other process; the first collective op does.

    :param addresses: ``host:port`` by rank; rank 0 coordinates
    :raises ConfigError: the port is in use, TensorFlow has computed something already, or it is an unknown version
    """
    context = importlib.import_module("tensorflow.python.eager.context").context()
    missing = [name for name in _METHODS if not hasattr(context, name)]
    if missing:
        raise DistributedError(
            "TensorFlow %s is not known to this engine: its context has no %s. Use a version from 2.16 to 2.21, or "
            "Horovod." % (tf.__version__, ", ".join(missing))
        )
    try:
        context.configure_collective_ops(
            collective_leader="/job:%s/replica:0/task:0" % _JOB,
            scoped_allocator_enabled_ops=(),
            device_filters=("/job:%s/task:%d" % (_JOB, rank),),
        )
    except RuntimeError as exc:
        raise DistributedError(
            "TensorFlow has computed something in this process before it joined the others: %s. Code of the config "
            "must not run ops when it is read; a program calls returnn_tf.engine.distributed.world.start first." % exc
        ) from exc
    server = tf.train.ServerDef(
        cluster=tf.train.ClusterSpec({_JOB: list(addresses)}).as_cluster_def(),
        default_session_config=context.config,
        job_name=_JOB,
        task_index=rank,
        protocol="grpc",
    )
    context.enable_collective_ops(server)
    try:
        context.ensure_initialized()
    except tf.errors.OpError as exc:
        raise DistributedError(
            "TensorFlow's server of rank %d can't be started at %s: %s. Another program may use the port."
            % (rank, addresses[rank], exc.message)
        ) from exc
