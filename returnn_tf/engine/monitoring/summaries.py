"""Event files for TensorBoard: scores of every epoch, and loss, gradient norm and rate of some of the steps."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from returnn_tf.config import Config
from returnn_tf.config.errors import SettingError
from returnn_tf.config.settings.logging import LoggingSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.engine.checkpoints.model_dir import written_model
from returnn_tf.engine.support.scores import Scores
from returnn_tf.engine.support.step_result import StepResult
from returnn_tf.graph.loss import LossNode
from returnn_tf.logging.log import log
from returnn_tf.util.events import write_scalar
from returnn_tf.util.lazy_tf import tf

_SECONDS_BETWEEN_STEPS = 5.0  # so that they cost almost no time


class Summaries:
    """Writes events below a folder, one subfolder for training and for each dataset; none without a folder.

    :param folder: created when needed; None: off
    :param objective: whether steps also have each loss as it enters the objective
    :param sums: whether they also have each loss summed over the batch
    """

    def __init__(self, folder: Optional[str], *, objective: bool = False, sums: bool = False) -> None:
        self._folder = folder
        self._objective, self._sums = objective, sums
        self._writers: dict[str, Any] = {}
        self._next_step = 0.0

    @classmethod
    def from_config(cls, config: Config) -> Summaries:
        """Return the writer for ``tf_log_dir``, by default ``events`` beside the checkpoints.

        The setting is a path, or None, False or "" for no event files.
        """
        model = written_model(config)
        default = os.path.join(os.path.dirname(model), "events") if model else None
        settings = LoggingSettings(config)
        folder = settings.tf_log_dir if settings.is_given("tf_log_dir") else default
        return cls(
            str(folder) if folder and not TaskSettings(config).dry_run else None,
            objective=settings.debug_objective_loss_summaries,
            sums=settings.debug_unnormalized_loss_summaries,
        )

    @property
    def folder(self) -> Optional[str]:
        """Return the folder of the files, or None."""
        return self._folder

    def prepare(self) -> None:
        """Create the folder.

        :raises ConfigError: it can't be created
        """
        if self._folder is None:
            return
        try:
            os.makedirs(self._folder, exist_ok=True)
        except OSError as exc:
            raise SettingError(
                "tf_log_dir %r can't be created: %s. Choose another folder, or turn event files off: tf_log_dir = None"
                % (self._folder, exc.strerror or exc)
            ) from exc

    def step(self, result: StepResult, losses: Sequence[LossNode]) -> None:
        """Write the values of one training step; most steps are skipped.

        :param losses: of the network
        """
        now = time.monotonic()
        if self._folder is None or now < self._next_step or not result.finite:
            return
        self._next_step = now + _SECONDS_BETWEEN_STEPS
        values = values_of_step(result, losses)
        if self._objective:
            scales = {node.name: node.scale for node in losses}
            values.update({"objective:%s" % name: value * scales[name] for name, value in result.losses.items()})
        if self._sums:
            values.update(
                {"sum:%s" % name: value for name, value in scores_of_step(result, losses).sums()["losses"].items()}
            )
        with self._switched_off_on_error():
            self._write("train", {"step/%s" % name: value for name, value in values.items()}, result.step or 0)

    def epoch(self, dataset: str, epoch: int, values: Mapping[str, float]) -> None:
        """Write the values of a whole epoch, e.g. scores of a dataset."""
        if self._folder is not None:
            with self._switched_off_on_error():
                self._write(dataset, {"epoch/%s" % name: value for name, value in values.items()}, epoch)
                self._writers[dataset].flush()

    def close(self) -> None:
        """Complete the files."""
        with self._switched_off_on_error():
            for writer in self._writers.values():
                writer.close()
        self._writers = {}

    @contextlib.contextmanager
    def _switched_off_on_error(self) -> Iterator[None]:
        """Turn event files off, with a warning, if writing fails in this context; training continues."""
        try:
            yield
        except (OSError, tf.errors.OpError) as exc:
            folder, self._folder, self._writers = self._folder, None, {}
            reason = str(getattr(exc, "message", None) or exc).strip().splitlines()[0].partition("}} ")
            text = reason[2] or reason[0]
            log.warn("Event files in tf_log_dir %r can't be written and are now off: %s" % (folder, text))

    def _write(self, dataset: str, values: Mapping[str, Any], step: int) -> None:
        if dataset not in self._writers:
            self._writers[dataset] = tf.summary.create_file_writer(os.path.join(str(self._folder), dataset))
        with self._writers[dataset].as_default():
            for name, value in values.items():
                if value is not None:
                    write_scalar(name.replace(":", "/"), value, step)


def values_of_step(result: StepResult, losses: Sequence[LossNode]) -> dict[str, Any]:
    """Return loss, gradient norm, scores and learning rate of a training step; None: not known.

    :param losses: of the network
    """
    scores = scores_of_step(result, losses)
    values: dict[str, Any] = {"loss": result.total_loss, "grad_norm": result.grad_norm}
    return {**values, **scores.scores(), **scores.errors(), "learning_rate": result.learning_rate}


def scores_of_step(result: StepResult, losses: Sequence[LossNode]) -> Scores:
    """Return the scores of a training step.

    :param losses: of the network
    """
    scores = Scores(node.name for node in losses if node.loss.use_normalized_loss)
    scores.add(result)
    return scores
