"""RASR as a server of losses and automata: child processes, shared by equal options."""

from __future__ import annotations

import atexit
import dataclasses
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import Config
from returnn_tf.config.errors import DataError, RasrDataError, RasrError, did_you_mean
from returnn_tf.config.options import above, at_least, from_options, option
from returnn_tf.config.user_code import config_in_use
from returnn_tf.logging.log import log
from returnn_tf.rasr.processes.command_line import command_words, module_words, program_words, segment_order_words
from returnn_tf.rasr.processes.for_rasr.rasr_pipe import AUTOMATON, LOSS, SERVER_NAME, VERSION
from returnn_tf.rasr.processes.process import RasrProcess

_MOST_TOLD = 10  # segments that RASR discards
_CONFIG_PREFIX = "config:"


@dataclasses.dataclass
class ServerOptions:
    """The options in ``sprint_opts``."""

    sprintExecPath: Union[str, list[str]] = option(help="the program of RASR, or a list of it and its first arguments")
    sprintConfigStr: Union[str, list[Any], Callable[..., Any]] = option(
        "", help="words for RASR: text, a function that returns text, a list of these, or 'config:name' of such a value"
    )
    minPythonControlVersion: int = option(
        2, help="refuse a RASR with an older version of its Python control", check=at_least(0)
    )
    sprintControlConfig: Optional[dict[str, Any]] = option(
        None, help="further pairs for our module in RASR; known: verbose (log the commands)"
    )
    usePythonSegmentOrder: bool = option(True, help="let RASR ask for the order of segments, for losses")
    numInstances: int = option(1, help="number of processes", check=at_least(1))
    rasr_timeout: float = option(3600.0, help="seconds to wait for an answer", check=above(0))


@dataclasses.dataclass(frozen=True)
class Automaton:
    """An automaton with the start state 0, and the last state as the only final one.

    :param edges: int64 [3, edges]: from, to, class
    :param weights: float32 [edges], minus the log of probabilities
    """

    num_states: int
    edges: NDArray[Any]
    weights: NDArray[Any]


class RasrServers:
    """A pool of RASR processes, started at the first request. Serves one request at a time.

    :param options: `ServerOptions`
    :param owner: the owning layer, for messages
    :raises ConfigError: the options are wrong
    """

    def __init__(self, options: Mapping[str, Any], *, owner: str):
        self.owner = owner
        self._opts: ServerOptions = from_options(ServerOptions, dict(options), where=owner, none_is_absent=True)
        self._given_words = _value_of_config(self._opts.sprintConfigStr, owner)
        #: equal for equal options
        self.key = repr(sorted({**options, "sprintConfigStr": self._given_words}.items()))
        self._instances: list[RasrProcess] = []
        self._lock = threading.Lock()
        self._told = 0

    def losses(
        self, tags: Sequence[str], lengths: Iterable[int], log_posteriors: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return losses and error signals; those of a segment that RASR discards are 0.

        :param tags: names of the segments [batch]
        :param lengths: frames [batch]
        :param log_posteriors: float32 [time, batch, classes]
        :return: (float32 [batch], float32 [time, batch, classes], zero in padded frames)
        :raises DataError: there is no such program, RASR has failed, or refuses a segment
        """
        frames = [int(length) for length in lengths]
        losses = np.zeros(len(tags), np.float32)
        errors = np.zeros(log_posteriors.shape, np.float32)
        with self._lock, self._failures():
            parts = _shared_out(frames, len(self._running()))

            def ask(instance: RasrProcess, rows: list[int]) -> None:
                for row in rows:
                    signal = np.ascontiguousarray(log_posteriors[: frames[row], row], np.float32)
                    loss, error = self._ask(instance, LOSS, tags[row], frames[row], signal)
                    losses[row], errors[: frames[row], row] = self._checked_loss(tags[row], loss, error, signal.shape)

            with ThreadPoolExecutor(max_workers=len(parts)) as pool:
                for result in [pool.submit(ask, instance, rows) for instance, rows in zip(self._instances, parts)]:
                    result.result()
        return losses, errors

    def automata(self, tags: Sequence[str], num_classes: int) -> list[Automaton]:
        """Return the automata of segments.

        :param tags: names of the segments [batch]
        :param num_classes: of the network
        :raises DataError: RASR has failed, has no such segment, or an automaton has other classes
        """
        answers: list[Any] = []
        with self._lock, self._failures():
            instances = self._running()
            for start in range(0, len(tags), len(instances)):
                group = list(zip(instances, tags[start : start + len(instances)]))
                for instance, tag in group:
                    instance.send(AUTOMATON, tag)
                answers += [self._answer(instance, tag) for instance, tag in group]
        return [self._checked_automaton(tag, answer, num_classes) for tag, answer in zip(tags, answers)]

    def close(self) -> None:
        """End the processes; the next request restarts them."""
        while self._instances:
            instance = self._instances.pop()
            try:
                instance.send("exit")
                instance.wait_briefly()
            except DataError:
                pass  # it has ended already
            instance.close()

    def _failures(self) -> _Failures:
        return _Failures(self)

    def _running(self) -> list[RasrProcess]:
        opts = self._opts
        while len(self._instances) < opts.numInstances:
            program = program_words(opts.sprintExecPath, owner="%s, option 'sprintExecPath'" % self.owner)
            words = command_words(self._given_words, owner="%s, option 'sprintConfigStr'" % self.owner)
            self._instances.append(self._start(program, words))
        for instance in self._instances:
            if instance.fresh:
                instance.fresh = False
                instance.send("init", SERVER_NAME, VERSION)
                answer = instance.receive("the answer to our greeting")
                if len(answer) != 3 or answer[0] != "ok" or answer[2] != VERSION:
                    raise instance.strange("it answers %.100r to version %d of our messages" % (answer, VERSION))
        return self._instances

    def _start(self, program: list[str], words: list[str]) -> RasrProcess:
        return RasrProcess(
            lambda write, read: [*program, *self._our_words(write, read), *words],
            owner=self.owner,
            timeout=self._opts.rasr_timeout,
        )

    def _our_words(self, write_fd: int, read_fd: int) -> list[str]:
        opts = self._opts
        pairs = {"c2p_fd": write_fd, "p2c_fd": read_fd, "minPythonControlVersion": opts.minPythonControlVersion}
        pairs.update(sorted((opts.sprintControlConfig or {}).items()))
        config = ",".join("%s:%s" % pair for pair in pairs.items())
        order = segment_order_words(config) if opts.usePythonSegmentOrder else []
        return ["--*.python-control-enabled=true", *module_words(config), *order]

    def _ask(self, instance: RasrProcess, *command: Any) -> Any:
        instance.send(*command)
        return self._answer(instance, command[1])

    def _answer(self, instance: RasrProcess, tag: str) -> Any:
        answer = instance.receive("its answer for segment %r" % tag, about="segment %r" % tag)
        if answer[0] != "ok":
            raise instance.strange("it answers %.100r for segment %r" % (answer, tag))
        return answer[1:]

    def _checked_loss(self, tag: str, loss: Any, error: Any, shape: tuple[int, ...]) -> tuple[float, NDArray[Any]]:
        error = np.asarray(error)
        if error.shape != shape:
            raise RasrDataError(
                "%s: the error signal of RASR for segment %r is of shape %s, but the network has %s [frames, classes]. "
                "Check that RASR has as many classes, and features of the same frame shift."
                % (self.owner, tag, list(error.shape), list(shape))
            )
        if np.isposinf(loss):
            self._told += 1
            if self._told <= _MOST_TOLD:
                more = " Others are not told of." if self._told == _MOST_TOLD else ""
                log.warn("%s: RASR discards segment %r, which has no loss then.%s" % (self.owner, tag, more))
            return 0.0, np.zeros(shape, np.float32)
        return float(loss), error

    def _checked_automaton(self, tag: str, answer: Any, num_classes: int) -> Automaton:
        num_states, num_edges, edges, weights = answer
        edges = np.asarray(edges).astype(np.int64).reshape(3, -1)
        weights = np.asarray(weights, np.float32)
        where = "%s: the automaton of RASR for segment %r" % (self.owner, tag)
        if edges.shape[1] != num_edges or len(weights) != num_edges:
            raise RasrDataError(
                "%s has %d edges of %d, and %d weights." % (where, edges.shape[1], num_edges, len(weights))
            )
        if num_edges and int(edges[:2].max()) >= num_states:
            raise RasrDataError("%s has an edge to state %d, but %d states." % (where, edges[:2].max(), num_states))
        if num_edges and int(edges[2].max()) >= num_classes:
            raise RasrDataError(
                "%s has class %d, but the network has only %d classes. Check the state tying of RASR and n_out."
                % (where, edges[2].max(), num_classes)
            )
        return Automaton(int(num_states), edges, weights)


class _Failures:
    """Ends all processes after a failure: others may still have pending answers."""

    def __init__(self, servers: RasrServers):
        self._servers = servers

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Optional[type[BaseException]], *_: Any) -> None:
        if kind is not None:
            for instance in self._servers._instances:
                instance.close()
            self._servers._instances.clear()


def _shared_out(frames: Sequence[int], count: int) -> list[list[int]]:
    """Distribute the rows over ``count`` instances, longest first, each to the least loaded instance so far."""
    parts: list[list[int]] = [[] for _ in range(count)]
    sums = [0] * count
    for row in sorted(range(len(frames)), key=lambda row: -frames[row]):
        least = sums.index(min(sums))
        parts[least].append(row)
        sums[least] += frames[row]
    return parts


def _value_of_config(given: Any, owner: str) -> Any:
    """Resolve "config:name" to a value of the config; return anything else unchanged."""
    if not isinstance(given, str) or not given.startswith(_CONFIG_PREFIX):
        return given
    name = given[len(_CONFIG_PREFIX) :]
    config = config_in_use()
    if not isinstance(config, Config) or name not in config:
        hint = did_you_mean(name, config.keys()) if isinstance(config, Config) else "There is no config."
        raise RasrError("%s, option 'sprintConfigStr': %r names no value of the config. %s" % (owner, given, hint))
    return config.typed(name)


_servers: dict[Any, RasrServers] = {}


def servers_for(options: Any, *, owner: str) -> RasrServers:
    """Return the servers for these options: the same ones for equal options.

    :param options: ``sprint_opts``
    :raises ConfigError: they are wrong
    """
    if not isinstance(options, Mapping):
        raise RasrError("%s: sprint_opts must be a dict with sprintExecPath, sprintConfigStr, ..." % owner)
    made = RasrServers(options, owner=owner)  # checks the options
    return _servers.setdefault(made.key, made)


def close_all() -> None:
    """End all processes."""
    for servers in _servers.values():
        servers.close()


atexit.register(close_all)
