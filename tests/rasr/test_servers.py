"""RASR as a server of losses and automata: recorded answers and command lines, several processes, failures."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.config.user_code import using_config
from returnn_tf.rasr.processes.servers import RasrServers, servers_for
from tests.datasets.recorded import by_name
from tests.rasr.test_extern import DATA, EMULATOR, comparable, given_words
from tests.waiting import LONG

CASES = by_name(json.loads((DATA / "rasr_loss.json").read_text(encoding="utf8"))["cases"])
PROGRAM = [sys.executable, EMULATOR]


def servers_of(words="", *, mode="loop", fail="", **options):
    """Return servers with the stand-in as program."""
    words = "--fake.mode=%s '--fake.fail=%s' %s" % (mode, fail, words)
    given = {"sprintExecPath": PROGRAM, "sprintConfigStr": words, "rasr_timeout": LONG, **options}
    return RasrServers(given, owner="Loss 'x'")


@pytest.mark.parametrize("name", CASES)
def test_recorded(name, folder):
    case = CASES[name]
    words = case["sprint_opts"]["sprintConfigStr"]
    # a stand-in that answers without our module has nothing that ours lacks
    loops = "iter" if "loss" in case else "loop"
    options = {**case["sprint_opts"], "sprintExecPath": PROGRAM}
    options["sprintConfigStr"] = words.replace("mode=direct", "mode=" + loops)
    servers = RasrServers(options, owner="x")
    if "loss" in case:
        expected, arrays = case["loss"], np.load(DATA / "rasr_loss.npz")
        losses, errors = servers.losses(expected["tags"], expected["seq_lens"], arrays[name + "/log_posteriors"])
        assert losses.dtype == errors.dtype == np.float32
        np.testing.assert_allclose(losses, expected["loss"], rtol=1e-6)
        np.testing.assert_allclose(errors, arrays[name + "/error_signal"], atol=1e-6)
    if "automata" in case:
        check_automata(servers.automata(case["automata"]["tags"], 10), case["automata"])
    servers.close()
    given = [[comparable(word) for word in line] for line in given_words(Path("loss.log"))]
    assert given == [[comparable(word).replace("direct", loops) for word in line] for line in case["argv"]]


def check_automata(automata, expected):
    """Joined as they were recorded: states are numbered through, the fourth row is the number in the batch."""
    starts = np.cumsum([0] + [automaton.num_states for automaton in automata])
    rows = [
        np.concatenate([one.edges[:2] + start, one.edges[2:], np.full((1, one.edges.shape[1]), number)])
        for number, (one, start) in enumerate(zip(automata, starts))
    ]
    np.testing.assert_array_equal(np.concatenate(rows, axis=1), expected["edges"])
    np.testing.assert_array_equal([starts[:-1], starts[1:] - 1], expected["start_end_states"])
    np.testing.assert_allclose(np.concatenate([one.weights for one in automata]), expected["weights"])


def batch(lengths, dim=4, seed=1):
    """Log posteriors [time, batch, dim], with what is not zero in the padding."""
    x = np.random.RandomState(seed).normal(size=(max(lengths), len(lengths), dim))
    return (x - np.log(np.exp(x).sum(-1, keepdims=True))).astype("float32")


def expected_of(log_posteriors, lengths):
    losses = [-log_posteriors[:length, row, 0].sum() for row, length in enumerate(lengths)]
    errors = np.exp(log_posteriors)
    errors[:, :, 0] -= 1
    for row, length in enumerate(lengths):
        errors[length:, row] = 0
    return losses, errors


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["iter", "layer"])
def test_losses_do_not_depend_on_the_number_of_processes(mode, folder):
    lengths = [3, 7, 1, 5, 7]
    posteriors = batch(lengths)
    for instances in (1, 3):
        servers = servers_of("--fake.log=log%d" % instances, mode=mode, numInstances=instances)
        for _ in range(2):
            losses, errors = servers.losses(list("abcde"), lengths, posteriors)
            expected = expected_of(posteriors, lengths)
            np.testing.assert_allclose(losses, expected[0], rtol=1e-5)
            np.testing.assert_allclose(errors, expected[1], atol=1e-6)
        assert len(given_words(Path("log%d" % instances))) == instances
        servers.close()


@pytest.mark.parametrize("mode, fail", [("iter", ""), ("iter", "bytes"), ("layer", ""), ("iter", "skip")])
def test_discarded_segments_have_no_loss(mode, fail, folder, caplog):
    servers = servers_of(mode=mode, fail=fail)
    posteriors = batch([3, 2])
    losses, errors = servers.losses(["discard", "b"], [3, 2], posteriors)
    expected = expected_of(posteriors, [0, 2 if fail != "skip" else 0])
    np.testing.assert_allclose(losses, [0, expected[0][1]], rtol=1e-5)
    np.testing.assert_allclose(errors[:, 1], expected[1][:, 1], atol=1e-6)
    assert not errors[:, 0].any()
    assert "RASR discards segment 'discard', which has no loss then" in caplog.text
    servers.close()


def test_automata_of_more_segments_than_processes(folder):
    servers = servers_of(numInstances=2)
    automata = servers.automata(["abc", "a", "ab"], 3)
    assert [one.num_states for one in automata] == [4, 2, 3]
    np.testing.assert_array_equal(automata[1].edges, [[0, 1], [1, 1], [0, 0]])
    servers.close()


@pytest.mark.parametrize(
    "ask, fail, options, text",
    [
        ("automata", "", {}, "error in RASR for segment 'bad': RuntimeError: no such segment"),
        ("automata", "edges", {}, "the automaton of RASR for segment 'ab' has an edge to state 1000, but 3 states"),
        ("classes", "", {}, "the automaton of RASR for segment 'ab' has class 1, but the network has only 1 classes"),
        ("losses", "", {}, "computes no losses with --.*=python-control-loop; use iterate-corpus"),
        ("losses", "", {"mode": "iter"}, "segment 'bad': RuntimeError: no such segment"),
        ("losses", "shape", {"mode": "iter"}, r"segment 'ab' is of shape \[1, 4\], but .* \[2, 4\]"),
        ("losses", "features", {"mode": "iter"}, "--\\*.extract-features=false"),
        ("automata", "start", {}, "RASR ended before .*, with exit code 3"),
        ("automata", "silent", {"rasr_timeout": 0.3}, "for 0.3 s it has not sent the answer to our greeting"),
        ("large", "hang before reading", {"rasr_timeout": 0.6, "mode": "iter"}, "RASR hangs"),
        ("automata", "", {"words": "--fake.version=3", "minPythonControlVersion": 4}, "has version 3 .*Version is 4"),
        ("automata", "", {"sprintExecPath": "./nothing"}, "sprintExecPath': the program './nothing' does not exist"),
    ],
)  # fmt: skip
def test_failures(ask, fail, options, text, folder):
    start = time.monotonic()
    servers = servers_of(fail=fail, **options)
    with pytest.raises(DataError, match="^Loss 'x'(.|\n)*" + text):
        if ask == "losses":
            servers.losses(["ab", "bad"], [2, 2], batch([2, 2]))
        elif ask == "large":
            servers.losses(["ab"], [500], batch([500], dim=1000))
        else:
            servers.automata(["ab"] if ask == "classes" or fail else ["ab", "bad"], 1 if ask == "classes" else 10)
    assert time.monotonic() - start < LONG
    if ask == "automata" and not fail and not options:
        assert servers.automata(["a"], 10)  # a fresh RASR answers again
    servers.close()


def test_equal_options_share_processes(folder):
    words = ["--x=1", lambda: "--y=2"]
    options = {"sprintExecPath": PROGRAM, "sprintConfigStr": words}
    assert servers_for(options, owner="a") is servers_for(dict(options), owner="b")
    assert servers_for({**options, "numInstances": 2}, owner="a") is not servers_for(options, owner="a")
    for value in ([1], [2]):
        with using_config(Config({"get_words": value})):
            named = servers_for({**options, "sprintConfigStr": "config:get_words"}, owner="a")
            assert named._given_words == value


@pytest.mark.parametrize(
    "options, text",
    [
        ({}, "sprintExecPath"),
        ({"sprintExecPath": "x", "sprintConfigString": ""}, "Did you mean 'sprintConfigStr'"),
        ({"sprintExecPath": "x", "numInstances": 0}, "numInstances"),
        ({"sprintExecPath": "x", "sprintConfigStr": "config:get_word"}, "names no value of the config. .*'get_words'"),
    ],
)
def test_mistakes_in_options(options, text):
    with using_config(Config({"get_words": 1})), pytest.raises(ConfigError, match="^Loss 'x'.*" + text):
        servers_for(options, owner="Loss 'x'")
