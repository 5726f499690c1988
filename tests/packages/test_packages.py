"""The library in a program of ten lines, by each way that CMake and Conan have to find it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FAST = ["-DCMAKE_BUILD_TYPE=Debug"]  # the way is tested here, not the speed


def said(*command: object, **variables: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "SCALAR": "1", **variables},  # the other kernels take long to compile
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """Where CMake has built the library and nothing else."""
    folder = tmp_path_factory.mktemp("alone")
    said("cmake", "-S", ROOT, "-B", folder, *FAST)
    said("cmake", "--build", folder)
    return folder


def built(folder: Path, how: str, target: str = "heads", *options: object) -> None:
    """Builds the program and runs it."""
    given = [f"-DHOW={how}", f"-DTARGET={target}", f"-DSOURCE={ROOT}", *FAST, *options]
    said("cmake", "-S", HERE, "-B", folder, *given)
    said("cmake", "--build", folder)
    assert said(folder / "program", ROOT / "models" / "stories.bin") == "heads 0.1, 5 layers\n"


@pytest.mark.parametrize(
    "how, shared, place",
    [("add_subdirectory", "OFF", "heads"), ("FetchContent", "ON", "_deps/heads-build")],
)
def test_the_folder_in_a_build(tmp_path, alone, how, shared, place):
    """From its objects, which would take as long to make again."""
    shutil.copytree(alone / "heads", tmp_path / place / "heads")
    built(tmp_path, how, "heads", f"-DBUILD_SHARED_LIBS={shared}")


def test_an_installed_library(tmp_path, alone):
    said("cmake", "--install", alone, "--prefix", tmp_path / "there")
    (tmp_path / "there").rename(tmp_path / "moved")
    for target in ("heads", "static"):
        place = f"-DCMAKE_PREFIX_PATH={tmp_path / 'moved'}"
        built(tmp_path / target, "find_package", target, place)
    done = subprocess.run(
        ["cmake", "-S", HERE, "-B", tmp_path / "newer", "-DVERSION=7", place], capture_output=True
    )
    assert done.returncode and b"version: 0.1\n" in done.stderr


def test_a_package_of_conan(tmp_path):
    home = {"CONAN_HOME": str(tmp_path / "conan")}
    said("conan", "profile", "detect", **home)
    said("conan", "create", ROOT, "-s", "build_type=Debug", **home)
    made = ["-g", "CMakeDeps", "-g", "CMakeToolchain", "-of", tmp_path / "made"]
    said("conan", "install", "--requires=heads/0.1", "-s", "build_type=Debug", *made, **home)
    tools = f"-DCMAKE_TOOLCHAIN_FILE={tmp_path / 'made' / 'conan_toolchain.cmake'}"
    built(tmp_path / "program", "find_package", "heads", tools, "-DCMAKE_BUILD_TYPE=Debug")
