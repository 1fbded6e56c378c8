"""Checkpoints of a network alone, outside of training."""

from __future__ import annotations

import os

from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import CheckpointDataError
from returnn_tf.engine.checkpoints import checkpoint, params
from returnn_tf.engine.checkpoints.checkpoint import GLOBAL_STEP, CheckpointInfo


def save_checkpoint(net: Network, path: str, *, epoch: int = 0) -> None:
    """Write the parameters of a network and its step.

    :param path: prefix of the files, e.g. ``out/net``; its folder is made if it is missing
    :param epoch: last complete epoch, for programs that look for it
    :raises DataError: the checkpoint can't be written
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    info = CheckpointInfo(epoch=epoch, step=int(net.global_step.numpy()), random_seed=0)
    checkpoint.save(path, net.stored_params, {}, info)


def load_checkpoint(net: Network, path: str) -> None:
    """Set the parameters of a network, and its step if it is stored, from a checkpoint.

    :param path: prefix of the files
    :raises DataError: the checkpoint is missing or damaged, or does not fit the network; no parameter is changed then
    """
    problem = checkpoint.validate(path)
    if problem is not None:
        raise CheckpointDataError("The checkpoint %s can't be used: %s" % (path, problem))
    values = checkpoint.read(path)
    params.assign(net.stored_params, values, source="the checkpoint %s" % path)
    if GLOBAL_STEP in values:
        net.global_step.assign(int(values[GLOBAL_STEP]))
