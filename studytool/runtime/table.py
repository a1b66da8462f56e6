"""Placement table: per class of graph, which engine leads. Literals, read with `ast`, never executed."""

# fmt: off
SCHEMA = 1

# row: the features of its class keys, in order
ROWS = {
}

# (row, cc, *features): (rule, [axis, bound,] box),  # evidence
TABLE = {
}
