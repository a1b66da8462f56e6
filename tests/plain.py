"""A second implementation of what a replay recomputes from raw samples: JSON, exact fractions and loops.

It imports nothing of what it is held against and no numerical library, reads a study's folder by itself, and is
written to be read beside README, not to be quick. Times are exact fractions of ns, logarithms floats.
"""

import functools
import hashlib
import itertools
import json
import math
import operator
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import yaml

MILLION = 10**6
LEGS = ("backend", "frost", "auto", "default")
PAIRS = tuple((a, b) for number, a in enumerate(LEGS) for b in LEGS[number + 1 :])
FIELDS = ("op", "dtype", "b", "h_q", "h_kv", "s_q", "s_kv", "d_qk", "d_v")
UNSAID = {"mask": "none", "window": 0, "layout": "dense", "bias": "none"} | dict.fromkeys(
    ("padding", "stats", "sink", "dropout_pct", "deterministic"), 0
)
DRAWS = 2000
Json = dict[str, Any]
Range = tuple[float, float, float]
"""An estimate and the ends of its interval, as logarithms."""


# Numbers


def mean(values: Sequence[float]) -> float:
    """Return the mean, rounded once."""
    return float(sum(map(Fraction, values)) / len(values))


def median(values: Sequence[Any]) -> Any:
    """Return the middle value, or the mean of the two middle ones."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def quantile(values: Sequence[Any], percent: Fraction | int) -> Any:
    """Return what stands `percent` of the way from the least to the greatest value, linear between neighbours."""
    ordered = sorted(values)
    place = Fraction(percent) / 100 * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    part = place - below if isinstance(ordered[below], Fraction) else float(place - below)
    return ordered[below] + (ordered[above] - ordered[below]) * part


def ppm(log: float) -> int:
    """Return a ratio, given as its logarithm, in parts per million: at least 1, at most exp(27)."""
    return max(1, round(math.exp(min(log, 27.0)) * MILLION))


def share(value: float | Fraction) -> int:
    """Return a number in parts per million."""
    return round(value * MILLION)


def t_within(t: float, dof: int) -> float:
    """Return the probability that Student's t is between -t and t: a finite sum, as dof is an integer."""
    angle = math.atan(t / math.sqrt(dof))
    sine, cosine = math.sin(angle), math.cos(angle)
    terms = [1.0] if dof % 2 == 0 else [cosine] if dof > 1 else []
    for number in range(2 + dof % 2, dof - 1, 2):
        terms.append(terms[-1] * cosine**2 * (number - 1) / number)
    whole = sine * math.fsum(terms)
    return whole if dof % 2 == 0 else 2 / math.pi * (angle + whole)


@functools.cache
def t_quantile(dof: int, confidence: float) -> float:
    """Return the t that Student's t is within, to both sides, with this confidence; found by halving."""
    low, high = 0.0, 1e6
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if t_within(middle, dof) < confidence else (low, middle)
    return high


def interval(values: Sequence[float], confidence: float = 0.95) -> Range:
    """Return mean and t interval of one value per repeat; a single one has an infinite interval."""
    count = len(values)
    if count == 1:
        return values[0], -math.inf, math.inf
    exact = [Fraction(value) for value in values]
    center = sum(exact) / count
    variance = sum((value - center) ** 2 for value in exact) / (count - 1)
    half = t_quantile(count - 1, confidence) * math.sqrt(variance / count)
    return float(center), float(center) - half, float(center) + half


def solve(matrix: Sequence[Sequence[int]], right: Sequence[int]) -> list[Fraction]:
    """Return an exact solution of linear equations that have one; what they leave open is 0."""
    rows = [[*row, end] for row, end in zip(matrix, right, strict=True)]
    count, pivots = len(rows), list[int]()
    for column in range(count):
        place = len(pivots)
        row = next((n for n in range(place, count) if rows[n][column]), None)
        if row is None:
            continue
        rows[place], rows[row] = rows[row], rows[place]
        pivot = rows[place]
        for other in range(count):
            if other != place and rows[other][column]:
                factor = rows[other][column]
                rows[other] = [pivot[column] * a - factor * b for a, b in zip(rows[other], pivot, strict=True)]
                common = math.gcd(*rows[other])
                rows[other] = [value // max(1, common) for value in rows[other]]
        pivots.append(column)
    found = [Fraction(0)] * count
    for place, column in enumerate(pivots):
        found[column] = Fraction(rows[place][-1], rows[place][column])
    return found


def seed_words(seed: int) -> list[int]:
    """Return the four 64-bit words into which numpy's SeedSequence spreads a seed below 2**128."""
    most, pool, constant = 2**32 - 1, list[int](), 0x43B0D7E5

    def hashed(value: int, factor: int) -> int:
        nonlocal constant
        value ^= constant
        constant = constant * factor & most
        value = value * constant & most
        return value ^ value >> 16

    for number in range(4):
        pool.append(hashed(seed >> 32 * number & most, 0x931E8875))
    for source in range(4):
        for into in range(4):
            if source != into:
                mixed = 0xCA01F9DD * pool[into] - 0x4973F715 * hashed(pool[source], 0x931E8875) & most
                pool[into] = mixed ^ mixed >> 16
    constant = 0x8B51F9DD
    halves = [hashed(pool[number % 4], 0x58F38DED) for number in range(8)]
    return [low | high << 32 for low, high in zip(halves[::2], halves[1::2], strict=True)]


def pcg64(seed: int) -> Iterator[int]:
    """Return the raw 64-bit stream of numpy's PCG64 (128-bit state, XSL-RR output)."""
    most = 2**128 - 1
    first, second, third, fourth = seed_words(seed)
    factor, step = 0x2360ED051FC65DA44385DF649FCCF645, ((third << 64 | fourth) << 1 | 1) & most
    state = (step + (first << 64 | second)) * factor + step & most
    while True:
        state = state * factor + step & most
        word, turn = (state >> 64 ^ state) & 2**64 - 1, state >> 122
        yield (word >> turn | word << 64 - turn) & 2**64 - 1


def bootstrap(groups: Sequence[Sequence[float]], seed: int) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean: classes are drawn with replacement, and cases within each."""
    stream, longest, means = pcg64(seed), max(map(len, groups)), []
    for _ in range(DRAWS):
        drawn: list[float] = []
        for _ in groups:
            words = [next(stream) for _ in range(1 + longest)]
            group = groups[words[0] % len(groups)]
            drawn += [group[word % len(group)] for word in words[1 : 1 + len(group)]]
        means.append(math.fsum(drawn) / len(drawn))
    return quantile(means, Fraction(5, 2)), quantile(means, Fraction(195, 2))


# What was declared


class Settings(NamedTuple):
    """What of study.yaml decides; ratios in parts per million. `thresholds` are pairs of axis and direction."""

    row: str
    class_key: tuple[str, ...]
    guards: tuple[str, ...]
    repeats: int
    regimes: tuple[str, ...]
    stop: int
    margin: int
    max_regret: int
    noise_limit: int
    min_support: int
    thresholds: tuple[tuple[str, str], ...]
    gate: tuple[str, ...]

    @property
    def confidence(self) -> float:
        """Return the confidence of the intervals of ratios: more where widths were looked at."""
        return 0.96 if self.stop else 0.95


def settings(text: str) -> Settings:
    """Return the settings in the text of a study.yaml that is known to be right."""
    declared = yaml.load(text, Loader=yaml.BaseLoader)  # every scalar a text, so that a ratio is read exactly
    protocol, decide = declared.get("protocol", {}), declared.get("decide", {})
    stop = protocol.get("stop", "fixed")
    return Settings(
        row=declared["row"],
        class_key=tuple(declared["class_key"]),
        guards=tuple(_listed(declared.get("guards", []))),
        repeats=int(protocol.get("repeats", 5)),
        regimes=tuple(_listed(protocol.get("regimes", ["eager-warm"]))),
        stop=0 if stop == "fixed" else share(Fraction(stop["half_width"])),
        margin=share(Fraction(decide.get("margin", "0.05"))),
        max_regret=share(Fraction(decide.get("max_regret", 0))),
        noise_limit=share(Fraction(decide.get("noise_limit", "0.025"))),
        min_support=int(decide.get("min_support", 4)),
        thresholds=tuple((text.split()[1], text.split()[0]) for text in decide.get("thresholds", [])),
        gate=tuple(declared["gate"]),
    )


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


# Cases


def feature(case: Json, name: str) -> int | str:
    """Return one feature of a case."""
    whole = {**UNSAID, **case}
    s_q, s_kv, window = whole["s_q"], whole["s_kv"], whole["window"]
    found: int | str = whole.get(name, 0)
    if name == "mask":
        found = f"{whole['mask']}+window" if window else whole["mask"]
    elif name == "heads":
        found = "mha" if whole["h_q"] == whole["h_kv"] else "mqa" if whole["h_kv"] == 1 else "gqa"
    elif name == "tile":
        found = "on" if s_kv % 128 == 0 else "off"
    elif name == "square":
        found = int(s_q == s_kv)
    elif name == "window_binds":
        found = int(window > 0 and window < s_kv)
    elif name == "phase":
        found = "square" if s_q == s_kv else "decode" if s_q == 1 else "short" if s_q <= 16 else "chunk"
    return found


FEATURES = (*FIELDS, *UNSAID, "heads", "tile", "square", "window_binds", "phase")


def size(case: Json, axis: str) -> int:
    """Return the size of a case on an axis such as `b*s_kv`."""
    return math.prod(int({**UNSAID, **case}[name]) for name in axis.split("*"))


def label(case: Json) -> str:
    """Return a case as people write it."""

    def both(one: str, other: str) -> str:
        return f"{case[one]}" if case[one] == case[other] else f"{case[one]}/{case[other]}"

    words = [case["op"], case["dtype"], f"b{case['b']}", "h" + both("h_q", "h_kv"), "d" + both("d_qk", "d_v")]
    words += ["S" + both("s_q", "s_kv"), case.get("mask", ""), f"w{case['window']}" if "window" in case else ""]
    words += [f"{name}={case[name]}" for name in list(UNSAID)[2:] if name in case]
    return " ".join(word for word in words if word)


def class_of(case: Json, declared: Settings, cc: str) -> list[int | str]:
    """Return the key of the class that a case is in."""
    return [declared.row, cc, *(feature(case, name) for name in declared.class_key)]


def read_cases(root: Path, name: str, dtype: str, split: str) -> dict[str, Json]:
    """Return the frozen cases of a split by digest, which is the hash of a case's line, in the order of digests."""
    path = root / "frozen_cases" / name / f"{dtype}.{split}.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return dict(sorted((hashlib.sha256(line).hexdigest(), json.loads(line)) for line in lines))


# Records


class Timed(NamedTuple):
    """What the samples of one line give: ns per launch, ln(a/b) of each pair of legs, and what disturbed them."""

    leg_ns: dict[str, Fraction]
    host_ns: dict[str, Fraction]
    ratios: dict[tuple[str, str], float]
    drift: float
    carry: float
    position: float
    lag1: float
    trend: float
    ticks: Fraction
    probe: Fraction | None


class Line(NamedTuple):
    """One line of a records file; `timed` is None where it has no samples."""

    case: str
    repeat: int
    regime: str
    status: str
    error: str
    lookup: bool | None
    plans: dict[str, str]
    names: dict[str, str]
    checks: Json
    host_bound: bool
    timed: Timed | None


class Attempt(NamedTuple):
    """One attempt at a split; `sessions` has the first line of each file, and `files` their hashes by name."""

    number: int
    lines: list[Line]
    sessions: list[Json]
    files: dict[str, str]
    said: list[Json]

    def contents(self) -> str:
        """Return the hash of what all records say, whatever files they are in."""
        said = sorted(self.said, key=lambda record: (record["case"], record["repeat"], record["regime"]))
        texts = [
            json.dumps({**one, "prev": ""}, sort_keys=True, separators=(",", ":"), ensure_ascii=False) for one in said
        ]
        return hashlib.sha256("".join(text + "\n" for text in texts).encode()).hexdigest()


def read_attempts(root: Path, name: str, dtype: str, split: str) -> list[Attempt]:
    """Return the attempts at a split in order; what stands behind a file's last line end is no line."""
    found: dict[int, Attempt] = {}
    for path in sorted((root / "studies" / name / dtype / "records").glob("*.jsonl")):
        data = path.read_bytes()
        whole = [json.loads(text) for text in data.split(b"\n")[:-1]]
        if not whole or whole[0]["split"] != split:
            continue
        session, records = whole[0], whole[1:]
        attempt = found.setdefault(session["attempt"], Attempt(session["attempt"], [], [], {}, []))
        attempt.lines.extend(read_line(record, session["fingerprint"]["tick_ns"]) for record in records)
        attempt.said.extend(records)
        attempt.sessions.append(session)
        attempt.files[path.name] = hashlib.sha256(data).hexdigest()
    return [found[number] for number in sorted(found)]


def read_line(record: Json, tick_ns: int) -> Line:
    """Return what one line of a records file says, its samples summed up."""
    legs = record["legs"]
    plans = {leg: legs[leg]["plan"] for leg in LEGS if leg in legs and legs[leg]["plan"]}
    gaps = [gap for leg in legs.values() for gap in leg["counters"].get("gap", [])]
    slow = [leg for leg in legs.values() if leg["host_ns"] and median(leg["host_ns"]) > median(leg["ns"])]
    return Line(
        case=record["case"],
        repeat=record["repeat"],
        regime=record["regime"],
        status=record["status"],
        error=record["error"],
        lookup=record["lookup"],
        plans={leg: identity(plans[leg]) if leg in plans else "" for leg in LEGS},
        names={leg: plans[leg]["name"] if leg in plans else "" for leg in LEGS},
        checks=record["checks"],
        host_bound=bool(slow) or any(gaps),
        timed=sum_up(record, tick_ns) if record["status"] == "ok" and record["order"] else None,
    )


def identity(plan: Json) -> str:
    """Return a plan as `engine[knob=value,...]`: two plans are one when these are."""
    knobs = ",".join(f"{name}={plan['knobs'][name]}" for name in sorted(plan["knobs"]))
    return f"{plan['engine']}[{knobs}]" if knobs else f"{plan['engine']}"


def sum_up(record: Json, tick_ns: int) -> Timed:
    """Return what the samples of one line give."""
    legs = {leg: record["legs"][leg] for leg in LEGS}
    shortest = min(ns for leg in legs.values() for ns in leg["ns"])
    logs = {name: [math.log(ns / leg["inner"]) for ns in leg["ns"]] for name, leg in legs.items()}
    paired = {pair: [a - b for a, b in zip(logs[pair[0]], logs[pair[1]], strict=True)] for pair in PAIRS}
    if tick_ns > Fraction(2, 1000) * shortest:  # a median of whole ticks is biased, their mean is not
        means = {name: math.log(Fraction(sum(leg["ns"]), len(leg["ns"]) * leg["inner"])) for name, leg in legs.items()}
        ratios = {(a, b): means[a] - means[b] for a, b in PAIRS}
    else:
        ratios = {pair: median(values) for pair, values in paired.items()}
    frost = [b - a for a, b in zip(logs["backend"], logs["frost"], strict=True)]
    half = len(frost) // 2
    carry, position = order_effects(record, logs)
    probe = record["checks"].get("flush_probe_ppm")
    return Timed(
        leg_ns={name: median([Fraction(ns, leg["inner"]) for ns in leg["ns"]]) for name, leg in legs.items()},
        host_ns={
            n: median([Fraction(ns, leg["inner"]) for ns in leg["host_ns"]])
            for n, leg in legs.items()
            if leg["host_ns"]
        },
        ratios=ratios,
        drift=2 * (1 - 1 / len(frost)) * (median(frost[half:]) - median(frost[:half])),
        carry=carry,
        position=position,
        lag1=autocorrelation(frost),
        trend=record["checks"].get("trend_ppm", 0) / MILLION,
        ticks=Fraction(shortest, tick_ns),
        probe=None if probe is None else Fraction(probe, MILLION),
    )


def autocorrelation(values: Sequence[float]) -> float:
    """Return the autocorrelation of neighbours, 0 where all values are one."""
    exact = [Fraction(value) for value in values]
    center = sum(exact) / len(exact)
    off = [value - center for value in exact]
    whole = sum(value**2 for value in off)
    return float(sum(a * b for a, b in itertools.pairwise(off)) / whole) if whole else 0.0


def order_effects(record: Json, logs: dict[str, list[float]]) -> tuple[float, float]:
    """Return what a launch of another plan pays right after frost's, and the range of the four places in a block.

    Least squares of ln(time) on block, leg, place and what ran before, by its normal equations, exactly: all that is
    centred within its block is times four, and logarithms are integers times 2**-60.
    """
    plans = [identity(record["legs"][leg]["plan"]) for leg in LEGS]
    rows, times = list[list[int]](), list[int]()
    for block, order in enumerate(record["order"]):
        own = []
        for place, leg in enumerate(map(int, order)):
            after = place > 0 and plans[int(order[place - 1])] == plans[1] != plans[leg]
            own.append([int(n == leg) for n in range(4)] + [int(n == place) for n in range(4)] + [int(after)])
            times.append(int(math.ldexp(logs[LEGS[leg]][block], 60)))
        sums = [sum(column) for column in zip(*own, strict=True)]
        rows += [[4 * value - whole for value, whole in zip(row, sums, strict=True)] for row in own]
    columns = list(zip(*rows, strict=True))
    matrix = [[sum(map(operator.mul, one, other)) for other in columns] for one in columns]
    found = [float(4 * value / 2**60) for value in solve(matrix, [sum(map(operator.mul, c, times)) for c in columns])]
    return found[8], max(found[4:8]) - min(found[4:8])


# What the lines of a split say together

Cell = tuple[str, str]
"""A case and a regime."""


def cells_of(lines: Sequence[Line]) -> dict[Cell, list[Line]]:
    """Return the lines that were timed by case and regime, sorted, each in the order of repeats."""
    found: dict[Cell, list[Line]] = {}
    for line in sorted((line for line in lines if line.timed), key=lambda line: (line.case, line.regime, line.repeat)):
        found.setdefault((line.case, line.regime), []).append(line)
    return found


def timed_of(lines: Sequence[Line]) -> list[Timed]:
    """Return what was timed of lines."""
    return [line.timed for line in lines if line.timed]


def ratio(lines: Sequence[Line], a: str, b: str, confidence: float = 0.95) -> Range:
    """Return ln(a/b) over the repeats of one case and regime."""
    if a == b:
        return 0.0, 0.0, 0.0
    if (a, b) in PAIRS:
        return interval([timed.ratios[a, b] for timed in timed_of(lines)], confidence)
    center, low, high = ratio(lines, b, a, confidence)
    return -center, -high, -low


def controls(cells: dict[Cell, list[Line]]) -> dict[Cell, list[float]]:
    """Return per cell ln(a/b) of each pair of legs that ran one plan in every repeat: what noise alone makes."""
    return {
        cell: [ratio(own, a, b)[0] for a, b in PAIRS if all(line.plans[a] == line.plans[b] for line in own)]
        for cell, own in cells.items()
    }


def band(cells: dict[Cell, list[Line]]) -> float | None:
    """Return the A/A band as a logarithm, None where no legs ran one plan."""
    values = [abs(value) for own in controls(cells).values() for value in own]
    return quantile(values, 95) if values else None


def carry_over(cells: dict[Cell, list[Line]]) -> Range | None:
    """Return the carry-over of all cells, the first repeats of each averaged, then the second ones, and so on."""
    if not cells:
        return None
    repeats = min(map(len, cells.values()))
    columns = [[timed_of(own)[number].carry for own in cells.values()] for number in range(repeats)]
    return interval([mean(column) for column in columns])


def beyond(effect: Range, limit: float) -> bool:
    """Return whether an effect is beyond a limit with its whole interval."""
    return effect[1] > limit or effect[2] < -limit


def codes(cells: dict[Cell, list[Line]], noise_limit: int) -> dict[Cell, str]:
    """Return per cell the code of what fails in it, "" where nothing does."""
    limit, floor, carried = math.log1p(noise_limit / MILLION), band(cells), carry_over(cells)
    whole = "CARRY" if carried and beyond(carried, limit) else ""
    if floor is None or floor > limit:
        whole = "CONTROL"
    found, pairs = dict.fromkeys(cells, whole), controls(cells)
    for cell, own in cells.items():
        timed = timed_of(own)
        if beyond(interval([one.drift for one in timed]), limit):
            found[cell] = "DRIFT"
        cold = all(one.probe is None or one.probe >= Fraction(105, 100) for one in timed)
        if not cold or any(abs(value) > limit for value in pairs[cell]):
            found[cell] = "CONTROL"
        if beyond(interval([one.trend for one in timed]), noise_limit / MILLION):
            found[cell] = "UNSTEADY"
        if any(one.ticks < 100 for one in timed):
            found[cell] = "TICK"
    return found


def ended(lines: Sequence[Line]) -> tuple[str, str]:
    """Return how a case ended, and why: as its first line that is not ok, or declined where a leg changed its plan."""
    for line in sorted(lines, key=lambda line: (line.repeat, line.regime)):
        if line.status != "ok":
            return line.status, line.error
    for regime in sorted({line.regime for line in lines}):
        for leg in LEGS:
            plans = sorted({line.plans[leg] for line in lines if line.regime == regime})
            if len(plans) > 1:
                return "declined", f"leg {leg} ran plans {' and '.join(plans)} in different repeats"
    return "ok", ""


def by_case(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Return the lines of each case, sorted by digest, in the order in which they were written."""
    found: dict[str, list[Line]] = {}
    for line in sorted(lines, key=lambda line: line.case):
        found.setdefault(line.case, []).append(line)
    return found


def leg_ns(lines: Sequence[Line]) -> dict[str, int]:
    """Return per leg the median over repeats of the median over blocks."""
    return {leg: round(median([timed.leg_ns[leg] for timed in timed_of(lines)])) for leg in LEGS}


def looks(lines: Sequence[Line], declared: Settings) -> tuple[dict[int, Json], int | None]:
    """Return what the stop rule sees of a case after each repeat, and the repeat after which it is measured no more."""
    due: dict[int, Json] = {}
    for repeat in sorted({line.repeat for line in lines}):
        seen = [line for line in lines if line.repeat <= repeat]
        repeats = {line.repeat for line in seen}
        if not declared.stop or len(repeats) < 8 or len(seen) != len(repeats) * len(declared.regimes):
            continue
        width = 0.0
        if all(line.status == "ok" for line in seen):
            found = [
                ratio([line for line in seen if line.regime == regime], "frost", "backend", 0.96)
                for regime in declared.regimes
            ]
            width = max((high - low) / 2 for _, low, high in found)
        stop = width <= declared.stop / MILLION
        due[repeat] = {"look_half_width_ppm": min(share(width), 10**12), "look_stop": int(stop)}
        if stop:
            return due, repeat
    return due, None


def planned(attempt: Attempt, cases: dict[str, Json], declared: Settings, *, routing: bool = False) -> int:
    """Return how many lines an attempt has when it is complete."""
    regimes, repeats = (1, 1) if routing else (len(declared.regimes), declared.repeats)
    stopped = [looks(own, declared)[1] for own in by_case(attempt.lines).values()] if declared.stop else []
    return len(cases) * regimes * repeats - sum(regimes * (repeats - last) for last in stopped if last is not None)


# study.json


def study_json(root: Path, name: str, dtype: str, declared: Settings) -> Json:
    """Return what study.json says of the cases of the last attempt at the train split."""
    attempt = read_attempts(root, name, dtype, "train")[-1]
    cases, lines, cells = read_cases(root, name, dtype, "train"), by_case(attempt.lines), cells_of(attempt.lines)
    floor, found = band(cells), codes(cells, declared.noise_limit)
    summaries = []
    for digest, case in cases.items():
        status, error = ended(lines[digest])
        regimes = {}
        for (own, regime), timed in cells.items():
            if own == digest:
                center, low, high = ratio(timed, "frost", "backend", declared.confidence)
                regimes[regime] = {
                    "repeats": len(timed),
                    "code": found[own, regime],
                    "ratio_ppm": ppm(center),
                    "low_ppm": ppm(low),
                    "high_ppm": ppm(high),
                    "leg_ns": leg_ns(timed),
                }
        summaries.append(
            {
                "digest": digest,
                "label": label(case),
                "fields": case,
                "class": class_of(case, declared, attempt.sessions[0]["fingerprint"]["cc"]),
                "status": status,
                "error": error,
                "plans": lines[digest][0].plans,
                "regimes": regimes,
            }
        )
    return {
        "attempt": attempt.number,
        "records": attempt.contents(),
        "band_ppm": -1 if floor is None else ppm(floor) - MILLION,
        "cases": summaries,
    }


# Entries

FAILURES = {"declined", "no_frost", "wrong_result", "error", "crashed", "timeout"}
"""How a case ends that the row could not be shown to run rightly."""

WORST_FIRST = ("LOSE", "INCONCLUSIVE", "NEUTRAL", "WIN")


class Judged(NamedTuple):
    """A train case, its verdict, and its worst ratio in ppm, 0 where there is none."""

    case: Json
    verdict: str
    ratio: int


def too_noisy(summary: Json, declared: Settings) -> bool:
    """Return whether the A/A band is unknown or above the noise limit, so that no case is judged."""
    return not 0 <= summary["band_ppm"] <= declared.noise_limit


def judge(summary: Json, case: Json, declared: Settings, margin: int, *, exchanged: bool) -> Judged:
    """Return the verdict of a train case for the row, or for the backend where the row leads by itself: `exchanged`."""
    regimes = case["regimes"].values()
    if case["status"] in FAILURES:
        return Judged(case, "WIN" if exchanged else "LOSE", 0)
    failing = set(case["regimes"]) != set(declared.regimes) or any(own["code"] for own in regimes)
    if case["status"] != "ok" or failing or too_noisy(summary, declared):
        return Judged(case, "INCONCLUSIVE", max([own["ratio_ppm"] for own in regimes], default=0))
    found = []
    for own in regimes:
        value, high = Fraction(own["ratio_ppm"]), Fraction(own["high_ppm"])
        if exchanged:
            value, high = (Fraction(math.ceil(MILLION**2 / Fraction(own[end]))) for end in ("ratio_ppm", "low_ppm"))
        verdict = "NEUTRAL"
        if own["repeats"] < 3:
            verdict = "INCONCLUSIVE"
        elif value > (declared.max_regret or MILLION + summary["band_ppm"]):
            verdict = "LOSE"
        elif value <= MILLION / (1 + Fraction(margin, MILLION)) and high < MILLION:
            verdict = "WIN"
        found.append((verdict, int(value)))
    verdicts = [verdict for verdict, _ in found]
    return Judged(case, min(verdicts, key=WORST_FIRST.index), max(value for _, value in found))


def supported(region: Sequence[Judged], axis: str, declared: Settings, margin: int) -> bool:
    """Return whether enough cases of a region win, on three sizes, three in four, and all of them in the mean."""
    wins = [item for item in region if item.verdict == "WIN"]
    sizes = {size(item.case["fields"], axis) for item in wins}
    if len(wins) < declared.min_support or len(sizes) < 3 or Fraction(len(wins), len(region)) < Fraction(3, 4):
        return False
    ratios = [Fraction(item.ratio, MILLION) for item in region if item.ratio]
    return math.prod(ratios) * (1 + Fraction(margin, MILLION)) ** len(ratios) <= 1


def region_of(judged: Sequence[Judged], axis: str, direction: str, declared: Settings, margin: int) -> list[Judged]:
    """Return the cases of the most sizes, from the far end of an axis, that a line can be given for."""
    sizes = sorted({size(item.case["fields"], axis) for item in judged}, reverse=direction == "from")
    best: list[Judged] = []
    for last in range(1, len(sizes) + 1):
        region = [item for item in judged if size(item.case["fields"], axis) in sizes[:last]]
        outermost = [item for item in region if size(item.case["fields"], axis) == sizes[0]]
        newest = [item for item in region if size(item.case["fields"], axis) == sizes[last - 1]]
        if blocking(region) or not won(outermost):
            break
        if won(newest) and supported(region, axis, declared, margin):
            best = region
    return best


def blocking(items: Sequence[Judged]) -> list[Judged]:
    """Return the cases that no line may hold for."""
    return [item for item in items if item.verdict in {"LOSE", "INCONCLUSIVE"}]


def won(items: Sequence[Judged]) -> list[Judged]:
    """Return the cases that win."""
    return [item for item in items if item.verdict == "WIN"]


def outcomes(summary: Json, declared: Settings, margin: int) -> list[Json]:
    """Return per class, sorted by key, the verdicts of its cases and its entry, or the code of why it has none."""
    classes: dict[str, list[Json]] = {}
    for case in sorted(summary["cases"], key=lambda case: str(case["digest"])):
        classes.setdefault(spelled(case["class"]), []).append(case)
    return [outcome(summary, classes[key], declared, margin) for key in sorted(classes, key=str.encode)]


def spelled(value: object) -> str:
    """Return the one JSON spelling of a value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def outcome(summary: Json, cases: Sequence[Json], declared: Settings, margin: int) -> Json:
    """Return what becomes of one class."""
    key = cases[0]["class"]
    cases = [case for case in cases if case["status"] != "refused"]
    cases = [case for case in cases if all(feature(case["fields"], guard) for guard in declared.guards)]
    exchanged = bool(cases) and all(case["plans"]["default"] == case["plans"]["frost"] != "" for case in cases)
    judged = [judge(summary, case, declared, margin, exchanged=exchanged) for case in cases]
    found: Json = {"class": key, "verdicts": {item.case["digest"]: [item.verdict, item.ratio] for item in judged}}
    axis, direction = declared.thresholds[0][0] if declared.thresholds else "s_kv", ""
    region = list(judged) if not blocking(judged) and supported(judged, axis, declared, margin) else []
    for way in declared.thresholds if not region else ():
        axis, direction = way
        region = region_of(judged, axis, direction, declared, margin)
        if region:
            break
    if not region:
        return found | {"code": why_not(summary, judged, declared)}
    sizes = [size(item.case["fields"], axis) for item in region]
    rule = ("never" if exchanged else "always") if not direction else f"{'never_' if exchanged else ''}{direction}"
    bound = 0 if not direction else min(sizes) if direction == "from" else max(sizes)
    ratios = [item.ratio for item in region if item.ratio]
    proof = [key, rule, axis if direction else "", bound, sorted([item.case["digest"], item.ratio] for item in region)]
    return found | {
        "code": "",
        "rule": rule,
        "axis": axis if direction else "",
        "bound": bound,
        "says": f"win {len(won(region))}/{len(region)} worst {thousandths(max(ratios, default=0))}"
        f" geomean {thousandths(root_of(ratios))}"
        + (f" of {len(judged)}" if len(region) < len(judged) else "")
        + f" ev {hashlib.sha256(spelled(proof).encode()).hexdigest()[:12]}",
    }


def thousandths(value: int) -> str:
    """Return a ratio in ppm with three decimals, rounded half up, or that there is none."""
    return f"{(value + 500) // 1000 / 1000:.3f}" if value else "n/a"


def root_of(ratios: Sequence[int]) -> int:
    """Return the geometric mean of integers, rounded down, 0 of none: found by halving."""
    product, low, high = math.prod(ratios), 0, max(ratios, default=0) + 1
    while ratios and high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle ** len(ratios) <= product else (low, middle)
    return low


def why_not(summary: Json, judged: Sequence[Judged], declared: Settings) -> str:
    """Return the code of a class without an entry."""
    wins, loses = won(judged), [item for item in judged if item.verdict == "LOSE"]
    if any(item.case["status"] in FAILURES for item in judged):
        return "FAILED"
    if too_noisy(summary, declared):
        return "NOISE"
    among = []
    for axis, direction in declared.thresholds:
        sizes = [size(item.case["fields"], axis) for item in wins]
        lost = [size(item.case["fields"], axis) for item in loses]
        among.append(wins and any(own >= min(sizes) if direction == "from" else own <= max(sizes) for own in lost))
    if wins and loses and all(among):
        return "CONFLICT"
    if any(item.verdict == "INCONCLUSIVE" for item in judged):
        return "NOISE"
    return "SUPPORT" if wins or not judged else "MARGIN"


# score.json

RATIOS = ("regret_default_geomean", "regret_auto_geomean", "auto_over_default_geomean")
"""The metrics that have an interval."""


class Judge(NamedTuple):
    """One hold-out case in one regime as a score takes it; ratios are logarithms."""

    cell: Cell
    class_key: list[int | str]
    regret: dict[str, float]
    against: Range
    same_plan: bool
    spreads: dict[str, Fraction]
    entry: Json


def score_json(root: Path, name: str, dtype: str, declared: Settings, summary: Json, number: int = 0) -> Json:
    """Return what score.json says of the last attempts at the hold-out and at the routing split.

    `number` asks for what it would say, but for `unscored`, of another attempt at the hold-out.
    """
    cases, routed = read_cases(root, name, dtype, "holdout"), read_cases(root, name, dtype, "routing")
    attempts = {split: read_attempts(root, name, dtype, split) for split in ("train", "holdout", "routing")}
    holdout = next(one for one in reversed(attempts["holdout"]) if number in {0, one.number})
    routing = attempts["routing"][-1] if routed else None
    lines, cells = by_case(holdout.lines), cells_of(holdout.lines)
    endings = {digest: ended(own) for digest, own in lines.items()}
    found, cc = codes(cells, declared.noise_limit), holdout.sessions[0]["fingerprint"]["cc"]
    timed = [
        judged_cell(cell, own, cases[cell[0]], declared, cc, found[cell])
        for cell, own in cells.items()
        if endings[cell[0]][0] == "ok"
    ]
    rows = routing_rows(routing.lines if routing else [], routed)
    floor, regimes = band(cells), regime_metrics(timed, cells, summary)
    metrics = metrics_of(timed, cells, rows, regimes) | {"cases": len(cases)}
    gate = [held(condition, metrics) for condition in declared.gate]
    statuses = [status for status, _ in endings.values()]
    failed = sum(status not in {"ok", "refused"} for status in statuses)
    quiet = floor is not None and math.expm1(floor) <= declared.noise_limit / MILLION
    has_entries = holdout.sessions[0]["entries"] != hashlib.sha256(b"").hexdigest()
    still = {
        "the A/A band is above the noise limit or unknown": not quiet,
        "no hold-out case reaches an entry": has_entries and not metrics["reached"],
        f"{failed} hold-out cases failed": failed > 0,
        "a condition has no value": any(row["holds"] is None for row in gate),
    }
    fails = any(row["holds"] is False for row in gate)
    train = [case["fields"] for case in summary["cases"]]
    return {
        "attempts": {"train": summary["attempt"], "holdout": holdout.number}
        | ({"routing": routing.number} if routing else {}),
        "records": holdout.files | (routing.files if routing else {}),
        "unscored": []
        if number
        else [
            unscored(root, name, dtype, declared, summary, split, other, holdout)
            for split in attempts
            for other in attempts[split][:-1]
        ],
        "repeats": declared.repeats,
        "metrics": metrics,
        "intervals": intervals(timed, manifest_of(root, name)),
        "statuses": {status: statuses.count(status) for status in sorted(statuses)},
        "failed": [
            {"case": digest, "label": label(cases[digest]), "status": status, "error": error}
            for digest, (status, error) in endings.items()
            if status != "ok"
        ],
        "gate": gate,
        "verdict": "FAIL" if quiet and fails else "CANNOT SAY" if any(still.values()) else "PASS",
        "open": [reason for reason, applies in still.items() if applies],
        "regimes": regimes,
        "health": health(cells),
        "coverage": coverage(lines, [*train, *cases.values()]),
        "host_bound": sum(line.host_bound for line in holdout.lines),
        "unsteady": sum(not line.checks.get("steady", 1) for line in holdout.lines),
        "cases": [item.entry for item in timed],
        "routing": rows,
    }


def unscored(
    root: Path, name: str, dtype: str, declared: Settings, summary: Json, split: str, other: Attempt, scored: Attempt
) -> Json:
    """Return an attempt that is not scored, why it was made, and the verdict on a whole one of the same entries."""
    whole = planned(other, read_cases(root, name, dtype, split), declared, routing=split == "routing")
    found = {"split": split, "attempt": other.number, "lines": len(other.lines), "planned": whole, "verdict": ""}
    found["reason"] = other.sessions[0]["reason"]
    same = other.sessions[0]["entries"] == scored.sessions[0]["entries"]
    if split == "holdout" and len(other.lines) == whole and same:
        found["verdict"] = score_json(root, name, dtype, declared, summary, other.number)["verdict"]
    if split == "routing" and len(other.lines) == whole and same:
        rows = routing_rows(other.lines, read_cases(root, name, dtype, split))
        moved = [row for row in rows if row["auto"] != row["default"] or row["status"] != "ok"]
        found["verdict"] = "FAIL" if moved else "PASS"
    return found


def manifest_of(root: Path, name: str) -> str:
    """Return the hash of a study's manifest."""
    return hashlib.sha256((root / "frozen_cases" / name / "MANIFEST.json").read_bytes()).hexdigest()


def judged_cell(cell: Cell, lines: Sequence[Line], case: Json, declared: Settings, cc: str, code: str) -> Judge:
    """Return a hold-out case in one regime."""
    timed, first = timed_of(lines), lines[0]
    regret = {leg: max(ratio(lines, leg, other)[0] for other in ("frost", "backend")) for leg in LEGS}
    against = ratio(lines, "auto", "default", declared.confidence)
    spreads = {}
    for leg in LEGS:
        own = [one.leg_ns[leg] for one in timed]
        spreads[leg] = (max(own) - min(own)) / median(own)
    hosts = {leg: [one.host_ns[leg] for one in timed if leg in one.host_ns] for leg in LEGS}
    entry = {
        "case": cell[0],
        "label": label(case),
        "class": class_of(case, declared, cc),
        "regime": cell[1],
        "code": code,
        "host_bound": any(line.host_bound for line in lines),
        "lookup": first.lookup,
        "plans": first.plans,
        "leg_ns": leg_ns(lines),
        "host_ns": {leg: round(median(own)) for leg, own in hosts.items() if own},
        "regret_ppm": {leg: ppm(value) for leg, value in regret.items()},
        "frost_over_backend_ppm": ppm(ratio(lines, "frost", "backend")[0]),
        "auto_over_default_ppm": [ppm(value) for value in against],
        "spread_ppm": {leg: share(value) for leg, value in spreads.items()},
    }
    same = all(line.plans["auto"] == line.plans["default"] for line in lines)
    return Judge(cell, class_of(case, declared, cc), regret, against, same, spreads, entry)


def routing_rows(lines: Sequence[Line], cases: dict[str, Json]) -> list[Json]:
    """Return what auto and default would run in each routing case."""
    return [
        {"case": line.case, "label": label(cases[line.case]), "lookup": line.lookup}
        | {"auto": line.plans["auto"], "default": line.plans["default"]}
        | {"auto_name": line.names["auto"], "default_name": line.names["default"]}
        | {"status": line.status, "error": line.error}
        for line in sorted(lines, key=lambda line: line.case)
    ]


def regime_metrics(timed: Sequence[Judge], cells: dict[Cell, list[Line]], summary: Json) -> dict[str, dict[str, int]]:
    """Return the metrics of each regime by itself."""
    floor, found = band(cells), {}
    ratios = [Fraction(own["ratio_ppm"], MILLION) for case in summary["cases"] for own in case["regimes"].values()]
    fixed = "frost" if math.prod(ratios) < 1 else "backend"
    for regime in sorted({item.cell[1] for item in timed}):
        own = [item for item in timed if item.cell[1] == regime]
        regrets = {leg: [item.regret[leg] for item in own] for leg in LEGS}
        values = {f"regret_{leg}_geomean": ppm(mean(regrets[leg])) for leg in LEGS}
        values |= {f"regret_{leg}_max": ppm(max(regrets[leg])) for leg in ("default", "auto")}
        centers = [item.against[0] for item in own]
        values |= {"auto_over_default_geomean": ppm(mean(centers))}
        values |= {"auto_over_default_min": ppm(min(centers)), "auto_over_default_max": ppm(max(centers))}
        gap = mean(regrets[fixed])
        if floor is not None and gap > 2 * floor:
            values["closed_gap"] = share((gap - mean(regrets["auto"])) / gap)
        found[regime] = values
    return found


def metrics_of(
    timed: Sequence[Judge],
    cells: dict[Cell, list[Line]],
    rows: Sequence[Json],
    regimes: dict[str, dict[str, int]],
) -> dict[str, int | None]:
    """Return the metrics, those of ratios from the regime in which they are worst."""
    floor = band(cells)
    names = [f"regret_{leg}_geomean" for leg in LEGS] + ["regret_default_max", "regret_auto_max", "closed_gap"]
    names += [f"auto_over_default_{what}" for what in ("geomean", "min", "max")]
    found: dict[str, int | None] = dict.fromkeys([*names, "slower_beyond_noise", "control_min", "control_max"])
    found |= dict.fromkeys(("spread_median", "spread_p90", "spread_max"))
    for metric in names:
        values = [own[metric] for own in regimes.values() if metric in own]
        worst = min if metric in {"auto_over_default_min", "closed_gap"} else max
        found[metric] = worst(values) if values else None
    found |= {
        "cases_timed": len({item.cell[0] for item in timed}),
        "inconclusive": len({item.cell[0] for item in timed if item.entry["code"]}),
        "reached": len({item.cell[0] for item in timed if item.entry["lookup"] is not None}),
        "routing_changed": sum(row["auto"] != row["default"] or row["status"] != "ok" for row in rows),
        "band": None if floor is None else ppm(floor) - MILLION,
    }
    if timed:
        spreads = [value for item in timed for value in item.spreads.values()]
        control = [math.exp(value) for own in controls(cells).values() for value in own]
        found |= {
            "spread_median": share(quantile(spreads, 50)),
            "spread_p90": share(quantile(spreads, 90)),
            "spread_max": share(max(spreads)),
            "control_min": share(min(control)) if control else None,
            "control_max": share(max(control)) if control else None,
        }
    if timed and floor is not None:
        slower = [item for item in timed if not item.same_plan and item.against[0] > floor and item.against[1] > 0]
        found["slower_beyond_noise"] = len({item.cell[0] for item in slower})
    return found


def intervals(timed: Sequence[Judge], manifest: str) -> Json:
    """Return the bootstrap intervals of geometric means, each in the regime in which it is worst."""
    found: Json = {}
    for name in RATIOS if timed else ():
        regimes: dict[str, dict[str, list[float]]] = {}
        for item in timed:
            value = item.against[0] if name.startswith("auto") else item.regret[name.split("_")[1]]
            regimes.setdefault(item.cell[1], {}).setdefault(str(tuple(item.class_key)), []).append(value)
        worst = max(regimes.values(), key=lambda own: mean([value for values in own.values() for value in values]))
        ends = bootstrap([worst[key] for key in sorted(worst)], int(manifest[:15], 16))
        found[name] = [ppm(end) for end in ends]
    return found


def held(condition: str, metrics: dict[str, int | None]) -> Json:
    """Return a condition of the gate with what was found, None where there is no value."""
    metric, sign, text = condition.split()
    counts = ("cases", "cases_timed", "inconclusive", "reached", "slower_beyond_noise", "routing_changed")
    limit, value = Fraction(text) * (1 if metric in counts else MILLION), metrics[metric]
    holds = None if value is None else {"<=": value <= limit, ">=": value >= limit, "==": value == limit}[sign]
    return {"condition": condition, "value": value, "holds": holds}


def health(cells: dict[Cell, list[Line]]) -> Json:
    """Return what disturbed the hold-out."""
    carried, timed = carry_over(cells), [one for own in cells.values() for one in timed_of(own)]
    if carried is None:
        return {}
    return {
        "carry_over_ppm": [ppm(value) for value in carried],
        "position_median_ppm": share(median([one.position for one in timed])),
        "drift_median_ppm": share(median([abs(one.drift) for one in timed])),
        "lag1_median_ppm": share(median([one.lag1 for one in timed])),
        "trend_max_ppm": share(max(abs(one.trend) for one in timed)),
    }


def coverage(lines: dict[str, list[Line]], cases: Sequence[Json]) -> Json:
    """Return how many hold-out cases the table leads, trails or leaves, and the features that never varied."""
    answers = [own[0].lookup for own in lines.values()]
    values = {name: {feature(case, name) for case in cases} for name in FEATURES}
    return {
        "leads": answers.count(True),
        "trails": answers.count(False),
        "abstains": answers.count(None),
        "constant": {name: min(own) for name, own in values.items() if len(own) == 1},
    }
