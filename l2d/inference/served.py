"""A trained system as one graph of tensors: from inputs as they are stored to scores, beliefs and the decision."""

import torch
from torch import Tensor, nn

from l2d.config import plain
from l2d.data.augment import centre_crop
from l2d.errors import UserError
from l2d.inference.decide import Decider
from l2d.inference.system import TrainedSystem


class ServedSystem(nn.Module):
    """inputs [N, ...] -> scores [N, *], beliefs [N, K+J] and decision [N].

    The decision is the index of an action: k < K answers class k, K + j asks expert j. Bytes are normalised here, vectors
    standardised by the system itself. Beliefs are computed, and decided on, in float64, as `l2d predict` does.
    """

    there: Tensor  # [J] who may be asked
    scale: Tensor | None  # [1, C, 1, 1]: a pixel x becomes x scale + shift
    shift: Tensor | None

    def __init__(self, trained: TrainedSystem, decider: Decider):
        super().__init__()
        # torch.export saves no other layout (channels last)
        self.system, self.decider = trained.system.to(memory_format=torch.contiguous_format), decider
        feed = trained.feed
        if feed is None or feed.scale is None:
            self.scale = self.shift = None
        else:
            self.register_buffer("scale", feed.scale[..., :1].clone())  # rows of equal numbers
            self.register_buffer("shift", feed.shift[..., :1].clone())
        self.register_buffer("there", decider.chosen)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values = inputs.float()
        if self.scale is not None and self.shift is not None:
            values = values * self.scale + self.shift
        scores = self.system(values).float()
        beliefs = self.system.beliefs(scores)
        decision = self.decider.decide(beliefs, scores, self.there.expand(inputs.shape[0], -1))
        return scores, beliefs.float(), self.decider.action(decision)


def served_inputs(trained: TrainedSystem, values: Tensor) -> Tensor:
    """Inputs [b, ...] as they come from files or arrays, as the graph takes them: of images the part that the model sees."""
    shape = trained.preprocessing.shape
    return centre_crop(values, (shape[1], shape[2])) if len(shape) == 3 else values


def refuse_rule(trained: TrainedSystem, decider: Decider) -> None:
    """UserError for a rule whose decision about one input is not the index of one action.

    It decides about an example: what it fits on held-out data is fitted then, and the graph holds the result.
    """
    rule = plain(trained.cfg.rule)
    name = f"rule={rule.get('name')}"
    if decider.rota is not None:
        raise UserError(
            f"rule.available={rule.get('available')} has a row per input, and an exported system knows nothing about its inputs; "
            "name those who are always there, as in rule.available=[...]."
        )
    if not decider.casewise:
        raise UserError(
            f"{name} decides about several inputs together, and an exported system decides about each alone; choose rule=best, budget "
            "or caps, or decide by the exported beliefs."
        )
    count = len(trained.class_names) + len(trained.expert_names)
    example = torch.full((2, count), 0.5, dtype=torch.float64)  # [2, K+J]
    if decider.decide(example, example, decider.chosen.expand(2, -1)).answer is not None:
        raise UserError(
            f"{name} may ask several experts about one input, and an exported decision is one action; choose rule=best, budget or "
            "caps, or decide by the exported beliefs."
        )
