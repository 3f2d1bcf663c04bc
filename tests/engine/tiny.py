"""A tiny engine directory: a real tokenizer, template and executor around random weights."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from trtserve import engine_dir
from trtserve.engine_dir import Manifest, TokenizerRecord
from trtserve.model_config import DecoderConfig
from trtserve.settings import Limits, PromptLookup, Speculative, plan_tiers

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def write_tiny_engine(directory: Path) -> Path:
    """Four slots of 256 tokens, a byte-level tokenizer without merges, lookup with short matches."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<s>": 0, "</s>": 1, **{piece: i + 2 for i, piece in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    (directory / "tokenizer").mkdir(parents=True)
    tokenizer.save(str(directory / "tokenizer" / "tokenizer.json"))
    (directory / "tokenizer" / "chat_template.jinja").write_text(TEMPLATE)
    model = DecoderConfig(
        architecture="llama",
        vocab_size=len(vocab),
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_position=256,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: torch.ones(shape) if name.endswith("norm") else torch.randn(shape, generator=generator) * 0.3
        for name, shape in model.tensor_shapes().items()
    }
    save_file(weights, directory / "weights.safetensors")
    limits = Limits(max_batch_size=4, max_seq_len=256, prefill_chunk=32)
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
                eos_token_ids=(1,),
                special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
                chat_template=True,
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
