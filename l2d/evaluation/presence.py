"""Who is there to be asked: `rule.available` and `rule.absence`."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from omegaconf import DictConfig
from torch import Tensor

from l2d.config import plain
from l2d.data.manifest import cell_text
from l2d.data.seeds import mix
from l2d.data.tables import read_rows
from l2d.errors import UserError


class Rota(NamedTuple):
    """A table with a row per case: by its id, or in the order of the cases."""

    where: str  # what it was read from
    there: Tensor  # [M, J] bool
    row_of: dict[str, int] | None = None  # id -> row; None: the rows are in order

    def of_ids(self, ids: Sequence[str]) -> Tensor:
        """[N, J] of the cases with these ids."""
        assert self.row_of is not None
        absent = next((name for name in ids if name not in self.row_of), None)
        if absent is not None:
            raise UserError(f"{self.where} has a column id, and {absent} is not in it; give a row for each case.")
        return self.there[[self.row_of[name] for name in ids]]


def present(cfg: DictConfig, names: list[str], count: int, ids: Sequence[str] | None, table: bool = True) -> Tensor:
    """[N, J] who is there: all but those whom `rule.available` leaves out (names, or a file with a column per expert), and but
    a share `rule.absence` of all (case, expert) at random. Held-out cases stand in no table."""
    there = chosen(cfg, names).expand(count, -1)
    if table and (rota := read_rota(cfg, names)) is not None:
        there = there & _in_order(rota, ids, count)
    absence = plain(cfg.rule.get("absence"))
    if absence is not None:
        if isinstance(absence, bool) or not isinstance(absence, int | float) or not 0 <= absence <= 1:
            raise UserError(f"rule.absence={absence} must be a share between 0 and 1.")
        generator = torch.Generator().manual_seed(mix(cfg.seed, 7, count))
        there = there & (torch.rand(count, len(names), generator=generator) >= absence)
    return there


def chosen(cfg: DictConfig, names: list[str]) -> Tensor:
    """[J] who is among the experts that `rule.available` names; all where it names nobody."""
    available = plain(cfg.rule.get("available"))
    if available is None or isinstance(available, str):
        return torch.ones(len(names), dtype=torch.bool)
    if not isinstance(available, list):
        raise UserError(f"rule.available={available} must be a list of experts, or the path of a table.")
    if not available or any(name not in names for name in available):
        raise UserError(f"rule.available={available}: the experts are {', '.join(names)}.")
    return torch.tensor([name in available for name in names])


def read_rota(cfg: DictConfig, names: list[str]) -> Rota | None:
    """The table that `rule.available` names, with a column per expert (1: there, 0: not); None where it names none."""
    path = plain(cfg.rule.get("available"))
    if not isinstance(path, str):
        return None
    if not Path(path).is_file():
        raise UserError(
            f"rule.available={path} is no file; give a table with a column per expert, or a list of their names."
        )
    where, rows = f"rule.available={path}", read_rows(Path(path), names)
    for number, row in enumerate(rows, start=1):
        for name in names:
            if cell_text(row[name]) not in ("0", "1"):
                raise UserError(f"{where}, row {number}, {name}={row[name]} must be 1 (is there) or 0.")
    cells = [[cell_text(row[name]) == "1" for name in names] for row in rows]
    there = torch.tensor(cells, dtype=torch.bool).reshape(len(rows), len(names))
    by_id = rows and "id" in rows[0]
    return Rota(where, there, {str(row.get("id")): i for i, row in enumerate(rows)} if by_id else None)


def _in_order(rota: Rota, ids: Sequence[str] | None, count: int) -> Tensor:
    """[N, J] of the `count` cases of a test set."""
    if rota.row_of is not None:
        if ids is None:
            raise UserError(f"{rota.where} has a column id, and the samples of this dataset have no ids; leave it out.")
        return rota.of_ids(ids)
    if len(rota.there) != count:
        raise UserError(
            f"{rota.where} has {len(rota.there)} rows for {count} test samples; give one each, or a column id."
        )
    return rota.there
