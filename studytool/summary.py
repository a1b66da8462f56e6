"""Train records → study.json: ratios are rounded to parts per million here, once; from here on integers decide."""

from collections.abc import Mapping

import pandas as pd

from studytool import frame, model, stats
from studytool.attempts import Attempt
from studytool.metrics import PPM
from studytool.model import LEGS, Case, Fingerprint, Status, Study
from studytool.runtime import key
from studytool.studyjson import CaseSummary, RegimeSummary, Summary

Codes = Mapping[tuple[str, str], str]


def summarise(study: Study, manifest_sha256: str, dtype: str, attempt: Attempt, cases: Mapping[str, Case]) -> Summary:
    """Return the summary of a complete train attempt."""
    first = attempt.files[0].session.fingerprint
    table = frame.repeats(attempt.files)
    band = frame.band(table)
    groups = dict(list(table.groupby("case", sort=True)))
    codes = frame.codes(table, study.decide.noise_limit_ppm / PPM)
    return Summary(
        schema=model.SCHEMA,
        study=study.name,
        study_sha256=study.sha256,
        manifest_sha256=manifest_sha256,
        dtype=dtype,
        row=study.row,
        base=study.base,
        cc=first.cc,
        board=first.board,
        versions=first.versions,
        measured=_measured(first),
        code=first.code,
        class_key=study.class_key,
        guards=study.guards,
        regimes=study.protocol.regimes,
        decide=study.decide,
        attempt=attempt.number,
        records={file.path.name: file.sha256 for file in attempt.files},
        band_ppm=-1 if band is None else stats.ppm(band) - PPM,
        cases=tuple(_case(study, first.cc, case, groups[digest], codes) for digest, case in sorted(cases.items())),
    )


def _measured(prints: Fingerprint) -> dict[str, int | str]:
    """Return what an entry's box says of the library, by major and minor, and of a GPU."""
    if "cudnn" in prints.versions:
        number = int(prints.versions["cudnn"])
        return {
            "cudnn": f"{number // 10_000}.{number // 100 % 100}",
            "sm_count": int(prints.settings.get("sm_count", "0")),
            "memory_gib": round(prints.memory_bytes / (1 << 30)),
        }
    torch = prints.versions.get("torch")
    return {"torch": ".".join(torch.split(".")[:2])} if torch else {}


def _case(study: Study, cc: str, case: Case, group: pd.DataFrame, codes: Codes) -> CaseSummary:
    status, error = worst_status(group)
    timed = group[group["status"] == Status.OK]
    plans = {leg: group[f"{leg}_plan"].iloc[0] for leg in LEGS}
    return CaseSummary(
        digest=(digest := str(group["case"].iloc[0])),
        label=case.label,
        fields=case.fields,
        class_key=key.class_key(study.row, cc, study.class_key, case.fields),
        status=status,
        error=error,
        plans=plans,
        regimes={
            str(regime): _regime(rows, codes[digest, str(regime)], study.protocol.confidence)
            for regime, rows in timed.groupby("regime", sort=True)
        },
    )


def _regime(rows: pd.DataFrame, code: str, confidence: float) -> RegimeSummary:
    ratio = frame.pair_interval(rows, "frost", "backend", confidence)
    return RegimeSummary(
        repeats=len(rows),
        code=code,
        ratio_ppm=stats.ppm(ratio.center),
        low_ppm=stats.ppm(ratio.low),
        high_ppm=stats.ppm(ratio.high),
        leg_ns={leg: round(frame.leg_ns(rows, leg)) for leg in LEGS},
    )


def worst_status(group: pd.DataFrame) -> tuple[Status, str]:
    """Return how a case ended over all of its lines: ok only when every line is and a leg kept its plan throughout."""
    bad = group[group["status"] != Status.OK].sort_values(["repeat", "regime"])
    if not bad.empty:
        return Status(bad["status"].iloc[0]), str(bad["error"].iloc[0])
    for _, rows in group.groupby("regime", sort=True):
        for leg in LEGS:
            if len(plans := sorted(rows[f"{leg}_plan"].unique())) > 1:
                return Status.DECLINED, f"leg {leg} ran plans {' and '.join(plans)} in different repeats"
    return Status.OK, ""
