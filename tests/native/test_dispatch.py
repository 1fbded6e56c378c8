"""Ops with several forms: the first form that applies runs, with what it needs; else the op itself."""

from returnn_tf.native.dispatch import form


@form(lambda size, x, *, offset=0: ("large", size, x, offset), where=lambda x, **_: x if x > 10 else None)
@form(lambda needed, x, *, offset=0: ("odd", needed, x, offset), where=lambda x, **_: x % 2 == 1)
def op(x: int, *, offset: int = 0) -> object:
    """Return what runs."""
    return "plain", x, offset


def test_first_that_applies() -> None:
    assert op(11) == ("large", 11, 11, 0)
    assert op(3, offset=2) == ("odd", True, 3, 2)
    assert op(4, offset=2) == ("plain", 4, 2)


def test_is_documented_as_the_op() -> None:
    assert op.__name__ == "op" and op.__doc__ == "Return what runs."
