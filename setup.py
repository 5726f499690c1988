"""Builds libheads.so with make and puts it into the package; pyproject.toml says the rest."""

import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        try:
            subprocess.run(["make", "lib"], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(f"heads: building it from source needs make and a C compiler, gcc 11 "
                             f"or clang 12 or newer: {error}") from None  # fmt: skip
        shutil.copy("build/libheads.so", Path(self.build_lib) / "heads" / "libheads.so")


class Binary(Distribution):
    def has_ext_modules(self):  # so that it is installed where libraries of a platform go
        return True


class WheelForEveryPython(bdist_wheel):
    """The library is loaded by ctypes, so one wheel serves all versions of Python."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(
    distclass=Binary, cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelForEveryPython}
)
