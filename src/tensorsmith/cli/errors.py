"""What the user did wrong, told in one line."""

from __future__ import annotations


class UsageError(Exception):
    """A mistake of the user: the command prints the message in one line and exits with code 2."""
