"""returnn-tf check --json: the document has the form of the schema, and says what the plan is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from returnn_tf.cli import check
from returnn_tf.cli.main import main

try:
    import jsonschema
except ImportError:  # an extra: what follows then does not look at the form of all values
    jsonschema = None

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "check.schema.json").read_text(encoding="utf8"))

SMALL = """
behavior_version = 21
extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
network = {
    "a": {"class": "hidden", "n_out": 3, "from": "data", "activation": None, "trainable": False},
    "output": {"class": "softmax", "loss": "ce", "loss_scale": 0.5, "from": "a",
               "loss_opts": {"use_normalized_loss": True}},
}
"""

LOOP = """
behavior_version = 21
extern_data = {"data": {"dim": 9}, "classes": {"dim": 5, "sparse": True, "available_for_inference": False}}
network = {
    "sub": {"class": "subnetwork", "from": "data", "subnetwork": {
        "x": {"class": "linear", "n_out": 4, "activation": "tanh", "from": "data"},
        "output": {"class": "copy", "from": "x"}}},
    "dec": {"class": "rec", "from": "sub", "target": "classes", "unit": {
        "emb": {"class": "linear", "activation": None, "from": "prev:out", "n_out": 3},
        "s": {"class": "rec", "unit": "lstm", "from": ["emb", "data:source"], "n_out": 6},
        "prob": {"class": "softmax", "from": "s", "target": "classes", "loss": "ce"},
        "out": {"class": "choice", "from": "prob", "target": "classes", "beam_size": 2, "initial_output": 0},
        "output": {"class": "copy", "from": "out"}}},
    "output": {"class": "copy", "from": "dec"},
    "unused": {"class": "linear", "from": "nowhere"},
}
"""

PRETRAIN = """
behavior_version = 21
extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
network = {
    "a": {"class": "linear", "n_out": 3, "from": "data"},
    "b": {"class": "linear", "n_out": 3, "from": "a"},
    "output": {"class": "softmax", "loss": "ce", "from": "b"},
}
num_epochs = 5


def construct(idx, net_dict):
    if idx >= 1:
        return None
    net_dict["#config"] = {"learning_rate": 0.25}
    net_dict["output"]["from"] = "a"
    del net_dict["b"]
    return net_dict


train = {"class": "Task12AXDataset", "num_seqs": 10}
pretrain = {"construction_algo": construct, "repetitions": 2}
"""


def _run(path, capsys, *options):
    """Return the exit code, the document after its validation, and the standard error."""
    code = main(["check", "--json", str(path), *options])
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    if jsonschema is not None:
        jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert document["ok"] == (code == 0)
    return code, document, captured.err


def _check(text, tmp_path, capsys, *options):
    path = tmp_path / "my.config"
    path.write_text(text)
    return _run(path, capsys, *options)


def _layers(document):
    return {layer["path"]: layer for layer in document["network"]["layers"]}


def test_schema():
    """It is a schema, and strict enough: all keys of an object that is ours are required."""
    if jsonschema is not None:
        jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for name, definition in {"": SCHEMA, **SCHEMA["$defs"]}.items():
        assert definition["required"] == list(definition["properties"]), name


def test_small_network(tmp_path, capsys):
    """Every value of the document."""
    code, document, err = _check(SMALL, tmp_path, capsys)
    assert (code, err) == (0, "")
    batch = {"dim": 0, "name": "batch", "kind": "batch", "size": None, "dynamic": False}
    time = {"dim": 1, "name": "time", "kind": "spatial", "size": None, "dynamic": True}

    def features(number, name, size):
        return {"dim": number, "name": name, "kind": "feature", "size": size, "dynamic": False}

    def output(number, name, size):
        marks = {"is_time": False, "is_feature": False, "is_loop_steps": False}
        feature = {**features(number, name, size), **marks, "is_feature": True}
        axes = [{**batch, **marks}, {**time, **marks, "is_time": True}, feature]
        return {"dtype": "float32", "axes": axes, "sparse_dim": None, "beam": None}

    network = document["network"]
    layers = _layers(document)
    assert list(layers) == ["data", "a", "output", "data:classes"]
    assert layers["data"] == {
        "path": "data", "class": "data", "data_key": "data", "sources": [], "output": output(2, "feature:data", 9),
        "further_outputs": {}, "parameters": {}, "loop": None, "zone": None, "branch": None,
    }  # fmt: skip
    assert layers["a"] == {
        "path": "a", "class": "linear", "data_key": None, "sources": [{"layer": "data", "previous_step": False}],
        "output": output(3, "a:feature", 3), "further_outputs": {}, "parameters": {"W": "a/W", "b": "a/b"},
        "loop": None, "zone": None, "branch": None,
    }  # fmt: skip
    assert layers["data:classes"]["output"]["dtype"] == "int32"
    assert layers["data:classes"]["output"]["sparse_dim"]["size"] == 2
    assert [axis["kind"] for axis in layers["data:classes"]["output"]["axes"]] == ["batch", "spatial"]
    assert network["parameters"] == [
        {"name": "a/W", "layer": "a", "shape": [9, 3], "dtype": "float32", "trainable": False},
        {"name": "a/b", "layer": "a", "shape": [3], "dtype": "float32", "trainable": False},
        {"name": "output/W", "layer": "output", "shape": [3, 2], "dtype": "float32", "trainable": True},
        {"name": "output/b", "layer": "output", "shape": [2], "dtype": "float32", "trainable": True},
    ]
    assert network["losses"] == [
        {
            "name": "output", "layer": "output", "class": "ce", "scale": 0.5, "target": "data:classes",
            "normalized_objective": True, "report_factor": None, "report_divisor": None,
        }
    ]  # fmt: skip
    assert network["totals"] == {"layers": 2, "parameters": 4, "numbers": 38, "trainable_numbers": 8}
    assert (network["train"], network["search"], network["outputs"]) == (True, False, ["output"])
    assert (network["kept_states"], network["loops"], document["stages"], document["diagnostics"]) == ([], [], [], [])
    assert document["config"] == {"files": [str(tmp_path / "my.config")], "task": "train", "behavior_version": 21}


def test_loop(tmp_path, capsys):
    """Sources behind names, zones, axes of one step and of all; a note on a layer that nothing needs, with its line."""
    _, document, _ = _check(LOOP, tmp_path, capsys)
    layers = _layers(document)
    assert layers["dec/emb"]["sources"] == [{"layer": "dec/out", "previous_step": True}]
    assert layers["dec/s"]["sources"][1] == {"layer": "sub", "previous_step": False}
    assert layers["sub/x"]["sources"] == [{"layer": "data", "previous_step": False}]
    assert layers["dec/s"]["parameters"]["rec/W"] == "dec/rec/s/rec/W"
    assert {path: layer["zone"] for path, layer in layers.items() if layer["loop"] == "dec"} == dict.fromkeys(
        ["dec/emb", "dec/s", "dec/prob", "dec/out", "dec/output"], "all"
    )
    assert any(axis["is_loop_steps"] for axis in layers["dec/s"]["output"]["axes"])
    (note,) = document["diagnostics"]
    lines = LOOP.splitlines()
    assert (note["severity"], note["place"]["layer"]) == ("note", "unused")
    assert "unused" in lines[note["place"]["line"] - 1]


def test_loop_in_search(tmp_path, capsys):
    """The same loop runs step by step."""
    _, document, _ = _check(LOOP, tmp_path, capsys, "++task", "search", "++no_such", "1")
    layers = _layers(document)
    zones = {path: layer["zone"] for path, layer in layers.items() if layer["loop"] == "dec"}
    assert zones == {**dict.fromkeys(["dec/emb", "dec/s", "dec/prob", "dec/out"], "step"), "dec/output": "after"}
    assert layers["dec/emb"]["sources"] == [{"layer": "dec/out", "previous_step": True}]
    assert [axis["kind"] for axis in layers["dec/s"]["output"]["axes"]] == ["batch", "feature"]
    (loop,) = document["network"]["loops"]
    assert (loop["path"], loop["ends_by"], loop["beam_size"]) == ("dec", None, 2)
    assert loop["layers"][0] == {"layer": "dec/emb", "zone": "step", "because": loop["layers"][0]["because"]}
    assert layers["dec"]["output"]["beam"] == {"size": 2, "loop": "dec"}


SPECIAL = """
behavior_version = 21
extern_data = {"data": {"dim": 4}}


def twice(reuse_layer, name, getter, full_name, shape, dtype, base_layer, **kwargs):
    return reuse_layer.params["W"] * 2.0 if name == "W" else getter(name=full_name, shape=shape, dtype=dtype, **kwargs)


network = {
    "a": {"class": "linear", "n_out": 3, "from": "data"},
    "b": {"class": "linear", "n_out": 3, "from": "data", "reuse_params": {"reuse_layer": "a", "custom": twice}},
    "c": {"class": "constant", "value": True},
    "d": {"class": "cond", "from": [], "condition": "c", "true_layer": {"class": "linear", "n_out": 3, "from": "a"},
          "false_layer": {"class": "copy", "from": "b"}},
    "output": {"class": "rec", "from": "d", "unit": {
        "output": {"class": "eval", "from": ["data:source", "prev:output", ":i"],
                   "eval": "source(0) + source(1) + tf.cast(source(2), 'float32')"}}},
}
"""


def test_special_layers(tmp_path, capsys):
    """Branches with layers of the same path, a parameter that a function computes, the index of the step."""
    code, document, _ = _check(SPECIAL, tmp_path, capsys, "++task", "forward", "--no-data")
    assert code == 0
    branches = [(layer["class"], layer["branch"]) for layer in document["network"]["layers"] if layer["branch"]]
    assert branches == [("linear", "true"), ("copy", "false")]
    layers = _layers(document)
    assert layers["b"]["parameters"]["W"] is None
    assert [source["layer"] for source in layers["output/output"]["sources"]] == ["d", "output/output", "output/:i"]
    assert [source["previous_step"] for source in layers["output/output"]["sources"]] == [False, True, False]


def test_stages(tmp_path, capsys):
    """Each stage has its epochs, settings and whole network."""
    _, document, _ = _check(PRETRAIN, tmp_path, capsys, "--no-data")
    first, second = document["stages"]
    assert (first["first_epoch"], first["last_epoch"], first["pretraining"]) == (1, 2, True)
    assert (second["first_epoch"], second["last_epoch"]) == (3, 5)
    assert (first["settings"], second["settings"]) == ({"learning_rate": 0.25}, {})
    assert [param["name"] for param in first["network"]["parameters"]] == ["a/W", "a/b", "output/W", "output/b"]
    assert first["transfer"] is None and second["transfer"]["new"] == ["b/W", "b/b"]
    assert second["network"]["parameters"] == document["network"]["parameters"] and document["epoch"] == 5


MISTAKES = [
    ("num_epochs = 'x'", 2, {"setting": "num_epochs", "line": 9}, None, ["settings"]),
    ("network['a']['n_outt'] = 3", 2, {"layer": "a", "option": "n_outt"}, "n_out", ["options"]),
    ("optimizer = {'class': 'adm'}", 2, {"setting": "optimizer", "line": 9}, "adam", None),
    ("network['output']['from'] = 'c'", 2, {"layer": "output"}, None, ["sources"]),
    ("dev = {'class': 'HDFDataset', 'files': ['/no/such.hdf']}", 1, {"option": "files"}, None, ["data-files"]),
]


@pytest.mark.parametrize("line, code, place, fix, topics", MISTAKES, ids=[row[0] for row in MISTAKES])
def test_mistakes(line, code, place, fix, topics, tmp_path, capsys):
    """Place, topics and fix are fields; exit code and error message are those without --json."""
    found, document, err = _check(SMALL + line + "\n", tmp_path, capsys)
    assert main(["check", str(tmp_path / "my.config")]) == code == found
    assert capsys.readouterr().err.endswith(err)  # warnings are in the document
    error = document["diagnostics"][0]
    assert error["severity"] == "error" and error["message"] in err and error["fix"] == fix
    assert {key: error["place"][key] for key in place} == place
    assert topics in (None, error["topics"])
    assert error["kind"] == ("data" if code == 1 else "config")


@pytest.mark.parametrize("text", ["def f(\n", "print('hello')\n1 / 0\n", "import no_such_module\n"])
def test_config_that_cannot_be_loaded(text, tmp_path, capsys):
    """There is a document all the same."""
    code, document, err = _check(text, tmp_path, capsys)
    assert code == 2 and err and "network" in document and document["config"] is None
    (error,) = document["diagnostics"]
    assert error["place"]["file"] == str(tmp_path / "my.config") and error["place"]["line"] == text.count("\n")
    assert main(["check", "--json"]) == 2
    assert "which config?" in json.loads(capsys.readouterr().out)["diagnostics"][0]["message"]


@pytest.mark.parametrize("name", ["missing", "folder", "binary", "lines", "json", "with: colon"])
def test_place_of_a_config_that_is_no_config(name, tmp_path, capsys):
    """The file is named where there is no line, too."""
    path = tmp_path / (name + ".config")
    if name == "folder":
        path.mkdir()
    elif name != "missing":
        path.write_bytes({"binary": b"\xff\xfe\x00", "json": b'{"a":\n }', "lines": b"a 1\n"}.get(name, b"a = (\n"))
    assert main(["check", "--json", str(path)]) == 2
    document = json.loads(capsys.readouterr().out)
    place = document["diagnostics"][0]["place"]
    assert not document["ok"] and place["file"] == (None if name == "lines" else str(path))
    assert place["line"] == {"json": 2, "with: colon": 1}.get(name)


def test_warnings_and_migration(tmp_path, capsys):
    """Warnings are diagnostics, as are the lines of --migrate, which --strict makes errors."""
    _, document, err = _check(SMALL + "num_epohcs = 3\n", tmp_path, capsys)
    (warning,) = document["diagnostics"]
    assert (warning["severity"], warning["fix"], warning["place"]["line"]) == ("warning", "num_epochs", 9)
    code, document, _ = _check(SMALL, tmp_path, capsys, "--migrate")
    (old,) = document["diagnostics"]
    assert code == 0 and (old["severity"], old["kind"], old["place"]["layer"]) == ("note", "migration", "a")
    assert old["fix"] == "'class': 'linear'"
    code, document, err = _check(SMALL, tmp_path, capsys, "--strict")
    assert code == 2 and "--strict" in err and document["diagnostics"][0]["severity"] == "error"


def test_graph(tmp_path, capsys):
    """The picture is drawn too."""
    assert _check(SMALL, tmp_path, capsys, "--graph", str(tmp_path / "x.svg"))[0] == 0
    assert (tmp_path / "x.svg").exists()


def test_only_json_on_standard_output(tmp_path):
    """What the config prints, itself or by other programs, goes elsewhere."""
    path = tmp_path / "my.config"
    path.write_text("import os\nprint('hello')\nos.system('echo world')\n" + SMALL)
    done = subprocess.run(
        [sys.executable, "-m", "returnn_tf", "check", "--json", str(path)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0 and json.loads(done.stdout)["ok"]
    assert "hello" in done.stderr and "world" in done.stderr


@pytest.mark.parametrize("error, kinds", [(KeyboardInterrupt(), None), (RuntimeError("a bug"), ["program"])])
def test_no_document(error, kinds, tmp_path, monkeypatch, capsys):
    """A check that the user stops writes none; one that fails in the document itself writes another one."""
    path = tmp_path / "my.config"
    path.write_text(SMALL)

    def fail(*args, **options):
        raise error

    monkeypatch.setattr(check, "document", fail)
    with pytest.raises(type(error)):
        check.run(["--json", str(path)])
    out = capsys.readouterr().out
    assert kinds == ([each["kind"] for each in json.loads(out)["diagnostics"]] if out else None)


@pytest.mark.parametrize(
    "name, task", [("attention", "train"), ("attention", "search"), ("ctc", "train"), ("xlstm-lm", "search")]
)
def test_cookbook(name, task, tmp_path, monkeypatch, capsys):
    """Real configs have the form of the schema, and sources and losses name layers that are there."""
    monkeypatch.chdir(tmp_path)  # where they write their data
    path = ROOT / "docs" / "cookbook" / (name + ".config")
    _, document, _ = _run(path, capsys, "--no-data", "++task", task)
    layers = _layers(document)
    assert len(layers) == len(document["network"]["layers"])
    names = {param["name"] for param in document["network"]["parameters"]}
    for layer in layers.values():
        assert {source["layer"] for source in layer["sources"]} <= {*layers, ":i"}, layer["path"]
        assert set(layer["parameters"].values()) <= names
