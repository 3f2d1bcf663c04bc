"""Drives the TensorRT plugins through TensorRT's own Python, in a process of its own: ``python plugin_dry_run.py DIR``.

``DIR`` is where stand-ins for TensorRT's libraries are (the bindings load them, and call none of what they lack). The
expression builder, which belongs to the missing library, is played by integers. Prints what TensorRT would be told.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

if __name__ == "__main__":
    import ctypes

    for library in sorted(Path(sys.argv[1]).glob("*.so*")):
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    import tensorrt_bindings as trt

    sys.modules["tensorrt"] = trt
    import tensorrt_bindings.plugin as trtp

    sys.modules["tensorrt.plugin"] = trtp
    from tensorrt_bindings.plugin import _plugin_class, _tensor
    from tensorrt_bindings.plugin._lib import QDP_REGISTRY

    from trtplugins.tensorrt_plugin import register_plugins

    register_plugins(trt, trtp)
    register_plugins(trt, trtp)  # does nothing

    class Dimension:
        def __init__(self, value: int) -> None:
            self.value = value

    trt.IDimensionExpr = Dimension  # the real one can only be made by the library

    class Builder:
        """Expressions are evaluated at once."""

        def constant(self, value: int) -> Dimension:
            return Dimension(value)

        def operation(self, operation: trt.DimensionOperation, a: Dimension, b: Dimension) -> Dimension:
            if operation == trt.DimensionOperation.SUM:
                return Dimension(a.value + b.value)
            if operation == trt.DimensionOperation.PROD:
                return Dimension(a.value * b.value)
            raise ValueError(operation)

    def drive(name: str, attributes: dict, inputs: list[tuple]) -> dict:
        definition = QDP_REGISTRY[f"trtlookup::{name}"]
        plugin = _plugin_class._TemplateAOTPlugin(name, "trtlookup", definition.num_outputs)
        plugin.init(
            definition.register_func,
            attributes,
            definition.aot_impl_attr_names,
            definition.aot_impl_func,
            definition.autotune_attr_names,
            definition.autotune_func,
        )
        types = plugin.get_output_data_types([t for t, _ in inputs], [len(s) for _, s in inputs])
        _tensor.SymIntExpr._exprBuilder = Builder()
        descriptions = []
        for dtype, shape in inputs:
            description = trtp.TensorDesc()
            description.dtype = dtype
            description.shape_expr = trtp.ShapeExprs(len(shape))
            for i, size in enumerate(shape):
                description.shape_expr[i] = trtp.ShapeExpr(Dimension(size))
            descriptions.append(description)
        outputs = plugin.register_function(*descriptions, **attributes)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        kernel, image, launch, scalars = definition.aot_impl_func(*descriptions, *attributes.values(), outputs, 0)
        combinations = (
            []
            if definition.autotune_func is None
            else [
                [str(t) for t in c.types]
                for combination in definition.autotune_func(*descriptions, *attributes.values(), outputs)
                for c in combination._get_combinations()
            ]
        )
        numbers = SimpleNamespace(**{k: v._expr.value for k, v in launch.__dict__.items()})
        return {
            "kernel": kernel,
            "is_ptx": image.startswith(b"//") and f".entry {kernel}".encode() in image,
            "types": [str(t) for t in types],
            "shapes": [[e._expr.value for e in o.shape_expr] for o in outputs],
            "grid": [numbers.grid_x, numbers.grid_y, numbers.grid_z],
            "block": [numbers.block_x, numbers.block_y, numbers.block_z],
            "scalars": [[type(s).__name__, s._expr.value] for s in scalars],
            "combinations": combinations,
        }

    out = {
        dtype: drive("row_candidates", {"splits": 4}, [(getattr(trt, dtype), (2, 9, 1000))])
        for dtype in ("float32", "float16", "bfloat16")
    }
    i32 = trt.int32
    out["accept"] = drive("accept", {}, [(i32, (2, 9, 4, 2)), (i32, (2, 9)), (i32, (2,))])
    print(json.dumps(out))
