"""Parameters of parts of the network from other checkpoints, e.g. of a language model.

The option ``preload_from_files`` of the config, its short form ``init_params`` for starting from scratch, and
``load_on_init`` of layers of the class ``subnetwork``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional, Union

from numpy.typing import NDArray

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.errors import CheckpointDataError, CheckpointError, did_you_mean
from returnn_tf.config.options import file_name, from_options, option
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints import params as checkpoint_params
from returnn_tf.engine.checkpoints.selection import checkpoint_exists
from returnn_tf.logging.log import log

_OPTION = "preload_from_files"
_INITIAL = "init_params"
_MAX_LISTED = 10


def _is_path(value: str) -> Optional[str]:
    return file_name(value) if value else "must be the path of a checkpoint"


@dataclasses.dataclass(frozen=True)
class Preload:
    """One entry of ``preload_from_files``."""

    filename: str = option(help="path prefix of the checkpoint; may end in .index", check=_is_path)
    prefix: str = option(
        "", help="load the parameters with it in front of their name, or of a later part of their path"
    )
    init_for_train: Union[bool, str] = option(
        False, choices=(False, True, "always"), help="True: when training starts; 'always': also when it resumes"
    )
    ignore_missing: bool = option(False, help="parameters missing from the checkpoint keep their values")
    ignore_params: Sequence[str] = option((), help="parameters of the network that are not loaded")
    ignore_params_prefixes: Sequence[str] = option((), help="the same by prefix of their names")
    var_name_mapping: Mapping[str, str] = option({}, help="parameter -> name in the checkpoint")
    checkpoint_format: str = option("tf", help="format of the file", choices=("tf",))
    where: str = ""  # option and key, for messages
    below: str = ""  # only parameters below this scope
    scope: str = ""  # names are relative to it

    def applies(self, *, train: bool, fresh: bool) -> bool:
        """Return whether the entry applies to training, or else to the other tasks.

        :param fresh: training starts without its own checkpoint
        """
        if not train:
            return not self.init_for_train
        return self.init_for_train == "always" or (bool(self.init_for_train) and fresh)

    def stored_names(self, name: str) -> list[str]:
        """Return the candidate names in the checkpoint, most likely first; empty if the entry excludes it."""
        if self.below and not name.startswith(self.below + "/"):
            return []
        if self.scope:
            if not name.startswith(self.scope + "/"):
                return []
            name = name[len(self.scope) + 1 :]
        if name in self.ignore_params or name.startswith(tuple(self.ignore_params_prefixes)):
            return []
        if not self.prefix:
            stripped = [name]
        else:
            starts = [i for i in range(len(name)) if (i == 0 or name[i - 1] == "/") and name.startswith(self.prefix, i)]
            if not starts:
                return []
            first = name[: starts[0]] + name[starts[0] + len(self.prefix) :]
            stripped = list(dict.fromkeys([first, name.replace(self.prefix, "")]))
        mapping = self.var_name_mapping
        return [mapping[key] for key in [name, *stripped] if key in mapping] or stripped


def entries(config: Config) -> list[Preload]:
    """Return the options in loading order: ``init_params``, then the others by name.

    ``init_params`` is the path of a checkpoint, or the dict of one entry with ``init_for_train`` on.

    :raises ConfigError: one of them is wrong
    """
    given = CheckpointSettings(config).preload_from_files or {}
    found = [_entry("%s[%r]" % (_OPTION, name), given[name]) for name in sorted(given)]
    initial = CheckpointSettings(config).init_params
    if initial:
        options = {"filename": initial} if isinstance(initial, str) else initial
        if isinstance(options, Mapping):
            options = {"init_for_train": True, **options}
        found.insert(0, _entry(_INITIAL, options))
    return found


def load(config: Config, params: Mapping[str, Any], *, train: bool = False, fresh: bool = False) -> dict[str, int]:
    """Set the parameters of all entries which apply to the task.

    :param params: name -> ``tf.Variable`` of the whole network
    :param train: for training; otherwise for the other tasks
    :param fresh: see `Preload.applies`
    :return: name of each parameter set -> global step of its checkpoint
    :raises ConfigError: an entry is wrong, its checkpoint is missing, or no parameter matches
    :raises DataError: a checkpoint is damaged, or a parameter is missing from it or has another shape
    """
    done: dict[str, int] = {}
    for entry in entries(config):
        if entry.applies(train=train, fresh=fresh):
            done.update(_load_entry(entry, params))
    return done


def load_on_init(plan: Plan, params: Mapping[str, Any]) -> dict[str, int]:
    """Set the parameters of all layers with the option ``load_on_init``: path of a checkpoint, or a dict of options.

    The names in the checkpoint are those below the layer. ``load_if_prefix`` is the ``prefix`` of the options above.

    :param params: name -> ``tf.Variable``; layers without any of these are skipped
    :return: name of each parameter set -> global step of its checkpoint
    :raises ConfigError: an option is wrong, or no parameter matches
    :raises DataError: a checkpoint is damaged, or a parameter is missing from it or has another shape
    """
    done: dict[str, int] = {}
    for entry in _entries_of_layers(plan, params):
        done.update(_load_entry(entry, params))
    return done


def _entries_of_layers(plan: Plan, params: Iterable[str]) -> Iterator[Preload]:
    for node in plan.all_nodes():
        given = node.layer.load_on_init
        if given and any(name.startswith(node.scope + "/") for name in params):
            yield _entry_of_layer("layer %r, load_on_init" % node.path, given, node.scope)


def _entry_of_layer(where: str, given: Any, scope: str) -> Preload:
    """Return the option ``load_on_init`` of the layer with a scope."""
    if callable(given):
        try:
            given = given()
        except Exception as exc:  # code of the user may raise anything
            raise CheckpointError("%s: the function failed: %s: %s" % (where, type(exc).__name__, exc)) from exc
    options = {"filename": given} if isinstance(given, str) else given
    prefix: Any = scope
    if isinstance(options, Mapping):
        options = dict(options)
        if "load_if_prefix" in options:
            options["prefix"] = options.pop("load_if_prefix")
        prefix = options.pop("params_prefix", scope)
        if not isinstance(prefix, str):
            raise CheckpointError("%s: params_prefix must be text, got %r." % (where, prefix))
    return dataclasses.replace(_entry(where, options), scope=prefix.strip("/"), below=scope)


def _load_entry(entry: Preload, params: Mapping[str, Any]) -> dict[str, int]:
    if not checkpoint_exists(checkpoint.strip_suffix(entry.filename)):
        raise CheckpointError("%s: there is no checkpoint %s." % (entry.where, entry.filename))
    stored = checkpoint.StoredValues(entry.filename)
    chosen, absent = _choose(entry, params, stored)
    source = "%s: the checkpoint %s" % (entry.where, entry.filename)
    if absent and not entry.ignore_missing:
        raise CheckpointDataError(_absent_text(source, entry, absent, stored))
    if not chosen:
        meant = "No parameter has the prefix %r" % entry.prefix if entry.prefix else "It has none of the names"
        raise CheckpointError(
            "%s has nothing for the network. %s; the network has for example: %s."
            % (source, meant, ", ".join(sorted(params)[:_MAX_LISTED]))
        )
    checkpoint_params.assign({name: params[name] for name in chosen}, stored.renamed(chosen), source=source)
    log.write(3, "Loaded %i parameters from %s (%s)" % (len(chosen), entry.filename, entry.where))
    return dict.fromkeys(chosen, checkpoint.step_of(stored))


def _choose(
    entry: Preload, params: Mapping[str, Any], stored: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (parameter -> name in the checkpoint, parameter -> name missing from the checkpoint)."""
    chosen: dict[str, str] = {}
    absent: dict[str, str] = {}
    for name in params:
        names = entry.stored_names(name)
        there = [key for key in names if key in stored]
        if there:
            chosen[name] = there[0]
        elif names:
            absent[name] = names[0]
    return chosen, absent


def _absent_text(source: str, entry: Preload, absent: Mapping[str, str], stored: Mapping[str, Any]) -> str:
    lines = [source + " lacks parameters of the network:"]
    for name, key in sorted(absent.items())[:_MAX_LISTED]:
        near = "" if key == name else " (stored as %s)" % key
        lines.append("missing: %s%s. %s" % (name, near, did_you_mean(key, sorted(stored))))
    if len(absent) > _MAX_LISTED:
        lines.append("... and %i more" % (len(absent) - _MAX_LISTED))
    lines.append("Fix prefix or var_name_mapping, name them in ignore_params, or set ignore_missing = True.")
    return "\n  ".join(lines)


def _entry(where: str, options: Any) -> Preload:
    return dataclasses.replace(from_options(Preload, options, where=where, none_is_absent=True), where=where)
