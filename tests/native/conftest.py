"""The devices on which the tests of native ops run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from returnn_tf.native.comparison import exact_products
from returnn_tf.native.gpu.cuda_toolchain import too_old, visible_archs
from returnn_tf.native.sources import OPS
from returnn_tf.native.trials import measured
from returnn_tf.native.trials.trial import Verdict
from returnn_tf.util.lazy_tf import tf

# Self-tests of ops that are new run in processes of their own, which need memory of the GPU, too
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU, or one that is newer, before fixtures compile ops."""
    if not item.get_closest_marker("gpu"):
        return
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("there is no GPU")
    params = item.callspec.params if hasattr(item, "callspec") else {}
    name = params["trial"].op if "trial" in params else item.path.stem.partition("_")[2]
    reason = too_old(visible_archs(), OPS[name].capability) if name in OPS else ""
    if reason:
        pytest.skip(reason)


@pytest.fixture(params=[pytest.param("CPU:0", id="CPU"), pytest.param("GPU:0", id="GPU", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a test on the CPU and, with the same cases and limits, on a GPU. The native op is used, even if it is slower.

    Products of float32 are not in TF32.
    """
    monkeypatch.setattr(measured, "verdict_on", lambda *_, **__: Verdict())
    with exact_products(), tf.device(request.param):
        yield request.param
