"""Whether two graphs compute the same by the same nodes, however they are numbered."""

from tensorsmith.ir.graph import constant_key


def same(left, right):
    """True where inputs and outputs correspond node by node."""
    numbers: dict[tuple, int] = {}

    def outputs(graph):
        number = {}
        for node in graph.live_nodes():
            attrs = {key: constant_key(value) if key == "value" else value for key, value in node.attrs.items()}
            operands = tuple(number[operand] for operand in node.inputs)
            key = (node.op, operands, tuple(sorted(attrs.items())), node.shape, node.dtype)
            number[node] = numbers.setdefault(key, len(numbers))
        return [number[node] for node in graph.outputs]

    return outputs(left) == outputs(right)
