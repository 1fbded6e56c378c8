"""A program that behaves like RASR's nn-trainer towards Python, as far as the tests need it.

It understands ``--name=value`` and ``--*.name=value``, later ones win. The corpus is ``fake.corpus``, a JSON list of
{name, orth, speaker, feat [time][dim], align}. ``fake.mode``:

* python: imports the module it is told, and calls it like the action python-control with the loop type iterate-corpus.
* trainer: calls the functions of a PythonTrainer. * direct: writes to the pipe itself.

* loop, iter, layer: a server of losses and automata, with the loop types python-control-loop and iterate-corpus, or
  with a PythonLayer. The loss of a segment is minus the sum of log p(class 0), its error signal p - onehot(0). The
  automaton of a segment has a state after each character of its name, with loops, classes by position, weights 0.25.

``fake.fail`` names what goes wrong, ``fake.log`` a file that gets the words of the command line.
"""

import contextlib
import importlib
import json
import os
import pickle
import random
import struct
import sys
import time
import types


class Array:
    """Stands for an array of numpy in a pickle: importing numpy would take most of the time of a test."""

    def __init__(self, shape, code, content, offset=0, strides=None, order="C"):
        self.arguments = shape, code, content, offset, strides, order

    def __reduce__(self):
        return Array, self.arguments


def vectors(rows):
    """Return features [dim, time], in the order of RASR."""
    return Array(
        (len(rows[0]), len(rows)), "<f4", b"".join(struct.pack("<%df" % len(row), *row) for row in rows), 0, None, "F"
    )


def numbers(values):
    return Array((len(values),), "<u4", struct.pack("<%dI" % len(values), *values))


def parse(words):
    """Return the value of each parameter, by its name without ``--*.``."""
    pairs = [word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word]
    return {name[2:] if name.startswith("*.") else name: value for name, value in pairs}


OPTIONS = parse(sys.argv[1:])
FAIL = OPTIONS.get("fake.fail", "")


def option(name, default=""):
    return OPTIONS.get(name, default)


def lines_of(path):
    with open(path, encoding="utf8") as file:
        return [line.strip() for line in file if line.strip() and not line.startswith("#")]


def ordered(corpus):
    """Return all segments: in the order of the corpus or of a file, shuffled, sorted by length within blocks."""
    by_name = {segment["name"]: segment for segment in corpus}
    names = list(by_name)
    if option("corpus.segment-order"):
        names = lines_of(option("corpus.segment-order"))
        unknown = [name for name in names if name not in by_name]
        if unknown:
            sys.exit("segment %s of the segment order is not in the corpus" % unknown[0])
    shuffle = option("corpus.segment-order-shuffle", option("segment-order-shuffle"))
    if shuffle == "true":
        random.Random(int(option("seed", "0"))).shuffle(names)
    segments = [by_name[name] for name in names]
    if option("segment-order-sort-by-time-length") == "true":
        size = int(option("segment-order-sort-by-time-length-chunk-size", "-1"))
        size = size if size > 0 else len(segments)
        blocks = [segments[start : start + size] for start in range(0, len(segments), size)]
        segments = [segment for block in blocks for segment in sorted(block, key=lambda one: len(one["feat"]))]
    return segments


def selected(segments):
    """Yield those of the partition, and in the whitelist."""
    parts, part = int(option("corpus.partition", "0")), int(option("corpus.select-partition", "0"))
    whitelist = option("corpus.segments.file") and set(lines_of(option("corpus.segments.file")))
    if whitelist == set():
        sys.exit("the whitelist is empty")
    for number, segment in enumerate(segments):
        name = segment["name"]
        if parts and number % parts != part % parts:
            continue
        if not whitelist or name in whitelist or name.split("/")[-1] in whitelist:
            yield segment


def import_modules():
    sys.path.insert(0, option("pymod-path"))
    return importlib.import_module(option("pymod-name"))


def run_direct(corpus):
    config = dict(part.split(":", 1) for part in option("pymod-config").split(","))
    pipe = os.fdopen(int(config["c2p_fd"]), "wb")

    def send(*message):
        content = pickle.dumps(message, 4)
        pipe.write(struct.pack("<i", len(content)) + content)
        pipe.flush()

    Array.__module__, Array.__name__, Array.__qualname__ = "numpy", "ndarray", "ndarray"
    sys.modules["numpy"] = types.SimpleNamespace(ndarray=Array)
    segments = ordered(corpus)
    dim = len(corpus[0]["feat"][0])
    if FAIL == "garbage":
        pipe.write(b"<?xml version='1.0'?><sprint>")
        pipe.flush()
        time.sleep(1000)
    if FAIL == "strange dims":
        send("init", ("2", None, 1))
    send("init", (dim + (FAIL == "dim"), int(option("trainer-output-dimension", "-1")), len(segments)))
    if FAIL == "hang":
        time.sleep(1000)
    for number, segment in enumerate(selected(segments)):
        if number == 1 and FAIL in ("mid", "kill"):
            print("reading of the feature cache failed", flush=True)
            os.kill(os.getpid(), 9) if FAIL == "kill" else os._exit(5)
        targets = {"orth": segment["orth"], "speaker_name": segment["speaker"], "classes": segment["align"]}
        targets = {key: value for key, value in targets.items() if value is not None}
        if FAIL == "short":
            targets["classes"] = targets["classes"][:-1]
        if "classes" in targets:
            targets["classes"] = numbers(targets["classes"])
        if FAIL == "bytes":
            targets["orth"] = targets["orth"].encode()
        if FAIL == "not UTF-8":
            targets["orth"] = b"\xff"
        if FAIL == "weird":
            targets["strange"] = 3.5
        features = vectors(segment["feat"])
        if FAIL == "code":
            features = os.getcwd  # a function
        if FAIL == "many":
            for copy in range(100000):
                send("data", ("%s/%d" % (segment["name"], copy), features, targets))
        send("data", (segment["name"], features, targets))
    if FAIL == "unknown":
        send("hello", None)
    if FAIL == "no tuple":
        content = pickle.dumps(["data"])
        pipe.write(struct.pack("<i", len(content)) + content)
        pipe.flush()
    if FAIL != "noexit":
        send("exit", None)
    if FAIL == "exit code":
        os._exit(7)


def arrays(segment):
    import numpy as np

    features = np.asfortranarray(np.array(segment["feat"], "float64" if FAIL == "double" else "float32").T)
    align = segment.get("align")
    return features, None if align is None else np.array(align, "uint32")


def run_python(corpus):
    """Action python-control, loop type iterate-corpus."""
    module = import_modules()
    segments = ordered(corpus)
    output_dim = int(option("trainer-output-dimension", "-1"))
    control = module.init(
        name="Sprint.PythonControl",
        sprint_unit="NnTrainer.pythonControl",
        reference=None,
        callback=lambda command, *arguments, **keywords: None,
        version_number=5,
        config=option("pymod-config"),
        later_keyword=1,
    )
    names = module.getSegmentList(
        corpusName="corpus", segmentList=[one["name"] for one in segments], segmentsInfo=None, config=""
    )
    chosen = {segment["name"]: segment for segment in selected(segments)}
    started = False
    for name in names:
        if name not in chosen:
            continue
        segment = chosen[name]
        features, alignment = arrays(segment)
        if not started:
            control.init_processing(input_dim=len(features), output_dim=output_dim, later_keyword=1)
            started = True
        orth = segment.get("orth")
        values = {"features": features, "alignment": alignment, "soft_alignment": None}
        if FAIL == "soft":
            import numpy as np

            frames = np.arange(len(alignment), dtype="uint32")
            values.update(alignment=None, soft_alignment=(frames, alignment, np.ones(len(frames), "float32")))
        if FAIL == "no features":
            values["features"] = None
        if FAIL == "bytes":
            orth = orth.encode()
        if FAIL == "no speech":
            orth = None
        control.process_segment(
            name=name, orthography=orth, speaker_name=segment.get("speaker"), later_keyword=1, **values
        )
    control.exit()


def run_trainer(corpus):
    """PythonTrainer: the module is asked for the order first, and initialised with the first data."""
    module = import_modules()
    segments = ordered(corpus)
    module.getSegmentList(
        corpusName="corpus", segmentList=[one["name"] for one in segments], segmentsInfo=None, config=""
    )
    mode = option("target-mode", "target-generic")
    started = False
    for segment in selected(segments):
        features, alignment = arrays(segment)
        if not started:
            module.init(
                inputDim=len(features),
                outputDim=int(option("trainer-output-dimension", "-1")),
                allowDownsampling=False,
                config=option("pymod-config"),
                targetMode=mode,
                cudaEnabled=False,
                cudaActiveGpu=-1,
            )
            started = True
        common = {"features": features, "weights": None, "segmentName": segment["name"]}
        orth = segment.get("orth")
        if mode == "target-generic":
            speaker = {"speaker_name": segment.get("speaker"), "speaker_gender": "unknown"}
            module.feedInputAndTarget(alignment=alignment, orthography=orth, **common, **speaker)
        elif mode == "target-alignment":
            module.feedInputAndTargetAlignment(targetAlignment=alignment, **common)
        elif mode == "target-segment-orth":
            module.feedInputAndTargetSegmentOrth(targetSegmentOrth=orth, **common)
        elif mode == "unsupervised":
            module.feedInputUnsupervised(**common)
        else:
            module.feedInputForwarding(**common)
    module.exit()


def callback(command, *arguments, **keywords):
    """What RASR answers to our module."""
    import numpy as np

    if command == "export_allophone_state_fsa_by_segment_name":
        (segment,) = arguments
        if segment == "bad":
            raise RuntimeError("no such segment")
        states = range(len(segment))
        edges = [(state, state + 1, 0) for state in states] + [(state + 1, state + 1, 0) for state in states]
        edges = np.array(edges, "uint32").reshape(-1, 3)
        edges[:, 2] = np.tile(np.arange(len(segment)), 2)
        if FAIL == "edges":
            edges[0, 1] = 1000
        return len(segment) + 1, len(edges), edges.T.reshape(-1), np.full(len(edges), 0.25, "float32")
    if command == "calculate_criterion":
        assert isinstance(keywords.get("orthography", ""), str) and keywords["output_error_type"] == "error-signal"
        posteriors = keywords["posteriors"]
        assert posteriors.flags.f_contiguous and posteriors.dtype == "float32"
        if keywords["segment_name"] == "discard":
            return None, None
        if keywords["segment_name"] == "bad":
            raise RuntimeError("no such segment")
        return criterion(posteriors)
    raise AssertionError(command)


def criterion(log_posteriors):
    """Return loss and error signal [dim, time] of log posteriors [dim, time]."""
    import numpy as np

    error = np.exp(log_posteriors)
    error[0] -= 1
    if FAIL == "shape":
        error = error[:, :-1]
    return -float(log_posteriors[0].sum()), error


def run_server():
    module = import_modules()
    if FAIL == "hang before reading":
        time.sleep(1000)
    config = {"name": "Sprint.PythonControl", "reference": None, "callback": callback, "config": option("pymod-config")}
    version = int(option("fake.version", "5"))
    layer = option("fake.mode") == "layer"
    unit = "SegmentwiseNnTrainer" if layer else "NnTrainer.pythonControl"
    control = module.init(sprint_unit=unit, version_number=version, **config)
    if option("fake.mode") == "loop":
        control.run_control_loop(callback=callback)
    else:
        order = {"corpusName": "corpus", "segmentList": ["a", "b"], "segmentsInfo": None}
        order["config"] = option("python-segment-order-config")
        run_layer(module, control, order) if layer else run_segments(module, control, order)
    control.exit()


def run_segments(module, control, order):
    for number, name in enumerate(module.getSegmentList(**order)):
        if number == 0:
            control.init_processing(input_dim=-1, output_dim=-1)
        if FAIL == "skip":
            continue
        nothing = {"alignment": None, "soft_alignment": None, "speaker_name": None}
        features = [[0.0]] if FAIL == "features" else None
        orth = b"hello " if FAIL == "bytes" else "hello "
        control.process_segment(name=name, orthography=orth, features=features, **nothing)


def run_layer(module, control, order):
    import numpy as np

    layer = module.SprintNnPythonLayer(config=option("pymod-config"))
    layer.setInputDimension(stream=0, size=3)
    layer.setOutputDimension(size=4)
    layer.initializeNetworkParameters()
    layer.finalize()
    assert layer.isTrainable() and layer.getNumberOfFreeParameters() == 0
    for name in module.getSegmentList(**order):
        control.init_segment(segment_name=name)
        posteriors = layer.forward(input=[np.zeros((3, 2), "float32")])
        if name == "discard":
            continue
        loss, error = criterion(posteriors)
        control.notify_segment_loss(segment_name=name, loss=loss)
        (back,) = layer.backpropagate(errorSignalIn=error)
        assert back.shape == (3, 2)


def main():
    if option("fake.log"):
        with open(option("fake.log"), "a", encoding="utf8") as file:
            file.write(json.dumps(sys.argv[1:]) + "\n")
    if option("fake.pid"):
        with open(option("fake.pid"), "w") as file:
            file.write(str(os.getpid()))
    if option("log-channel.file"):
        with open(option("log-channel.file"), "w") as file:
            file.write("configuration read\nCRITICAL ERROR: %s\n" % FAIL)
    if FAIL == "start":
        sys.exit(3)
    if FAIL == "silent":
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(1000)
    if option("python-control-enabled") == "true":
        run_server()
        return
    with open(option("fake.corpus"), encoding="utf8") as file:
        corpus = json.load(file)
    {"direct": run_direct, "python": run_python, "trainer": run_trainer}[option("fake.mode", "direct")](corpus)


if __name__ == "__main__":
    main()
