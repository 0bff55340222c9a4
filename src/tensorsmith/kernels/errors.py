"""Error words: how a kernel says that its operands were not acceptable.

Every launch has one 64-bit error word, 0 at its start. A kernel that meets an error stores a code other than 0, carries on
with some defined value in place of the faulty one, and one of the codes stored is left at the end. The launch returns
it, and the step of the plan (`runtime/steps.py`) makes the exception. Codes keep to 32 bits, signed, so that a plan of
several launches can say beside the code which one failed.
"""

from __future__ import annotations

NO_ERROR = 0
ZERO_DIVISION = -1  # an integer division or modulo by zero
FIRST_POINT = 1  # FIRST_POINT + p: the index at point number p of the domain (row-major) is out of range
