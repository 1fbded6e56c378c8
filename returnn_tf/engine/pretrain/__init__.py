"""Networks which change during training: ``pretrain``, ``get_network`` and `WrapEpochValue`.

**Pretraining.** ``pretrain = {...}`` (or ``"default"`` with keys such as ``pretrain_repetitions``) builds the
network of the config in steps. Each step is trained for some epochs, then the network of the config itself. Options:

* ``construction_algo``: a function ``(idx, net_dict) -> net_dict or None`` which is called for steps 0, 1, 2, ... until
  it returns None, each time with a new copy of the config's network; a list of network dicts; "from_output" (the
  default) or "from_input". "from_output" removes the hidden layers next to the output, fewer in every step;
  "from_input" keeps the hidden layers up to a depth above the input which grows with every step. Both begin with the
  lowest hidden layers; they differ if branches have different lengths.
* ``repetitions``: epochs per step: an int; a list, whose last entry counts for all further steps; or a dict from step
  to epochs, with "default" (1) for the others and "final" for the last step. 0 skips a step.
* ``copy_param_mode``: what happens to a parameter with another shape in the next network: None is an error,
  "ifpossible" reinitialises it, "subset" copies the block which both have, "reset" copies no parameters at all.
* ``copy_output_layer``: True, False or "ifpossible": the same for the output layers (default with "from_input" and
  "from_output": "ifpossible"). ``greedy``: train only the layers which are new in a step, and the output.

A network dict may hold ``#config``, settings which replace those of the config during the step (learning_rate and
learning_rates among them), ``#copy_param_mode`` for the way into this step, and ``#info``, which is only shown.
Without ``use_learning_rate_control_always`` pretraining is done with ``pretrain_learning_rate`` (default:
``learning_rate``) unless learning_rates sets the rate of the epoch.

**By epoch.** ``get_network(epoch, **kwargs)`` returns the network dict of an epoch, and ``WrapEpochValue(lambda epoch:
...)`` in a network dict stands for a value that changes. Both are called for all epochs before the first one, so they
should depend on nothing but the epoch. Nothing is rebuilt while the dict stays equal.

**From one network to the next** parameters are carried over by name; new ones are initialised as always, and the
optimizer state is reset. The blocks of "subset" are taken for each part of an axis: for each gate of a recurrent cell,
and for each source of an input which concatenates several sources. All networks and all such transitions are checked
before the first epoch, and by ``returnn-tf check``.
"""
