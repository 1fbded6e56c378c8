"""The scores of a training, for Python and notebooks."""

from __future__ import annotations

from collections.abc import Mapping

from returnn_tf.config.errors import SettingError, did_you_mean
from returnn_tf.engine.learning_rate.file import EpochData, best_epochs
from returnn_tf.engine.monitoring.curves import draw_curves, score_groups
from returnn_tf.engine.monitoring.pictures import Picture
from returnn_tf.util.html import Html, paragraph, table

_MOST_ROWS = 30


class History:
    """Scores and learning rates by epoch. Notebooks show it as a table.

    >>> history = History({1: EpochData(0.1, {"dev_score": 2.0}), 2: EpochData(0.1, {"dev_score": 1.5})})
    >>> history["dev_score"]
    {1: 2.0, 2: 1.5}
    >>> history.best("dev_score")
    (2, 1.5)

    :param epochs: as in the learning-rate file
    :param stopped: why training ended before its last epoch; "" if it did not
    """

    def __init__(self, epochs: Mapping[int, EpochData], stopped: str = "") -> None:
        self.epochs = {epoch: data for epoch, data in sorted(epochs.items()) if data.error}
        self.stopped = stopped

    @property
    def names(self) -> list[str]:
        """Return the names of all scores."""
        return [key for keys in score_groups([self.epochs]).values() for key in keys]

    def __getitem__(self, name: str) -> dict[int, float]:
        """Return a score by epoch.

        :raises ConfigError: there is none of that name
        """
        if name == "learning_rate":
            return {epoch: data.learning_rate for epoch, data in self.epochs.items()}
        if name not in self.names:
            raise SettingError("There is no score %r. %s" % (name, did_you_mean(name, [*self.names, "learning_rate"])))
        return {epoch: data.error[name] for epoch, data in self.epochs.items() if name in data.error}

    def best(self, name: str) -> tuple[int, float]:
        """Return the epoch with the lowest value of a score, and that value.

        :raises ConfigError: there is no such score, or it is never finite
        """
        values = self[name]
        found = best_epochs(self.epochs, name, 1) if name != "learning_rate" else []
        if not found:
            raise SettingError("No epoch has a finite %r." % name)
        return found[0], values[found[0]]

    def plot(self, title: str = "") -> Picture:
        """Return the curves, which notebooks show; ``.save("curves.png")`` writes them.

        :raises DataError: there is nothing to draw
        :raises ConfigError: matplotlib is missing
        """
        return draw_curves({title: self.epochs}, title)

    def __len__(self) -> int:
        return len(self.epochs)

    def __repr__(self) -> str:
        parts = ["%d epochs" % len(self.epochs)]
        for name in self.names:
            if best_epochs(self.epochs, name, 1):
                parts.append("%s %.4g (best: epoch %d)" % (name, self[name][max(self[name])], self.best(name)[0]))
        return "<History %s>" % ", ".join(parts + [self.stopped] * bool(self.stopped))

    def _repr_html_(self) -> str:
        names = ["learning_rate", *self.names]
        best = {name: best_epochs(self.epochs, name, 1) for name in self.names}
        shown = list(self.epochs)[-_MOST_ROWS:]
        rows: list[list[object]] = []
        for epoch in shown:
            cells: list[object] = [epoch]
            for name in names:
                value = self[name].get(epoch)
                text = "" if value is None else "%.4g" % value
                cells.append(Html("<b>%s</b>" % text) if best.get(name) == [epoch] else text)
            rows.append(cells)
        left_out = len(self.epochs) - len(shown)
        note = paragraph("The first %d epochs are left out." % left_out) if left_out else ""
        stopped = paragraph(self.stopped) if self.stopped else ""
        return table(["epoch", *names], rows, numbers=range(len(names) + 1)) + note + stopped
