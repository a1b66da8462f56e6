"""What a replay costs: verifying and scoring a study again, beside reading its records once and beside pandas.

Two studies of a simulated device, written here record by record: one of a million samples, one of 100,000 records. Each
method runs in a fresh process; what it imports is not counted.

    python benchmarks/replay.py [--quick] [--json FILE]
"""

import argparse
import hashlib
import importlib
import json
import math
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from studytool import bundle, editing, freeze, jsonl, model, opening, pipeline, replay, reporting, schedule
from studytool.attempts import Job
from studytool.digest import sha256
from studytool.files import read_bytes
from studytool.layout import StudyPlace
from studytool.lines import EMPTY, NO_ENTRIES, entries_digest, read_table
from studytool.model import LEGS, Case, Fingerprint, LegRecord, Plan, Record, Session, Split, Status
from studytool.pipeline import Hooks
from studytool.runtime import key

NAME, DTYPE, REGIME, REPEATS = "large", "bf16", "eager-warm", 5
DIMS = (64, 80, 96, 112, 128, 160, 192, 256)
PLANS = {
    leg: Plan(engine=20001 if leg == "frost" else 5, name="frost" if leg == "frost" else "backend") for leg in LEGS
}
SPREAD = 0.004

YAML = """\
schema: 1
name: large
question: What does a replay cost?
engine: simulated
row: open_engine
base: library
device: {{cc: sim-1, board: any}}
op: sdpa_fwd
dtypes: [bf16]
class_key: [dtype, d_qk]
splits:
  train:
    grids:
      - {{s_kv: {train}, h_q: 4, d_qk: {dims}}}
  holdout:
    grids:
      - {{s_kv: {holdout}, h_q: 2, d_qk: {dims}, b: 2}}
protocol: {{repeats: {repeats}, blocks: {blocks}}}
decide: {{margin: 0.05, scope: class, thresholds: [from s_kv]}}
gate:
  - slower_beyond_noise == 0
simulated: {{backend_ns: "1000", frost_ns: "700"}}
"""


def make(root: Path, records: int, blocks: int) -> StudyPlace:
    """Return the place of a whole study of about so many records, two in three of the train split."""
    place = StudyPlace(root, NAME)
    place.folder.mkdir(parents=True)
    sizes = max(3, records // REPEATS // len(DIMS))
    split = {"train": range(64, 64 * (2 * sizes // 3) + 1, 64), "holdout": range(72, 64 * (sizes // 3) + 73, 64)}
    given = {name: json.dumps(list(values)) for name, values in split.items()}
    place.study_yaml.write_text(YAML.format(**given, dims=list(DIMS), repeats=REPEATS, blocks=blocks), encoding="utf-8")
    hooks = Hooks(lambda: "2026-01-01T00:00:00+00:00", lambda _name, _step: None, lambda _text: None)
    study = opening.open_study(place)
    pipeline.freeze_study(study, place, [])
    job = opening.job_of(study, place, DTYPE, Split.TRAIN)
    write(job, EMPTY.encode(), NO_ENTRIES)
    pipeline.time(job, hooks)  # nothing is missing: it writes study.json and seals the session
    pipeline.generate(job)
    editing.apply_lines(job.results.lines, place.table, hooks.now)
    holdout = job._replace(split=Split.HOLDOUT)
    write(holdout, read_bytes(place.table), entries_of(place))
    pipeline.time(holdout, hooks)
    pipeline.score(holdout, hooks.now)
    reporting.report(holdout)
    return place


def entries_of(place: StudyPlace) -> str:
    """Return the digest of the entries in a study's table."""
    return entries_digest(read_table(read_bytes(place.table), "table"), "open_engine", DTYPE)


def write(job: Job, table: bytes, entries: str) -> None:
    """Write the session of a split: every case, repeat and block, drawn from a stream of its own."""
    prints = Fingerprint(
        board="simulated", uuid="", cc="sim-1", cores=1, memory_bytes=1 << 30, tick_ns=1, versions={}, settings={},
        device={}, code="",
    )  # fmt: skip
    session = Session(
        schema=model.SCHEMA, study=NAME, manifest=job.frozen.sha256, dtype=DTYPE, split=job.split, attempt=1, session=1,
        table=sha256(table), entries=entries, started="2026-01-01T00:00:00+00:00", reason="", predicted_ns=0,
        fingerprint=prints, prev="", lane="",
    )  # fmt: skip
    draw = np.random.Generator(np.random.PCG64(len(job.cases)))
    path = job.results.session(job.split, 1, 1)
    with jsonl.Writer(path, session) as writer:
        for digest, case in job.cases.items():
            writer.append(*(record(job, digest, case, repeat, draw) for repeat in range(1, REPEATS + 1)))


def record(job: Job, digest: str, case: Case, repeat: int, draw: np.random.Generator) -> Record:
    """Return one record: frost takes 0.7 of the backend's time, auto leads where there is a table."""
    study, leads = job.study, job.split is Split.HOLDOUT
    blocks = study.protocol.blocks
    scale = {leg: 0.7 if leg == "frost" or (leg == "auto" and leads) else 1.0 for leg in LEGS}
    plans = {**PLANS, "auto": PLANS["frost"] if leads else PLANS["auto"]}
    noise = np.exp(SPREAD * draw.standard_normal((len(LEGS), blocks)))
    ns = {leg: tuple((200_000 * scale[leg] * own).astype(int).tolist()) for leg, own in zip(LEGS, noise, strict=True)}
    return Record(
        schema=model.SCHEMA, case=digest, split=job.split, repeat=repeat, regime=REGIME, attempt=1, status=Status.OK,
        class_key=key.class_key(study.row, "sim-1", study.class_key, case.fields), lookup=True if leads else None,
        legs={leg: LegRecord(plan=plans[leg], inner=2, ns=ns[leg]) for leg in LEGS},
        order=schedule.block_orders(study.sha256, digest, repeat, REGIME, blocks), clock_mhz=(), blocks={}, checks={},
        error="", prev="",
    )  # fmt: skip


def replayed(folder: Path, _archive: Path) -> str:
    """Replay the study in a folder; return what the check list ends with."""
    place = StudyPlace(folder, NAME)
    return replay.conclusion(replay.replay(opening.open_study(place), place))[0]


def unpacked(_folder: Path, archive: Path) -> str:
    """Unpack an archive and replay it; return what the check list ends with."""
    with tempfile.TemporaryDirectory() as into:
        return replayed(bundle.unpack(archive, Path(into)).root, archive)


def limit(folder: Path, _archive: Path) -> str:
    """Hash the records and decode their lines once, into whatever JSON says; return how many samples there are."""
    decoder, samples = msgspec.json.Decoder(), 0
    for path in records_of(folder):
        data = path.read_bytes()
        hashlib.sha256(data).hexdigest()
        for line in data.split(b"\n")[:-1]:
            samples += sum(len(leg["ns"]) for leg in decoder.decode(line).get("legs", {}).values())
    return f"{samples} samples"


def with_pandas(folder: Path, _archive: Path) -> str:
    """Read the records with pandas and group ratios of medians by case; return how many cases there are."""
    import pandas as pd  # noqa: PLC0415 - only where it is measured

    found = []
    for path in records_of(folder):
        table = pd.read_json(path, lines=True)
        table = table[table["case"].notna()]
        for leg in ("frost", "backend"):
            table[leg] = [float(np.median(own[leg]["ns"])) for own in table["legs"]]
        table["ln"] = np.log(table["frost"] / table["backend"])
        found.append(table.groupby(["case", "regime"])["ln"].agg(["mean", "std"]))
    return f"{sum(map(len, found))} cases"


METHODS: dict[str, Callable[[Path, Path], str]] = {
    "hash and decode once (the limit)": limit,
    "replay a folder": replayed,
    "replay an archive": unpacked,
    "pandas.read_json and groupby": with_pandas,
}


def records_of(folder: Path) -> list[Path]:
    """Return the records files of the study."""
    return sorted(StudyPlace(folder, NAME).results(DTYPE).records.glob("*.jsonl"))


def run(name: str, folder: Path, archive: Path) -> dict[str, Any]:
    """Run one method in this process, and return its CPU time and what it added to this process's most memory."""
    if METHODS[name] is with_pandas:
        importlib.import_module("pandas")  # its import is not counted
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    said = METHODS[name](folder, archive)
    seconds = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"what": name, "cpu_s": seconds, "peak_MiB": peak / 1024, "added_MiB": (peak - before) / 1024, "says": said}


def measure(records: int, blocks: int, times: int) -> list[dict[str, Any]]:
    """Return a line a method for one study, each the median in time of so many fresh processes."""
    rows = []
    with tempfile.TemporaryDirectory() as root:
        place = make(Path(root), records, blocks)
        archive = Path(root, "large.tar.gz")
        study = opening.open_study(place)
        bundle.pack(study, place, freeze.verify(study, place), archive, keep_host=False)
        lines = sum(path.read_bytes().count(b"\n") - 1 for path in records_of(place.root))
        shape = {"records": lines, "samples": lines * blocks * len(LEGS)}
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in METHODS}
        for _turn in range(times):
            for name, own in found.items():
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
                    own.append(fresh.submit(run, name, place.root, archive).result())
        for own in found.values():
            row = sorted(own, key=lambda one: float(one["cpu_s"]))[len(own) // 2]
            rows.append({**shape, **row})
    for row in rows:
        row["over_limit"] = row["cpu_s"] / rows[0]["cpu_s"]
    return rows


def text(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as Markdown."""
    cells = [[f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row.values()] for row in rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in (list(rows[0]), ["---"] * len(rows[0]), *cells))


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="smaller studies: seconds, not minutes")
    parser.add_argument("--json", type=Path, help="also write the table there")
    asked = parser.parse_args()
    shapes = [(360, 24), (1200, 4)] if asked.quick else [(math.ceil(1e6 / 96 / 4), 96), (100_000, 4)]
    rows = [row for records, blocks in shapes for row in measure(records, blocks, 1 if asked.quick else 3)]
    print(text(rows), end="")
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
