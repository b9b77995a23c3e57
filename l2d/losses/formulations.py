"""Formulations: (expert_scores [B, J], correct [B, J]) -> weights w [B, J] of the expert columns."""

import torch
import torch.nn.functional as F
from torch import Tensor


def vanilla(expert_scores: Tensor, correct: Tensor) -> Tensor:
    """w_j = [expert j is correct]: every correct expert is taught (Verma et al. 2023; Mao et al. 2024)."""
    return correct.to(expert_scores.dtype)  # [B, J]


def picce(expert_scores: Tensor, correct: Tensor) -> Tensor:
    """w_j = 1 for the correct expert with the highest score: pick the confident and correct expert."""
    confident = expert_scores.masked_fill(~correct, -torch.inf).argmax(dim=1)  # [B]
    return _one_hot(confident, expert_scores) * correct  # [B, J]: all zero where no expert is correct


def pice(expert_scores: Tensor, correct: Tensor) -> Tensor:
    """w_j = 1 for the expert with the highest score if it is correct: the discontinuous ablation."""
    return _one_hot(expert_scores.argmax(dim=1), expert_scores) * correct  # [B, J]


def _one_hot(index: Tensor, like: Tensor) -> Tensor:
    return F.one_hot(index, like.shape[1]).to(like.dtype)  # [B, J]


FORMULATIONS = {"vanilla": vanilla, "picce": picce, "pice": pice}
