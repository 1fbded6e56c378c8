"""``save_checkpoint`` and ``load_checkpoint``: a network without a training."""

import numpy as np
import pytest

from returnn_tf import Config, DataError, Network, load_checkpoint, save_checkpoint


def network(n_out=3):
    """Return one layer."""
    return Network.from_config(
        Config(
            {
                "network": {"output": {"class": "linear", "activation": None, "n_out": n_out, "from": "data"}},
                "extern_data": {"data": {"dim": 2}},
                "behavior_version": 21,
            }
        )
    )


def test_round_trip(tmp_path):
    """Parameters and step come back; the folder is made."""
    net, other = network(), network()
    net.params["output/W"].assign(np.arange(6.0).reshape(2, 3))
    net.global_step.assign(17)
    path = str(tmp_path / "new" / "net")
    save_checkpoint(net, path)
    load_checkpoint(other, path)
    np.testing.assert_array_equal(other.params["output/W"].numpy(), np.arange(6.0).reshape(2, 3))
    assert int(other.global_step.numpy()) == 17


def test_mistakes(tmp_path):
    """A missing file and another network."""
    with pytest.raises(DataError, match="The checkpoint .*none can't be used: none.index is missing"):
        load_checkpoint(network(), str(tmp_path / "none"))
    save_checkpoint(network(), str(tmp_path / "net"))
    with pytest.raises(DataError, match="does not fit the network"):
        load_checkpoint(network(n_out=4), str(tmp_path / "net"))
