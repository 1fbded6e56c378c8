"""What an installed package can add, each by one module and one entry point; and names that are taken."""

import json
import os
import py_compile
import shutil
import subprocess
import sys
import textwrap
import types

import pytest

from returnn_tf.config import ConfigError, registry
from returnn_tf.config.options import option
from returnn_tf.config.registry import OptionClasses, Registry
from returnn_tf.config.settings import register_settings

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

#: Group of entry points -> (module of the plug-in, program that uses it, what it prints).
PLUGINS = {
    "returnn_tf.layers": (
        """
        from returnn_tf import Layer, option, register_layer

        @register_layer("plug_twice")
        class Twice(Layer):
            \"\"\"``y = factor x``.\"\"\"

            factor: float = option(2.0, help="factor of the source")

            def template(self, ctx):
                return ctx.single_source()

            def emit(self, ctx):
                return ctx.source() * self.factor
        """,
        """
        import numpy, returnn_tf
        network = {"output": {"class": "plug_twice", "factor": 3.0, "from": "data"}}
        config = returnn_tf.Config({"network": network, "extern_data": {"data": {"dim": 1}}, "behavior_version": 21})
        feed = {"data": numpy.ones([1, 2, 1], "float32"), "data/size0": numpy.array([2], "int32")}
        print(returnn_tf.Network.from_config(config).run(feed).layers["output"].value.ravel().tolist())
        """,
        "[3.0, 3.0]",
    ),
    "returnn_tf.exporters": (
        """
        from returnn_tf import option
        from returnn_tf.export.exporters import Exporter, register_exporter

        @register_exporter("plug_names")
        class Names(Exporter):
            \"\"\"The names of the outputs.\"\"\"

            end: str = option("", help="last line")

            def write(self, model, folder):
                with open(folder + "/names.txt", "w") as file:
                    file.write(" ".join([*model.outputs, self.end]))

            def run(self, folder, feed):
                return {}

            def check(self, model, folder):
                pass
        """,
        """
        import returnn_tf
        network = {"output": {"class": "copy", "from": "data"}}
        config = returnn_tf.Config({"network": network, "extern_data": {"data": {"dim": 1}}, "behavior_version": 21})
        returnn_tf.export(returnn_tf.Network.from_config(config), "out", to="plug_names", end="end")
        print(open("out/names.txt").read())
        """,
        "output output_size0 end",
    ),
    "returnn_tf.losses": (
        """
        from returnn_tf import Loss, register_loss
        from returnn_tf.util.lazy_tf import tf

        @register_loss("plug_sum")
        class Sum(Loss):
            \"\"\"The sum of the output.\"\"\"

            needs_target = False

            def value(self, ctx):
                return tf.reduce_sum(ctx.output_value)
        """,
        """
        import numpy, returnn_tf
        network = {"output": {"class": "copy", "loss": "plug_sum", "from": "data"}}
        config = returnn_tf.Config({"network": network, "extern_data": {"data": {"dim": 1}}, "behavior_version": 21})
        feed = {"data": numpy.ones([1, 2, 1], "float32"), "data/size0": numpy.array([2], "int32")}
        print(float(returnn_tf.Network.from_config(config).run(feed).total_loss))
        """,
        "2.0",
    ),
    "returnn_tf.datasets": (
        """
        from dataclasses import dataclass
        from returnn_tf import Dataset, option, register_dataset
        from returnn_tf.datasets.synthetic.tasks import Task12AXDataset

        @register_dataset()
        class PlugDataset(Task12AXDataset):
            \"\"\"The other one under a new name.\"\"\"

            @dataclass
            class Options(Task12AXDataset.Options):
                \"\"\"With one more.\"\"\"

                shown: str = option("nothing", help="text")
        """,
        """
        from returnn_tf import Dataset
        print(Dataset.from_config({"class": "Plug", "num_seqs": 3, "shown": "text"}).opts.shown)
        """,
        "text",
    ),
    "returnn_tf.optimizers": (
        """
        from dataclasses import dataclass
        from returnn_tf import Optimizer, option, register_optimizer

        @register_optimizer("plugsign")
        @dataclass
        class Sign(Optimizer):
            \"\"\"Steps of one size.\"\"\"

            size: float = option(0.5, help="of a step")
        """,
        """
        from returnn_tf.engine.update.optimizers import create_optimizer
        print(create_optimizer({"class": "PlugSignOptimizer", "size": 2.0}, where="optimizer").size)
        """,
        "2.0",
    ),
    "returnn_tf.schedules": (
        """
        from returnn_tf import register_schedule
        from returnn_tf.engine.learning_rate.schemes import Scheme

        @register_schedule("plug_half")
        class Half(Scheme):
            \"\"\"Half of the rate.\"\"\"

            def next_rate(self, epoch, past):
                return self.initial_rate / 2
        """,
        """
        from returnn_tf import Config
        from returnn_tf.engine.learning_rate.schemes import scheme_from_config
        config = Config({"learning_rate_control": "plug_half", "learning_rate": 3.0})
        print(scheme_from_config(config).next_rate(1, []))
        """,
        "1.5",
    ),
    "returnn_tf.trackers": (
        """
        from dataclasses import dataclass
        from returnn_tf import option
        from returnn_tf.engine.monitoring.trackers.base import TrackedRun, Tracker, register_tracker

        class Printed(TrackedRun):
            def epoch(self, epoch, values):
                print(self.identity, epoch, values["dev_score"])

        @register_tracker("plug_printer")
        @dataclass(frozen=True)
        class Printer(Tracker):
            \"\"\"Lines of the terminal.\"\"\"

            prefix: str = option("", help="before the name of the run")

            def begin(self, facts):
                return Printed(self.prefix + facts.name)
        """,
        """
        from returnn_tf import Config
        from returnn_tf.engine.learning_rate.file import EpochData
        from returnn_tf.engine.monitoring.trackers.base import RunFacts
        from returnn_tf.engine.monitoring.tracking import Tracking, trackers_of
        tracking = Tracking(trackers_of(Config({"trackers": [{"class": "plug_printer", "prefix": "a "}]})))
        tracking.check("trackers", None)
        tracking.begin(lambda previous: RunFacts("run", {}, {}), resumed=False)
        tracking.epoch(1, EpochData(0.1, {"dev_score": 2.5}))
        """,
        "a run 1 2.5",
    ),
    "returnn_tf.settings": (
        """
        from returnn_tf import SettingGroup, register_settings, setting

        @register_settings
        class PlugSettings(SettingGroup):
            \"\"\"Plug-in.\"\"\"

            plug_depth: int = setting(3, help="depth of the plug", aliases=["plug_dep"])
        """,
        """
        import returnn_tf
        from returnn_tf.cli.main import main
        from returnn_tf.config.settings import check_settings, misspelt
        main(["settings"])
        main(["settings", "plug_depth"])
        try:
            check_settings(returnn_tf.Config({"plug_dep": "x"}))
        except returnn_tf.ConfigError as exc:
            print(exc)
        from rtf_plug import PlugSettings
        print(misspelt("plug_dept"), PlugSettings(returnn_tf.Config({"plug_dep": 5})).plug_depth)
        """,
        "plug_depth 5",
    ),
    "returnn_tf.units": (
        """
        from returnn_tf import register_cell
        from returnn_tf.ops.cells.gru import Gru

        @register_cell("pluggru")
        class PlugGru(Gru):
            \"\"\"The same under a new name.\"\"\"
        """,
        """
        from returnn_tf.ops.cells import unit_class
        print(unit_class("PlugGRUCell").unit)
        """,
        "pluggru",
    ),
    "returnn_tf.tasks": (
        """
        from returnn_tf import register_task

        @register_task("plug_task")
        def plug_task(config):
            print("task with", config.int("x", 0))
            return 0
        """,
        """
        from returnn_tf import Config
        from returnn_tf.tasks.registry import find_task
        find_task("plug_task")(Config({"x": 3}))
        """,
        "task with 3",
    ),
    "returnn_tf.commands": (
        """
        from returnn_tf import register_command

        @register_command("plugcommand", "[X]", "print the arguments")
        def run(args):
            print("arguments", *args)
            return 0
        """,
        """
        from returnn_tf.cli.main import main
        main(["plugcommand", "a"])
        """,
        "arguments a",
    ),
    "returnn_tf.native_ops": (
        """
        import os
        from returnn_tf.native.errors import NativeOpError
        from returnn_tf.native.sources import register_op

        @register_op(
            "plug_op", kernels=["plug/plug_cpu.cc"], bindings=["plug/plug_op.cc"], folder=os.path.dirname(__file__)
        )
        def self_test(ops):
            if ops.plug_answer().numpy() != 42:
                raise NativeOpError("wrong answer")
        """,
        """
        from returnn_tf.native.library import examine, load
        from returnn_tf.native.sources import OPS
        print(examine("plug_op") or load("plug_op", OPS["plug_op"].self_test).plug_answer().numpy())
        """,
        "42",
    ),
}

SOURCES = {
    "plug_cpu.cc": 'extern "C" int plug_answer() { return 42; }\n',
    "plug_op.cc": """
        #include "tensorflow/core/framework/op.h"
        #include "tensorflow/core/framework/op_kernel.h"
        extern "C" int plug_answer();
        REGISTER_OP("PlugAnswer").Output("answer: int32").SetIsStateful();
        struct PlugAnswer : tensorflow::OpKernel {
          using OpKernel::OpKernel;
          void Compute(tensorflow::OpKernelContext* ctx) override {
            tensorflow::Tensor* out = nullptr;
            OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {}, &out));
            out->scalar<int>()() = plug_answer();
          }
        };
        REGISTER_KERNEL_BUILDER(Name("PlugAnswer").Device(tensorflow::DEVICE_CPU), PlugAnswer);
        """,
}


def install(folder, entry_points):
    """Write the metadata of an installed package."""
    info = folder / "rtf_plug-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rtf-plug\nVersion: 1.0\n")
    lines = ["[%s]\n%s\n" % (group, "\n".join(points)) for group, points in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))


def run(folder, program):
    """Run a program which sees the package."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), ROOT]), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)


#: Runs the programs in the order of their groups.
EACH = """
import contextlib, io, json, sys, traceback
printed = {}
for group, program in json.load(open("programs.json")).items():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            exec(program, {"__name__": "__main__"})
        except Exception:
            print(traceback.format_exc())
    printed[group] = out.getvalue()
json.dump(printed, sys.stdout)
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Return what the programs of all groups print, in one process which sees a package with all plug-ins."""
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "plug").mkdir()
    for name, text in SOURCES.items():
        (folder / "plug" / name).write_text(textwrap.dedent(text))
    programs, entry_points = {}, {}
    for group, (module, program, _) in PLUGINS.items():
        name = "rtf_plug_" + group.rpartition(".")[2]
        (folder / (name + ".py")).write_text(textwrap.dedent(module))
        programs[group] = textwrap.dedent(program).replace("rtf_plug", name)
        entry_points[group] = ["plug = " + name]
    (folder / "programs.json").write_text(json.dumps(programs))
    install(folder, entry_points)
    done = run(folder, EACH)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("group", PLUGINS)
def test_plugin(group, printed):
    """One module and one entry point, and no other file."""
    assert printed[group].strip().splitlines()[-1] == PLUGINS[group][2], printed[group]


def test_settings_of_a_plugin_are_listed_and_checked(tmp_path):
    """By topic, with help; their mistakes are found before a run."""
    module, program, _ = PLUGINS["returnn_tf.settings"]
    (tmp_path / "rtf_plug.py").write_text(textwrap.dedent(module))
    install(tmp_path, {"returnn_tf.settings": ["plug = rtf_plug"]})
    text = run(tmp_path, program).stdout
    assert "\nPlug-in:\n  plug_depth  depth of the plug\n" in text
    assert "setting 'plug_depth', also called 'plug_dep' (Plug-in)" in text
    assert "config key 'plug_dep': expected a whole number, got 'x'" in text


@pytest.mark.parametrize(
    "body, expected",
    [
        ("'Mine.'\n    num_epochs: int = setting(1, help='x')", "setting 'num_epochs' is already taken by returnn_tf."),
        ("size: int = setting(1, help='x')", "give it a docstring, whose first line is its title"),
    ],
)
def test_groups_of_settings_that_are_refused(body, expected):
    """A setting of ours, and a class without a title."""
    program = "from returnn_tf import SettingGroup, register_settings, setting\nclass Mine(SettingGroup):\n    %s\n"
    scope = {"__name__": "mine"}
    exec(program % body, scope)
    with pytest.raises(ConfigError, match=expected):
        register_settings(scope["Mine"])


def test_broken_plugin(tmp_path):
    """The error names the entry point."""
    install(tmp_path, {"returnn_tf.tasks": ["broken = rtf_no_such_module"]})
    done = run(tmp_path, "from returnn_tf.tasks.registry import TASKS; TASKS.load()")
    assert (
        "the plug-in broken = rtf_no_such_module (entry point group returnn_tf.tasks) can't be imported" in done.stderr
    )


def test_taken_names():
    """Both places are named; what is defined again at its own place replaces itself."""
    registry = Registry("thing", key=str.lower)

    @registry.register("Spoon", "ladle")
    def spoon():
        """First."""

    def define():
        @registry.register("fork")
        def fork():
            """Twice."""

        return fork

    first, second = define(), define()
    assert first is not second and registry["FORK"] is second
    with pytest.raises(ConfigError) as info:
        registry.add(define, "knife", "LADLE")
    here = "tests.test_plugins.test_taken_names.<locals>."
    assert str(info.value) == (
        "thing 'LADLE' is already taken by %sspoon. Choose another name for %sdefine." % (here, here)
    )
    assert registry.names() == ["Spoon", "fork", "ladle"] and "knife" not in registry
    assert registry.names_of(spoon) == ("Spoon", "ladle") and len(registry) == 3
    with pytest.raises(ConfigError, match="here: unknown thing 'spon'. Did you mean 'Spoon'?"):
        registry.get("spon", "here")


@pytest.mark.slow
@pytest.mark.parametrize(
    "registration, expected",
    [
        (
            "class Mine(Layer):\n    'A layer.'\nregister_layer('linear')(Mine)",
            "layer class 'linear' is already taken by returnn_tf.layers.math.linear.LinearLayer. "
            "Choose another name for __main__.Mine.",
        ),
        (
            "class Mine(Dataset):\n    'A dataset.'\nregister_dataset('HDF')(Mine)",
            "dataset class 'HDF' is already taken by returnn_tf.datasets.hdf.dataset.HDFDataset. "
            "Choose another name for __main__.Mine.",
        ),
        (
            "@register_task('train')\ndef mine(config):\n    'A task.'",
            "task 'train' is already taken by returnn_tf.tasks.train.train. Choose another name for __main__.mine.",
        ),
    ],
    ids=["layer", "dataset", "task"],
)
def test_names_of_ours_are_taken(registration, expected, tmp_path):
    """Also in a process that has not looked up any name before."""
    header = "from returnn_tf import Dataset, Layer, register_dataset, register_layer, register_task\n"
    done = run(tmp_path, header + registration)
    assert done.stderr.strip().splitlines()[-1].endswith(expected)


def test_classes_with_options():
    """They become dataclasses, and need a docstring."""
    registry = OptionClasses("thing")

    @registry.register("a")
    class A:
        """Good."""

        size: int = option(3, help="a number")

    assert A(size=4).size == 4 and A.class_name == "a"
    with pytest.raises(ConfigError, match="thing 'b' .*B.*: give it a docstring"):

        @registry.register("b")
        class B:
            size: int = option(3, help="a number")


LAZY = {
    "__init__": "",
    "plain": "@register('one', 'two')\n@decorated\nclass First: pass\n@register()\nclass Second: pass\n",
    "spread": "@register(\n    'five-a',\n    'six', size=(1, 2),\n)\ndef of_function(): pass\n",
    "computed": "for name in ('seven', 'eight'): register(name)(type(name, (), {}))\n",
    "deep/__init__": "",
    "deep/inner": "@register('nine')\nclass Ninth: pass\n",
    "other": "'register(ten)'\nTEN = 'ten'\n",
}
"""Modules of a package, without their first lines."""


@pytest.mark.parametrize("installed", ["sources", "bytecode", "zip"])
@pytest.mark.parametrize(
    "name, modules",
    [("one", "plain"), ("Second", "plain"), ("five_a", "spread"), ("six", "spread"), ("two", "plain")]
    + [("nine", "deep.inner"), ("seven", ""), ("ten", "")],
)
def test_a_name_imports_the_modules_that_have_it(tmp_path, monkeypatch, name, modules, installed):
    """By their sources; all modules if they have none, or do not have the name: it is computed, or not there."""
    things = Registry("thing", "rtf_lazy", key=lambda name: name.replace("-", "_"))
    helpers = types.ModuleType("rtf_lazy_helpers")
    helpers.register = lambda *names, **_: lambda cls: things.register(*(names or [cls.__name__]))(cls)
    helpers.decorated = lambda cls: cls
    monkeypatch.setitem(sys.modules, helpers.__name__, helpers)
    monkeypatch.setattr(registry, "_ROOT", "rtf_lazy")  # not those of an extension, for which all names are looked up
    for path, text in LAZY.items():
        file = tmp_path / "rtf_lazy" / (path + ".py")
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text("from rtf_lazy_helpers import register, decorated\n" + text if text else "")
        if installed == "bytecode":
            py_compile.compile(str(file), str(file) + "c")
            file.unlink()
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path, "rtf_lazy")
    monkeypatch.syspath_prepend(packed if installed == "zip" else tmp_path)
    try:
        assert (things.find(name) is None) == (name == "ten")
        prefix = "rtf_lazy."
        imported = {module[len(prefix) :] for module in sys.modules if module.startswith(prefix)} - {"deep"}
        everything = {"plain", "spread", "computed", "deep.inner", "other"}
        assert imported == ({modules} if modules and installed != "bytecode" else everything)
        assert things.names() == sorted(["one", "two", "Second", "five-a", "six", "seven", "eight", "nine"])
    finally:
        for module in [module for module in sys.modules if module.partition(".")[0] == "rtf_lazy"]:
            del sys.modules[module]


THINGS = Registry("thing", "rtf", plugins="rtf.groups", key=lambda name: name.replace("-", "_"), module_per_entry=True)


def test_rooms_add_entries_as_plug_ins_do(tmp_path, monkeypatch):
    """A folder with a table; where entries have modules of their own, only that of the entry is imported."""
    entry = "import sys\nfrom tests.test_plugins import THINGS\nTHINGS.add(%d, %r, owner=sys.modules[__name__])"
    for path, text in {
        "rtf/__init__.py": "",
        "rtf_room/__init__.py": "PLUG_INS = {'rtf.groups': {'one-way': 'rtf_room.one', 'two': 'rtf_room.two'}}",
        "rtf_room/one.py": entry % (1, "one_way"),
        "rtf_room/two.py": entry % (2, "two"),
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "ROOMS", {"rtf_room": "one", "rtf_no_room": "another program"})
    registry.rooms.cache_clear()
    try:
        assert THINGS["one_way"] == 1 and "rtf_room.two" not in sys.modules
        assert THINGS.names() == ["one_way", "two"]
        expected = "What is for another program needs rtf_no_room, which is not part of this installation."
        with pytest.raises(ConfigError, match="here: unknown thing 'six'. Known: one_way, two. " + expected):
            THINGS.get("six", "here")
    finally:
        monkeypatch.undo()
        registry.rooms.cache_clear()


WITHOUT_RASR = """
import returnn_tf
from returnn_tf.config import registry
registry._is_there = lambda room: room != "returnn_tf.rasr"
DATASET = {"class": "SprintCacheDataset", "data": {"data": "x"}}
FULL_SUM = {"class": "fast_bw", "align_target": "sprint", "sprint_opts": {}, "from": "data"}
LOSS = {"class": "softmax", "n_out": 3, "loss": "sprint", "loss_opts": {}, "from": "data"}
for make in (
    lambda: returnn_tf.Dataset.from_config(DATASET),
    *(
        lambda layer=layer: returnn_tf.Network.from_config(
            returnn_tf.Config({"network": {"output": layer}, "extern_data": {"data": {"dim": 3}}})
        )
        for layer in (FULL_SUM, LOSS)
    ),
):
    try:
        make()
    except returnn_tf.ConfigError as exc:
        print(exc)
"""


@pytest.mark.slow
def test_what_needs_a_missing_room_is_one_clear_error(tmp_path):
    """A dataset, an option of a layer, and a loss."""
    lines = [line for line in run(tmp_path, WITHOUT_RASR).stdout.splitlines() if not line.startswith("  ")]
    assert len(lines) == 3
    end = "What is for RASR needs returnn_tf.rasr, which is not part of this installation."
    assert all(line.endswith(end) for line in lines), lines
    names = ["'SprintCacheDataset'", "unknown program for automata 'sprint'", "unknown loss 'sprint'"]
    assert all(name in line for name, line in zip(names, lines)), lines
