"""Finds where the entries of a config stand in its text: file, line and column, from the syntax tree alone.

A config is a program, so a value may stand at no place or at several. A place is only given where it is certain: the
literal there equals the value that the program has, or one single expression can have computed it.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from returnn_tf.config import loading


@dataclasses.dataclass(frozen=True)
class Span:
    """A part of a text. Lines and columns count from 1, columns in characters; the end column is behind the part."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclasses.dataclass(frozen=True)
class TextEntry:
    """A key with its value, as ``"key": value``, ``key=value``, ``x["key"] = value`` or ``key = value``.

    :param key: the node of the key; that of an `ast.keyword` begins with it
    :param certain: whether nothing that follows in the same dict can replace the value
    :param owner: the key that the dict is the value of, as far as an assignment names it
    """

    key: ast.AST
    value: ast.expr
    certain: bool = True
    owner: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class _NamedDict:
    """A dict literal that is the value of a key.

    :param layers: the keys of the dicts with a class around it, which are layers or datasets
    """

    entry: TextEntry
    layers: tuple[str, ...]


_UNKNOWN: Any = object()
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
#: Names by which code sets variables without naming them.
_DYNAMIC = {"globals", "locals", "vars", "exec", "setattr"}


class ConfigText:
    """The entries of the text of one config file, or of a file that it imports.

    :param file: its path
    :param text: one that is neither Python nor JSON has no entries
    """

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.lines = text.split("\n")
        self._dicts: dict[str, list[_NamedDict]] = {}
        self._stores: dict[str, list[TextEntry]] = {}
        self._assigned: dict[str, list[tuple[TextEntry, bool]]] = {}
        #: Names that are also set otherwise than by an assignment; a value of theirs has a place only as a literal.
        self._opaque: set[str] = set()
        self._dynamic = False
        is_json = loading.form_of(file, text) == "json"
        try:
            tree = ast.parse(loading.without_comments(text) if is_json else text)
            self._collect_dicts(tree)
            self._collect_names(tree.body, certain=True)
            if is_json and tree.body and isinstance(tree.body[0], ast.Expr):
                for entry in entries(tree.body[0].value):
                    self._assigned.setdefault(str(_key(entry)), []).append((entry, True))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return

    def _collect_dicts(self, tree: ast.AST) -> None:
        """Collect the dict literals with their keys, and the assignments to entries of dicts."""
        inner: set[int] = set()  # nodes that belong to an outer dict, or to a name
        for node in ast.walk(tree):  # outer ones first
            if is_dict(node) and id(node) not in inner:
                for entry in entries(node):
                    self._add_dict(entry, (), inner)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Subscript):
                        self._add_store(target, node.value, inner)
                    elif isinstance(target, ast.Name):
                        self._add_dict(TextEntry(target, node.value), (), inner)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
                self._add_store(node.target, node.target, inner)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
                owner = _constant_index(node.func.value)
                for given in [*node.args, _keywords(node)]:
                    for entry in entries(given):
                        self._stores.setdefault(str(_key(entry)), []).append(dataclasses.replace(entry, owner=owner))
            elif isinstance(node, ast.Name) and node.id in _DYNAMIC:
                self._dynamic = True

    def _add_store(self, target: ast.Subscript, value: ast.expr, inner: set[int]) -> None:
        if isinstance(target.slice, ast.Constant):
            entry = TextEntry(target.slice, value, owner=_constant_index(target.value))
            self._stores.setdefault(str(target.slice.value), []).append(entry)
            self._add_dict(entry, (), inner)

    def _add_dict(self, entry: TextEntry, layers: tuple[str, ...], inner: set[int]) -> None:
        """Add an entry that is a dict, or a name of one, and those inside of it."""
        if not is_dict(entry.value) and not isinstance(entry.value, ast.Name):
            return
        inner.add(id(entry.value))
        name = str(_key(entry))
        self._dicts.setdefault(name, []).append(_NamedDict(entry, layers))
        own = list(entries(entry.value))
        layers = (*layers, name) if any(_key(each) == "class" for each in own) else layers
        for each in own:
            self._add_dict(each, layers, inner)

    def _collect_names(self, body: Sequence[ast.stmt], *, certain: bool) -> None:
        """Collect what the statements of the module assign to names.

        :param certain: whether they are executed for certain, one after the other
        """
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._opaque.update(
                    name for each in ast.walk(node) if isinstance(each, ast.Global) for name in each.names
                )
                continue
            if isinstance(node, ast.ClassDef):
                continue
            plain: list[ast.expr] = []
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                plain = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in plain:
                    if isinstance(target, ast.Name):
                        self._assigned.setdefault(target.id, []).append((TextEntry(target, node.value), certain))
            blocks = [getattr(node, field, None) or [] for field in ("body", "orelse", "finalbody")]
            blocks += [handler.body for handler in getattr(node, "handlers", [])]
            for block in blocks:
                self._collect_names(block, certain=False)
            for part in ast.iter_child_nodes(node):
                if part not in plain or not isinstance(part, ast.Name):
                    self._opaque.update(_names_set(part))

    def setting(self, name: str, value: Any) -> Optional[TextEntry]:
        """Return the assignment that has given a setting its value."""
        found = [each for each in self._assigned.get(name, ()) if self._possible(each[0], value)]
        if self._dynamic or name in self._opaque:
            found = [each for each in found if _literal(each[0].value) is not _UNKNOWN]
        if len(found) == 1 or (found and all(certain for _, certain in found)):
            return found[-1][0]
        return None

    def layer(self, path: str, options: Mapping[str, Any]) -> Optional[TextEntry]:
        """Return the entry of a layer; one of several places that are alike, or made by code, has no certain one.

        :param path: names of the enclosing layers and its own, separated by "/"
        :param options: its dict
        """
        *outer, name = path.split("/")
        found: dict[int, tuple[int, TextEntry]] = {}
        for each in self._dicts.get(name, ()):
            node = self._followed(each.entry.value, options)
            if is_dict(node) and self._fits(node, options) and _ends_with(outer, each.layers):
                found[id(node)] = (len(each.layers), each.entry)  # a dict with a name of its own is found twice
        most = max((depth for depth, _ in found.values()), default=0)
        deepest = [entry for depth, entry in found.values() if depth == most]
        return deepest[0] if len(deepest) == 1 else None

    def option(self, owner: TextEntry, name: str, options: Mapping[str, Any]) -> Optional[TextEntry]:
        """Return the entry of an option.

        :param owner: the entry of the dict
        :param options: the dict
        """
        node = self._followed(owner.value, options)
        own = [each for each in entries(node) if _key(each) == name][-1:]
        stores = [each for each in self._stores.get(name, ()) if each.owner in (None, _key(owner))]
        found = [each for each in own + stores if self._possible(each, options.get(name, _UNKNOWN))]
        if len(found) > 1:
            found = [each for each in found if _literal(each.value) is not _UNKNOWN]
        return found[0] if len(found) == 1 else None

    def inside(self, entry: TextEntry, text: str, *, is_class: bool = False) -> Optional[ast.AST]:
        """Return the only string within a value that is this text, leaving out dicts with a class of their own.

        The keys of the value itself are left out, too.

        :param is_class: whether it may be the class of the value itself
        """
        own = list(entries(entry.value))
        parts = [each.value for each in own if is_class or _key(each) != "class"] if own else [entry.value]
        found = [node for part in parts for node in _own_strings(part) if node.value == text]
        return found[0] if len(found) == 1 else None

    def named_inside(self, entry: TextEntry, name: str) -> Optional[TextEntry]:
        """Return the only entry with this key that is a dict, at any depth of a value."""
        found = [
            each
            for node in ast.walk(entry.value)
            for each in entries(node)
            if _key(each) == name and is_dict(each.value)
        ]
        return found[0] if len(found) == 1 else None

    def span(self, node: ast.AST) -> Span:
        """Return the place of a node; that of an `ast.keyword` is its name."""
        line, end = node.lineno, node.end_lineno  # type: ignore[attr-defined]
        start = self._column(line, node.col_offset)  # type: ignore[attr-defined]
        if isinstance(node, ast.keyword):
            return Span(self.file, line, start, line, start + len(node.arg or ""))
        return Span(self.file, line, start, end, self._column(end, node.end_col_offset))  # type: ignore[attr-defined]

    def _column(self, line: int, offset: int) -> int:
        """Return the column of an offset in bytes."""
        return len(self.lines[line - 1].encode("utf8", "surrogatepass")[:offset].decode("utf8", "replace")) + 1

    def _followed(self, node: ast.expr, value: Any) -> ast.expr:
        """Return the dict that a name stands for, else the node."""
        if not isinstance(node, ast.Name) or not isinstance(value, Mapping):
            return node
        entry = self.setting(node.id, value)
        return node if entry is None or not is_dict(entry.value) else entry.value

    def _possible(self, entry: TextEntry, value: Any) -> bool:
        """Return whether an entry can have given a value."""
        literal = _literal(entry.value)
        if literal is not _UNKNOWN and not is_dict(entry.value):
            return value is not _UNKNOWN and _equal(literal, value)
        if is_dict(entry.value):
            return isinstance(value, Mapping) and self._fits(entry.value, value)
        return entry.certain

    def _fits(self, node: ast.expr, options: Mapping[str, Any]) -> bool:
        """Return whether a dict can be this one: literals are equal, and no key is missing from it.

        What assignments to its entries may have changed is left out.
        """
        for entry in entries(node):
            key = _key(entry)
            if key in self._stores:
                continue
            if key not in options:
                return False
            literal = _UNKNOWN if is_dict(entry.value) else _literal(entry.value)
            if literal is not _UNKNOWN and entry.certain and not _equal(literal, options[key]):
                return False
        return True


def entries(node: ast.AST) -> Iterator[TextEntry]:
    """Yield the entries of ``{...}`` or ``dict(...)`` whose keys are constants; nothing for other nodes."""
    if isinstance(node, ast.Dict):
        for position, (key, value) in enumerate(zip(node.keys, node.values)):
            if isinstance(key, ast.Constant):
                yield TextEntry(key, value, certain=all(isinstance(k, ast.Constant) for k in node.keys[position:]))
    elif isinstance(node, ast.Call) and is_dict(node):
        for keyword in node.keywords:
            if keyword.arg:
                yield TextEntry(keyword, keyword.value)


def is_dict(node: ast.AST) -> bool:
    """Return whether a node is ``{...}`` or ``dict(...)``."""
    return isinstance(node, ast.Dict) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict"
    )


def _key(entry: TextEntry) -> Any:
    if isinstance(entry.key, ast.Constant):
        return entry.key.value
    return getattr(entry.key, "arg", None) or getattr(entry.key, "id", None)


def _constant_index(node: ast.expr) -> Optional[str]:
    """Return the key of ``x["key"]``; None for other expressions."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return None


def _keywords(call: ast.Call) -> ast.Call:
    """Return ``dict(...)`` with the keywords of a call."""
    return ast.Call(ast.Name("dict", ast.Load()), [], call.keywords)


def _names_set(node: ast.AST) -> Iterator[str]:
    """Yield the names that a part of a statement sets, without the statements inside of it."""
    if isinstance(node, (ast.stmt, ast.ExceptHandler)):
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    if isinstance(node, ast.alias):
        yield node.asname or node.name
    for child in ast.iter_child_nodes(node):
        yield from _names_set(child)


def _ends_with(names: Sequence[str], end: Sequence[str]) -> bool:
    return not end or tuple(names[-len(end) :]) == tuple(end)


#: What the words of JSON stand for.
_JSON_WORDS = {"true": True, "false": False, "null": None}


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal, or `_UNKNOWN`."""
    if isinstance(node, ast.Name):
        return _JSON_WORDS.get(node.id, _UNKNOWN)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _UNKNOWN


def _equal(literal: Any, value: Any) -> bool:
    """Return whether a value is that of a literal, of the same types at any depth."""
    if isinstance(literal, _SCALARS):
        return type(value) is type(literal) and bool(value == literal)
    if isinstance(literal, dict):
        return (
            isinstance(value, Mapping)
            and literal.keys() == value.keys()
            and all(_equal(each, value[key]) for key, each in literal.items())
        )
    if isinstance(literal, (list, tuple)):
        alike = isinstance(value, type(literal)) and len(literal) == len(value)
        return alike and all(map(_equal, literal, value))
    return isinstance(value, type(literal)) and bool(value == literal)


def _own_strings(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield the strings within a node, without those in dicts that have a class."""
    if any(_key(entry) == "class" for entry in entries(node)):
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _own_strings(child)
