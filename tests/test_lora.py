"""LoRA out of JAX: the policy in Tunix, the adapter in transformers + PEFT and the merged model give the same logits."""
import json
import subprocess
import sys

import numpy as np
import pytest

from grpo_tutorials.models.lora import (
    adapter_config, check_adapter, flatten, from_bfloat16, from_peft, load_qwix, merge, qwix_factors, read_tensors, to_bfloat16, to_peft, write_tensors,
)

VOCAB, LENGTH = 50, 20
# heads, key-value heads, head_dim, hidden, ff, layers: grouped, one for all, and as many as heads (one fused weight in Tunix).
# In the last one hidden = heads * head_dim = ff, so most modules are square and only the values can betray a missing transpose;
# its sixth layer is a global one.
LAYOUTS = {"grouped": (4, 2, 8, 24, 40, 2), "one": (4, 1, 8, 24, 40, 2), "fused": (2, 2, 8, 24, 40, 2), "square": (4, 1, 8, 32, 32, 6)}


def save_base(folder, heads, kv, dim, hidden, ff, layers, dtype="float32"):
    "A random Gemma 3 in Hugging Face layout, its window shorter than the text."
    torch = pytest.importorskip("torch")
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig
    torch.manual_seed(0)
    rope = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    config = Gemma3TextConfig(
        vocab_size=VOCAB, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv, head_dim=dim, intermediate_size=ff,
        query_pre_attn_scalar=dim, sliding_window=7, max_position_embeddings=64, initializer_range=0.2, rope_parameters=rope, pad_token_id=0, bos_token_id=2, eos_token_id=1)
    Gemma3ForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)
    return folder


def tunix_policy(folder, rank, alpha):
    "The same weights in Tunix, with Qwix LoRA on every projection."
    jax = pytest.importorskip("jax")
    pytest.importorskip("tunix")
    import jax.numpy as jnp
    import qwix
    from flax import nnx
    from tunix.models.gemma3 import model as gemma3, params_safetensors
    c = json.loads((folder / "config.json").read_text())
    config = gemma3.ModelConfig(
        num_layers=c["num_hidden_layers"], num_embed=c["vocab_size"], embed_dim=c["hidden_size"], hidden_dim=c["intermediate_size"], num_heads=c["num_attention_heads"],
        head_dim=c["head_dim"], num_kv_heads=c["num_key_value_heads"], sliding_window_size=c["sliding_window"], local_base_frequency=10_000, global_base_frequency=1_000_000, param_dtype=jnp.float32)
    mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    base = params_safetensors.create_model_from_safe_tensors(str(folder), config, mesh, dtype=jnp.float32)
    provider = qwix.LoraProvider(module_path=".*q_einsum|.*kv_einsum|.*qkv_einsum|.*gate_proj|.*down_proj|.*up_proj|.*attn_vec_einsum", rank=rank, alpha=alpha)
    with jax.set_mesh(mesh):
        policy = nnx.jit(lambda b, i: qwix.apply_lora_to_model(b, provider, rngs=nnx.Rngs(0), **i))(base, base.get_model_input())
    return policy, mesh


def tokens(): return np.random.default_rng(3).integers(3, VOCAB, size=(2, LENGTH))


def tunix_logits(policy, mesh):
    import jax
    import jax.numpy as jnp
    x = tokens()
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), (2, LENGTH, LENGTH))
    with jax.set_mesh(mesh):
        return np.asarray(policy(jnp.asarray(x), jnp.broadcast_to(jnp.arange(LENGTH), x.shape), None, mask)[0])


def hf_logits(folder, adapter=None):
    import torch
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if adapter is not None:
        from peft import PeftModel
        model = PeftModel.from_pretrained(model, adapter).eval()
    with torch.no_grad():
        return model(input_ids=torch.tensor(tokens())).logits.numpy()


def randomise(policy, seed, size=0.2):
    "Every factor non-zero: a fresh B is zero and would prove nothing."
    from flax import nnx
    rng = np.random.default_rng(seed)
    state = nnx.state(policy, nnx.LoRAParam)
    for _, var in nnx.to_flat_state(state): var[...] = np.asarray(rng.normal(size=var[...].shape) * size, np.float32)
    nnx.update(policy, state)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_policy_adapter_and_merged_agree(layout, tmp_path):
    from flax import nnx
    rank, alpha = 3, 7.0
    base = save_base(tmp_path / "base", *LAYOUTS[layout])
    modules = 7 * LAYOUTS[layout][-1]
    policy, mesh = tunix_policy(base, rank, alpha)
    assert np.abs(tunix_logits(policy, mesh) - hf_logits(base)).max() < 1e-4        # B is zero: the base model
    randomise(policy, seed=5)
    want = tunix_logits(policy, mesh)
    assert np.abs(want - hf_logits(base)).max() > 0.1                               # the adapter does something
    factors = qwix_factors(nnx.state(policy, nnx.LoRAParam))
    assert len(factors) == modules
    to_peft(factors, tmp_path / "adapter", rank, alpha, base=str(base))
    assert adapter_config(tmp_path / "adapter")["target_modules"] == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    stats = check_adapter(tmp_path / "adapter", base)
    assert stats.ok and len(stats.modules) == modules and stats.scale == alpha / rank
    assert np.abs(want - hf_logits(base, tmp_path / "adapter")).max() < 1e-4
    kept = merge(base, tmp_path / "adapter", tmp_path / "merged")
    assert len(kept) == modules and min(kept.values()) > 0.999
    assert np.abs(want - hf_logits(tmp_path / "merged")).max() < 1e-4

    # and back: a policy with other factors takes these and gives the same logits
    before = flatten(nnx.state(policy, nnx.LoRAParam))
    randomise(policy, seed=6)
    assert np.abs(want - tunix_logits(policy, mesh)).max() > 0.1
    back, scale = from_peft(tmp_path / "adapter")
    assert scale == pytest.approx(alpha / rank)
    load_qwix(policy, back)
    after = flatten(nnx.state(policy, nnx.LoRAParam))
    for k in before: np.testing.assert_array_equal(before[k], after[k])
    np.testing.assert_array_equal(want, tunix_logits(policy, mesh))


def test_bfloat16_base_keeps_the_policy(tmp_path):
    "The shipped checkpoints are stored in bfloat16: the merged model must not round the update away."
    base = save_base(tmp_path / "base", *LAYOUTS["one"], dtype="bfloat16")
    rng = np.random.default_rng(0)
    factors = {f"model.layers.{i}.mlp.up_proj": ((rng.normal(size=(24, 2)) * 1e-3).astype(np.float32), (rng.normal(size=(2, 40)) * 1e-1).astype(np.float32)) for i in range(2)}
    to_peft(factors, tmp_path / "adapter", 2, 2, base=str(base))
    merge(base, tmp_path / "adapter", tmp_path / "merged")
    want = hf_logits(base, tmp_path / "adapter")
    assert 1e-5 < np.abs(want - hf_logits(base)).max() < 1e-1
    assert np.abs(want - hf_logits(tmp_path / "merged")).max() < 1e-4
    tiny = {k: (a * 1e-2, b) for k, (a, b) in factors.items()}
    to_peft(tiny, tmp_path / "tiny", 2, 2, base=str(base))
    with pytest.raises(ValueError, match="the merged model would be the base model"): merge(base, tmp_path / "tiny", tmp_path / "lost", dtype="bfloat16")
    assert not (tmp_path / "lost").exists()


@pytest.mark.parametrize("rslora", [False, True])
def test_peft_own_adapter_is_read(rslora, tmp_path):
    "An adapter that PEFT wrote, its scale with and without rsLoRA."
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM
    base = save_base(tmp_path / "base", *LAYOUTS["square"])
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), peft.LoraConfig(
        r=4, lora_alpha=6, use_rslora=rslora, target_modules=["q_proj", "down_proj"], init_lora_weights=False, task_type="CAUSAL_LM"))
    model.save_pretrained(tmp_path / "adapter")
    factors, scale = from_peft(tmp_path / "adapter")
    assert scale == pytest.approx(6 / (2 if rslora else 4))
    merge(base, tmp_path / "adapter", tmp_path / "merged")
    assert np.abs(hf_logits(base, tmp_path / "adapter") - hf_logits(tmp_path / "merged")).max() < 1e-4
    model.peft_config["default"].use_dora = True
    model.peft_config["default"].save_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match="use_dora"): from_peft(tmp_path / "adapter")


def test_adapter_of_some_layers_lists_full_paths(tmp_path):
    base = save_base(tmp_path / "base", *LAYOUTS["one"])
    rng = np.random.default_rng(0)
    factors = {f"model.layers.{i}.mlp.up_proj": (rng.normal(size=(24, 2)).astype(np.float32), rng.normal(size=(2, 40)).astype(np.float32)) for i in (1,)}
    to_peft(factors, tmp_path / "adapter", 2, 2, base=str(base))
    assert adapter_config(tmp_path / "adapter")["target_modules"] == sorted(factors)
    merge(base, tmp_path / "adapter", tmp_path / "merged")
    assert np.abs(hf_logits(base, tmp_path / "adapter") - hf_logits(tmp_path / "merged")).max() < 1e-4


def test_merge_keeps_shards_and_leaves_nothing_half_done(tmp_path):
    base = save_base(tmp_path / "base", *LAYOUTS["one"])
    t = read_tensors(base / "model.safetensors")
    names = sorted(t)
    shards = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for f, ns in shards.items(): write_tensors(base / f, {n: t[n] for n in ns})
    (base / "model.safetensors").unlink()
    (base / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {n: f for f, ns in shards.items() for n in ns}}))
    rng = np.random.default_rng(0)
    factors = {f"model.layers.{i}.mlp.up_proj": (rng.normal(size=(24, 2)).astype(np.float32), rng.normal(size=(2, 40)).astype(np.float32)) for i in range(2)}
    to_peft(factors, tmp_path / "adapter", 2, 2, base=str(base))
    merge(base, tmp_path / "adapter", tmp_path / "merged")
    assert np.abs(hf_logits(base, tmp_path / "adapter") - hf_logits(tmp_path / "merged")).max() < 1e-4
    bad = {k: (a[:-1], b) for k, (a, b) in factors.items()}
    to_peft(bad, tmp_path / "bad", 2, 2)
    with pytest.raises(ValueError, match="another base model"): merge(base, tmp_path / "bad", tmp_path / "half")
    assert {p.name for p in tmp_path.iterdir()} == {"base", "adapter", "merged", "bad"}


def test_bfloat16_is_torchs():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2 ** 32, 200_000, dtype=np.uint32).view(np.float32)
    want = torch.from_numpy(x.copy()).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(from_bfloat16(to_bfloat16(x)), want)


def test_light_at_import():
    code = "import sys, grpo_tutorials.models.lora, grpo_tutorials.models.tiny; print([m for m in ('torch', 'jax', 'safetensors', 'transformers', 'tokenizers') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
