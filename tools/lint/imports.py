"""Rules on imports: which module may know which."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tools.lint.package import NAME, Package

# lowest floor first; a module imports from its own folder and from lower floors only
FLOORS: list[list[str]] = [
    ["logging"],
    ["util"],
    ["config"],
    ["blocks", "tensor"],
    ["datasets", "native"],
    ["ops"],
    ["graph"],
    ["loops"],
    ["layers"],
    ["compiler"],
    ["engine"],
    ["export"],
    ["tasks"],
    ["cli"],
    ["__main__", "compat", "rasr"],  # nothing imports the last two: see ROOMS in returnn_tf.config.registry
]
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names}

# the same within folders, lowest first; elsewhere any order without cycles will do
INNER_FLOORS: dict[str, list[list[str]]] = {
    "datasets": [
        ["files", "processes"],
        ["core"],
        ["vocabulary"],
        ["audio", "combining", "config", "hdf", "synthetic"],
        ["text"],
        ["speech", "tables"],
        ["loading"],
    ],
    "ops": [
        ["rounded"],
        [
            "activations",
            "bfloat16",
            "frames",
            "gradients",
            "initial_values",
            "int8",
            "mixed_precision",
            "philox",
            "softmax",
            "xla",
        ],
        ["initializers"],
        ["after_product", "cross_entropy", "dense", "many_labels", "normalize", "sampled_loss", "signal"],
        ["product", "sequence"],
        ["cells"],
        ["all_trials"],
    ],
    "layers": [
        ["shared"],
        ["math"],
        ["dumping", "gradients", "random", "rec", "sequence", "shape"],
        ["nested", "signal"],
        ["attention", "search"],
        ["losses", "masked"],
    ],
    "compiler": [
        ["feed", "for_xla", "optimized_once", "planning"],
        ["packed_layers", "result", "split_batch", "step_memory"],
        ["feed_function", "initial_values", "kept_states", "lower", "requested"],
        ["inner_weights", "plan_layer", "plan_network"],
        ["plan_config"],
        ["network"],
        ["describe", "network_record"],
    ],
    "engine": [
        ["support"],
        ["transcripts"],
        ["decoding"],
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
    "optuna",
    "mlflow",
    "trackio",
    "wandb",
    "onnxruntime",
    "sherpa_onnx",
    "ctranslate2",
    "tf2onnx",
    "torch",
    "sentencepiece",
    "unidecode",
    "scipy",
    "soundfile",
    "soxr",
    "pyworld",
    "datasets",
    "fsspec",
    "kaldiio",
    "pyarrow",
    "tokenizers",
}

#: The one module for data that loads TensorFlow, inside of a function.
TF_DECODER = "returnn_tf.datasets.audio.decode"
#: Modules which import by name: the registries, the public names on first use, and TensorFlow on first use.
BY_NAME = {NAME, NAME + ".config.registry", NAME + ".util.lazy_tf"}


def floors(package: Package) -> Iterator[str]:
    """Imports go down, the folders of one floor don't know each other, and nobody imports the package's own face."""
    for name, targets in package.graph.items():
        here = package.modules[name].folder
        for target in sorted(targets):
            there = package.modules[target].folder
            if there == "_version" or here == there != "":
                continue
            if target == NAME:
                yield "%s imports %s itself: import from the module" % (name, NAME)
            elif not here:
                yield "%s imports %s when it is imported" % (name, target)
            elif FLOOR_OF.get(there, -1) >= FLOOR_OF.get(here, -1):
                yield "%s imports %s, which is not on a lower floor" % (name, target)


def places(package: Package) -> Iterator[str]:
    """Each folder has a floor, and what the tables name is there."""
    for folder in sorted({module.folder for module in package.modules.values()} - {"", "_version"} - set(FLOOR_OF)):
        yield "%s has no floor: add it to FLOORS in %s" % (folder, __name__)
    for folder, rows in INNER_FLOORS.items():
        named = {name for row in rows for name in row}
        for name in sorted(named ^ set(package.entries(folder))):
            yield "%s.%s is %s" % (folder, name, "not there" if name in named else "in no row of INNER_FLOORS")


def inner_floors(package: Package) -> Iterator[str]:
    """Within a folder that has a table imports go down, too."""
    for folder, rows in INNER_FLOORS.items():
        level = {name: number for number, row in enumerate(rows) for name in row}
        for here, targets in package.entries(folder).items():
            for there in sorted(targets):
                if level.get(there, -1) >= level.get(here, -1):
                    yield "%s: %s imports %s, which is not on a lower inner floor" % (folder, here, there)


def cycles_of_folders(package: Package) -> Iterator[str]:
    """The modules and folders in each folder have an order."""
    for folder in ["", *package.folders]:
        graph = package.entries(folder)
        while graph:
            lowest = {entry for entry, targets in graph.items() if not targets & set(graph)}
            if not lowest:
                yield "%s: a cycle among %s" % (folder or NAME, ", ".join(sorted(graph)))
                break
            graph = {entry: targets for entry, targets in graph.items() if entry not in lowest}


def cycles_of_modules(package: Package) -> Iterator[str]:
    """No module imports itself by way of others. A module needs the ``__init__`` of its folders, which is none."""
    state: dict[str, str] = {}

    def visit(name: str, trail: list[str]) -> Iterator[str]:
        if state.get(name) == "open":
            yield "an import cycle: " + " -> ".join([*trail[trail.index(name) :], name])
        if name in state:
            return
        state[name] = "open"
        for target in sorted(package.graph[name]):
            if target != name and not name.startswith(target + "."):
                yield from visit(target, [*trail, name])
        state[name] = "done"

    for name in sorted(package.graph):
        yield from visit(name, [])


def programs(package: Package) -> Iterator[str]:
    """What ``python -m`` runs isn't imported before it runs: there would be two copies, and a warning of runpy."""
    pattern = re.compile(r'-m(?: |", ")(%s\.\w[\w.]*\w)' % NAME)
    for name in sorted({found for module in package.modules.values() for found in pattern.findall(module.text)}):
        if name in package.modules and name in _imported_before(package, name):
            yield "%s is imported before python -m runs it" % name


def _imported_before(package: Package, name: str) -> set[str]:
    """Return the folders of a module, and what they import."""

    def parents(of: str) -> set[str]:
        return {of.rsplit(".", count)[0] for count in range(1, of.count(".") + 1)}

    found: set[str] = set()
    unread = parents(name)
    while unread:
        module = unread.pop()
        found.add(module)
        imports = package.imports.get(module, [])
        at_once = {i.target for i in imports if not i.in_function and i.target in package.modules}
        unread |= (at_once | {parent for target in at_once for parent in parents(target)}) - found
    return found


def imports_in_functions(package: Package) -> Iterator[str]:
    """Only heavy optional packages are imported in functions: other hidden imports hide cycles."""
    for name, imports in package.imports.items():
        for target, line, in_function in imports:
            if in_function and target.split(".")[0] not in DEFERRED:
                yield "%s:%d imports %s in a function" % (package.modules[name].path, line, target)


def imports_for_type_checkers(package: Package) -> Iterator[str]:
    """They hide cycles: what a module knows the types of, it imports."""
    for module in package.modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Name) and node.id == "TYPE_CHECKING":
                yield "%s:%d asks for TYPE_CHECKING" % (module.path, node.lineno)
            if isinstance(node, ast.ImportFrom) and node.level:
                yield "%s:%d: a relative import" % (module.path, node.lineno)


def imports_by_name(package: Package) -> Iterator[str]:
    """They hide cycles as much; only optional packages may be imported by literal names."""
    for name in sorted(set(package.modules) - BY_NAME):
        module = package.modules[name]
        for call in (node for node in ast.walk(module.tree) if isinstance(node, ast.Call)):
            if getattr(call.func, "attr", getattr(call.func, "id", "")) == "import_module":
                target = call.args[0].value if isinstance(call.args[0], ast.Constant) else "by a name of run time"
                if str(target).split(".")[0] not in DEFERRED:
                    yield "%s:%d imports %s" % (module.path, call.lineno, target)


def datasets_without_tensorflow(package: Package) -> Iterator[str]:
    """Data is read by processes without TensorFlow, unless the user chooses the decoder of tensorflow-io."""
    for name, imports in package.imports.items():
        if package.modules[name].folder != "datasets":
            continue
        for target, line, in_function in imports:
            heavy = "tf" in target.split(".")[-1] or "tensorflow" in target
            if heavy and target != TF_DECODER and not (name == TF_DECODER and in_function):
                yield "%s:%d imports %s" % (package.modules[name].path, line, target)
