"""What a kernel of attention does to one score or one weight: scale, mask, causality, dropout. Text for every kernel alike.

Kernels call `score(product, query, key)` and, with dropout, `kept(query, key)`, the factor z of `ir/dropout.py`. Both read
the variables `sizes`, `mask_rows` (the mask of this batch) and `stream_key`, `stream_first` (its random bits).
"""

from __future__ import annotations

from tensorsmith.core.dtypes import bool_
from tensorsmith.ir.attention import part_weights
from tensorsmith.targets.cuda.attention_spec import AttentionSpec
from tensorsmith.targets.cuda.scalars import c_type, memory_type, narrow, widen

_INFINITY = {"float": "__int_as_float(0x7f800000)", "double": "__longlong_as_double(0x7ff0000000000000ll)"}


def infinity(real: str) -> str:
    return _INFINITY[real]


def batch_text(spec: AttentionSpec) -> str:
    """Statements that find the mask and the random bits of the batch (outer, inner)."""
    lines = []
    if spec.mask is not None:
        kind = memory_type(spec.mask)
        lines.append(f"const {kind}* mask_rows = mask + outer * sizes.mask_outer + inner * sizes.mask_inner;")
    if spec.dropout:
        lines += [
            "const long long* stream = streams + outer * sizes.streams_outer + inner * sizes.streams_inner;",
            "const unsigned long long stream_key = stream[0], stream_first = stream[sizes.streams_row];",
        ]
    return "\n".join(lines)


def score_text(spec: AttentionSpec, product: str, query: str, key: str, real: str, limits: str) -> str:
    """A statement list that leaves the score in `product`: minus infinity where it is hidden or beyond `limits`.

    query, key: expressions of numbers that are in range wherever `limits` holds.
    """
    hidden = f"(-{infinity(real)})"
    visible = f"{limits} && {key} <= {query}" if spec.causal else limits
    place = f"mask_rows[{query} * sizes.mask_row + {key} * sizes.mask_column]"
    if spec.mask is bool_:
        return f"{product} = {visible} && {place} ? {product} * ({real})sizes.scale : {hidden};"
    if spec.mask is not None:
        return f"{product} = {visible} ? {product} * ({real})sizes.scale + {place} : {hidden};"
    return f"{product} = {visible} ? {product} * ({real})sizes.scale : {hidden};"


def kept_text(spec: AttentionSpec, query: str, key: str, real: str) -> str:
    """An expression of z, zero where the weight of a query and a key is dropped."""
    group = f"((long long)({key}) / 64 * 64 + ({key}) % 16 * 4 + ({key}) / 16 % 4)"
    counter = f"stream_first + (unsigned long long)(({query}) * sizes.row_words + {group})"
    return f"(philox(stream_key, {counter}) < (unsigned int)sizes.limit ? ({real})0 : ({real})sizes.factor)"


def lse_text(spec: AttentionSpec, row: str, value: str) -> str:
    """Statements that store the log-sum-exp of a row of all batches, in halves as its parts."""
    dtype = spec.result_dtype
    if not dtype.is_half:
        return f"(({c_type(dtype)}*)(result + sizes.lse_start))[{row}] = {value};"
    lines = [
        f"unsigned short* lse_parts = (unsigned short*)(result + sizes.lse_start) + ({row});",
        f"float lse_rest = {value}, lse_found;",
        "unsigned short lse_bits;",
    ]
    for number, weight in enumerate(part_weights(dtype)):
        lines += [
            f"lse_bits = {narrow(dtype, f'lse_rest * {1 / weight!r}f')};",
            f"lse_parts[{number} * sizes.batch * sizes.L] = lse_bits;",
            f"lse_found = {widen(dtype, 'lse_bits')} * {weight!r}f;",
            f"lse_rest = fabsf(lse_found) < {infinity('float')} ? lse_rest - lse_found : 0.0f;",
        ]
    return "{\n" + "\n".join(lines) + "\n}"
