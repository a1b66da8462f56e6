"""Placement table: per class of graph, which engine leads. Literals, read with `ast`, never executed."""

# fmt: off
SCHEMA = 1

# row: the features of its class keys, in order
ROWS = {
    "torch_sdpa_math": ("op", "dtype"),
}

# (row, cc, *features): (rule, [axis, bound,] box),  # evidence
TABLE = {
    ("torch_sdpa_math", "x86-avx2", "sdpa_fwd_bwd", "bf16"): ("from", "s_kv", 48, {}),  # win 5/5 worst 0.842 geomean 0.480 of 9 ev d8ad2108daea plans 1 | 0 at sdpa_fwd_bwd bf16 b1 h4/2 d64 S48 tl
    ("torch_sdpa_math", "x86-avx2", "sdpa_fwd_bwd", "f16"): ("from", "s_kv", 32, {}),  # win 6/6 worst 0.647 geomean 0.364 of 9 ev 870f9b4122d5 plans 1 | 0 at sdpa_fwd_bwd f16 b1 h4 d64 S32
}
