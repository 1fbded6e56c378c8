"""``returnn-tf check --migrate``: what is old in a config, without effect, unsupported or different, by line."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Optional

from returnn_tf.cli.shared.locator import Located, Locator, layer_dicts
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config, ConfigError
from returnn_tf.config.behavior_versions import NEWEST_VERSION
from returnn_tf.config.derived import derived
from returnn_tf.config.options import OptionInfo, declared_options, is_on
from returnn_tf.config.settings import all_settings, misspelt_keys, why_ignored
from returnn_tf.config.settings.data import DataSettings
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.config.user_files import config_imports
from returnn_tf.datasets.core.registry import DATASETS
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.engine.update.options import given_flags
from returnn_tf.graph.registry import LAYERS, LOSSES

OLD, INERT, UNSUPPORTED, DIFFERENT, MISTAKE = "old", "no effect", "not supported", "different", "mistake"


@dataclasses.dataclass(frozen=True)
class MigrationNote:
    """One thing to change in a config.

    :param kind: OLD, INERT, UNSUPPORTED, DIFFERENT or MISTAKE
    :param at: its place, with the key or name to change where that is certain
    :param what: the setting, or layer and option
    :param text: why
    :param write: what to write today
    """

    kind: str
    at: Located
    what: str
    text: str
    write: str = ""

    @property
    def place(self) -> str:
        """Return the place as "my.config:12"; without line for what is made by code, "" if unknown."""
        at = self.at
        return at.file or "" if at.line is None else "%s:%d" % (at.file, at.line)

    @property
    def line(self) -> str:
        """Return the finding as one line of the report."""
        text = "%s: %s: %s: %s" % (self.place, self.kind, self.what, self.text)
        return text.removeprefix(": ") + (". Today: %s" % self.write if self.write else "")


def migration(config: Config) -> list[MigrationNote]:
    """Return the changes due in a config, in the order of its lines; mistakes are left to the check."""
    report = _Report(config)
    found = [*report.settings(), *report.imports(), *report.layers(), *report.datasets(), *report.version()]
    return sorted(dict.fromkeys(found), key=_position)


def table(found: Iterable[MigrationNote]) -> str:
    """Return the report: a line for each finding, and a summary."""
    found = list(found)
    return "\n".join([finding.line for finding in found] + [counted(found)])


def counted(found: Sequence[MigrationNote]) -> str:
    """Return the number of findings of each kind."""
    kinds = [finding.kind for finding in found]
    parts = ["%d %s" % (kinds.count(kind), kind) for kind in dict.fromkeys(kinds)]
    return ", ".join(parts) or "nothing to migrate"


def _position(finding: MigrationNote) -> tuple[str, int]:
    return finding.at.file or "\uffff", finding.at.line or 0


class _Report:
    """Looks through the parts of one config."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._texts = config.sources()
        self._locator = Locator(config)

    def settings(self) -> Iterator[MigrationNote]:
        """Yield findings on settings."""
        for info in all_settings().values():
            key = info.key_in(self._config)
            if not info.is_set(self._config):
                continue
            place = self._locator.setting_at(key)
            if key != info.name:
                yield MigrationNote(OLD, place, key, "older name of %s" % info.name, "%s = ..." % info.name)
            try:
                value, idle = info.read(self._config), why_ignored(self._config, info)
            except ConfigError:
                value, idle = info.default, None  # reported by the check
                if info.unsupported:
                    yield MigrationNote(UNSUPPORTED, place, key, info.unsupported)
            yield from _of_option(info, value, place, key, idle)
        flags = _flags(self._config)
        for flag in flags[1:]:
            text = "%s is set too, and comes first" % flags[0]
            yield MigrationNote(INERT, self._locator.setting_at(flag), flag, text, "remove it")
        for key, suggestion in misspelt_keys(self._config):
            yield MigrationNote(MISTAKE, self._locator.setting_at(key), key, "is not a setting", suggestion)

    def imports(self) -> Iterator[MigrationNote]:
        """Yield the imports of RETURNN's modules by their older names."""
        for path, text in self._texts.items():
            for node in _imports(text):
                module = node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
                today = config_imports().newest_name(module)
                if today is None:
                    continue
                names = ", ".join(alias.name for alias in node.names) if isinstance(node, ast.ImportFrom) else ""
                write = "from %s import %s" % (today, names) if names else "import %s" % today
                if today != module:
                    yield MigrationNote(
                        OLD, Located(file=path, line=node.lineno), module, "older name of %s" % today, write
                    )

    def layers(self) -> Iterator[MigrationNote]:
        """Yield findings on the layers of all networks of the config."""
        try:
            schedule = NetworkSchedule(self._config)
            last = max(TrainingSettings(self._config).num_epochs, schedule.pretrain_epochs + 1)
            entries = schedule.distinct(1, last)
        except ConfigError:
            return  # reported by the check
        for entry in entries:
            for path, options in layer_dicts(entry.layers):
                yield from self._layer(path, options)

    def _layer(self, path: str, options: Mapping[str, Any]) -> Iterator[MigrationNote]:
        cls = LAYERS.find(options.get("class"))
        if cls is None:
            return
        name = "layer %r" % path
        if options["class"] != cls.class_name:
            place = self._locator.layer_at(path, options, "class", value=True)
            yield MigrationNote(OLD, place, name, "older name of the class", "'class': %r" % cls.class_name)
        yield from self._options(declared_options(cls), options, name, path, options)
        loss = LOSSES.find(options.get("loss"))
        if loss is not None:
            opts = options.get("loss_opts") or {}
            yield from self._options(declared_options(loss), opts, name + ": loss_opts", path, options)

    def _options(
        self,
        declared: Mapping[str, OptionInfo],
        given: Mapping[str, Any],
        name: str,
        path: str,
        options: Mapping[str, Any],
    ) -> Iterator[MigrationNote]:
        for key, value in given.items():
            info = declared.get(key)
            if info is not None:
                idle = info.idle(value, partial(is_on, declared, given))
                yield from _of_option(
                    info, value, self._locator.layer_at(path, options, key), "%s: %s" % (name, key), idle
                )

    def datasets(self) -> Iterator[MigrationNote]:
        """Yield findings on the options of the datasets."""
        settings = DataSettings(self._config)
        specs = {"train": settings.train, "dev": settings.dev, "eval": settings.eval, **(settings.eval_datasets or {})}
        for name, spec in specs.items():
            cls = DATASETS.find(spec.get("class")) if isinstance(spec, Mapping) else None
            declared = {} if cls is None else declared_options(cls.Options)
            for key, value in spec.items() if declared else ():
                info = declared.get(key)
                if info is not None:
                    place = self._locator.dataset_at(name, key)
                    idle = info.idle(value, partial(is_on, declared, spec))
                    yield from _of_option(info, value, place, "dataset %r: %s" % (name, key), idle)

    def version(self) -> Iterator[MigrationNote]:
        """Yield what the newest ``behavior_version`` would change in this config, as far as the plan shows it."""
        settings = NetworkSettings(self._config)
        version = settings.behavior_version
        if version >= NEWEST_VERSION or settings.network is None:
            return
        newest = derived(self._config, {"behavior_version": NEWEST_VERSION})
        try:
            plans = [plan_from_config(config, train=True) for config in (self._config, newest)]
        except ConfigError as exc:
            text = "the rules of version %d apply; with %d: %s" % (version, NEWEST_VERSION, exc)
        else:
            old, new = map(_templates, plans)
            changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
            if settings.is_set("behavior_version") and not changed:
                return
            text = "the rules of version %d apply; with %d " % (version, NEWEST_VERSION)
            text += "these change: " + ", ".join(changed[:8]) if changed else "axes and parameters stay the same"
            text += "; values may differ even where axes do not, e.g. those of batch_norm"
        what = "behavior_version = %d" % version if settings.is_set("behavior_version") else "no behavior_version"
        write = "behavior_version = %d, then compare losses and search results" % NEWEST_VERSION
        yield MigrationNote(OLD, self._locator.setting_at("behavior_version"), what, text, write)


def _flags(config: Config) -> list[str]:
    """Return the older switches of optimizers; none if a wrong one is reported by the check."""
    try:
        return given_flags(config)
    except ConfigError:
        return []


def _templates(plan: Plan) -> dict[str, Any]:
    """Return the shapes of all parameters and the templates of all layers by name."""
    return {
        **{name: spec.shape for name, spec in plan.params.items()},
        **{path: str(node.output) for path, node in plan.layers.items()},
    }


def _of_option(info: OptionInfo, value: Any, at: Located, what: str, idle: Optional[str]) -> Iterator[MigrationNote]:
    """Yield notes from the declaration of an option on a value; ``idle`` says why others disable it."""
    reason = info.inert if info.is_ignored(value) else idle
    if reason:
        yield MigrationNote(INERT, at, what, reason, "remove it")
    if info.unsupported and info.fault(value):
        yield MigrationNote(UNSUPPORTED, at, what, info.unsupported)
    if info.old and value != info.default:
        yield MigrationNote(OLD, at, what, "older form", info.old)
    if info.differs and value != info.default:
        yield MigrationNote(DIFFERENT, at, what, info.differs)


def _imports(text: str) -> Iterator[Any]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
