"""What is watched, as text and as a table."""

import pandas as pd

from l2d.monitor.measure import Measured, Share
from l2d.monitor.read import Log
from l2d.report.render import aligned


def to_text(log: Log, measured: Measured) -> str:
    """Four tables for the terminal."""
    asked = int(log.cases["asked"].sum())
    known = int(log.cases["label"].notna().sum())
    head = f"{len(log.cases):,} cases, {asked:,} of them deferred; the truth is known of {known:,}."
    if log.unreadable:
        head += f" {log.unreadable:,} inputs could not be read."
    sections = [
        head,
        "Share of the cases (%)\n" + _by_part(measured.load, log.parts),
        "Questions without an answer (%)\n" + _by_part(measured.missing, log.parts)
        if len(log.questions)
        else "Nobody was asked.",
        _beliefs(measured),
        _drift(measured),
    ]
    return "\n\n".join(sections)


def to_frame(measured: Measured) -> pd.DataFrame:
    """A row per number: measure, who, part (empty: all), value (percent; of drift a p-value), low, high, cases."""
    rows: list[dict[str, object]] = []
    for name, shares in (("load", measured.load), ("missing", measured.missing)):
        for share in shares:
            part = None if share.part is None else share.part + 1
            rows.append({"measure": name, "who": share.who, "part": part, "value": share.share, "cases": share.cases})
    for row in [*measured.beliefs, *([measured.system] if measured.system else [])]:
        same = {"who": row.who, "cases": row.cases}
        rows.append({"measure": "believed", "value": row.believed, **same})
        rows.append({"measure": "realised", "value": row.realised, "low": row.low, "high": row.high, **same})
    for test in measured.drift:
        rows.append({"measure": "drift", "who": test.what, "value": test.p, "cases": test.cases})
        rows.append({"measure": "drift, adjusted", "who": test.what, "value": test.adjusted, "cases": test.cases})
    frame = pd.DataFrame(rows, columns=["measure", "who", "part", "value", "low", "high", "cases"])
    return frame.astype({"part": "Int64"})


def _by_part(shares: list[Share], parts: int) -> str:
    """A row for each, a column for every part and one for all; beside it the number of cases."""
    table: dict[str, dict[int | None, Share]] = {}
    for share in shares:
        table.setdefault(share.who, {})[share.part] = share
    rows = [["", *(f"part {part + 1}" for part in range(parts)), "all", "of"]]
    for who, at in table.items():
        texts = [f"{at[part].share:.1f}" if part in at else "" for part in [*range(parts), None]]
        rows.append([who, *texts, f"{at[None].cases:,}"])
    return aligned(rows)


def _beliefs(measured: Measured) -> str:
    if not measured.system and not measured.beliefs:
        return "Believed against realised accuracy: the truth is known of no case."
    rows = [["", "cases", "believed", "right", "95% interval", ""]]
    for row in [*measured.beliefs, *([measured.system] if measured.system else [])]:
        interval = f"{row.low:.1f} to {row.high:.1f}"
        rows.append(
            [
                row.who,
                f"{row.cases:,}",
                f"{row.believed:.1f}",
                f"{row.realised:.1f}",
                interval,
                "outside" if row.outside else "",
            ]
        )
    return "Believed against realised accuracy (%), where the truth is known\n" + aligned(rows)


def _drift(measured: Measured) -> str:
    rows = [["", "test", "cases", "p", "adjusted"]]
    for test in measured.drift:
        numbers = ["too few" if p is None else f"{p:.2g}" for p in (test.p, test.adjusted)]
        rows.append([test.what, test.test, f"{test.cases:,}", *numbers])
    return "Drift: the first part against the last (adjusted for the number of tests)\n" + aligned(rows)
