"""Rules on where facts stand: once, on the class that they are about or in the declaration of a setting."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from returnn_tf.graph.registry import LAYERS
from tools.lint.package import Package

#: Methods of Config that read a value.
READERS = {"int", "float", "bool", "str", "value", "list", "int_list", "float_list", "int_pair", "bool_or_other"} | {
    *("typed", "get", "typed_value", "opt_typed_value", "raw", "has", "where", "is_override", "read")
}

#: Modules that read what other packages write by `logging`.
LISTENERS = {"returnn_tf.export.onnx.packages"}


def docstrings(package: Package) -> Iterator[str]:
    """Each file says what it is for."""
    for module in package.modules.values():
        if module.tree.body and not ast.get_docstring(module.tree):
            yield "%s has no docstring" % module.path


def one_log(package: Package) -> Iterator[str]:
    """All lines go to `returnn_tf.logging.log.log`; who listens to the loggers of other packages is in a list."""
    for name, imports in package.imports.items():
        if package.modules[name].folder != "logging" and name not in LISTENERS:
            for target, line, _ in imports:
                if target.split(".")[0] == "logging":
                    yield "%s:%d imports logging: write by returnn_tf.logging.log.log" % (
                        package.modules[name].path,
                        line,
                    )


def class_names(package: Package) -> Iterator[str]:
    """A public class has a name that no other one has; `compat` repeats names of RETURNN."""
    places: dict[str, list[str]] = {}
    for module in package.modules.values():
        if module.folder != "compat":
            for node in module.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append("%s:%d" % (module.path, node.lineno))
    for name, found in places.items():
        for place in found[1:]:
            yield "%s defines a class %s, as %s does" % (place, name, found[0])


def settings(package: Package) -> Iterator[str]:
    """Nowhere ``config.int("num_epochs", 5)``, ``config["num_epochs"]`` or ``"num_epochs" in config``.

    What defines settings and readers is left out.
    """

    def is_config(node: ast.AST) -> bool:
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        return name.lstrip("_") == "config"

    def is_constant(node: ast.AST) -> bool:
        return isinstance(node, ast.Constant)

    def reads(node: ast.AST) -> bool:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READERS:
            return is_config(node.func.value) and any(map(is_constant, node.args[:1]))
        if isinstance(node, ast.Subscript):
            return is_config(node.value) and is_constant(node.slice)
        return isinstance(node, ast.Compare) and is_constant(node.left) and is_config(node.comparators[0])

    for name, module in package.modules.items():
        if module.folder != "config" or name == "returnn_tf.config.epoch_value":
            for node in ast.walk(module.tree):
                if reads(node):
                    yield "%s:%d reads %s past its declaration" % (module.path, _line(node), ast.unparse(node))


def error_topics(package: Package) -> Iterator[str]:
    """An error of users names its page: it is of a class with a topic, or gets the argument ``topic``."""
    without = {"UserError", "ConfigError", "DataError"}
    found = 0
    while len(without) > found:  # until no class derives from those found without stating a topic
        found = len(without)
        without |= {
            node.name
            for module in package.modules.values()
            for node in module.tree.body
            if isinstance(node, ast.ClassDef)
            if any(isinstance(base, ast.Name) and base.id in without for base in node.bases)
            if not any("class_topic" in map(ast.unparse, _assigned(each)) for each in node.body)
        }
    for module in package.modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in without:
                if all(keyword.arg != "topic" for keyword in node.keywords):
                    yield "%s:%d makes a %s without a topic" % (module.path, node.lineno, node.func.id)


def layer_classes(package: Package) -> Iterator[str]:
    """A fact about a class is an attribute of the class, so that it holds for plug-ins, too: no table of names."""
    for name, module in package.modules.items():
        if module.folder != "compat":
            here = (cls for cls in dict(LAYERS.items()).values() if cls.__module__ == name)
            own = {key for cls in here for key in LAYERS.names_of(cls)}
            for line, key in _comparisons(module.tree):
                if LAYERS.find(key) and key not in own:
                    yield "%s:%d knows the layer class %r by name" % (module.path, line, key)


def layer_attributes(package: Package) -> Iterator[str]:
    """What one layer reads of another one is declared, with a default, by `returnn_tf.graph.layer.Layer`."""
    for module in package.modules.values():
        if module.folder != "compat":
            for line, text in _lookups(module.tree):
                yield "%s:%d looks up an attribute of a layer by name: %s" % (module.path, line, text)


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _assigned(node: ast.stmt) -> list[ast.expr]:
    """Return what a statement assigns to."""
    if isinstance(node, ast.AnnAssign):
        return [node.target]
    return node.targets if isinstance(node, ast.Assign) else []


def _strings(node: ast.AST) -> Iterator[str]:
    """Yield the strings of a constant, or of a literal list, tuple or set."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        for item in node.elts:
            yield from _strings(item)
    elif isinstance(node, ast.Call) and node.args:  # frozenset(...)
        yield from _strings(node.args[0])
    elif isinstance(node, ast.Dict):
        for key in node.keys:
            yield from _strings(key) if key is not None else ()


def _asks_for_class(node: ast.AST) -> bool:
    """Return whether this is ``x.class_name``, ``x["class"]`` or ``x.get("class")``."""
    if isinstance(node, ast.Attribute):
        return node.attr == "class_name"
    if isinstance(node, ast.Subscript):
        return list(_strings(node.slice)) == ["class"]
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and (
        node.func.attr == "get" and list(_strings(node.args[0]) if node.args else ()) == ["class"]
    )  # fmt: skip


def _comparisons(tree: ast.Module) -> list[tuple[int, str]]:
    """(line, name) for each layer class whose name a class name is compared with, or which is a key of a table."""
    constants = {
        target.id: list(_strings(node.value))
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            sides = [node.func.value, *node.args]
        elif isinstance(node, ast.Subscript):
            sides = [node.value, node.slice]
        else:
            continue
        if any(_asks_for_class(side) for side in sides):
            for side in (side for side in sides if not _asks_for_class(side)):
                named = constants.get(side.id, []) if isinstance(side, ast.Name) else list(_strings(side))
                found += [(node.lineno, name) for name in named]
    return found


def _lookups(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of ``getattr(layer, "name", ...)`` and ``hasattr(...)`` on a layer of another node."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            text = ast.unparse(node.args[0])
            is_layer = text == "layer" or text.endswith((".layer", "_layer"))
            if is_layer and isinstance(node.args[1], ast.Constant):
                yield node.lineno, ast.unparse(node)
