"""Parts of networks that many configs share, as functions that return layers.

A block is a function of the name of its output and of options; all other layers of it have names that begin with that::

    from returnn_tf import blocks

    network = {
        **blocks.conformer("encoder", source="data", layers=12),
        **blocks.ctc("output", source="encoder"),
    }

What it returns is a plain network dict, so layers may be changed or added. ``returnn-tf blocks`` lists all.
"""

from returnn_tf.blocks.block import BLOCKS
from returnn_tf.blocks.decoders import attention_decoder, transformer_decoder
from returnn_tf.blocks.encoders import blstm, conformer, transformer_encoder, vgg
from returnn_tf.blocks.frames import ctc, transducer
from returnn_tf.blocks.language_models import lstm_language_model, transformer_language_model

__all__ = [
    "BLOCKS",
    "attention_decoder",
    "blstm",
    "conformer",
    "ctc",
    "lstm_language_model",
    "transducer",
    "transformer_decoder",
    "transformer_encoder",
    "transformer_language_model",
    "vgg",
]
