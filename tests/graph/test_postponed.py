"""`PostponedValues`: ops are emitted for the values that are read, once, outside of the loop whose body reads them."""

from __future__ import annotations

from typing import Any

import pytest

from returnn_tf.graph.postponed import Postponed, PostponedValues
from returnn_tf.util.lazy_tf import tf


def types_of(graph: Any) -> list[str]:
    return [op.type for op in graph.get_operations()]


def test_emitted_once_when_read() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.constant(2.0)
        values = PostponedValues(
            {"x": x, "exp": Postponed(lambda: tf.exp(x)), "log": Postponed(lambda: tf.math.log(x))}
        )
        copy = PostponedValues(values)
        copy["exp again"] = Postponed(lambda: values["exp"])
        assert "exp" in copy and list(copy) == ["x", "exp", "log", "exp again"] and len(values) == 3
        assert types_of(graph) == ["Const"]
        assert copy["exp again"] is values["exp"] is copy.get("exp") and values["x"] is x
        assert types_of(graph) == ["Const", "Exp"]
        del copy["log"]
        assert dict(copy.items()) == {"x": x, "exp": values["exp"], "exp again": values["exp"]}
        assert types_of(graph) == ["Const", "Exp"] and copy.get("log") is None
        with pytest.raises(KeyError):
            copy["log"]


def test_emitted_outside_of_a_loop_that_reads_it() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.constant(2.0)
        values = PostponedValues({"exp": Postponed(lambda: tf.exp(x))})

        def body(step: Any, total: Any) -> Any:
            return step + 1, total + values["exp"]

        _, total = tf.while_loop(lambda step, _: step < 3, body, [0, 0.0])
        assert types_of(graph).count("Exp") == 1
        with tf.compat.v1.Session() as session:
            assert session.run(total) == pytest.approx(3 * 7.389056, rel=1e-6)
