"""Reads datasets of users, written for RETURNN's interface, as streams."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import CodeDataError, CodeError, ConfigError, DataError
from returnn_tf.config.options import option
from returnn_tf.config.user_code import error_in_config
from returnn_tf.datasets.core import seq_order as orders
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.base_options import BaseOptions
from returnn_tf.datasets.core.data_spec import DataSpec, Example, checked_fraction
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.stream import StreamDataset


@register_dataset()
class UserDataset(StreamDataset):
    """The sequences of a dataset of a user, which has RETURNN's interface: a class and its options, or an object.

    A config gives the class itself, ``{"class": MyDataset, ...}``, or the object. The class derives from
    ``CachedDataset2`` or ``GeneratingDataset``, or implements the interface of RETURNN's ``Dataset``.

    >>> from returnn_tf.datasets import Dataset
    >>> from returnn_tf.compat.user_datasets.cached import CachedDataset2
    >>> from returnn_tf.compat.user_datasets.cached import DatasetSeq
    >>> class Squares(CachedDataset2):
    ...     def __init__(self, count, **kwargs):
    ...         super().__init__(**kwargs)
    ...         self.count = count
    ...         self.num_inputs, self.num_outputs = 1, {"data": (1, 2)}
    ...
    ...     def _collect_single_seq(self, seq_idx):
    ...         return DatasetSeq(seq_idx, np.full((2, 1), seq_idx**2)) if seq_idx < self.count else None
    >>> [int(seq.data["data"][0, 0]) for seq in Dataset.from_config({"class": Squares, "count": 4}).sequences(epoch=1)]
    [0, 1, 4, 9]
    """

    takes = frozenset(("seq_list", "seq_order"))
    takes_default_order = True
    makes_order = True
    makes_shards = True

    @dataclass
    class Options(Dataset.Options):
        user: Any = option(help="the class, or the dataset itself")
        user_options: Optional[dict[str, Any]] = option(None, help="options for the class")

    def setup(self) -> None:
        """Make the user's dataset, and initialise it."""
        user = self.opts.user
        if isinstance(user, type):
            common = {name: value for name, value in self.given.items() if name in BaseOptions.__dataclass_fields__}
            user = _made(user, {**common, **(self.opts.user_options or {})}, self._owner())
        user.initialize()
        self.user = user
        self._reading = 0

    def _owner(self) -> str:
        user = self._given.get("user")
        cls = user if isinstance(user, type) else type(user)
        return "dataset %r (%s)" % (self.name, cls.__name__)

    @staticmethod
    def parse_ordering(text: Any) -> orders.Ordering:
        """Return the order of the corpus: what the option means is up to the user's class."""
        return orders.Ordering("default")

    def make_specs(self) -> dict[str, DataSpec]:
        """Return the format that the user's dataset declares, after its first sequence is loaded."""
        first = self.first_sequence()
        return {key: self._spec(key, array) for key, array in first.data.items()}

    def _spec(self, key: str, array: NDArray[Any]) -> DataSpec:
        user = self.user
        declared = key in user._declared() or (key == "data" and user.num_inputs)
        sparse = bool(user.is_data_sparse(key))
        dim = user.get_data_dim(key) if declared else int(array.shape[-1]) if array.ndim > 1 else 0
        shape = tuple(user.get_data_shape(key)) if declared else tuple(array.shape[1:])
        if array.ndim != len(shape) + 1 and array.ndim:
            raise CodeError(
                "%s: num_outputs declares %d axes for key %r, but the first sequence has %d: %s"
                % (self._owner(), len(shape) + 1, key, array.ndim, list(array.shape))
            )
        dtype = "object" if array.dtype.kind in "OSU" else str(user.get_data_dtype(key))
        names = (user.labels or {}).get(key)
        if not sparse and array.ndim == 1:
            dim = dim or 1
        return DataSpec(
            dim=int(dim or 0),
            ndim=array.ndim,
            dtype=dtype,
            shape=shape if array.ndim else (),
            labels=None if names is None else tuple(names),
        )

    @property
    def num_inputs(self) -> int:
        """Return the declared number of inputs, else the dim of "data"."""
        return int(self.user.num_inputs) if self.user.num_inputs else super().num_inputs

    @property
    def target_list(self) -> list[str]:
        """Return the targets of the user's dataset."""
        assert self.data_specs is not None
        return [key for key in self.user.get_target_list() if key in self.data_specs]

    @property
    def num_seqs(self) -> Optional[int]:
        """Return None: what the user's dataset knows is the number in an epoch."""
        return None

    def expected_num_seqs(self, epoch: int) -> Optional[int]:
        """Return the number of sequences that the user's dataset states or estimates."""
        estimate = self.user.estimated_num_seqs
        return None if estimate is None or estimate == float("inf") else int(estimate)

    @property
    def endless(self) -> bool:
        """Return whether the user's dataset says that it has infinitely many sequences."""
        return getattr(self.user, "_count", None) == float("inf")

    def stream(self, epoch: int, **how: Any) -> Iterator[Example]:
        """Yield the sequences of an epoch."""
        failed = False
        try:
            yield from self._sequences_of_user(epoch, how)
        except Exception:
            failed = True
            raise
        finally:
            finish = getattr(self.user, "finish_epoch", None)
            if finish is not None:
                with contextlib.suppress(Exception) if failed else self._errors_of("finish_epoch"):
                    finish()  # the first error is the cause

    @contextlib.contextmanager
    def _errors_of(self, name: str) -> Iterator[None]:
        """Add the name of a function of the user and its place in the config to its errors."""
        try:
            yield
        except (ConfigError, DataError):
            raise
        except Exception as exc:
            text = error_in_config(exc) or "%s: %s" % (type(exc).__name__, exc)
            raise CodeDataError("%s: %s: %s" % (self._owner(), name, text)) from exc

    def _sequences_of_user(self, epoch: int, how: Mapping[str, Any]) -> Iterator[Example]:
        user = self.user
        self._reading += 1
        reading = self._reading
        user.init_seq_order(epoch=epoch, **how)
        shards = 1 if user.makes_shards or how else self.opts._num_shards
        wanted = how.get("seq_list")
        for index in itertools.count():
            if self._reading != reading:
                raise CodeDataError("%s is read by two at the same time" % self._owner())
            if not user.is_less_than_num_seqs(index):
                return
            user.load_seqs(index, index + 1)
            if index % shards != (self.opts._shard_index if shards > 1 else 0):
                continue
            data = {key: np.asarray(user.get_data(index, key)) for key in user.get_data_keys()}
            tag = str(user.get_tag(index))
            if wanted is not None and (index >= len(wanted) or tag != wanted[index]):
                raise CodeDataError(
                    "%s: init_seq_order got seq_list, but sequence %d is %r" % (self._owner(), index, tag)
                )
            complete = checked_fraction(user.get_complete_frac(index), "%s: sequence %r" % (self._owner(), tag))
            yield Example(index=index, tag=tag, data=data, complete=complete)


def _made(cls: type, options: dict[str, Any], owner: str) -> Any:
    """Return an instance; of the options which all datasets have, those that its constructor takes."""
    parameters = inspect.signature(cls).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        known = {parameter.name for parameter in parameters}
        options = {k: v for k, v in options.items() if k in known or k not in BaseOptions.__dataclass_fields__}
    try:
        return cls(**options)
    except TypeError as exc:
        trace = exc.__traceback__
        if trace is not None and trace.tb_next is None:  # by the call itself
            raise CodeError("%s: %s" % (owner, exc)) from None
        raise
