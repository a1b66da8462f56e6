"""Records → a pandas DataFrame, for notebooks: one row a record. What is decided and scored is computed from `rows`."""

from collections.abc import Iterable

import pandas as pd

from studytool import rows
from studytool.jsonl import SessionFile
from studytool.model import LEGS
from studytool.noise import Health


def repeats(files: Iterable[SessionFile]) -> pd.DataFrame:
    """Return one row per record.

    Columns: case, repeat, regime, status, error, lookup, host_bound, steady; per leg `LEG_ns` (median over blocks, per
    launch), `LEG_host_ns`, `LEG_plan` and `LEG_name`; the numbers of its health; per pair of legs `ln_A_B` (below 0
    where A is faster) and `alias_A_B` (whether both ran one plan).
    """
    found = [_columns(row) for row in rows.rows(files)]
    return pd.DataFrame(found).astype({"lookup": object} if found else {})


def _columns(row: rows.Row) -> dict[str, object]:
    plain = ("case", "repeat", "regime", "status", "error", "lookup", "host_bound", "steady")
    found = {name: getattr(row, name) for name in plain}
    for place, leg in enumerate(LEGS):
        parts = {"ns": row.ns, "host_ns": row.host_ns, "plan": row.plans, "name": row.names}
        found |= {f"{leg}_{what}": values[place] for what, values in parts.items()}
    found |= dict.fromkeys(Health._fields, float("nan")) if row.health is None else row.health._asdict()
    for place, (a, b) in enumerate(rows.PAIRS):
        found |= {f"ln_{a}_{b}": row.ln[place], f"alias_{a}_{b}": row.plans[LEGS.index(a)] == row.plans[LEGS.index(b)]}
    return found
