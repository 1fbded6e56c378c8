"""Loads the package to which this folder belongs in place of this file, whatever is installed."""

from __future__ import annotations

import importlib.util
import os
import sys

#: The folder of the package: that of the checkout, or the one which ``returnn-tf root`` has recorded.
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))), "returnn_tf")

if not os.path.exists(os.path.join(_PACKAGE, "__init__.py")):
    raise ImportError(
        "The package returnn_tf is not in %s. Name the folder i6 of a checkout as it is, or write a folder that "
        "works elsewhere by: returnn-tf root FOLDER" % _PACKAGE
    )
_spec = importlib.util.spec_from_file_location(
    __name__, os.path.join(_PACKAGE, "__init__.py"), submodule_search_locations=[_PACKAGE]
)
assert _spec is not None and _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules[__name__] = _module
_spec.loader.exec_module(_module)
