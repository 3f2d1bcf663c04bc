"""Libraries in the place of full TensorRT's: its Python bindings load with them, and can be asked what they have."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .kernel_emulation import compiler

#: What the bindings look up when they are loaded; nothing here calls them.
NAMES = (
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createInferRuntime_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL",
    "createNvOnnxParser_INTERNAL",
    "getBuilderPluginRegistry",
    "getNvOnnxParserVersion",
    "getPluginRegistry",
    "initLibNvInferPlugins",
)


def build_libraries(folder: Path) -> None:
    """Compile them into ``folder``; load each with ``RTLD_GLOBAL`` before ``tensorrt_bindings``."""
    source = folder / "stand_in.cpp"
    source.write_text("".join(f'extern "C" void* {name}() {{ return nullptr; }}\n' for name in NAMES))
    for name in ("libnvinfer", "libnvinfer_plugin", "libnvonnxparser"):
        library = folder / f"{name}.so.11"
        command = [str(compiler()), "-shared", "-fPIC", f"-Wl,-soname,{library.name}", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
