"""Cases of attention for all of its kernels: what they see, add to the keys and drop."""

from __future__ import annotations

from typing import Any

#: name -> lengths of the keys, whether causal, clipping of distances, dropout
CASES: dict[str, dict[str, Any]] = {
    "all": {},
    "ragged": {"lengths": [0, 20, 7]},
    "causal": {"causal": True},
    "dropout": {"dropout": 0.3},
    "distances": {"clipping": 4, "lengths": [33, 20, 1]},
    "everything": {"clipping": 40, "causal": True, "dropout": 0.2},
}
#: frames, heads, sizes of a key and a value
SIZES = [(33, 2, 5, 19), (130, 1, 64, 32)]
