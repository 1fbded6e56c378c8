"""Vocabulary of a SentencePiece model (Kudo and Richardson 2018), by the package sentencepiece."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np

from returnn_tf.config.errors import TextDataError, TextError
from returnn_tf.config.options import at_least, option
from returnn_tf.datasets.vocabulary.base import Path, Vocabulary
from returnn_tf.datasets.vocabulary.files import LabelTable
from returnn_tf.util.installing import install_command


class SentencePieces(Vocabulary):
    """The pieces of a SentencePiece model. Labels, unknown, begin, end and padding are those of the model."""

    @dataclass
    class Options:
        """Options in the config: those of ``SentencePieceProcessor``."""

        model_file: Path = option(help="the model")
        add_bos: bool = option(False, help="put the label of the beginning before every sequence")
        add_eos: bool = option(False, help="append the label of the end to every sequence")
        reverse: bool = option(False, help="reverse every sequence, before its beginning and end are added")
        enable_sampling: bool = option(False, help="split at random")
        nbest_size: int = option(-1, help="sample from this number of best ways to split; -1: from all")
        alpha: float = option(0.1, help="exponent of the probabilities, or the dropout of merges in a BPE model")
        num_threads: int = option(-1, help="threads of the package; -1: its default", check=at_least(-1))
        emit_unk_piece: bool = option(
            False, help="write the unknown label as its piece", inert="ids of unknown pieces are the same in any case"
        )
        out_type: Any = option(int, help="type of the labels", choices=(int, "int"))
        seq_postfix: None = option(None, help="use add_eos")

    positional = ("model_file",)

    @classmethod
    def labels_of(cls, options: Mapping[str, Any], where: str) -> list[str]:
        """Return the pieces of the model."""
        return cls(model_file=options.get("model_file"), owner=where).labels

    def _table(self) -> LabelTable:
        opts = self.opts
        self.is_random = bool(opts.enable_sampling)
        self._package = _import_package(self.where)
        path = os.fspath(opts.model_file)
        if not os.path.isfile(path):
            raise TextDataError(
                "%s: model_file %r does not exist (current directory: %s)." % (self.where, path, os.getcwd())
            )
        names = "add_bos", "add_eos", "reverse", "enable_sampling", "nbest_size", "alpha", "num_threads"
        try:
            given = {name: getattr(opts, name) for name in names}
            self._processor = self._package.SentencePieceProcessor(model_file=path, out_type=int, **given)
        except Exception as exc:  # the package raises nearly anything for a damaged file
            raise TextDataError("%s: model_file %r is no model of sentencepiece: %s" % (self.where, path, exc)) from exc
        labels = tuple(self._processor.id_to_piece(i) for i in range(self._processor.get_piece_size()))
        return LabelTable(labels, {label: index for index, label in enumerate(labels)})

    def _set_specials(self) -> None:
        self.unknown_label_id = self._special_of_model("unk_id")
        self.unknown_label = None if self.unknown_label_id is None else self.labels[self.unknown_label_id]
        self.bos_label_id = self._special_of_model("bos_id")
        self.eos_label_id = self._special_of_model("eos_id")
        self.pad_label_id = self._special_of_model("pad_id")
        self.control_symbol_ids = {}
        self.user_defined_symbol_ids = {}
        self.seq_postfix = []
        for option_name, index in (("add_bos", self.bos_label_id), ("add_eos", self.eos_label_id)):
            if getattr(self.opts, option_name) and index is None:
                raise TextError("%s: the model has no label for %s." % (self.where, option_name))

    def _special_of_model(self, name: str) -> Optional[int]:
        index = int(getattr(self._processor, name)())
        return None if index < 0 else index

    def set_random_seed(self, seed: Union[int, Sequence[int]]) -> None:
        """Begin a sequence of random numbers, which all models of the process share."""
        if self.opts.enable_sampling:
            self._package.set_random_generator_seed(int(np.random.RandomState(seed).randint(2**31)))

    def get_seq(self, sentence: str) -> list[int]:
        """Return the ids of a text."""
        return [int(index) for index in self._processor.encode(sentence)]

    def pieces(self, sentence: str) -> list[str]:
        """Return the pieces of a text."""
        return [self.labels[index] for index in self.get_seq(sentence)]


def _import_package(where: str) -> Any:
    try:
        import sentencepiece
    except ImportError as exc:
        raise TextError("%s needs the package sentencepiece: %s (%s)" % (where, install_command("text"), exc)) from exc
    return sentencepiece
