"""`Stepper`: runs a graph for single steps from outside, as a decoder does."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ExportDataError
from returnn_tf.export.meta.names import input_name, input_size_name
from returnn_tf.export.saved_model.loader import check_machine
from returnn_tf.util.lazy_tf import tf

#: States by the names of their variables, with "i", the index of the next step. The first axis is the batch.
States = dict[str, NDArray[Any]]
_INDEX = "IO/i:0"


class GraphSession:
    """A session of a meta graph. It knows nothing of the network but what the file says.

    :param meta: path of the ``.meta`` file
    :param checkpoint: prefix of the checkpoint; None: the parameters stay as the graph initialises them
    :param libraries: paths of the libraries of native ops that the graph needs
    :param native: what these were compiled for: the entry "native" of ``model.json``
    :raises DataError: a file is missing or damaged
    """

    def __init__(
        self,
        meta: str,
        checkpoint: Optional[str] = None,
        libraries: Iterable[str] = (),
        native: Optional[Mapping[str, Any]] = None,
    ) -> None:
        from tensorflow.core.framework import variable_pb2
        from tensorflow.core.protobuf import meta_graph_pb2

        self._path, self._native = meta, native
        graph_def: Any = meta_graph_pb2.MetaGraphDef()
        try:
            with open(meta, "rb") as file:
                graph_def.ParseFromString(file.read())
        except OSError as exc:
            raise ExportDataError("%s: %s" % (meta, exc.strerror or exc)) from exc
        except Exception as exc:
            raise ExportDataError("%s is not a meta graph." % meta) from exc
        self._meta = graph_def
        #: The variables by name, such as "IO/i:0".
        self._variables: dict[str, Any] = {}
        for text in graph_def.collection_def["variables"].bytes_list.value:
            found = variable_pb2.VariableDef.FromString(text)
            self._variables[found.variable_name] = found
        self._session = tf.compat.v1.Session(graph=self._graph(graph_def.graph_def, list(libraries)))
        self._session.run([found.initializer_name for found in self._variables.values()])
        if checkpoint is not None:
            self._restore(checkpoint)

    def _graph(self, graph_def: Any, libraries: list[str]) -> Any:
        """Return the graph; libraries are loaded only if the process lacks their ops, since each may be there once."""
        while True:
            try:
                with tf.Graph().as_default() as graph:
                    tf.import_graph_def(graph_def, name="")
                return graph
            except (ValueError, tf.errors.OpError) as exc:
                if not libraries:
                    raise ExportDataError("The graph %s can't be loaded: %s" % (self._path, exc)) from exc
            self._check_machine()
            for path in libraries:
                try:
                    tf.load_op_library(path)
                except tf.errors.OpError as exc:
                    raise ExportDataError("The library %s can't be loaded: %s" % (path, exc.message)) from exc
            libraries = []

    def _check_machine(self) -> None:
        if self._native is not None:
            try:
                check_machine(self._native, tf.version.VERSION)
            except ValueError as exc:
                raise ExportDataError("The graph %s can't be loaded: %s" % (self._path, exc)) from None

    def _restore(self, checkpoint: str) -> None:
        if not os.path.exists(checkpoint + ".index"):
            raise ExportDataError("There is no checkpoint %s: the file %s.index is missing." % (checkpoint, checkpoint))
        saver = self._meta.saver_def
        try:
            self._session.run(saver.restore_op_name, {saver.filename_tensor_name: checkpoint})
        except tf.errors.OpError as exc:
            text = exc.message.partition("\n")[0]
            raise ExportDataError(
                "The checkpoint %s does not fit the graph %s: %s" % (checkpoint, self._path, text)
            ) from exc

    def close(self) -> None:
        """Close the session."""
        self._session.close()

    def collection(self, name: str) -> list[str]:
        """Return the names in a collection of ops or variables; empty without one."""
        return list(self._meta.collection_def[name].node_list.value) if name in self._meta.collection_def else []

    def run(self, ops: Sequence[str], feed: Mapping[str, Any]) -> None:
        """Run ops by name; feeds are arrays by tensor name."""
        self._session.run([[], list(ops)], dict(feed))

    def read(self, variables: Sequence[str]) -> list[NDArray[Any]]:
        """Return the values of variables by name."""
        found: list[NDArray[Any]] = self._session.run([self._variables[name].snapshot_name for name in variables])
        return found

    def write(self, values: Mapping[str, Any]) -> None:
        """Set variables: feed their initial values, and run their initialisers."""
        found = [(self._variables[name], value) for name, value in values.items()]
        feed = {variable.initial_value_name: value for variable, value in found}
        self._session.run([variable.initializer_name for variable, _ in found], feed)

    def has(self, variable: str) -> bool:
        """Return whether there is a variable of this name."""
        return variable in self._variables

    def dtype(self, variable: str) -> Any:
        """Return the numpy type of a variable."""
        tensor = self._session.graph.get_tensor_by_name(self._variables[variable].snapshot_name)
        return tensor.dtype.as_numpy_dtype

    def feed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return arrays by the names of their placeholders.

        :param values: ``<key>`` -> batch-major array, ``<key>/size<i>`` -> int32 [batch]
        :raises DataError: there is no such input
        """
        feed = {}
        for name, value in values.items():
            key, _, axis = name.partition("/size")
            tensor = (input_size_name(key, int(axis)) if axis else input_name(key)) + ":0"
            try:
                found = self._session.graph.get_tensor_by_name(tensor)
            except (KeyError, ValueError):
                raise ExportDataError("The graph %s has no input %r." % (self._path, tensor)) from None
            feed[tensor] = value if found.dtype == tf.string else np.asarray(value, found.dtype.as_numpy_dtype)
        return feed


class Stepper:
    """Encoder run, steps and states of a graph for single steps.

    The entries of a batch may be sequences or hypotheses: those of a sequence are side by side, and all sequences have
    the same number. States can be reordered by `select` between two steps.

    :param meta: path of the ``.meta`` file
    :param checkpoint: prefix of the checkpoint
    :param libraries: paths of the libraries of native ops that the graph needs
    :param native: what these were compiled for: the entry "native" of ``model.json``
    :raises DataError: a file is missing, damaged, or no graph for single steps
    """

    def __init__(
        self,
        meta: str,
        checkpoint: Optional[str] = None,
        libraries: Iterable[str] = (),
        native: Optional[Mapping[str, Any]] = None,
    ) -> None:
        self.session = GraphSession(meta, checkpoint, libraries, native)
        collection = self.session.collection
        self._encode, self._update = collection("encode_ops"), collection("update_ops")
        self._decode = collection("decode_ops")
        if not self._encode or not self._decode:
            self.session.close()
            raise ExportDataError("%s is no graph for single steps: it has no encode_ops and decode_ops." % meta)
        self._labels = collection("decoder_input_vars")
        self._scores = collection("decoder_output_vars")
        self._states = collection("_RETURNN_state_vars")
        self._globals = [name for name in collection("global_vars") if name != _INDEX]
        prefix = "IO/stochastic_var_choice_"
        #: The names of the choices, in the order of the labels.
        self.choices = [name[len(prefix) :].rpartition(":")[0] for name in self._labels]
        prefix = "IO/stochastic_var_scores_"
        #: The names of those with scores, in order.
        self.scored = [name[len(prefix) :].rpartition(":")[0] for name in self._scores]

    def close(self) -> None:
        """Close the session."""
        self.session.close()

    # --- the run of the encoder ---

    def encode(self, features: Any, sizes: Any = None) -> States:
        """Run the encoder, and return the states before the first step, one entry per sequence.

        :param features: batch-major array of the key "data", or a dict of all inputs: ``<key>``, and ``<key>/size<i>``
        :param sizes: int32 [batch]: the lengths of "data"
        """
        feed = dict(features) if isinstance(features, Mapping) else {"data": features}
        if sizes is not None:
            feed["data/size0"] = sizes
        #: Number of sequences of the last run.
        self.sequences = len(next(iter(feed.values())))
        self.session.run(self._encode, self.session.feed(feed))
        return self.states(0)

    # --- steps ---

    def step(self, labels: Union[None, Sequence[Any], NDArray[Any]], states: States) -> tuple[NDArray[Any], States]:
        """Do a step: return the scores of its labels, log probabilities [batch, labels], and the states after it.

        For a graph with a single choice that has scores; others need `begin`, `scores`, `set_label` and `states`.

        :param labels: int32 [batch], those chosen in the step before; None in the first step. Of several choices, a
            list in their order
        :param states: as returned for the step before
        """
        if len(self.scored) > 1:
            raise ExportDataError(
                "The step has several choices with scores, %s. Use begin, scores, set_label and states."
                % ", ".join(self.scored)
            )
        self.begin(labels, states)
        scores = self.scores(self.scored[0])
        return scores, self.states(int(states["i"]) + 1)

    def begin(self, labels: Union[None, Sequence[Any], NDArray[Any]], states: States) -> None:
        """Begin a step: set the labels and states of the step before, and bring the delayed states up to date."""
        values: dict[str, Any] = {name: value for name, value in states.items() if name != "i"}
        values[_INDEX] = states["i"]
        if labels is not None:
            values.update(zip(self._labels, labels if len(self._labels) > 1 else [labels]))
        self.session.write(values)
        self.session.run(self._update, {})

    def scores(self, choice: str) -> NDArray[Any]:
        """Return the scores of a choice in this step, log probabilities [batch, labels].

        The last choice also computes the states for the next step, so it must be asked exactly once.
        """
        index = self.scored.index(choice)
        self.session.run([self._decode[index]], {})
        return self.session.read([self._scores[index]])[0]

    def set_label(self, choice: str, labels: NDArray[Any]) -> None:
        """Set the labels of a choice, int32 [batch], for the choices after it in the same step."""
        self.session.write({self._labels[self.choices.index(choice)]: labels})

    def states(self, index: int) -> States:
        """Return the current states, before the step of an index."""
        names = [*self._states, *self._globals]
        states = dict(zip(names, self.session.read(names)))
        states["i"] = np.asarray(index, np.int32)
        return states

    def reorder(self, entries: NDArray[Any]) -> None:
        """Replace the entries of the batch within a step, between two choices.

        :param entries: int [new batch]: for each new entry the one that it continues
        """
        names = [*self._states, *self._labels]
        self.session.write({name: value[entries] for name, value in zip(names, self.session.read(names))})

    def select(self, states: States, entries: NDArray[Any]) -> States:
        """Return states for other entries of the batch.

        :param entries: int [new batch]: for each new entry the one that it continues
        """
        return {name: value[entries] if name in self._states else value for name, value in states.items()}

    # --- the end ---

    def goes_on(self) -> bool:
        """Return whether the step begun by `begin` is one of the loop: not all have ended, nor is the limit reached."""
        return bool(self.session.read(["IO/cond:0"])[0])

    def ended(self) -> Optional[NDArray[Any]]:
        """Return the flags of entries that had ended before the step, bool [batch]; None without a layer "end"."""
        return self.session.read(["IO/end_flag:0"])[0] if self.session.has("IO/end_flag:0") else None

    def lengths(self) -> Optional[NDArray[Any]]:
        """Return the number of labels of each entry before that step, int32 [batch]; None without a layer "end"."""
        return self.session.read(["IO/dyn_seq_len:0"])[0] if self.session.has("IO/dyn_seq_len:0") else None
