"""The options of ``audio`` in datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Callable, Optional, Union

from returnn_tf.config.options import above, at_least, between, option
from returnn_tf.datasets.audio.decode import DECODERS
from returnn_tf.datasets.audio.kinds import KINDS

Function = Optional[Callable[..., Any]]


@dataclasses.dataclass
class AudioOptions:
    """The options of ``audio`` in a dataset."""

    window_len: float = option(0.025, check=above(0), help="length of a frame in seconds")
    step_len: float = option(0.010, check=above(0), help="distance of neighbouring frames in seconds")
    num_feature_filters: Optional[int] = option(
        None, check=at_least(1), help="features per frame, before with_delta and join_frames (default: 40; raw, f0: 1)"
    )
    with_delta: Union[bool, int] = option(
        False, check=between(0, 8), help="highest order of derivatives over time to append; True: 1"
    )
    norm_mean: Any = option(None, help="what to subtract: a number, 'per_seq', a file with a vector, or an array")
    norm_std_dev: Any = option(None, help="what to divide by afterwards, likewise")
    features: Any = option("mfcc", help="kind of features: %s, or a function" % ", ".join(KINDS))
    feature_options: Optional[Mapping[str, Any]] = option(None, help="options of the kind of features")
    random_permute: Any = option(None, help="change the audio at random: True, or a dict of options")
    pre_process: Function = option(None, help="function (audio, sample_rate, random_state) that returns audio [time]")
    post_process: Function = option(None, help="function (features, seq_name) that returns features")
    sample_rate: Optional[int] = option(None, check=at_least(1), help="in Hz; audio with another one is an error")
    num_channels: Optional[int] = option(None, check=at_least(1), help="for raw: the features get an axis of channels")
    peak_normalization: bool = option(True, help="divide the audio by its largest absolute value")
    preemphasis: Optional[float] = option(None, help="this times the previous sample is subtracted from each")
    join_frames: Optional[int] = option(None, check=at_least(0), help="this many neighbouring frames become one")
    decoder: str = option("soundfile", choices=DECODERS, help="what decodes the files; soundfile is faster")
    raw_ogg_opts: Optional[Mapping[str, Any]] = option(
        None, help="of features 'raw_ogg'", unsupported="the codes inside of Ogg files are not read; use features 'raw'"
    )
