"""What study.yaml may ask of each engine, and declare of a simulated device."""

from studytool.model import DTYPES, OPS, REGIMES, Status

ENGINE_ROWS: dict[str, tuple[str, ...]] = {"torch_sdpa": ("torch_sdpa_math",)}
"""The rows that an engine can lift; any name where there are none, since cuDNN's rows are those of its version."""

ENGINE_OPS = {"cudnn": OPS[:2], "torch_sdpa": OPS, "simulated": OPS}
ENGINE_DTYPES = {"cudnn": DTYPES[1:], "torch_sdpa": DTYPES[:3], "simulated": DTYPES}
ENGINE_REGIMES = {"cudnn": REGIMES, "torch_sdpa": REGIMES[:2], "simulated": REGIMES}

SIMULATED_COSTS = ("backend_ns", "frost_ns")
SIMULATED_FAULTS = (
    *(str(status) for status in Status if status not in {Status.OK, Status.UNRESOLVABLE}),
    "stale_output",  # the outputs are not written
    "empty_graph",  # a captured graph holds no launch
    "plan_change",  # the library picks another plan between blocks
    "out_of_memory",
    "cold_is_warm",  # the flush does not reach the cache
)
SIMULATED_NUMBERS = {
    "seed": 0,
    "tick_ns": 1,
    "noise_ppm": 0,  # sd of ln(time) per sample
    "process_ppm": 0,  # sd of an effect that a side keeps for a whole process
    "board_ppm": 0,  # sd of an effect that a side keeps for a whole board
    "drift_ppm": 0,  # amplitude of a sine in time
    "drift_ms": 1000,
    "trend_ppm_per_s": 0,  # a linear slow-down
    "warmup_ppm": 0,  # slow-down at the start, which decays
    "warmup_ms": 20,
    "throttle_ppm": 0,  # steps of slowness at random times
    "throttle_every_ms": 100,
    "throttle_ms": 30,
    "power_ppm": 0,  # slow-down that the frost side causes itself, in half of its samples
    "carry_ppm": 0,  # slow-down of a backend launch that comes right after one of frost
    "host_ns": 0,  # enqueue time of a launch
    "jit_ms": 0,  # build time of the frost side
    "l2_mib": 32,
    "miss_ns_per_mib": 0,  # cost of what is not in the L2
}
"""Costs are integer expressions over a case's fields, faults are comparisons, numbers have these defaults."""
