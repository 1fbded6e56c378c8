"""The config with which a run was trained, from what the run left behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from returnn_tf.cli.runs.run import Run
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError


@contextlib.contextmanager
def in_folder(folder: str) -> Iterator[None]:
    """Work in a folder within the context: that in which a run was started, as its config names files from there."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def config_of(run: Run, overrides: Sequence[tuple[str, str]], instead: str) -> tuple[Config, str]:
    """Return the config of a run, and the folder in which it was trained.

    :param overrides: keys and texts that replace settings
    :param instead: what to do without the config, a sentence for errors
    :raises ConfigError: it is not known, or not there any more
    """
    if run.config is not None:
        return run.config, os.getcwd()
    paths = [str(path) for path in run.facts.get("files", [])]
    if not paths:
        raise CommandError("%r: its config is not known, so the network can't be loaded. %s" % (run.path, instead))
    lost = [path for path in paths if not os.path.exists(path)]
    folder = str(run.facts.get("folder") or os.getcwd())
    if lost or not os.path.isdir(folder):
        missing = (lost or [folder])[0]
        raise CommandError("%r: its config %s is not there any more. %s" % (run.path, missing, instead))
    model = os.path.abspath(run.model)
    with in_folder(folder):
        given = [(str(key), str(text)) for key, text in dict(run.facts.get("overrides", {})).items()]
        return Config.from_files(paths, [*given, *overrides, ("model", model)]), folder
