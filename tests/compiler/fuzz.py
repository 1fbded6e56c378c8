"""Plans mutated networks: each either works or is refused with a `ConfigError` that begins with one short line.

    python -m tests.compiler.fuzz [--count 20000] [--start 0]

The networks are those of the recorded cases and of the examples of all layers. The number of a network is the seed of
its mutations, so that every failure can be repeated alone: `--start NUMBER --count 1`. Failures with the same exception
at the same line are shown once, with the network reduced to what still fails. TensorFlow is needed for code of configs
only; about 1 ms for each.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import faulthandler
import importlib
import io
import pprint
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import returnn_tf
from returnn_tf.compiler.describe import describe_plan
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from tests.compiler.mutations import ROOTS, Settings, all_places, change_at, copied, corpus, mutated, without

#: Seconds of the CPU for one network, which other programs do not shorten, and MiB for all.
TIME_LIMIT = 5
MEMORY_LIMIT = 8192
_LONGEST_LINE = 1000
Mutate = Callable[[dict[str, Settings], int], tuple[str, Settings]]
_PACKAGE = str(Path(returnn_tf.__file__).parent) + "/"


class TooSlow(BaseException):
    """Raised by the alarm; no `Exception`, so that nothing on the way catches it."""


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
    def signature(self) -> tuple[str, str]:
        """Return what equal failures have in common."""
        return (self.kind, self.place)

    def __str__(self) -> str:
        shown = {k: v for k, v in self.settings.items() if k in ROOTS or not hasattr(v, "__module__")}
        return "%s at %s: %s\n  number %d, from %s:\n%s" % (
            self.kind, self.place, self.message[:300], self.number, self.name, pprint.pformat(shown, width=110)[:3000],
        )  # fmt: skip


def plan(settings: Settings, number: int) -> None:
    """Plan and describe as `returnn-tf check` does, for training, evaluation or search."""
    flags = {"train": number % 3 == 1, "search": number % 3 == 2}
    describe_plan(plan_from_config(Config(copied(settings)), **flags))


Action = Callable[[Settings, int], None]


def check(number: int, name: str, settings: Settings, action: Optional[Action] = None) -> Optional[Failure]:
    """Do something with the settings, by default `plan`; return what is wrong."""
    signal.setitimer(signal.ITIMER_PROF, TIME_LIMIT)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            (action or plan)(settings, number)
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
        signal.setitimer(signal.ITIMER_PROF, 0)


def _place(exc: BaseException) -> str:
    """Return file and line of the innermost frame that is in the package."""
    frames = [f for f in traceback.extract_tb(exc.__traceback__) if f.filename.startswith(_PACKAGE)]
    return "%s:%s" % (frames[-1].filename[len(_PACKAGE) :], frames[-1].lineno) if frames else "?"


def reduced(failure: Failure, budget: int = 400, action: Optional[Action] = None) -> Failure:
    """Drop whatever the same failure does not need."""
    best, changed = failure, True
    if failure.kind == "TooSlow":
        budget = 10
    while changed and budget > 0:
        changed = False
        for path in sorted(all_places(best.settings), key=len):
            settings = copied(best.settings)
            with contextlib.suppress(KeyError, IndexError, TypeError):
                change_at(settings, path, without)
                budget -= 1
                smaller = check(failure.number, failure.name, settings, action)
                if smaller is not None and smaller.signature == failure.signature:
                    best, changed = smaller, True
                    break
            if budget <= 0:
                break
    return best


def run(
    networks: dict[str, Settings], start: int, count: int, mutate: Mutate = mutated, action: Optional[Action] = None
) -> dict[tuple[str, str], list[Failure]]:
    """Check networks number `start` to `start + count - 1`; return the failures by signature, the first one reduced."""
    found: dict[tuple[str, str], list[Failure]] = collections.defaultdict(list)
    for number in range(start, start + count):
        name, settings = mutate(networks, number)
        # for what does not come back to Python at all, or waits for something
        faulthandler.dump_traceback_later(60 * TIME_LIMIT, exit=True)
        failure = check(number, name, settings, action)
        if failure is not None:
            same = found[failure.signature]
            same.append(failure if same else reduced(failure, action=action))
    faulthandler.cancel_dump_traceback_later()
    return found


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Limit time and memory within the context, and turn warnings into errors."""

    def too_slow(*_: Any) -> None:
        raise TooSlow("more than %d s" % TIME_LIMIT)

    before = signal.signal(signal.SIGPROF, too_slow)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT * 2**20, hard))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # expressions in configs
            warnings.simplefilter("ignore", SyntaxWarning)
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def main(
    arguments: Optional[Sequence[str]] = None,
    *,
    settings: Callable[[], dict[str, Settings]] = corpus,
    mutate: Mutate = mutated,
    action: Action = plan,
    what: str = "networks",
    count: int = 20000,
) -> int:
    """Run the fuzz of the command line, by default that of networks.

    :param arguments: of the command line
    :param settings: returns what the mutations begin with
    :param action: what is tried
    :param what: for the summary
    :param count: default of ``--count``
    """
    parser = argparse.ArgumentParser(description="Tries mutated %s" % what)
    parser.add_argument("--count", type=int, default=count, help="number of %s" % what)
    parser.add_argument("--start", type=int, default=0, help="number of the first")
    args = parser.parse_args(arguments)
    networks = settings()
    importlib.import_module("tensorflow")  # some networks need it, and its size depends on the machine
    before = _peak_memory()
    with limits():
        found = run(networks, args.start, args.count, mutate, action)
    for failures in sorted(found.values(), key=len):
        print("%d times: %s\n" % (len(failures), failures[0]))
    total, grown = sum(map(len, found.values())), _peak_memory() - before
    print("%d %s, %d failures of %d kinds, grown by %d MiB" % (args.count, what, total, len(found), grown))
    return 1 if found else 0


def _peak_memory() -> float:
    """Return the peak of this process in MiB; unlike ru_maxrss, without that of the process that started it."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    sys.exit(main())
