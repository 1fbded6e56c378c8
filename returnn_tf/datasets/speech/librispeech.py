"""LibriSpeechCorpus: the corpus as it is distributed, in zip files or directories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import ConfigError, DataError, did_you_mean
from returnn_tf.config.options import option
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.epoch_filter import EpochFilter, limit_mean_length
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.speech.indexed import UtterancesInFiles
from returnn_tf.datasets.speech.librispeech_parts import LibriSpeechIndex, check_tag_format, find_parts, open_parts
from returnn_tf.datasets.speech.utterances import UtteranceDataset, random_subset
from returnn_tf.datasets.text.orth import make_post_processing

_CLASSES = {"bpe": "BytePairEncoding", "chars": "CharacterTargets"}
_SUBSET_SEED = 42


@register_dataset()
class LibriSpeechCorpus(UtterancesInFiles[LibriSpeechIndex]):
    """The parts of LibriSpeech whose names begin with ``prefix``: zip files, or directories as they were unpacked.

    A zip file has the name of its part, e.g. train-clean-100.zip. The length of a sequence for ``sorted`` etc. is the
    number of characters of its text.

    Data keys: ``data`` are features, ``classes`` labels, ``raw`` is the text. Without audio ``data`` is a zero.

    >>> from returnn_tf.datasets import Dataset
    >>> dev = {"class": "LibriSpeechCorpus", "path": "LibriSpeech", "use_zip": True, "prefix": "dev", "audio": {},
    ...        "bpe": {"bpe_file": "bpe.codes", "vocab_file": "bpe.vocab", "unknown_label": "<unk>"}}
    >>> dataset = Dataset.from_config(dev)   # doctest: +SKIP
    """

    @dataclass
    class Options(UtteranceDataset.Options):
        """Options in the config."""

        path: str = option(help="directory of the corpus; train-clean-100 must be there")
        prefix: str = option(help="parts to read, by the beginning of their names: 'train', 'dev', 'test-other', ...")
        audio: Optional[dict[str, Any]] = option(
            help="options of the features, {} for all defaults; None: without audio"
        )
        orth_post_process: Any = option(None, help="functions on the text: names, functions or a list of these")
        targets: Optional[Any] = option(
            None, help="options of the vocabulary, or 'bpe' or 'chars'; None: by which of these options is given"
        )
        chars: Optional[dict[str, Any]] = option(None, help="options of a vocabulary of characters")
        bpe: Optional[dict[str, Any]] = option(None, help="options of a BPE vocabulary")
        use_zip: bool = option(False, help="the parts are zip files")
        use_ogg: bool = option(False, help="the audio files are Ogg, '.ogg' appended to the names of the Flac files")
        use_cache_manager: bool = option(
            False, help="read copies on the local disk: `docs/data.md`, returnn-tf explain data-files"
        )
        fixed_random_subset: Union[None, float] = option(
            None, help="keep this number of sequences, below 1 this fraction of them, chosen and shuffled at random"
        )
        epoch_wise_filter: Optional[dict[Any, Any]] = option(
            None,
            help="a part of the corpus in some epochs: {(first, last): {'subdirs': [...], 'max_mean_len': characters, "
            "'use_new_filter': True}}",
        )
        seq_tag_format: str = option(
            "%(subdir)s-%(speaker)i-%(chapter)i-%(seq)04i", help="format of the tags", check=check_tag_format
        )

    def setup(self) -> None:
        """Check all options, and that there are files; they are read when the first epoch begins."""
        opts = self.opts
        if not self._given.get("name"):
            self.name = "prefix:%s" % opts.prefix
        self.set_up(audio=opts.audio, targets=self._target_options())
        self._paths = find_parts(opts.path, opts.prefix, use_zip=opts.use_zip, where=self._owner())
        self._filter = EpochFilter.parse(
            opts.epoch_wise_filter, owner=self._owner(), options=("subdirs", "use_new_filter", "max_mean_len")
        )
        self._post_process = make_post_processing(opts.orth_post_process, owner="%s: orth_post_process" % self._owner())
        random_subset(0, opts.fixed_random_subset, 0, self._owner())
        data = self.feature_spec() if self.features else DataSpec(dim=0, ndim=0, dtype="float64")
        self.data_specs = {"data": data, "raw": DataSpec(dim=0, ndim=0, dtype="object")}
        if self.targets is not None:
            self.data_specs = {"classes": self.target_spec(), **self.data_specs}

    def _target_options(self) -> Optional[Any]:
        """Return the options of the vocabulary."""
        opts = self.opts
        given = [name for name in _CLASSES if getattr(opts, name) is not None]
        targets = opts.targets
        if targets is not None and not isinstance(targets, str):
            if given:
                raise ConfigError("%s: give 'targets' or %r, not both" % (self._owner(), given[0]))
            return targets
        if isinstance(targets, str) and targets not in _CLASSES:
            hint = did_you_mean(targets, _CLASSES)
            raise ConfigError("%s: option 'targets' is %r. %s" % (self._owner(), targets, hint))
        if len(given) == 2:
            raise ConfigError("%s: give 'bpe' or 'chars', not both" % self._owner())
        if targets is not None and given != [targets]:
            raise ConfigError("%s: targets=%r needs the option %r" % (self._owner(), targets, targets))
        return {"class": _CLASSES[given[0]], **getattr(opts, given[0])} if given else None

    def read_index(self) -> LibriSpeechIndex:
        """Read the names and texts, and choose the sequences."""
        opts = self.opts
        index = LibriSpeechIndex(
            open_parts(self._paths, use_zip=opts.use_zip, use_cache_manager=opts.use_cache_manager),
            use_ogg=opts.use_ogg,
            tag_format=opts.seq_tag_format,
            post_process=self._post_process,
        )
        order = random_subset(len(index), opts.fixed_random_subset, _SUBSET_SEED, self._owner())
        if order is not None:
            index.order = index.order[order]
        return index

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return corpus indices in the order of an epoch, after ``epoch_wise_filter``."""
        order = super().seq_order(epoch)
        assert order is not None
        for entry in self._filter.at(max(epoch, 1)):
            order = self._filtered_by(entry, order, epoch)
        return order

    def _filtered_by(self, entry: Mapping[str, Any], order: NDArray[Any], epoch: int) -> NDArray[Any]:
        subdirs = entry.get("subdirs")
        if subdirs is not None:
            names = [subdirs] if isinstance(subdirs, str) else list(subdirs)
            order = order[np.isin(self.index.part_names()[order].astype(str), names)]
            if not len(order):
                raise DataError(
                    "%s: epoch %d is empty: epoch_wise_filter wants the subdirs %r. %s"
                    % (self._owner(), epoch, names, did_you_mean(str(names[0] if names else ""), self._part_names()))
                )
        new_filter = bool(entry.get("use_new_filter", False))
        lengths = self.needed_lengths()[order]
        return limit_mean_length(order, lengths, entry.get("max_mean_len"), new_filter=new_filter)

    def _part_names(self) -> list[str]:
        return [part.name for part in self.index.parts]
