"""Flags for a program whose tile unit (Intel AMX) is emulated."""

import os

EMULATED_TILES = ("-include", os.path.join(os.path.dirname(os.path.abspath(__file__)), "tile_emulation.h"))
#: What all CPUs with a tile unit have, and others, too.
WITH_VECTORS_OF_TILES = ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16")
#: What this machine has, AVX512-BF16, the tile unit emulated, AVX2, and plain loops: the forms of products of bfloat16.
BFLOAT16_TARGETS = {
    "native": ("-march=native",),
    "avx512bf16": WITH_VECTORS_OF_TILES,
    "tiles": (*WITH_VECTORS_OF_TILES, *EMULATED_TILES),
    "avx2": ("-march=x86-64-v3",),
    "baseline": (),
}
