"""BlissDataset: the segments of a Bliss corpus, with their audio."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileDataError, FileError
from returnn_tf.config.options import above, log_inert, option
from returnn_tf.datasets.audio.audio_range import channel_of, duration, read_range
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.tags import warn_of_unknown
from returnn_tf.datasets.files import local_copy, path_or_content
from returnn_tf.datasets.files.index_file import SharedIndex, named, shared_index
from returnn_tf.datasets.speech.manifests import folder_of, joined
from returnn_tf.datasets.speech.utterances import IndexedUtterances, UtteranceDataset
from returnn_tf.datasets.text.bliss import read_bliss
from returnn_tf.datasets.text.orth import make_post_processing
from returnn_tf.util.packed_strings import PackedStrings

_MOST_TRACKS = 32767
#: Options of the features -> options of the dataset for the same.
_FEATURES = {
    "num_feature_filters": "num_feature_filters",
    "with_delta": "with_delta",
    "window_len": "feature_window_len",
    "step_len": "feature_step_len",
}


@register_dataset()
class BlissDataset(IndexedUtterances["_Index"]):
    """The segments of a Bliss corpus (XML): parts of audio files with transcriptions.

    The tag is the full name, corpus/recording/segment. The length of a sequence for ``sorted`` etc. is its duration.
    Many short segments of long compressed recordings are read faster from an OggZip corpus, see
    ``returnn-tf data oggzip``.

    Data keys: ``data`` are features, ``classes`` labels, ``orth`` the bytes of the text, ``raw`` is the text.

    >>> from returnn_tf.datasets import Dataset
    >>> train = {"class": "BlissDataset", "path": "train.xml.gz", "audio": {"features": "log_mel_filterbank"},
    ...          "targets": {"bpe_file": "bpe.codes", "vocab_file": "bpe.vocab", "unknown_label": "<unk>"}}
    >>> dataset = Dataset.from_config(train)   # doctest: +SKIP
    """

    @dataclass
    class Options(UtteranceDataset.Options):
        path: str = option(help="corpus file, .gz allowed")
        vocab_file: Optional[str] = option(None, help="file of the vocabulary", old="targets={'vocab_file': ...}")
        bpe_file: Optional[str] = option(None, help="codes of a BPE vocabulary", old="targets={'bpe_file': ...}")
        num_feature_filters: int = option(
            40, help="number of mfcc features", check=above(0), old="audio={'num_feature_filters': ...}"
        )
        feature_window_len: float = option(
            0.025, help="seconds of a window", check=above(0), old="audio={'window_len': ...}"
        )
        feature_step_len: float = option(
            0.01, help="seconds between frames", check=above(0), old="audio={'step_len': ...}"
        )
        with_delta: Union[bool, int] = option(False, help="append derivatives", old="audio={'with_delta': ...}")
        audio: Optional[dict[str, Any]] = option(
            {}, help="options of the features, {} for all defaults; None: without audio"
        )
        targets: Optional[Any] = option(None, help="options of the vocabulary; None: without labels")
        orth_post_process: Any = option(None, help="functions on the text: names, functions or a list of these")
        audio_dir: Optional[str] = option(
            None, help="directory of audio files with a relative path; default: that of the corpus file"
        )
        segment_file: Optional[str] = option(None, help="only these tags: text file, one per line, .gz allowed")
        use_cache_manager: bool = option(
            False, help="read copies on the local disk: `docs/data.md`, returnn-tf explain data-files"
        )

    def setup(self) -> None:
        """Check all options; the corpus is read when the first epoch begins."""
        opts = self.opts
        self.set_up(audio=self._audio_options(), targets=self._target_options())
        if opts.audio is None and opts.audio_dir is not None and self.epoch_order.ignores_lengths:
            log_inert(self._owner(), "audio_dir", "it needs audio, or an order by lengths")
        self._post_process = make_post_processing(opts.orth_post_process, owner="%s: orth_post_process" % self._owner())
        self.data_specs = self.specs_by_key()

    def _audio_options(self) -> Optional[dict[str, Any]]:
        opts = self.opts
        given = {name: getattr(opts, old) for name, old in _FEATURES.items() if old in self._given}
        if opts.audio != {} and given:
            raise FileError(
                "%s: give 'audio' or %s, not both" % (self._owner(), ", ".join(_FEATURES[name] for name in given))
            )
        return None if opts.audio is None else {**opts.audio, **given}

    def _target_options(self) -> Optional[Any]:
        opts = self.opts
        given = {name: value for name in ("vocab_file", "bpe_file") if (value := getattr(opts, name)) is not None}
        if opts.targets is not None and given:
            raise FileError("%s: give 'targets' or %s, not both" % (self._owner(), ", ".join(given)))
        return opts.targets if opts.targets is not None else given or None

    def read_index(self) -> _Index:
        """Read the segments, those of ``segment_file`` if it is given."""
        opts = self.opts
        allowed = self.tags_of_segment_file()
        with self._wanted_by("path"):
            paths = [local_copy(opts.path, wanted=opts.use_cache_manager), *([opts.segment_file] if allowed else [])]
            found = shared_index("bliss", paths, [opts.path, bool(allowed)], partial(self._read_segments, allowed))
            index = _Index(found)
        if not len(index):
            raise FileDataError(
                "%s: corpus %r has no segments%s"
                % (self._owner(), opts.path, " that are in segment_file %r" % opts.segment_file if allowed else "")
            )
        if allowed:
            warn_of_unknown(self._owner(), "segment_file", self.opts.segment_file, allowed, index.names)
        return index

    def _read_segments(self, allowed: Optional[Collection[str]]) -> SharedIndex:
        return read_segments(self.opts.path, allowed, use_cache_manager=self.opts.use_cache_manager)

    def tag(self, index: int) -> str:
        """Return the full name of a segment."""
        return self.index.names[index]

    def tags_many(self, indices: Sequence[int]) -> list[str]:
        """Return the full names of several segments."""
        return self.index.names.chosen(indices)

    def digest_of_tags(self) -> bytes:
        """Return a digest of the full names."""
        return self.index.names.digest()

    def text(self, index: int) -> str:
        """Return the transcription with single blanks, after ``orth_post_process``."""
        return self._post_process(self.index.texts[index])

    def file_of(self, index: int) -> str:
        """Return the path of the recording."""
        path = self.index.recordings[int(self.index.recording_of[index])]
        folder = self.opts.audio_dir if self.opts.audio_dir is not None else folder_of(self.opts.path)
        return joined(folder, path) if path else ""

    def seq_lengths(self) -> NDArray[Any]:
        """Return the durations [num_seqs] in units of 10 ms."""
        starts, ends = self.index.starts, np.array(self.index.ends)
        for index in np.flatnonzero(np.isinf(ends)):
            content, name = self._recording(int(index))
            ends[index] = duration(content, name=name)
        lengths: NDArray[Any] = np.floor((ends - starts) * 100 + 1e-6).astype(np.int64)
        return lengths

    def samples(self, index: int) -> tuple[NDArray[Any], int]:
        """Return samples and sample rate of a segment."""
        start, end = float(self.index.starts[index]), float(self.index.ends[index])
        content, name = self._recording(index)
        samples, rate = read_range(content, start, None if end == float("inf") else end, name=name)
        return channel_of(samples, int(self.index.tracks[index]), name), rate

    def _recording(self, index: int) -> tuple[Union[str, bytes], str]:
        """Return the path of the recording, or the content of a remote one, and its name for errors."""
        path = self.file_of(index)
        if not path:
            raise FileDataError(
                "corpus %r: the recording of segment %r has no audio" % (self.opts.path, self.tag(index))
            )
        return path_or_content(path, wanted=self.opts.use_cache_manager), path


class _Index:
    """The segments of a corpus file.

    :param index: of `read_segments`
    """

    def __init__(self, index: SharedIndex):
        self.names, self.texts, self.recordings = (
            PackedStrings.of_arrays(index.part(name)) for name in ("names", "texts", "recordings")
        )
        self.recording_of, self.tracks = index.arrays["recording_of"], index.arrays["tracks"]
        self.starts, self.ends = index.arrays["starts"], index.arrays["ends"]  # seconds

    def __len__(self) -> int:
        return len(self.names)


def read_segments(path: str, allowed: Optional[Collection[str]], *, use_cache_manager: bool) -> SharedIndex:
    """Read the segments of a corpus file, for all processes.

    :param allowed: names of the segments to keep; None: all
    :param use_cache_manager: the option of the dataset
    :raises DataError: the file is missing or damaged, or segments have the same name
    """
    names, texts, recordings = PackedStrings(), PackedStrings(), PackedStrings()
    recording_of, tracks, starts, ends = array("q"), array("h"), array("d"), array("d")
    last: Optional[str] = None
    files: list[str] = []
    for segment in read_bliss(path, use_cache_manager=use_cache_manager, included=files):
        if allowed is not None and segment.name not in allowed:
            continue
        audio = segment.audio or ""
        if audio != last:
            recordings.append(audio)
            last = audio
        start, end = segment.seconds
        names.append(segment.name)
        texts.append(segment.text)
        recording_of.append(len(recordings) - 1)
        tracks.append(min(segment.track or 0, _MOST_TRACKS))
        starts.append(start)
        ends.append(float("inf") if end is None else end)
    twice = names.repeated()
    if twice:
        text = "corpus %r has several segments of the same name, e.g. %r. Rename them"
        raise FileDataError(text % (path, names[twice[0]]))
    strings = {"names": names, "texts": texts, "recordings": recordings}
    arrays = {"recording_of": recording_of, "tracks": tracks, "starts": starts, "ends": ends}
    return SharedIndex(
        {
            **{key: array for name, kept in strings.items() for key, array in named(name, kept.arrays()).items()},
            **{name: np.asarray(column) for name, column in arrays.items()},
        },
        files=files,
    )
