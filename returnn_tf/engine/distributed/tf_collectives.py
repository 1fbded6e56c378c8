"""TensorFlow's own collective ops as the engine of several processes: a ring over gRPC, or NCCL between GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import numpy as np

from returnn_tf.config.errors import DistributedError
from returnn_tf.config.settings.distributed import AUTO, NCCL, RING
from returnn_tf.engine.distributed.collectives import Collectives
from returnn_tf.engine.distributed.membership import Membership, host_of
from returnn_tf.engine.support import devices
from returnn_tf.logging.log import log
from returnn_tf.util.lazy_tf import tf

#: Bytes that a gather sends at once; longer contents take a second op, for which their length is known.
_BLOCK = 2048
_LENGTH_BYTES = 8
_WORD = 4  # bytes are sent as int32
_CHUNK = 1 << 26  # bytes of variables in one broadcast
#: How errors of the ops say that the connection to another rank is broken.
_BROKEN = re.compile(r"Collective ops is aborted by: ([^\n]*)|([^\n]*)\nAdditional GRPC error information from remote")


class TensorFlowCollectives(Collectives):
    """Collectives of the ops of TensorFlow, whose server of this process has started.

    Small values are summed in host memory. Gradients are summed on the GPUs where each rank has its own.

    :param communication: `AUTO`: NCCL if each rank computes on a GPU of its own, else the ring; or one of them
    :raises ConfigError: NCCL is asked for, but a rank has no GPU of its own
    """

    engine = "TensorFlow"

    def __init__(self, member: Membership, communication: str = AUTO) -> None:
        self.rank, self.size = member.rank, member.size
        self.local_rank, self.local_size = member.local_rank, member.local_size
        self._host = _Group(1, "/CPU:0", member.size, RING)
        self._device = self._host
        if communication == RING:
            return
        gpus = self._gpus(host_of(member.addresses[member.rank]))
        fault = _not_of_their_own(gpus)
        if fault and communication == NCCL:
            raise DistributedError("'communication': 'nccl' needs a GPU for each rank, but %s" % fault)
        if not fault:
            self._device = _Group(2, "/GPU:0", member.size, NCCL)
            self.remark = "gradients by NCCL"
        elif any(gpus) and self.rank == 0:
            log.warn(
                "Gradients are summed in a ring, not by NCCL, as %s. Start one process for each GPU, or compute on the "
                "CPU: ++device cpu" % fault
            )

    def _gpus(self, host: str) -> list[str]:
        """Return the GPU of each rank; "" for one that has none."""
        gpu = devices.gpu_in_use()
        own = "%s on %s" % (gpu, host) if gpu else ""
        return [found.decode("utf8") for found in self.gather(own.encode("utf8"), "world.gpus")]

    def sum(self, tensor: Any, name: str) -> Any:
        """Return the sum of a reduction between the hosts."""
        return self._host.reduce(tensor, name)

    def sum_group(self, tensors: Sequence[Any], name: str, *, on_host: bool = False) -> list[Any]:
        """Return the sums; the tensors are sent as one. A single one is not copied for that."""
        group = self._host if on_host else self._device
        if len(tensors) == 1:
            return [group.reduce(tensors[0], name)]
        with tf.device(group.device):
            flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
            parts = tf.split(group.reduce(flat, name), [tf.size(tensor) for tensor in tensors])
            return [tf.reshape(part, tf.shape(tensor)) for part, tensor in zip(parts, tensors)]

    def gather(self, content: bytes, name: str) -> list[bytes]:
        """Return the contents, sent with their lengths in one block, and the rest of long ones in a second op."""
        whole = len(content).to_bytes(_LENGTH_BYTES, "big") + content
        first = self._gather_blocks(whole[:_BLOCK], _BLOCK, name)
        lengths = [_LENGTH_BYTES + int.from_bytes(block[:_LENGTH_BYTES], "big") for block in first]
        if max(lengths) > _BLOCK:
            # a power of two: the op keeps a record for each shape that occurs
            size = 1 << (max(lengths) - _BLOCK - 1).bit_length()
            rest = self._gather_blocks(whole[_BLOCK:], max(size, _WORD), name)
            first = [start + more for start, more in zip(first, rest)]
        return [block[_LENGTH_BYTES:length] for block, length in zip(first, lengths)]

    def _gather_blocks(self, content: bytes, size: int, name: str) -> list[bytes]:
        words = np.frombuffer(content.ljust(size, b"\0"), "int32")
        together = self._host.gather(tf.constant(words), name).numpy().tobytes()
        return [together[rank * size : (rank + 1) * size] for rank in range(self.size)]

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Send the values of rank 0, as bytes, since the op takes few types."""
        for number, chunk in enumerate(_chunks(variables)):
            values = [variable.numpy() for variable in chunk]
            size = sum(value.nbytes for value in values)
            words = -(-size // _WORD)
            sent = None
            if self.rank == 0:
                content = b"".join(value.tobytes() for value in values)
                sent = tf.constant(np.frombuffer(content.ljust(words * _WORD, b"\0"), "int32"))
            content = self._host.broadcast(sent, words, "world.broadcast.%d" % number).numpy().tobytes()
            start = 0
            for variable, value in zip(chunk, values):
                found = np.frombuffer(content, value.dtype, value.size, start).reshape(value.shape)
                variable.assign(found)
                start += value.nbytes

    def lost_rank(self, exc: BaseException) -> str:
        """Return what gRPC says of the broken connection."""
        if not isinstance(exc, (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)):
            return ""
        found = _BROKEN.search(str(exc))
        return (found.group(1) or found.group(2)).strip() if found else ""


def _not_of_their_own(gpus: Sequence[str]) -> str:
    """Return why NCCL can't be used; "" if each rank has a GPU of its own.

    :param gpus: by rank
    """
    ranks: dict[str, int] = {}
    for rank, gpu in enumerate(gpus):
        if not gpu:
            return "rank %d has no GPU" % rank
        if ranks.setdefault(gpu, rank) != rank:
            return "ranks %d and %d share GPU %s" % (ranks[gpu], rank, gpu)
    return ""


def _chunks(variables: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the variables in their order, each time a few with at least `_CHUNK` bytes."""
    chunk: list[Any] = []
    size = 0
    for variable in variables:
        chunk.append(variable)
        size += variable.shape.num_elements() * variable.dtype.size
        if size >= _CHUNK:
            yield chunk
            chunk, size = [], 0
    if size:
        yield chunk


class _Group:
    """One device of each rank, between which collective ops run in the order in which they were traced or called.

    :param key: tells the group from others
    :param device: of this process
    :param hint: the implementation
    """

    def __init__(self, key: int, device: str, size: int, hint: str) -> None:
        self.device = device
        self._of_group = {"group_size": size, "group_key": key, "communication_hint": hint}
        #: numbers of the ops, by what is the same in all of their runs. Ranks that do the same number them alike
        self._instances: dict[tuple[Any, ...], int] = {}
        with tf.device(device):
            self._order = tf.Variable(0.0, trainable=False, name="order_of_collectives")

    def reduce(self, tensor: Any, name: str) -> Any:
        """Return the sum over the ranks."""
        with tf.device(self.device):
            tensor = tf.convert_to_tensor(tensor)
            return tf.raw_ops.CollectiveReduceV2(
                input=tensor,
                instance_key=self._instance("reduce", name, tensor.dtype, tensor.shape),
                ordering_token=[self._order.handle],
                merge_op="Add",
                final_op="Id",
                **self._of_group,
            )

    def gather(self, tensor: Any, name: str) -> Any:
        """Return the tensors of all ranks, of the same shape, one after the other."""
        with tf.device(self.device):
            return tf.raw_ops.CollectiveGatherV2(
                input=tensor,
                instance_key=self._instance("gather", name, tensor.dtype, tensor.shape),
                ordering_token=[self._order.handle],
                **self._of_group,
            )

    def broadcast(self, tensor: Optional[Any], size: int, name: str) -> Any:
        """Return the tensor of the one rank that gives one, int32 [size]."""
        with tf.device(self.device):
            key = self._instance("broadcast", name, tf.int32, tf.TensorShape([size]))
            if tensor is not None:
                return tf.raw_ops.CollectiveBcastSendV2(input=tensor, instance_key=key, **self._of_group)
            return tf.raw_ops.CollectiveBcastRecvV2(T=tf.int32, shape=[size], instance_key=key, **self._of_group)

    def _instance(self, kind: str, name: str, dtype: Any, shape: Any) -> int:
        """Return the number of an op. All of its runs must have the same shape; if that is unknown, it has its own."""
        number = len(self._instances) + 1
        sizes = tuple(shape.as_list()) if shape.is_fully_defined() else (number,)
        return self._instances.setdefault((kind, name, dtype.name, sizes), number)
