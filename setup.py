"""Which packages are built: all that are found here, and conf/ as l2d.conf. The rest of the metadata is in pyproject.toml."""

from setuptools import find_namespace_packages, setup

found = find_namespace_packages(include=["l2d*", "hydra_plugins.*"], exclude=["*.__pycache__"])
setup(packages=[*found, "l2d.conf"], package_dir={"l2d.conf": "conf"})
