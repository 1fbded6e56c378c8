"""The import graph of the package: floors, cycles, imports inside functions, what ``import returnn_tf`` costs."""

import ast
import os
import re
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGE = "returnn_tf"

# lowest floor first; a module imports from its own folder and from lower floors only
FLOORS = [
    ["util"],
    ["config", "logging"],
    ["tensor"],
    ["datasets", "native"],
    ["ops"],
    ["graph"],
    ["layers"],
    ["network"],
    ["engine"],
    ["export"],
    ["tasks", "compat"],
    ["cli"],
    ["__main__"],
]
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names}

# the same within folders, lowest first; elsewhere any order without cycles will do
INNER_FLOORS = {
    "datasets": [
        ["files", "processes"],
        ["core"],
        ["vocabulary"],
        ["audio", "combining", "config", "hdf", "synthetic", "user"],
        ["text"],
        ["rasr", "speech"],
        ["loading"],
    ],
    "ops": [
        [
            "activations",
            "frames",
            "gradients",
            "initial_values",
            "mixed_precision",
            "philox",
            "softmax",
            "tf1_names",
            "xla",
        ],
        ["helpers", "initializers"],
        ["after_product", "cross_entropy", "dense", "many_labels", "normalize", "sampled_loss", "signal"],
        ["sequence"],
        ["cells"],
    ],
    "layers": [
        ["shared"],
        ["math"],
        ["dumping", "gradients", "random", "rec", "sequence", "shape"],
        ["loops", "nested", "signal"],
        ["attention", "search"],
        ["losses", "masked"],
    ],
    "network": [
        ["feed", "for_xla", "planning"],
        ["packed_layers", "result"],
        ["feed_function", "initial_values", "kept_states", "loops", "lower", "requested"],
        ["inner_weights", "plan_network"],
        ["plan_config"],
        ["network"],
        ["describe"],
    ],
    "engine": [
        ["support"],
        ["learning_rate", "update"],
        ["distributed"],
        ["data"],
        ["passes"],
        ["search"],
        ["checkpoints"],
        ["monitoring", "pretrain"],
        ["training"],
    ],
}

MOST_MODULES = 25  # of a folder

# heavy and optional: these may be imported inside functions, everything else only at the top of a module
DEFERRED = {
    "matplotlib",
    "horovod",
    "tensorflow_io",
    "tensorflow",
    "tensorboard",
    "kenlm",
    "IPython",
    "inflect",
    "onnx",
    "onnxruntime",
    "tf2onnx",
    "sentencepiece",
    "unidecode",
    "scipy",
    "soundfile",
    "soxr",
    "pyworld",
}

#: The one module for data that loads TensorFlow, inside of a function.
TF_DECODER = "returnn_tf.datasets.audio.tensorflow_decoder"


def parse_package():
    """Return dotted name -> (path, syntax tree) of every module."""
    modules = {}
    for folder, _, files in os.walk(os.path.join(ROOT, PACKAGE)):
        for file in files:
            if file.endswith(".py"):
                path = os.path.join(folder, file)
                name = os.path.relpath(path, ROOT)[:-3].replace(os.sep, ".")
                with open(path, encoding="utf8") as f:
                    modules[name.replace(".__init__", "")] = path, ast.parse(f.read(), path)
    return modules


MODULES = parse_package()


def imports_of(name):
    """Return (imported dotted name, line, inside a function) of a module; what only type checkers see is left out."""
    path, tree = MODULES[name]
    found = []

    def visit(node, in_function):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                visit(child, in_function)
            return
        if isinstance(node, ast.Import):
            found.extend((alias.name, node.lineno, in_function) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "%s:%d: relative import" % (path, node.lineno)
            for alias in node.names:
                full = "%s.%s" % (node.module, alias.name)
                found.append((full if full in MODULES else node.module, node.lineno, in_function))
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            visit(child, in_function or is_function)

    visit(tree, False)
    return found


def folder_of(name):
    """Return ``layers`` for ``returnn_tf.layers.rec.rec``; empty for the package itself."""
    return (name.split(".") + [""])[1]


GRAPH = {name: {target for target, _, _ in imports_of(name) if target in MODULES} for name in MODULES}


def test_every_folder_has_a_floor():
    """A new folder needs a place in the house."""
    folders = {folder_of(name) for name in MODULES} - {"", "_version"}
    assert not folders - set(FLOOR_OF)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_floors(name):
    """Imports go down; the folders of one floor don't know each other; nobody imports the package's own face."""
    here = folder_of(name)
    for target in GRAPH[name]:
        there = folder_of(target)
        if there == "_version" or here == there != "":
            continue
        assert target != PACKAGE, "%s imports %s itself: import from the submodule" % (name, PACKAGE)
        assert here, "%s imports %s when it is imported" % (name, target)
        assert FLOOR_OF[there] < FLOOR_OF[here], "%s imports %s, which is not on a lower floor" % (name, target)


def entries(folder):
    """Return the modules and folders directly in a folder of the package, and which of them import which."""
    prefix = "%s.%s." % (PACKAGE, folder) if folder else PACKAGE + "."
    graph = {}
    for name, targets in GRAPH.items():
        if name.startswith(prefix):
            here = name[len(prefix) :].split(".")[0]
            there = {t[len(prefix) :].split(".")[0] for t in targets if t.startswith(prefix)}
            graph.setdefault(here, set()).update(there - {here})
    return graph


FOLDERS = sorted({name.split(".", 1)[1].rsplit(".", 1)[0] for name in MODULES if name.count(".") > 1})


@pytest.mark.parametrize("folder", sorted(INNER_FLOORS))
def test_inner_floors(folder):
    """Within a folder imports go down, too, and its folders on one floor don't know each other."""
    floors = {entry: floor for floor, names in enumerate(INNER_FLOORS[folder]) for entry in names}
    graph = entries(folder)
    assert set(graph) == set(floors)
    for here, targets in graph.items():
        for there in targets:
            assert floors[there] < floors[here], "%s: %s imports %s" % (folder, here, there)


@pytest.mark.parametrize("folder", [""] + FOLDERS)
def test_no_cycles_between_folders(folder):
    """The entries of each folder have an order."""
    graph = entries(folder)
    while graph:
        lowest = {entry for entry, targets in graph.items() if not targets & set(graph)}
        assert lowest, "a cycle among %s" % sorted(graph)
        graph = {entry: targets for entry, targets in graph.items() if entry not in lowest}


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_are_no_drawers(folder):
    """A folder with more modules wants an order."""
    modules = [name for name in MODULES if name.split(".", 1)[-1].rsplit(".", 1)[0] == folder and name.count(".") > 1]
    assert len(modules) <= MOST_MODULES


def test_no_cycles():
    """No module imports itself by way of others."""
    state = {}

    def visit(name, trail):
        assert state.get(name) != "open", "import cycle: " + " -> ".join(trail[trail.index(name) :] + [name])
        if name in state:
            return
        state[name] = "open"
        for target in sorted(GRAPH[name]):
            if target != name and not name.startswith(target + "."):  # a module of a package needs its __init__
                visit(target, trail + [name])
        state[name] = "done"

    for name in sorted(GRAPH):
        visit(name, [])


def imported_before(name):
    """Return the modules that are imported before ``python -m`` runs this one: its packages, and what they import."""
    found, open_ = set(), {name.rsplit(".", count)[0] for count in range(1, name.count(".") + 1)}
    while open_:
        module = open_.pop()
        found.add(module)
        at_once = {target for target, _, in_function in imports_of(module) if not in_function and target in MODULES}
        packages = {target.rsplit(".", count)[0] for target in at_once for count in range(1, target.count(".") + 1)}
        open_ |= (at_once | packages) - found
    return found


def programs():
    """Return the modules that code or a docstring runs by ``python -m``."""
    found = set()
    for path, _ in MODULES.values():
        with open(path, encoding="utf8") as file:
            found |= set(re.findall(r'-m(?: |", ")(%s\.\w[\w.]*\w)' % PACKAGE, file.read()))
    return sorted(found)


def test_programs_are_found():
    assert "returnn_tf.native.self_test" in programs()


@pytest.mark.parametrize("name", programs())
def test_no_program_is_imported_before_it_runs(name):
    """Else there are two copies of the module, and runpy warns."""
    assert name not in imported_before(name)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_no_imports_inside_functions(name):
    """Other than of heavy optional packages: hidden imports hide cycles."""
    deferred = [(target, line) for target, line, in_function in imports_of(name) if in_function]
    assert not [(target, line) for target, line in deferred if target.split(".")[0] not in DEFERRED]


@pytest.mark.parametrize("name", sorted(n for n in MODULES if folder_of(n)))
def test_no_imports_for_type_checkers_alone(name):
    """They hide cycles: what a module knows the types of, it imports."""
    assert not [
        node for node in ast.walk(MODULES[name][1]) if isinstance(node, ast.Name) and node.id == "TYPE_CHECKING"
    ]


@pytest.mark.parametrize("name", sorted(n for n in MODULES if folder_of(n) == "datasets"))
def test_datasets_need_no_tensorflow(name):
    """Data is read by processes without TensorFlow, unless the user chooses the decoder of tensorflow-io."""
    targets = {target for target, _, in_function in imports_of(name) if name != TF_DECODER or not in_function}
    heavy = {target for target in targets if "tf" in target.split(".")[-1] or "tensorflow" in target}
    assert heavy <= {TF_DECODER}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_docstring_of_the_module(name):
    """Each file says what it is for."""
    path, tree = MODULES[name]
    assert ast.get_docstring(tree) or not tree.body, path


def run_python(code):
    """Return what a fresh interpreter prints; warnings are errors."""
    env = dict(os.environ, PYTHONPATH=ROOT)
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


#: Modules which import by name: the registries, the public names on first use, and TensorFlow on first use.
BY_NAME = {PACKAGE, PACKAGE + ".config.registry", PACKAGE + ".util.lazy_tf"}


@pytest.mark.parametrize("name", sorted(set(MODULES) - BY_NAME))
def test_no_imports_by_name(name):
    """They hide cycles as much as imports in functions do; only optional packages may be imported like that."""
    path, tree = MODULES[name]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in calls:
        if getattr(call.func, "attr", getattr(call.func, "id", "")) == "import_module":
            target = ast.literal_eval(call.args[0])  # not a name that is made at run time
            assert target.split(".")[0] in DEFERRED, "%s:%d imports %s" % (path, call.lineno, target)


def test_import_is_quick_and_without_tensorflow():
    """Below 0.2 s (the best of five, since other programs may run), and neither TensorFlow nor numpy is loaded."""
    code = (
        "import time, sys; t = time.perf_counter(); import returnn_tf; t = time.perf_counter() - t\n"
        "assert not {'tensorflow', 'numpy', 'h5py'} & set(sys.modules)\nprint(t)"
    )
    assert min(float(run_python(code)) for _ in range(5)) < 0.2


def test_all_modules_import_without_tensorflow():
    """TensorFlow is loaded when it is used, not before."""
    code = "import importlib, sys\nfor name in %r: importlib.import_module(name)\n" % sorted(MODULES)
    run_python(code + "assert 'tensorflow' not in sys.modules")


def test_stub_has_the_public_names():
    """What type checkers see is what there is: each name comes from the same module."""
    with open(os.path.join(ROOT, PACKAGE, "__init__.pyi"), encoding="utf8") as f:
        stub = ast.parse(f.read())
    seen = {alias.asname: node.module for node in stub.body for alias in node.names}
    (table,) = (
        ast.literal_eval(node.value)
        for node in MODULES[PACKAGE][1].body
        if isinstance(node, ast.Assign) and node.targets[0].id == "_HOME_OF_NAME"
    )
    assert seen == {**table, "__version__": PACKAGE + "._version"}


def test_public_names():
    """All names of the package's face are there, and come from where they live."""
    code = (
        "import returnn_tf\nfor name in returnn_tf.__all__: assert getattr(returnn_tf, name) is not None, name\n"
        "assert set(returnn_tf.__all__) <= set(dir(returnn_tf))\n"
        "try: returnn_tf.nothing\nexcept AttributeError as exc: print(exc)\n"
    )
    assert run_python(code).strip() == "module 'returnn_tf' has no attribute 'nothing'"
