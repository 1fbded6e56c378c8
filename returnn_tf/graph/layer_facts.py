"""What the compiler asks about a layer: facts about its class, and what it is found to be once it is planned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Optional

from returnn_tf.graph.option_types import Activation
from returnn_tf.graph.sealing import Sealable
from returnn_tf.tensor import Dim


class LayerFacts(Sealable):
    """The attributes by which the rest of the compiler knows a layer, with the value that most classes have.

    Those of the class come first. The others are set while the layer is planned, or are options of the class.
    """

    class_name: ClassVar[str] = ""
    #: Whether a new layer has nothing but its options: the class has neither ``__init__`` nor ``__post_init__``.
    has_only_options: ClassVar[bool] = False
    #: Whether the layer needs sources: then ``from`` is "data" by default in old configs, and required in others.
    needs_sources: ClassVar[bool] = True
    #: Whether it only connects a loop with the outside: hidden from users.
    is_connector: ClassVar[bool] = False
    #: Parameter scope where the layer is the unit of another one, such as `masked_computation`.
    scope_as_unit: ClassVar[str] = ""
    #: The scope inside that of the layer in which its parameters are, and the output of an exported graph; a
    #: ``name_scope`` replaces both.
    inner_scope: ClassVar[str] = ""
    #: Whether a network inside is a part of the network around, so that in a loop ``prev:`` in it refers to its layers.
    steps_with_loop: ClassVar[bool] = False
    #: Whether the hidden state of its only source is its own too, as for a copy.
    forwards_state: ClassVar[bool] = False
    #: Whether a network as its ``unit`` is computed step by step; a search may do other steps than training.
    iterates_unit: ClassVar[bool] = False
    #: Whether the output has no hypotheses of a search, even if a source has them.
    ends_search: ClassVar[bool] = False
    #: Whether in a step of a loop the value is about the hypotheses of the search, so that it exists in a search alone.
    is_about_search: ClassVar[bool] = False
    #: Whether the state that this layer carries from step to step of a loop grows in each step.
    history_grows: ClassVar[bool] = False
    #: Whether the value depends on previous steps of a loop, even where the sources do not. Only such a class may call
    #: `PlanContext.loop_state`.
    has_memory: ClassVar[bool] = False
    #: Whether it computes attention weights that are exposed only through `LayerBase.emit_weights`.
    has_inner_weights: ClassVar[bool] = False
    #: Of a layer with a memory: whether it can also compute all steps at once, along `PlanContext.loop_dim`.
    computes_all_steps: ClassVar[bool] = False
    #: Whether the output has as many features as the (first) source.
    keeps_features: ClassVar[bool] = False
    #: Whether the output features are the concatenated source features, if the sizes add up.
    joins_features: ClassVar[bool] = False
    #: Whether the values are a distribution over the features, whatever the activation is.
    normalizes_features: ClassVar[bool] = False
    #: Whether a layer of this class that has a target usually has a loss on it: it makes new features out of its input.
    is_for_loss: ClassVar[bool] = False
    #: Whether the layer passes values on after each step of a task, see `returnn_tf.graph.after_step.sinks`.
    has_sink: ClassVar[bool] = False
    #: Whether the layer has a loss on the gradient at its output, see `returnn_tf.graph.after_step.meta_loss`.
    has_meta_loss: ClassVar[bool] = False
    #: Whether the layer computes in the type of the setting mixed_precision, if there is one: a product or activation.
    reduces_precision: ClassVar[bool] = False
    #: Whether the layer is a batch normalisation itself, so that the option ``batch_norm`` adds none.
    normalizes_batch: ClassVar[bool] = False
    #: Whether the sources may be complex numbers; a class that has parameters refuses them in any case.
    takes_complex: ClassVar[bool] = True
    #: Whether sources without labels may be integers or bools; None: if the class has no parameters.
    takes_ints: ClassVar[Optional[bool]] = None
    #: The option that sets the number of hypotheses of a search, if the layer creates any.
    beam_size_option: ClassVar[str] = ""

    #: Of a connector whose value does not come from its first source: the layer it comes from (`Node`), or its name.
    of: Any = None
    #: Name or function of the activation that gives the output, if there is one.
    activation: Activation = None  # declared as its option is, since classes inherit both
    #: What to load into the parameters below this layer, see `returnn_tf.engine.checkpoints.preload`.
    load_on_init: Any = None
    #: For each source: None, or what follows its name in the tuple that ``from`` has in place of a name.
    source_options: Sequence[Any] = ()

    @property
    def history(self) -> Optional[Dim]:
        """The dim of the steps so far, of a layer whose output has it."""
        return None

    @property
    def followed_dims(self) -> Sequence[Any]:
        """Return, of a choice that gives the labels of the target, the dims of the target, as long as the loop."""
        return ()
