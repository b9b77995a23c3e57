"""One answer out of several."""

import torch
from torch import Tensor

from l2d.decisions.decide import highest, pick


def vote(answers: Tensor, asked: Tensor, weights: Tensor, preference: Tensor | None = None) -> Tensor:
    """What the experts asked [N, J] say with the most weight [N, J], [N]; -1 where nobody is asked.

    Among answers of equal weight the one of the expert with the highest preference [N, J] is taken, without one the first.

    >>> answers, weights = torch.tensor([[2, 0, 0], [2, 0, 1]]), torch.ones(2, 3)
    >>> vote(answers, answers >= 0, weights, torch.tensor([[0.9, 0.5, 0.5], [0.5, 0.9, 0.5]])).tolist()
    [0, 0]
    """
    said = torch.where(asked, answers, -1).long().add_(1)  # [N, J]; 0: not asked
    votes = weights.new_zeros(len(said), int(said.max()) + 1 if said.numel() else 1)  # [N, 1 + K]
    votes.scatter_add_(1, said, weights.expand(said.shape))
    support = votes.gather(1, said).masked_fill_(~asked, -torch.inf)  # [N, J]
    return pick(said, highest(support, preference)) - 1
