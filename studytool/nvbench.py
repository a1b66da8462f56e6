"""Records → the JSON that nvbench writes, for what people have to read it: a state a case, regime and leg.

The format is that of NVIDIA/nvbench, file version 1.0.0: what nvbench/json_printer.cu there writes with `--json`, and
python/scripts/nvbench_compare.py (formerly scripts/nvbench_compare.py) reads.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import studytool
from studytool import rows
from studytool.attempts import Attempt, Job
from studytool.model import LEGS, Case, Fingerprint, LegRecord, Record, Split, Status
from studytool.runtime import key

Json = dict[str, Any]
Attempts = Sequence[tuple[Job, Attempt]]

_FEWEST_FOR_NOISE = 5
"""nvbench calls the noise of fewer samples infinite."""


class _State(NamedTuple):
    """A case in a regime: its device, its lines, and why it has no times, "" where it has."""

    case: Case
    regime: str
    device: int
    records: Sequence[Record]
    skipped: str


def nvbench_bytes(found: Attempts) -> bytes:
    """Return what `nvbench --json` writes: a benchmark an op, with a state a case, regime and leg.

    Times are in seconds per launch, over the samples of all repeats together, whatever the regime, in the summaries of
    what nvbench calls cold. A case that did not end ok in each of its lines is skipped in all of its states.
    """
    devices = _devices(found)
    states = [state for job, attempt in found for state in _states(job, attempt, devices)]
    protocol = found[0][0].study.protocol
    settings: Json = {
        "min_samples": protocol.repeats * protocol.blocks,
        "min_time": 0.0,
        "max_noise": 0.0,
        "skip_time": -1.0,
        "timeout": float(protocol.case_timeout_s),
    }
    benchmarks = []
    for index, op in enumerate(dict.fromkeys(state.case.op for state in states)):
        own = [state for state in states if state.case.op == op]
        axes = _axes(own)
        benchmarks.append(
            {
                "name": op,
                "index": index,
                **settings,
                "devices": sorted({state.device for state in own}),
                "axes": [_axis_json(name, values) for name, values in axes.items()],
                "states": [_state_json(state, leg, axes, settings) for state in own for leg in LEGS],
            }
        )
    version = {"json": {"major": 1, "minor": 0, "patch": 0, "string": "1.0.0"}}
    meta = {"argv": ["studytool", "export"], "version": {**version, "studytool": {"string": studytool.__version__}}}
    root = {
        "meta": meta,
        "devices": [{"id": number, **device} for number, device in enumerate(devices)],
        "benchmarks": benchmarks,
    }
    return (json.dumps(root, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _device(prints: Fingerprint) -> Json:
    """Return what nvbench says of a board, without its number; of a processor only its name."""
    device: Json = {"name": prints.board}
    if match := re.fullmatch(r"(\d{1,2})\.(\d)", prints.cc):
        device |= {"sm_version": 100 * int(match[1]) + 10 * int(match[2]), "global_memory_size": prints.memory_bytes}
        sm_count = prints.settings.get("sm_count", "")
        device |= {"number_of_sms": int(sm_count)} if sm_count.isdecimal() else {}
    return device


def _devices(found: Attempts) -> list[Json]:
    """Return the boards that measured, each once, in the order of timing; a board's number is its place."""
    devices: list[Json] = []
    for device in (_device(file.session.fingerprint) for _, attempt in found for file in attempt.files):
        devices += [] if device in devices else [device]
    return devices


def _states(job: Job, attempt: Attempt, devices: Sequence[Json]) -> Iterator[_State]:
    """Return a state for every case, in the order of digests, and planned regime of an attempt."""
    regimes = job.study.protocol.regimes[: 1 if job.split is Split.ROUTING else None]
    by_case = rows.by_case(rows.rows(attempt.files))
    lines: dict[tuple[str, str], list[Record]] = {}
    boards: dict[str, int] = {}
    for file in attempt.files:
        board = devices.index(_device(file.session.fingerprint))
        for record in file.records:
            lines.setdefault((record.case, record.regime), []).append(record)
            boards.setdefault(record.case, board)
    for digest, case in job.cases.items():
        status, error = rows.worst_status(by_case.get(digest, ()))
        failed = "" if status is Status.OK else f"{status}: {error}".removesuffix(": ")
        for regime in regimes:
            own = lines.get((digest, regime), [])
            timed = any(record.order for record in own)
            skipped = failed or ("" if timed else "planned, not timed" if own else "not measured yet")
            yield _State(case, regime, boards.get(digest, 0), own, skipped)


def _axes(states: Sequence[_State]) -> dict[str, list[key.Value]]:
    """Return the axes of a benchmark with their values: what a case's fields are, but its op, then regime and leg.

    A field that no graph must have is an axis where some case has it.
    """
    optional = [name for name, neutral in key.NEUTRAL.items() if any(getattr(s.case, name) != neutral for s in states)]
    names = [*key.GEOMETRY[1:], *optional]
    axes: dict[str, list[key.Value]] = {name: sorted({getattr(s.case, name) for s in states}) for name in names}
    return {**axes, "regime": list(dict.fromkeys(state.regime for state in states)), "leg": list(LEGS)}


def _axis_type(name: str) -> str:
    return "int64" if name in key.INTEGER_FIELDS else "string"


def _axis_json(name: str, values: Sequence[key.Value]) -> Json:
    made = [{"input_string": str(value), "description": "", "value": value} for value in values]
    return {"name": name, "type": _axis_type(name), "flags": "", "values": made}


def _state_json(state: _State, leg: str, axes: Iterable[str], settings: Json) -> Json:
    own = {"regime": state.regime, "leg": leg}
    values = {name: str(own[name] if name in own else getattr(state.case, name)) for name in axes}
    skipped = {"skip_reason": state.skipped} if state.skipped else {}
    return {
        "name": " ".join([f"Device={state.device}", *(f"{name}={value}" for name, value in values.items())]),
        **settings,
        "device": state.device,
        "type_config_index": 0,
        "axis_values": [_value_json(name, _axis_type(name), value) for name, value in values.items()],
        "summaries": None if state.skipped else _summaries([record.legs[leg] for record in state.records]),
        "is_skipped": bool(state.skipped),
        **skipped,
    }


def _value_json(name: str, kind: str, value: object) -> Json:
    return {"name": name, "type": kind, "value": str(value)}


def _summaries(legs: Sequence[LegRecord]) -> list[Json]:
    """Return what nvbench says of a state, from a leg's samples in all repeats.

    Sums are exact, so that the order of samples does not matter; quartiles are samples, by nvbench's own rule of ranks.
    """
    unit = math.lcm(*(leg.inner for leg in legs))
    times = sorted(ns * (unit // leg.inner) for leg in legs for ns in leg.ns)  # in ns times `unit`, integers
    count, total = len(times), sum(times)
    spread = count * sum(time * time for time in times) - total * total
    noise = math.sqrt(Fraction(count * spread, (count - 1) * total * total)) if count >= _FEWEST_FOR_NOISE else math.inf
    mean = Fraction(total, count)
    q1, median, q3 = (times[(percent * (count - 1) + 50) // 100] for percent in (25, 50, 75))
    tag, each = "nv/cold/time/gpu", "of the times of one launch, each sample's mean over its launches"

    def seconds(time: int | Fraction) -> float:
        return float(Fraction(time) / (unit * 10**9))

    return [
        _summary("nv/cold/sample_size", "Samples", "sample_size", "Number of samples", count),
        _summary(f"{tag}/mean", "GPU Time", "duration", f"Mean {each}", seconds(mean)),
        _summary(f"{tag}/stdev/relative", "Noise", "percentage", f"Relative standard deviation {each}", noise),
        _summary(f"{tag}/stdev/absolute", "Stdev", "duration", f"Standard deviation {each}", noise * seconds(mean)),
        _summary(f"{tag}/min", "Min", "duration", f"Least {each}", seconds(times[0])),
        _summary(f"{tag}/max", "Max", "duration", f"Largest {each}", seconds(times[-1])),
        _summary(f"{tag}/q1", "Q1", "duration", f"First quartile {each}", seconds(q1)),
        _summary(f"{tag}/median", "Median", "duration", f"Median {each}", seconds(median)),
        _summary(f"{tag}/q3", "Q3", "duration", f"Third quartile {each}", seconds(q3)),
        _summary(f"{tag}/iqr/absolute", "IQR", "duration", f"Interquartile range {each}", seconds(q3 - q1)),
        _summary(
            f"{tag}/iqr/relative", "Rel IQR", "percentage", f"Relative interquartile range {each}", (q3 - q1) / median
        ),
        _summary("studytool/plan", "Plan", "", "What the leg ran", " ".join(sorted({_plan(leg) for leg in legs}))),
    ]


def _plan(leg: LegRecord) -> str:
    return leg.plan.identity if leg.plan else ""


def _summary(tag: str, name: str, hint: str, description: str, value: float | str) -> Json:
    """Return one summary of a state; numbers are texts, as nvbench has them."""
    kind = {int: "int64", float: "float64", str: "string"}[type(value)]
    hints = {"hint": hint} if hint else {}
    return {"tag": tag, "name": name, "description": description, **hints, "data": [_value_json("value", kind, value)]}
