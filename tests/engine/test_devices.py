"""The choice of a device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Optional

import pytest

from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.support import devices
from returnn_tf.util.lazy_tf import tf


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return two GPUs which are not there, and what TensorFlow is told about them."""
    seen: list[Any] = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["first", "second"])
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda gpus, kind: seen.append(gpus))
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, on: seen.append((gpu, on)))
    return seen


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, [["first"], ("first", True)]),
        ({"device": "cpu"}, [[]]),
        ({"device": "gpu"}, [["first"], ("first", True)]),
        ({"device": "GPU1"}, [["second"], ("second", True)]),
    ],
)
def test_one_gpu_or_none_is_used(calls: list[Any], settings: dict[str, Any], expected: list[Any]) -> None:
    devices.set_up(Config(settings))
    assert calls == expected


@pytest.mark.parametrize("device, message", [("gpu2", r"sees 2 GPUs.*\+\+device cpu"), ("tpu", "must be 'cpu'")])
def test_a_device_which_is_not_there_is_an_error(calls: list[Any], device: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        devices.set_up(Config({"device": device}))
    assert calls == []


@pytest.mark.parametrize("gpus, expected", [([], [{"layout_optimizer": False}]), (["first"], [])])
def test_the_layout_optimizer_is_for_gpus(
    monkeypatch: pytest.MonkeyPatch, gpus: list[Any], expected: list[dict[str, bool]]
) -> None:
    seen: list[dict[str, bool]] = []
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus)
    monkeypatch.setattr(tf.config.optimizer, "set_experimental_options", seen.append)
    devices.set_up(Config({}))
    assert seen == expected


@pytest.mark.parametrize("gpus", [[], ["first"]])
@pytest.mark.parametrize(
    "before, setting, expected", [(True, None, True), (False, None, False), (True, False, False), (False, True, True)]
)
def test_tensor_float_32(
    monkeypatch: pytest.MonkeyPatch, gpus: list[str], before: bool, setting: Optional[bool], expected: bool
) -> None:
    """Without the setting, TensorFlow's switch stays as it is, which code of a config may have changed."""
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus)
    monkeypatch.setattr(tf.config.optimizer, "set_experimental_options", lambda options: None)
    lines: list[tuple[int, str]] = []
    monkeypatch.setattr(devices.log, "write", lambda level, text: lines.append((level, text)))
    switch = tf.config.experimental
    at_first = switch.tensor_float_32_execution_enabled()
    switch.enable_tensor_float_32_execution(before)
    try:
        devices.set_up(Config({} if setting is None else {"tensor_float_32": setting}))
        assert switch.tensor_float_32_execution_enabled() == expected
    finally:
        switch.enable_tensor_float_32_execution(at_first)
    if gpus:
        use = "use" if expected else "don't use"
        assert lines == [(4 if setting is None else 3, "Products of float32 on the GPU %s TF32" % use)]
    else:
        assert [text.partition(":")[0] for _, text in lines] == ["tensor_float_32 has no effect"] * (
            setting is not None
        )


def test_tensor_float_32_is_yes_or_no() -> None:
    with pytest.raises(ConfigError, match="tensor_float_32.*True or False"):
        devices.set_up(Config({"tensor_float_32": "high"}))


def test_session_options_of_old_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", seen.append)
    monkeypatch.setattr(tf.config.threading, "set_inter_op_parallelism_threads", seen.append)
    threads = {"intra_op_parallelism_threads": 3, "inter_op_parallelism_threads": -1}
    devices.set_up(Config({"tf_session_opts": {**threads, "gpu_options": {}}}))
    assert seen == [3, -1]


@pytest.mark.parametrize(
    "options, message",
    [
        (3, "must be a dict"),
        ({"intra_op_parallelism_threads": "x"}, "must be a number of threads"),
        ({"intra_op_parallelism_threads": -1}, "must be a number of threads"),
    ],
)
def test_wrong_session_options(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        devices.set_up(Config({"tf_session_opts": options}))


def test_memory_is_told() -> None:
    assert devices.memory_text().startswith(("0B", "1", "2", "3", "4", "5", "6", "7", "8", "9"))


class Driver:
    """CUDA's driver.

    :param fails: the function that does
    """

    def __init__(self, fails: str = "") -> None:
        self.fails = fails

    def cuInit(self, flags: int) -> int:
        """Return an error code."""
        return 100 * (self.fails == "cuInit")

    def cuDeviceGet(self, device: Any, number: int) -> int:
        """Return an error code."""
        device._obj.value = number + 7
        return 101 * (self.fails == "cuDeviceGet")

    def cuDeviceGetPCIBusId(self, text: Any, size: int, device: Any) -> int:
        """Return an error code."""
        text.value = b"0000:%02X:00.0" % device.value
        return 101 * (self.fails == "cuDeviceGetPCIBusId" or len(text) != size)


@pytest.mark.parametrize(
    "gpus, driver, expected",
    [
        ([], Driver(), ""),
        (["/physical_device:GPU:0"], Driver(), "0000:07:00.0"),
        (["/physical_device:GPU:1"], Driver(), "0000:08:00.0"),
        (["/physical_device:GPU:0"], Driver("cuInit"), "0 of CUDA_VISIBLE_DEVICES=2,3"),
        (["/physical_device:GPU:1"], Driver("cuDeviceGet"), "1 of CUDA_VISIBLE_DEVICES=2,3"),
        (["/physical_device:GPU:1"], Driver("cuDeviceGetPCIBusId"), "1 of CUDA_VISIBLE_DEVICES=2,3"),
        (["/physical_device:GPU:1"], None, "1 of CUDA_VISIBLE_DEVICES=2,3"),
    ],
)
def test_the_gpu_in_use(
    gpus: list[str], driver: Optional[Driver], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its place in the machine; by its number where CUDA does not tell that."""

    def load(name: str) -> Any:
        assert name == "libcuda.so.1"
        if driver is None:
            raise OSError("no such file")
        return driver

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setattr(devices.ctypes, "CDLL", load)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [SimpleNamespace(name=name) for name in gpus])
    assert devices.gpu_in_use() == expected
