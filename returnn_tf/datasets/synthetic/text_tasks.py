"""Tasks of predicting structured text: closing tags, and values of variables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from returnn_tf.config.options import at_least, option
from returnn_tf.datasets.core.generating import SymbolTask, choose
from returnn_tf.datasets.core.registry import register_dataset

_LETTERS = "abcdefgh"


@register_dataset()
class TaskXmlModelingDataset(SymbolTask):
    """Predict the next symbol of nested tags wherever it is determined, such as ``<a><bc></bc></a><d></d>``.

    "data" is one-hot float32 [time, 12] over ``" <>/abcdefgh"``, "classes" int64 [time] over the same symbols:
    ``<`` after a blank and after ``>``, the rest of the name and ``>`` in a closing tag, blank elsewhere.
    """

    input_symbols = " <>/" + _LETTERS
    output_symbols = " <>/" + _LETTERS

    @dataclass
    class Options(SymbolTask.Options):
        """Options in the config."""

        limit_stack_depth: int = option(4, help="deepest nesting of tags", check=at_least(1))

    def make_input(self, rng: np.random.RandomState) -> str:
        """Draw a blank and random nested tags."""
        return random_xml(rng, self.opts.limit_stack_depth)

    @classmethod
    def make_output(cls, text: str) -> str:
        """Return the successor of each symbol, where it is determined."""
        stack: list[str] = []
        out, name, rest, state = "", "", "", "outside"
        for symbol in text:
            if state == "closing":
                rest = rest[1:]
                out += rest[0] if rest else "<"
                state = state if rest else "outside"
            elif symbol == "/":
                state, rest = "closing", (stack.pop() if stack else "") + ">"
                out += rest[0]
            elif symbol == ">":
                stack.append(name)
                out, state = out + "<", "outside"
            elif symbol == "<":
                out, state, name = out + " ", "opening", ""
            elif state == "opening":
                out, name = out + " ", name + symbol
            else:
                out += "<"
        return out


def random_xml(rng: np.random.RandomState, limit_stack_depth: int) -> str:
    """Draw random tags with names of 1 to 9 letters.

    Another one opens with probability 0.4 within a tag, and with 0.2 after the last one is closed.
    """
    stack: list[str] = []
    text = " "
    while True:
        may_open = len(stack) < limit_stack_depth
        if not stack or (may_open and rng.rand() > 0.6):
            name = "".join(choose(rng, _LETTERS) for _ in range(rng.randint(1, 10)))
            text += "<%s>" % name
            stack.append(name)
        else:
            text += "</%s>" % stack.pop()
        if not stack and rng.rand() > 0.2:
            return text


@register_dataset()
class TaskVariableAssignmentDataset(SymbolTask):
    """Assignments ``S(key,value),...``, then a query ``Q(key)``: the target is the value.

    "data" is one-hot float32 [time, 15] over ``" ,.SQ()abcdefgh"``, "classes" int64 [time] over the same symbols:
    blank up to the symbol before the closing bracket of the query, then the value, a dot and a blank.
    """

    input_symbols = " ,.SQ()" + _LETTERS
    output_symbols = " ,.SQ()" + _LETTERS

    def make_input(self, rng: np.random.RandomState) -> str:
        """Draw 1 to 5 assignments with different keys, and a query for one of them."""
        table = {}
        for _ in range(rng.randint(1, 6)):
            key = "".join(choose(rng, _LETTERS) for _ in range(rng.randint(1, 5)))
            table[key] = "".join(choose(rng, _LETTERS) for _ in range(rng.randint(1, 3)))
        asked = choose(rng, list(table))
        text = "".join("S(%s,%s)," % item for item in table.items())
        return text + "Q(%s)%s." % (asked, table[asked])

    @classmethod
    def make_output(cls, text: str) -> str:
        """Return the text after the query, one symbol early."""
        answer = text.find(")", text.find("Q")) + 1
        if "Q" not in text or not answer:
            return " " * len(text)
        return (" " * (answer - 1) + text[answer:]).ljust(len(text))
