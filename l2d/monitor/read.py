"""The decisions of a deployed system and the answers to its questions, from two tables."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from l2d.data.manifest import cell_text
from l2d.data.tables import read_frame
from l2d.errors import UserError, notify
from l2d.inference.table import COLUMNS

NEEDED = [name for name in COLUMNS if name != "error"]  # of the decisions
KNOWN = ["id", "expert", "answer", "label"]  # columns of the answers
NUMBERS = ["probability", "expert_accuracy", "gain"]
TRUTH = {"true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True)
class Log:
    """What happened, in the order of the decisions.

    cases: a row per input that could be read, with the columns of `l2d predict`, its `part` (0 .. parts - 1) and its true `label`.
    questions: a row per expert who was asked about a case: id, part, expert, answer, label, and how likely it was `believed` to be right.
    None or NaN: not known, not answered.
    """

    cases: pd.DataFrame
    questions: pd.DataFrame
    parts: int
    unreadable: int  # inputs that `l2d predict` could not read

    @property
    def experts(self) -> list[str]:
        """Everybody who was asked or worth most to ask, by name."""
        return sorted({*self.questions["expert"], *self.cases["expert"].dropna()})


def read_log(decisions: Path, answers: Path, parts: int) -> Log:
    """Read both tables; UserError where they are not what `l2d predict` writes, or do not belong together."""
    whole = _read_decisions(decisions)
    cases = whole[whole["asked"].notna()].reset_index(drop=True)
    if len(cases) < parts:
        raise UserError(
            f"{decisions} has {len(cases)} cases, too few for {parts} parts; choose --parts, or wait for more."
        )
    cases["part"] = np.arange(len(cases)) * parts // len(cases)
    questions = _questions(cases)
    given = _read_answers(answers, set(cases["predicted"]))
    _check_ids(given, whole, decisions, answers)
    labels = _labels(given, answers)
    cases["label"] = pd.Series([labels.get(name) for name in cases["id"]], dtype=object)
    heard = _heard(given, questions, answers)
    pairs = zip(questions["id"], questions["expert"], strict=True)
    questions["answer"] = pd.Series([heard.get(pair) for pair in pairs], dtype=object)
    questions["label"] = pd.Series([labels.get(name) for name in questions["id"]], dtype=object)
    _notify_unknown(cases, questions, answers)
    return Log(cases, questions, parts, len(whole) - len(cases))


def _read_decisions(path: Path) -> pd.DataFrame:
    """What `l2d predict` wrote; `asked` is None for an input that could not be read."""
    frame = _read(path)
    absent = [name for name in NEEDED if name not in frame]
    if absent:
        raise UserError(
            f"{path} has no column {', '.join(absent)}; give what `l2d predict` wrote. It has {_some(frame.columns)}."
        )
    frame = frame[[name for name in COLUMNS if name in frame]].copy()
    for name in [name for name in frame if name not in (*NUMBERS, "asked")]:
        frame[name] = _texts(frame[name])
    asked = [_truth(cell, path, row) for row, cell in enumerate(frame["asked"], start=1)]
    frame["asked"] = pd.Series(asked, frame.index, dtype=object)
    for name in NUMBERS:
        numbers = pd.to_numeric(frame[name], errors="coerce")
        wrong = numbers.isna() & frame[name].notna()
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise UserError(f"{path}, row {row + 1}, {name}={frame[name].iloc[row]} must be a number.")
        frame[name] = numbers
    twice = frame["id"][frame["id"].duplicated() | frame["id"].isna()]
    if len(twice):
        raise UserError(f"{path} has the id {twice.iloc[0]} twice or none; give every case an id of its own.")
    return frame


def _questions(cases: pd.DataFrame) -> pd.DataFrame:
    """A row per expert who was asked about a case; what was believed is known of the one who was worth most to ask."""
    names, rows = set(cases["expert"].dropna()), []
    for case in cases[cases["asked"].astype(bool)].itertuples(index=False):
        asked = [case.decision] if case.decision in names else str(case.decision).split("; ")
        for name in asked:
            believed = case.expert_accuracy if name == case.expert else np.nan
            rows.append((case.id, case.part, name, believed, len(asked)))
    return pd.DataFrame(rows, columns=["id", "part", "expert", "believed", "together"])


def _read_answers(path: Path, classes: set[str]) -> pd.DataFrame:
    """The columns of KNOWN; None where a cell is empty or a column is not there."""
    frame = _read(path)
    unknown = [str(name) for name in frame if name not in KNOWN]
    if unknown or "id" not in frame or not {"answer", "label"} & set(frame):
        wrong = f"a column {unknown[0]}" if unknown else f"the columns {_some(frame.columns)}"
        raise UserError(
            f"{path} has {wrong}; its columns are id, answer, label (the truth, where it is known) and expert, of which id and one of answer and "
            "label are needed."
        )
    frame = frame.reindex(columns=KNOWN)
    for name in KNOWN:
        frame[name] = _texts(frame[name])
    for name in ("answer", "label"):
        frame[name] = _texts(frame[name].map(lambda cell: cell_text(cell, classes) or None))
    return frame


def _check_ids(given: pd.DataFrame, whole: pd.DataFrame, decisions: Path, answers: Path) -> None:
    strange = given["id"][~given["id"].isin(whole["id"])]
    if len(strange):
        raise UserError(
            f"{answers} has {len(strange):,} of {len(given):,} ids that are not in {decisions}, the first {strange.iloc[0]}; ids there are like "
            f"{whole['id'].iloc[0]}."
        )


def _labels(given: pd.DataFrame, path: Path) -> dict[str, str]:
    """id -> its true label, where that is known."""
    known = given.dropna(subset="label").drop_duplicates(["id", "label"])
    twice = known["id"][known["id"].duplicated()]
    if len(twice):
        raise UserError(f"{path} has two labels of {twice.iloc[0]}; keep one.")
    return dict(zip(known["id"], known["label"], strict=True))


def _heard(given: pd.DataFrame, questions: pd.DataFrame, path: Path) -> dict[tuple[str, str], str]:
    """(id, expert) -> answer. Without a column expert an answer is that of the only one who was asked."""
    asked: dict[str, list[str]] = questions.groupby("id", sort=False)["expert"].agg(list).to_dict()
    heard: dict[tuple[str, str], str] = {}
    for row in given.dropna(subset="answer").itertuples(index=False):
        experts = asked.get(row.id, [])
        expert = row.expert or (experts[0] if len(experts) == 1 else None)
        if not experts:
            raise UserError(
                f"{path} has an answer to {row.id}, about which nobody was asked; what is true belongs to the column label."
            )
        if expert not in experts:
            who = f"{expert}, who was not asked" if expert else "nobody in particular"
            raise UserError(
                f"{path} has an answer to {row.id} of {who}; {', '.join(experts)} were asked (column expert)."
            )
        if (row.id, expert) in heard:
            raise UserError(f"{path} has two answers of {expert} to {row.id}; keep one.")
        heard[row.id, expert] = row.answer
    return heard


def _notify_unknown(cases: pd.DataFrame, questions: pd.DataFrame, path: Path) -> None:
    """Names are compared as they are: an answer that is neither a label nor ever predicted may be another spelling."""
    known = {*cases["predicted"], *cases["label"].dropna()}
    strange = [answer for answer in questions["answer"].dropna() if answer not in known]
    if strange:
        notify(
            f"{path} has {len(strange):,} answers that are neither a label nor a predicted class, such as {strange[0]}; they count as wrong where "
            "the label is known."
        )


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise UserError(f"{path} is no file; l2d monitor takes what `l2d predict` wrote, and a table of answers.")
    frame: pd.DataFrame = read_frame(path, as_text=True)
    return frame


def _texts(cells: pd.Series) -> pd.Series:
    """The cells as text, None where they are empty; of type object, in which None stays None."""
    return pd.Series([None if pd.isna(cell) else str(cell) for cell in cells], cells.index, dtype=object)


def _truth(cell: Any, path: Path, row: int) -> bool | None:
    if cell is None or pd.isna(cell):
        return None
    known = TRUTH.get(str(cell).strip().lower())
    if known is None:
        raise UserError(f"{path}, row {row}, asked={cell} must be True or False.")
    return known


def _some(names: Any) -> str:
    return ", ".join(map(str, list(names)[:8])) + (", ..." if len(names) > 8 else "")
