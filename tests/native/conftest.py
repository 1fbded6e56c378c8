"""The devices on which the tests of native ops run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from returnn_tf.native.comparison import exact_products
from returnn_tf.native.trials import measured
from returnn_tf.native.trials.trial import Verdict
from returnn_tf.util.lazy_tf import tf


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU before its fixtures compile ops."""
    if item.get_closest_marker("gpu") and not tf.config.list_physical_devices("GPU"):
        pytest.skip("there is no GPU")


@pytest.fixture(params=[pytest.param("CPU:0", id="CPU"), pytest.param("GPU:0", id="GPU", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a test on the CPU and, with the same cases and limits, on a GPU. The native op is used, even if it is slower.

    Products of float32 are not in TF32.
    """
    monkeypatch.setattr(measured, "verdict_on", lambda *_, **__: Verdict())
    with exact_products(), tf.device(request.param):
        yield request.param
