"""OggZipDataset: zip files of audio with transcriptions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Optional, Union

from numpy.typing import NDArray

from returnn_tf.config import ConfigError, DataError
from returnn_tf.config.options import between, option
from returnn_tf.datasets.core.epoch_filter import EpochFilter, limit_mean_length
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.safe_files import path_of
from returnn_tf.datasets.core.tags import warn_of_unknown
from returnn_tf.datasets.files import local_copy
from returnn_tf.datasets.speech.indexed import UtterancesInFiles
from returnn_tf.datasets.speech.oggzip_index import OggZipIndex, OggZipPart
from returnn_tf.datasets.speech.utterances import UtteranceDataset, random_subset
from returnn_tf.datasets.text.orth import make_post_processing
from returnn_tf.logging.log import log

_TEXT = ".txt.gz"


@register_dataset()
class OggZipDataset(UtterancesInFiles[OggZipIndex]):
    """Audio with transcriptions in zip files.

    ``NAME.zip`` has the text ``NAME.txt``, a Python list with a dict for every sequence: ``text``, ``duration`` in
    seconds, ``file``, the audio ``NAME/<file>`` in the zip file, and if wanted ``seq_name``, the tag; else that is
    the file. The text is indexed when the first epoch begins, audio is decoded sequence by sequence.

    Data keys: ``data`` are features, ``classes`` labels, ``orth`` the bytes of the text, ``raw`` is the text. For
    ``sorted`` etc. the length of a sequence is its duration.

    >>> from returnn_tf.datasets import Dataset
    >>> train = {"class": "OggZipDataset", "path": "train.zip", "seq_ordering": "laplace:.1000",
    ...          "audio": {"features": "log_mel_filterbank", "num_feature_filters": 80},
    ...          "targets": {"class": "BytePairEncoding", "bpe_file": "bpe.codes", "vocab_file": "bpe.vocab"}}
    >>> dataset = Dataset.from_config(train)   # doctest: +SKIP
    """

    takes_last_of_tag = True

    @dataclass
    class Options(UtteranceDataset.Options):
        """Options in the config."""

        path: Union[str, list[Any]] = option(
            help="NAME.zip, a list of these and of texts NAME.txt.gz beside them, or a directory beside its text"
        )
        audio: Optional[dict[str, Any]] = option(
            help="options of the features, {} for all defaults; None: without audio"
        )
        targets: Optional[Any] = option(help="options of the vocabulary, or a vocabulary; None: without labels")
        targets_post_process: Any = option(
            None, help="functions on the text before it becomes labels: names, functions or a list of these"
        )
        content_name: Union[None, str, list[Any]] = option(
            None, help="NAME inside of the zip file, if that was renamed; a list has one for every path"
        )
        resolve_symlink_for_name: bool = option(False, help="the path is a link, whose target has the right NAME")
        zip_audio_files_have_name_as_prefix: bool = option(
            True, help="the audio is NAME/<file> in the zip file; False: <file>"
        )
        use_cache_manager: bool = option(
            False, help="read copies on the local disk: `docs/data.md`, returnn-tf explain data-files"
        )
        segment_file: Optional[str] = option(None, help="only these tags: text file, one per line, .gz allowed")
        fixed_random_subset: Union[None, float] = option(
            None, help="keep this number of sequences, below 1 this fraction of them, chosen and shuffled at random"
        )
        fixed_random_subset_seed: int = option(42, help="seed of this choice", check=between(0, 2**32 - 1))
        epoch_wise_filter: Optional[dict[Any, Any]] = option(
            None,
            help="only the shortest sequences in some epochs: {(first, last): {'max_mean_len': x}}, in 10 ms",
        )

    def setup(self) -> None:
        """Check all options; nothing of the corpus is read."""
        opts = self.opts
        self.set_up(audio=opts.audio, targets=opts.targets)
        paths = opts.path if isinstance(opts.path, (list, tuple)) else [opts.path]
        self._paths = [path_of(path, where="%s: option 'path'" % self._owner()) for path in paths]
        self._names = self._check_names()
        self._filter = EpochFilter.parse(opts.epoch_wise_filter, owner=self._owner())
        self._post_process = make_post_processing(
            opts.targets_post_process, owner="%s: targets_post_process" % self._owner()
        )
        random_subset(0, opts.fixed_random_subset, 0, self._owner())
        self.data_specs = self.specs_by_key()

    # ---- files

    def _check_names(self) -> list[str]:
        """Return the internal name of each path."""
        opts = self.opts
        if not self._paths:
            raise ConfigError("%s: option 'path' is empty" % self._owner())
        names = opts.content_name
        if names is None:
            return [self._name_of(path) for path in self._paths]
        names = [names] * len(self._paths) if isinstance(names, str) else names
        if len(names) != len(self._paths) or not all(isinstance(name, str) for name in names):
            raise ConfigError(
                "%s: option 'content_name' must be a name, or a list with one for each of the %d paths, not %r"
                % (self._owner(), len(self._paths), opts.content_name)
            )
        return list(names)

    def _name_of(self, path: str) -> str:
        if self.opts.resolve_symlink_for_name:
            path = os.path.realpath(path)
        name = os.path.basename(path)
        return name[: -len(_TEXT)] if name.endswith(_TEXT) else os.path.splitext(name)[0]

    def _parts(self) -> list[OggZipPart]:
        """Open the files of the corpus."""
        folder = self._folder()
        if folder is not None:
            return [OggZipPart(os.path.basename(folder), text=folder + ".txt", folder=folder)]
        for path in self._paths:
            if not path.endswith((".zip", _TEXT)):
                raise DataError(
                    "%s: %r is neither a .zip file nor a .txt.gz file%s"
                    % (
                        self._owner(),
                        path,
                        "; a directory needs the text %r beside it" % (path.rstrip("/") + ".txt")
                        if os.path.isdir(path)
                        else "",
                    )
                )
        texts = {name: path for name, path in zip(self._names, self._paths) if path.endswith(_TEXT)}
        with_zip = {name for name, path in zip(self._names, self._paths) if path.endswith(".zip")}
        texts = {name: self._local(path) for name, path in texts.items()}
        parts = []
        for name, path in zip(self._names, self._paths):
            if path.endswith(".zip"):
                with self._wanted_by("path"):
                    parts.append(OggZipPart(name, archive=self._local(path), text=texts.get(name)))
            elif name not in with_zip:
                parts.append(OggZipPart(name, text=texts[name]))
        return parts

    def _folder(self) -> Optional[str]:
        """Return the directory if the corpus is one."""
        opts = self.opts
        path = self._paths[0].rstrip("/") or "/"
        if (
            len(self._paths) > 1
            or path.endswith(".zip")
            or not os.path.isdir(path)
            or not os.path.exists(path + ".txt")
        ):
            return None
        for name in ("content_name", "resolve_symlink_for_name", "use_cache_manager"):
            if getattr(opts, name):
                raise ConfigError("%s: option %r is for zip files, but %r is a directory" % (self._owner(), name, path))
        return path

    def _local(self, path: str) -> str:
        return local_copy(path, wanted=self.opts.use_cache_manager)

    def read_index(self) -> OggZipIndex:
        """Read the texts, and choose the sequences."""
        opts = self.opts
        allowed = self.tags_of_segment_file()
        index = OggZipIndex(
            self._parts(),
            with_audio=self.features is not None,
            prefix=opts.zip_audio_files_have_name_as_prefix,
            allowed=allowed,
        )
        if not len(index):
            raise DataError(
                "%s: none of its %d sequences is in segment_file %r (%d tags)"
                % (self._owner(), index.num_read, opts.segment_file, len(allowed or ()))
            )
        if allowed:
            warn_of_unknown(self._owner(), "segment_file", self.opts.segment_file, allowed, index.tags)
        self._warn_of_contradictions(index)
        order = random_subset(len(index), opts.fixed_random_subset, opts.fixed_random_subset_seed, self._owner())
        if order is not None:
            index.keep(order)
        return index

    def _warn_of_contradictions(self, index: OggZipIndex) -> None:
        """Log what is wrong in the text of the corpus, but does not matter for each use of it."""
        if index.num_wrong_durations:
            log.warn(
                "%s: %d sequences have a duration that is not a number of seconds, e.g. %s; orders by length fail."
                % (self._owner(), index.num_wrong_durations, index.wrong_duration)
            )
        repeated = index.tags.repeated()
        if repeated:
            log.warn(
                "%s: %d sequences have the tag of an earlier one, e.g. %r. Lists of tags choose the last one of a tag."
                % (self._owner(), len(repeated), index.tags[repeated[0]])
            )

    # ---- sequences

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return corpus indices in the order of an epoch, after ``epoch_wise_filter``."""
        order = super().seq_order(epoch)
        assert order is not None
        for entry in self._filter.at(max(epoch, 1)):
            order = limit_mean_length(order, self.needed_lengths()[order], entry.get("max_mean_len"))
        return order

    def target_text(self, index: int) -> str:
        """Return the transcription after ``targets_post_process``."""
        return self._post_process(self.text(index))
