"""Neural networks."""

from tensorsmith.nn import functional as functional
