"""The kernels compile with NVRTC, and with nvcc if it is installed."""

import ctypes
import ctypes.util
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from hpcgnn.kernels import cuda
from hpcgnn.kernels.cuda.launch import COMPILE_OPTIONS, source_text

FOLDER = Path(cuda.__file__).parent
SOURCES = sorted(path.stem for path in FOLDER.glob("*.cu"))


def nvrtc_library() -> ctypes.CDLL | None:
    """Load NVRTC from the system or from NVIDIA's wheel."""
    found = [ctypes.util.find_library("nvrtc")]
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        found += sorted(str(path) for path in Path(root).glob("**/libnvrtc.so.*"))
    for name in filter(None, found):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def compile_with_nvrtc(library: ctypes.CDLL, text: str, options: list[str]) -> tuple[int, str]:
    """Return NVRTC's status and log."""
    program = ctypes.c_void_p()
    name = b"kernels.cu"
    made = library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name, 0, None, None)
    assert made == 0
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = library.nvrtcCompileProgram(program, len(options), words)
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return status, log.value.decode()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvrtc(source, arch):
    library = nvrtc_library()
    if library is None:
        pytest.skip("NVRTC is not installed")
    options = [*COMPILE_OPTIONS, f"--gpu-architecture={arch}"]
    status, log = compile_with_nvrtc(library, source_text(source), options)
    assert status == 0, log
    assert "warning" not in log, log


@pytest.mark.parametrize(
    "source",
    [pytest.param(each, marks=() if each == "spmm" else pytest.mark.slow) for each in SOURCES],
)
def test_nvcc(source, tmp_path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    command = [nvcc, "-gencode", "arch=compute_90,code=sm_90", "-cubin", "-std=c++17"]
    command += ["-Werror", "all-warnings", "-o", str(tmp_path / "kernels.cubin")]
    done = subprocess.run(
        [*command, str(FOLDER / f"{source}.cu")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "kernels.cubin").stat().st_size > 0


def test_every_kernel_has_its_header_text():
    for source in SOURCES:
        text = source_text(source)
        assert "#include" not in text
        assert text.count("struct Groups") == 1
