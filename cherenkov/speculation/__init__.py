"""Speculation: tokens are guessed, and a step of the model verifies several at once.

What is said does not depend on it. A step runs the token sampled last and, behind it, the drafts; each row's logits are
those that the model would have given anyway, and the token that comes next is sampled from them as it always is, with
the same random number. If it is the draft, the next row counts as well; if not, the rest is taken back.
"""

from cherenkov.speculation.drafter import Drafter, Speculation
from cherenkov.speculation.figures import MOST_DRAFTS, DraftCounts

__all__ = ["MOST_DRAFTS", "DraftCounts", "Drafter", "Speculation"]
