"""`fast_bw` with what the config says about the automata."""

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from tests.layers.nets import feed, net_of, template


def hmm(labels):
    edges = []
    for i, label in enumerate(labels):
        edges += [(i, i + 1, label, 0.5), (i + 1, i + 1, label, 0.1)]
    return edges


def network(loss=False, more=None, **options):
    p = {"class": "softmax", "n_out": 6, "from": "data"}
    if loss:
        p.update({"loss": "via_layer", "loss_opts": {"align_layer": "bw", "loss_wrt_to_act_in": "softmax"}})
    layer = {"class": "fast_bw", "align_target_key": "labels", "input_type": "prob", "from": "p", **options}
    return {"p": p, "bw": layer, "output": {"class": "copy", "from": "bw"}, **(more or {})}


def run(**options):
    arrays = feed()
    arrays["labels"], arrays["labels/size0"] = arrays["labels"][:, :2], np.array([2, 1, 2], "int32")
    extern = {"extern_data": {"data": {"dim": 3}, "labels": {"dim": 5, "sparse": True}}}
    arrays = {k: v for k, v in arrays.items() if k.partition("/")[0] in ("data", "labels")}
    net = net_of(network(**options), **extern)
    net.set_param_values({k: np.cos(np.arange(v.size)).reshape(v.shape) for k, v in net.get_param_values().items()})
    return net.run(arrays, with_grad=bool(options.get("loss")))


def test_automaton_without_costs_is_the_hmm():
    first = run(align_target="hmm").layers["output"].value
    second = run(align_target="automaton", automaton=hmm, tdp_scale=0.0).layers["output"].value
    np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-6)
    other = run(align_target="automaton", automaton=hmm, am_scale=0.5).layers["output"].value
    assert abs(first - other).max() > 1e-2
    for value in (first, other):
        np.testing.assert_allclose(value[0].sum(-1), np.ones([4]), rtol=1e-4)


def test_input_of_several_layers():
    """The scores may be concatenated, and have dropout."""
    first = run(align_target="hmm").layers["output"].value
    parts = {"left": {"slice_end": 2}, "right": {"slice_start": 2}}
    layers = {name: {"class": "slice", "axis": "F", "from": "p", **more} for name, more in parts.items()}
    second = run(more=layers, align_target="hmm", **{"from": ["left", "right"]}).layers["output"].value
    np.testing.assert_array_equal(first, second)
    dropout = {"dropout": 0.5, "dropout_on_forward": True, "dropout_noise_shape": {"*": None}}
    dropped = run(align_target="hmm", **dropout).layers["output"].value
    assert abs(first - dropped).max() > 1e-2


def test_gradient_of_the_full_sum():
    """The loss is what the automaton says, and its gradient is that of the softmax minus the posteriors."""
    out = run(align_target="automaton", automaton=hmm, loss=True, tdp_scale=0.3)
    assert np.isfinite(out.total_loss) and out.total_loss > 0
    assert np.abs(out.grads["p/W"]).max() > 1e-3


def best_path(**options):
    layer = {"class": "forced_align", "align_target": "data:labels", "input_type": "prob", "from": "p", **options}
    return {"p": {"class": "softmax", "n_out": 6, "from": "data"}, "output": layer}


@pytest.mark.parametrize("options", [{"topology": "automaton"}, {"topology": "ctc", "automaton": hmm}])
def test_automaton_of_a_best_path(options):
    with pytest.raises(ConfigError, match="belong together; got topology"):
        template(best_path(**options))


@pytest.mark.parametrize(
    "options,match",
    [
        ({"align_target": "sprint"}, "sprint_opts: the option 'sprintExecPath' is missing"),
        ({"align_target": "hmm", "sprint_opts": {"sprintExecPath": "x"}}, "sprint_opts is for align_target 'sprint'"),
        ({"align_target": "ctcc"}, "'align_target' is 'ctcc'. Did you mean 'ctc'"),
        ({"align_target": "automaton"}, "belong together"),
        ({"align_target": "hmm", "automaton": hmm}, "belong together"),
        ({"align_target": "hmm", "ctc_opts": {"blank_idx": 0}}, "ctc_opts is for align_target 'ctc'"),
        ({"align_target": "ctc", "ctc_opts": {"blank": 0}}, "unknown option 'blank'"),
        ({"align_target": "ctc", "input_type": "logits"}, "'input_type' is 'logits'"),
    ],
)
def test_wrong_options(options, match):
    with pytest.raises(ConfigError, match=match):
        template(network(**options))
