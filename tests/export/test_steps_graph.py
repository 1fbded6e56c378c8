"""The graph for single steps: names, collections and description that decoders read, and who counts the steps."""

from __future__ import annotations

import json

import numpy as np
import pytest

from returnn_tf import ConfigError
from tests.export.meta_session import MetaSession, inputs
from tests.export.step_models import (
    LABELS,
    PROB,
    attention,
    choice,
    config_of,
    feed_of,
    graph_for_steps,
    language_model,
    linear,
    searching,
    transducer,
    transformer,
    two_choices,
)


@pytest.fixture(scope="module")
def attention_graph():
    """Return the attention decoder: its network, meta graph and `StepGraph`."""
    config = config_of(attention())
    meta, graph, _ = graph_for_steps(config)
    return searching(config), meta, graph


def session_of(net, meta):
    """Load a graph as RASR does, with the parameters of a network."""
    session = MetaSession(meta)
    for name, value in net.get_param_values().items():
        session.write(name + ":0", value)
    return session


@pytest.mark.slow
def test_description(attention_graph):
    """The JSON has the state variables with their ops, shapes and types, and the choices in order."""
    _, _, graph = attention_graph
    text = graph.as_json()
    found = json.loads(text)
    assert text == json.dumps(found, indent=2, sort_keys=True) + "\n"
    assert sorted(found) == ["init_op", "state_vars", "stochastic_var_order", "stochastic_vars"]
    expected = {
        "base_size_time_var_extern_data_data": ([None], "int32"),
        "base_value_enc_ctx": ([None, None, 6], "float32"),
        "base_value_encoder": ([None, None, 8], "float32"),
        "base_value_inv_fertility": ([None, None, 1], "float32"),
        "cond": ([], "bool"),
        "dyn_seq_len": ([None], "int32"),
        "end_flag": ([None], "bool"),
        "i": ([], "int32"),
        "state/accum/output": ([None, None, 1], "float32"),
        "state/att/output": ([None, 8], "float32"),
        "state/s/extra/state/c": ([None, 7], "float32"),
        "state/s/extra/state/h": ([None, 7], "float32"),
        "state_delayed/embed/output": ([None, 5], "float32"),
        "stochastic_var_choice_output": ([None], "int32"),
        "stochastic_var_scores_output": ([None, LABELS], "float32"),
    }
    assert found["state_vars"] == {
        name: {"var_op": "IO/" + name, "shape": shape, "dtype": dtype} for name, (shape, dtype) in expected.items()
    }
    assert found["init_op"] == "rec_step_by_step_init_op"
    assert found["stochastic_var_order"] == ["output"]
    assert found["stochastic_vars"] == {
        "output": {
            "calc_scores_op": "rec_step_by_step_calc_scores_op/output",
            "choice_state_var": "stochastic_var_choice_output",
            "scores_state_var": "stochastic_var_scores_output",
        }
    }


def test_collections(attention_graph):
    """Decoders read everything but the base values from collections."""
    _, meta, graph = attention_graph
    found = {name: list(of.node_list.value) for name, of in meta.collection_def.items() if of.node_list.value}
    states = found.pop("_RETURNN_state_vars")
    names = [n for n in graph.description["state_vars"] if n.startswith("state") or n in ("end_flag", "dyn_seq_len")]
    assert sorted(states) == sorted("IO/%s:0" % name for name in names)
    assert {name: found[name] for name in sorted(found) if name.endswith(("_ops", "_vars"))} == {
        "decode_ops": ["rec_step_by_step_calc_scores_op/output"],
        "decoder_input_vars": ["IO/stochastic_var_choice_output:0"],
        "decoder_output_vars": ["IO/stochastic_var_scores_output:0"],
        "encode_ops": ["rec_step_by_step_init_op"],
        "global_vars": ["IO/i:0"],
        "update_ops": ["rec_step_by_step_update_op"],
    }
    saved = [node for node in meta.graph_def.node if node.name == "save/SaveV2/tensor_names"]
    assert not any(text.startswith(b"IO/") for text in saved[0].attr["value"].tensor.string_val)


def run_steps(session, labels, count=False, first=None):
    """Do steps in the order of a decoder; return the scores of each, and the index after it."""
    scores, index = [], []
    for step, label in enumerate([first, *labels]):
        if label is not None:
            session.write("IO/stochastic_var_choice_output:0", label)
        if count:
            session.write("IO/i:0", np.int32(step))
        for name in ("update_ops", "decode_ops"):
            session.run([], {}, session.collection(name))
        scores.append(session.read("IO/stochastic_var_scores_output:0"))
        index.append(int(session.read("IO/i:0")))
    return np.array(scores), index


@pytest.mark.slow
def test_hypotheses_of_one_sequence(attention_graph):
    """Base values are used for each hypothesis; several sequences have their hypotheses side by side."""
    net, meta, _ = attention_graph
    feed = inputs(feed_of())
    names = list(meta.collection_def["_RETURNN_state_vars"].node_list.value)
    labels = [np.array([1, 2, 3, 4, 5, 2], "int32"), np.array([3, 3, 1, 2, 2, 1], "int32")]
    with session_of(net, meta) as session:
        session.run([], feed, session.collection("encode_ops"))
        for name in names:
            session.write(name, np.repeat(session.read(name), 3, axis=0))
        together, _ = run_steps(session, labels)
        for hyp in range(3):
            session.run([], feed, session.collection("encode_ops"))
            alone, _ = run_steps(session, [label[hyp::3] for label in labels])
            np.testing.assert_allclose(together[:, hyp::3], alone, rtol=1e-5, atol=1e-5)
        session.run([], feed, session.collection("encode_ops"))
        for name in names:
            session.write(name, np.repeat(session.read(name)[:1], 3, axis=0))
        with pytest.raises(Exception, match="must be a multiple of the sequences"):
            session.run([], {}, session.collection("decode_ops"))


@pytest.mark.slow
def test_first_update_does_nothing(attention_graph):
    """Before the first step the start label has no effect: the states begin with initial_output."""
    net, meta, _ = attention_graph
    with session_of(net, meta) as session:
        found = []
        for start in (None, np.array([4, 4], "int32")):
            session.run([], inputs(feed_of()), session.collection("encode_ops"))
            found.append(run_steps(session, [], first=start)[0])
        np.testing.assert_array_equal(*found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "network, counter, counted",
    [
        (attention, None, True), (attention, "decoder", False),
        (transducer, None, False), (transducer, "graph", True), (language_model, None, True),
    ],
)  # fmt: skip
def test_who_counts(network, counter, counted):
    """The graph counts unless steps are frames, which a decoder counts; either side can be told to. Scores agree."""
    config = config_of(network())
    net = searching(config)
    meta, graph, _ = graph_for_steps(config, counter=counter)
    assert graph.counter == ("graph" if counted else "decoder")
    labels = [np.array([2, 3], "int32"), np.array([1, 3], "int32")]
    with session_of(net, meta) as session:
        session.run([], inputs(feed_of()), session.collection("encode_ops"))
        scores, index = run_steps(session, labels, count=not counted)
        assert index == ([1, 2, 3] if counted else [0, 1, 2])
        session.run([], inputs(feed_of()), session.collection("encode_ops"))
        assert int(session.read("IO/i:0")) == 0
        again, _ = run_steps(session, labels, count=True)  # the decoder may write the index in any case
        np.testing.assert_array_equal(scores, again)
    assert not np.array_equal(scores[0], scores[1])


@pytest.mark.slow
def test_end():
    """Flags, lengths and cond are those after the labels so far."""
    config = config_of(language_model())
    meta, _, _ = graph_for_steps(config)
    with session_of(searching(config), meta) as session:
        session.run([], inputs(feed_of()), session.collection("encode_ops"))
        labels = [np.array(label, "int32") for label in ([2, 2], [0, 3], [0, 4], [0, 0])]
        found = []
        for upto in range(len(labels) + 1):
            session.run([], inputs(feed_of()), session.collection("encode_ops"))
            run_steps(session, labels[:upto])
            found.append([session.read("IO/%s:0" % n).tolist() for n in ("end_flag", "dyn_seq_len", "cond")])
    no, yes = False, True
    assert found == [
        [[no, no], [0, 0], yes], [[no, no], [1, 1], yes], [[yes, no], [1, 2], yes], [[yes, no], [1, 3], yes],
        [[yes, yes], [1, 3], no],
    ]  # fmt: skip


@pytest.mark.slow
def test_choices_in_order():
    """A choice may be left without scores, and the order may be reversed."""
    network = two_choices()
    meta, graph, _ = graph_for_steps(config_of(network))
    assert graph.choices == ["first", "output"]
    network["output"]["unit"]["first"]["score_dependent"] = False
    network["output"]["reverse_stochastic_var_order"] = True
    meta, graph, facts = graph_for_steps(config_of(network))
    assert graph.description["stochastic_var_order"] == ["output", "first"]
    assert graph.description["stochastic_vars"]["first"] == {"choice_state_var": "stochastic_var_choice_first"}
    assert "stochastic_var_scores_first" not in graph.description["state_vars"]
    found = meta.collection_def
    assert len(found["decode_ops"].node_list.value) == len(found["decoder_output_vars"].node_list.value) == 1
    names = ["IO/stochastic_var_choice_output:0", "IO/stochastic_var_choice_first:0"]
    assert list(found["decoder_input_vars"].node_list.value) == names
    assert [c["gives_scores"] for c in facts["choices"]] == [True, False]


@pytest.mark.slow
def test_history_grows():
    """The keys and values of a self-attention are states with an axis of their own, which grows."""
    config = config_of(transformer())
    meta, graph, _ = graph_for_steps(config)
    assert graph.description["state_vars"]["state/self/extra/k_left"]["shape"] == [None, None, 2, 2]
    with session_of(searching(config), meta) as session:
        session.run([], inputs(feed_of()), session.collection("encode_ops"))
        run_steps(session, [np.array([1, 2], "int32")] * 2)
        assert session.read("IO/state/self/extra/v_left:0").shape == (2, 3, 2, 2)
        assert int(session.read("IO/base_max_steps:0")) == 6


def with_unit(network, **layers):
    network = {**network, "output": {**network["output"], "unit": {**network["output"]["unit"], **layers}}}
    return config_of(network)


CELL = {"class": "rnn_cell", "unit": "lstm", "n_out": 3, "from": "embed"}
WRONG = {
    "no such layer": (lambda: config_of(attention()), "outptu", "there is no such layer. Did you mean 'output'?"),
    "no loop": (lambda: config_of(attention()), "fw", "not a 'rec' layer with a network as unit"),
    "no choice": (
        lambda: config_of({"output": {"class": "rec", "from": "data", "unit": {"output": linear("data:source", 2)}}}),
        "output", "has no layer of class 'choice'",
    ),
    "logits": (lambda: with_unit(attention(), output=choice(input_type="logits")), "output", "input_type 'logits'"),
    "follows": (
        lambda: config_of({**transducer(search=False), "x": linear("output", 1)}), "output", "follows its target",
    ),
    "two sources": (
        lambda: with_unit(language_model(), output=choice(["prob", "prob"], target=["classes", "classes"])),
        "output", "2 sources",
    ),
    "no scores": (
        lambda: with_unit(language_model(), output=choice(score_dependent=False)), "output", "no choice gives scores",
    ),
    "kept state": (
        lambda: with_unit(
            language_model(), lstm={**CELL, "n_out": 5, "initial_state": "keep_over_epoch"}
        ), "output", "keeps its state",
    ),
    "about the search": (
        lambda: with_unit(
            language_model(), beams={"class": "choice_get_beam_scores", "from": "prev:output"},
            score={"class": "expand_dims", "axis": "F", "from": "beams"}, prob={**PROB, "from": ["prev:lstm", "score"]},
        ), "output", "about the hypotheses of the search",
    ),
    "another search": (
        lambda: config_of({**transducer(), "second": {**transducer()["output"], "from": "output_embed"},
                           "output_embed": linear("output", 8), "best": {"class": "decide", "from": "second",
                                                                         "is_output_layer": True}}),
        "second", "the hypotheses of another search, 'output'",
    ),
    "growing axis": (
        lambda: with_unit(
            transformer(), all={"class": "cum_concat", "from": "embed"}, last={"class": "reduce", "mode": "max",
            "axes": "stag:rec-history", "from": "both"}, mixed=linear("output", 4),
            both={"class": "combine", "kind": "add", "from": ["all", "mixed"]},
            prob={**PROB, "from": ["att", "prev:last"]},
        ), "output", "is made in that step",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(WRONG))
def test_errors(name):
    """What has no single steps is refused, with the layer and the reason."""
    config, layer, text = WRONG[name]
    with pytest.raises(ConfigError) as error:
        graph_for_steps(config(), layer)
    assert text in str(error.value)
