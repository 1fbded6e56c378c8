"""``tokens.txt``: the symbols of labels that sherpa-onnx puts together as text."""

from __future__ import annotations

from collections.abc import Sequence

from returnn_tf.config.errors import ExportError
from returnn_tf.datasets.vocabulary.spelling import Spelling

BLANK = "<blk>"
_SPACE = "\u2581"  # the program writes a space in its place, at the begin of a symbol


def token_symbols(names: Sequence[str], size: int, blank: int) -> list[str]:
    """Return a symbol for each label.

    Where the end of a label tells whether a word ends, as ``@@`` of BPE, a symbol can't say so: symbols are the labels
    then, each a word of its own in the text, so that "@@ " is to be removed.

    :param names: of the first labels; those that the network adds behind them have none
    :param size: number of labels
    :param blank: index of the blank
    :raises ConfigError: names are not known, or are not the symbols of a text
    """
    where = "export to sherpa-onnx: "
    if not names:
        raise ExportError(where + "the names of the labels are not known. Set 'vocab' of the target in extern_data.")
    spelling = Spelling(names)
    added = [spelling.added(name) for name in names]
    by_end = any((text or "")[-1:].isspace() and (text or "").strip() for text in added)
    symbols = []
    for index in range(size):
        text = added[index] if index < len(names) else "<label-%d>" % index
        if index == blank:
            symbols.append(BLANK)
            continue
        if text is None:
            raise ExportError(
                where + "the label %d, %r, is a part of a character, but the program puts characters together. Train "
                "with other labels, e.g. pieces of SentencePiece." % (index, names[index])
            )
        if by_end and index < len(names):
            text = " " + names[index]
        symbol = _SPACE + text[1:] if text[:1] == " " else text
        if not symbol or any(char.isspace() for char in symbol):
            raise ExportError(
                where
                + "the label %d, %r, is empty or has white space, which a file of symbols can't have."
                % (index, names[index])
            )
        if symbol == BLANK:
            raise ExportError(
                where
                + "the label %d is called %r, but the blank of CTC is label %d. Rename it in the vocabulary."
                % (index, symbol, blank)
            )
        symbols.append(symbol)
    return symbols


def shown(symbol: str) -> str:
    """Return a symbol as the program writes it."""
    return symbol.replace(_SPACE, " ")


def write_tokens(path: str, symbols: Sequence[str]) -> None:
    """Write a line "symbol index" for each label."""
    with open(path, "w", encoding="utf8") as file:
        file.write("".join("%s %d\n" % (symbol, index) for index, symbol in enumerate(symbols)))
