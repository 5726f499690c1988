"""Builds the library and the program with make and puts them into the package; pyproject.toml says
the rest. HEADS_TARGET names another system to build for, with zig (make wheels)."""

import os
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

# Zig's targets, and what pip calls these systems.
PLATFORMS = {
    "x86_64-linux-gnu.2.17": "manylinux_2_17_x86_64.manylinux2014_x86_64",
    "aarch64-linux-gnu.2.17": "manylinux_2_17_aarch64.manylinux2014_aarch64",
    "x86_64-linux-musl": "musllinux_1_2_x86_64",
    "aarch64-macos.11.0": "macosx_11_0_arm64",
    "x86_64-macos.10.13": "macosx_10_13_x86_64",
    "x86_64-windows-gnu": "win_amd64",
}
TARGET = os.environ.get("HEADS_TARGET", "")


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        folder = Path(self.build_lib, "heads").resolve()
        target = [f"TARGET={TARGET}"] if TARGET else []
        try:
            subprocess.run(
                ["make", f"-j{os.cpu_count() or 1}", *target, f"INTO={folder}", "package"],
                check=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(
                f"heads: building it from source needs make and a C compiler, gcc 11 or clang 12 "
                f"or newer, or the package ziglang and CC='python3 -m ziglang cc': {error}"
            ) from None


class Binary(Distribution):
    def has_ext_modules(self):  # so that it is installed where libraries of a platform go
        return True


class WheelForEveryPython(bdist_wheel):
    """The library is loaded by ctypes, so one wheel serves all versions of Python."""

    def get_tag(self):
        return "py3", "none", PLATFORMS[TARGET] if TARGET else super().get_tag()[2]


setup(
    distclass=Binary,
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelForEveryPython},
    options={"build": {"build_base": f"build/wheel/{TARGET or 'here'}"}},
)
