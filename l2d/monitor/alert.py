"""Thresholds on what is watched: what is outside of them, in sentences."""

from l2d.errors import UserError
from l2d.monitor.measure import SYSTEM, Measured

DEFAULTS: dict[str, float | None] = {"gap": 5, "p": 0.01, "missing": 10, "load": None}
MEANING = (
    "gap: points between believed and realised accuracy, where the former is also outside the interval (5); p: of a drift, adjusted (0.01); "
    "missing: percent of an expert's questions without an answer (10); load: percent of the cases of a part that an expert is asked about (no limit)"
)


def thresholds(words: list[str]) -> dict[str, float | None]:
    """The defaults with what NAME=NUMBER words change."""
    limits = dict(DEFAULTS)
    for word in words:
        name, _, number = word.partition("=")
        try:
            limits[name] = float(number)
        except ValueError:
            name = ""
        if name not in DEFAULTS or not (limits[name] or 0) >= 0:
            raise UserError(f"--alert {word} must be NAME=NUMBER, with one of {', '.join(DEFAULTS)}.")
    return limits


def alerts(measured: Measured, limits: dict[str, float | None]) -> list[str]:
    """A sentence for everything that is outside its limit."""
    gap, p, missing, load = (limits[name] for name in ("gap", "p", "missing", "load"))
    said = []
    for row in measured.beliefs:
        if gap is not None and row.outside and abs(row.believed - row.realised) > gap:
            said.append(
                f"{row.who}: believed to be right in {row.believed:.1f} % and right in {row.realised:.1f} % of {row.cases:,} cases "
                f"({row.low:.1f} to {row.high:.1f})."
            )
    for test in measured.drift:
        if p is not None and test.adjusted is not None and test.adjusted < p:
            said.append(
                f"{test.what}: the first and the last part differ, adjusted p = {test.adjusted:.2g} ({test.test})."
            )
    for share in measured.missing:
        if missing is not None and share.part is None and share.who != "all" and share.share > missing:
            said.append(f"{share.who}: {share.share:.1f} % of {share.cases:,} questions have no answer.")
    for share in measured.load:
        if load is not None and share.part is not None and share.who != SYSTEM and share.share > load:
            said.append(
                f"{share.who}: asked about {share.share:.1f} % of the {share.cases:,} cases of part {share.part + 1}."
            )
    return said
