"""What stands in the cells of a report: ratios, counts, times, tables."""

from collections.abc import Sequence

from studytool.metrics import ratio_text
from studytool.report.sources import Score


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ratio(value: int | None) -> str:
    """Return a ratio in ppm with three decimals, n/a without one."""
    return "n/a" if value is None else ratio_text(value) if value >= 0 else f"-{ratio_text(-value)}"


def auto_default(score: Score) -> str:
    """Return the times with the entries over those by default: the geomean, and in brackets the least and the most."""
    mean, least, most = (ratio(score["metrics"][f"auto_over_default_{what}"]) for what in ("geomean", "min", "max"))
    return f"{mean} ({least}, {most})"


def number(value: int | None) -> str:
    """Return a count, n/a without one."""
    return "n/a" if value is None else str(value)


def time_text(value_ns: int) -> str:
    """Return a time in µs or ms."""
    if value_ns < 1_000_000:
        return f"{value_ns // 1000}.{value_ns % 1000 // 100} µs"
    return f"{value_ns // 1_000_000}.{value_ns % 1_000_000 // 1000:03d} ms"
