"""`specaugment`: what is masked and warped, in which axes, and when."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim

TIME, FEATURES, CHANNELS, STATIC = (
    SpatialDim("time"), FeatureDim("features", 16), SpatialDim("channels", 2), SpatialDim("frames", 40)
)  # fmt: skip
LENS = np.array([40, 7, 1, 25], "int32")
NO_TIME: dict[str, Any] = {"time_masks": 0}
NO_BANDS: dict[str, Any] = {"feature_masks": 0}


def config_of(dims: Any = (batch_dim, TIME, FEATURES), order: Any = None, **options: Any) -> Config:
    """Return the config of a layer on data with these dims, which it sees in another order if one is given."""
    axis = next((dim for dim in dims if dim in (TIME, STATIC)), "T")
    order = dims if order is None else order
    network = {
        "reordered": {"class": "transpose", "perm": list(order), "from": "data"},
        "augmented": {"class": "specaugment", "from": "reordered", "axis": axis, "feature_axis": FEATURES, **options},
        "output": {"class": "transpose", "perm": list(dims), "from": "augmented"},
    }
    extern_data = {"data": {"dims": list(dims), "feature_dim_axis": dims.index(FEATURES)}}
    return Config({"extern_data": extern_data, "network": network, "behavior_version": 21, "random_seed": 3})


def net_of(*dims: Any, train: Any = True, **options: Any) -> Network:
    return Network.from_config(config_of(*([dims] if dims else []), **options), train=train)


def run(net: Network, x: Any, lens: Optional[Any] = LENS, step: int = 0) -> Any:
    net.global_step.assign(step)
    feed = {"data": np.asarray(x, "float32")}
    return np.asarray(net.run(feed if lens is None else {**feed, "data/size0": lens}).layers["output"].value)


def ones(seqs: int, lens: Any, features: int = 16) -> Any:
    """Return ones, [seqs, time, features], with 9 in the padding."""
    valid = np.arange(max(lens))[None, :] < np.asarray(lens)[:, None]
    return np.where(valid[..., None], np.ones((seqs, max(lens), features)), 9.0)


def stretches(masked: Any) -> list[tuple[int, int]]:
    """Return begin and end of each run of True."""
    edges = np.diff(np.concatenate([[0], masked.astype(int), [0]]))
    return list(zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)))


def test_masks_are_stretches_and_bands_within_the_sequence() -> None:
    net = net_of(time_masks=2, time_mask_size=9, feature_masks=2, feature_mask_size=5)
    seen = []
    for step in range(20):
        y = run(net, ones(4, LENS), step=step)
        for seq, length in enumerate(LENS):
            frames, bands = (y[seq, :length] == 0).all(axis=1), (y[seq, :length] == 0).all(axis=0)
            assert not (y[seq, length:] == 0).all(axis=1).any()
            if frames.all():
                continue  # a short sequence that is masked as a whole
            np.testing.assert_array_equal(y[seq, :length], np.outer(~frames, ~bands))
            assert len(stretches(frames)) <= 2 and frames.sum() <= 18
            assert len(stretches(bands)) <= 2 and bands.sum() <= 10
            seen.append((tuple(frames), tuple(bands)))
    assert len({*seen}) > 0.9 * len(seen) > 40  # others in each sequence and step


def test_width_and_begin_are_uniform() -> None:
    """Of one mask of up to 3 of 10 frames, among 4000 sequences; the standard deviation of a share is 0.8 %."""
    y = run(net_of(time_masks=1, time_mask_size=3, **NO_BANDS), np.ones((4000, 10, 16)), np.full(4000, 10, "int32"))
    masks = [stretches(seq) for seq in (y == 0).all(axis=2)]
    width = np.array([end - begin for m in masks for begin, end in m] + [0 for m in masks if not m])
    np.testing.assert_allclose(np.bincount(width) / 4000, np.full(4, 0.25), atol=0.03)
    begin = np.array([begin for m in masks for begin, end in m if end - begin == 3])
    np.testing.assert_allclose(np.bincount(begin, minlength=8) / len(begin), np.full(8, 1 / 8), atol=0.04)


@pytest.mark.parametrize(
    "order",
    [
        (TIME, batch_dim, FEATURES),
        (batch_dim, FEATURES, TIME),
        (FEATURES, TIME, batch_dim),
        (batch_dim, TIME, FEATURES, CHANNELS),
        (CHANNELS, FEATURES, batch_dim, TIME),
    ],
    ids=lambda order: " ".join(dim.description for dim in order),
)
def test_any_order_of_axes(order: Any) -> None:
    """The masks are the same as of [batch, time, feature]; other axes share them."""
    x = np.random.default_rng(1).normal(size=(4, 40, 16, 2)).astype("float32")
    options = {"time_masks": 2, "time_mask_size": 6, "feature_mask_size": 4, "time_warp": 5}
    plain = net_of(**options)
    expected = np.stack([run(plain, x[..., channel]) for channel in range(2)], axis=-1)
    if CHANNELS in order:
        y = run(net_of(batch_dim, TIME, FEATURES, CHANNELS, order=order, **options), x)
    else:
        y, expected = run(net_of(order=order, **options), x[..., 0]), expected[..., 0]
    np.testing.assert_allclose(y, expected, atol=1e-6)


def test_without_batch_axis() -> None:
    options = {"time_masks": 3, "time_mask_size": 6, "feature_mask_size": 4, "time_warp": 4}
    x = np.random.default_rng(1).normal(size=(40, 16)).astype("float32")
    y = run(net_of(STATIC, FEATURES, **options), x, lens=None)
    np.testing.assert_allclose(y, run(net_of(batch_dim, STATIC, FEATURES, **options), x[None], lens=None)[0])
    assert (y == 0).all(axis=1).any()


def masked_frames(step: int = 0, lens: Any = LENS, **options: Any) -> Any:
    """Return the share of masked frames of each sequence."""
    y = run(net_of(**NO_BANDS, **options), ones(len(lens), lens), np.asarray(lens, "int32"), step)
    return (y == 0).all(axis=2).sum(axis=1) / np.asarray(lens)


@pytest.mark.parametrize(
    "options,most",
    [
        ({"time_masks": 1, "time_mask_size": 8}, [8, 8]),
        ({"time_masks": 1, "time_mask_size": 0.2}, [20, 4]),
        ({"time_masks": 1, "time_mask_size": 8, "max_time_share": 0.2}, [8, 4]),
        ({"time_masks": 0.02, "time_mask_size": 8}, [16, 0]),  # 2 masks, and 0.4
        ({"time_masks": [0, 3], "time_mask_size": 4}, [12, 12]),
        ({"time_masks": [1, 0.02], "time_mask_size": 8}, [16, 8]),
        ({"time_masks": 1, "time_mask_size": 1.0}, [100, 20]),
        ({"time_masks": 0.0}, [0, 0]),
    ],
    ids=str,
)
def test_numbers_and_sizes(options: Any, most: list[int]) -> None:
    """Over 400 sequences of 100 and of 20 frames, the largest number of masked frames is near what is possible."""
    lens = np.repeat([100, 20], 400)
    count = np.rint(masked_frames(lens=lens, **options) * lens).reshape(2, 400).max(axis=1)
    assert (count <= most).all() and (count >= 0.7 * np.array(most)).all()


def test_number_between_smallest_and_largest() -> None:
    lens = np.full(1000, 1000)
    y = run(net_of(time_masks=[1, 4], time_mask_size=1, **NO_BANDS), ones(1000, lens), lens.astype("int32"))
    counts = (y == 0).all(axis=2).sum(axis=1)  # n of 1 to 4 masks, each of 0 or 1 frame
    assert abs(counts.mean() - 1.25) < 0.1 and counts.max() == 4


def test_scaled_by_step() -> None:
    options = {"time_masks": 4, "time_mask_size": 1.0, "scale_by_step": {0: 0.0, 10: 0.25, 1000: 1.0}}
    lens = np.full(300, 50)
    shares = [masked_frames(step, lens, **options).mean() for step in (0, 9, 10, 999, 1000)]
    assert shares[0] == shares[1] == 0.0
    assert abs(shares[2] - 0.5) < 0.06 and abs(shares[3] - 0.5) < 0.06 and shares[4] > 0.85


def test_same_masks_for_the_same_seed_and_step() -> None:
    x = ones(4, LENS)
    results = [run(net_of(), x, step=step) for step in (5, 5, 6)]
    np.testing.assert_array_equal(results[0], results[1])
    assert (results[0] != results[2]).any()


def test_nothing_outside_of_training() -> None:
    net = net_of(train=False, time_warp=3)
    np.testing.assert_array_equal(run(net, ones(4, LENS)), ones(4, LENS))


def test_warped_time() -> None:
    """On the input ``t`` the output is the position that each frame shows: two straight parts, ends in place."""
    lens = np.array([40, 7, 1, 25, 2, 3], "int32")
    net = net_of(time_warp=5, **NO_TIME, **NO_BANDS)
    ramp = np.broadcast_to(np.arange(40.0)[None, :, None], (6, 40, 16))
    x = np.random.default_rng(2).normal(size=(6, 40, 16))
    moved = 0
    for step in range(5):
        positions, y = run(net, ramp, lens, step)[..., 0], run(net, x, lens, step)
        for seq, length in enumerate(lens):
            position = positions[seq, :length]
            assert position[0] == 0 and position[-1] == pytest.approx(length - 1)
            assert (np.diff(position) >= 0).all() and abs(position - np.arange(length)).max() <= 5
            assert (abs(np.diff(position, 2)) > 1e-4).sum() <= 2  # one kink, between two frames
            moved += abs(position - np.arange(length)).max() > 0.5
            expected = [np.interp(position, np.arange(length), x[seq, :length, f]) for f in range(16)]
            np.testing.assert_allclose(y[seq, :length], np.transpose(expected), atol=1e-4)
            np.testing.assert_allclose(y[seq, length:], x[seq, length:], atol=1e-5)
    assert moved > 8


def test_value_and_gradient() -> None:
    network = {
        "x": {"class": "linear", "activation": None, "n_out": 16, "from": "data"},
        "masked": {
            "class": "specaugment", "time_mask_size": 5, "feature_mask_size": 4, "mask_value": -2.5, "from": "x",
            "is_output_layer": True,
        },
        "output": {"class": "reduce", "mode": "sum", "axis": "F", "loss": "as_is", "from": "masked"},
    }  # fmt: skip
    config = {"extern_data": {"data": {"dim": 16}}, "network": network, "behavior_version": 21}
    net = Network.from_config(Config(config), train=True)
    x = np.random.default_rng(4).normal(size=(4, 40, 16)).astype("float32")
    out = net.run({"data": x, "data/size0": LENS}, with_grad=True)
    masked = np.asarray(out.layers["masked"].value) == -2.5
    valid = np.arange(40)[None, :] < LENS[:, None]
    assert 0 < masked[valid].mean() < 1 and not masked[~valid].all(axis=1).any()
    bias = (~masked & valid[..., None]).sum(axis=(0, 1))
    np.testing.assert_allclose(out.grads["x/b"], bias, rtol=1e-5)


@pytest.mark.slow
def test_compiled_by_xla() -> None:
    """No value of a tensor decides about a shape, also where the number of masks follows from lengths."""
    network = {
        "masked": {
            "class": "specaugment", "time_masks": [1, 0.1], "time_mask_size": 0.2, "feature_masks": 0.2, "time_warp": 3,
            "from": "data",
        },
        "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "masked"},
    }  # fmt: skip
    extern_data = {"data": {"dim": 16}, "classes": {"dim": 3, "sparse": True}}
    config = Config({"extern_data": extern_data, "network": network, "behavior_version": 21, "jit_compile": True})
    labels = {"classes": np.zeros((4, 40), "int32"), "classes/size0": LENS}
    feed = {"data": np.ones((4, 40, 16), "float32"), "data/size0": LENS, **labels}
    trainer = StepTrainer(Network.from_config(config, train=True), config)
    assert np.isfinite([trainer.step(feed, 0.1).total_loss for _ in range(2)]).all()


@pytest.mark.parametrize(
    "options,message",
    [
        ({"time_masks": -1}, "'time_masks' must be at least 0, got -1"),
        ({"time_masks": 1.5}, "'time_masks' must be a whole number, or as a float a share from 0 to 1"),
        ({"time_masks": [3, 1]}, "'time_masks' must have the smallest number first"),
        ({"feature_masks": [1, 2, 3]}, r"'feature_masks' must be a number, or \[smallest, largest\]"),
        ({"time_mask_size": "10"}, "'time_mask_size' must be a number, got '10'"),
        ({"max_time_share": 2}, "'max_time_share' must be from 0 to 1"),
        ({"scale_by_step": {1000: 1.0}}, "'scale_by_step' must be a dict from steps to factors .* with step 0"),
        ({"scale_by_step": {0: 1.5}}, "'scale_by_step' must be a dict from steps to factors from 0 to 1"),
        ({"feature_mask_size": 27}, "feature_mask_size is 27, but there are 16 features"),
        ({"axis": FEATURES}, "axis and feature_axis are the same"),
        ({"feature_axis": TIME, "axis": FEATURES}, "feature_axis must have a static size, but .* is dynamic"),
        ({"mask_value": float("nan")}, "'mask_value' must be finite"),
        ({"masks": 2}, "unknown option 'masks'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_mistakes(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as info:
        plan_from_config(config_of(**options))
    assert "Layer 'augmented' (class 'specaugment')" in str(info.value)


def test_labels_and_whole_numbers_are_refused() -> None:
    for data in ({"dim": 5, "sparse": True}, {"shape": (None, 16), "dtype": "int32"}):
        layer = {"class": "specaugment", "from": "data"}
        config = Config({"extern_data": {"data": data}, "network": {"output": layer}, "behavior_version": 21})
        with pytest.raises(ConfigError, match="masks and interpolates features, but the source is .* Give it floats"):
            plan_from_config(config)
