"""The formats and protocols of RASR: archives, its processes, and this program inside of it.

The rest of the package does not import this one, and works without it; see `returnn_tf.config.registry`.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Group of entry points -> name -> module that registers entries.
PLUG_INS: Mapping[str, Mapping[str, str]] = {
    "returnn_tf.automata": {"sprint": "returnn_tf.rasr.layers.automata"},
    "returnn_tf.datasets": {
        "ExternSprintDataset": "returnn_tf.rasr.datasets.extern",
        "SprintCacheDataset": "returnn_tf.rasr.datasets.cache_dataset",
    },
    "returnn_tf.losses": {"sprint": "returnn_tf.rasr.layers.losses"},
    "returnn_tf.settings": {"inside of RASR": "returnn_tf.rasr.settings"},
}
