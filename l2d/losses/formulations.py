"""Formulations: (expert_scores [B, J], correct [B, J]) -> weights w [B, J] of the expert columns."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Formulation = Callable[[Tensor, Tensor], Tensor]  # (expert_scores [B, J], correct [B, J]) -> weights [B, J]


def vanilla(expert_scores: Tensor, correct: Tensor) -> Tensor:
    """w_j = [expert j is correct]: every correct expert is taught (Verma et al. 2023; Mao et al. 2024)."""
    return correct.to(expert_scores.dtype)  # [B, J]


def picce(expert_scores: Tensor, correct: Tensor) -> Tensor:
    """w_j = 1 for the correct expert with the highest score: pick the confident and correct expert."""
    confident = torch.where(correct, expert_scores, -torch.inf).argmax(dim=1, keepdim=True)  # [B, 1]
    return _where_correct(confident, expert_scores, correct)  # [B, J]: all zero where no expert is correct


def pice(expert_scores: Tensor, correct: Tensor) -> Tensor:
    """w_j = 1 for the expert with the highest score if it is correct: the discontinuous ablation."""
    return _where_correct(expert_scores.argmax(dim=1, keepdim=True), expert_scores, correct)  # [B, J]


def soft_picce(expert_scores: Tensor, correct: Tensor) -> Tensor:
    """w = softmax of the scores of the correct experts, who share one unit of weight; `SoftPicce` is the loss of it."""
    among = torch.where(correct, expert_scores, torch.finfo(expert_scores.dtype).min)  # [B, J], finite: no NaN if empty
    return among.softmax(dim=1) * correct  # [B, J]


def _where_correct(picked: Tensor, expert_scores: Tensor, correct: Tensor) -> Tensor:
    """1 at the expert picked [B, 1] if that one is correct, 0 elsewhere."""
    right = correct.gather(1, picked).to(expert_scores.dtype)  # [B, 1]
    return torch.zeros_like(expert_scores).scatter_(1, picked, right)  # [B, J]


FORMULATIONS = {"vanilla": vanilla, "picce": picce, "pice": pice}
# The experts whose believed accuracy can be relied on at the minimum of the risk: all, or the one with the highest score.
VOUCHES_FOR: dict[Formulation, Literal["all", "top"]] = {vanilla: "all", picce: "top", pice: "top"}
