"""Errors in functions of a config, and in how these are called."""

from __future__ import annotations

import pathlib
import sys
from typing import Any, Callable

import pytest

from returnn_tf.config import Config, user_files
from returnn_tf.config.user_code import error_in_config

TEXT = """#!returnn
def one(idx):
    return idx

def broken(idx, net):
    return net["x"]

two = lambda: 3

def own_mistake(idx, net):
    return one(idx, net)
"""


class _Holder:
    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func

    def call(self) -> Any:
        return self.func(1, 2)


class Other:
    def __init__(self, x: int) -> None:
        pass


def _call_keyword(func: Callable[..., Any]) -> Any:
    return func(epoch=1)


@pytest.mark.parametrize(
    "name, call, found",
    [
        ("one", lambda func: func(1, {}), ":2: TypeError: one() takes 1 positional argument but 2 were given"),
        ("one", lambda func: func(), ":2: TypeError: one() missing 1 required positional argument: 'idx'"),
        ("one", _call_keyword, ":2: TypeError: one() got an unexpected keyword argument 'epoch'"),
        ("two", lambda func: _Holder(func).call(), ":8: TypeError: <lambda>() takes 0 positional arguments but 2"),
        ("broken", lambda func: func(1, {}), ":6: KeyError: 'x'"),
        ("own_mistake", lambda func: func(1, {}), ":11: TypeError: one() takes 1 positional argument but 2 were given"),
    ],
)
def test_place(tmp_path: pathlib.Path, name: str, call: Callable[..., Any], found: str) -> None:
    path = tmp_path / "my.config"
    path.write_text(TEXT)
    func = Config.from_file(str(path)).typed(name)
    with pytest.raises((TypeError, KeyError)) as info:
        call(func)
    place = error_in_config(info.value)
    assert place is not None and place.startswith(str(path) + found), place


@pytest.mark.parametrize("call", [lambda: _call_keyword(_call_keyword), lambda: {}["x"], lambda: Other()])  # type: ignore
def test_not_of_a_config(call: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, KeyError)) as info:
        call()
    assert error_in_config(info.value) is None


def test_the_folders_of_python_are_known_before_modules_are_found(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While sysconfig imports its variables, it can't be asked for folders: an AttributeError in Python 3.13.0."""
    before = list(sys.meta_path)
    seen: list[bool] = []
    get_paths = user_files.sysconfig.get_paths

    def record() -> dict[str, str]:
        seen.append(sys.meta_path == before)
        return get_paths()

    user_files._installed_folders.cache_clear()
    monkeypatch.setattr(user_files.sysconfig, "get_paths", record)
    (tmp_path / "a_module_of_the_user.py").write_text("SIZE = 3\n")
    (tmp_path / "my.config").write_text("#!returnn\nfrom a_module_of_the_user import SIZE\nsize = SIZE\n")
    assert Config.from_file(str(tmp_path / "my.config")).typed("size") == 3
    assert seen and all(seen)
