"""Build the native extensions with CMake; everything else is in pyproject.toml."""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    """Configure and build the root CMakeLists.txt once, installing where setuptools wants it."""

    def build_extension(self, ext: Extension) -> None:
        """Build and install every native target beside the Python packages."""
        targets = [Path(self.get_ext_fullpath(ext.name)).resolve().parents[2]]
        build = Path(self.build_temp).resolve()
        if self.editable_mode:
            # setuptools copies only the module itself: the type stubs must reach the sources too.
            targets.append(ROOT)
            # Rebuilt often, the objects stay in the environment that they belong to.
            build = Path(sys.prefix, "build", "hpcgnn")
        build.mkdir(parents=True, exist_ok=True)
        configure = [
            "cmake",
            str(ROOT),
            f"-DPython_EXECUTABLE={sys.executable}",
            "-DCMAKE_BUILD_TYPE=Release",
        ]
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
        subprocess.run(configure, cwd=build, check=True)
        subprocess.run(["cmake", "--build", ".", "--parallel", jobs], cwd=build, check=True)
        install = ["cmake", "--install", ".", "--component", "python"]
        for target in targets:
            subprocess.run([*install, "--prefix", str(target)], cwd=build, check=True)


setup(
    ext_modules=[Extension("hpcgnn.kernels._kernels", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
