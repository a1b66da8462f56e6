"""Train records → study.json: ratios are rounded to parts per million here, once; from here on integers decide."""

from collections.abc import Mapping, Sequence

from studytool import boards, jsonl, model, rows, stats
from studytool.attempts import Attempt
from studytool.metrics import PPM
from studytool.model import LEGS, Case, Fingerprint, Status, Study
from studytool.rows import Row
from studytool.runtime import key
from studytool.studyjson import CaseSummary, RegimeSummary, Summary

Codes = Mapping[tuple[str, str], str]


def summarise(study: Study, manifest_sha256: str, dtype: str, attempt: Attempt, cases: Mapping[str, Case]) -> Summary:
    """Return the summary of a complete train attempt."""
    first = attempt.files[0].session.fingerprint
    found = rows.rows(attempt.files)
    cells = rows.timed_cells(found)
    pairs = rows.aliased(cells)
    band = rows.band(pairs)
    groups = rows.by_case(found)
    apart = boards.compare(attempt.anchored, band, study.protocol.confidence).apart
    codes = rows.codes(cells, pairs, study.decide.noise_limit_ppm / PPM, apart=bool(apart))
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
        records=jsonl.contents(record for file in attempt.files for record in file.records),
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


def _case(study: Study, cc: str, case: Case, own: Sequence[Row], codes: Codes) -> CaseSummary:
    status, error = rows.worst_status(own)
    timed = rows.by_regime(row for row in own if row.status is Status.OK)
    digest = own[0].case
    return CaseSummary(
        digest=digest,
        label=case.label,
        fields=case.fields,
        class_key=key.class_key(study.row, cc, study.class_key, case.fields),
        status=status,
        error=error,
        plans=dict(zip(LEGS, own[0].plans, strict=True)),
        regimes={
            regime: _regime(repeats, codes[digest, regime], study.protocol.confidence)
            for regime, repeats in timed.items()
        },
    )


def _regime(repeats: Sequence[Row], code: str, confidence: float) -> RegimeSummary:
    ratio = rows.pair_interval(repeats, "frost", "backend", confidence)
    return RegimeSummary(
        repeats=len(repeats),
        code=code,
        ratio_ppm=stats.ppm(ratio.center),
        low_ppm=stats.ppm(ratio.low),
        high_ppm=stats.ppm(ratio.high),
        leg_ns={leg: round(rows.leg_ns(repeats, leg)) for leg in LEGS},
    )
