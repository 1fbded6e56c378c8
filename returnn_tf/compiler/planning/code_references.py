"""The layers that code in the options of a layer asks its network for, e.g. ``self.network.get_layer("encoder")``.

They are dependencies, although the layer does not list them: the code needs their values.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

_CODE_OPTIONS = ("eval",)
_OF_STEP = ("get_rec_step_index", "get_rec_step_info")
_SKIPPED = ("CACHE", "PUSH_NULL", "PRECALL", "RESUME", "NOP")


def code_references(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of layers and data keys in functions, and in the text of code, among the options of a layer."""
    for name, value in options.items():
        code = getattr(value, "__code__", None)
        if isinstance(value, str) and name in _CODE_OPTIONS and ("get_layer" in value or "extern_data" in value):
            code = _compiled(value)
        if isinstance(code, types.CodeType):
            yield from _names_in(code)


def asks_for_step(options: Mapping[str, Any]) -> bool:
    """Return whether functions, or the text of code, among the options ask the network for the step of the loop."""
    for name, value in options.items():
        if isinstance(value, str) and name in _CODE_OPTIONS and any(word in value for word in _OF_STEP):
            return True
        code = getattr(value, "__code__", None)
        if isinstance(code, types.CodeType) and any(word in code.co_names for word in _OF_STEP):
            return True
    return False


@functools.lru_cache(maxsize=512)
def _compiled(text: str) -> Any:
    try:
        return compile(text.strip(), "<eval>", "eval")
    except (SyntaxError, ValueError):
        return None  # reported by the layer


@functools.lru_cache(maxsize=4096)
def _names_in(code: types.CodeType) -> tuple[str, ...]:
    """Return the names that code asks for as constants, also in functions within the function."""
    found: list[str] = []
    before: list[Any] = [None] * 3
    for instruction in dis.get_instructions(code):
        if instruction.opname in _SKIPPED:
            continue
        value = instruction.argval
        if instruction.opname == "LOAD_CONST" and isinstance(value, str):
            if before[-1] == "get_layer":
                found.append(("base:" if before[-2] == "parent_net" else "") + value)
            elif before[-2:] == ["extern_data", "data"]:
                found.append(("base:" if before[-3] == "parent_net" else "") + "data:" + value)
        before = [*before[1:], value]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found += _names_in(constant)
    return tuple(dict.fromkeys(name for name in found if "prev:" not in name))
