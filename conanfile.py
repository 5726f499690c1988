"""The library for Conan 2: `conan create .`."""

import re
from pathlib import Path

from conan import ConanFile
from conan.tools.cmake import CMake, cmake_layout


class Heads(ConanFile):
    name = "heads"
    license = "MIT"
    description = "Transformer inference: a model, its tokenizer, and passes over texts"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False]}
    default_options = {"shared": False}
    generators = "CMakeToolchain"
    exports_sources = ["*.c", "*.h", "CMakeLists.txt", "Makefile", "LICENSE", "packages/*.in"]
    exports_sources += [f"{room}/*.[ch]" for room in "kernels layers library load math".split()]
    exports_sources += [f"{room}/*.[ch]" for room in "sequence system text".split()]

    def set_version(self):
        header = (Path(self.recipe_folder) / "heads.h").read_text()
        self.version = re.search('HEADS_VERSION "(.*)"', header)[1]

    def configure(self):
        self.settings.rm_safe("compiler.cppstd")
        self.settings.rm_safe("compiler.libcxx")

    def layout(self):
        cmake_layout(self)

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        self.cpp_info.libs = ["heads"]
        if self.settings.os != "Windows":
            self.cpp_info.system_libs = ["m", "pthread"]
