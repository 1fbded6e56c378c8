"""Plans mutated networks: each either works or is refused with a `ConfigError` that begins with one short line.

    python -m tests.network.fuzz [--count 20000] [--start 0]

The networks are those of the recorded cases and of the examples of all layers. The number of a network is the seed of
its mutations, so that every failure can be repeated alone: `--start NUMBER --count 1`. Failures with the same exception
at the same line are shown once, with the network reduced to what still fails. Needs no TensorFlow, about 1 ms for each.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import faulthandler
import io
import pprint
import random
import resource
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from returnn_tf.config import Config, ConfigError
from returnn_tf.config.options import declared_options
from returnn_tf.graph.registry import LAYERS, LOSSES
from returnn_tf.network.network import plan_from_config
from tests.layers.examples import CLASSES, example_settings
from tests.parity import ROOT

#: Seconds for one network, and MiB for all.
TIME_LIMIT = 5
MEMORY_LIMIT = 8192
_LONGEST_LINE = 2000
_ROOTS = ("network", "extern_data")

Settings = Dict[str, Any]
#: Keys and indices that lead from the settings to a value.
Path_ = Tuple[Any, ...]


class TooSlow(BaseException):
    """Raised by the alarm; no `Exception`, so that nothing on the way catches it."""


def _deep(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


VALUES: Tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 2**40, -(2**70), 0.5, 1.0, -0.5, 1e30, float("nan"), float("inf"),
    "", "x", "data", "data:classes", "T", "F", "B", "output", "base:data", "prev:output", "ä\n\0", "1 +", "x" * 500,
    [], [[]], [None], [1], ["x"], [1, "x"], (), (1, 2), (None,), ("F", "T"), {}, {"x": 1}, {1: 2}, {"class": "linear"},
    [{}], {"x": {"class": "copy"}}, b"data", 1j, object, len, _deep("data", 150),
)  # fmt: skip


# --- the networks to begin with ---


def corpus() -> Dict[str, Settings]:
    """Return the settings of all recorded cases and examples by name."""
    result = {}
    for path in sorted(ROOT.glob("*/*.config")):
        config = Config.from_file(str(path))
        result["%s/%s" % (path.parent.name, path.stem)] = {key: config.typed(key) for key in config.keys()}
    result.update((name, example_settings(name)) for name in CLASSES)
    return {name: settings for name, settings in result.items() if isinstance(settings.get("network"), dict)}


def _copy(value: Any) -> Any:
    """Copy the containers, but neither dims nor functions."""
    if isinstance(value, dict):
        return {k: _copy(v) for k, v in value.items()}
    return type(value)(map(_copy, value)) if type(value) in (list, tuple) else value


# --- places in the settings ---


def _places(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Yield the paths of all values below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, inner in items:
        yield (*path, key)
        if len(path) < 20:
            yield from _places(inner, (*path, key))


def _get(settings: Any, path: Path_) -> Any:
    for key in path:
        settings = settings[key]
    return settings


def _change(settings: Settings, path: Path_, change: Callable[[Any, Any], Any]) -> None:
    """Replace the container of a place by what a function makes of it and the last key; tuples stay tuples."""
    *parents, last = path
    container = _get(settings, tuple(parents))
    changed = change(list(container) if isinstance(container, tuple) else container, last)
    if isinstance(container, tuple):
        _change(settings, tuple(parents), lambda outer, key: _set(outer, key, tuple(changed)))


def _set(container: Any, key: Any, value: Any) -> Any:
    container[key] = value
    return container


def _drop(container: Any, key: Any) -> Any:
    del container[key]
    return container


def _replace(settings: Settings, path: Path_, value: Any) -> None:
    _change(settings, path, lambda container, key: _set(container, key, value))


def _value(rng: random.Random) -> Any:
    return _copy(rng.choice(VALUES))


# --- mutations; each changes the settings in place ---


def _all_places(settings: Settings) -> List[Path_]:
    return [(root, *path) for root in _ROOTS for path in _places(settings.get(root))] + [(root,) for root in _ROOTS]


def _layers(settings: Settings) -> List[Path_]:
    """Paths of all dicts with a class; if there is none any more, of any dict."""
    dicts = [path for path in _all_places(settings) if isinstance(_get(settings, path), dict)]
    return [path for path in dicts if "class" in _get(settings, path)] or dicts


def drop(settings: Settings, rng: random.Random) -> None:
    _change(settings, rng.choice(_all_places(settings)), _drop)


def retype(settings: Settings, rng: random.Random) -> None:
    _replace(settings, rng.choice(_all_places(settings)), _value(rng))


def swap(settings: Settings, rng: random.Random) -> None:
    """Put the value of another place here."""
    places = _all_places(settings)
    _replace(settings, rng.choice(places), _copy(_get(settings, rng.choice(places))))


def rename(settings: Settings, rng: random.Random) -> None:
    """Give a key another name: a slip of the keyboard, or one of another type."""
    keyed = [path for path in _all_places(settings) if isinstance(_get(settings, path[:-1]), dict)]
    path = rng.choice(keyed)
    slip = str(path[-1]) + "s" if rng.random() < 0.5 else rng.choice([1, None, "", "a/b", "data", "output", "prev:x"])
    value = _get(settings, path)
    _change(settings, path, lambda container, key: _set(_drop(container, key), slip, value))


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
        path = rng.choice(_all_places(settings))
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


MUTATIONS: Tuple[Callable[[Settings, random.Random], None], ...] = (
    drop, retype, retype, swap, rename, set_class, set_source, set_option, set_option, set_loss, set_data_option, nest,
)  # fmt: skip


def mutated(networks: Dict[str, Settings], number: int) -> Tuple[str, Settings]:
    """Return the name of the network that number `number` begins with, and its mutated settings."""
    rng = random.Random(number)
    name = rng.choice(sorted(networks))
    settings = _copy(networks[name])
    for _ in range(rng.choice([1, 1, 1, 2, 2, 4])):
        # a mutation may find nothing left to change
        with contextlib.suppress(KeyError, IndexError, TypeError, AttributeError):
            rng.choice(MUTATIONS)(settings, rng)
    return name, settings


# --- checking ---


@dataclasses.dataclass
class Failure:
    """What planning did wrong with some settings."""

    number: int
    name: str
    settings: Settings
    kind: str
    place: str
    message: str

    @property
    def signature(self) -> Tuple[str, str]:
        """What equal failures have in common."""
        return (self.kind, self.place)

    def __str__(self) -> str:
        shown = {key: self.settings[key] for key in _ROOTS if key in self.settings}
        return "%s at %s: %s\n  number %d, from %s:\n%s" % (
            self.kind, self.place, self.message[:300], self.number, self.name, pprint.pformat(shown, width=110)[:3000],
        )  # fmt: skip


def check(number: int, name: str, settings: Settings) -> Optional[Failure]:
    """Plan once, for training, evaluation or search; return what is wrong."""
    flags = {"train": number % 3 == 1, "search": number % 3 == 2}
    signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            plan_from_config(Config(_copy(settings)), **flags)
        return None
    except ConfigError as exc:
        line = str(exc).partition("\n")[0]
        if line.strip() and len(line) <= _LONGEST_LINE:
            return None
        return Failure(number, name, settings, "unfit message", _place(exc), "%d characters: %s" % (len(line), line))
    except (Exception, TooSlow) as exc:
        message = str(exc).partition("\n")[0]
        # where it hangs or recurses differs from run to run
        place = "" if isinstance(exc, (TooSlow, RecursionError, MemoryError)) else _place(exc)
        return Failure(number, name, settings, type(exc).__name__, place, message)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _place(exc: BaseException) -> str:
    """Return file and line of the innermost frame that is in the package."""
    frames = [f for f in traceback.extract_tb(exc.__traceback__) if "returnn_tf" in f.filename]
    if not frames:
        return "?"
    _, _, file = frames[-1].filename.rpartition("returnn_tf/")
    return "%s:%s" % (file, frames[-1].lineno)


def reduced(failure: Failure, budget: int = 400) -> Failure:
    """Drop whatever the same failure does not need."""
    best, changed = failure, True
    if failure.kind == "TooSlow":
        budget = 10
    while changed and budget > 0:
        changed = False
        for path in sorted(_all_places(best.settings), key=len):
            settings = _copy(best.settings)
            with contextlib.suppress(KeyError, IndexError, TypeError):
                _change(settings, path, _drop)
                budget -= 1
                smaller = check(failure.number, failure.name, settings)
                if smaller is not None and smaller.signature == failure.signature:
                    best, changed = smaller, True
                    break
            if budget <= 0:
                break
    return best


def run(networks: Dict[str, Settings], start: int, count: int) -> Dict[Tuple[str, str], List[Failure]]:
    """Check networks number `start` to `start + count - 1`; return the failures by signature, the first one reduced."""
    found: Dict[Tuple[str, str], List[Failure]] = collections.defaultdict(list)
    for number in range(start, start + count):
        name, settings = mutated(networks, number)
        # for what does not come back to Python at all
        faulthandler.dump_traceback_later(10 * TIME_LIMIT, exit=True)
        failure = check(number, name, settings)
        if failure is not None:
            same = found[failure.signature]
            same.append(failure if same else reduced(failure))
    faulthandler.cancel_dump_traceback_later()
    return found


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Limit time and memory, and turn warnings into errors."""

    def too_slow(*_: Any) -> None:
        raise TooSlow("more than %d s" % TIME_LIMIT)

    signal.signal(signal.SIGALRM, too_slow)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT * 2**20, hard))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # expressions in configs
        warnings.simplefilter("ignore", SyntaxWarning)
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=20000, help="number of networks")
    parser.add_argument("--start", type=int, default=0, help="number of the first")
    args = parser.parse_args()
    with limits():
        found = run(corpus(), args.start, args.count)
    for failures in sorted(found.values(), key=len):
        print("%d times: %s\n" % (len(failures), failures[0]))
    # unlike ru_maxrss, without the memory of the process that started this one
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    peak = int(line.split()[1]) / 1024
    total = sum(map(len, found.values()))
    print("%d networks, %d failures of %d kinds, peak %d MiB" % (args.count, total, len(found), peak))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
