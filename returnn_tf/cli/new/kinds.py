"""The kinds of projects: the config, the program that makes the data, and the commands to go on with."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import ModuleType

from returnn_tf.cli.new import pairs_data, speech_data, text_data
from returnn_tf.util.shipped import texts


@dataclass(frozen=True)
class ProjectKind:
    """A kind of project.

    :param help: what is trained, in one line
    :param data: module with ``write(folder)``, which makes the data; becomes make_data.py
    :param seconds: how long the training takes on two cores of a CPU
    :param after: arguments of ``returnn-tf CONFIG`` after the training, and what it does
    """

    name: str
    help: str
    data: ModuleType
    seconds: int
    after: tuple[str, str]

    def config(self, name: str) -> str:
        """Return the text of the config."""
        return texts(__file__, ".config")[self.name].replace("NAME.config", name + ".config")

    def make_data(self) -> str:
        """Return the text of the program that makes the data."""
        return inspect.getsource(self.data)


_RECOGNISE = ("++task search", "labels of the dev data -> out/recognised.tsv, and their error rate")
KINDS = {
    kind.name: kind
    for kind in [
        ProjectKind("ctc", "speech to labels: bidirectional LSTM, CTC", speech_data, 15, _RECOGNISE),
        ProjectKind("attention", "speech to labels: encoder, and decoder with attention", speech_data, 30, _RECOGNISE),
        ProjectKind("transducer", "speech to labels: a label or a blank in each frame", speech_data, 20, _RECOGNISE),
        ProjectKind(
            "lm", "language model of words: LSTM", text_data, 20, ("++task eval", "perplexity on the dev data")
        ),
        ProjectKind(
            "mt", "translation: Transformer", pairs_data, 40,
            ("++task search", "translations of the dev data -> out/translations.tsv, and their error rate"),
        ),
        ProjectKind(
            "hybrid", "states of a hidden Markov model in each frame: bidirectional LSTM", speech_data, 15,
            ("++task forward", "posteriors of the dev data -> out/posteriors.hdf"),
        ),
    ]
}  # fmt: skip
