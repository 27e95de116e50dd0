# Spack 1.0 or newer, from a checkout, with the site's own packages as externals:
#
#   spack repo create ~/hpcgnn-repo hpcgnn
#   cd ~/hpcgnn-repo/packages && mkdir -p py_hpcgnn py_pymetis    # where `spack repo create` says
#   cp CHECKOUT/packaging/spack/package.py py_hpcgnn/ && spack repo add ~/hpcgnn-repo
#   cp CHECKOUT/packaging/spack/py_pymetis.py py_pymetis/package.py
#   spack develop --path $PWD py-hpcgnn@0.1.0 && spack install --add py-hpcgnn@0.1.0
#
# There is no published archive yet, so that `spack develop` names the sources.
"""Trains graph neural networks on graphs that are too large for one machine, with MPI."""

from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyHpcgnn(PythonPackage):
    """hpcgnn: graph neural networks on graphs too large for one machine, trained with MPI."""

    license("MIT")

    version("0.1.0")

    variant("cuda", default=False, description="use GPUs")

    with default_args(type="build"):
        depends_on("cxx")
        depends_on("cmake@3.20:")
        depends_on("py-setuptools@77:")
        depends_on("py-nanobind@2.9:")

    with default_args(type=("build", "run")):
        depends_on("python@3.11:3.13")
        depends_on("py-numpy@2:")
        depends_on("py-scipy@1.13:")
        depends_on("py-torch@2.4: ~cuda", when="~cuda")
        depends_on("py-torch@2.4: +cuda", when="+cuda")
        depends_on("py-mpi4py@4:")
        depends_on("py-h5py@3.11:")
        depends_on("py-pyarrow@18:")
        depends_on("py-pymetis@2023.1:")
        depends_on("py-rich@13:")
        depends_on("py-jinja2@3:")
        depends_on("py-safetensors@0.4.3:")
        depends_on("py-matplotlib@3.8:")
        depends_on("py-threadpoolctl@3.5:")
        depends_on("py-typing-extensions@4.4:")
        depends_on("py-cupy", when="+cuda")

    conflicts("%gcc@:11", msg="C++20 with OpenMP: GCC 12 or newer")

    import_modules = ["hpcgnn", "hpcgnn.kernels", "hpcgnn.nn"]

    def test_selftest(self):
        """test an installation on two ranks"""
        mpiexec = which("mpiexec", required=True)
        mpiexec("-n", "2", self.prefix.bin.hpcgnn, "selftest")
