# SPDX-License-Identifier: Apache-2.0
"""Graft for Conan 2:  conan create packaging/conan  (-o "&:cpu=False" for the language alone, which needs nothing).

The package has the CMake package that `cmake --install` writes, so that its targets are the same everywhere:
find_package(graft COMPONENTS cpu io), graft::cpu_compiled and the others."""
import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain
from conan.tools.files import copy, load


class Graft(ConanFile):
    name = "graft"
    license = "Apache-2.0"
    description = "Adapters as formulas, fused while compiling"
    topics = ("lora", "peft", "fine-tuning", "kernel-fusion", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"cpu": [True, False]}
    default_options = {"cpu": True}
    no_copy_source = True

    @property
    def _tree(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        header = load(self, os.path.join(self._tree, "include", "graft", "core", "version.h"))
        self.version = ".".join(re.findall(r"#define GRAFT_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))

    def export_sources(self):
        for part in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "packaging/pkgconfig/*", "src/*"):
            copy(self, part, self._tree, self.export_sources_folder)

    def requirements(self):
        if self.options.cpu:
            self.requires("eigen/3.4.0", transitive_headers=True)

    def validate(self):
        check_min_cppstd(self, 20)

    def package_id(self):
        # Nothing compiled is packaged; what the CMake package offers follows from the option.
        del self.info.settings.os, self.info.settings.arch, self.info.settings.compiler, self.info.settings.build_type

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "EXAMPLES", "BENCHMARKS", "FETCH", "MPI", "NCCL", "CUDA"):
            toolchain.cache_variables[f"GRAFT_{part}"] = False
        toolchain.cache_variables["GRAFT_CPU"] = bool(self.options.cpu)
        toolchain.cache_variables["GRAFT_BLAS"] = "OFF"
        toolchain.generate()

    def build(self):
        CMake(self).configure()

    def package(self):
        CMake(self).install()

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        # find_package(graft) finds the package's own file.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("share", "cmake", "graft")]
