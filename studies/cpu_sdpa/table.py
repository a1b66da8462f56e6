"""Placement table: per class of graph, which engine leads. Literals, read with `ast`, never executed."""

# fmt: off
SCHEMA = 1

# row: the features of its class keys, in order
ROWS = {
    "torch_sdpa_math": ("op", "dtype"),
}

# (row, cc, *features): (rule, [axis, bound,] box),  # evidence
TABLE = {
    ("torch_sdpa_math", "x86-avx2", "sdpa_fwd_bwd", "bf16"): ("from", "s_kv", 32, {}),  # win 6/6 worst 0.887 geomean 0.519 of 9 ev a910339e441d plans 1 | 0 at sdpa_fwd_bwd bf16 b1 h4 d64 S32
    ("torch_sdpa_math", "x86-avx2", "sdpa_fwd_bwd", "f16"): ("from", "s_kv", 32, {}),  # win 6/6 worst 0.666 geomean 0.356 of 9 ev 1e98aebfc1c6 plans 1 | 0 at sdpa_fwd_bwd f16 b1 h4 d64 S32
}
