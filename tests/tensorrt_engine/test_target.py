"""``target: tensorrt``: real plans of a tiny model, and everything it refuses before it builds."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from trtbuild import capacity
from trtbuild.checkpoint import Checkpoint
from trtbuild.errors import BuildError
from trtbuild.network import build_log
from trtbuild.network.activation import folding_is_smaller, predict_activation
from trtbuild.network.decoder import NetworkShape
from trtbuild.network.graph import Graph, NetworkError
from trtbuild.network.plan import build_plan, load_runtime
from trtbuild.network.trt_types import INetworkDefinition
from trtbuild.progress import Advance, Progress
from trtbuild.recipe import Recipe, recipe_class
from trtbuild.targets import tensorrt
from trtbuild.targets.base import BuildInput, BuildOutput
from trtbuild.targets.tensorrt import PLAN_NAME, TARGET, read_weights
from trtserve.engine_dir import TokenizerRecord
from trtserve.executor import tensorrt_cuda
from trtserve.executor import tensorrt_io as io
from trtserve.model_config import DecoderConfig, Dtype

from .fake_gpu import Logger
from .models import config_of, random_weights


class MemoryCheckpoint(Checkpoint):
    """A checkpoint of tensors in memory."""

    def __init__(self, config: DecoderConfig, weights: dict[str, torch.Tensor] | None = None) -> None:
        self._config = config
        self._weights = random_weights(config) if weights is None else weights

    @property
    def files(self) -> tuple[Path, ...]:
        return ()

    def config(self, dtype: Dtype) -> DecoderConfig:
        return self._config.model_copy(update={"dtype": dtype})

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._weights.items()

    def save_tokenizer(self, directory: Path) -> TokenizerRecord:
        (directory / "tokenizer.json").write_text("{}")
        return TokenizerRecord(vocab_size=self._config.vocab_size)

    def describe(self) -> dict[str, Any]:
        return {"format": "memory"}


class Recorder(Progress):
    """Keeps what a build shows."""

    def __init__(self) -> None:
        self.bars: dict[str, list[int]] = {}
        self.notes: list[str] = []
        self.warnings: list[str] = []

    @contextmanager
    def bar(self, label: str, length: int) -> Iterator[Advance]:
        steps: list[int] = []
        self.bars[label] = steps
        yield steps.append

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def recipe_of(dtype: str = "float16", target: dict[str, Any] | None = None, **speculative: Any) -> Recipe:
    return recipe_class().model_validate_json(
        json.dumps(
            {
                "recipe": 1,
                "name": "tiny",
                "model": {"checkpoint": "memory", "dtype": dtype},
                "target": "tensorrt",
                "tensorrt": target or {},
                "limits": {"max_batch_size": 4, "max_seq_len": 100, "prefill_chunk": 32},
                "speculative": speculative,
            }
        )
    )


def build(tmp_path: Path, recipe: Recipe, checkpoint: Checkpoint | None = None) -> tuple[BuildOutput, Recorder]:
    checkpoint = checkpoint or MemoryCheckpoint(config_of("qwen3"))
    progress = Recorder()
    inputs = BuildInput(recipe, checkpoint.config(recipe.model.dtype), checkpoint)
    return TARGET.build(inputs, tmp_path, progress), progress


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_plan_is_built_without_a_gpu(trt: Any, tmp_path: Path, dtype: str) -> None:
    output, progress = build(tmp_path, recipe_of(dtype))
    info = io.PlanInfo.model_validate(output.target_info)
    assert (tmp_path / info.plan).stat().st_size > 50_000
    assert (info.runtime, info.runtime_version) == ("tensorrt_rtx", trt.__version__)
    assert [p.label for p in info.profiles] == ["lone", "copy", "full", "prefill", "lone logits", "copy logits"]
    assert len(info.activation_bytes) == len(info.predicted_activation_bytes) == 6
    differences = zip(info.activation_bytes, info.predicted_activation_bytes, strict=True)
    assert info.activation_difference == tuple(logged - predicted for logged, predicted in differences)
    assert info.weights == "plan"
    assert info.build_seconds > 0
    assert info.peak_rss_bytes > 1 << 20
    assert output.built_with == {"tensorrt_rtx": trt.__version__}
    assert sorted(p.name for p in tmp_path.iterdir()) == [PLAN_NAME, "tokenizer"]  # weights are in the plan alone
    assert sum(progress.bars["tensorrt_rtx engine"]) == 1000
    assert len(progress.bars["tensorrt_rtx engine"]) > 10
    assert sum("predicted" in note for note in progress.notes) == 6


@pytest.mark.parametrize("architecture", ["llama", "mistral", "mixed_windows", "qwen2"])
def test_plans_of_every_family_are_built(trt: Any, architecture: str) -> None:
    """Qwen3's is above. Windows, biases and groups are other layers each, which the runtime has to compile."""
    config = config_of(architecture, dtype="float16")
    profile = io.Profile(tiers=("full",), batch=2, rows=3, head_rows=3, logits=True)
    plan = build_plan(trt, config, random_weights(config), NetworkShape(64), [profile])
    assert plan.data.nbytes > 50_000
    assert len(plan.activation_bytes) == 1


def test_the_weights_digest_is_of_the_weights_and_not_of_the_plan() -> None:
    """Two builds of one model give plans that differ in bytes, yet are one model to every cache."""
    config = config_of("llama", dtype="float16")
    digests = []
    for seed in (0, 0, 1):
        checkpoint = MemoryCheckpoint(config, random_weights(config, seed))
        weights, digest = read_weights(BuildInput(recipe_of(), config, checkpoint), Progress())
        assert all(value.dtype == torch.float16 for value in weights.values())
        digests.append(digest)
    assert digests[0] == digests[1] != digests[2]


def test_a_plugin_that_rtx_cannot_have_becomes_layers_and_says_why(trt: Any, tmp_path: Path) -> None:
    recipe = recipe_of(target={"acceptance": "plugin"})
    output, progress = build(tmp_path, recipe)
    assert output.target_info["acceptance"] == "layers"
    choice = output.target_info["choices"]["acceptance"]
    assert (choice["asked"], choice["chosen"]) == ("plugin", "layers")
    assert choice["reason"].startswith("TensorRT-RTX has no plugin")
    config = MemoryCheckpoint(config_of("qwen3")).config("float16")
    planned = {name: c.model_dump(mode="json") for name, c in TARGET.choices(recipe, config).items()}
    assert planned == output.target_info["choices"]  # what --plan says is what the manifest keeps
    assert any(note.startswith("acceptance by layers: TensorRT-RTX has no plugin") for note in progress.notes)


@pytest.mark.parametrize(
    ("heads", "lookup", "chosen"), [(6, {}, "none"), (2, {}, "folded"), (2, None, "repeated")], ids=str
)
def test_what_is_done_with_groups_is_a_choice_with_its_bytes(heads: int, lookup: Any, chosen: str) -> None:
    recipe = recipe_of(prompt_lookup=lookup)
    choice = TARGET.choices(recipe, config_of("llama", num_kv_heads=heads, dtype="float16"))["groups"]
    assert choice.chosen == chosen
    assert ("bytes" in choice.reason) == (chosen != "none")


def test_where_weights_are_is_a_choice_with_its_reason() -> None:
    config = config_of("llama", dtype="float16")
    rtx, full = (
        TARGET.choices(recipe_of(target={"runtime": r}), config)["weights"] for r in ("tensorrt_rtx", "tensorrt")
    )
    assert rtx.chosen == full.chosen == "in the plan, once"
    assert "only with a GPU at hand" in rtx.reason
    assert "refit at every start" in full.reason


@pytest.mark.skipif(tensorrt_cuda.missing_gpu() is None, reason="this machine has a GPU")
@pytest.mark.parametrize("flags", [("STRIP_PLAN",), ("STRIP_PLAN", "REFIT"), ("STRIP_PLAN", "REFIT_IDENTICAL")])
def test_stripping_weights_needs_a_gpu(trt: Any, flags: tuple[str, ...]) -> None:
    """The reason that weights are in the plan, as the runtime gives it. Should a later one build this, think again."""
    log = build_log.BuildLog()
    builder = trt.Builder(build_log.logger_for(trt, log.take))
    network = builder.create_network(0)
    weight = torch.ones(8, 8)
    constant = network.add_constant((8, 8), trt.Weights(trt.float32, weight.data_ptr(), weight.numel())).get_output(0)
    x = network.add_input("x", trt.float32, (8, 8))
    none = trt.MatrixOperation.NONE
    network.mark_output(network.add_matrix_multiply(x, none, constant, none).get_output(0))
    config = builder.create_builder_config()
    for flag in flags:
        config.set_flag(getattr(trt.BuilderFlag, flag))
    assert builder.build_serialized_network(network, config) is None
    assert any("CUDA_SUCCESS" in error for error in log.errors)


@pytest.mark.parametrize("targets", [[86], [75, 120, 121]])
def test_plans_for_named_compute_capabilities(trt: Any, tmp_path: Path, targets: list[int]) -> None:
    output, _ = build(tmp_path, recipe_of(target={"compute_capability": targets}))
    assert output.target_info["compute_capability"] == targets


def test_a_value_beyond_float16_is_refused_with_its_size(trt: Any, tmp_path: Path) -> None:
    config = config_of("llama")
    weights = random_weights(config)
    weights["layers.1.up"][3, 3] = 1e6
    with pytest.raises(BuildError, match=r"layers\.1\.up .* not finite in float16: its largest is 1e\+06"):
        build(tmp_path, recipe_of(), MemoryCheckpoint(config, weights))


def test_a_damaged_checkpoint_is_refused(trt: Any, tmp_path: Path) -> None:
    config = config_of("llama")
    weights = random_weights(config)
    weights["final_norm"][0] = float("nan")
    with pytest.raises(BuildError, match=r"final_norm .* the checkpoint is damaged"):
        build(tmp_path, recipe_of(), MemoryCheckpoint(config, weights))


def test_an_error_line_fails_a_build_that_returned_a_plan(
    trt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = build_log.BuildLog.take

    def louder(self: build_log.BuildLog, severity: str, message: str) -> None:
        take(self, "ERROR" if "Total Weights Memory" in message else severity, message)

    monkeypatch.setattr(build_log.BuildLog, "take", louder)
    with pytest.raises(BuildError, match=r"tensorrt_rtx [\d.]+: .*Total Weights Memory"):
        build(tmp_path, recipe_of())
    assert not (tmp_path / PLAN_NAME).exists()


def test_a_compute_capability_that_slipped_through_fails_in_the_runtime(trt: Any) -> None:
    config = config_of("llama", dtype="float16")
    profile = io.Profile(tiers=("full",), batch=1, rows=1, head_rows=1, logits=False)
    with pytest.raises(BuildError, match="does not build for compute capability 90"):
        build_plan(trt, config, random_weights(config), NetworkShape(64), [profile], compute_capability=[90])


def test_a_layer_that_tensorrt_refuses_fails_the_build_with_its_reason(
    trt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    concat = Graph.concat

    def refused(self: Graph, parts: Any, axis: int) -> Any:
        return concat(self, parts, 9)  # no such axis: logged, and the layer has no output shape

    def none(self: Graph, x: Any, weight: Any) -> Any:
        raise NetworkError("TensorRT refused to add matrix_multiply")

    for name, broken, message in (
        ("concat", refused, r"tensorrt_rtx [\d.]+: .*[Aa]xis"),
        ("matmul_transposed", none, r"tensorrt_rtx [\d.]+: TensorRT refused to add matrix_multiply"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(Graph, name, broken)
            with pytest.raises(BuildError, match=message):
                build(tmp_path, recipe_of())


def test_a_build_that_ran_out_of_memory_says_so(trt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take = build_log.BuildLog.take

    def out_of_memory(self: build_log.BuildLog, severity: str, message: str) -> None:
        memory = "Total Weights Memory" in message
        take(self, "ERROR" if memory else severity, "Unexpected exception std::bad_alloc" if memory else message)

    monkeypatch.setattr(build_log.BuildLog, "take", out_of_memory)
    with pytest.raises(BuildError, match=r"this machine's memory was not enough for the build; .*bad_alloc"):
        build(tmp_path, recipe_of())


def test_a_machine_with_little_memory_is_warned_before_the_build(
    trt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorrt, "available_memory", lambda: 50 << 20)
    monkeypatch.setattr(tensorrt, "read_weights", lambda inputs, progress: (_ for _ in ()).throw(BuildError("enough")))
    progress = Recorder()
    checkpoint = MemoryCheckpoint(config_of("qwen3"))
    with pytest.raises(BuildError, match="enough"):
        TARGET.build(BuildInput(recipe_of(), checkpoint.config("float16"), checkpoint), tmp_path, progress)
    (warning,) = progress.warnings
    assert "takes at least 1.0 GiB of this machine's memory, of which 50.0 MiB is free" in warning


def test_a_library_that_makes_no_builder_fails_the_build(trt: Any) -> None:
    """What the bindings do then: raise a TypeError of their own, after the log has the reason."""

    def broken(logger: Any) -> Any:
        logger.log(SimpleNamespace(name="ERROR"), "CUDA initialization failure with error: 35. no driver")
        raise TypeError("pybind11::init(): factory function returned nullptr")

    module: Any = ModuleType("tensorrt")
    vars(module).update(__version__="11.4", ILogger=Logger, IProgressMonitor=object, Builder=broken)
    config = config_of("llama", dtype="float16")
    with pytest.raises(BuildError, match=r"tensorrt 11\.4: no builder was made.*; CUDA initialization failure with"):
        build_plan(module, config, random_weights(config), NetworkShape(64), [])


def test_a_tensorrt_without_the_layers_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {name: None for name in vars(INetworkDefinition) if name.startswith("add_")}
    del calls["add_attention_v2"], calls["add_kv_cache_update"]
    old = SimpleNamespace(__version__="10.13", INetworkDefinition=type("INetworkDefinition", (), calls))
    monkeypatch.setattr("importlib.import_module", lambda name: old)
    with pytest.raises(
        BuildError, match=r"tensorrt 10\.13 has no add_attention_v2, add_kv_cache_update.*install a later"
    ):
        load_runtime("tensorrt")


@pytest.mark.skipif(importlib.util.find_spec("tensorrt") is not None, reason="full TensorRT is installed")
def test_a_runtime_that_is_not_installed_is_named_with_its_package() -> None:
    with pytest.raises(BuildError, match=r"runtime tensorrt is not installed .*pip install 'trtlookup\[trt\]'"):
        load_runtime("tensorrt")


@pytest.mark.parametrize(
    ("recipe", "key", "message"),
    [
        (
            recipe_of(target={"compute_capability": [86, 90]}),
            "tensorrt.compute_capability",
            "given 90, which TensorRT-RTX does not support; allowed: 75, 80, 86, 89, 120, 121; for Hopper use runtime",
        ),
        (
            recipe_of(target={"compute_capability": [100]}),
            "tensorrt.compute_capability",
            "given 100, which TensorRT-RTX does not support; allowed: 75, 80, 86, 89, 120, 121",
        ),
        (recipe_of(target={"compute_capability": [86, 86]}), "tensorrt.compute_capability", "given 86 twice"),
        (
            recipe_of(target={"runtime": "tensorrt", "compute_capability": [90]}),
            "tensorrt.compute_capability",
            "given [90]; allowed with runtime tensorrt: none",
        ),
        (
            recipe_of("bfloat16", target={"compute_capability": [75, 86]}),
            "model.dtype",
            "given bfloat16, which compute capability 75 does not have; allowed: float16, float32",
        ),
        (recipe_of(exact_verify=True), "speculative.exact_verify", "given true; allowed with target tensorrt: false"),
        (
            recipe_of(drafter="draft_model", num_drafts=3),
            "speculative.drafter",
            "given draft_model; allowed with target tensorrt: none",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused(recipe: Recipe, key: str, message: str) -> None:
    ((found, text),) = TARGET.check(recipe)
    assert found == key
    assert text.startswith(message)


def test_a_recipe_within_bounds_is_not_refused() -> None:
    assert not list(TARGET.check(recipe_of("bfloat16", target={"compute_capability": [80, 86, 89, 120, 121]})))
    assert not list(TARGET.check(recipe_of(target={"runtime": "tensorrt"})))


def smollm2(**changes: Any) -> DecoderConfig:
    fields: dict[str, Any] = {
        "architecture": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_layers": 30,
        "num_heads": 9,
        "num_kv_heads": 3,
        "head_dim": 64,
        "max_position": 8192,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "dtype": "float16",
    }
    return DecoderConfig(**{**fields, **changes})


def qwen_like() -> DecoderConfig:
    return smollm2(
        architecture="qwen2",
        vocab_size=20000,
        hidden_size=1024,
        intermediate_size=2816,
        num_heads=8,
        num_kv_heads=2,
        head_dim=128,
        attention_bias=True,
    )


#: (model, positions, folded, batch, rows, head rows, logits) -> what TensorRT-RTX 1.7.1 logged.
LOGGED = [
    (smollm2(), 4160, True, 1, 9, 9, False, 10_065_920),
    (smollm2(), 4160, True, 8, 4, 4, False, 26_540_032),
    (smollm2(), 4160, True, 8, 1, 1, False, 25_804_288),
    (smollm2(), 4160, True, 1, 512, 1, False, 27_019_776),
    (smollm2(), 4160, True, 8, 9, 9, True, 30_517_760),
    (smollm2(), 4160, False, 8, 9, 9, False, 77_685_248),
    (smollm2(), 4160, False, 8, 1, 1, False, 9_057_280),
    (smollm2(), 2112, True, 4, 9, 9, True, 15_930_880),
    (smollm2(), 2112, True, 8, 17, 17, False, 24_056_320),
    (smollm2(), 2112, False, 1, 1, 1, False, 8_292_864),
    (qwen_like(), 4160, True, 8, 17, 17, False, 40_001_536),
    (qwen_like(), 4160, True, 1, 512, 1, False, 36_254_208),
    (qwen_like(), 2112, False, 4, 5, 5, False, 34_893_312),
    (qwen_like(), 2112, False, 1, 2, 2, False, 12_547_072),
]


@pytest.mark.parametrize(("config", "positions", "folded", "batch", "rows", "head_rows", "logits", "logged"), LOGGED)
def test_predicted_activations_are_near_what_builds_logged(
    config: DecoderConfig,
    positions: int,
    folded: bool,
    batch: int,
    rows: int,
    head_rows: int,
    logits: bool,
    logged: int,
) -> None:
    profile = io.Profile(tiers=("full",), batch=batch, rows=rows, head_rows=head_rows, logits=logits)
    assert predict_activation(config, profile, positions, fold_groups=folded) == pytest.approx(logged, rel=0.03)


def test_groups_are_folded_where_that_is_smaller() -> None:
    def chooses(config: DecoderConfig, *shapes: tuple[int, int]) -> bool:
        profiles = tuple(io.Profile(tiers=("full",), batch=b, rows=r, head_rows=r, logits=False) for b, r in shapes)
        return folding_is_smaller(config, profiles, 4160)

    assert chooses(smollm2(), (1, 9), (8, 4))
    assert not chooses(smollm2(), (1, 1), (8, 1))  # a plain round reads the cache where it lies
    assert not chooses(smollm2(num_kv_heads=9), (8, 4))  # nothing to fold


def test_the_plan_prices_one_more_draft_where_the_tier_grows(tmp_path: Path) -> None:
    recipe = recipe_of(prompt_lookup={"max_drafts": 8, "batch_max_drafts": 3})
    config = config_of("llama", dtype="float16", vocab_size=50_000)
    footprint = TARGET.footprint(recipe, config)
    plan = capacity.plan_capacity(footprint, recipe.limits, recipe.speculative, None)
    tiers = {t.name: t for t in plan.tiers}
    assert plan.kv_bytes_per_token == 2 * 2 * 2 * 8 * 2
    assert plan.kv_bytes_per_slot == 128 * plan.kv_bytes_per_token  # 100 positions and 9 rows of scratch, aligned
    assert tiers["prefill"].logits_bytes == 0
    assert tiers["copy"].logits_bytes == 4 * 4 * 50_000 * 4
    more = tiers["copy"].next_draft_bytes
    assert more is not None
    assert more > tiers["copy"].logits_bytes // 4


def test_the_build_log_keeps_errors_and_reads_figures() -> None:
    log = build_log.BuildLog()
    log.take("INFO", "Total Activation Memory: 123 bytes")
    log.take("ERROR", "a real one")
    log.take("INTERNAL_ERROR", "another")
    log.take("WARNING", "no error")
    log.take("ERROR", "In ScopedCudaStream: cudaError 35")
    log.take("INFO", "Total Activation Memory: 456 bytes")
    assert log.errors == ["a real one", "another"]
    assert log.activation_bytes == [123, 456]


def test_progress_grows_to_the_whole_and_never_back() -> None:
    shares: list[float] = []
    fraction = build_log.StepFraction(shares.append)
    fraction.start("build", None, 2)
    fraction.start("part", "build", 4)
    for i in range(4):
        fraction.step("part", i)
    fraction.finish("part")
    fraction.step("build", 0)
    fraction.start("rest", "build", 1)
    fraction.step("unknown", 7)
    fraction.step("rest", 0)
    fraction.finish("rest")
    fraction.finish("build")
    assert shares == sorted(set(shares))
    assert shares[:4] == [0.125, 0.25, 0.375, 0.5]
    assert shares[-1] == 1.0


def test_the_recipe_that_ships_passes_its_checks() -> None:
    text = (Path(__file__).parents[2] / "recipes" / "smollm2-135m-rtx.yaml").read_text()
    loaded = recipe_class().model_validate_json(json.dumps(yaml.safe_load(text)))
    assert not list(TARGET.check(loaded))
