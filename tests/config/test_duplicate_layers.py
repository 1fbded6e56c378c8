"""A layer name that stands twice in a network is reported; Python itself would drop the first layer."""

from __future__ import annotations

from pathlib import Path

import pytest

from returnn_tf.config import Config, ConfigError


def test_two_layers_of_one_name(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        'network = {\n "h": {"class": "linear"},\n "output": {"class": "softmax"},\n "h": {"class": "copy"}}\n'
    )
    with pytest.raises(ConfigError, match=r"a\.py:4: two entries have the name 'h', the first is in line 2\. Rename"):
        Config.from_file(str(path))


def test_inner_networks_and_options_may_repeat_names(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        'network = {"h": {"class": "subnetwork", "subnetwork": {"h": {"class": "copy"}}}}\nopts = {"a": 1, "a": 2}\n'
    )
    assert Config.from_file(str(path)).typed("opts") == {"a": 2}
