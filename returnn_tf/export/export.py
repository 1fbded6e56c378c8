"""`export`: writes a network for other programs, runs what was written, and publishes it if it is right."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Optional

from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import ExportDataError, ExportError
from returnn_tf.config.options import from_options
from returnn_tf.engine.support.atomic_files import staging
from returnn_tf.export.error_rates import ErrorCheck
from returnn_tf.export.exporters import EXPORTERS, Exporter
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.side_file import write_side_file


def export(
    net: Network,
    folder: str,
    to: str = "saved_model",
    *,
    check: Optional[ErrorCheck] = None,
    **options: Any,
) -> None:
    """Write a network into a folder, for programs that load it without returnn_tf.

    What was written is loaded and run on a sample, as another program would, and compared with the network. The folder
    appears when all of this has succeeded.

    :param net: with the parameters to export; planned with ``search=True`` if the graph is to search
    :param folder: does not exist, or is empty
    :param to: the target, see ``returnn-tf export --help``
    :param check: the dataset on which error rates are compared, too
    :param options: of the target
    :raises ConfigError: unknown target or option, a folder with files, a layer that the target can't express
    :raises DataError: the exported graph computes something else, or can't be written
    """
    exporter = make_exporter(to, options)
    check_folder(folder)
    write_export(exporter, net, folder, check)


def make_exporter(to: str, options: dict[str, Any]) -> Exporter:
    """Return the exporter of a target, with checked options.

    :raises ConfigError: unknown target or option
    """
    cls = EXPORTERS.get(to, "export")
    made: Exporter = from_options(cls, options, where="export to %s" % to)
    return made


def check_folder(folder: str) -> None:
    """Check that a folder can be written.

    :raises ConfigError: there is something already
    """
    if not folder:
        raise ExportError("export: the output folder has an empty name.")
    if os.path.lexists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
        raise ExportError("export: %s exists already. Remove it, or choose another folder." % folder)


def write_export(exporter: Exporter, net: Network, folder: str, check: Optional[ErrorCheck] = None) -> None:
    """Write an export into a staging folder beside its place, check it, and move it there.

    :param check: see `export`
    """
    if check is not None and net.plan.rounded:
        raise ExportError(
            "export: check has no floats to compare with, as the setting quantize has rounded the parameters. Load the "
            "network without the setting, and give quantize to the export."
        )
    net = net.plain()
    parent, name = os.path.split(os.path.abspath(folder))
    model = exporter.model(exporter.network(net))
    made = _missing_folders(parent)
    try:
        os.makedirs(parent, exist_ok=True)
        with staging(parent, name) as temp:
            exporter.write(model, temp)
            write_side_file(temp, exporter, model)
            exporter.check(model, temp)
            if check is not None:
                check.run(exporter, InferenceModel(net, [node.path for node in model.nodes]), model, temp)
            check_folder(folder)  # again: something may have appeared meanwhile
            os.replace(temp, folder)
    except OSError as exc:
        raise ExportDataError("%s: %s" % (exc.filename or folder, exc.strerror or exc)) from exc
    finally:
        for path in made:
            with contextlib.suppress(OSError):  # not empty: the export is there
                os.rmdir(path)


def _missing_folders(path: str) -> list[str]:
    """Return a folder and those that it is in, the innermost one first, as far as they do not exist."""
    missing: list[str] = []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing
