"""Lengths that know their dim, and lengths of a dim: for code in configs that passes them around as tensors."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any, Callable, Optional

from returnn_tf.compat.views import size_tags
from returnn_tf.tensor import Dim
from returnn_tf.util.lazy_tf import tf

#: Attributes of a tensor: the dim whose lengths it holds; the dim that code in a config declared for its own lengths.
_DIM, _TAG = "_returnn_tf_dim", "_returnn_tf_tag"

_lookup: contextvars.ContextVar[Optional[Callable[[Any], Any]]] = contextvars.ContextVar("lengths", default=None)


@contextlib.contextmanager
def using_lengths(lookup: Callable[[Any], Any]) -> Iterator[None]:
    """Look up the lengths of dims for `lengths_of` by this function within the context."""
    token = _lookup.set(lookup)
    try:
        yield
    finally:
        _lookup.reset(token)


def lengths_of(dim: Any) -> Optional[Any]:
    """Return the lengths of a dynamic dim, int32 [batch]; None where no ops are built."""
    lookup = _lookup.get()
    return None if lookup is None else lookup(dim)


def set_dim(lengths: Any, dim: Any) -> None:
    """Attach the dim of lengths to their tensor."""
    setattr(lengths, _DIM, dim)


def dim_of(lengths: Any) -> Optional[Any]:
    """Return the dim that lengths are known to belong to, or None."""
    return getattr(lengths, _DIM, None)


def set_tag(lengths: Any, dim: Any) -> None:
    """Attach a dim to lengths computed by a config, which become its lengths once they are set on a template."""
    setattr(lengths, _TAG, dim)


def tag_of(lengths: Any) -> Optional[Any]:
    """Return the dim that `set_tag` gave to the lengths, or None."""
    return getattr(lengths, _TAG, None)


@dataclasses.dataclass(frozen=True)
class LengthsOf:
    """Stands for the lengths of a dim while the network is planned, when there is no tensor of them yet."""

    dim: Dim

    @property
    def _returnn_tf_dim(self) -> Dim:
        """Return the dim, by the name that `size_tags` gives it on tensors."""
        return self.dim


def lengths_with_dim(lengths: Any, dim: Dim) -> Any:
    """Return a copy of the lengths that remembers their dim."""
    lengths = tf.identity(lengths)
    size_tags.set_dim(lengths, dim)
    return lengths


def dim_of_lengths(lengths: Any) -> Optional[Dim]:
    """Return the dim that the lengths belong to; None if the user computed them."""
    return size_tags.dim_of(lengths)
