"""The training of one trial: a process of its own, whose scores are read from its learning-rate file."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.cli.shared.children import killed_with
from returnn_tf.cli.sweep.description import CONFIG, LOG, RATES, Sweep, config_of_trial, folder_of
from returnn_tf.config.errors import CommandError, did_you_mean
from returnn_tf.engine.learning_rate.file import EpochData, best_epochs, read_file, scores_of
from returnn_tf.engine.support.atomic_files import write_text
from returnn_tf.util.python_child import python_command

_PROGRAM = "from returnn_tf.cli.main import main; sys.exit(main())"
_TAIL = 1 << 14  # bytes of the log in which the error is looked for


class TrialTraining:
    """A process that trains a trial; a context manager, at whose end it has ended.

    :param sweep: description
    :param number: of the trial
    :param overrides: what it changes in the config
    :param threads: of TensorFlow; None: its default
    """

    def __init__(self, sweep: Sweep, number: int, overrides: Mapping[str, Any], threads: Optional[int]) -> None:
        folder = folder_of(sweep, number)
        self._metric = sweep.options.metric
        self._rates = os.path.join(folder, RATES)
        self.log = os.path.join(folder, LOG)
        config = os.path.join(folder, CONFIG)
        write_text(config, config_of_trial(sweep, number, overrides))
        environ = dict(os.environ)
        if threads is not None:
            environ.setdefault("OMP_NUM_THREADS", str(threads))
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                python_command(_PROGRAM, sweep.config, config),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environ,
                start_new_session=True,
                preexec_fn=killed_with(os.getpid()),
            )

    def send(self, number: int) -> None:
        """Send a signal, upon which it saves and ends."""
        if self._process.poll() is None:
            os.kill(self._process.pid, number)

    def ended(self) -> Optional[int]:
        """Return the exit code; None as long as it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """End it at once, with the processes that it has started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def metrics(self) -> dict[int, float]:
        """Return epoch -> metric, of the epochs that are trained and evaluated.

        :raises ConfigError: there is no such score
        """
        epochs: dict[int, EpochData] = read_file(self._rates) if os.path.exists(self._rates) else {}
        scored = [epoch for epoch, data in epochs.items() if scores_of(data.error)]
        found = {epoch: float(epochs[epoch].error[self._metric]) for epoch in best_epochs(epochs, self._metric)}
        # the scores on dev come after those of the training
        complete = scored if self._process.poll() == 0 else scored[:-1]
        if complete and not any(self._metric in epochs[epoch].error for epoch in scored):
            known = sorted({name for epoch in complete for name in scores_of(epochs[epoch].error)})
            raise CommandError(
                "sweep: metric: there is no score %r. %s" % (self._metric, did_you_mean(self._metric, known))
            )
        return dict(sorted(found.items()))

    def error(self) -> str:
        """Return the last error in the log, in one line."""
        with open(self.log, "rb") as file:
            file.seek(max(os.path.getsize(self.log) - _TAIL, 0))
            lines = file.read().decode("utf8", "replace").strip().splitlines()
        marked = [line for line in lines if "error:" in line.lower()]
        return (marked or lines or ["no output"])[-1].strip()
