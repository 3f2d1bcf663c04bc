"""Which layers slide: the fields that Qwen's configs share."""

from __future__ import annotations

from trtbuild.checkpoint.fields import MAX_LAYERS, Fields


def layer_windows(fields: Fields) -> tuple[int | None, ...]:
    """Per layer the window in tokens (the row itself included) or None; empty when no layer slides.

    ``use_sliding_window`` switches ``sliding_window`` on, for the layers ``layer_types`` names or, without that list,
    those from ``max_window_layers`` up.
    """
    layers = fields.count("num_hidden_layers", most=MAX_LAYERS)
    window = fields.get("sliding_window", int, None) if fields.given("sliding_window") else 4096
    first = fields.get("max_window_layers", int, 28)
    if window is not None and window < 1:
        raise fields.error("sliding_window", f"is {window!r}, expected at least 1")
    if not fields.get("use_sliding_window", bool, False):
        window = None
    types = fields.raw("layer_types")
    if types is None:
        slides = [window is not None and layer >= first for layer in range(layers)]
    else:
        if not isinstance(types, list) or len(types) != layers:
            raise fields.error("layer_types", f"is {types!r}, expected a list of {layers} entries")
        for kind in types:
            if kind not in ("full_attention", "sliding_attention"):
                raise fields.error("layer_types", f"has {kind!r}; supported are full_attention, sliding_attention")
        slides = [kind == "sliding_attention" for kind in types]
        if any(slides) and window is None:
            raise fields.error("layer_types", "has sliding_attention, and use_sliding_window or sliding_window is off")
    return tuple(window if slide else None for slide in slides) if any(slides) else ()
