#!/usr/bin/env python3
"""Runs the script of the same name in the folder ``tools/`` of the checkout."""

from __future__ import annotations

import os
import runpy

_checkout = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

if __name__ == "__main__":
    runpy.run_path(os.path.join(_checkout, "tools", os.path.basename(__file__)), run_name="__main__")
