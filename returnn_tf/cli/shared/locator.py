"""Finds what in a config a message is about: layer, option, setting, and their place in the text of the config.

The messages of this program begin with their place, in the words that the functions for settings and layers share:
``config key 'x' (my.config:3)``, ``Layer 'a/b' (class 'c')``, ``option 'x'``. Here these words become fields again.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional

from returnn_tf.cli.shared.snippet import snippet
from returnn_tf.config import Config
from returnn_tf.config.errors import ConfigError
from returnn_tf.config.loading import form_of, read_text
from returnn_tf.config.options import declared_options
from returnn_tf.config.places import ConfigText, Span, TextEntry, is_dict
from returnn_tf.config.readers import RawSetting
from returnn_tf.config.settings import all_settings
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.user_code import CONFIG_MODULE
from returnn_tf.config.user_files import USER_CODE
from returnn_tf.graph.registry import LAYERS

_LAYER = re.compile(r"\b[Ll]ayers? '([^'\n]+)'(?: \(class '[^'\n]*'\))?(?:: )?")
_OPTION = re.compile(r"\boption '([^'\n]+)'")
_SETTING = re.compile(r"\bconfig key '([^'\n]+)'(?: \(([^()\n]+)\))?(?:: )?")
_BEGIN = re.compile(r"(?:setting without effect: |pretrain step \d+: )?(\w+)(?:\['([^'\n]+)'\])?(?:: |(?= \())")
_DATASET = re.compile(r"dataset '([^'\n]+)'(?: \(\w+\))?: ")
_PARAMETER = re.compile(r"parameter '([^'\n]+)': ")
_FILE = re.compile(r"(.+?):(\d+)(?=: |$)")

# What follows the place in a message: the parts of a value that lead to a further one, and what is wrong there.
_INNER_DATASET = re.compile(r"inner dataset '[^'\n]*_([^'_\n]+)'(?: \(\w+\))?: ")
_CLASS = re.compile(r"class '[^'\n]*': ")
_LOSS = re.compile(r"loss '[^'\n]*': ")
_PART = re.compile(r"(?:option )?'?(\w+)'?: ")
_UNKNOWN = re.compile(r"unknown option '([^'\n]+)'")
_MISSING = re.compile(r"(?:the )?option '([^'\n]+)' is missing")
_NO_SETTING = re.compile(r" is not a known setting")
_WRONG_WORD = re.compile(
    r"(?:\b[Uu]nknown [\w ]+|\bno [\w ]+) '([^'\n]+)'"
    r"|'([^'\n]+)' (?:means no|is no|is neither|is not|is unknown|does not|needs the|must be)"
)
_KEY = re.compile(r"'(\w+)' ")
_NAME = re.compile(r"\b[a-zA-Z]\w*_\w+\b")


@dataclasses.dataclass(frozen=True)
class Located:
    """What a message is about, as far as it is known.

    :param layer: its path
    :param span: the part of the text of the config that is wrong
    :param file: also where only the file is known, or the line
    :param keys: of the dict in which it stands
    """

    layer: Optional[str] = None
    option: Optional[str] = None
    setting: Optional[str] = None
    file: Optional[str] = None
    line: Optional[int] = None
    span: Optional[Span] = None
    keys: frozenset[Any] = frozenset()


class Locator:
    """Finds the places of messages about a config.

    :param config: None if it could not be loaded
    :param networks: further network dicts of the config than the setting ``network``
    """

    def __init__(self, config: Optional[Config] = None, networks: Iterable[Any] = ()) -> None:
        self._config = config
        self._networks = list(networks)
        with contextlib.suppress(ConfigError):  # reported elsewhere
            self._networks.append(None if config is None else NetworkSettings(config).network)
        self._texts: dict[str, ConfigText] = {}
        self._modules: tuple[int, list[tuple[str, Mapping[str, Any]]]] = (0, [])

    def locate(self, text: str, network: Optional[Mapping[str, Any]] = None) -> Located:
        """Return what a message is about.

        :param network: the network dict that was being planned
        """
        first = text.partition("\n")[0]
        layer, option, key = _LAYER.search(first), _OPTION.search(first), _SETTING.search(first)
        begin = _BEGIN.match(first)
        setting, place = (key.group(1), key.group(2)) if key else (None, None)
        if setting is None and layer is None and begin is not None and begin.group(1) in all_settings():
            setting = begin.group(1)
        if place is None and setting is not None and self._config is not None:
            place = self._config.place_of(setting)
        found = _FILE.match(place or first)
        file, line = (found.group(1), int(found.group(2))) if found else (None, None)
        part = None
        with contextlib.suppress(RecursionError):  # a network that contains itself
            part = self._part(first, network)
        span, around = part or (None, None)
        if span is not None:
            file, line = span.file, span.line
        return Located(
            layer.group(1) if layer else None,
            option.group(1) if option else None,
            setting,
            file,
            line,
            span,
            frozenset(around if isinstance(around, Mapping) else ()),
        )

    def shown(self, text: str, network: Optional[Mapping[str, Any]] = None, *, width: int) -> str:
        """Return a message, followed by the line of the config that it is about, if that is certain.

        Each line of a message about several settings is followed by its own.

        :param width: of the terminal
        """
        parts = messages(text)
        if len(parts) > 1:
            return "\n".join(self.shown(part, network, width=width) for part in parts)
        span = self.locate(text, network).span
        return text if span is None else "%s\n%s" % (text, snippet(span, self._text(span.file).lines, width))

    def layer_at(self, path: str, options: Mapping[str, Any], option: str, *, value: bool = False) -> Located:
        """Return the place of an option of a layer, or of the layer; only a file where it is not certain.

        :param value: whether that of the value instead of the key
        """
        for text, entry in self._layers(path, options):
            inner = text.option(entry, option, options)
            return _located(text.span(entry.key if inner is None else inner.value if value else inner.key))
        files = list(self._config.sources()) if self._config is not None else []
        return Located(file=files[-1] if files else None)

    def dataset_at(self, name: str, option: str) -> Located:
        """Return the place of the key of an option of a dataset, or of the dataset where that is not certain."""
        for text, entry, value in self._dataset(name):
            inner = text.option(entry, option, value) if isinstance(value, Mapping) else None
            return _located(text.span((inner or entry).key))
        return self.setting_at(name)

    def setting_at(self, name: str) -> Located:
        """Return the place of the name of a setting; what was not set in a file has none."""
        for text, entry, _ in self._setting(name):
            return _located(text.span(entry.key))
        place = "" if self._config is None else self._config.place_of(name)
        found = _FILE.fullmatch(place)
        return Located(file=found.group(1), line=int(found.group(2))) if found else Located(file=place or None)

    def _text(self, path: str) -> ConfigText:
        """Return a file of the config, or one that it imports."""
        if path not in self._texts:
            known = {} if self._config is None else self._config.sources()
            try:
                text = known[path] if path in known else read_text(path)
            except ConfigError:  # it is gone
                text = ""
            self._texts[path] = ConfigText(path, text)
        return self._texts[path]

    def _all_texts(self) -> Iterator[ConfigText]:
        """Yield the files of the config, and those that it imports."""
        for path in self._config.sources() if self._config is not None else ():
            yield self._text(path)
        for path, _ in self._user_modules():
            yield self._text(path)

    def _user_modules(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return path and names of the files that configs have imported; all modules are searched if there are more."""
        count, found = self._modules
        if count != len(sys.modules):
            found = _user_modules()
            self._modules = (len(sys.modules), found)
        return found

    def _layers(self, path: str, options: Mapping[str, Any]) -> Iterator[tuple[ConfigText, TextEntry]]:
        """Yield the place of a layer, if it is certain."""
        found = [(text, text.layer(path, options)) for text in self._all_texts()]
        certain = [(text, entry) for text, entry in found if entry is not None]
        if len(certain) == 1:
            yield certain[0]

    def _setting(self, name: str) -> Iterator[tuple[ConfigText, TextEntry, Any]]:
        """Yield the assignment that has given a setting its value, and the value, if it is certain."""
        config = self._config
        if config is None or name not in config or config.is_override(name):
            return
        value = config.stored(name)
        if isinstance(value, RawSetting):
            return
        path = _FILE.sub(r"\1", config.place_of(name))
        entry = self._text(path).setting(name, value) if path in config.sources() else None
        if entry is not None:
            yield self._text(path), entry, value
            return
        for path, module in self._user_modules():
            entry = self._text(path).setting(name, value) if module.get(name) is value else None
            if entry is not None:
                yield self._text(path), entry, value
                return

    def _part(self, first: str, network: Optional[Mapping[str, Any]]) -> Optional[tuple[Span, Any]]:
        """Return the part of the text that is wrong, and the value in which it stands.

        :param first: the first line of the message
        """
        match = _SETTING.match(first) or _BEGIN.match(first)
        if match is not None and (match.re is _SETTING or match.group(1) in all_settings()):
            for text, entry, value in self._setting(match.group(1)):
                key = match.group(2) if match.re is _BEGIN else None
                is_inside = key is not None and isinstance(value, Mapping) and key in value
                inner = text.option(entry, str(key), value) if is_inside else None
                if inner is not None:
                    entry, value = inner, value[key]
                return _wrong_part(text, entry, value, first[match.end() :])
            raw = self._raw_span(match.group(1))
            return None if raw is None else (raw, None)
        match = _DATASET.match(first)
        if match is not None:
            for text, entry, value in self._dataset(match.group(1)):
                return _wrong_part(text, entry, value, first[match.end() :])
            return None
        match = _LAYER.search(first) or _PARAMETER.match(first)
        if match is None:
            return None
        names = [match.group(1)]
        if match.re is _PARAMETER:  # its name begins with the path of its layer, unless a scope has another name
            names = [match.group(1).rsplit("/", count)[0] for count in range(1, match.group(1).count("/") + 1)]
        for name in names:
            for each in [network, *self._networks]:
                for options in (options for path, options in layer_dicts(each) if path == name):
                    for text, entry in self._layers(name, options):
                        return _wrong_part(text, entry, options, first[match.end() :])
        return None

    def _dataset(self, name: str) -> Iterator[tuple[ConfigText, TextEntry, Any]]:
        """Yield the place of the options of a dataset, and them, if it is certain."""
        found = list(self._setting(name))
        yield from found
        for text, entry, value in self._setting("eval_datasets") if not found else ():
            inner = text.option(entry, name, value) if isinstance(value, Mapping) and name in value else None
            if inner is not None:
                yield text, inner, value[name]

    def _raw_span(self, name: str) -> Optional[Span]:
        """Return the place of a value in a file of lines ``key value``."""
        config = self._config
        found = None if config is None else _FILE.fullmatch(config.place_of(name))
        if config is None or found is None or not isinstance(config.stored(name), RawSetting):
            return None
        text = self._text(found.group(1))
        number = int(found.group(2))
        if form_of(text.file, "\n".join(text.lines)) != "lines" or number > len(text.lines):
            return None
        value = re.match(r"\s*%s\s+" % re.escape(name), text.lines[number - 1])
        if value is None:
            return None
        length = len(config.stored(name).text)
        return Span(text.file, number, value.end() + 1, number, value.end() + 1 + length)


def _located(span: Span) -> Located:
    return Located(file=span.file, line=span.line, span=span)


def messages(text: str) -> list[str]:
    """Return the messages that were joined to one text: its lines, unless one continues the one before."""
    return [text] if "\n  " in text else text.splitlines()


def layer_dicts(network: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield path and options of each layer of a network dict, also of those nested in options."""
    for name, options in network.items() if isinstance(network, Mapping) else ():
        if not isinstance(name, str) or not isinstance(options, Mapping):
            continue
        full = "%s/%s" % (path, name) if path else name
        if "class" in options:
            yield full, options
            cls = LAYERS.find(options["class"])
            for info in declared_options(cls).values() if cls is not None else ():
                value = options.get(info.name)
                if isinstance(value, Mapping) and isinstance(value.get("class"), str):  # a single layer
                    yield from layer_dicts({info.name: value}, full)
                elif info.network:
                    yield from layer_dicts(value, full)


def _user_modules() -> list[tuple[str, Mapping[str, Any]]]:
    """Return path and names of the files that configs have imported."""
    found = []
    for name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", {})
        path = names.get("__file__")
        if name != CONFIG_MODULE and isinstance(names.get("__builtins__"), dict) and isinstance(path, str):
            if USER_CODE in names["__builtins__"]:
                found.append((path, names))
    return found


def _wrong_part(text: ConfigText, entry: TextEntry, value: Any, message: str) -> tuple[Span, Any]:
    """Return the place that a message is about, and the value in which it stands.

    :param entry: the layer, dataset or setting that the message begins with
    :param value: of it
    :param message: what follows
    """
    while isinstance(value, Mapping):
        part = _INNER_DATASET.match(message) or _CLASS.match(message) or _LOSS.match(message) or _PART.match(message)
        if part is None:
            break
        if part.re is not _CLASS:
            key = "loss_opts" if part.re is _LOSS else part.group(1)
            inner = text.option(entry, key, value) if key in value else None
            if part.re is _INNER_DATASET and inner is None:
                inner = text.named_inside(entry, key)
                value = _inner_value(value, key)
            elif inner is not None:
                value = value[key]
            if inner is None:
                break
            entry = inner
        message = message[part.end() :]
    return text.span(_wrong_node(text, entry, value, message.partition("Did you mean")[0])), value


def _wrong_node(text: ConfigText, entry: TextEntry, value: Any, message: str) -> ast.AST:
    """Return the node within an entry that a message is about; by default the key of a dict, or another value."""
    if _NO_SETTING.match(message) or _MISSING.search(message):
        return entry.key
    unknown, option = _UNKNOWN.search(message), _OPTION.search(message)
    if isinstance(value, Mapping):
        if unknown is not None:
            inner = text.option(entry, unknown.group(1), value)
            return entry.key if inner is None else inner.key
        if option is not None and option.group(1) in value:
            inner = text.option(entry, option.group(1), value)
            return entry.key if inner is None else _wrong_word(text, inner, message) or inner.value
    word = _wrong_word(text, entry, message)
    if word is not None:
        return word
    key = _KEY.match(message)
    if key is not None and isinstance(value, Mapping) and key.group(1) in value:
        inner = text.option(entry, key.group(1), value)
        return entry.key if inner is None else inner.value
    for name in _NAME.findall(message) if isinstance(value, Mapping) else ():
        inner = text.option(entry, name, value) if name in value else None
        if inner is not None:
            return inner.value
    return entry.key if is_dict(entry.value) or isinstance(value, Mapping) else entry.value


def _wrong_word(text: ConfigText, entry: TextEntry, message: str) -> Optional[ast.AST]:
    """Return the string within a value that a message calls wrong, if there is a single one."""
    for match in _WRONG_WORD.finditer(message):
        is_class = re.match(r"unknown [\w ]*\b(?:class|optimizer) ", match.group()) is not None
        found = text.inside(entry, match.group(1) or match.group(2), is_class=is_class)
        if found is not None:
            return found
    return None


def _inner_value(value: Any, key: str) -> Any:
    """Return the first dict with this key, at any depth of a dict; None if there is none."""
    if not isinstance(value, Mapping):
        return None
    if isinstance(value.get(key), Mapping):
        return value[key]
    return next(filter(None, (_inner_value(each, key) for each in value.values())), None)
