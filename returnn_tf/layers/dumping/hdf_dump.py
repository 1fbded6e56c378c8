"""`hdf_dump`: writes the values of a layer to an HDF file, in every task."""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Optional, Union

from returnn_tf.config import ConfigError, DataError
from returnn_tf.config.errors import did_you_mean
from returnn_tf.config.option_types import Written
from returnn_tf.config.options import option
from returnn_tf.graph.after_step.sinks import RunInfo
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer, Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.dumping.hdf_sink import HdfSink, path_of_rank
from returnn_tf.layers.dumping.loops import refuse_in_step
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
    ``dump_per_run`` each pass has a file of its own, whose name is a text with the fields ``{dataset_name}`` and
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
        """Return whether each pass over a dataset has a file of its own."""
        return self.dump_per_run

    def check_sink(self, run: RunInfo) -> None:
        """Check that the file does not exist.

        :raises DataError: it does
        :raises ConfigError: the function in ``filename`` failed
        """
        path = path_of_rank(self._path(run), run)
        if os.path.exists(path) and not self.extend_existing_file:
            raise DataError(
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
            raise ConfigError(
                "Layer %r (class 'hdf_dump'): filename(%s) failed: %s: %s. It is called with these keywords."
                % (
                    self.node.path,
                    ", ".join("%s=%r" % item for item in options.items()),
                    type(exc).__name__,
                    exc,
                )
            ) from exc
        if not isinstance(path, str) or not path:
            raise ConfigError(
                "Layer %r (class 'hdf_dump'): filename must return a path, not %r." % (self.node.path, path)
            )
        return path


def _order(data: Data) -> list[int]:
    """Return the axes: batch, time or steps of a loop if static, the dynamic ones, other static ones, features last."""
    order = [] if data.batch_axis is None else [data.batch_axis]
    time = data.loop_axes[0] if data.loop_axes else data.time_axis
    if time is not None and not data.dims[time].is_dynamic and time != data.feature_axis:
        order.append(time)
    order += [axis for axis in data.dynamic_axes if axis not in order]
    order += [axis for axis in range(data.rank) if axis not in order and axis != data.feature_axis]
    if data.feature_axis is not None and data.feature_axis not in order:
        order.append(data.feature_axis)
    return order
