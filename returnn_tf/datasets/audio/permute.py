"""Random changes of audio: loudness, zoom (speed and pitch), stretching (speed), pitch; by a phase vocoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileError
from returnn_tf.config.options import above, between, from_options, option
from returnn_tf.datasets.audio.packages import optional_package
from returnn_tf.datasets.audio.stretch import each_channel, shift_pitch, stretch

#: The changes that are drawn in this order, each with the options rnd_NAME_switch, rnd_NAME_lower, ...
_SWITCHED = ("zoom", "stretch", "pitch")


def _switch_help(what: str) -> str:
    return "probability of %s; at most 0 is never, 1 or more always" % what


@dataclasses.dataclass
class RandomPermute:
    """The option ``random_permute``; ``True`` stands for all defaults."""

    rnd_scale_lower: float = option(0.8, help="the least factor of the amplitude")
    rnd_scale_upper: float = option(1.0, help="the largest factor of the amplitude")
    rnd_zoom_switch: float = option(0.2, help=_switch_help("zooming, which changes speed and pitch"))
    rnd_zoom_lower: float = option(0.9, check=above(0), help="the least factor of the duration")
    rnd_zoom_upper: float = option(1.1, check=above(0), help="the largest factor of the duration")
    rnd_zoom_order: int = option(3, check=between(0, 5), help="degree of the splines for zooming")
    rnd_stretch_switch: float = option(0.2, help=_switch_help("stretching, which changes the speed alone"))
    rnd_stretch_lower: float = option(0.9, check=above(0), help="the least factor of the speed")
    rnd_stretch_upper: float = option(1.2, check=above(0), help="the largest factor of the speed")
    rnd_pitch_switch: float = option(0.2, help=_switch_help("changing the pitch alone"))
    rnd_pitch_lower: float = option(-1.0, help="the least change in semitones")
    rnd_pitch_upper: float = option(1.0, help="the largest change in semitones")

    @classmethod
    def parse(cls, value: Any, *, where: str) -> Optional[RandomPermute]:
        """Return the options, or None where nothing is to be changed (False, None, ``{}``).

        :param where: prefix of errors
        :raises ConfigError: unknown options, limits the wrong way round, or an option of what is switched off
        """
        where = "%s: random_permute" % where
        if not value:
            return None
        if value is True or value == 1:
            return cls()
        if not isinstance(value, Mapping):
            raise FileError("%s must be True, False or a dict of options, got %r" % (where, value))
        options = from_options(cls, value, where=where)
        for name in ("scale", *_SWITCHED):
            options._check_change(name, value, where)
        return options

    def _check_change(self, name: str, given: Mapping[str, Any], where: str) -> None:
        lower, upper = self._limits(name)
        if lower > upper:
            raise FileError("%s: rnd_%s_lower=%s is above rnd_%s_upper=%s" % (where, name, lower, name, upper))
        switch = "rnd_%s_switch" % name
        if name == "scale" or getattr(self, switch) > 0:
            return
        unused = [key for key in given if key.startswith("rnd_%s_" % name) and key != switch]
        if unused:
            raise FileError(
                "%s: %s has no effect, since %s is %s. Remove it, or set %s above 0"
                % (where, ", ".join(unused), switch, getattr(self, switch), switch)
            )

    def _limits(self, name: str) -> tuple[float, float]:
        return getattr(self, "rnd_%s_lower" % name), getattr(self, "rnd_%s_upper" % name)

    def apply(self, audio: NDArray[Any], rng: np.random.RandomState) -> NDArray[Any]:
        """Return audio changed at random.

        A number is drawn for the amplitude, then for each switch one, followed by that of the change if it takes place.

        :param audio: [time] or [time, channels]
        :param rng: draws as many numbers as there are changes
        """
        audio = audio * rng.uniform(*self._limits("scale"))
        changes: dict[str, Callable[[NDArray[Any], float], NDArray[Any]]] = {
            "zoom": self._zoom,
            "stretch": stretch,
            "pitch": shift_pitch,
        }
        for name in _SWITCHED:
            if rng.uniform(0.0, 1.0) < getattr(self, "rnd_%s_switch" % name):
                amount = rng.uniform(*self._limits(name))
                audio = each_channel(audio, changes[name], amount)
        return audio

    def _zoom(self, audio: NDArray[Any], factor: float) -> NDArray[Any]:
        with optional_package("for random_permute"):
            import scipy.ndimage
        result: NDArray[Any] = scipy.ndimage.zoom(audio, factor, order=self.rnd_zoom_order)
        return result
