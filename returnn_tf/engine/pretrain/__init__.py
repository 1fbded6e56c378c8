"""Networks which change during training: ``pretrain``, ``get_network`` and `WrapEpochValue`.

**Pretraining.** ``pretrain = {...}`` (or ``"default"``) builds the network of the config in steps, each of which is
trained for some epochs. The last step is the network of the config itself. Options, some of which can also be set by
``pretrain_<option>``:

* ``construction_algo``: a function ``(idx, net_dict) -> net_dict or None`` which is called for steps 0, 1, 2, ...
  until it returns None, each time with a new copy of the config's network; a list of network dicts; "from_output" (the
  default), "from_input" or "no_network_modifications". "from_output" removes the hidden layers next to
  ``output_layers`` ("output"), fewer in every step; "from_input" keeps the hidden layers up to a depth above
  ``input_layers`` ("data") which grows with every step. Both begin with the lowest hidden layers; they differ if
  branches have different lengths. After a function or a list, the network of the config follows as a further step; the
  algorithms end with it.
* ``repetitions``: epochs per step (1): an int; a list, whose last entry counts for all further steps; or a dict from
  step to epochs, with "default" (1) for the others and "final" for the last step, the network of the config. 0 skips
  a step.
* ``copy_param_mode``: what happens to a parameter with another shape in the next network: "ifpossible" reinitialises
  it, None does so with a warning, "subset" copies the block which both have, "reset" copies no parameters at all.
* ``copy_output_layer``: the same for ``output_layers``: True as for the others, False as "reset", or a mode; by default
  the mode of the others, "ifpossible" for None.
* ``greedy``: train only the layers which are new in a step, and the output.

A network dict, also one of ``get_network``, may hold ``#config``, settings which replace those of the config during the
step (learning_rate and learning_rates among them); ``#repetition``, the epochs of this step in place of
``repetitions``; ``#copy_param_mode`` for the way into this step; ``#trainable``: False for a step which goes through
the training data without training, in the mode of evaluation, for layers which write files; and ``#info``, which is
only shown.

Without ``use_learning_rate_control_always`` pretraining is done with ``pretrain_learning_rate`` (default:
``learning_rate``) unless learning_rates sets the rate of the epoch.

**By epoch.** ``get_network(epoch, **kwargs)`` returns the network dict of an epoch, and ``WrapEpochValue(lambda epoch:
...)`` in a network dict stands for a value that changes. Both are called for all epochs before the first one, to find
mistakes in late networks; ``get_network`` is called again when its epoch begins, and the result of this call counts. So
it may look for files that earlier epochs have written. Nothing is rebuilt while the dict stays equal.

**From one network to the next** parameters are carried over by name; new ones are initialised as always, and the
optimizer state is reset. The blocks of "subset" are taken for each part of an axis: for each gate of a recurrent cell,
and for each source of an input which concatenates several sources. All networks and all such transitions are checked
before the first epoch, and by ``returnn-tf check``.
"""
