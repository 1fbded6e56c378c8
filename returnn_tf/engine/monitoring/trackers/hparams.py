"""The HParams tab of TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.config.errors import SettingError
from returnn_tf.engine.monitoring.trackers.base import FINISHED, RunFacts, TrackedRun, Tracker, flat, register_tracker
from returnn_tf.util.lazy_tf import tf


@register_tracker("hparams")
@dataclass(frozen=True)
class HParams(Tracker):
    """TensorBoard's tab HParams: the settings, in the folder of the event files, which have the scores in any case."""

    extra = "hparams"
    single = True  # it writes to one folder

    def load(self) -> Any:
        """Import what makes the events."""
        from tensorboard.plugins.hparams import api_pb2, summary

        return summary, api_pb2

    def check(self, where: str, events: Optional[str]) -> None:
        """Check that there are event files."""
        if events is None:
            raise SettingError("%s needs event files: set tf_log_dir, or model." % where)
        super().check(where, events)

    def begin(self, facts: RunFacts) -> TrackedRun:
        """Write the settings; a training that is resumed writes them again."""
        summary, statuses = self.load()
        run = _Run(facts.previous or facts.name, str(facts.events), summary, statuses)
        run.write(summary.session_start_pb(_values(facts.settings), group_name=run.identity))
        return run


class _Run(TrackedRun):
    """A session of TensorBoard: the folder of its events."""

    def __init__(self, identity: str, folder: str, summary: Any, statuses: Any) -> None:
        super().__init__(identity)
        self._summary, self._statuses = summary, statuses
        self._writer = tf.summary.create_file_writer(folder)

    def write(self, content: Any) -> None:
        """Write an event."""
        with self._writer.as_default():
            tf.summary.experimental.write_raw_pb(content.SerializeToString(), step=0)
        self._writer.flush()

    def end(self, status: str) -> None:
        """Write how the run ended, and complete the file."""
        done = "STATUS_SUCCESS" if status == FINISHED else "STATUS_FAILURE"
        self.write(self._summary.session_end_pb(self._statuses.Status.Value(done)))
        self._writer.close()


def _values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as what the tab shows: numbers, truth values and texts."""
    values = flat(settings).items()
    return {name: value if isinstance(value, (bool, int, float, str)) else str(value) for name, value in values}
