"""Backbones with K+J outputs. Whatever timm can build is a backbone; WideResNet is registered there too."""

from l2d.models.mlp import MLP
from l2d.models.registry import timm_model
from l2d.models.wide_resnet import WideResNet

__all__ = ["MLP", "WideResNet", "timm_model"]
