"""Random decoders: step networks with one or two choices, and the scores that their search must give."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from returnn_tf.config import Config
from tests.compiler.random_nets import BLOCKS, EXTERN, LABELS, SIZE, Layers, Steps, add_blocks, outside_layers


@dataclasses.dataclass
class Decoder:
    """A random decoder.

    :param known: the loop runs over the frames outside, else until its layer "end" says so
    :param choices: the options of the choices in the order of a step, the name of a choice in "name", the layer which
        it chooses from in "from"
    :param independent: whether a sequence alone must give the same as in a batch
    """

    seed: int
    network: Layers
    known: bool
    include_eos: bool
    end_label: int
    max_steps: int
    choices: list[Layers]
    blocks: list[str]

    def config(self, *, moved: bool = True, beam: int = 0) -> Config:
        """Return the config.

        :param moved: the option ``optimize_move_layers_out``
        :param beam: of all choices; 0: as they are
        """
        loop = dict(self.network["output"], optimize_move_layers_out=moved)
        if beam:
            loop["unit"] = dict(loop["unit"])
            for choice in self.choices:
                loop["unit"][choice["name"]] = dict(loop["unit"][choice["name"]], beam_size=beam)
        return Config({"behavior_version": 21, "extern_data": EXTERN, "network": {**self.network, "output": loop}})

    @property
    def independent(self) -> bool:
        """Whether each sequence alone must give what it gives in a batch: the spec names what depends on the batch."""
        plain = all(not c["length_normalization"] and c["base_beam_score_scale"] == 1.0 for c in self.choices)
        # After its end a sequence keeps no more hypotheses than the smallest beam of a step.
        plain = plain and self.choices[0]["beam_size"] >= self.choices[-1]["beam_size"]
        return plain and (self.include_eos or not self.known)

    def scored_steps(self, lens: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """Return how many steps of each hypothesis were scored.

        :param lens: of the hypotheses
        :param frames: length of the sequence of each of them
        """
        if self.known:
            return frames if self.include_eos else np.minimum(frames + 1, frames.max())
        return lens if self.include_eos else np.minimum(lens + 1, self.max_steps)

    def scores(
        self, log_probs: list[np.ndarray], labels: list[np.ndarray], steps: np.ndarray, longest: int
    ) -> np.ndarray:
        """Return what the scores of hypotheses must be.

        :param log_probs: of each choice [hypothesis, step, label]
        :param labels: of each choice [hypothesis, step]
        :param steps: how many were scored
        :param longest: length of the longest hypothesis of the batch
        """  # fmt: skip
        score = np.zeros(len(steps))
        rows = np.arange(len(steps))
        for t in range(int(steps.max())):
            on = t < steps
            for number, choice in enumerate(self.choices):
                base = score
                if choice["length_normalization"] and t and not number:
                    base = np.where(on, base, base * ((t + 1) / t) ** choice["length_normalization_exponent"])
                new = np.where(on, log_probs[number][rows, t, labels[number][:, t]], 0.0)
                score = choice["prob_scale"] * new + choice["base_beam_score_scale"] * base
        if any(choice["length_normalization"] for choice in self.choices):
            score = score / (longest + (0 if self.include_eos else 1))
        return score


def random_decoder(seed: int) -> Decoder:
    """Return the decoder of a seed."""
    s = Steps(np.random.default_rng([3, seed]))
    known, two, include_eos = s.chance(0.3), s.chance(0.25), s.chance(0.4)
    include_eos = include_eos or (two and not known)  # the label of the second choice at the end must be known
    s.fed_back = ["emb", "last"]
    s.vectors = {"prev:emb": SIZE, "base:first": SIZE, **({"data:source": SIZE} if known else {})}
    initial = s.one_of(0, 1)
    s.unit["emb"] = {
        "class": "linear", "activation": None, "n_out": SIZE, "from": "output",
        "initial_output": s.one_of(0, "var", "apply(0)", 0.5, "base:first"),
    }  # fmt: skip
    if s.chance(0.5):
        s.vectors["seen"] = SIZE
        s.unit["seen"] = {"class": "linear", "activation": "tanh", "n_out": SIZE, "from": "prev:output"}
    add_blocks(s, int(s.rng.integers(1, 4)), tuple(BLOCKS))
    last = [name for name in s.vectors if ":" not in name][-1]
    s.unit["last"] = {"class": "linear", "activation": "tanh", "n_out": SIZE, "from": [last, *_others(s, last)]}
    s.vectors["last"] = SIZE
    first = _choice(s, "output", "p", ["last", *_others(s, "last")], "classes", initial)
    choices = [first]
    if two:
        s.unit["emb2"] = {
            "class": "linear", "activation": None, "n_out": SIZE, "from": "extra", "initial_output": "apply(0)"
        }  # fmt: skip
        choices.append(_choice(s, "extra", "p2", ["emb", "last", "prev:emb2"], "classes2", 0))
        s.unit["extra"]["is_output_layer"] = True
    end_label = s.one_of(0, 0, LABELS - 1)
    max_steps = int(s.rng.integers(3, 7))
    loop: Layers = {"class": "rec", "from": "frames" if known else [], "target": "classes", "unit": s.unit}
    loop["include_eos"] = include_eos
    if not known:
        s.unit["end"] = {"class": "compare", "from": "output", "value": end_label}
        loop["max_seq_len"] = max_steps
    network = {
        **outside_layers(s.rng, by_frame=known),
        "output": loop,
        "best": {"class": "decide", "from": "output", "is_output_layer": True},
    }
    return Decoder(seed, network, known, include_eos, end_label, max_steps, choices, s.blocks)


def _others(s: Steps, name: str) -> list[str]:
    return [other for other in s.sources(2) if other != name]


def _choice(s: Steps, name: str, source: str, sources: list[str], target: str, initial: int) -> Layers:
    """Add a choice and what it chooses from; return its options."""
    kind, layer = s.one_of(
        ("prob", {"class": "softmax", "target": target, "loss": "ce"}),
        ("prob", {"class": "softmax", "n_out": LABELS}),
        ("prob", {"class": "linear", "activation": "softmax", "n_out": LABELS}),
        ("log_prob", {"class": "linear", "activation": "log_softmax", "n_out": LABELS}),
        ("logits", {"class": "linear", "activation": None, "n_out": LABELS}),
    )
    s.unit[source] = {**layer, "from": list(dict.fromkeys(sources)), "is_output_layer": True}
    s.unit[name] = {
        "class": "choice", "target": target, "beam_size": int(s.rng.integers(1, 6)), "from": source,
        "input_type": kind, "initial_output": initial, "length_normalization": s.chance(0.4),
        "length_normalization_exponent": s.one_of(1.0, 1.0, 0.5), "prob_scale": s.one_of(1.0, 1.0, 0.7),
        "base_beam_score_scale": s.one_of(1.0, 1.0, 1.0, 0.9),
    }  # fmt: skip
    return {"name": name, **s.unit[name]}


def param_key(name: str) -> str:
    """Return the name of a parameter without what depends on the plan.

    As in RETURNN, initial states of cells are in the scope of the unit only where the cell is not in the loop.
    """
    return name.replace("/rec/initial_", "/initial_")


def random_params(net: Any, seed: int) -> dict[str, np.ndarray]:
    """Return values for all parameters, the same for those of equal `param_key` in another network."""
    result = {}
    for name, var in net.params.items():
        rng = np.random.default_rng([seed, *param_key(name).encode("utf8")])
        result[name] = rng.normal(size=var.shape, scale=0.9).astype("float32")
    return result


def frames_feed(seed: int, lens: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return frames for "data", random in the padding too."""
    rng = np.random.default_rng([7, seed])
    data = rng.normal(size=(len(lens), max(lens), EXTERN["data"]["dim"])).astype("float32")
    return {"data": data, "data/size0": np.array(lens, "int32")}


def log_probs_of(choice: Mapping[str, Any], value: np.ndarray) -> np.ndarray:
    """Log probabilities from what a layer gives to a choice."""
    if choice["input_type"] == "prob":
        return np.log(np.maximum(value, 1e-30))
    if choice["input_type"] == "log_prob":
        return value
    shifted = value - value.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
