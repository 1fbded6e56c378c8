#!/usr/bin/env python3
"""Uses the package from Python, with a training loop and data of one's own and no config file.

    python demos/framework/train.py

The task: steps of a walk go up or down; say after each step whether the walk is above, at or below its start. An LSTM
must count for that. Prints the error of each epoch, and at last what the network says about one walk.
"""

from __future__ import annotations

import argparse

import numpy as np

import returnn_tf

ANSWERS = "-0+"

SETTINGS = {
    "behavior_version": 21,
    "extern_data": {"data": {"dim": 1}, "classes": {"dim": len(ANSWERS), "sparse": True}},
    "network": {
        "lstm": {"class": "rec", "unit": "lstm", "n_out": 16, "from": "data"},
        "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "lstm"},
    },
    "optimizer": {"class": "adam"},
    "gradient_clip_global_norm": 50.0,
    "learning_rate": 0.02,
    "learning_rate_control": "newbob",
}


def make_batch(rng: np.random.Generator, num_seqs: int = 50, max_length: int = 25) -> dict[str, np.ndarray]:
    """Return random walks, padded, as `Network.run` and `Trainer.step` take them.

    :return: ``data`` float32 [batch, time, 1], ``classes`` int32 [batch, time], and the lengths of both, int32 [batch]
    """
    lengths = rng.integers(5, max_length + 1, size=num_seqs).astype("int32")
    steps = rng.choice([-1, 1], size=(num_seqs, lengths.max())).astype("float32")
    classes = np.sign(steps.cumsum(axis=1)).astype("int32") + 1
    return {"data": steps[:, :, None], "data/size0": lengths, "classes": classes, "classes/size0": lengths}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=40, help="steps in an epoch")
    parser.add_argument("--save", metavar="FILE.npz", help="write the parameters")
    args = parser.parse_args()

    config = returnn_tf.Config(SETTINGS)
    net = returnn_tf.Network.from_config(config, train=True)
    trainer = returnn_tf.Trainer(net, config)
    control = returnn_tf.LearningRateControl.from_config(config)
    rng = np.random.default_rng(1)
    dev = make_batch(np.random.default_rng(2), num_seqs=200)
    num_frames = dev["data/size0"].sum()

    for epoch in range(1, args.epochs + 1):
        rate = control.learning_rate(epoch)
        losses = [trainer.step(make_batch(rng), learning_rate=rate).total_loss for _ in range(args.steps)]
        result = net.run(dev, train=False)  # without dropout and the like
        score, error = result.losses["output"] / num_frames, result.errors["output"] / num_frames
        control.set_errors(epoch, {"dev_score": float(score), "dev_error": float(error)})
        print(
            "epoch %d: learning rate %g, loss of the last batch %.1f, dev score %.4f, dev error %.2f %%"
            % (epoch, rate, losses[-1], score, 100 * error)
        )

    output = result.layers["output"]
    length = output.sizes[1][0]
    answer = output.value[0, :length].argmax(axis=-1)
    print("steps:     " + "".join("\\/"[int(step > 0)] for step in dev["data"][0, :length, 0]))
    print("reference: " + "".join(ANSWERS[k] for k in dev["classes"][0, :length]))
    print("network:   " + "".join(ANSWERS[k] for k in answer))
    if args.save:
        np.savez(args.save, **net.get_param_values())


if __name__ == "__main__":
    main()
