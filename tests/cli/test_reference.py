"""``returnn-tf datasets|optimizers|schedules|units|losses [NAME]``."""

import pytest

from returnn_tf.cli.commands import COMMANDS
from returnn_tf.cli.main import main
from returnn_tf.config.options import declared_options
from returnn_tf.datasets.core.registry import DATASETS
from returnn_tf.engine.learning_rate.schedule import SCHEDULES
from returnn_tf.engine.update.optimizers import OPTIMIZERS
from returnn_tf.graph.registry import LAYERS, LOSSES
from returnn_tf.ops.cells import UNITS
from tests.registries import registered_here

CASES = {
    "datasets": (DATASETS, "HDF", ["files: list | str (required)", "Options of every dataset:", "window: int = 1"]),
    "optimizers": (OPTIMIZERS, "Adam", ["beta1: float = 0.9", "Options of every optimizer:", "use_locking: bool"]),
    "schedules": (SCHEDULES, "cosine", ["final: float = 0.0", "total: int | None = None", "unit: 'step' | 'epoch'"]),
    "units": (UNITS, "StandardLSTM", ["use_peepholes: bool = False", "activation: str | function = 'tanh'"]),
    "losses": (LOSSES, "ctc", ["ctc_opts: dict[str, Any] | None = None", "label_loop", "Options of every loss:"]),
    "layers": (
        LAYERS,
        "linear",
        ["activation: str | function | None = None", "Options of every layer:", "collocate_with"],
    ),
}


@pytest.mark.parametrize("command", CASES)
def test_list_and_explanation(command, capsys):
    """All entries with a summary; one with its options, own ones first."""
    registry, name, parts = CASES[command]
    assert main([command]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if line.startswith("  ")} >= {entry for entry, _ in registry.items()}
    assert main([command, name]) == 0
    out = capsys.readouterr().out
    places = [out.index(part) for part in parts]
    assert places == sorted(places)


@pytest.mark.parametrize("command", CASES)
def test_a_file_with_the_name_of_an_entry(command, tmp_path, monkeypatch, capsys):
    _, name, parts = CASES[command]
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).touch()
    assert main([command, name]) == 0
    assert parts[0] in capsys.readouterr().out


@pytest.mark.parametrize("command", CASES)
def test_mistakes(command, capsys):
    """An unknown name and an unknown option."""
    assert main([command, CASES[command][1][:-1] + "zq"]) == 2
    assert "error: " in capsys.readouterr().err
    assert main([command, "--all"]) == 2
    assert "unknown option '--all'" in capsys.readouterr().err


OWN = """
from returnn_tf import Dataset, Layer, Loss, option, register_dataset, register_layer, register_loss

@register_layer("own_layer")
class OwnLayer(Layer):
    \"\"\"Of a config.\"\"\"

    own_size: int = option(3, help="of a config")

@register_loss("own_loss")
class OwnLoss(Loss):
    \"\"\"Of a config.\"\"\"

    own_size: int = option(3, help="of a config")
"""


@pytest.mark.parametrize("command, name", [("layers", "own_layer"), ("layers", "own_loss"), ("losses", "own_loss")])
def test_classes_of_a_config(command, name, tmp_path, capsys):
    """Listed and explained as those of the program."""
    path = tmp_path / "my.config"
    path.write_text(OWN)
    with registered_here(LAYERS, LOSSES):
        assert main([command, str(path), name]) == 0
        assert "own_size: int = 3" in capsys.readouterr().out
        assert main([command, str(path)]) == 0
        assert "  %s" % name in capsys.readouterr().out
    assert main([command, str(tmp_path / "none.config"), name]) == 2
    assert "none.config" in capsys.readouterr().err


@pytest.mark.parametrize(
    "cls",
    [cls for registry in (OPTIMIZERS, LOSSES) for _, cls in registry.items()]
    + [cls.Options for registry in (DATASETS, UNITS) for _, cls in registry.items()],
)
def test_every_option_is_described(cls):
    """With a text that is not empty."""
    assert all(len(info.help) > 3 for info in declared_options(cls).values())


@pytest.mark.parametrize("name", COMMANDS.names())
def test_help_of_a_command(name, capsys):
    """Its usage and what it does."""
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: returnn-tf " + name) and len(out.splitlines()) >= 3
