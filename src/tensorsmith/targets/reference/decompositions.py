"""Numbers and matrices taken apart: routines of LIBRARY nodes on float64 arrays (integers as they are)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Arrays = Sequence[np.ndarray]
Attrs = Mapping[str, Any]


def mantissa(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    """What is left of a number when a power of two is taken out: in [1/2, 1); 0, infinity and NaN themselves."""
    return np.frexp(arrays[0])[0]


def exponent(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    """The power of two that `mantissa` takes out."""
    return np.where(np.isfinite(arrays[0]), np.frexp(arrays[0])[1], 0)


def singular_values(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    """From the largest to the smallest, of the matrices in the last two axes."""
    return np.asarray(_finite_svd(arrays[0], False)[1])


def _finite_svd(x: np.ndarray, vectors: bool) -> tuple[Any, Any, Any]:
    if np.isfinite(x).all():
        if vectors:
            u, s, vh = np.linalg.svd(x, full_matrices=False)
            return u, s, vh
        return None, np.linalg.svd(x, compute_uv=False), None
    raise RuntimeError("linalg.svd: The algorithm failed to converge because the input matrix contained non-finite values.")


def singular_values_pull(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    """The gradient of a matrix from one of its singular values: U diag(g) V^H."""
    u, _, vh = _finite_svd(arrays[0], True)
    return (u * arrays[1][..., None, :]) @ vh


def singular_diagonal(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    """The diagonal of U^H G V, its real part: what a gradient G of U diag(g) V^H gives g."""
    u, _, vh = _finite_svd(arrays[0], True)
    return np.einsum("...ik,...ij,...kj->...k", np.conj(u), arrays[1], np.conj(vh)).real


def singular_values_pull_again(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    """What a gradient G of U diag(g) V^H gives the matrix, by the differentials of U and V. Infinite where values are equal."""
    x, g, grad = arrays
    u, s, vh = _finite_svd(x, True)
    ut, v = np.swapaxes(u, -1, -2), np.swapaxes(vh, -1, -2)
    rows, columns = s[..., :, None], s[..., None, :]
    gap = columns * columns - rows * rows
    gap[..., range(s.shape[-1]), range(s.shape[-1])] = np.inf
    inner = ut @ grad @ v
    by_u, by_v = inner * g[..., None, :] / gap, g[..., :, None] * inner / gap
    core = by_u * columns + np.swapaxes(rows * by_u, -1, -2) - rows * by_v - np.swapaxes(by_v * columns, -1, -2)
    ratio = (g / s)[..., None, :]
    result = u @ core @ vh
    result = result + ((grad @ v - u @ inner) * ratio) @ vh
    return result + (u * ratio) @ (ut @ grad - inner @ vh)


def nearest_isometry(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    """U V^H of A = U diag(s) V^H."""
    u, _, vh = _finite_svd(arrays[0], True)
    return u @ vh


def nearest_isometry_pull(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    """The gradient of A from one of U V^H.

    The differential is U [(X - X^H) / (s_i + s_j)] V^H with X = U^H dA V, and beside the square part
    (1 - U U^H) dA V S^-1 V^H + U S^-1 U^H dA (1 - V V^H). As a map of dA it is its own adjoint.
    """
    x, grad = arrays
    u, s, vh = _finite_svd(x, True)
    uh, v = np.conj(np.swapaxes(u, -1, -2)), np.conj(np.swapaxes(vh, -1, -2))
    inner = uh @ grad @ v
    inner = inner - np.conj(np.swapaxes(inner, -1, -2))
    result = u @ (inner / (s[..., :, None] + s[..., None, :])) @ vh
    by_s = 1.0 / s
    if x.shape[-2] > x.shape[-1]:
        outside = grad - u @ (uh @ grad)
        result = result + ((outside @ v) * by_s[..., None, :]) @ vh
    elif x.shape[-2] < x.shape[-1]:
        outside = grad - (grad @ v) @ vh
        result = result + (u * by_s[..., None, :]) @ (uh @ outside)
    return result


def solve(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    """A^-1 B of the matrices in the last two axes."""
    a, b = arrays
    try:
        return np.asarray(np.linalg.solve(a, b))
    except np.linalg.LinAlgError:
        found = np.flatnonzero(np.linalg.det(a).reshape(-1) == 0)
        place = f"(Batch element {found[0]}): " if a.ndim > 2 and found.size else ""
        raise RuntimeError(f"linalg.solve: {place}The solver failed because the input matrix is singular.") from None


# Coefficients of the diagonal Pade approximant of degree 13 of exp, and up to which norm its error is below float64's.
_PADE = (
    64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000, 10559470521600, 670442572800,
    33522128640, 1323241920, 40840800, 960960, 16380, 182, 1,
)  # fmt: skip
_PADE_NORM = 5.371920351148152


def matrix_exp(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    """exp of square matrices: r(A / 2^s) squared s times (Higham, "The scaling and squaring method ... revisited", 2005)."""
    (x,) = arrays
    if not x.size:
        return x
    norm = np.abs(x).sum(-2).max(-1)
    usable = np.isfinite(norm)
    steps = np.ceil(np.log2(np.where(usable & (norm > _PADE_NORM), norm / _PADE_NORM, 1.0))).astype(np.int64)
    x = np.where(usable[..., None, None], x, 0) / np.ldexp(1.0, steps)[..., None, None]
    one = np.eye(x.shape[-1])
    power = [one, x @ x]
    power += [power[1] @ power[1], power[1] @ power[1] @ power[1]]
    c = _PADE
    high = [sum(c[start + 2 * k] * power[k] for k in range(1, 4)) for start in (7, 6)]
    low = [sum(c[start + 2 * k] * power[k] for k in range(4)) for start in (1, 0)]
    odd, even = x @ (power[3] @ high[0] + low[0]), power[3] @ high[1] + low[1]
    found = np.linalg.solve(even - odd, even + odd)
    for step in range(int(steps.max())):
        found = np.where((step < steps)[..., None, None], found @ found, found)
    return np.where(usable[..., None, None], found, np.nan)


def gcd(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    """The greatest common divisor; of the lowest integer alone that integer, whose magnitude has no place."""
    return np.gcd(*arrays)


def lcm(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    """The least common multiple, wrapping around as products do."""
    x, y = arrays
    divisor = np.gcd(x, y)
    wide = np.uint64 if x.dtype == np.uint64 else np.int64
    quotient = (x // np.where(divisor == 0, 1, divisor).astype(x.dtype)).astype(wide)
    return np.abs(quotient * y.astype(wide)).astype(x.dtype)


ROUTINES: dict[str, Callable[[Arrays, Attrs], np.ndarray]] = {
    "gcd": gcd,
    "lcm": lcm,
    "mantissa": mantissa,
    "matrix_exp": matrix_exp,
    "exponent": exponent,
    "singular_values": singular_values,
    "solve": solve,
    "singular_values_pull": singular_values_pull,
    "singular_diagonal": singular_diagonal,
    "singular_values_pull_again": singular_values_pull_again,
    "nearest_isometry": nearest_isometry,
    "nearest_isometry_pull": nearest_isometry_pull,
}
