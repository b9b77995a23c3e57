"""Backbones from timm's registry."""

import difflib
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from l2d.errors import UserError

ANSWER_TIMEOUT = 5  # seconds in which the server that has the weights must answer


def timm_model(
    name: str, num_outputs: int, image_shape: tuple[int, ...], pretrained: bool | str, **kwargs: Any
) -> nn.Module:
    """Any timm model by name, with K+J outputs; further keys of the YAML go to timm as they are.

    `pretrained` may name a file with the weights, of which the last layer is not taken.
    """
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
    placed = _read_weights(Path(pretrained).expanduser()) if isinstance(pretrained, str) else None
    if placed is not None:
        kwargs["pretrained_cfg_overlay"] = {**kwargs.get("pretrained_cfg_overlay", {}), "state_dict": dict(placed)}
    source = timm.models.get_pretrained_cfg(name) if pretrained is True else None
    try:
        with _no_long_waits(source):
            model = timm.create_model(
                name, pretrained=bool(pretrained), num_classes=num_outputs, in_chans=image_shape[0], **kwargs
            )
    except TypeError as error:
        raise UserError(f"backbone {name} does not take these settings: {error}.") from error
    except (OSError, RuntimeError) as error:
        if not pretrained:
            raise
        reason = str(error).splitlines()[0]
        where = (getattr(source, "hf_hub_id", None) or getattr(source, "url", None)) if source else None
        place = f"download {where} elsewhere and name its file with backbone.pretrained=FILE, or " if where else ""
        raise UserError(
            f"The pretrained weights of {name} cannot be loaded ({reason}); {place}"
            "start from random ones with backbone.pretrained=false."
        ) from error
    if placed is not None:
        _check_names(model, set(placed), f"backbone.pretrained={pretrained}", name)
    return model


def _read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors or .pth file by name. Nothing in the file is run."""
    from timm.models import load_state_dict

    if not path.is_file():
        raise UserError(f"backbone.pretrained={path} is no file; name one with weights, or say true or false.")
    try:
        return load_state_dict(str(path))
    except Exception as error:
        raise UserError(
            f"backbone.pretrained={path} is damaged, or holds more than tensors and is refused (nothing in it was run)."
        ) from error


def _check_names(model: nn.Module, given: set[str], where: str, name: str) -> None:
    """UserError if a tensor of the model, except those of its last layer, is not among those given."""
    head = model.pretrained_cfg.get("classifier") or ()  # type: ignore[operator, union-attr]
    layers = (head,) if isinstance(head, str) else tuple(head)
    beside = (*(f"{layer}." for layer in layers),)
    absent = [
        own
        for own in model.state_dict()
        if own not in given and not own.startswith(beside) and not own.endswith("num_batches_tracked")
    ]
    if absent:
        raise UserError(
            f"{where} does not hold the weights of {name}: {len(absent)} tensors are not in it, such as {absent[0]}."
        )


@contextmanager
def _no_long_waits(source: Any) -> Iterator[None]:
    """Around a download of weights: where their server does not answer, take what was downloaded before or fail at once,
    instead of trying again for a minute. `source`: timm's description of the weights, or None if nothing is downloaded."""
    from huggingface_hub import constants

    if source is None or constants.HF_HUB_OFFLINE or not (source.hf_hub_id or source.url):
        yield
        return
    server = constants.ENDPOINT if source.hf_hub_id else source.url
    if _answers(server):
        yield
        return
    if not source.hf_hub_id and not Path(torch.hub.get_dir(), "checkpoints", Path(source.url).name).exists():
        raise ConnectionError(f"{server} does not answer")
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    except OSError as error:
        raise ConnectionError(f"{server} does not answer") from error
    finally:
        constants.HF_HUB_OFFLINE = False


def _answers(url: str) -> bool:
    """Whether a server answers in time, with whatever; through a proxy if the environment names one."""
    answered = threading.Event()

    def ask() -> None:
        with suppress(OSError):
            try:
                urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=ANSWER_TIMEOUT).close()
            except urllib.error.HTTPError as refusal:
                refusal.close()
            answered.set()

    # a thread, because the timeout of a socket does not cover the look-up of a name
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ANSWER_TIMEOUT)
    return answered.is_set()
