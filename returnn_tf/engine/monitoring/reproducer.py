"""Reproducer of a failed step: its batch, and where it happened, kept for debugging."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import os
import shlex
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import Config
from returnn_tf.config.errors import DataError, SettingDataError
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.datasets.core.safe_files import open_regular
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.model_dir import written_model
from returnn_tf.engine.support import atomic_files as files
from returnn_tf.engine.support.nonfinite import NonFiniteError
from returnn_tf.engine.support.step_errors import reason
from returnn_tf.engine.update.update_guard import LossSpikeError, SkippedStepsError
from returnn_tf.logging.log import log
from returnn_tf.util.lazy_tf import tf

_BATCH, _FACTS = "batch.npz", "failure.json"
PARAMS = "params"
#: With common gradients all ranks raise these in the same step.
_SEEN_BY_ALL = (NonFiniteError, LossSpikeError, SkippedStepsError)
_MAX_KEPT = 3  # so that a failing job which is restarted forever does not fill the disk
_MAX_PARAMS = 100 << 20  # bytes of parameters which are kept by default


@dataclass(frozen=True)
class Failure:
    """Facts about a failed step."""

    error: str
    step: int  # global train step: random numbers follow from it
    epoch: int
    seq_tags: list[str]
    layer: Optional[str]  # the first one with a bad output, if known
    params: dict[str, Any]  # name -> shape, L2 norm, number of entries which are not finite
    noise_seed: Optional[int] = None  # of dropout and the like: differs between ranks


class FailedBatch(NamedTuple):
    """The batch with which a step failed."""

    epoch: int
    feed: Mapping[str, Any]
    seq_tags: Sequence[str]


def folder_of(model: str, step: int, rank: int = 0) -> str:
    """Return the folder for the failure of a step of a rank, beside the checkpoints ``model``."""
    return "%s.failure-%06i%s" % (model, step, "-rank%i" % rank if rank else "")


def describe_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return shape, L2 norm and number of non-finite entries of variables, by name."""
    result = {}
    for name, variable in params.items():
        value = np.asarray(variable.numpy())
        bad = int(np.sum(~np.isfinite(value))) if value.dtype.kind == "f" else 0
        norm = float(np.linalg.norm(value.astype("float64").ravel())) if value.dtype.kind == "f" and not bad else None
        result[name] = {"shape": list(value.shape), "norm": norm, "not_finite": bad}
    return result


@contextlib.contextmanager
def keep_on_failure(
    config: Config, trainer: Any, epoch: int, feed: Mapping[str, Any], seq_tags: Sequence[str]
) -> Iterator[None]:
    """Run a step within this context; if it fails, keep its batch beside the checkpoints and log the folder.

    If several ranks fail in the same step, the one with the bad batch keeps it, and the others wait for it.

    :param epoch: the current one
    :param feed: the batch: feed key -> tensor
    :param seq_tags: its sequences
    """
    try:
        yield
    except (DataError, tf.errors.OpError) as exc:
        together = trainer.ranks.in_step and isinstance(exc, _SEEN_BY_ALL)
        world = trainer.world
        blamed = getattr(exc, "where", "") if together else world.name
        model = written_model(config)
        if model and (blamed == world.name or (not blamed and world.is_chief)):
            _keep(
                config,
                trainer,
                exc,
                FailedBatch(epoch, feed, seq_tags),
                folder_of(model, trainer.step_count, world.rank),
            )
        if together:  # the first rank that ends takes the others with it
            world.barrier("keeping the batch of the failed step")
        raise


def _keep(config: Config, trainer: Any, exc: Exception, batch: FailedBatch, folder: str) -> None:
    params = trainer.net.plain_params()
    failure = Failure(
        error=reason(exc) if isinstance(exc, tf.errors.OpError) else str(exc),
        step=trainer.step_count,
        epoch=batch.epoch,
        seq_tags=[str(tag) for tag in batch.seq_tags],
        layer=getattr(exc, "layer", None),
        params=describe_params(params),
        noise_seed=trainer.net.noise_seed,
    )
    if save(folder, failure, batch.feed, params if params_wanted(config, params) else None):
        files = shlex.join(config.files) or "CONFIG"
        command = "returnn-tf %s ++task replay ++failure %s" % (files, shlex.quote(folder))
        text = "The batch of the failed step is kept in %s. To debug it: %s" % (folder, command)
        (log.warn if log.label else partial(log.write, 1))(text)  # other ranks than the first one only warn


def params_wanted(config: Config, params: Mapping[str, Any]) -> bool:
    """Return whether to keep the values of the parameters too: ``failure_params``, by default if they are small."""
    wanted = TrainingSettings(config).failure_params
    if wanted is not None:
        return wanted
    size = sum(int(np.prod(variable.shape)) * int(variable.dtype.size) for variable in params.values())
    return size <= _MAX_PARAMS


def save(folder: str, failure: Failure, feed: Mapping[str, Any], params: Optional[Mapping[str, Any]] = None) -> bool:
    """Write the folder, marker file last, and delete the oldest ones of the same model.

    Never raises: the original error matters more.

    :param feed: feed key -> tensor or array
    :param params: name -> variable, if their values are to be kept
    :return: whether it could be written
    """
    arrays: dict[str, Any] = {key: np.asarray(value) for key, value in feed.items()}
    try:
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        if params is not None:
            info = checkpoint.CheckpointInfo(failure.epoch, failure.step, 0)
            checkpoint.save(os.path.join(folder, PARAMS), params, {}, info, retry_waits=())
        np.savez_compressed(os.path.join(folder, _BATCH), **arrays)
        files.write_text(os.path.join(folder, _FACTS), json.dumps(dataclasses.asdict(failure), indent=1))
        _delete_old(folder)
    except (OSError, DataError) as exc:
        log.warn("The batch of the failed step can't be kept in %s: %s" % (folder, exc))
        return False
    return True


def load(folder: str) -> tuple[Failure, dict[str, NDArray[Any]]]:
    """Return a kept failure and its batch.

    :raises DataError: it is missing or damaged
    """
    try:
        with open_regular(os.path.join(folder, _FACTS)) as file:
            facts = json.load(file)
        known = [field.name for field in dataclasses.fields(Failure)]
        failure = Failure(**{name: value for name, value in facts.items() if name in known})
        with open_regular(os.path.join(folder, _BATCH)) as stream, np.load(stream, allow_pickle=False) as archive:
            return failure, {key: archive[key] for key in archive.files}
    except (OSError, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as exc:
        raise SettingDataError("%s is not the folder of a failed step: %s" % (folder, exc)) from None


def _delete_old(newest: str) -> None:
    kept: Sequence[str] = glob.glob(glob.escape(newest.rpartition(".failure-")[0]) + ".failure-*")
    for path in sorted(kept, key=os.path.getmtime)[:-_MAX_KEPT]:
        if os.path.abspath(path) != os.path.abspath(newest):
            shutil.rmtree(path, ignore_errors=True)
