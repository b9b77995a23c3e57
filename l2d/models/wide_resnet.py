"""WideResNet for 32 x 32 images (Zagoruyko and Komodakis 2016): pre-activation blocks in three stages."""

from typing import Any

import torch.nn.functional as F
from timm.models import register_model
from torch import Tensor, nn

from l2d.errors import UserError


class Block(nn.Module):
    """BN-ReLU-conv twice, plus the input; where the shape changes, the input goes through the first BN-ReLU and a 1x1."""

    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False) if before != after or stride != 1 else None

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        out: Tensor = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return out + (x if self.shortcut is None else self.shortcut(active))


class WideResNet(nn.Module):
    """WRN-depth-width: depth = 6n + 4, n blocks in each stage of 16, 32 and 64 times `width` channels."""

    def __init__(self, num_classes: int, depth: int, width: int, in_chans: int = 3):
        super().__init__()
        blocks, rest = divmod(depth - 4, 6)
        if rest or blocks < 1 or width < 1:
            raise UserError(
                f"WideResNet depth {depth}, width {width}: the depth must be 6n + 4 (10, 16, 22, 28, 40, ...) and the width "
                "at least 1 (backbone.depth, backbone.width)."
            )
        self.stem = nn.Conv2d(in_chans, 16, 3, 1, 1, bias=False)
        stages, before = [], 16
        for stride, after in ((1, 16 * width), (2, 32 * width), (2, 64 * width)):
            for i in range(blocks):
                stages.append(Block(before, after, stride if i == 0 else 1))
                before = after
        self.blocks = nn.Sequential(*stages)
        self.bn = nn.BatchNorm2d(before)
        self.head = nn.Linear(before, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.blocks(self.stem(x))))
        scores: Tensor = self.head(x.mean(dim=(2, 3)))
        return scores


@register_model
def wrn28(pretrained: bool = False, depth: int = 28, width: int = 4, **kwargs: Any) -> WideResNet:
    """The entry of timm's registry: `timm.create_model("wrn28", num_classes=104, width=10)`."""
    if pretrained:
        raise UserError("There are no pretrained weights for wrn28; leave backbone.pretrained=false.")
    return WideResNet(kwargs["num_classes"], depth, width, kwargs.get("in_chans", 3))
