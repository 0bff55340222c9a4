"""Mixed precision: `autocast` for the forward pass, `GradScaler` for float16 gradients."""

from tensorsmith.amp.autocast_mode import autocast, custom_bwd, custom_fwd
from tensorsmith.amp.grad_scaler import GradScaler
from tensorsmith.amp.state import is_autocast_available

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]
