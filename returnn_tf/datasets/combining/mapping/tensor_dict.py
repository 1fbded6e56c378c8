"""Named tensors, in which functions of configs get and return the data of a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Optional

import numpy as np

from returnn_tf.tensor import Dim, DimKind


class NamedTensor:
    """An array with a name and dims.

    :param dims: without batch; by default as the array has them
    :param dtype: by default that of the array
    :param raw_tensor: the array, may be set later
    :param sparse_dim: the labels which the entries index
    :param options: what tensors of networks have in addition, not used
    """

    def __init__(
        self,
        name: str = "unnamed",
        dims: Optional[Iterable[Dim]] = None,
        dtype: Optional[str] = None,
        *,
        raw_tensor: Any = None,
        sparse_dim: Optional[Dim] = None,
        **options: Any,
    ):
        self.name = name
        self.raw_tensor = raw_tensor
        self.sparse_dim = sparse_dim
        self._dims = None if dims is None else tuple(dims)
        self._dtype = dtype
        self.options = options

    def __repr__(self) -> str:
        return "<NamedTensor %r %s %s>" % (self.name, self.dtype, list(self.shape))

    @property
    def dtype(self) -> str:
        """Return the numpy name of the type, "string" for text."""
        if self._dtype is not None:
            return self._dtype
        dtype = np.asarray(self.raw_tensor).dtype
        return "string" if dtype.kind in "OSU" else dtype.name

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Return the dims."""
        if self._dims is None:
            sizes = np.shape(self.raw_tensor)
            self._dims = tuple(Dim(DimKind.SPATIAL, size, "%s_dim%d" % (self.name, i)) for i, size in enumerate(sizes))
        return self._dims

    @property
    def shape(self) -> tuple[Optional[int], ...]:
        """Return the sizes of the axes, None for those which differ between sequences."""
        return tuple(dim.size for dim in self.dims)

    @property
    def sparse(self) -> bool:
        """Return whether the entries are label indices."""
        return self.sparse_dim is not None

    def copy_template(self, name: Optional[str] = None, *, dtype: Optional[str] = None) -> NamedTensor:
        """Return the same without an array."""
        return NamedTensor(name or self.name, self.dims, dtype or self.dtype, sparse_dim=self.sparse_dim)

    def copy(self, name: Optional[str] = None) -> NamedTensor:
        """Return a tensor with the same array."""
        return NamedTensor(
            name or self.name, self._dims, self._dtype, raw_tensor=self.raw_tensor, sparse_dim=self.sparse_dim
        )


class TensorDict(MutableMapping[str, NamedTensor]):
    """Named tensors by key; ``data`` is the dict of them.

    :param data: tensors or arrays by key, or an iterable of tensors
    """

    def __init__(self, data: Any = None):
        self.data: dict[str, Any] = {}
        if not isinstance(data, (Mapping, type(None))):
            data = {tensor.name: tensor for tensor in data}
        self.update(data or {})

    def __repr__(self) -> str:
        return "TensorDict(%s)" % ", ".join(map(repr, self.data.values()))

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.data[key] = value if hasattr(value, "raw_tensor") else NamedTensor(key, raw_tensor=value)

    def __delitem__(self, key: str) -> None:
        del self.data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def copy_template(self) -> TensorDict:
        """Return the same tensors without arrays."""
        return TensorDict({key: tensor.copy_template() for key, tensor in self.data.items()})

    def copy(self) -> TensorDict:
        """Return the same tensors, to be changed independently."""
        return TensorDict({key: tensor.copy() for key, tensor in self.data.items()})

    def as_raw_tensor_dict(self) -> dict[str, Any]:
        """Return the arrays by key."""
        return {key: tensor.raw_tensor for key, tensor in self.data.items()}
