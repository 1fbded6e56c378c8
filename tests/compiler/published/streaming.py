"""Networks that read speech in pieces: chunked attention on features of the network, and transducers."""

from __future__ import annotations

from typing import Any

from returnn_tf.tensor import SpatialDim

from .case import Case, Layers, layer, linear

LABELS, BLANK = 5, 5
WINDOW, CHUNKS = SpatialDim("window", 4), SpatialDim("chunks")


def features() -> Layers:
    """Return log mel features of samples."""
    return {
        "stft": layer("stft", "data", frame_size=8, frame_shift=4, fft_size=8),
        "abs": layer("activation", "stft", activation="abs"),
        "power": layer("eval", "abs", eval="source(0) ** 2"),
        "mel": layer("mel_filterbank", "power", fft_size=8, nr_of_filters=3, n_out=3, sampling_rate=8000),
        "log": layer("activation", "mel", activation="safe_log", opts={"eps": 1e-10}),
        "log10": layer("eval", "log", eval="source(0) / 2.3026"),
        "features": layer("batch_norm", "log10", in_dim=None),
    }


def chunked() -> Layers:
    """Return an attention to one chunk at a time; a label of its own ends the chunk."""
    unit = {
        "label": layer("choice", "output_prob", target="classes", beam_size=2, initial_output=0),
        "output": layer("copy", "label", initial_output=0),
        "is_end": layer("compare", "output", value=0, kind="equal", initial_output=False),
        "step": layer("switch", condition="prev:is_end", true_from=1, false_from=0),
        "chunk": layer("combine", ["prev:chunk", "step"], kind="add", initial_output=0),
        "last": layer("combine", ["base:num_chunks", "one"], kind="sub"),
        "one": layer("constant", value=1),
        "chunk_": layer("eval", ["chunk", "last"], eval="tf.minimum(source(0), source(1))"),
        "keys": layer("gather", "base:keys", position="chunk_", axis=CHUNKS),
        "values": layer("gather", "base:lstm", position="chunk_", axis=CHUNKS),
        "embed": linear("prev:output", 3, with_bias=False),
        "not_end": layer("compare", "prev:output", value=0, kind="not_equal"),
        "lm": layer(
            "masked_computation", "embed", mask="not_end", unit=layer("rnn_cell", "data", unit="LSTMBlock", n_out=3)
        ),
        "s": layer("rnn_cell", ["lm", "prev:att"], unit="zoneoutlstm", n_out=4),
        "query": linear("s", 4, with_bias=False),
        "energy_in": layer("combine", ["keys", "query"], kind="add"),
        "energy_tanh": layer("activation", "energy_in", activation="tanh"),
        "energy": linear("energy_tanh", 1, with_bias=False),
        "energy_": layer("squeeze", "energy", axis="F"),
        "weights": layer("softmax_over_spatial", "energy_", axis=WINDOW),
        "att": layer("dot", ["weights", "values"], reduce=WINDOW),
        "output_prob": layer("softmax", ["s", "att", "context"], target="classes", loss="ce"),
        "context": layer("gather", "base:proj", position="chunk_", axis=CHUNKS),
        "all": layer("compare", ["chunk", "base:num_chunks"], kind="greater_equal"),
        "end": layer("combine", ["all", "all"], kind="logical_and"),
    }  # fmt: skip
    return {
        **features(),
        "windowed": layer(
            "window", "features", axis="T", window_size=4, stride=2, window_dim=WINDOW, out_spatial_dim=CHUNKS
        ),
        "merged": layer("merge_dims", "windowed", axes=[WINDOW, "F"], keep_order=True),
        "proj": linear("merged", 8, "relu"),
        "windows": layer("linear", "windowed", n_out=4, activation=None),
        "lstm": layer("rec", "windows", unit="nativelstm2", n_out=4, axis=WINDOW),
        "keys": linear("lstm", 4),
        "chunk_lens": layer("length", "lstm", axis=CHUNKS),
        "num_chunks": layer("copy", "chunk_lens"),
        "output": layer(
            "rec", [], unit=unit, target="classes", max_seq_len="max_len_from('base:proj') * 3", include_eos=True
        ),
        "decision": layer("decide", "output", loss="edit_distance", target="classes"),
    }


def full_sum(source: Any, **kwargs: Any) -> Any:
    """Return a stand-in for the full-sum loss: minus the scores of the joint net [B, T, U, F], summed, [B]."""
    import tensorflow as tf

    joint = source(0, as_data=True, auto_convert=False)
    labels = source(1, as_data=True, auto_convert=False)
    x = joint.copy_as_batch_major().placeholder
    lens = labels.get_sequence_lengths()
    frames = joint.get_sequence_lengths()
    mask = tf.sequence_mask(frames, tf.shape(x)[1])[:, :, None] & tf.sequence_mask(lens + 1, tf.shape(x)[2])[:, None]
    return -tf.reduce_sum(tf.where(mask, x[..., BLANK], 0.0), axis=[1, 2])


def batch_vector(sources: Any, name: str, **kwargs: Any) -> Any:
    from returnn.tf.util.data import Data

    return Data(name="%s_out" % name, shape=(), dtype="float32")


def monotonic() -> Layers:
    """Return an RNA model: a label or blank in each frame, trained on an alignment, with memory of labels only."""
    unit = {
        "output": layer("choice", "output_log_prob", target="align", beam_size=3, input_type="log_prob",
                        initial_output=0, length_normalization=False),
        "is_label": layer("compare", "output", value=BLANK, kind="not_equal", initial_output=True),
        "label": layer("reinterpret_data", "prev:output", set_sparse=True, set_sparse_dim=LABELS + 1),
        "embed": linear("label", 3, with_bias=False, initial_output=0),
        "lm_masked": layer(
            "masked_computation", "embed", mask="prev:is_label",
            unit=layer("subnetwork", "data", subnetwork={
                "lstm": layer("rec", "data", unit="nativelstm2", n_out=3),
                "output": layer("copy", "lstm"),
            }),
        ),
        "lm": layer("unmask", "lm_masked", mask="prev:is_label"),
        "s": layer("rec", ["data:source", "lm"], unit="nativelstm2", n_out=4, dropout=0.1),
        "logits": linear(["s", "lm"], LABELS + 1),
        "output_log_prob": layer("activation", "logits", activation="log_softmax"),
        "prob": layer("activation", "output_log_prob", activation="exp", loss="ce", target="align"),
    }  # fmt: skip
    return {
        "encoder": layer("rec", "data", unit="nativelstm2", n_out=4),
        "output": layer("rec", "encoder", unit=unit, target="align", back_prop=True, size_target="align",
                        include_eos=True),
        "not_blank": layer("compare", "output", value=BLANK, kind="not_equal"),
        "labels": layer("masked_computation", "output", mask="not_blank", unit=layer("copy")),
        "decision": layer("decide", "labels", loss="edit_distance", target="classes"),
    }  # fmt: skip


def transducer() -> Layers:
    """Return a transducer whose joint net has all pairs of frames and labels, with a full-sum loss."""
    return {
        "encoder": layer("rec", "data", unit="nativelstm2", n_out=4),
        "shifted": layer("prefix_in_time", "data:classes", prefix=0),
        "embed": linear("shifted", 3, with_bias=False),
        "predictor": layer("rec", "embed", unit="nativelstm2", n_out=4),
        "pred": linear("predictor", 4, with_bias=False),
        "enc": linear("encoder", 4),
        "joint_in": layer("combine", ["enc", "pred"], kind="add", allow_broadcast_all_sources=True),
        "joint_tanh": layer("activation", "joint_in", activation="tanh"),
        "joint": linear("joint_tanh", BLANK + 1, "log_softmax"),
        "full_sum": layer("eval", ["joint", "data:classes"], eval=full_sum, out_type=batch_vector, loss="as_is"),
        "output": layer("copy", "joint"),
    }


SAMPLES = {"data": {"dim": 1, "shape": (None, 1)}, "classes": {"dim": LABELS, "sparse": True}}
FRAMES = {
    "data": {"dim": 4}, "classes": {"dim": LABELS, "sparse": True}, "align": {"dim": BLANK + 1, "sparse": True},
}  # fmt: skip
CASES = {
    "chunked": Case(chunked(), SAMPLES, "decision", longest=40, labels=3),
    "rna": Case(monotonic(), FRAMES, "decision", labels=3),
    "transducer-full-sum": Case(transducer(), FRAMES, labels=3),
}
