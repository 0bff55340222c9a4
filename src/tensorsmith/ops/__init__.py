"""The operators users call. Importing this room binds every method onto Tensor.

Each family of the table of operators (`registry.py`) and the files it is in:

    pointwise       pointwise, pointwise_composites, special_functions, bessel, normal_functions, float_parts, divisors,
                    special_library
    comparing       comparing
    complex         complex_numbers
    selecting       selecting
    reductions      reductions, extremes, moments, scans, segments, float_parts; what they share: reduction_steps
    statistics      statistics, histograms
    sorting         sorting
    matmul          matmul, contraction, matrices, matrix_functions, singular_values
    indexing        indexing (which says more), index_steps, gathering, scattering, taking, positions, masked_indexing, divisors
    views           views, splitting, transposing, view_copies, views_in_place; the operators they call: view_operators
    joining         joining, arranging, padding
    creation        creation, new_tensors, windows
    conversion      conversion, copying, exchange
    random          random
    activations     activations
    softmax         softmax, gumbel
    attention       attention, multi_head_attention, attention_backends
    recurrent       recurrent, recurrent_cells
    linear          linear, embedding, embedding_bag
    convolution     convolution, sequence_convolution
    normalisation   row_normalisation, channel_normalisation
    dropout         dropout
    pooling         max_pooling, average_pooling, adaptive_pooling, fractional_pooling, unpooling, pooling_checks
    resizing        resizing, resizing_weights, resizing_bytes, grid_sampling, pixel_shuffling, sliding_blocks
    distances       distances
    losses          losses, class_losses, margin_losses, linear_cross_entropy, alignment_loss; how they end: loss_reduction
    custom          elementwise: operators that users make with `@ts.elementwise`

Files of no family:

    registry            `@public`: the table, and how its functions become methods, in-place forms and `out=`
    pooling_windows     where the windows of pooling lie, and the largest value of each
    raw_keys            one look-up for a call seen before, for functions whose arguments are normalised
    checks              what operators of networks refuse
    real_only           what is refused of complex numbers, by operator; loaded last
    inplace             `copy_`, `fill_`, `zero_`
    memory_formats      copies that lie in memory as is asked for
    device_copies       copies between devices
    pinned_memory       memory of the host that a device reads by itself
    host_data           the array over a tensor; what nested Python data and its numbers stand for
    out                 how `out=` is checked and written
    numbers_allowed     which operators of two operands take Python numbers
    refused_dtypes      which operators refuse which dtypes
    fused_updates       in-place operators over groups of tensors: the updates of all parameters, clipping
    fused_sequence      the kernels of such a group, launched by one native call
    lend_to_autograd    what autograd takes from here
"""

from tensorsmith.ops import (
    activations,
    adaptive_pooling,
    alignment_loss,
    arranging,
    attention,
    average_pooling,
    bessel,
    channel_normalisation,
    class_losses,
    comparing,
    complex_numbers,
    contraction,
    conversion,
    convolution,
    copying,
    creation,
    distances,
    divisors,
    dropout,
    elementwise,
    embedding,
    embedding_bag,
    exchange,
    extremes,
    float_parts,
    fractional_pooling,
    gathering,
    grid_sampling,
    gumbel,
    histograms,
    indexing,
    inplace,
    joining,
    lend_to_autograd,
    linear,
    linear_cross_entropy,
    losses,
    margin_losses,
    masked_indexing,
    matmul,
    matrices,
    matrix_functions,
    max_pooling,
    moments,
    multi_head_attention,
    new_tensors,
    normal_functions,
    padding,
    pinned_memory,
    pixel_shuffling,
    pointwise,
    pointwise_composites,
    positions,
    random,
    recurrent,
    recurrent_cells,
    reductions,
    refused_dtypes,
    resizing,
    row_normalisation,
    scans,
    scattering,
    segments,
    selecting,
    sequence_convolution,
    singular_values,
    sliding_blocks,
    softmax,
    sorting,
    special_functions,
    special_library,
    splitting,
    statistics,
    taking,
    transposing,
    unpooling,
    view_copies,
    views,
    views_in_place,
    windows,
)

from tensorsmith.ops import real_only  # isort: skip - it looks at every operator
refused_dtypes.enter()

__all__ = [
    "exchange",
    "pinned_memory",
    "max_pooling",
    "average_pooling",
    "adaptive_pooling",
    "fractional_pooling",
    "unpooling",
    "resizing",
    "grid_sampling",
    "pixel_shuffling",
    "sliding_blocks",
    "matrices",
    "windows",
    "divisors",
    "special_library",
    "bessel",
    "normal_functions",
    "masked_indexing",
    "matrix_functions",
    "singular_values",
    "segments",
    "histograms",
    "float_parts",
    "activations",
    "alignment_loss",
    "arranging",
    "attention",
    "channel_normalisation",
    "class_losses",
    "comparing",
    "complex_numbers",
    "contraction",
    "conversion",
    "convolution",
    "sequence_convolution",
    "copying",
    "creation",
    "distances",
    "dropout",
    "elementwise",
    "embedding",
    "embedding_bag",
    "extremes",
    "gathering",
    "gumbel",
    "indexing",
    "inplace",
    "joining",
    "lend_to_autograd",
    "linear",
    "linear_cross_entropy",
    "losses",
    "margin_losses",
    "matmul",
    "moments",
    "multi_head_attention",
    "new_tensors",
    "padding",
    "pointwise",
    "pointwise_composites",
    "positions",
    "random",
    "real_only",
    "recurrent",
    "recurrent_cells",
    "reductions",
    "refused_dtypes",
    "row_normalisation",
    "scans",
    "scattering",
    "selecting",
    "softmax",
    "sorting",
    "special_functions",
    "splitting",
    "statistics",
    "taking",
    "transposing",
    "view_copies",
    "views",
    "views_in_place",
]
