"""Explains what to do when a config imports a module that does not exist here.

Many public configs import helpers from the code of RETURNN. The most used ones have stand-ins (see
`returnn_tf.config.compat_modules`); for some others, a replacement is suggested.
"""

from __future__ import annotations

import re

from returnn_tf.config.compat_modules import is_known

RETURNN_MODULES = (
    "returnn",
    "TFUtil",
    "TFCompat",
    "TFEngine",
    "TFHorovod",
    "TFNativeOp",
    "TFNetwork",
    "TFNetworkLayer",
    "Pretrain",
    "Util",
    "Dataset",
    "GeneratingDataset",
    "LmDataset",
    "better_exchook",
)

REPLACEMENTS = {
    "register_layer_class": "from returnn_tf import register_layer",
    "auto_register_layer_classes": "from returnn_tf import register_layer",
    "LayerBase": "from returnn_tf import Layer",
    "_ConcatInputLayer": "from returnn_tf import Layer",
    "get_initializer": "the name or number itself as the option of the layer",
}


def explain_import(exc: ImportError, line: str = "") -> str:
    """Return what is missing, and what to write instead if that is known.

    :param exc: what the import raised
    :param line: the line of the config; shows which names were wanted
    """
    module = exc.name or ""
    if module.split(".")[0] not in RETURNN_MODULES:
        return "%s: %s. Install it, or put the file into the folder of the config." % (type(exc).__name__, exc)
    names = imported_names(line)
    text = "%s needs %s %r of RETURNN, which is not part of returnn_tf." % (
        "the import of " + ", ".join(names) if names else "this import",
        "something in the module" if is_known(module) else "the module",
        module,
    )
    replacements = ["instead of %s: %s" % (name, REPLACEMENTS[name]) for name in names if name in REPLACEMENTS]
    if replacements:
        return text + " Use " + "; ".join(replacements) + "."
    return text + " Copy what you need of it into the config, or into a file next to it."


def imported_names(line: str) -> list[str]:
    """Return the names imported by ``from ... import a, b as c`` on this line; empty for anything else."""
    match = re.match(r"\s*from\s+\S+\s+import\s+\(?([^#)]*)", line)
    return [part.split()[0] for part in match.group(1).split(",") if part.strip()] if match else []
