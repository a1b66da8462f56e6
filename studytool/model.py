"""The nouns of a study as frozen, typed values. Ratios are integers in parts per million (`_ppm`)."""

from enum import StrEnum
from typing import Annotated, NamedTuple

import msgspec

from studytool.metrics import Condition
from studytool.runtime import key

SCHEMA = 1
"""Version of every file that studytool writes; a reader refuses any other."""

LANE = r"(?:[1-9][0-9]{0,2}of[1-9][0-9]{0,2}|b[0-9a-f]{16})?"
"""What the lane of a session may be: a shard, a board, or none."""

NAME = r"[a-z][a-z0-9_]{0,63}"
"""What the name of a study, which is that of its folder, and of a row may be."""

LEGS = ("backend", "frost", "auto", "default")
OPS, MASKS = ("sdpa_fwd", "sdpa_bwd", "sdpa_fwd_bwd"), ("none", "tl", "br")
DTYPES = ("f32", "bf16", "f16", "fp8")
ENGINES, BASES = ("cudnn", "torch_sdpa", "simulated"), ("library", "backend")
REGIMES = ("eager-warm", "eager-cold", "replay-warm", "replay-cold")
"""How a block can be launched: eagerly or by replaying a graph, with the caches warm or flushed."""

DISTRIBUTIONS = ("normal", "uniform")
SCOPES = ("box", "class")

MOST_NS = 10**15
"""The longest time that a sample can have: eleven days."""


class Split(StrEnum):
    """What cases are for: train fits the entries, holdout judges them, routing is planned and not timed."""

    TRAIN = "train"
    HOLDOUT = "holdout"
    ROUTING = "routing"


class Status(StrEnum):
    """How a case ended. Counts over a split always add up to the number of its cases."""

    OK = "ok"
    REFUSED = "refused"  # the graph is invalid
    DECLINED = "declined"  # an engine will not run it, or ran something else than it was named for
    NO_FROST = "no_frost"
    NO_BACKEND = "no_backend"
    WRONG_RESULT = "wrong_result"
    ERROR = "error"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    UNRESOLVABLE = "unresolvable"  # shorter than the clock can tell


class Verdict(StrEnum):
    """What a case says of the row; the worst over regimes counts."""

    WIN = "WIN"
    LOSE = "LOSE"
    NEUTRAL = "NEUTRAL"
    INCONCLUSIVE = "INCONCLUSIVE"


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One attention graph: b batches, h heads, s sequence lengths, d head dimensions; fields as in runtime.key.

    Fields at their neutral value are left out of its canonical form, so that a new field changes no digest.
    """

    op: str
    dtype: str
    b: int
    h_q: int
    h_kv: int
    s_q: int
    s_kv: int
    d_qk: int
    d_v: int
    mask: str = "none"
    window: int = 0
    layout: str = "dense"
    bias: str = "none"
    padding: int = 0
    stats: int = 0
    sink: int = 0
    dropout_pct: int = 0
    deterministic: int = 0

    @property
    def fields(self) -> dict[str, key.Value]:
        """Return the fields that are not at their neutral value, as a look-up takes them."""
        built: dict[str, key.Value] = msgspec.to_builtins(self)
        return built

    @property
    def label(self) -> str:
        """Return the case as engineers write it, such as `sdpa_bwd bf16 b12 h48/6 d128 S16484 br w96`."""
        heads = str(self.h_q) if self.h_q == self.h_kv else f"{self.h_q}/{self.h_kv}"
        dims = str(self.d_qk) if self.d_qk == self.d_v else f"{self.d_qk}/{self.d_v}"
        sizes = str(self.s_q) if self.s_q == self.s_kv else f"{self.s_q}/{self.s_kv}"
        parts = [self.op, self.dtype, f"b{self.b}", f"h{heads}", f"d{dims}", f"S{sizes}"]
        parts += [self.mask] if self.mask != "none" else []
        parts += [f"w{self.window}"] if self.window else []
        parts += [f"{name}={self.fields[name]}" for name in key.FLAGS if name in self.fields]
        return " ".join(parts)


class Threshold(NamedTuple):
    """A size axis and the direction, `from` or `upto`, in which a class may be cut."""

    axis: str
    direction: str


class Protocol(msgspec.Struct, frozen=True, kw_only=True):
    """How cases are timed: `repeats` fresh processes, `blocks` blocks of four legs (a multiple of four).

    `stop_half_width_ppm` 0 means that every case has all repeats; else it is the half width of the interval at which
    a case is measured no more, and `repeats` the most. `anchors` cases of each timed split are measured on every board.
    """

    repeats: int = 5
    blocks: int = 24
    regimes: tuple[str, ...] = ("eager-warm",)
    min_sample_ns: int = 150_000
    case_timeout_s: int = 120
    distributions: tuple[str, ...] = ("normal",)
    stop_half_width_ppm: int = 0
    anchors: int = 0

    @property
    def confidence(self) -> float:
        """Return the confidence of an interval that covers the truth in 95 %: more where widths were looked at."""
        return 0.96 if self.stop_half_width_ppm else 0.95


class Decide(msgspec.Struct, frozen=True, kw_only=True):
    """How train records become entries. `max_regret_ppm` 0 means: one plus the A/A band."""

    margin_ppm: int = 50_000
    max_regret_ppm: int = 0
    noise_limit_ppm: int = 25_000
    min_support: int = 4
    scope: str = "box"
    thresholds: tuple[Threshold, ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What an engine would run: its id, name and knobs. Two plans are one when id and knobs are equal."""

    engine: int
    name: str
    knobs: dict[str, int] = {}

    @property
    def identity(self) -> str:
        """Return the plan's identity as text, such as `5` or `7[k24=2,k27=0]`."""
        if not self.knobs:
            return str(self.engine)
        knobs = ",".join(f"{knob}={value}" for knob, value in sorted(self.knobs.items()))
        return f"{self.engine}[{knobs}]"


Ns = Annotated[int, msgspec.Meta(ge=0, le=MOST_NS)]
SampleNs = Annotated[int, msgspec.Meta(ge=1, le=MOST_NS)]


class LegRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One leg of a record: `ns` per sample of `inner` launches, in time order; `host_ns` where it is kept apart.

    `counters` has one integer per sample and name, such as `cpu_ns` or `minor_faults`.
    """

    plan: Plan | None
    inner: Ns = 0
    ns: tuple[SampleNs, ...] = ()
    host_ns: tuple[Ns, ...] = ()
    build_ns: int = 0
    counters: dict[str, tuple[int, ...]] = {}


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One line of a records file: one case x one repeat x one regime, all four legs.

    `order` has, per block, the indices of the legs in LEGS in the order in which they were timed, and `blocks` what
    the device said of itself before it, such as `power_mw`.
    """

    schema: int
    case: str
    split: Split
    repeat: int
    regime: str
    attempt: int
    status: Status
    class_key: tuple[key.Value, ...] = msgspec.field(name="class")
    lookup: bool | None
    legs: dict[str, LegRecord]
    order: tuple[str, ...]
    clock_mhz: tuple[int, ...]
    blocks: dict[str, tuple[int, ...]]
    checks: dict[str, int | str]
    error: str
    prev: str


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine and the code that measured; `code` is the digest of the measuring code and the engine's version.

    Sessions that are compared have equal `settings`; `device` is what else was so when the session began.
    """

    board: str
    uuid: str
    cc: str
    cores: int
    memory_bytes: int
    tick_ns: int
    versions: dict[str, str]
    settings: dict[str, str]
    device: dict[str, str]
    code: str


class Session(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line of a records file: what was measured where, with which table; `prev` is the file before.

    Several machines may measure one attempt side by side, each in a lane of its own: a shard such as `3of16`, or a
    board of a fleet, `b` and its hashed id. Sessions follow one another within a lane; "" is that of a lone machine.
    """

    schema: int
    study: str
    manifest: str
    dtype: str
    split: Split
    attempt: int
    session: int
    table: str
    entries: str
    started: str
    reason: str
    predicted_ns: int
    fingerprint: Fingerprint
    prev: str
    lane: str


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """One grid of a split: per field the values or expressions that are crossed; `line` is where it stands."""

    line: int
    axes: tuple[tuple[str, tuple[int | str, ...]], ...]


class SplitSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What one split asks for. `sample` cases per dtype are drawn with `seed`; 0 takes all."""

    line: int
    grids: tuple[Grid, ...]
    where: tuple[str, ...] = ()
    sample: int = 0
    seed: int = 0
    differs: tuple[str, ...] = ()


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """What is declared before anything is timed. `path` and `sha256` are those of its study.yaml."""

    path: str
    sha256: str
    name: str
    engine: str
    row: str
    base: str
    cc: str
    board: str
    ops: tuple[str, ...]
    dtypes: tuple[str, ...]
    class_key: tuple[str, ...]
    guards: tuple[str, ...]
    splits: dict[Split, SplitSpec]
    protocol: Protocol
    decide: Decide
    gate: tuple[Condition, ...]
    question: str
    simulated: dict[str, int | str]
