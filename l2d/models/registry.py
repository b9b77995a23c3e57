"""Backbones from timm's registry."""

import difflib
from typing import Any

from torch import nn

from l2d.errors import UserError


def timm_model(name: str, num_outputs: int, image_shape: tuple[int, ...], pretrained: bool, **kwargs: Any) -> nn.Module:
    """Any timm model by name, with K+J outputs; further keys of the YAML go to timm as they are."""
    import timm  # takes seconds to import, and not every backbone needs it

    import l2d.models.wide_resnet  # noqa: F401  registers wrn28 with timm

    if len(image_shape) != 3:
        raise UserError(f"backbone={name} needs images, and these inputs are vectors; choose backbone=mlp or linear.")
    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=3)
        raise UserError(
            f"timm has no model '{name}'; "
            + (f"similar names: {', '.join(close)}." if close else "see timm.list_models().")
        )
    try:
        return timm.create_model(
            name, pretrained=pretrained, num_classes=num_outputs, in_chans=image_shape[0], **kwargs
        )
    except TypeError as error:
        raise UserError(f"backbone {name} does not take these settings: {error}.") from error
    except (OSError, RuntimeError) as error:
        if not pretrained:
            raise
        reason = str(error).splitlines()[0]
        raise UserError(
            f"The pretrained weights of {name} cannot be loaded ({reason}); backbone.pretrained=false starts from random ones."
        ) from error
