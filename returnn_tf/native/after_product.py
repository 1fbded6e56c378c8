"""What the ops of products with few rows compute in the same pass: bias, positive part, residual connection."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional


@dataclasses.dataclass(frozen=True)
class AfterProduct:
    """``y = residual + max(product + bias, 0)``, each part of it only if it is given.

    :param bias: [columns]
    :param residual: of the shape of the product
    :param relu: whether to take the maximum
    """

    bias: Optional[Any] = None
    residual: Optional[Any] = None
    relu: bool = False

    @classmethod
    def of(cls, op: Any) -> AfterProduct:
        """Return that of an op of a graph."""
        inputs = list(op.inputs)
        residual = inputs.pop() if op.get_attr("residuals") else None
        return cls(inputs.pop() if op.get_attr("biases") else None, residual, op.get_attr("relu"))

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of an op."""
        bias, residual = ([] if x is None else [x] for x in (self.bias, self.residual))
        return {"bias": bias, "residual": residual, "relu": self.relu}

    def followed_by(
        self, *, bias: Optional[Any] = None, relu: bool = False, residual: Optional[Any] = None
    ) -> Optional[AfterProduct]:
        """Return this with one more part, which comes after the others; None if no op computes that."""
        if (
            self.residual is not None
            or (self.relu and residual is None)
            or (bias is not None and self.bias is not None)
        ):
            return None
        return AfterProduct(self.bias if bias is None else bias, residual, self.relu or relu)


#: Nothing follows.
NOTHING = AfterProduct()
