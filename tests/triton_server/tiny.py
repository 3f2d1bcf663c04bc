"""A random two-layer model as an engine directory: two slots, a byte-level tokenizer, lookup with short matches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from trtserve import engine_dir
from trtserve.engine_dir import Manifest, TokenizerRecord
from trtserve.model_config import DecoderConfig
from trtserve.settings import Limits, PromptLookup, Speculative, plan_tiers

#: Long enough that a request to its end is still running when a test gets round to cancelling it.
CONTEXT = 16384
SLOTS = 2


def write_tiny_engine(directory: Path, **recipe: Any) -> Path:
    """``recipe``: sections of the resolved recipe that the directory then has."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<s>": 0, "</s>": 1, **{piece: i + 2 for i, piece in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    (directory / "tokenizer").mkdir(parents=True)
    tokenizer.save(str(directory / "tokenizer" / "tokenizer.json"))
    model = DecoderConfig(
        architecture="llama",
        vocab_size=len(vocab),
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_position=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: torch.ones(shape) if name.endswith("norm") else torch.randn(shape, generator=generator) * 0.3
        for name, shape in model.tensor_shapes().items()
    }
    save_file(weights, directory / "weights.safetensors")
    if recipe:
        (directory / "recipe.yaml").write_text(yaml.safe_dump({"target": "torch", **recipe}))
    limits = Limits(max_batch_size=SLOTS, max_seq_len=CONTEXT, prefill_chunk=64)
    # Eight drafts, so that a text of forty tokens takes several rounds and streams in as many pieces.
    speculative = Speculative(prompt_lookup=PromptLookup(ngram=2, min_match=2, max_drafts=8))
    engine_dir.write(
        directory,
        Manifest(
            name="tiny",
            target="torch",
            model=model,
            tokenizer=TokenizerRecord(
                vocab_size=len(vocab),
                bos_token_id=0,
                add_bos=True,
                eos_token_ids=(1,),
                special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
            ),
            limits=limits,
            speculative=speculative,
            tiers=plan_tiers(limits, speculative),
            inputs_digest="0" * 64,
            weights_digest="1" * 64,
            tokenizer_digest="2" * 64,
            built_with={"trtlookup": "0", "python": "3"},
        ),
    )
    return directory
