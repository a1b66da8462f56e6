"""The sections of a report that say how far its numbers can be trusted: regimes, noise, control."""

from collections.abc import Sequence

from studytool.report.cells import ratio, table, time_text
from studytool.report.sources import Score


def regimes(score: Score) -> str:
    """Return what each regime says by itself; the verdicts need them all."""
    rows = []
    for regime, found in score["regimes"].items():
        own = [case for case in score["cases"] if case["regime"] == regime]
        hosts = [case["host_ns"] for case in own if case["host_ns"]]
        medians = [sorted(times[leg] for times in hosts)[len(hosts) // 2] for leg in ("backend", "frost") if hosts]
        rows.append(
            [
                regime,
                f"{ratio(found['regret_default_geomean'])} ({ratio(found['regret_default_max'])})",
                f"{ratio(found['regret_auto_geomean'])} ({ratio(found['regret_auto_max'])})",
                ratio(found["auto_over_default_geomean"]),
                " / ".join(map(time_text, medians)) or "not apart",
                str(sum(case["host_bound"] for case in own)),
            ]
        )
    head = ["regime", "default", "with the entries", "applied / default", "host time, backend / frost", "host-bound"]
    return table(head, rows)


def noise(score: Score, train_band_ppm: int) -> str:
    """Return the noise floor, the spread of repeats, and what disturbed the hold-out."""
    metrics = score["metrics"]
    repeats = "" if score["repeats"] >= 5 else " With fewer than 5 repeats the intervals are too wide to quote."
    return (
        f"- A/A band, the noise floor (95th percentile of |ratio - 1| of legs that ran one plan):"
        f" {ratio(metrics['band'])} on the hold-out, {ratio(train_band_ppm)} on the train split. These"
        f" ratios range from {ratio(metrics['control_min'])} to {ratio(metrics['control_max'])}.\n"
        f"- Repeat spread: median {ratio(metrics['spread_median'])}, p90 {ratio(metrics['spread_p90'])},"
        f" max {ratio(metrics['spread_max'])}.{repeats}\n"
        f"{_health(score)}"
        f"- Share of the gap between the better fixed choice and the oracle that the entries close:"
        f" {ratio(metrics['closed_gap'])}."
    )


def _health(score: Score) -> str:
    found = score["health"]
    if not found:
        return ""
    low, center, high = (ratio(found["carry_over_ppm"][place]) for place in (1, 0, 2))
    return (
        f"- Carry-over after frost, as a ratio: {center} ({low} to {high}); place in a block: median"
        f" {ratio(found['position_median_ppm'])}; drift of the ratio within a repeat: median"
        f" {ratio(found['drift_median_ppm'])}; lag-1 autocorrelation: median {ratio(found['lag1_median_ppm'])}.\n"
        f"- Still changing after the warm-up: at most {ratio(found['trend_max_ppm'])}; cases whose control fails:"
        f" {', '.join(failing(score)) or 'none'}.\n"
    )


def failing(score: Score) -> list[str]:
    """Return the cases whose control fails, each with its code."""
    return [f"{case['label']} {case['code']}" for case in score["cases"] if case["code"]]


def boards(score: Score) -> str:
    """Return on how many boards the hold-out was measured, and whether those agree on the anchors."""
    found = score["boards"]
    count, lanes = len(found["boards"]), found["lanes"]
    told = f"- Measured on {count} board{'s' if count > 1 else ''}"
    told += f", in {len(lanes)} lanes side by side" if lanes else ""
    told += f"; on one host at most {found['neighbours']} others measured beside one" if found["neighbours"] else ""
    if not lanes:
        return told + "."
    if not found["anchors"]:
        return f"{told}. No case was measured in more than one lane: nothing shows that they agree."
    off = ", ".join(found["apart"])
    told += (
        f". **BOARDS: {off} off the others.**" if off else ". Anchors, which each lane measured, agree within the band."
    )
    rows = [
        [lane, f"`{board}`", *(ratio(anchor["frost_over_backend_ppm"].get(lane)) for anchor in found["anchors"])]
        + [_off(own.get(lane)) for own in found["offsets_ppm"].values()]
        for lane, board in lanes.items()
    ]
    labels = [f"{anchor['label']}, {anchor['regime']}" for anchor in found["anchors"]]
    head = ["lane", "board", *labels, *(f"over the others, {regime}" for regime in found["offsets_ppm"])]
    return f"{told}\n\nfrost / backend of the anchors:\n\n{table(head, rows)}\n"


def _off(found: Sequence[int] | None) -> str:
    return "n/a" if found is None else f"{ratio(found[0])} ({ratio(found[1])} to {ratio(found[2])})"
