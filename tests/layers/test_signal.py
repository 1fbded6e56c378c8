"""The layers of `returnn_tf.layers.signal` against numpy: transforms, filters, channels, noise, messages."""

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim
from tests.layers.nets import LENS, fails, feed, net_of, output, run, template

X, WIDE = feed()["data"], feed()["wide"]
SAMPLES = SpatialDim("samples")
LONG = np.array([20, 13, 17], "int32")


def run_long(layer, x, *, shape, lens=LONG, **config):
    """Return the result of one layer on signals; "data" has this shape without the batch."""
    dims = [batch_dim, SAMPLES] + [SpatialDim("s%d" % i, n) for i, n in enumerate(shape[:-1])]
    dims += [FeatureDim("f", n) for n in shape[-1:]]
    config = {"extern_data": {"data": {"dim_tags": dims, "dtype": str(x.dtype)}}, **config}
    return output({"from": "data", **layer}, {"data": x, "data/size0": lens}, **config)


def signal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def transform(x, size, shift, fft_size, window):
    """[batch, samples] -> [batch, frames, bins]"""
    count = (x.shape[1] - size) // shift + 1
    frames = np.stack([x[:, i * shift : i * shift + size] for i in range(count)], axis=1)
    return np.fft.rfft(frames * window, fft_size)


def hann(size):
    return (np.hanning(size + 1)[:-1] if size % 2 == 0 else np.hanning(size)) if size > 1 else np.ones(1)


@pytest.mark.parametrize("size,shift,fft_size", [(6, 3, None), (5, 2, 8), (4, 7, 4), (1, 1, 2)])
@pytest.mark.parametrize("shape", [(), (1,), (2, 1)])
def test_stft(size, shift, fft_size, shape):
    x = signal(3, 20, *shape)
    result = run_long({"class": "stft", "frame_size": size, "frame_shift": shift, "fft_size": fft_size, **(
        {"in_spatial_dims": [SAMPLES]} if len(shape) == 2 else {})}, x, shape=shape)  # fmt: skip
    channels = np.moveaxis(x.reshape(3, 20, -1), 2, 1).reshape(-1, 20)
    expected = transform(channels, size, shift, fft_size or size, hann(size))
    expected = expected.reshape(3, *shape[:-1], *expected.shape[1:])
    assert result.axes == ("B", "S", "T", "F")[:1] + ("S",) * (len(shape) == 2) + ("T", "F")
    (lens,) = result.sizes.values()
    np.testing.assert_array_equal(lens, np.maximum((LONG - size) // shift + 1, 0))
    np.testing.assert_allclose(result.value, expected, atol=1e-5)


def test_stft_of_signals_shorter_than_a_frame():
    result = run_long({"class": "stft", "frame_size": 30, "frame_shift": 3}, signal(3, 20, 1), shape=(1,))
    assert result.value.shape == (3, 0, 16)
    np.testing.assert_array_equal(result.sizes[1], [0, 0, 0])


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("size,shift", [(6, 3), (8, 2), (3, 5)])
def test_istft(size, shift, mask):
    rng = np.random.default_rng(1)
    bins = size // 2 + 1
    y = (rng.normal(size=(3, 5, bins)) + 1j * rng.normal(size=(3, 5, bins))).astype("complex64")
    lens = np.array([5, 3, 4], "int32")
    options = {"class": "istft", "frame_size": size, "frame_shift": shift, "use_time_mask": mask}
    result = run_long(options, y, shape=(bins,), lens=lens)
    # Griffin & Lim: windows divided by the sum of the squares of all windows over the sample.
    window = hann(size)
    overlaps = -(-size // shift)
    squares = np.pad(window**2, (0, overlaps * shift - size)).reshape(overlaps, shift).sum(axis=0)
    total = np.tile(squares, overlaps)[:size]
    inverse_window = np.where(total > 0, window / np.maximum(total, 1e-9), 0)
    if mask:
        y = np.where(np.arange(5)[None, :, None] < lens[:, None, None], y, 0)
    expected = np.zeros([3, 5 * shift + max(size - shift, 0)])
    for t in range(5):
        expected[:, t * shift : t * shift + size] += np.fft.irfft(y[:, t], size) * inverse_window
    np.testing.assert_array_equal(result.sizes[1], lens * shift + max(size - shift, 0))
    assert result.axes == ("B", "T", "F")
    np.testing.assert_allclose(result.value[..., 0], expected, atol=1e-5)


def test_istft_inverts_stft():
    samples = {"extern_data": {"data": {"dim_tags": [batch_dim, SAMPLES, FeatureDim("f", 1)]}}}
    options = {"frame_size": 8, "frame_shift": 2}
    x = signal(3, 20, 1)
    network = {
        "s": {"class": "stft", "from": "data", **options},
        "output": {"class": "istft", "from": "s", **options},
    }
    result = run(network, {"data": x, "data/size0": np.full(3, 20)}, **samples)["output"]
    np.testing.assert_allclose(result.value[:, 6:14], x[:, 6:14], atol=1e-4)


@pytest.mark.sampled
@pytest.mark.parametrize("window,values", [("hanning", hann), ("blackman", np.blackman), ("ones", np.ones)])
@pytest.mark.parametrize("pad", [True, False])
@pytest.mark.parametrize("sizes,fft_sizes", [((6,), (8,)), ((6, 9, 4), (8, 9, 4))])
def test_multichannel_stft(window, values, pad, sizes, fft_sizes):
    x = signal(3, 20, 2)
    options = {"frame_shift": 3, "nr_of_channels": 2, "window": window, "pad_last_frame": pad}
    options.update({"class": "multichannel_multiresolution_stft_layer", "frame_sizes": list(sizes)})
    options.update({"fft_sizes": list(fft_sizes)})
    result = run_long(options, x, shape=(2,))
    if len(sizes) == 1:
        options = {"class": "multichannel_stft_layer", "frame_size": 6, "fft_size": 8, **options}
        options = {key: value for key, value in options.items() if not key.endswith("sizes")}
        options["class"] = "multichannel_stft_layer"
        np.testing.assert_array_equal(run_long(options, x, shape=(2,)).value, result.value)
    parts = []
    count = 7 if pad else 5
    for size, fft_size in zip(sizes, fft_sizes):
        longer = np.pad(x, [(0, 0), (0, max(size - 6, 0)), (0, 0)], constant_values=1e-7)
        longer = np.pad(longer, [(0, 0), (0, 9 if pad else 0), (0, 0)])
        parts += [transform(longer[..., c], size, 3, fft_size, values(size))[:, :count] for c in range(2)]
    lens = -(-(LONG - 6) // 3) + 1 if pad else (LONG - 6) // 3 + 1
    np.testing.assert_array_equal(result.sizes[1], lens)
    np.testing.assert_allclose(result.value, np.concatenate(parts, axis=-1), atol=1e-5)


def test_two_sided_spectrum():
    x = signal(3, 20, 1)
    options = {"class": "multichannel_stft_layer", "frame_shift": 3, "frame_size": 6, "fft_size": 8}
    result = run_long({**options, "use_rfft": False}, x, shape=(1,))
    frames = np.stack([x[:, i * 3 : i * 3 + 6, 0] for i in range(5)], axis=1) * hann(6)
    np.testing.assert_allclose(result.value, np.fft.fft(frames, 8), atol=1e-5)


@pytest.mark.parametrize("f_min, f_max", [(None, None), (0, 4000), (300, None), (None, 3400), (100.5, 3700)])
def test_mel_filterbank(f_min, f_max):
    x = signal(3, 4, 17)
    layer = {"class": "mel_filterbank", "sampling_rate": 8000, "fft_size": 32, "nr_of_filters": 4}
    layer.update({key: value for key, value in (("f_min", f_min), ("f_max", f_max)) if value is not None})
    result = run_long(layer, x, shape=(17,), lens=LENS)
    low, high = (1125 * np.log(1 + f / 700) for f in (f_min or 0, f_max or 4000))
    points = 700 * (np.exp(np.linspace(low, high, 6) / 1125) - 1) / 250
    filters = [np.interp(np.arange(17), points[i : i + 3], [0, 1, 0]) for i in range(4)]
    np.testing.assert_allclose(result.value, x @ np.transpose(filters), atol=1e-5)


def test_mel_filterbank_of_no_range():
    layer = {"class": "mel_filterbank", "sampling_rate": 8000, "fft_size": 32, "f_min": 4000}
    with pytest.raises(ConfigError, match="f_min must be below f_max, but they are 4000 and 4000 Hz"):
        run_long(layer, signal(3, 4, 17), shape=(17,), lens=LENS)


def cosines(type, norm, n):
    """Return the matrix of the transform, [features, coefficients]."""
    i, k = np.arange(n)[:, None], np.arange(n)[None]
    if type == 1:
        ends = np.where((i == 0) | (i == n - 1), 1, 2)
        return ends * np.cos(np.pi * i * k / (n - 1))
    if type == 2:
        scale = np.sqrt(np.where(k == 0, 1, 2) / n) / 2 if norm else 1
        return 2 * scale * np.cos(np.pi * k * (2 * i + 1) / (2 * n))
    if type == 3:
        return np.where(i == 0, 1, 2) * np.cos(np.pi * i * (2 * k + 1) / (2 * n))
    return np.sqrt(2 / n) * np.cos(np.pi * (2 * k + 1) * (2 * i + 1) / (4 * n))


@pytest.mark.parametrize("type,norm", [(2, None), (2, "ortho"), (3, None), (1, None), (4, "ortho")])
@pytest.mark.parametrize("n", [None, 2, 6])
def test_dct(type, norm, n):
    result = output({"class": "dct", "type": type, "norm": norm, "n": n, "from": "data:wide"})
    x = WIDE[..., :n] if n is not None else WIDE
    x = np.pad(x, [(0, 0)] * 3 + [(0, (n or 0) - x.shape[-1] if n == 6 else 0)])
    np.testing.assert_allclose(result.value, x @ cosines(type, norm, x.shape[-1]), atol=1e-5)


def test_complex_numbers_from_alternating_parts_and_back():
    x = signal(3, 4, 6)
    extern_data = {"data": {"dim": 6}}
    network = {
        "z": {"class": "alternating_real_to_complex", "from": "data", "is_output_layer": True},
        "output": {"class": "complex_to_alternating_real", "from": "z"},
    }
    layers = run(network, {"data": x, "data/size0": LENS}, extern_data=extern_data)
    np.testing.assert_array_equal(layers["z"].value, x[..., 0::2] + 1j * x[..., 1::2])
    assert layers["z"].value.dtype == "complex64"
    np.testing.assert_array_equal(layers["output"].value, x)


def test_complex_linear_projection_of_zeros_is_finite():
    network = {
        "zeros": {"class": "eval", "eval": "source(0) * 0", "from": "data"},
        "output": {"class": "complex_linear_projection", "nr_of_filters": 2, "from": "zeros", "loss": "as_is"},
    }
    out = net_of(network, extern_data={"data": {"dim": 4}}, train=True).run(
        {"data": signal(3, 4, 4), "data/size0": LENS}, with_grad=True
    )
    np.testing.assert_allclose(out.layers["output"].value, np.log(1e-20), rtol=1e-5)
    assert not out.grads["output/clp_kernel"].any()


@pytest.mark.parametrize("frames", [1, 3, 9, -1])
def test_first_frames_noise_estimator(frames):
    result = output({"class": "first_t_frames_noise_estimator", "nr_of_frames": frames, "from": "data:wide"})
    mean = WIDE[:, : 4 if frames == -1 else frames].mean(axis=1, keepdims=True)
    np.testing.assert_allclose(result.value, np.repeat(mean, 4, axis=1), rtol=1e-5)


def test_signal_masking_of_a_spectrum():
    z = (signal(3, 5, 4) + 1j * signal(3, 5, 4, seed=2)).astype("complex64")
    network = {
        "mask": {"class": "eval", "eval": "tf.abs(source(0))", "from": "data", "out_type": {"dtype": "float32"}},
        "output": {"class": "signal_masking", "signal": "data", "mask": "mask"},
    }
    arrays = {"data": z, "data/size0": np.array([5, 3, 4], "int32")}
    result = run(network, arrays, extern_data={"data": {"dim": 4, "dtype": "complex64"}})["output"]
    np.testing.assert_allclose(result.value, z * abs(z), rtol=1e-5)


def test_channels_become_sequences():
    x = signal(3, 4, 6)
    network = {
        "a": {"class": "split_concatenated_multichannel", "nr_of_channels": 3, "from": "data"},
        "b": {"class": "split_concatenated_multichannel", "nr_of_channels": 3, "from": "data"},
        "output": {"class": "combine", "kind": "add", "from": ["a", "b"]},
        "mean": {"class": "reduce", "mode": "mean", "axis": "T", "from": "a", "is_output_layer": True},
    }
    layers = run(network, {"data": x, "data/size0": LENS}, extern_data={"data": {"dim": 6}})
    expected = x.reshape(3, 4, 3, 2).transpose(0, 2, 1, 3).reshape(9, 4, 2)
    np.testing.assert_array_equal(layers["output"].value, 2 * expected)
    np.testing.assert_array_equal(layers["output"].sizes[1], LENS.repeat(3))
    means = [expected[i, :n].mean(axis=0) for i, n in enumerate(LENS.repeat(3))]
    np.testing.assert_allclose(layers["mean"].value, means, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_batch_median_pooling(count):
    x, lens = signal(6, 4, 3), np.array([4, 2, 3, 1, 4, 2], "int32")
    result = output(
        {"class": "batch_median_pooling", "pool_size": count, "from": "data"}, {"data": x, "data/size0": lens}
    )
    first = lens[::count]
    np.testing.assert_array_equal(result.sizes[1], first)
    for group, length in enumerate(first):
        members = range(group * count, min((group + 1) * count, 6))
        for t in range(length):
            valid = np.sort(np.stack([x[m, t] for m in members if lens[m] > t]), axis=0)
            np.testing.assert_array_equal(result.value[group, t], valid[len(valid) // 2])


@pytest.mark.parametrize("name", ["stft", "mel_filterbank", "complex_linear_projection", "dct"])
def test_the_same_in_a_loop(name):
    """A signal in each step of a loop, and moved out of it."""
    options = {
        "stft": {"frame_shift": 1, "frame_size": 2},
        "mel_filterbank": {"fft_size": 6, "nr_of_filters": 2, "sampling_rate": 8000},
        "complex_linear_projection": {"nr_of_filters": 2, "clp_weights_init": 0.5},
        "dct": {},
    }[name]
    steps, inner = SpatialDim("steps"), SpatialDim("inner")
    size = {"stft": 1, "mel_filterbank": 4}.get(name, 4)
    extern_data = {"data": {"dim_tags": [batch_dim, steps, inner, FeatureDim("f", size)]}}
    x = signal(3, 4, 5, size)
    sizes = {"data/size0": LENS, "data/size1": np.array([5, 3, 4], "int32")}
    layer = {"class": name, **options}
    plain = dict(layer, in_spatial_dims=[inner]) if name == "stft" else layer
    expected = run({"output": {**plain, "from": "data"}}, {"data": x, **sizes}, extern_data=extern_data)["output"]
    for more in ({}, {"optimize_move_layers_out": False}):
        unit = {"output": {**layer, "from": "data:source"}}
        rec = {"class": "rec", "unit": unit, "from": "data", "axis": steps, **more}
        got = run({"output": rec}, {"data": x, **sizes}, extern_data=extern_data)["output"]
        np.testing.assert_allclose(got.value[:, :2, :2], expected.value[:, :2, :2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "layer,message",
    [
        ({"class": "stft", "frame_shift": 1, "frame_size": 2}, "must have one channel.*multichannel_stft_layer"),
        ({"class": "stft", "frame_shift": 0, "frame_size": 2}, "'frame_shift' must be at least 1"),
        ({"class": "stft", "frame_shift": 1, "frame_size": 4, "fft_size": 2}, "fft_size is 2, less than"),
        ({"class": "stft", "frame_shift": 1, "frame_size": 2, "from": "data:labels"}, "is sparse"),
        ({"class": "istft", "frame_shift": 1, "frame_size": 2}, "needs complex numbers, but the source is"),
        ({"class": "multichannel_stft_layer", "frame_shift": 1, "frame_size": 2, "fft_size": 2}, "nr_of_channels is 1"),
        (
            {"class": "multichannel_multiresolution_stft_layer", "frame_shift": 1, "frame_sizes": [2], "fft_sizes": []},
            "one entry for each resolution",
        ),
        ({"class": "mel_filterbank"}, "must have 513 features, since fft_size is 1024"),
        ({"class": "complex_linear_projection", "nr_of_filters": 2}, "pairs of real and imaginary parts, not 3"),
        ({"class": "alternating_real_to_complex"}, "pairs of real and imaginary parts, not 3"),
        ({"class": "complex_to_alternating_real"}, "needs complex numbers"),
        ({"class": "dct", "type": 1, "norm": "ortho"}, "type 1 is not orthonormal"),
        ({"class": "dct", "n_out": 7}, "n_out is 7, but there are 3 output features"),
        ({"class": "dct", "out_type": {"dtype": "int32"}}, "out_type has dtype 'int32', but the output"),
        ({"class": "dct", "out_type": {"dim": 2, "shape": (None, 2)}}, "out_type has dim 2, but"),
        ({"class": "first_t_frames_noise_estimator", "nr_of_frames": 0}, "nr_of_frames must be at least 1"),
        ({"class": "first_t_frames_noise_estimator", "nr_of_frames": 1, "from": "data:ints"}, "a mean needs floats"),
        ({"class": "signal_masking", "signal": "data", "mask": "data:ints", "from": []}, "must be real or complex"),
        ({"class": "split_concatenated_multichannel", "nr_of_channels": 2}, "3 features are not divisible by 2"),
        ({"class": "batch_median_pooling", "pool_size": 0}, "'pool_size' must be at least 1"),
    ],
)
def test_messages(layer, message):
    fails({"from": "data", **layer}, message)


@pytest.mark.parametrize(
    "name", ["mask_based_gevbeamforming", "mask_based_mvdrbeamforming", "parametric_wiener_filter"]
)
def test_classes_of_a_package_that_is_not_public(name):
    with pytest.raises(ConfigError, match="Layer 'output': the layer class %r is not available: .*not public" % name):
        template({"output": {"class": name, "from": ["data", "data"], "nr_of_channels": 2}})


@pytest.mark.parametrize(
    "shift, pad, frames", [(2, False, [1, 0, 0]), (2, True, [1, 0, 1]), (1, False, [1, 0, 0]), (1, True, [1, 0, 0])]
)
def test_stft_of_sequences_shorter_than_a_frame(shift, pad, frames):
    """(n - size) // shift + 1 frames, with the last frame padded (n - size - 1) // shift + 2, but never below 0."""
    options = {"frame_shift": shift, "frame_size": 4, "fft_size": 4, "nr_of_channels": 3, "pad_last_frame": pad}
    result = output({"class": "multichannel_stft_layer", "from": "data", **options})
    assert result.sizes[1].tolist() == frames
