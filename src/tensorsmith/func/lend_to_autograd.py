"""What autograd needs of function transforms: the level behind `autograd.forward_ad`, and vmap."""

from __future__ import annotations

from tensorsmith.autograd.transforms import set_transforms
from tensorsmith.func.dual_level import DualLevel
from tensorsmith.func.vmap import vmap

set_transforms(dual_level=lambda: DualLevel(records=True), vmap=vmap)
