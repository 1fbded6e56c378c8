"""Vocabularies by the dict that a config gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from returnn_tf.config.errors import TextError, did_you_mean
from returnn_tf.datasets.vocabulary.base import Vocabulary
from returnn_tf.datasets.vocabulary.bpe import BytePairEncoding, SamplingBytePairEncoding
from returnn_tf.datasets.vocabulary.huggingface import HuggingFaceTokenizer
from returnn_tf.datasets.vocabulary.pieces import SentencePieces
from returnn_tf.datasets.vocabulary.units import CharacterTargets, Utf8ByteTargets

#: The classes by the name that configs use.
VOCABULARIES: dict[str, type[Vocabulary]] = {
    cls.__name__: cls
    for cls in (
        BytePairEncoding,
        CharacterTargets,
        HuggingFaceTokenizer,
        SamplingBytePairEncoding,
        SentencePieces,
        Utf8ByteTargets,
        Vocabulary,
    )
}


def make_vocabulary(options: Any, *, owner: str = "") -> Vocabulary:
    """Return a vocabulary.

    :param options: a dict with the options of the class ``class``; by default that is BytePairEncoding if there is a
        ``bpe_file``, else Vocabulary. Or a vocabulary, which is returned
    :param owner: prefix of errors, e.g. "dataset 'train': targets"
    :raises ConfigError: for wrong options
    :raises DataError: for a file that is missing or not a vocabulary

    >>> make_vocabulary({"class": "CharacterTargets", "labels": ["@", "a"]}).get_seq("aa")
    [1, 1]
    """
    if isinstance(options, Vocabulary):
        return options
    cls, given = _class_and_options(options, owner)
    return cls(owner=owner, **given)


def vocab_labels(key: str, vocab: Any) -> list[str]:
    """Return the labels by id for the option ``vocab`` of a data key.

    The labels are enough to write text: what else a vocabulary needs may be missing.
    """
    return labels_of(vocab, "extern_data[%r]: vocab" % key)


def labels_of(vocab: Any, where: str) -> list[str]:
    """Return the labels by id of a vocabulary, or of the dict of one; nothing else of it need be there.

    :param where: prefix of errors
    """
    if isinstance(vocab, Vocabulary):
        return list(vocab.labels)
    if isinstance(getattr(vocab, "labels", None), (list, tuple)):  # of a class of the config
        return [str(label) for label in vocab.labels]
    cls, given = _class_and_options(vocab, where)
    return cls.labels_of(given, where)


def _class_and_options(options: Any, owner: str) -> tuple[type[Vocabulary], dict[str, Any]]:
    begin = owner + ": " if owner else ""
    if not isinstance(options, Mapping):
        raise TextError(
            "%sa vocabulary is a dict such as {'vocab_file': ..., 'unknown_label': ...}, got %r" % (begin, options)
        )
    given = {str(name): value for name, value in options.items() if name != "class"}
    name = options.get("class") or ("BytePairEncoding" if "bpe_file" in options else "Vocabulary")
    if isinstance(name, type) and issubclass(name, Vocabulary):
        return name, given
    if not isinstance(name, str) or name not in VOCABULARIES:
        hint = did_you_mean(name, VOCABULARIES, max_listed=10)
        raise TextError("%sunknown class of vocabulary %r. %s" % (begin, name, hint))
    return VOCABULARIES[name], given
