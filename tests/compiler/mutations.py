"""Networks with random mistakes in them: options of other types, other names, sources and classes, deep nesting.

Made of the networks of the recorded cases and of the examples of all layers; a number stands for one of them.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any, Callable

from returnn_tf.config import Config
from returnn_tf.config.options import declared_options
from returnn_tf.graph.registry import LAYERS, LOSSES
from tests.layers.examples import CLASSES, example_settings
from tests.parity import ROOT

ROOTS = ("network", "extern_data")

Settings = dict[str, Any]
#: Keys and indices that lead from the settings to a value.
Path = tuple[Any, ...]


def _deep(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 2**40, -(2**70), 0.5, 1.0, -0.5, 1e30, float("nan"), float("inf"),
    "", "x", "data", "data:classes", "T", "F", "B", "output", "base:data", "prev:output", "ä\n\0", "1 +", "x" * 500,
    [], [[]], [None], [1], ["x"], [1, "x"], (), (1, 2), (None,), ("F", "T"), {}, {"x": 1}, {1: 2}, {"class": "linear"},
    [{}], {"x": {"class": "copy"}}, b"data", 1j, object, len, _deep("data", 150),
)  # fmt: skip


# --- the networks to begin with ---


def corpus() -> dict[str, Settings]:
    """Return the settings of all recorded cases and examples by name."""
    result = {}
    for path in sorted(ROOT.glob("*/*.config")):
        config = Config.from_file(str(path))
        result["%s/%s" % (path.parent.name, path.stem)] = {key: config.typed(key) for key in config.keys()}
    result.update((name, example_settings(name)) for name in CLASSES)
    return {name: settings for name, settings in result.items() if isinstance(settings.get("network"), dict)}


def copied(value: Any) -> Any:
    """Copy the containers, but neither dims nor functions."""
    if isinstance(value, dict):
        return {k: copied(v) for k, v in value.items()}
    return type(value)(map(copied, value)) if type(value) in (list, tuple) else value


# --- places in the settings ---


def _places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of all values below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, inner in items:
        yield (*path, key)
        if len(path) < 20:
            yield from _places(inner, (*path, key))


def _get(settings: Any, path: Path) -> Any:
    for key in path:
        settings = settings[key]
    return settings


def change_at(settings: Settings, path: Path, edit: Callable[[Any, Any], Any]) -> None:
    """Replace the container of a place by what a function makes of it and the last key; tuples stay tuples."""
    *parents, last = path
    container = _get(settings, tuple(parents))
    changed = edit(list(container) if isinstance(container, tuple) else container, last)
    if isinstance(container, tuple):
        change_at(settings, tuple(parents), lambda outer, key: _set(outer, key, tuple(changed)))


def _set(container: Any, key: Any, value: Any) -> Any:
    container[key] = value
    return container


def without(container: Any, key: Any) -> Any:
    del container[key]
    return container


def _replace(settings: Settings, path: Path, value: Any) -> None:
    change_at(settings, path, lambda container, key: _set(container, key, value))


def _value(rng: random.Random) -> Any:
    return copied(rng.choice(VALUES))


# --- mutations; each changes the settings in place ---


def all_places(settings: Settings) -> list[Path]:
    return [(root, *path) for root in ROOTS for path in _places(settings.get(root))] + [(root,) for root in ROOTS]


def _layers(settings: Settings) -> list[Path]:
    """Return the paths of all dicts with a class; if none is left, of any dict."""
    dicts = [path for path in all_places(settings) if isinstance(_get(settings, path), dict)]
    return [path for path in dicts if "class" in _get(settings, path)] or dicts


def drop(settings: Settings, rng: random.Random) -> None:
    change_at(settings, rng.choice(all_places(settings)), without)


def retype(settings: Settings, rng: random.Random) -> None:
    _replace(settings, rng.choice(all_places(settings)), _value(rng))


def swap(settings: Settings, rng: random.Random) -> None:
    """Put the value of another place here."""
    places = all_places(settings)
    _replace(settings, rng.choice(places), copied(_get(settings, rng.choice(places))))


def rename(settings: Settings, rng: random.Random) -> None:
    """Give a key another name: a slip of the keyboard, or one of another type."""
    keyed = [path for path in all_places(settings) if isinstance(_get(settings, path[:-1]), dict)]
    path = rng.choice(keyed)
    slip = str(path[-1]) + "s" if rng.random() < 0.5 else rng.choice([1, None, "", "a/b", "data", "output", "prev:x"])
    value = _get(settings, path)
    change_at(settings, path, lambda container, key: _set(without(container, key), slip, value))


def set_class(settings: Settings, rng: random.Random) -> None:
    _replace(settings, (*rng.choice(_layers(settings)), "class"), rng.choice(sorted(LAYERS.names())))


def set_source(settings: Settings, rng: random.Random) -> None:
    """Let a layer read another one, itself, or one that does not exist."""
    names = [path[-1] for path in _layers(settings)]
    source = rng.choice(["", "", "base:", "prev:", "data:"]) + str(rng.choice(names + ["data", "classes", "nothing"]))
    _replace(settings, (*rng.choice(_layers(settings)), "from"), rng.choice([source, [source, "data"], [source] * 2]))


def set_option(settings: Settings, rng: random.Random) -> None:
    """Give a layer an option that its class declares, with any value."""
    path = rng.choice(_layers(settings))
    class_name = _get(settings, path).get("class")
    known = isinstance(class_name, str) and class_name in LAYERS.names()
    options = sorted(declared_options(LAYERS.get(class_name, "fuzz"))) if known else ["from", "n_out", "target"]
    _replace(settings, (*path, rng.choice(options)), _value(rng))


def set_loss(settings: Settings, rng: random.Random) -> None:
    path = rng.choice(_layers(settings))
    _replace(settings, (*path, "loss"), rng.choice(sorted(LOSSES.names())))
    loss = LOSSES.get(_get(settings, path)["loss"], "fuzz")
    if rng.random() < 0.7:
        _replace(settings, (*path, "loss_opts"), {rng.choice(sorted(declared_options(loss))): _value(rng)})


def set_data_option(settings: Settings, rng: random.Random) -> None:
    """Give a data key an option with any value."""
    names = ["dim", "shape", "sparse", "sparse_dim", "dtype", "dims", "dim_tags", "batch_dim_axis", "time_dim_axis",
             "feature_dim_axis", "feature_dim", "same_dim_tags_as", "available_for_inference", "vocab"]  # fmt: skip
    data = settings.get("extern_data")
    keys = [key for key, options in data.items() if isinstance(options, dict)] if isinstance(data, dict) else []
    if keys:
        data[rng.choice(keys)][rng.choice(names)] = _value(rng)


def nest(settings: Settings, rng: random.Random) -> None:
    """Move a layer into subnetworks or loops, up to 60 deep, or a value into lists."""
    if rng.random() < 0.3:
        path = rng.choice(all_places(settings))
        _replace(settings, path, _deep(_get(settings, path), rng.choice([1, 2, 60])))
        return
    path = rng.choice(_layers(settings))
    for _ in range(rng.choice([1, 1, 2, 5, 60])):
        inner = _get(settings, path)
        if rng.random() < 0.8:
            outer = {"class": "subnetwork", "from": "data", "subnetwork": {"output": inner}}
        else:
            outer = {"class": "rec", "from": "data", "unit": {"output": inner}}
        _replace(settings, path, outer)


MUTATIONS: tuple[Callable[[Settings, random.Random], None], ...] = (
    drop, retype, retype, swap, rename, set_class, set_source, set_option, set_option, set_loss, set_data_option, nest,
)  # fmt: skip


def mutated(networks: dict[str, Settings], number: int) -> tuple[str, Settings]:
    """Return the name of the network that number `number` begins with, and its mutated settings."""
    rng = random.Random(number)
    name = rng.choice(sorted(networks))
    settings = copied(networks[name])
    for _ in range(rng.choice([1, 1, 1, 2, 2, 4])):
        # a mutation may find nothing left to change
        with contextlib.suppress(KeyError, IndexError, TypeError, AttributeError):
            rng.choice(MUTATIONS)(settings, rng)
    return name, settings
