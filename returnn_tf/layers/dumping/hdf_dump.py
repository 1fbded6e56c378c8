"""`hdf_dump`: writes the values of a layer to an HDF file, in every task."""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Optional, Union

import numpy as np

from returnn_tf.config.errors import DataError, DimDataError, DimError, did_you_mean
from returnn_tf.config.option_types import Written
from returnn_tf.config.options import option
from returnn_tf.datasets import HDFWriter
from returnn_tf.datasets.vocabulary import vocab_labels
from returnn_tf.graph.after_step.sinks import RunInfo
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer, Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.loop_axis import refuse_in_step
from returnn_tf.logging.log import log
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

_MAIN = "data"
#: What a file name with ``dump_per_run`` may depend on.
_RUN_NAMES = ("dataset_name", "epoch")


@register_layer("hdf_dump")
class HDFDumpLayer(Layer):
    """``y = x``; in every task, also in training, the sequences of ``x`` are written to an HDF file.

    Other tasks can read it with `HDFDataset`. Data key of ``x``: "data"; further ones: those in ``extra``, which keep
    the padding of their batch, and ``<key>_seq_lens``, the sizes of their axes; and ``seq_sizes``, the lengths of the
    dynamic axes of ``x``. Several dynamic axes are cut and joined to one; those of ``x`` are also in ``sizes``.

    The file is opened after the first batch and complete when the task is done with the network: after the last epoch
    of a training, or before the next network of a pretraining. It has the sequences of all passes over datasets
    of this run: of a training that was resumed, not those of the epochs before. With
    ``dump_per_run`` each pass has a separate file, whose name is a text with the fields ``{dataset_name}`` and
    ``{epoch}``, or a function of them. If the task fails, no file is left. With several processes, each writes its
    part of the sequences: to ``<name>.rank<n><extension>``.
    Parameters: none. Lengths: unchanged.

    Example::

        network = {"output": {"class": "hdf_dump", "filename": "hidden.hdf", "from": "data", "extra": {"x": "data"}}}
    """

    has_sink = True
    filename: Annotated[Any, Written(Union[str, Callable[..., str]], "str | function")] = option(
        help="path of the file, which must not exist; with dump_per_run a text with fields, or a function"
    )
    extra: Optional[dict[str, str]] = option(None, help="{data key: layer}: further layers to write", refs=True)
    dump_whole_batches: bool = option(False, help="write each batch as one sequence, padding included")
    labels: Optional[list[str]] = option(None, help="names of the labels or features; default: those of the vocabulary")
    extend_existing_file: bool = option(False, help="append to the file, which must exist")
    dump_per_run: bool = option(False, help="write one file for each pass over a dataset")

    def template(self, ctx: PlanContext) -> Data:
        """Return the template of the source, which must be sequences."""
        data = ctx.single_source()
        refuse_in_step(ctx)
        if data.unknown:
            return data
        if (data.time_axis is None and not data.loop_axes) or data.batch_axis is None:
            raise ctx.error("the source %s must have a batch axis and a time axis." % data)
        self._check_filename(ctx)
        if not isinstance(self.extra, (Mapping, type(None))):
            raise ctx.error("extra must be a dict from data key to layer, e.g. {'scores': 'output'}.")
        self._check_data(ctx, "the source", data)
        for key, node in self._extras().items():
            if key in (_MAIN, "sizes", "seq_sizes") or key.endswith("_seq_lens") or "/" in key:
                raise ctx.error("extra: %r can't be a data key, since the file has one of this name already." % key)
            self._check_data(ctx, "extra %r" % key, node.output)
        if self.labels is not None and len(self.labels) != data.dim:
            raise ctx.error("there are %d labels, but the source %s has %s." % (len(self.labels), data, data.dim))
        return data

    def _extras(self) -> dict[str, Node]:
        return dict(self.extra or {})  # type: ignore[arg-type]

    def _check_filename(self, ctx: PlanContext) -> None:
        if not isinstance(self.filename, str):
            if not self.dump_per_run:
                raise ctx.error("filename is a function, which needs dump_per_run = True.")
            return
        if not self.filename:
            raise ctx.error("filename is empty.")
        if self.dump_per_run:
            try:
                names = [name for _, name, _, _ in string.Formatter().parse(self.filename) if name is not None]
            except ValueError as exc:
                raise ctx.error("filename %r is no text with fields: %s." % (self.filename, exc)) from None
            for name in names:
                if name not in _RUN_NAMES:
                    hint = did_you_mean(name, _RUN_NAMES)
                    raise ctx.error("filename %r: there is no field {%s}. %s" % (self.filename, name, hint))

    def _check_data(self, ctx: PlanContext, what: str, data: Data) -> None:
        if data.beam is not None:
            raise ctx.error(
                "%s %s has %d hypotheses of each sequence. Dump a 'decide' layer, which keeps the best one, or a layer "
                "after it." % (what, data, data.beam.size)
            )
        if data.dtype.startswith(("complex", "bfloat")):
            raise ctx.error("%s is %s, of which there are none in HDF files. Convert it first." % (what, data))

    # --- values ---

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the source; its values and those in ``extra`` go to the file after the step."""
        values: dict[str, Any] = {}
        for key, node in {_MAIN: self.source, **self._extras()}.items():
            data = node.output
            order = _order(data)
            values[key] = self._with_batch(ctx, transpose(ctx.value(node), order), data)
            values[key + ":sizes"] = self._sizes(
                ctx, [data.dims[axis] for axis in order if not data.dims[axis].is_batch]
            )
        ctx.set_sink_values(values)
        ctx.forward_aux()
        return ctx.source()

    def _with_batch(self, ctx: EmitContext, x: Any, data: Data) -> Any:
        if data.dtype == "bool":
            x = tf.cast(x, tf.int32)
        return x if data.batch_axis is not None else tf.repeat(x[None], self._batch(ctx), axis=0)

    def _sizes(self, ctx: EmitContext, dims: Sequence[Any]) -> Any:
        """Return the sizes of the axes for each sequence, int32 [batch, axes]."""
        batch = self._batch(ctx)
        sizes = [tf.broadcast_to(ctx.lens(dim), [batch]) for dim in dims]
        return tf.stack(sizes, axis=1) if sizes else tf.zeros([batch, 0], tf.int32)

    def _batch(self, ctx: EmitContext) -> Any:
        data = self.source.output
        assert data.batch_axis is not None
        return ctx.size(data.dims[data.batch_axis])

    # --- the file ---

    @property
    def sink_per_run(self) -> bool:
        """Return whether each pass over a dataset writes a separate file."""
        return self.dump_per_run

    def check_sink(self, run: RunInfo) -> None:
        """Check that the file does not exist.

        :raises DataError: it does
        :raises ConfigError: the function in ``filename`` failed
        """
        path = path_of_rank(self._path(run), run)
        if os.path.exists(path) and not self.extend_existing_file:
            raise DimDataError(
                "Layer %r (class 'hdf_dump'): the file %r exists already. Remove it, or choose another name."
                % (self.node.path, path)
            )

    def open_sink(self, run: RunInfo) -> HdfSink:
        """Return the new file.

        :raises ConfigError: the function in ``filename`` failed
        """
        data = self.source.output
        layouts = {key: node.output.permuted(_order(node.output)) for key, node in self._extras().items()}
        return HdfSink(
            self._path(run),
            data.permuted(_order(data)),
            layouts,
            labels=self.labels,
            whole_batches=self.dump_whole_batches,
            extend=self.extend_existing_file,
            run=run,
            layer=self.node.path,
        )

    def _path(self, run: RunInfo) -> str:
        if not self.dump_per_run:
            return str(self.filename)
        options = {"dataset_name": run.dataset, "epoch": run.epoch}
        if isinstance(self.filename, str):
            return self.filename.format(**options)
        try:
            path = self.filename(**options)
        except Exception as exc:  # code of the config may raise anything
            raise DimError(
                "Layer %r (class 'hdf_dump'): filename(%s) failed: %s: %s. It is called with these keywords."
                % (
                    self.node.path,
                    ", ".join("%s=%r" % item for item in options.items()),
                    type(exc).__name__,
                    exc,
                )
            ) from exc
        if not isinstance(path, str) or not path:
            raise DimError("Layer %r (class 'hdf_dump'): filename must return a path, not %r." % (self.node.path, path))
        return path


def _order(data: Data) -> list[int]:
    """Return the axes: batch, time or steps of a loop if static, the dynamic ones, other static ones, features last."""
    order = [] if data.batch_axis is None else [data.batch_axis]
    time = data.loop_axes[0] if data.loop_axes else data.time_axis
    if time is not None and not data.dims[time].is_dynamic() and time != data.feature_axis:
        order.append(time)
    order += [axis for axis in data.dynamic_axes if axis not in order]
    order += [axis for axis in range(data.rank) if axis not in order and axis != data.feature_axis]
    if data.feature_axis is not None and data.feature_axis not in order:
        order.append(data.feature_axis)
    return order


def path_of_rank(path: str, run: RunInfo) -> str:
    """Return the path of the file that this process writes."""
    if run.size == 1:
        return path
    base, extension = os.path.splitext(path)
    return "%s.rank%d%s" % (base, run.rank, extension)


class HdfSink:
    """Writes batches to an HDF file.

    :param path: must not exist unless it is to be extended; with several processes, each adds its rank
    :param data: template of the main data: batch, axes with lengths, other axes, features
    :param extra: templates of further data
    :param labels: names of the labels or features; default: those of the vocabulary
    :param whole_batches: a batch is one sequence
    :param extend: append to the file
    """

    def __init__(
        self,
        path: str,
        data: Data,
        extra: Mapping[str, Data],
        *,
        labels: Optional[Sequence[str]],
        whole_batches: bool,
        extend: bool,
        run: RunInfo,
        layer: str,
    ) -> None:
        self._layer = layer
        self.path = path_of_rank(path, run)
        if run.size > 1 and run.rank == 0:
            log.write(
                3,
                "Layer %r: each of the %d processes writes its part of the sequences, this one to %s; HDFDataset reads "
                "them together by 'files'." % (layer, run.size, self.path),
            )
        self._extra = dict(extra)
        self._whole = whole_batches
        # a static time axis has lengths as well
        self._axes = max(len(list(data.dynamic_axes)), 1)
        added = 1 if whole_batches else 0
        names = labels if labels is not None else _labels(data)
        types = {key: _type(template, whole_batches) for key, template in extra.items()}
        types["seq_sizes"] = (1, 1 + added, "int32")
        for key, template in extra.items():
            if template.rank > 1 or template.batch_axis is None:
                types[key + "_seq_lens"] = (1, 1 + added, "int32")
        self._options: dict[str, Any] = {
            "dim": data.dim,
            "labels": names,
            "ndim": data.rank - 1 + added,
            "extra_type": types,
            "extend_existing_file": extend,
        }
        self._writer: Optional[HDFWriter] = None

    def _opened(self) -> HDFWriter:
        if self._writer is None:
            try:
                self._writer = HDFWriter(self.path, **self._options)
            except DataError as exc:
                raise DimDataError("Layer %r (class 'hdf_dump'): %s" % (self._layer, exc)) from exc
        return self._writer

    def write(self, values: Mapping[str, Any], tags: Sequence[str]) -> None:
        """Add a batch.

        :param values: "data" and the keys of the extra data -> [batch, ...]; "<key>:sizes" -> int32 [batch, axes]
        :raises DataError: the batch has parts of several sequences in a row, or writing failed
        """
        inputs, sizes = values["data"], values["data:sizes"]
        if len(inputs) != len(tags):
            raise DimDataError(
                "Layer %r (class 'hdf_dump'): a batch has %d rows for %d sequences, %s, ..."
                % (self._layer, len(inputs), len(tags), tags[0])
            )
        lengths = sizes[:, : self._axes]
        extra: dict[str, Any] = {"seq_sizes": lengths}
        for key, template in self._extra.items():
            extra[key] = self._joined(values[key], values[key + ":sizes"], template)
            if values[key + ":sizes"].shape[1]:
                extra[key + "_seq_lens"] = values[key + ":sizes"]
        by_axis = {axis: lengths[:, axis] for axis in range(self._axes)}
        names = list(tags)
        if self._whole:
            by_axis = {axis: np.array([inputs.shape[axis]], np.int32) for axis in range(1 + self._axes)}
            inputs, names = inputs[None], ["-".join(names)]
            extra = {key: value if isinstance(value, list) else value[None] for key, value in extra.items()}
        self._opened().insert_batch(inputs, by_axis, names, extra)

    def _joined(self, value: Any, sizes: Any, template: Data) -> Any:
        """Join the axes of further data up to the last dynamic one, as other sequences have other sizes.

        :return: the array; or a list with one array for each sequence, where several axes were cut and joined
        """
        count = _joined_axes(template)
        if self._whole:
            return [value.reshape((-1, *value.shape[count + 1 :]))] if count else value
        if count < 2:
            return value
        cut = [row[tuple(slice(0, size) for size in lens[:count])] for row, lens in zip(value, sizes)]
        return [row.reshape((-1, *row.shape[count:])) for row in cut]

    def close(self) -> None:
        """Complete the file."""
        if self._writer is not None:
            self._writer.close()
            log.write(3, "Wrote %s: %d sequences of layer %r" % (self.path, self._writer.num_seqs, self._layer))

    def abort(self) -> None:
        """Discard the file."""
        if self._writer is not None:
            self._writer.abort()


def _type(data: Data, whole: bool) -> tuple[Optional[int], int, str]:
    """Return (dim, axes without batch, dtype) as `HDFWriter` wants it; a value without axes gets a time axis."""
    axes = data.rank - (0 if data.batch_axis is None else 1)
    joined = _joined_axes(data)
    axes = axes + 1 if whole and not joined else axes - max(joined - 1, 0)
    return data.dim, max(axes, 1), "int32" if data.dtype == "bool" else data.dtype


def _joined_axes(data: Data) -> int:
    """Return the number of axes, not counting batch, up to the last dynamic one."""
    first = 0 if data.batch_axis is None else 1
    return max([axis - first for axis in data.dynamic_axes], default=-1) + 1


def _labels(data: Data) -> Optional[list[str]]:
    """Return the labels of the vocabulary, or None."""
    if data.vocab is None or data.sparse_dim is None:
        return None
    names = vocab_labels("data", data.vocab)
    return names if len(names) == data.dim else None
