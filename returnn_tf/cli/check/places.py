"""Finds the lines of a Python config on which its layers and their options stand, from the syntax tree alone."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Optional


@dataclasses.dataclass(frozen=True)
class DictPlace:
    """A dict literal with constant keys, as that of a layer.

    :param constants: the values by key, of those which are constants
    :param lines: line by key
    """

    line: int
    constants: Mapping[str, Any]
    lines: Mapping[str, int]


class ConfigPlaces:
    """The dict literals of a Python config by the key or name that they are the value of.

    :param text: of the file; one that is not Python has no places
    """

    def __init__(self, text: str) -> None:
        self._dicts: dict[str, list[DictPlace]] = {}
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return
        for name, node in _named_dicts(tree):
            self._dicts.setdefault(name, []).append(_place(node))

    def layer(self, path: str, options: Mapping[str, Any], option: str = "") -> Optional[int]:
        """Return the line of a layer or of one of its options.

        A layer of several places that are alike, or one made by code, has no certain line.

        :param path: of the layer
        :param options: its dict
        :param option: the key; "" for the layer
        """
        name = path.rpartition("/")[2]
        fitting = [place for place in self._dicts.get(name, ()) if _fits(place, options)]
        if len(fitting) != 1:
            return None
        return fitting[0].lines.get(option, fitting[0].line)

    def entry(self, name: str, option: str) -> Optional[int]:
        """Return the line of an entry of the dict which is the value of a setting."""
        places = self._dicts.get(name, ())
        return places[0].lines.get(option) if len(places) == 1 else None


def _fits(place: DictPlace, options: Mapping[str, Any]) -> bool:
    """Return whether the dict at a place can be this one: constants are equal, and no key is missing from it."""
    return all(key in options for key in place.lines) and all(
        type(options[key]) is type(value) and options[key] == value for key, value in place.constants.items()
    )


def _place(node: ast.expr) -> DictPlace:
    pairs = list(_pairs(node))
    return DictPlace(
        node.lineno,
        {key: value.value for key, _, value in pairs if isinstance(value, ast.Constant)},
        {key: line for key, line, _ in pairs},
    )


def _pairs(node: ast.expr) -> Iterator[tuple[str, int, ast.expr]]:
    """Return key, line and value of the constant string keys of ``{...}`` or ``dict(...)``."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, key.lineno, value
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg:
                yield keyword.arg, keyword.value.lineno, keyword.value


def _is_dict(node: Optional[ast.expr]) -> bool:
    return isinstance(node, ast.Dict) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict"
    )


def _named_dicts(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Return (name, dict) of ``{name: {...}}``, ``dict(name={...})``, ``x[name] = {...}`` and ``name = {...}``."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Dict, ast.Call)):
            yield from ((key, value) for key, _, value in _pairs(node) if _is_dict(value))
        elif isinstance(node, ast.Assign) and _is_dict(node.value):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value
                elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                    yield str(target.slice.value), node.value
