"""Self-tests of native ops: what they compare, and what they notice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.native import gru, gru_ops, library, lstm, lstm_ops, mdlstm, mdlstm_ops
from returnn_tf.native.comparison import compare_recurrence, compare_rounded_recurrence
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.scans import slstm
from returnn_tf.native.sources import OPS
from returnn_tf.util.lazy_tf import tf


def _formula(x: Any, h: Any, **_: Any) -> list[Any]:
    return [np.tanh(x) + h]


def _op(error: float, factor: float) -> Any:
    """Return the op, with an error in its results, and with a factor of its gradient."""

    def run(x: Any, h: Any, **_: Any) -> list[Any]:
        @tf.custom_gradient
        def compute(x: Any, h: Any) -> Any:
            y = tf.tanh(x)
            return y + h + error, lambda dy: (factor * (1 - y * y) * dy, factor * tf.reduce_sum(dy, axis=0))

        return [compute(x, h)]

    return run


def _shapes(frames: int, batch: int, n: int) -> list[tuple[int, ...]]:
    return [(frames, batch, n), (batch, n)]


@pytest.mark.parametrize(
    "compare, error, factor", [(compare_recurrence, 1e-6, 1.0), (compare_rounded_recurrence, 0.05, 1.03)]
)
def test_errors_within_limits(compare: Any, error: float, factor: float) -> None:
    """Of float, and of factors rounded to bfloat16."""
    compare("sum", _op(error, factor), _formula, _shapes)


@pytest.mark.parametrize("compare", [compare_recurrence, compare_rounded_recurrence])
@pytest.mark.parametrize(
    "error, factor, text", [(0.5, 1.0, "results"), (0.0, -1.0, "gradients"), (0.0, 0.0, "gradients")]
)
def test_errors_beyond_limits(compare: Any, error: float, factor: float, text: str) -> None:
    with pytest.raises(NativeOpError, match="the sum.* that was compiled gives wrong %s" % text):
        compare("sum", _op(error, factor), _formula, _shapes)


@pytest.mark.parametrize(
    "name, module, find",
    [
        ("lstm", lstm, lstm_ops),
        ("gru", gru, gru_ops),
        ("slstm", slstm, slstm.slstm_ops),
        ("mdlstm", mdlstm, lambda _: mdlstm_ops()),
    ],
)
def test_the_library_at_hand_is_tested(name: str, module: Any, find: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the one that networks use: it may be for other machines, and none may be loaded."""
    ops = find(tf.float32)
    assert ops is not None, "the native op has to compile where the tests run"
    seen: list[str] = []
    monkeypatch.setattr(library, "_loaded", {})
    monkeypatch.setattr(module, "runs_on_gpu", lambda name: False)
    of = "" if name == "mdlstm" else "_recurrence"  # of images
    monkeypatch.setattr(module, "compare" + of, lambda *_: seen.append("floats"))
    monkeypatch.setattr(module, "compare_rounded" + of, lambda *_: seen.append("rounded"))
    module.self_test(ops)
    rounds = getattr(library.c_functions(ops), "rtf_%s_rounds" % name)()
    assert "floats" in seen and seen.count("rounded") == rounds * seen.count("floats")


@pytest.mark.parametrize("name", [name for name, _ in OPS.items()])
def test_each_op_is_tested_before_it_can_be_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its file is new: its test knows it by what it is given alone."""
    monkeypatch.setattr(library, "_loaded", {})
    monkeypatch.setattr(library, "was_tested", lambda *_: False)
    monkeypatch.setattr(library, "note_tested", lambda *_: None)
    monkeypatch.setattr(library, "devices", lambda name: ["CPU:0"])
    tested: list[Any] = []

    def self_test(ops: Any) -> None:
        tested.append(ops)
        OPS[name].self_test(ops)

    assert [library.load(name, self_test)] == tested
