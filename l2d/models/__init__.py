"""Backbones with K+J outputs. Whatever timm can build is a backbone; WideResNet is registered there too."""

from l2d.models.mlp import MLP
from l2d.models.registry import timm_model

__all__ = ["MLP", "timm_model"]
