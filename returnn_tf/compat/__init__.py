"""The room for users of RETURNN: the modules and names that their configs import, and the objects behind these.

The rest of the package does not import this one, and works without it; see `returnn_tf.config.registry`.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Group of entry points -> name -> module that registers entries.
PLUG_INS: Mapping[str, Mapping[str, str]] = {
    "returnn_tf.commands": {"tool": "returnn_tf.compat.tool"},
    "returnn_tf.datasets": {"UserDataset": "returnn_tf.compat.user_datasets.reader"},
    "returnn_tf.epochs": {"view": "returnn_tf.compat.user_datasets.epoch_view:EpochView"},
    "returnn_tf.imports": {"imports": "returnn_tf.compat.imports.stand_ins:IMPORTS"},
    "returnn_tf.settings": {"older settings": "returnn_tf.compat.settings"},
    "returnn_tf.views": {"views": "returnn_tf.compat.views.factory:VIEWS"},
}
