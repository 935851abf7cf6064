"""The instruction set that a run of the tests is held to: `CHERENKOV_ISA`, which the library obeys as well.

Most tests below `Model` choose instruction sets themselves, all that the machine has. Held to one, they try only that one,
and it stands in where they would take the best.
"""

import os

__all__ = ["FORCED"]

FORCED = os.environ.get("CHERENKOV_ISA", "")
"""Empty if the tests may choose."""
