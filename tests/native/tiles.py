"""Flags for a program whose tile unit (Intel AMX) is emulated."""

import os

EMULATED_TILES = ("-include", os.path.join(os.path.dirname(os.path.abspath(__file__)), "tile_emulation.h"))
#: What all CPUs with a tile unit have, and others, too.
WITH_VECTORS_OF_TILES = ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16")
