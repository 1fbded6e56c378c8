"""The labels of a network as the tokens of CTranslate2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from returnn_tf.config.errors import ExportError
from returnn_tf.engine.data.label_names import LabelNames
from returnn_tf.tensor import Dim

WHERE = "export to ctranslate2: "


def tokens_of(names: LabelNames, dim: Any, key: str) -> list[str]:
    """Return a token for each label of an axis.

    :raises ConfigError: names are not known, or not different
    """
    assert isinstance(dim, Dim) and dim.size is not None
    found = list(names.names(dim))
    if not found:
        raise ExportError(WHERE + "the names of the labels of %r are not known. Set its 'vocab' in extern_data." % key)
    found += ["<label-%d>" % label for label in range(len(found), dim.size)]
    seen: dict[str, int] = {}
    for label, name in enumerate(found):
        if seen.setdefault(name, label) != label:
            raise ExportError(
                WHERE + "the labels %d and %d of %r have the same name, %r." % (seen[name], label, key, name)
            )
    return found


def unknown_of(tokens: Sequence[str], otherwise: str) -> str:
    """Return the token for words that are not known, or another one where there is none."""
    return next((name for name in tokens if name.strip("<>[]").lower() == "unk"), otherwise)
