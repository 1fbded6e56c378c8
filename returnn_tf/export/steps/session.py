"""A meta graph in a session, loaded in the order of RASR: graph, all initialisers without feeds, checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import DataError
from returnn_tf.export.meta.names import input_name, input_size_name
from returnn_tf.export.saved_model.loader import check_machine
from returnn_tf.util.lazy_tf import tf


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
            raise DataError("%s: %s" % (meta, exc.strerror or exc)) from exc
        except Exception as exc:
            raise DataError("%s is not a meta graph." % meta) from exc
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
                    raise DataError("The graph %s can't be loaded: %s" % (self._path, exc)) from exc
            self._check_machine()
            for path in libraries:
                try:
                    tf.load_op_library(path)
                except tf.errors.OpError as exc:
                    raise DataError("The library %s can't be loaded: %s" % (path, exc.message)) from exc
            libraries = []

    def _check_machine(self) -> None:
        if self._native is not None:
            try:
                check_machine(self._native, tf.version.VERSION)
            except ValueError as exc:
                raise DataError("The graph %s can't be loaded: %s" % (self._path, exc)) from None

    def _restore(self, checkpoint: str) -> None:
        if not os.path.exists(checkpoint + ".index"):
            raise DataError("There is no checkpoint %s: the file %s.index is missing." % (checkpoint, checkpoint))
        saver = self._meta.saver_def
        try:
            self._session.run(saver.restore_op_name, {saver.filename_tensor_name: checkpoint})
        except tf.errors.OpError as exc:
            text = exc.message.partition("\n")[0]
            raise DataError("The checkpoint %s does not fit the graph %s: %s" % (checkpoint, self._path, text)) from exc

    def close(self) -> None:
        """Close the session."""
        self._session.close()

    def collection(self, name: str) -> list[str]:
        """Return the names in a collection of ops or variables, empty if there is none."""
        return list(self._meta.collection_def[name].node_list.value) if name in self._meta.collection_def else []

    def run(self, ops: Sequence[str], feed: Mapping[str, Any]) -> None:
        """Run ops by name.

        :param feed: tensor name -> array
        """
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
                raise DataError("The graph %s has no input %r." % (self._path, tensor)) from None
            feed[tensor] = value if found.dtype == tf.string else np.asarray(value, found.dtype.as_numpy_dtype)
        return feed
