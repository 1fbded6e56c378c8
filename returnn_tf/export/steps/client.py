"""`StepDecoder`: a decoder in Python for a graph of single steps, with TensorFlow and numpy alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from returnn_tf.config.errors import ExportDataError
from returnn_tf.export.saved_model.loader import read_facts
from returnn_tf.export.side_file import NAME, read_side_file
from returnn_tf.export.steps.search import SearchOptions, StepSearch, StepSearchResult
from returnn_tf.export.steps.stepper import Stepper


class StepDecoder(Stepper):
    """A graph for single steps. It knows the files alone, not the network.

    ::

        with StepDecoder.open("folder of the export") as decoder:
            found = decoder.search(features, sizes)              # labels, lengths, scores; best first

            states = decoder.encode(features, sizes)             # or step by step:
            scores, states = decoder.step(None, states)          # log probabilities [batch, labels]
            scores, states = decoder.step(scores.argmax(axis=1), states)

    :param meta: path of the ``.meta`` file
    :param checkpoint: prefix of the checkpoint
    :param libraries: paths of the libraries of native ops that the graph needs
    :param facts: the entry "steps" of ``model.json``; needed by `search` alone
    :param native: what the libraries were compiled for: the entry "native" there
    :raises DataError: a file is missing, damaged, or no graph for single steps
    """

    def __init__(
        self,
        meta: str,
        checkpoint: Optional[str] = None,
        libraries: Iterable[str] = (),
        facts: Optional[Mapping[str, Any]] = None,
        native: Optional[Mapping[str, Any]] = None,
    ) -> None:
        super().__init__(meta, checkpoint, libraries, native)
        self.facts: Mapping[str, Any] = facts or {}

    @classmethod
    def open(cls, folder: str) -> StepDecoder:
        """Load what ``returnn-tf export --to steps`` wrote.

        :raises DataError: a file is missing or damaged
        """
        if "steps" not in read_side_file(folder):
            raise ExportDataError("%s is not the side file of an export to steps." % os.path.join(folder, NAME))
        try:
            side = read_facts(folder)
            libraries = [os.path.join(folder, path) for path in side["native"]["libraries"]]
            paths = [os.path.join(folder, side[name]) for name in ("meta_graph", "checkpoint")]
        except ValueError as exc:
            raise ExportDataError("The export in %s can't be opened: %s" % (folder, exc)) from None
        return cls(paths[0], paths[1], libraries, side["steps"], side["native"])

    def __enter__(self) -> StepDecoder:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def search(
        self,
        features: Any,
        sizes: Any = None,
        *,
        beam_size: Optional[int] = None,
        end_label: Optional[int] = None,
        max_steps: Optional[int] = None,
        length_normalization: Optional[bool] = None,
        prob_scale: Optional[float] = None,
    ) -> StepSearchResult:
        """Search label by label, by the rules of the layer ``choice``. The first label follows on its initial_output.

        :param beam_size: default, like that of all that follows: as in the config
        :param end_label: of a graph without a layer "end": the label of the last choice that ends a hypothesis
        :param max_steps: limit of the number of steps, besides that of the graph
        :raises DataError: nothing ends the search, or the config searches by rules that steps can't follow
        """
        if not self.facts:
            raise ExportDataError("The search needs the facts of the network: use StepDecoder.open, or give them.")
        options = SearchOptions.from_facts(
            self.facts,
            beam_size=beam_size,
            end_label=end_label,
            max_steps=max_steps,
            length_normalization=length_normalization,
            prob_scale=prob_scale,
        )
        states = self.encode(features, sizes)
        return StepSearch(self, options).run(states, self.sequences)
