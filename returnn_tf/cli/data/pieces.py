"""``returnn-tf data bpe|sentencepiece CORPUS --size N``: learn pieces of words, and write what a vocabulary reads."""

from __future__ import annotations

import argparse
import collections
import io
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from returnn_tf.cli.data.texts import corpus_texts
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.config.errors import FileDataError, FileError
from returnn_tf.datasets.vocabulary import Vocabulary, make_vocabulary
from returnn_tf.datasets.vocabulary.learn_bpe import count_words, learn_bpe
from returnn_tf.util.installing import install_command
from returnn_tf.util.temporary import Temporary

_CORPUS = """
CORPUS is a text with a sentence in each line (.gz allowed), a table with a column text (.tsv, .csv), or a Bliss corpus
(.xml, .xml.gz). With --dataset NAME it is a config, whose dataset NAME has texts.
"""
_BPE = """
Learn pieces of words by byte pair encoding, and write OUT.codes and OUT.vocab for the vocabulary BytePairEncoding.

    returnn-tf data bpe train.txt.gz --size 1000 --output out/bpe
    returnn-tf data bpe my.config --dataset train --size 1000 --output out/bpe --labels "</s>,<unk>"
"""
_SENTENCEPIECE = """
Learn pieces of sentences by the package sentencepiece, and write OUT.model for the vocabulary SentencePieces.

    returnn-tf data sentencepiece train.txt --size 4000 --output out/pieces
    returnn-tf data sentencepiece source.txt target.txt --size 8000 --output out/pieces --kind bpe
"""
#: Errors of sentencepiece, and what we say: with the size asked for, and a number from its message.
_FAULTS = {
    re.compile(r"Vocabulary size too high.*value <= (\d+)", re.S): (
        "%d labels are too many: the corpus gives no more than %s"
    ),
    re.compile(r"smaller than required_chars[^0-9]*\d+ vs (\d+)"): (
        "%d labels are too few: the characters of the corpus and the special labels are %s; a lower --coverage drops "
        "rare characters"
    ),
}


def bpe_parser() -> CommandParser:
    """Return the parser of the arguments of ``data bpe``."""
    result = _parser("data bpe", _BPE, "labels in all, with the characters of the corpus and those of --labels")
    result.add_argument(
        "--labels",
        metavar="LABEL,LABEL",
        type=_names,
        default=["UNK"],
        help="labels that are no pieces, the first ids (UNK: the default of unknown_label); '': none",
    )
    result.add_argument(
        "--characters", metavar="ABC", default="", help="characters of other words, beside those of the corpus"
    )
    result.add_argument("--words", action="store_true", help="also write OUT.words: the words of the corpus, a lexicon")
    return result


def sentencepiece_parser() -> CommandParser:
    """Return the parser of the arguments of ``data sentencepiece``."""
    result = _parser("data sentencepiece", _SENTENCEPIECE, "labels in all, with <unk>, <s> and </s>")
    result.add_argument("--kind", choices=("unigram", "bpe"), default="unigram", help="how pieces are found (unigram)")
    result.add_argument(
        "--coverage", metavar="F", type=_share, default=1.0, help="share of the characters that become labels (1.0)"
    )
    result.add_argument(
        "--normalize", metavar="RULE", default="nmt_nfkc", help="of the package; identity: none (nmt_nfkc)"
    )
    result.add_argument("--without-bos-eos", action="store_true", help="leave out the labels <s> and </s>")
    return result


def _parser(name: str, text: str, size: str) -> CommandParser:
    result = CommandParser(name, text + _CORPUS)
    result.add_argument("corpus", metavar="CORPUS", nargs="+", help="texts, or a config with --dataset")
    result.add_argument("--size", metavar="N", type=positive, required=True, help=size)
    result.add_argument("--output", metavar="OUT", required=True, help="begin of the names of the files to write")
    result.add_argument("--dataset", metavar="NAME", help="train, dev, ...: of the config CORPUS")
    result.add_argument(
        "--column", metavar="NAME,NAME", type=_names, default=["text"], help="columns with the texts of a table (text)"
    )
    result.add_argument("--replace", action="store_true", help="replace existing files")
    return result


def _names(text: str) -> list[str]:
    return [label for label in text.split(",") if label]


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("%r is no number above 0 and at most 1" % text)
    return value


def run_bpe(args: list[str]) -> int:
    """Learn merges, and write them with the labels.

    :raises DataError: the corpus can't be read, or does not give the labels asked for
    """
    parsed = bpe_parser().parse_args(args)
    suffixes = [".codes", ".vocab", *([".words"] if parsed.words else [])]
    paths = _outputs(parsed, *suffixes)
    words: collections.Counter[str] = count_words(corpus_texts(parsed.corpus, parsed.dataset, parsed.column))
    learned = learn_bpe(words, parsed.size, further=parsed.labels, characters=parsed.characters)
    contents = [learned.codes, learned.vocabulary, "".join(word + "\n" for word in sorted(words))]
    for path, content in zip(paths, contents):
        _write(path, content.encode("utf8"))
    options: dict[str, Any] = {"class": "BytePairEncoding", "bpe_file": paths[0], "vocab_file": paths[1]}
    if "UNK" not in parsed.labels:
        options["unknown_label"] = next((label for label in parsed.labels if "unk" in label.lower()), None)
    vocabulary = _checked(options)
    lengths = sum(len(vocabulary.pieces(word)) * count for word, count in words.items())
    _report(words, options, vocabulary, lengths)
    return 0


def run_sentencepiece(args: list[str]) -> int:
    """Train a model, and write it.

    :raises DataError: the corpus can't be read, or does not give the labels asked for
    """
    parsed = sentencepiece_parser().parse_args(args)
    (path,) = _outputs(parsed, ".model")
    try:
        import sentencepiece
    except ImportError as exc:
        raise FileError("data sentencepiece: %s. Install it: %s" % (exc, install_command("text"))) from exc
    texts = list(corpus_texts(parsed.corpus, parsed.dataset, parsed.column))
    if not any(map(str.strip, texts)):
        raise FileDataError("the corpus has no words")
    special: dict[str, Any] = {"bos_id": -1, "eos_id": -1} if parsed.without_bos_eos else {}
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type=parsed.kind,
            vocab_size=parsed.size,
            character_coverage=parsed.coverage,
            normalization_rule_name=parsed.normalize,
            max_sentence_length=1 << 20,
            minloglevel=2,
            **special,
        )
    except (RuntimeError, OSError) as exc:
        raise FileDataError(_fault(parsed, str(exc))) from exc
    _write(path, model.getvalue())
    options = {"class": "SentencePieces", "model_file": path}
    vocabulary = _checked(options)
    words = collections.Counter(word for text in texts for word in text.split())
    _report(words, options, vocabulary, sum(len(vocabulary.get_seq(text)) for text in texts))
    return 0


def _fault(parsed: Any, text: str) -> str:
    """Return the error of sentencepiece in our words, where they are known."""
    for pattern, words in _FAULTS.items():
        found = pattern.search(text)
        if found:
            return words % (parsed.size, found.group(1))
    return "sentencepiece can't train on the corpus: %s" % text


def _outputs(parsed: Any, *suffixes: str) -> list[str]:
    """Return the paths of the files to write.

    :raises DataError: one exists, and is not to be replaced
    """
    paths = [parsed.output + suffix for suffix in suffixes]
    for path in paths:
        if os.path.exists(path) and not parsed.replace:
            text = "%r exists already, and models may depend on its labels; add --replace, or choose another --output"
            raise FileDataError(text % path)
    return paths


def _write(path: str, content: bytes) -> None:
    try:
        os.makedirs(os.path.dirname(path) or os.curdir, exist_ok=True)
        with Temporary(path) as temporary:
            temporary.write(content)
            temporary.publish()
    except OSError as exc:
        raise FileError("can't write %r: %s" % (path, exc.strerror or exc)) from None


def _checked(options: Mapping[str, Any]) -> Vocabulary:
    """Return the vocabulary as a config reads it from the files."""
    result: Vocabulary = make_vocabulary(dict(options), owner="what was written")
    return result


def _report(words: Mapping[str, int], options: Mapping[str, Any], vocabulary: Vocabulary, num_pieces: int) -> None:
    """Print what the pieces are like, and how a config names them."""
    count = sum(words.values())
    print("%d labels, learned from %d words (%d different)" % (vocabulary.num_labels, count, len(words)))
    print("%.2f pieces per word; the longest: %s" % (num_pieces / count, " ".join(_longest(vocabulary.labels))))
    print("in a config: %r" % (dict(options),))


def _longest(labels: Iterable[str]) -> list[str]:
    """Return the longest labels but such as <unk>."""
    return sorted((label for label in labels if not (label[0] == "<" and label[-1] == ">")), key=len)[-5:]
