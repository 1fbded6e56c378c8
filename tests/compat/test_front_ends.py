"""The API of templates that programs use which compose network dicts, and a small program of that kind."""

from __future__ import annotations

import pathlib
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from returnn_tf import Network, Trainer
from returnn_tf.compat.modules.behavior_version import BehaviorVersion
from returnn_tf.config import Config, ConfigError

LIBRARY = pathlib.Path(__file__).parent / "small_nn.py"
HEAD = """
from returnn.tf.util.data import *
from returnn.tf.util.data import Data, Dim, BatchInfo, ControlFlowContext, ImplicitDynSizeDim, ImplicitSparseDim
from returnn.tf.network import TFNetwork, ExternData
from returnn.tf.layers.base import InternalLayer, LayerBase
from returnn.tf.layers.basic import get_layer_class
from returnn.config import Config
T, F, G, S = SpatialDim("time"), FeatureDim("feat", 13), FeatureDim("out", 6), SpatialDim("s")
X = Data("x", dim_tags=[batch_dim, T, F])
X.batch = BatchInfo.make_global_batch_info(-1)
SPLIT = SpatialDim("part", 13)
LABELS = Data("labels", dim_tags=[batch_dim, T], sparse_dim=G, dtype="int32")


def template(cls, *sources, loop=None, **options):
    data = ExternData({"key": {"dim": 4, "sparse": True}})
    net = TFNetwork(Config({"behavior_version": 21}), data, name="net", train_flag=True, inside_rec_time_dim=loop)
    for i, data in enumerate(sources):
        net.layers["from%d" % i] = InternalLayer(name="from%d" % i, network=net, output=data.copy_template())
    options = {"from": list(net.layers), **options}
    layer_class = get_layer_class(cls)
    layer_class.transform_config_dict(options, network=net, get_layer=net.get_layer)
    return layer_class.get_out_data_from_opts(**net._create_layer_layer_desc("layer", options))


def dims(*args, **options):
    return template(*args, **options).dim_tags


INNER = {'a': {'class': 'linear', 'n_out': 4, 'from': 'data', 'is_output_layer': True},
    'output': {'class': 'linear', 'n_out': 3, 'from': 'a'}}
PARTS = {
    'plain': {'class': 'linear', 'n_out': 4, 'from': 'data'},
    'sub': {'class': 'subnetwork', 'from': 'data', 'subnetwork': {
        'x': {'class': 'linear', 'n_out': 4, 'from': 'data'}, 'output': {'class': 'linear', 'n_out': 7, 'from': 'x'},
        'inner': {'class': 'subnetwork', 'from': 'x', 'subnetwork': {
            'y': {'class': 'linear', 'n_out': 6, 'from': 'data'}, 'output': {'class': 'copy', 'from': 'y'}}}}},
    'cond': {'class': 'cond', 'from': [], 'condition': {'class': 'train_flag'},
        'true_layer': {'class': 'subnetwork', 'from': 'plain', 'subnetwork': INNER},
        'false_layer': {'class': 'subnetwork', 'from': 'plain', 'subnetwork': INNER}},
    'of_cond': {'class': 'copy', 'from': 'cond/a'},
    'loop': {'class': 'rec', 'from': 'data', 'unit': {
        'h': {'class': 'linear', 'n_out': 4, 'from': ['prev:h', 'data:source'], 'is_output_layer': True},
        'output': {'class': 'copy', 'from': 'h'}}},
    'of_loop': {'class': 'copy', 'from': 'loop/h'},
    'split': {'class': 'split', 'from': 'data', 'size_splits': [1, 2]},
}


def parts(*names):
    net = TFNetwork(extern_data=ExternData({'data': {'dim': 3}}))
    return [net.construct_layer(PARTS, name).output.dim for name in names]


def run(code):
    return eval(code, globals())
"""


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the function that evaluates code of a config."""
    path = tmp_path_factory.mktemp("names") / "my.config"
    path.write_text("#!returnn\n" + HEAD)
    return Config.from_file(str(path)).typed("run")


CASES: list[tuple[str, str]] = [
    ("dims('linear', X, out_dim=G)", "(batch_dim, T, G)"),
    ("dims('copy', X)", "(batch_dim, T, F)"),
    ("dims('reduce', X, mode='mean', axis=T)", "(batch_dim, F)"),
    ("dims('variable', shape=[F, G])", "(F, G)"),
    ("dims('variable', shape=[G.copy(match_priority=1), G])", "(G.copy(match_priority=1), G)"),
    ("dims('dot', X, template('variable', shape=[F, G]), reduce=F)", "(batch_dim, T, G)"),
    ("dims('constant', value=1.0)", "()"),
    ("template('constant', value=1, dtype='int32').dtype", "'int32'"),
    ("template('reduce', X, mode='argmax', axis=F).sparse_dim", "F"),
    ("dims('conv', X, out_dim=G, filter_size=(3,), padding='valid', in_spatial_dims=[T])", "(batch_dim, T - 2, G)"),
    ("dims('pool', X, mode='max', pool_size=(2,), padding='same', in_spatial_dims=[T])[1]", "T.ceildiv_right(2)"),
    ("dims('merge_dims', X, axes=[T, F])", "(batch_dim, T * F)"),
    ("dims('split_dims', X, axis=F, dims=[SPLIT, -1])[2]", "SPLIT"),
    ("template('split_dims', X, axis=F, dims=[SPLIT, -1]).dim_tags[3].dimension", "1"),
    ("dims('rec_unstack', X, loop=T, axis=T)", "(batch_dim, F)"),
    ("dims('rec', X, unit='lstm', out_dim=G, in_dim=F, axis=T)", "(T, batch_dim, G)"),
    ("dims('rec', X, unit='lstm', out_dim=G, in_dim=F, axis=single_step_dim, loop=T)", "(batch_dim, T, G)"),
    ("dims('get_last_hidden_state', template('rec', X, unit='lstm', out_dim=G), key='h', out_dim=G)", "(batch_dim, G)"),
    ("dims('length', X, axis=T)", "(batch_dim,)"),
    ("template('cast', X, dtype='int32').dtype", "'int32'"),
    ("dims('subnetwork', X, subnetwork={'output': {'class': 'linear', 'n_out': 3, 'from': 'data'}})[:2]",
     "(batch_dim, T)"),
    ("dims('softmax', X, target='key')[2].dimension", "4"),
    ("template('linear', X, out_dim=G).dim_tags_set_implicit", "{batch_dim, T, G}"),
    ("LABELS.dim_tags_set_implicit", "{batch_dim, T, ImplicitSparseDim(G)}"),
    ("LABELS.dim_tags_set_implicit_only_wrapped", "{ImplicitSparseDim(G)}"),
    ("template('range_in_axis', X, axis=T, sparse=True).dim_tags_set_implicit - {ImplicitSparseDim(T)}",
     "{T, ImplicitDynSizeDim(batch_dim)}"),
    ("template('linear', X, out_dim=G).batch.is_global_batch()", "True"),
    ("LABELS.feature_dim_or_sparse_dim, X.feature_dim_or_sparse_dim", "(G, F)"),
    ("LABELS.get_kwargs()['sparse_dim'], X.get_kwargs()['dim_tags']", "(G, (batch_dim, T, F))"),
    ("Data(**X.get_kwargs()).dim_tags", "X.dim_tags"),
    ("X.verify_out_shape({batch_dim, T, F}), X.sanity_check()", "(None, None)"),
    ("X.copy_add_dim_by_tag(S).dim_tags, X.copy_add_dim_by_tag(S).time_dim_axis", "((batch_dim, S, T, F), 2)"),
    ("X.copy_add_dim_by_tag(S, axis=-1).dim_tags", "(batch_dim, T, F, S)"),
    ("LABELS.copy_template_excluding_axis(0).copy_add_dim_by_tag(batch_dim).dim_tags", "(batch_dim, T)"),
    ("X.get_batch_dim_tag(), X.size_dtype, X.undefined", "(batch_dim, 'int32', False)"),
    ("get_layer_class('copy').fixup_out_data(output=X, network=None) is X", "True"),
    # dims
    ("[T.is_dynamic(), F.is_dynamic(), batch_dim.is_dynamic(), F.is_static()]", "[True, False, False, True]"),
    ("T.get_for_batch_ctx(X.batch, None) is T and T.get_same_base() is T", "True"),
    ("T.derived_from_op, T.derived_from_tag", "(None, None)"),
    ("T.ceildiv_right(3).derived_from_op.kind, T.ceildiv_right(3).derived_from_op.inputs[0]", "('ceildiv_right', T)"),
    ("(T // 3).derived_from_op.inputs[1].derived_from_op.attribs", "{'value': 3}"),
    ("(T + 2).derived_from_op.kind, (T + 2).derived_from_op.inputs[0], (T + 2).derived_from_tag", "('add', T, T)"),
    ("(T * F).derived_from_op.kind, tuple((T * F).derived_from_op.inputs)", "('mul', (T, F))"),
    ("(2 * T).derived_from_op.inputs[1]", "T"),
    ("Dim(kind=Dim.Types.Spatial, description='t', dyn_size_ext=LABELS).dyn_size_ext", "LABELS"),
    # notes of front ends
    ("BatchInfo.get_common_batch_info([None, X.batch, X.batch.copy_extend_with_beam('b')]).beam", "'b'"),
    ("X.batch.copy_extend_with_beam('b').get_global_base() is X.batch", "True"),
    ("ControlFlowContext.is_parent_or_same(None, ControlFlowContext('loop'))", "True"),
    ("ControlFlowContext('cond', ControlFlowContext('loop')).is_loop()", "False"),
    ("len(ControlFlowContext.abs_ctx_stack(ControlFlowContext('cond', ControlFlowContext('loop'))))", "2"),
    ("X.copy_template_set_ctx('ctx').copy_template().control_flow_ctx", "'ctx'"),
    # networks of templates
    ("TFNetwork(extern_data=ExternData({'data': {'dim': 3}})).construct_layer("
     "{'a': {'class': 'linear', 'n_out': 4, 'from': 'data'}, 'b': {'class': 'copy', 'from': ['a', 'a']}}, 'b')"
     ".output.dim", "8"),
    ("TFNetwork(extern_data=ExternData({'data': {'dim': 3}})).construct_layer("
     "{'a': {'class': 'linear', 'n_out': 4}}, 'a').output.dim", "4"),
    ("parts('sub/x')", "[4]"),
    ("parts('sub/inner/y', 'sub/x', 'sub')", "[6, 4, 7]"),
    ("parts('cond/a')", "[4]"),
    ("parts('cond', 'cond/a')", "[3, 4]"),
    ("parts('loop/h', 'of_loop')", "[4, 4]"),
    ("parts('split/1')", "[2]"),
    ("parts('of_cond')", "[4]"),
    ("template('softmax', X, target='key', loss='ctc').dim_tags[2].dimension", "5"),
    ("dims('concat', X, template('linear', X, out_dim=G), **{'from': (('from0', F), ('from1', G))})[2].dimension",
     "19"),
    ("get_layer_class('nonsense', raise_exception=False)", "None"),
    ("issubclass(get_layer_class('linear'), LayerBase)", "True"),
]  # fmt: skip

FAILING = [
    (
        "template('linear', X, out_dim=FeatureDim('no_size', None))",
        "Layer 'layer' .*out_dim must have a static size, but no_size is",
    ),
    ("template('reduce', X, mode='mean', axis=S)", r"Axis s means no axis of \[B, T\|time, F\|feat=13\](.|\n)*from0"),
    ("template('dot', X, template('linear', X, out_dim=G), reduce=F)", "Axis feat=13 means no axis of .*out=6"),
    ("template('linear', X, out_dim=G, out_shape={batch_dim, T, F})", "out_shape has the dim feat=13, but the output"),
    ("X.verify_out_shape({batch_dim, T})", "which out_shape lacks"),
    ("get_layer_class('linaer')", "unknown layer class 'linaer'. Did you mean 'linear'"),
    ("template('rec_unstack', X, axis=T)", "put it into the unit of a 'rec' layer"),
    ("TFNetwork().get_layer('x')", "there is no layer 'x'"),
    ("TFNetwork().construct_layer({'a': {'class': 'copy', 'from': 'a'}}, 'a')", "in a cycle: a <- a"),
    ("TFNetwork().get_layer('data:x')", "there is no data key 'x'"),
    ("parts('sub/z')", "layer 'sub' has no part 'z'"),
    ("parts('cond/b')", "layer 'cond' has no part 'b'"),
    ("parts('plain/b')", "layer 'plain' has no part 'b'"),
    ("parts('other/b')", "there is no layer 'other/b'"),
]


@pytest.mark.parametrize("code, expected", CASES, ids=[code[:60] for code, _ in CASES])
def test_templates(names: Any, code: str, expected: str) -> None:
    assert names(code) == names(expected)


@pytest.mark.parametrize("code, message", FAILING, ids=[code[:60] for code, _ in FAILING])
def test_mistakes_are_told_with_the_names_of_the_front_end(names: Any, code: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        names(code)


def test_declared_dims_are_those_of_the_layer_everywhere(names: Any) -> None:
    """A dim that a layer defines is in its template, and in those that follow."""
    space = names("globals()")
    exec(
        "DOWN = SpatialDim('down')\n"
        "Y = template('conv', X, out_dim=G, filter_size=(3,), strides=(2,), padding='same', in_spatial_dims=[T],"
        " out_spatial_dims=[DOWN])\n"
        "Z = template('activation', Y, activation='relu')\n"
        "R = template('range_in_axis', Y, axis=DOWN)\n",
        space,
    )
    down = space["DOWN"]
    assert all(down in space[name].dim_tags for name in "YZR") and down.is_equal(space["T"].ceildiv_right(2))
    assert down.get_same_base() is space["T"].ceildiv_right(2) and down.dyn_size_ext.dim_tags == (space["batch_dim"],)


@pytest.fixture
def small_nn(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Iterator[None]:
    """Put the library on the path, and forget it and its behavior version afterwards."""
    (tmp_path / "lib").mkdir()
    shutil.copy(LIBRARY, tmp_path / "lib")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "lib"), *sys.path])
    yield
    sys.modules.pop("small_nn", None)
    BehaviorVersion.set(None)


@pytest.mark.slow
def test_a_front_end_writes_a_network_that_trains(small_nn: None, tmp_path: pathlib.Path) -> None:
    """Modules with dims, square weights, attention, a loop with a state, a cond; imported by importlib."""
    path = tmp_path / "my.config"
    path.write_text(
        "#!returnn\nimport importlib\nextern_data, network = importlib.import_module('small_nn').build()\n"
        "behavior_version = 12\noptimizer = {'class': 'adam'}\n"
    )
    config = Config.from_file(str(path))
    net = Network.from_config(config, train=True)
    shapes = {tuple(value.shape) for value in net.params.values()}
    assert shapes == {(3, 5, 8), (8,), (8, 8), (8, 3), (3,), (3, 3)}
    rng = np.random.default_rng(0)
    feed = {"data": rng.normal(size=(4, 7, 5)).astype("float32"), "data/size0": [7, 5, 7, 3], "classes": [0, 1, 2, 0]}
    trainer = Trainer(net, config)
    losses = [trainer.step(feed, learning_rate=0.03).total_loss for _ in range(10)]
    assert losses[-1] < 0.1 < losses[0]
