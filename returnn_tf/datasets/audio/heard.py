"""Datasets whose audio can be listened to."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from returnn_tf.datasets.core.base import Dataset


class AudibleDataset(Dataset):
    """A dataset that may compute features of audio."""

    @property
    def reads_audio(self) -> bool:
        """Return whether it does."""
        raise NotImplementedError("%s.reads_audio" % type(self).__name__)

    def heard(self, index: int, epoch: int) -> tuple[NDArray[Any], int]:
        """Return the audio of which the features of a sequence are computed in an epoch, if it `reads_audio`.

        :return: ([time] or [time, channels], sample rate in Hz), see `AudioFeatures.heard`
        :raises DataError: the audio can't be read
        """
        raise NotImplementedError("%s.heard" % type(self).__name__)
