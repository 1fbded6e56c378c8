"""The package as its rules see it: syntax trees, and who imports whom."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
NAME = "returnn_tf"


class Import(NamedTuple):
    """An import.

    :param target: dotted name of a module of the package, or what the statement names
    """

    target: str
    line: int
    in_function: bool


@dataclass(frozen=True)
class Module:
    """A file of the package.

    :param name: dotted, without ``__init__``
    """

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def folder(self) -> str:
        """Return the folder on a floor, as "layers" for ``returnn_tf.layers.rec.rec``; "" for those in none."""
        return (self.name.split(".") + [""])[1]


class Package:
    """All modules of a package.

    :param root: the folder that has the folder ``returnn_tf``
    """

    def __init__(self, root: Path = ROOT):
        self.modules = {module.name: module for module in _parse(root)}
        self.imports = {name: list(self._imports_of(module)) for name, module in self.modules.items()}
        self.graph = {
            name: {found.target for found in imports if found.target in self.modules}
            for name, imports in self.imports.items()
        }
        parents = [name.split(".")[1:-1] for name in self.modules]
        self.folders = sorted({".".join(parts[: n + 1]) for parts in parents for n in range(len(parts))})

    def entries(self, folder: str) -> dict[str, set[str]]:
        """Return the modules and folders directly in a folder, and which of them import which.

        :param folder: dotted, without the name of the package; "" for the package
        """
        prefix = "%s.%s." % (NAME, folder) if folder else NAME + "."
        graph: dict[str, set[str]] = {}
        for name, targets in self.graph.items():
            if name.startswith(prefix):
                here = name[len(prefix) :].split(".")[0]
                there = {target[len(prefix) :].split(".")[0] for target in targets if target.startswith(prefix)}
                graph.setdefault(here, set()).update(there - {here})
        return graph

    def _imports_of(self, module: Module) -> Iterator[Import]:
        def visit(node: ast.AST, in_function: bool) -> Iterator[Import]:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(alias.name, node.lineno, in_function)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    whole = "%s.%s" % (node.module, alias.name)
                    yield Import(whole if whole in self.modules else node.module or ".", node.lineno, in_function)
            inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for child in ast.iter_child_nodes(node):
                yield from visit(child, in_function or inside)

        return visit(module.tree, False)


def _parse(root: Path) -> Iterator[Module]:
    for path in sorted((root / NAME).rglob("*.py")):
        text = path.read_text(encoding="utf8")
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        yield Module(name[: -len(".__init__")] if path.stem == "__init__" else name, path, text, ast.parse(text, path))
