"""What is built: all packages that are found here, conf/ as l2d.conf, and the C of l2d/kernels where there is a compiler. The
rest of the metadata is in pyproject.toml."""

import zlib
from pathlib import Path

from setuptools import Extension, find_namespace_packages, setup

found = find_namespace_packages(include=["l2d*", "hydra_plugins.*"], exclude=["*.__pycache__"])
sources = sorted(str(path) for path in Path("l2d/kernels").glob("*.[ch]"))
checksum = zlib.crc32(b"".join(Path(path).read_bytes() for path in sources))
kernels = Extension(
    "l2d.kernels.compiled",
    [path for path in sources if path.endswith(".c")],
    depends=sources,  # and the header
    define_macros=[("SOURCE_CHECKSUM", f"{checksum}u")],
    extra_compile_args=[
        "-O3",
        "-fopenmp-simd",
        "-fno-trapping-math",
        "-fno-math-errno",
    ],  # no threads, and no other numbers
    optional=True,  # without them torch does the same
)
setup(packages=[*found, "l2d.conf"], package_dir={"l2d.conf": "conf"}, ext_modules=[kernels])
