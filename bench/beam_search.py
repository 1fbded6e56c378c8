"""Batched beam search with an attention decoder: as a config, and written by hand with `tf.while_loop`.

    python bench/beam_search.py [--rounds N] [--beam K]

Both sides have the same parameters and must find the same hypotheses. By hand the encoder frames are not copied for the
hypotheses, one gather per state follows the choice, and the labels are read backwards after the loop. The sides are
timed in turn; tokens are those of the best hypotheses, the ratio is that of the two speeds within a round, its median
over the rounds. Asked: at least 0.9.
"""

from __future__ import annotations

import argparse
from typing import Any, Callable

import numpy as np
from attention_model import END, Sizes, config, feed, lstm, set_random_params, weights
from timing import in_turn

import returnn_tf
from returnn_tf.util.lazy_tf import tf

ASKED = 0.9


class SearchByHand:
    """Beam search in one `tf.function`.

    :param values: parameters by the names of the framework
    """

    def __init__(self, s: Sizes, values: dict[str, np.ndarray], beam: int) -> None:
        self.sizes, self.beam = s, beam
        self.w = {name: tf.Variable(value) for name, value in weights(values).items()}
        signature = [tf.TensorSpec([None, None, s.encoder]), tf.TensorSpec([None], "int32")]
        self.search = tf.function(self._search, input_signature=signature, autograph=False)

    def _search(self, enc: Any, frames: Any) -> tuple[Any, Any]:
        """Return (labels [steps, batch, beam], scores [batch, beam])."""
        s, beam = self.sizes, self.beam
        w = {name: tf.convert_to_tensor(value) for name, value in self.w.items()}
        batch, size = tf.unstack(tf.shape(enc)[:2])
        entries = batch * beam
        # A sum of three axes is faster here than one of four, even with the copies for the hypotheses.
        enc_ctx = tf.repeat(tf.tensordot(enc, w["enc_w"], 1) + w["enc_b"], beam, axis=0)
        mask = tf.where(tf.sequence_mask(frames, size), 0.0, -1e30)[:, None]
        first = tf.range(batch)[:, None] * beam
        ended_scores = tf.where(tf.range(s.labels) == END, 0.0, -1e30)
        arrays = [tf.TensorArray("int32", s.steps, element_shape=[None, beam]) for _ in range(2)]

        def body(t: Any, state: Any, labels: Any, scores: Any, ended: Any, all_labels: Any, parents: Any) -> Any:
            c, h, att, total = state
            emb = tf.gather(w["emb"], tf.reshape(labels, [-1]))
            c, h = lstm(tf.matmul(tf.concat([emb, att, h], axis=1), w["lstm_w"]) + w["lstm_b"], c)
            feedback = tf.reshape(total, [entries, size, 1]) * w["feedback"][0]
            hidden = tf.tanh(enc_ctx + tf.matmul(h, w["s_ctx"])[:, None] + feedback)
            energy = tf.reshape(tf.tensordot(hidden, w["energy"][:, 0], 1), [batch, beam, size])
            attended = tf.nn.softmax(energy + mask)
            att = tf.reshape(tf.matmul(attended, enc), [-1, s.encoder])
            read = tf.tanh(tf.matmul(tf.concat([h, att, emb], axis=1), w["read_w"]) + w["read_b"])
            log_probs = tf.nn.log_softmax(tf.matmul(read, w["out_w"]) + w["out_b"])
            log_probs = tf.reshape(log_probs, [batch, beam, s.labels])
            log_probs = tf.where(ended[..., None], ended_scores, log_probs) + scores[..., None]
            scores, index = tf.math.top_k(tf.reshape(log_probs, [batch, beam * s.labels]), beam)
            parent, labels = index // s.labels, index % s.labels
            flat = tf.reshape(parent + first, [-1])
            state = [tf.gather(x, flat) for x in (c, h, att)]
            state.append(tf.gather(total + attended, parent, batch_dims=1))
            ended = tf.logical_or(tf.gather(ended, parent, batch_dims=1), labels == END)
            return t + 1, state, labels, scores, ended, all_labels.write(t, labels), parents.write(t, parent)

        state = [tf.zeros(tf.stack([entries, n])) for n in (s.lstm, s.lstm, s.encoder)]
        state.append(tf.zeros(tf.stack([batch, beam, size])))
        scores = tf.tile(tf.where(tf.range(beam) == 0, 0.0, float("-inf"))[None], [batch, 1])
        labels, ended = tf.fill([batch, beam], END), tf.fill([batch, beam], False)
        steps, _, _, scores, _, all_labels, parents = tf.while_loop(
            lambda t, _s, _l, _p, ended, *_: tf.logical_not(tf.reduce_all(ended)), body,
            [0, state, labels, scores, ended, *arrays], maximum_iterations=s.steps,
        )  # fmt: skip
        return self._read_backwards(all_labels, parents, steps, batch), scores

    def _read_backwards(self, labels: Any, parents: Any, steps: Any, batch: Any) -> Any:
        def body(t: Any, entry: Any, result: Any) -> Any:
            result = result.write(t, tf.gather(labels.read(t), entry, batch_dims=1))
            return t - 1, tf.gather(parents.read(t), entry, batch_dims=1), result

        entry = tf.tile(tf.range(self.beam)[None], [batch, 1])
        result = tf.TensorArray("int32", steps, element_shape=[None, self.beam])
        return tf.while_loop(lambda t, *_: t >= 0, body, [steps - 1, entry, result])[2].stack()


def searching_sides(s: Sizes, beam: int) -> list[Callable[[], Any]]:
    """Return (by hand, framework): functions that search and return labels [batch * beam, steps] and scores."""
    settings = config(s, beam=beam, search_options={"length_normalization": False})
    net = returnn_tf.Network.from_config(settings, search=True)
    set_random_params(net, 0.1)
    data = {key: tf.constant(value) for key, value in feed(s).items()}
    by_hand = SearchByHand(s, net.get_param_values(), beam)

    def hand() -> Any:
        labels, scores = by_hand.search(data["data"], data["data/size0"])
        return np.reshape(labels.numpy(), [labels.shape[0], -1]).T, scores.numpy()

    def framework() -> Any:
        layer = net.run(data).layers["output"]
        return layer.value, layer.beam_scores

    return [hand, framework]


def check_hypotheses(sides: list[Callable[[], Any]]) -> int:
    """Raise if the sides find other hypotheses; return the number of tokens of the best ones."""
    (labels, scores), (other_labels, other_scores) = [side() for side in sides]
    np.testing.assert_allclose(scores, other_scores, rtol=1e-4)
    steps = other_labels.shape[1]  # where every hypothesis has ended, the framework leaves out the end
    assert (labels[:, :steps] == other_labels).mean() > 0.99, "the hypotheses differ"
    return labels.shape[1] * scores.shape[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="timed searches of each side")
    parser.add_argument("--beam", type=int, default=12)
    parser.add_argument("--cpu", action="store_true", help="count CPU seconds instead: for a machine with other load")
    args = parser.parse_args()
    sides = searching_sides(Sizes(), args.beam)
    tokens = check_hypotheses(sides)
    times = in_turn(sides[0], sides[1], args.rounds, cpu=args.cpu)
    by_hand, framework = tokens / np.median(times, axis=0)
    ratio = float(np.median(times[:, 0] / times[:, 1]))
    print("%-28s %14s %14s %7s %7s" % ("search", "by hand", "framework", "ratio", "asked"))
    name = "attention decoder, beam %d" % args.beam
    print("%-28s %7.0f token/s %7.0f token/s %6.2f >= %.2f" % (name, by_hand, framework, ratio, ASKED))


if __name__ == "__main__":
    main()
