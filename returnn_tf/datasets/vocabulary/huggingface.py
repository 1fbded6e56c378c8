"""Vocabulary of a tokenizer of Hugging Face, a file ``tokenizer.json``, by the package tokenizers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.config.errors import TextDataError, TextError, shown
from returnn_tf.config.options import option
from returnn_tf.datasets.core.safe_files import read_text, wanted_by
from returnn_tf.datasets.vocabulary.base import Path, Vocabulary
from returnn_tf.datasets.vocabulary.files import LabelTable
from returnn_tf.util.installing import install_command

_FILE = "tokenizer.json"
_ROLES = ("unk", "bos", "eos", "pad")


class HuggingFaceTokenizer(Vocabulary):
    """The tokens of a ``tokenizer.json``. Unknown, begin, end and padding are those that the files beside it name."""

    @dataclass
    class Options:
        """Options in the config."""

        huggingface_repo_dir: Optional[Path] = option(None, help="folder with tokenizer.json, as of a model")
        tokenizer_file: Optional[Path] = option(None, help="the file itself, instead of huggingface_repo_dir")
        add_special_tokens: bool = option(
            False, help="add the tokens of begin and end that the tokenizer adds for its model"
        )
        seq_postfix: Optional[list[int]] = option(None, help="ids appended to every sequence")

    positional = ("huggingface_repo_dir",)

    @classmethod
    def labels_of(cls, options: Mapping[str, Any], where: str) -> list[str]:
        """Return the tokens."""
        files = {name: options[name] for name in ("huggingface_repo_dir", "tokenizer_file") if name in options}
        return cls(owner=where, **files).labels

    def _table(self) -> LabelTable:
        opts = self.opts
        if (opts.huggingface_repo_dir is None) == (opts.tokenizer_file is None):
            raise TextError("%s: give either 'huggingface_repo_dir' or 'tokenizer_file'." % self.where)
        name = "tokenizer_file" if opts.huggingface_repo_dir is None else "huggingface_repo_dir"
        path = os.fspath(getattr(opts, name))
        path = path if name == "tokenizer_file" else os.path.join(path, _FILE)
        package = _import_package(self.where)
        with wanted_by("%s: %s" % (self.where, name)):
            content = read_text(path)
        try:
            self._tokenizer = package.Tokenizer.from_str(content)
        except Exception as exc:  # the package raises a plain Exception
            raise TextDataError("%s: %s: file %r is no tokenizer: %s" % (self.where, name, path, exc)) from exc
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokens_by_role = self._named_tokens(os.path.dirname(path))
        ids: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        labels = ["<no-token-%d>" % index for index in range(max(ids.values(), default=-1) + 1)]
        for label, index in ids.items():
            labels[index] = label
        return LabelTable(tuple(labels), ids)

    def _named_tokens(self, folder: str) -> dict[str, str]:
        """Return the special tokens by role, "unk", "bos", ..., as transformers 5.24 finds them.

        Those of ``special_tokens_map.json`` count before those of ``tokenizer_config.json``, but for one that lists the
        added tokens: it has been written by a release that has all there.
        """
        newer = self._json_in(os.path.join(folder, "tokenizer_config.json"))
        is_whole = "added_tokens_decoder" in newer
        older = {} if is_whole else self._json_in(os.path.join(folder, "special_tokens_map.json"))
        if not newer and not older:
            unknown = getattr(self._tokenizer.model, "unk_token", None)
            return {"unk": unknown} if isinstance(unknown, str) else {}
        given = {role: older.get(role + "_token") or newer.get(role + "_token") for role in _ROLES}
        tokens = {role: t.get("content") if isinstance(t, Mapping) else t for role, t in given.items()}
        return {role: token for role, token in tokens.items() if isinstance(token, str)}

    def _json_in(self, path: str) -> Mapping[str, Any]:
        """Return the object in a file, an empty one if it is not there."""
        if not os.path.exists(path):
            return {}
        with wanted_by(self.where):
            text = read_text(path)
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise TextDataError("%s: file %r is no JSON object: %s" % (self.where, path, exc)) from exc
        if not isinstance(content, Mapping):
            raise TextDataError("%s: file %r is no JSON object, but %s" % (self.where, path, shown(content)))
        return content

    def _set_specials(self) -> None:
        self.unknown_label_id = self._id_of_role("unk")
        self.unknown_label = None if self.unknown_label_id is None else self.labels[self.unknown_label_id]
        self.bos_label_id, self.eos_label_id, self.pad_label_id = map(self._id_of_role, ("bos", "eos", "pad"))
        self.control_symbol_ids = {}
        self.user_defined_symbol_ids = {}
        self.seq_postfix = [self._checked_id("seq_postfix", index) for index in self.opts.seq_postfix or []]

    def _id_of_role(self, role: str) -> Optional[int]:
        token = self._tokens_by_role.get(role)
        index = None if token is None else self._tokenizer.token_to_id(token)
        if token is not None and index is None:
            raise TextDataError("%s: the %s token %r is not among the tokens." % (self.where, role, token))
        return index

    def get_seq(self, sentence: str) -> list[int]:
        """Return the ids of a text."""
        encoded = self._tokenizer.encode(sentence, add_special_tokens=self.opts.add_special_tokens)
        return list(encoded.ids) + self.seq_postfix

    def pieces(self, sentence: str) -> list[str]:
        """Return the tokens of a text."""
        encoded = self._tokenizer.encode(sentence, add_special_tokens=self.opts.add_special_tokens)
        return list(encoded.tokens)

    def get_seq_labels(self, seq: Iterable[int]) -> str:
        """Return the text of a sequence of ids, as the tokenizer decodes it; DataError for an unknown id."""
        ids = [int(index) for index in seq]
        for index in ids:
            self.id_to_label(index)
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


def _import_package(where: str) -> Any:
    try:
        import tokenizers
    except ImportError as exc:
        command = install_command("huggingface")
        raise TextError("%s needs the package tokenizers: %s (%s)" % (where, command, exc)) from exc
    return tokenizers
