"""Pages of the Python API: the names that `returnn_tf` exports, and those of its modules that the pages import."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable
from typing import Any

import returnn_tf
from returnn_tf.config.reference import first_sentence
from returnn_tf.config.registry import Registry
from tools.docs.reference.classes import Pages, heading, sections
from tools.docs.reference.docstrings import code, doc_of, inline

#: Methods with these names have an entry although they begin with an underscore.
_SPECIAL = ("__call__", "__iter__", "__len__", "__enter__")
_LONGEST = 100  # columns of a signature in one line


def python_pages(pages: Pages) -> Pages:
    """Return path -> Markdown.

    :param pages: those that are written; what their code imports from modules of returnn_tf has an entry as well
    """
    folder = "reference/python/"
    exported = sorted(name for name in vars(returnn_tf)["__all__"] if not name.startswith("__"))
    names = {name: ("returnn_tf", _exported(name)) for name in exported}
    more = {name: item for name, item in imported_names(pages.values()).items() if name not in names}
    index = ["# Python", "What `import returnn_tf` offers; [the guide](../../python-api.md) shows how to use it."]
    index += [_list(names), "## In modules", "What the pages import from modules of the package.", _list(more)]
    made = {folder + "README.md": "\n\n".join(index)}
    for name, (module, what) in {**names, **more}.items():
        made["%s%s.md" % (folder, name)] = _page(name, module, what)
    return made


def _exported(name: str) -> Any:
    """Return what a public name stands for; for a package that can be called, the function behind it."""
    what = getattr(returnn_tf, name)
    return getattr(importlib.import_module("%s.%s" % (what.__name__, name)), name) if inspect.ismodule(what) else what


def imported_names(pages: Iterable[str]) -> dict[str, tuple[str, Any]]:
    """Return name -> (module, object) of what Python code of pages imports from modules of returnn_tf."""
    found: dict[str, tuple[str, Any]] = {}
    for page in pages:
        for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S):
            try:
                tree = ast.parse(textwrap.dedent(block))
            except SyntaxError:
                continue  # a fragment
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("returnn_tf."):
                    module = importlib.import_module(node.module or "")
                    found.update({alias.name: (module.__name__, getattr(module, alias.name)) for alias in node.names})
    return dict(sorted(found.items()))


def _list(names: dict[str, tuple[str, Any]]) -> str:
    lines = []
    for name, (module, what) in names.items():
        text = inline(_summary(what)) if callable(what) else "a value of type %s" % code(type(what).__name__)
        place = "" if module == "returnn_tf" else " in %s" % code(module)
        lines.append("* [%s](%s.md)%s: %s" % (code(name), name, place, text))
    return "\n".join(lines)


def _registers(what: Any) -> bool:
    """Return whether something is the decorator of a registry: one method for all kinds of entries."""
    return isinstance(getattr(what, "__self__", None), Registry)


def _summary(what: Any) -> str:
    if not _registers(what):
        return first_sentence(what)
    return "Decorate a %s: it gets these names in configs; the first is the main one." % what.__self__.what


def _page(name: str, module: str, what: Any) -> str:
    parts = ["# %s" % code(name), "```python\nfrom %s import %s\n```" % (module, name)]
    if inspect.isclass(what):
        shown = "" if issubclass(what, BaseException) else _fenced_signature(name, what)
        bases = [base.__name__ for base in what.__mro__[1:] if base is not object]
        parts += [shown, doc_of(what), "Derives from %s." % ", ".join(map(code, bases)) if bases else ""]
        parts += [doc_of(what.__init__) if _has_doc_of_its_own(what.__dict__.get("__init__")) else ""]
        parts += [sections(_members(what))]
    elif callable(what) and hasattr(what, "__name__"):
        parts += [_fenced_signature(name, what), inline(_summary(what)) if _registers(what) else doc_of(what)]
    else:
        parts += ["A value of type %s." % code(type(what).__name__), doc_of(type(what))]
    return "\n\n".join(part for part in parts if part)


def _has_doc_of_its_own(method: Any) -> bool:
    return bool(getattr(method, "__doc__", None))


def _members(cls: type[Any]) -> list[tuple[str, str]]:
    """Return (heading, Markdown) of the public methods and properties, also of those that bases of ours define."""
    entries = []
    for name, member in inspect.getmembers(cls):
        owner = next((base for base in cls.__mro__ if name in base.__dict__), object)
        if (name.startswith("_") and name not in _SPECIAL) or not owner.__module__.startswith("returnn_tf"):
            continue
        raw = owner.__dict__[name]
        doc = doc_of(member)
        if isinstance(raw, (property,)) or type(raw).__name__ == "cached_property":
            doc = doc_of(raw) if isinstance(raw, property) else doc_of(raw.func)
            entries.append((heading(name, name), "Property. " + doc))
        elif inspect.isfunction(member) or inspect.ismethod(member):
            text = "%s\n\n%s" % (_fenced_signature(name, member), doc)
            entries.append((heading(name + "()", name), text))
    return entries


def _fenced_signature(name: str, what: Any) -> str:
    try:
        signature = inspect.signature(what)
    except (TypeError, ValueError):
        return ""
    parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    result = (
        ""
        if signature.return_annotation in (inspect.Signature.empty, None) or inspect.isclass(what)
        else (" -> %s" % _annotation(signature.return_annotation))
    )
    shown = [_annotated(parameter) for parameter in parameters]
    if any(p.kind is p.KEYWORD_ONLY for p in parameters) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        shown.insert(next(i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY), "*")
    text = "%s(%s)%s" % (name, ", ".join(shown), result)
    if len(text) > _LONGEST:
        text = "%s(\n%s)%s" % (name, "".join("    %s,\n" % part for part in shown), result)
    return "```python\n%s\n```" % text


def _annotated(parameter: inspect.Parameter) -> str:
    stars = "*" * (parameter.kind is parameter.VAR_POSITIONAL) + "**" * (parameter.kind is parameter.VAR_KEYWORD)
    text = stars + parameter.name
    if parameter.annotation is not parameter.empty:
        text += ": " + _annotation(parameter.annotation)
    if parameter.default is not parameter.empty:
        default = re.sub(r"<(?:function|class) '?([\w.]+)'?.*>", r"\1", repr(parameter.default))
        text += " = " + re.sub(r"<\S* object at .*>", "...", default)
    return text


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else str(getattr(annotation, "__name__", annotation))
