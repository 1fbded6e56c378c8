"""A client of meta graphs in the order of RASR: load, all initialisers without feeds, restore, then read and write."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.core.framework import variable_pb2

v1 = tf.compat.v1


class MetaSession:
    """A session of a meta graph, which knows nothing of the program that made it.

    :param meta: the `MetaGraphDef`
    :param checkpoint: prefix of the files; None: the parameters stay as they are initialised
    """

    def __init__(self, meta, checkpoint=None):
        self.meta = meta
        self.variables = {}
        for text in meta.collection_def["variables"].bytes_list.value:
            definition = variable_pb2.VariableDef.FromString(text)
            self.variables[definition.variable_name] = definition
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(meta.graph_def, name="")
        self.graph = graph
        self.session = v1.Session(graph=graph)
        self.session.run([definition.initializer_name for definition in self.variables.values()])
        if checkpoint is not None:
            saver = meta.saver_def
            self.session.run(saver.restore_op_name, {saver.filename_tensor_name: checkpoint})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.session.close()

    def run(self, outputs, feed, targets=()):
        """Return outputs by names of ops; inputs without ":0", too."""
        feed = {name + ":0": value for name, value in feed.items()}
        names = [name + ":0" for name in outputs]
        return self.session.run([names, list(targets)], feed)[0]

    def collection(self, name):
        """Return the names in a collection of nodes."""
        return list(self.meta.collection_def[name].node_list.value)

    def read(self, variable):
        """Return the value of a variable ``name:0``."""
        return self.session.run(self.variables[variable].snapshot_name)

    def write(self, variable, value):
        """Set a variable: feed its initial value, and run its initialiser."""
        definition = self.variables[variable]
        self.session.run(definition.initializer_name, {definition.initial_value_name: value})


def inputs(feed):
    """Return the names of placeholders for those of `Network.run`: ``data``, ``data/size0``."""
    base = "extern_data/placeholders/%s/%s"
    found = {}
    for name, value in feed.items():
        key, _, axis = name.partition("/size")
        found[base % (key, key) + ("_dim%s_size" % axis if axis else "")] = value
    return found
