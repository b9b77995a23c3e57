"""What is built: all packages that are found here, conf/ as l2d.conf, and l2d/kernels/kernels.c where there is a C compiler. The
rest of the metadata is in pyproject.toml."""

import zlib
from pathlib import Path

from setuptools import Extension, find_namespace_packages, setup

found = find_namespace_packages(include=["l2d*", "hydra_plugins.*"], exclude=["*.__pycache__"])
source = "l2d/kernels/kernels.c"
kernels = Extension(
    "l2d.kernels.compiled",
    [source],
    define_macros=[("SOURCE_CHECKSUM", f"{zlib.crc32(Path(source).read_bytes())}u")],
    extra_compile_args=[
        "-O3",
        "-fopenmp-simd",
        "-fno-trapping-math",
        "-fno-math-errno",
    ],  # no threads, and no other numbers
    optional=True,  # without them torch does the same
)
setup(packages=[*found, "l2d.conf"], package_dir={"l2d.conf": "conf"}, ext_modules=[kernels])
