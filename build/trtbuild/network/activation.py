"""How much activation memory a profile needs, predicted from shapes; the build log has the figure it is compared with.

Fitted to builds of three decoders (hidden sizes 512, 576 and 1024; groups of 1, 3 and 4) with TensorRT-RTX 1.7, cache
positions 576 to 4160, batches 1 to 8, rows 1 to 17 and prefills of 128 and 512, within 3%. A profile needs the most of
four moments:

- *attention*: keys and values copied out of the cache, once per query head where groups are not folded;
- *projection*: one of those two copies beside the matrix multiplications' workspace;
- *MLP*: its three wide activations beside the workspace;
- *head*: logits in the engine's dtype beside the workspace; or, output as float32, twice their size.

Beside each: what every row keeps alive, chiefly its mask, which covers all positions for each head of a group.
"""

from __future__ import annotations

from trtserve.executor.tensorrt_io import Profile
from trtserve.model_config import DecoderConfig

#: What the matrix multiplications take, whatever their size.
WORKSPACE_BYTES = 8_192_000


def predict_activation(config: DecoderConfig, profile: Profile, positions: int, *, fold_groups: bool) -> int:
    """Bytes that one enqueue of ``profile`` at its largest shapes needs, caches, inputs and outputs not counted."""
    item = 4 if config.dtype == "float32" else 2
    groups = config.num_heads // config.num_kv_heads
    folded = fold_groups and groups > 1
    rows = profile.batch * profile.rows
    per_row = 2 * positions * (groups if folded else 1) + 5 * max(config.hidden_size, config.q_size) * item
    heads = config.num_kv_heads if folded else config.num_heads
    copies = 2 * profile.batch * heads * positions * config.head_dim * item
    if profile.rows == 1 and (profile.batch == 1 or not folded):
        copies = 0  # one query row for each head of the cache reads it where it lies
    head = profile.batch * profile.head_rows * config.vocab_size
    logits = WORKSPACE_BYTES + head * item
    if profile.logits and profile.batch > 1:
        logits = max(2 * head * 4, WORKSPACE_BYTES + head * 4)
    mlp = 3 * (config.intermediate_size - config.hidden_size) * item if profile.rows > 1 else 0
    moments = (copies, WORKSPACE_BYTES + copies // 2, WORKSPACE_BYTES + rows * max(mlp, 0), logits)
    return max(moments) + rows * per_row


def largest_activation(
    config: DecoderConfig, profiles: tuple[Profile, ...], positions: int, *, fold_groups: bool
) -> int:
    """What the profile needs that needs most."""
    return max(predict_activation(config, p, positions, fold_groups=fold_groups) for p in profiles)


def folding_is_smaller(config: DecoderConfig, profiles: tuple[Profile, ...], positions: int) -> bool:
    """Whether the largest profile needs less when a group's query heads are rows of their key head."""
    folded, repeated = (largest_activation(config, profiles, positions, fold_groups=fold) for fold in (True, False))
    return config.num_heads > config.num_kv_heads and folded < repeated
