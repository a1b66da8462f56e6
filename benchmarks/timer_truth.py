"""How far timers are from a known truth: ours and what people use, on the simulated device, at equal device time.

Ours is the shipped code from the samples to the entries; the others are in rivals.py.

    python benchmarks/timer_truth.py [--quick] [--json FILE] [--no-cpu]
"""

import argparse
import contextlib
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rivals import BLOCKS, MIN_SAMPLE_NS, OTHERS, REGIME, REPEATS, ROWS, Estimate, Row, World, budget_ns

from studytool import fit, jsonl, measure, model, schedule, stats, studyfile, studyjson, summary
from studytool.attempts import Attempt
from studytool.digest import rank
from studytool.grid import expand
from studytool.metrics import PPM
from studytool.model import Case, Fingerprint, Record, Session, Split, Status

MARGIN, TRUE_RATIO = 0.05, 0.9
CLASSES, SIZES = 16, 4
STUDY = f"""\
schema: 1
name: truth
question: Is the truth found?
engine: simulated
row: open_engine
base: library
op: sdpa_fwd
dtypes: [bf16]
class_key: [dtype, d_qk]
splits:
  train: {{grids: [{{s_kv: [64, 128, 256, 512], h_q: 1, d_qk: {{from: 8, to: {8 * CLASSES}, step: 8}}}}]}}
  holdout: {{cases: [{{s_kv: 96, h_q: 1, d_qk: 8}}]}}
protocol: {{repeats: {REPEATS}, blocks: {BLOCKS}, min_sample_ns: {MIN_SAMPLE_NS}}}
decide: {{margin: {MARGIN}, noise_limit: 0.1}}
gate: [slower_beyond_noise == 0]
simulated: {{backend_ns: "1", frost_ns: "1"}}
"""


def ours(world: World, studies: int) -> tuple[list[Estimate], list[bool]]:
    """Return the estimates of so many case-studies, and per family of 16 classes whether any gets an entry."""
    study = studyfile.parse(STUDY.encode(), "truth", "truth")
    cases = expand(study)[Split.TRAIN]
    found: list[Estimate] = []
    leads: list[bool] = []
    for family in range(max(1, studies // len(cases))):
        records = [
            _record(world, study.sha256, family, digest, case, repeat)
            for repeat in range(1, REPEATS + 1)
            for digest, case in cases.items()
        ]
        file = jsonl.SessionFile(Path("truth.jsonl"), _session(world), tuple(records), "", len(records) + 1, 0)
        attempt = Attempt(1, (file,), len(records), frozenset(), ())
        made = summary.summarise(study, "", "bf16", attempt, cases)
        for case in made.cases:
            regime = case.regimes[REGIME]
            center, low, high = (math.log(v / PPM) for v in (regime.ratio_ppm, regime.low_ppm, regime.high_ppm))
            found.append(Estimate(center, (low, high)))
        fitted = fit.fit(made, studyjson.encode(made), round(MARGIN * PPM), "class")
        leads.append(any(outcome.line is not None for outcome in fitted.outcomes))
    return found, leads


def _record(world: World, study: str, family: int, digest: str, case: Case, repeat: int) -> Record:
    device = world.device(budget_ns(world.row) / REPEATS / 1e6)
    request = measure.Request(
        case=case,
        regime=REGIME,
        orders=schedule.block_orders(study, f"{family} {digest}", repeat, REGIME, BLOCKS),
        base="library",
        lookup=None,
        seed=int(rank(family, digest, repeat)[:12], 16),
        process_seed=int(rank(family, repeat, digest, "process")[:12], 16),
        distribution="normal",
        min_sample_ns=MIN_SAMPLE_NS,
    )
    measured = measure.run_case(device, device.own_clock(), request)
    return Record(
        schema=model.SCHEMA,
        case=digest,
        split=Split.TRAIN,
        repeat=repeat,
        regime=REGIME,
        attempt=1,
        status=measured.status,
        class_key=("open_engine", "sim-1", "bf16", case.d_qk),
        lookup=None,
        legs=measured.legs,
        order=measured.order,
        clock_mhz=measured.clock_mhz,
        blocks=measured.blocks,
        checks=measured.checks,
        error=measured.error,
        prev="",
    )


def _session(world: World) -> Session:
    prints = Fingerprint(
        board="simulated device",
        uuid="0",
        cc="sim-1",
        cores=1,
        memory_bytes=1,
        tick_ns=world.row.numbers(100.0).get("tick_ns", 1),
        versions={},
        settings={},
        device={},
        code="",
    )
    return Session(
        schema=model.SCHEMA,
        study="truth",
        manifest="",
        dtype="bf16",
        split=Split.TRAIN,
        attempt=1,
        session=1,
        table="",
        entries="",
        started="",
        reason="",
        predicted_ns=0,
        fingerprint=prints,
        prev="",
        lane="",
    )


def limit(row: Row) -> float:
    """Return the statistical limit of the RMS error.

    It is that of as many paired blocks without the nuisance, with what processes leave where they are the nuisance.
    """
    paired = 2 * (row.noise_ppm / PPM) ** 2 / (REPEATS * BLOCKS)
    process = 2 * (row.numbers(100.0).get("process_ppm", 0) / PPM) ** 2 / REPEATS
    return math.sqrt(paired + process)


def line(row: Row, method: str, null: list[Estimate], leads: list[bool], power: list[Estimate]) -> dict[str, Any]:
    """Return one line of the table; errors in percent, over the studies without a difference and those with one."""
    truth = [(found, 0.0) for found in null] + [(found, math.log(TRUE_RATIO)) for found in power]
    errors = np.array([found.center - true for found, true in truth])
    covered = [found.interval[0] <= true <= found.interval[1] for found, true in truth if found.interval]
    rms = float(np.sqrt((errors**2).mean()))
    return {
        "row": row.name,
        "method": method,
        "studies": len(truth),
        "rms_pct": 100 * rms,
        "over_limit": rms / limit(row),
        "bias_pct": 100 * float(errors.mean()),
        "coverage_pct": 100 * float(np.mean(covered)) if covered else None,
        "families": len(leads),
        "false_families_pct": 100 * float(np.mean(leads)),
        "power_pct": 100 * float(np.mean([_wins(found) for found in power])),
    }


def _wins(found: Estimate) -> bool:
    return found.center <= -math.log1p(MARGIN) and (found.interval is None or found.interval[1] < 0)


def families(null: list[Estimate]) -> list[bool]:
    """Return per family of 16 classes whether the geometric mean of any class's four cases is a lead."""
    sizes = range(0, len(null) - SIZES + 1, SIZES)
    classes = [statistics.fmean(found.center for found in null[at : at + SIZES]) <= -math.log1p(MARGIN) for at in sizes]
    return [any(classes[at : at + CLASSES]) for at in range(0, len(classes) - CLASSES + 1, CLASSES)]


def simulate(studies: int, power_studies: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return the lines of all rows and methods."""
    table = []
    for row in ROWS:
        say(row.name)
        null, truth = World(row, 1.0), World(row, TRUE_RATIO)
        found, leads = ours(null, studies)
        table.append(line(row, "studytool", found, leads, ours(truth, power_studies)[0]))
        for name, method in OTHERS.items():
            others = [method(null, seed) for seed in range(len(found))]
            power = [method(truth, seed) for seed in range(power_studies)]
            table.append(line(row, name, others, families(others), power))
    return table


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many other processes busy for a while."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def on_the_cpu(name: str, trials: int) -> list[dict[str, Any]]:
    """Return the share of A/A trials in which a timer sees a lead on this machine, at equal time, both in turn."""
    import torch  # noqa: PLC0415 - only this part needs it
    from torch.utils import benchmark  # noqa: PLC0415

    from studytool.clock import HostClock  # noqa: PLC0415
    from studytool.engines.torch_sdpa import TorchSdpa  # noqa: PLC0415

    engine, clock = TorchSdpa(), HostClock()
    case = Case(op="sdpa_fwd", dtype="f32", b=1, h_q=4, h_kv=4, s_q=96, s_kv=96, d_qk=64, d_v=64)
    q, k, v = (torch.randn(1, 4, 96, 64) for _ in range(3))
    names = {"sdpa": torch.nn.functional.scaled_dot_product_attention, "q": q, "k": k, "v": v}
    errors: dict[str, list[float]] = {"studytool": [], "torch.utils.benchmark, leg after leg": []}
    for trial in range(trials):
        begin = clock.now_ns()
        logs = []
        for repeat in range(REPEATS):
            orders = schedule.block_orders("cpu", str(trial), repeat, REGIME, BLOCKS)
            request = measure.Request(
                case=case, regime=REGIME, orders=orders, base="library", lookup=None, seed=trial,
                process_seed=repeat, distribution="normal", min_sample_ns=MIN_SAMPLE_NS,
            )  # fmt: skip
            measured = measure.run_case(engine, clock, request)
            if measured.status is Status.OK:
                legs = {name: stats.per_launch_ns(leg.ns, leg.inner) for name, leg in measured.legs.items()}
                logs.append(stats.paired_log_ratio(legs["default"], legs["backend"], clock.tick_ns, MIN_SAMPLE_NS))
        errors["studytool"].append(statistics.fmean(logs))
        share_s = (clock.now_ns() - begin) / 2 / 1e9
        medians = [
            benchmark.Timer("sdpa(q, k, v)", globals=names).blocked_autorange(min_run_time=share_s).median
            for _ in range(2)
        ]
        errors["torch.utils.benchmark, leg after leg"].append(math.log(medians[1] / medians[0]))
    bound = math.log1p(MARGIN)
    return [
        {
            "row": name,
            "method": method,
            "studies": trials,
            "rms_pct": 100 * float(np.sqrt(np.mean(np.square(values)))),
            "bias_pct": 100 * float(np.mean(values)),
            "false_leads_pct": 100 * float(np.mean([abs(value) > bound for value in values])),
        }
        for method, values in errors.items()
    ]


def text(table: list[dict[str, Any]]) -> str:
    """Return the table as Markdown."""
    head = ["row", "method", "RMS error %", "over limit", "bias %", "coverage %", "false families %", "power at 10 % %"]
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join(["---"] * len(head)) + " |"]
    for found in table:
        cells = [found["row"], found["method"], f"{found['rms_pct']:.3f}"]
        cells += [f"{found['over_limit']:.2f}" if "over_limit" in found else "", f"{found['bias_pct']:+.3f}"]
        coverage = found.get("coverage_pct")
        cells += ["none given" if coverage is None else f"{coverage:.1f}"] if "over_limit" in found else [""]
        cells += [f"{found.get('false_families_pct', found.get('false_leads_pct', 0.0)):.1f}"]
        cells += [f"{found['power_pct']:.1f}" if "power_pct" in found else ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer studies: seconds, not minutes")
    parser.add_argument("--json", type=Path, help="also write the table there")
    parser.add_argument("--no-cpu", action="store_true", help="leave out the part on this machine's CPU engines")
    asked = parser.parse_args()
    studies, power_studies, trials = (64, 64, 3) if asked.quick else (1024, 128, 30)
    table = simulate(studies, power_studies, lambda name: print(name, file=sys.stderr))
    if not asked.no_cpu:
        table += on_the_cpu("this CPU, A/A", trials)
        with busy(2):
            table += on_the_cpu("this CPU, A/A, two busy processes beside it", trials)
    print(text(table))
    if asked.json:
        asked.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
