"""Optimizers and update options against recorded parameter values after each of several updates."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.engine.passes.step_trainer import StepTrainer

CASES = sorted(pathlib.Path(__file__).parent.parent.joinpath("data/parity/updater").glob("*.config"))


def differences(trainer: StepTrainer, ref: Any) -> list[str]:
    """Run all updates of a case; return the numbers that differ from the recorded ones."""
    meta = json.loads(str(ref["meta"]))
    tolerance: dict[str, float] = {"rtol": meta["rtol"], "atol": meta["atol"]}
    found = []
    for step in range(meta["num_steps"]):
        prefix = "step%i/" % step
        feed = {key[len(prefix + "in/") :]: ref[key] for key in ref.files if key.startswith(prefix + "in/")}
        result = trainer.step(feed, learning_rate=float(ref[prefix + "learning_rate"]))
        if not np.allclose(result.total_loss, ref[prefix + "total_loss"], equal_nan=True, **tolerance):
            found.append("step %i, loss: %s, not %s" % (step, result.total_loss, ref[prefix + "total_loss"]))
        for name, var in trainer.net.params.items():
            value = ref[prefix + "param/" + name]
            if not np.allclose(var.numpy(), value, **tolerance):
                found.append("step %i, %s: differs by %s" % (step, name, np.abs(var.numpy() - value).max()))
    return found


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_updates_give_the_recorded_parameters(path: pathlib.Path) -> None:
    ref = np.load(path.with_suffix(".npz"), allow_pickle=False)
    config = Config.from_file(str(path))
    net = Network.from_config(config, train=True)
    net.set_param_values({key[len("param/") :]: ref[key] for key in ref.files if key.startswith("param/")})
    assert differences(StepTrainer(net, config), ref) == []
