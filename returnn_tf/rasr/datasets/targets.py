"""Targets of sequences that RASR sends, as arrays by data key."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import RasrDataError, RasrError, did_you_mean, shown
from returnn_tf.config.options import above, at_least, option
from returnn_tf.datasets.core import safe_files
from returnn_tf.datasets.core.base_options import BaseOptions
from returnn_tf.datasets.core.data_spec import DataSpec, spec_of_array
from returnn_tf.datasets.text.orth import make_post_processing
from returnn_tf.datasets.vocabulary import make_vocabulary
from returnn_tf.logging.log import log

_BYTES = 256
_BYTE_LABELS = tuple(map(chr, range(255)))  # as RETURNN has them; byte 255 does not occur in UTF-8
_DIM_WITH_ZERO = 1  # of text with a final zero, as RETURNN says it


@dataclasses.dataclass
class SentOptions(BaseOptions):
    """The options of the conversion to data keys."""

    target_maps: Optional[dict[str, Any]] = option(
        None, help="key -> dict, or file with a line for each class: classes in place of this target, in each frame"
    )
    str_add_final_zero: bool = option(False, help="for each text a key with '0' at the end, with a zero byte behind it")
    input_stddev: float = option(1.0, help="features are divided by it", check=above(0))
    orth_post_process: Any = option(None, help="function for transcriptions, its name, or a list of these")
    bpe: Any = option(None, help="vocabulary of subwords for the key 'bpe': dict with bpe_file, vocab_file, ...")
    orth_vocab: Any = option(None, help="vocabulary for the key 'orth_classes': dict with vocab_file, ...")
    reduce_target_factor: int = option(1, help="an alignment has an entry for this number of frames", check=at_least(1))


def features_of(features: Any, dim: int, stddev: float) -> NDArray[Any]:
    """Return the features [dim, time] of RASR as float32 [time, dim], divided by ``stddev``; DataError for others."""
    shape = getattr(features, "shape", None)
    if shape is None or len(shape) != 2 or shape[0] != dim:
        raise RasrDataError(
            "its features are of shape %s, not [%d, frames] as RASR has declared them. Check the flow and the feature "
            "caches of RASR" % (list(shape or ()), dim)
        )
    value = np.ascontiguousarray(features.T, np.float32)
    return value if stddev == 1 else value / np.float32(stddev)


class Targets:
    """Makes the data keys of a sequence from the targets that RASR sends, by the options of ExternSprintDataset.

    :param opts: `SentOptions`
    :param owner: the dataset, for messages
    """

    def __init__(self, opts: Any, *, owner: str):
        self.owner = owner
        self.factor = opts.reduce_target_factor
        self.add_final_zero = opts.str_add_final_zero
        self.vocabularies = {
            key: _vocabulary(value, "%s, option %r" % (owner, option))
            for key, option, value in (("bpe", "bpe", opts.bpe), ("orth_classes", "orth_vocab", opts.orth_vocab))
            if value is not None
        }
        self.maps = {key: _map(value, key, owner) for key, value in (opts.target_maps or {}).items()}
        self._post_process = None
        if opts.orth_post_process:
            self._post_process = make_post_processing(
                opts.orth_post_process, owner="%s, option 'orth_post_process'" % owner
            )
        self._dropped: set[str] = set()

    def set_random_seed(self, seed: int) -> None:
        """Seed vocabularies that sample, at the begin of an epoch."""
        for vocabulary in self.vocabularies.values():
            getattr(vocabulary, "set_random_seed", lambda seed: None)(seed)

    def arrays(self, sent: Mapping[str, Any], num_frames: Optional[int]) -> dict[str, NDArray[Any]]:
        """Return the arrays of all keys but "data".

        :param sent: key -> array or text
        :param num_frames: of the features, or None
        :raises DataError: an alignment of another length, or text that a vocabulary or map lacks
        """
        values = {str(key): self._value(str(key), value) for key, value in sent.items()}
        self._check_alignment(values.get("classes"), num_frames)
        arrays: dict[str, NDArray[Any]] = {}
        orth = values.get("orth")
        for key, vocabulary in self.vocabularies.items():
            if not isinstance(orth, str):
                raise RasrDataError(
                    "it has no transcription, which option %r needs" % ("bpe" if key == "bpe" else "orth_vocab")
                )
            arrays[key] = np.array(vocabulary.get_seq(orth), np.int32)
        for key, value in values.items():
            if key in self.maps:
                arrays[key] = self._mapped(key, value, num_frames)
            elif isinstance(value, np.ndarray):
                arrays[key] = value
            elif isinstance(value, str):
                arrays[key] = _bytes(value)
                if self.add_final_zero:
                    arrays[key + "0"] = _bytes(value + "\0")
            elif key not in self._dropped:
                self._dropped.add(key)
                log.warn("%s: RASR sends %r as %s, which is left out." % (self.owner, key, shown(value)))
        for key in self.maps:
            if key not in values:
                raise RasrDataError("it has no target %r for target_maps, only %s" % (key, ", ".join(values) or "none"))
        return arrays

    def _value(self, key: str, value: Any) -> Any:
        """Return text without blanks at both ends, "orth" also post-processed; arrays as they are."""
        if isinstance(value, bytes):
            try:
                value = value.decode("utf8")
            except UnicodeDecodeError as exc:
                raise RasrDataError("its %r is not UTF-8: %s" % (key, exc)) from None
        if not isinstance(value, str):
            return value
        value = value.strip()
        return self._post_process(value) if key == "orth" and self._post_process else value

    def _check_alignment(self, classes: Any, num_frames: Optional[int]) -> None:
        if not isinstance(classes, np.ndarray) or num_frames is None:
            return
        expected = -(-num_frames // self.factor)
        if len(classes) != expected:
            reduced = " (%d features, reduce_target_factor %d)" % (num_frames, self.factor)
            raise RasrDataError(
                "its alignment has %d entries for %d frames%s. Check that features and alignment are of the same "
                "frame shift, and reduce_target_factor" % (len(classes), expected, reduced if self.factor > 1 else "")
            )

    def _mapped(self, key: str, value: Any, num_frames: Optional[int]) -> NDArray[Any]:
        table = self.maps[key]
        if not isinstance(value, (str, int)) or value not in table:
            raise RasrDataError(
                "target_maps[%r] lacks %s. %s" % (key, shown(value), did_you_mean(value, list(table)[:2000]))
            )
        mapped = np.asarray(table[value])
        return mapped if mapped.ndim or num_frames is None else np.full(num_frames, mapped)

    def spec(self, key: str, value: NDArray[Any], output_dim: int) -> DataSpec:
        """Return the format of a key other than "data", from one of its arrays."""
        spec = spec_of_array(value)
        if key in self.vocabularies:
            labels = tuple(str(label) for label in self.vocabularies[key].labels)
            return DataSpec(dim=len(labels), ndim=1, dtype="int32", labels=labels)
        if key in self.maps:
            return DataSpec(self.map_size(key), spec.ndim, spec.dtype, spec.shape) if spec.sparse else spec
        if key == "classes":
            return DataSpec(max(output_dim, 0), 1, spec.dtype) if spec.ndim == 1 else spec
        if value.dtype == np.uint8 and value.ndim == 1:
            if key.endswith("0") and self.add_final_zero:
                return DataSpec(_DIM_WITH_ZERO, 1, "uint8")
            return DataSpec(_BYTES, 1, "uint8", labels=_BYTE_LABELS if key == "orth" else None)
        return spec

    def map_size(self, key: str) -> int:
        """Return the number of classes of a mapped key."""
        table = self.maps[key]
        numbers = [value for value in table.values() if isinstance(value, (int, np.integer))]
        return max([len(table), *(int(number) + 1 for number in numbers)])

    def num_outputs(self, output_dim: int) -> dict[str, tuple[int, int]]:
        """Return (dim, number of axes) of the keys other than "data", also of those that RASR does not send."""
        found = {"classes": (output_dim, 1)} if output_dim > 0 else {}
        found.update({key: (len(vocabulary.labels), 1) for key, vocabulary in self.vocabularies.items()})
        found["orth"] = (_BYTES, 1)
        found["speaker_name"] = (self.map_size("speaker_name") if "speaker_name" in self.maps else _BYTES, 1)
        return found

    def labels(self) -> dict[str, list[str]]:
        """Return the labels by key, also of those that RASR does not send."""
        found = {key: [str(label) for label in vocabulary.labels] for key, vocabulary in self.vocabularies.items()}
        return {"orth": list(_BYTE_LABELS), **found}


def _bytes(text: str) -> NDArray[Any]:
    return np.frombuffer(text.encode("utf8"), np.uint8).copy()


def _vocabulary(value: Any, owner: str) -> Any:
    if isinstance(value, Mapping):
        return make_vocabulary(value, owner=owner)
    if callable(getattr(value, "get_seq", None)) and hasattr(value, "labels"):
        return value
    raise RasrError("%s: it must be a dict or a vocabulary, not %s" % (owner, shown(value)))


def _map(value: Union[str, Mapping[Any, Any]], key: str, owner: str) -> dict[Any, Any]:
    if isinstance(value, str):
        with safe_files.wanted_by("%s: target_maps[%r]" % (owner, key)):
            lines = safe_files.read_text(value).splitlines()
        return {line: number for number, line in reversed(list(enumerate(lines)))}
    if not isinstance(value, Mapping):
        raise RasrError(
            "%s: target_maps[%r] must be a dict or the name of a file with a line for each class, not %s"
            % (owner, key, shown(value))
        )
    return dict(value)
