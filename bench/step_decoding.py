"""A search outside of the network: over the single steps of exports, beside the search of the network itself.

    python bench/step_decoding.py [--points 1,1/16,4] [--layers N] [--labels N] [--steps N] [--rounds N] [--cpu]

The decoder is that of bench/transformer_search.py. Its steps are exported once for TensorFlow (``--to steps``) and
once for ONNX (``--to onnx --stateful output``), and searched in Python by the same code, `StepSearch`, which ranks with
numpy and reorders all states of the hypotheses; the network keeps them in place. A point is a number of sentences, and
a beam. All have to find the same labels, up to ties. Each side runs in a process of its own, in turn; speeds are
medians and count the labels of the best hypotheses, ratios are medians of those within a round.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
from typing import Any, Callable, Optional

import numpy as np
import transformer_search
from decode_peers import LEAST_SAME, agreement, parsed_points
from report import table
from workers import Worker, serve

Searches = dict[str, Callable[[], Any]]
END = 0  # no hypothesis chooses it before the last step


def searcher(asked: dict[str, Any], beam: int) -> Any:
    """Return the `Network` in search."""
    return transformer_search.searcher(beam, asked["labels"], asked["steps"], None, layers=asked["layers"])


def searches(asked: dict[str, Any], search: Callable[[dict[str, Any], int], Any]) -> Searches:
    """Return a search for each point.

    :param search: batch, beam -> labels of the best hypotheses [sentences, steps]
    """
    return {
        "%d,%d" % (batch, beam): functools.partial(search, transformer_search.sources(batch), beam)
        for batch, beam in asked["points"]
    }


def network(asked: dict[str, Any]) -> Searches:
    """Search within the network."""

    @functools.lru_cache(maxsize=1)  # points are in the order of beams
    def net(beam: int) -> Any:
        return searcher(asked, beam)

    return searches(asked, lambda batch, beam: net(beam).run(batch).layers["decision"].value.tolist())


def steps(asked: dict[str, Any]) -> Searches:
    """Search over the graph of single steps."""
    from returnn_tf.export.steps.client import StepDecoder

    decoder = StepDecoder.open(asked["steps_folder"])
    return searches(asked, lambda batch, beam: decoder.search(batch, beam_size=beam).labels[0][:, 0].tolist())


class OnnxStepper:
    """The ONNX models for single steps, as `StepSearch` asks for a step.

    :param folder: of the export
    """

    choices = scored = ("output",)

    def __init__(self, folder: str, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self._encoder, self._initializer, self._updater, self._scorer = (
            onnxruntime.InferenceSession(os.path.join(folder, name + ".onnx"), options, ["CPUExecutionProvider"])
            for name in ("encoder", "state_initializer", "state_updater", "scorer")
        )
        self._encoded: dict[str, np.ndarray] = {}
        self._states: dict[str, np.ndarray] = {}
        self._is_first = True

    def encode(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the encoder, and return the states before the first label.

        :param batch: "data" and "data/size0"
        """
        self._encoded = self._run(self._encoder, {key.replace("/", "_"): value for key, value in batch.items()}, {})
        self._is_first = True
        return self._run(self._initializer, self._encoded, {})

    def begin(self, labels: np.ndarray, states: dict[str, np.ndarray]) -> None:
        """Begin a step: the states after the labels chosen last; the initialiser has taken those of the first step."""
        self._states = states
        if not self._is_first:
            self._states = self._run(self._updater, {**self._encoded, "token": labels}, states)
        self._is_first = False

    def scores(self, _choice: str) -> np.ndarray:
        """Return log probabilities [hypotheses, labels]."""
        return self._run(self._scorer, {}, self._states)["scores"]

    def states(self, _step: int) -> dict[str, np.ndarray]:
        """Return the states of this step."""
        return self._states

    def select(self, states: dict[str, np.ndarray], entries: np.ndarray) -> dict[str, np.ndarray]:
        """Return the states of other hypotheses."""
        return {name: value[entries] for name, value in states.items()}

    def goes_on(self) -> bool:
        """Return True: `StepSearch` counts the steps."""
        return True

    def ended(self) -> Optional[np.ndarray]:
        """Return None: `StepSearch` knows the label that ends a hypothesis."""
        return None

    lengths = ended

    @staticmethod
    def _run(session: Any, feed: dict[str, np.ndarray], states: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return outputs, those that are states by the names of these; the metadata of the model tell them."""
        state_of = session.get_modelmeta().custom_metadata_map
        inputs = [x.name for x in session.get_inputs()]
        values = session.run(None, {x: states[state_of[x]] if x in state_of else feed[x] for x in inputs})
        return {state_of.get(x.name, x.name): value for x, value in zip(session.get_outputs(), values)}


def onnx(asked: dict[str, Any]) -> Searches:
    """Search over the steps in onnxruntime."""
    from returnn_tf.export.steps.search import ChoiceOptions, SearchOptions, StepSearch

    stepper: Any = OnnxStepper(asked["onnx_folder"], asked["threads"])

    def search(batch: dict[str, np.ndarray], beam: int) -> Any:
        options = SearchOptions([ChoiceOptions(beam)], end_label=END, max_steps=asked["steps"])
        return StepSearch(stepper, options).run(stepper.encode(batch), len(batch["data"])).labels[0][:, 0].tolist()

    return searches(asked, search)


#: name of a row -> what it searches
SIDES: dict[str, Callable[[dict[str, Any]], Searches]] = {
    "network": network,
    "steps, TensorFlow": steps,
    "steps, onnxruntime": onnx,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    points = [(batch, beam) for beam in (1, 4, 12) for batch in (1, 16)]
    parser.add_argument("--points", type=parsed_points, default=points, help="sentences,beam/sentences,beam/...")
    parser.add_argument("--layers", type=int, default=transformer_search.LAYERS)
    parser.add_argument("--labels", type=int, default=10000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="count CPU seconds: for a machine with other load")
    args = parser.parse_args()
    args.points = sorted(args.points, key=lambda point: (point[1], point[0]))
    with tempfile.TemporaryDirectory() as temp:
        folders = {key: os.path.join(temp, key) for key in ("steps_folder", "onnx_folder")}
        report(args, {**vars(args), **folders})


def export(asked: dict[str, Any]) -> None:
    """Write the steps of the decoder."""
    import returnn_tf

    net = searcher(asked, asked["points"][0][1])
    returnn_tf.export(net, asked["steps_folder"], "steps")
    returnn_tf.export(net, asked["onnx_folder"], "onnx", stateful="output")


def report(args: argparse.Namespace, asked: dict[str, Any]) -> None:
    """Measure all points, and print the table."""
    export(asked)
    workers = []
    for name in SIDES:
        options = ["--worker", name, json.dumps(asked)]
        workers.append(Worker(name, sys.executable, "step_decoding.py", options, args.threads, args.cpu))
        workers[-1].wait("%d,%d" % args.points[0])
    rows = [row for point in args.points for row in measured(workers, point, args)]
    unit = "labels / CPU s" if args.cpu else "labels/s"
    print(table(["sentences, beam, search", unit, "of the network", "same labels"], rows))
    for worker in workers:
        worker.close()


def measured(workers: list[Any], point: tuple[int, int], args: argparse.Namespace) -> list[list[str]]:
    """Time a point in all workers, in turn, and return its rows of the table."""
    what = "%d,%d" % point
    for worker in workers:
        worker.wait(what, 1)  # the first one builds the graph, or plans the memory
    for _ in range(args.rounds):
        for worker in workers:
            worker.run(what)
            shape = np.shape(worker.last["result"])
            if shape != (point[0], args.steps):
                raise SystemExit("%s found labels of the shape %s for the point %s" % (worker.name, shape, what))
    base, rows = workers[0], []
    for worker in workers:
        same = agreement(worker.last["result"], base.last["result"])
        if same < LEAST_SAME:
            text = "%s: only %.0f %% of the labels are the same for the point %s"
            raise SystemExit(text % (worker.name, 100 * same, what))
        speed = point[0] * args.steps / worker.median(what)
        ratio = np.median(np.divide(base.times[what], worker.times[what]))
        rows.append(["%d, %d, %s" % (*point, worker.name), "%.0f" % speed, "%.2f" % ratio, "%.2f" % same])
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        serve(lambda: SIDES[sys.argv[2]](json.loads(sys.argv[3])), warm_up=False)
    else:
        main()
