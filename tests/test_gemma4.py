"Gemma 4 in transformers and in Tunix: the same weights give the same logits, in both directions, and so does an adapter."
import json
import os

import numpy as np
import pytest

from grpo_tutorials.models.lora import check_adapter, from_peft, load_qwix, merge, qwix_factors, read_header, read_tensors, to_peft

if os.environ.get("CI", "").lower() != "true":
    for name in ("torch", "transformers", "tunix"): pytest.importorskip(name)
import jax
import jax.numpy as jnp
import torch
import transformers
from flax import nnx
from safetensors.torch import load_file, save_file

from grpo_tutorials.models.gemma4 import load_gemma4, save_gemma4, text_prefix, tunix_config
from grpo_tutorials.models.tiny import checkpoint, model_config

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")    # Tunix's own
VOCAB, LENGTH = 96, 24

# What each model is made of. The window is shorter than the text everywhere, and global heads are wider than local ones.
ROPE = lambda full, base: {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": base}}
MODELS = {
    "plain": dict(layers=3, every=3),
    "kv_heads": dict(layers=2, every=2, kv=2, cap=None, global_kv=1),                  # transformers ignores the last here
    "per_layer": dict(layers=2, every=2, per_layer=16, rope=ROPE({"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 4.0, "rope_theta": 1e6}, 1e4)),
    "shared": dict(layers=6, every=3, shared=3, per_layer=16, kv=2),                   # as E4B
    "double": dict(layers=6, every=3, shared=3, per_layer=16, double=True),            # as E2B
    "rounding": dict(layers=25, every=11, shared=14, size=2, sharp=0.2),               # a share that Tunix rounds wrongly; so deep that float32 needs soft attention
    "keys_as_values": dict(layers=3, every=3, kv=2, global_kv=1, same=True),           # as 31B
    "same_heads": dict(layers=2, every=2, kv=4, global_dim=16, rope=ROPE({"rope_type": "default", "rope_theta": 5e5}, 2e4)),
}


def config(layers, every, shared=0, per_layer=0, double=False, kv=1, global_kv=None, same=False, cap=30.0, global_dim=32, rope=None, window=8, vocab=VOCAB):
    return transformers.Gemma4TextConfig(
        vocab_size=vocab, vocab_size_per_layer_input=vocab, hidden_size=48, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=kv,
        head_dim=16, global_head_dim=global_dim, num_global_key_value_heads=global_kv, attention_k_eq_v=same, hidden_size_per_layer_input=per_layer,
        num_kv_shared_layers=shared, use_double_wide_mlp=double, sliding_window=window, final_logit_softcapping=cap, rope_parameters=rope, max_position_embeddings=256,
        layer_types=["full_attention" if i % every == every - 1 or i == layers - 1 else "sliding_attention" for i in range(layers)], pad_token_id=0, bos_token_id=2, eos_token_id=5)


def shake(model, size=4, sharp=1):
    "Numbers that are nowhere trivial, so that every tensor matters: norms are no ones, scalars no ones, matrices large."
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(1 + 0.3 * torch.randn_like(p)) if "norm" in name else p.mul_(size)
            if "q_norm" in name: p.mul_(sharp)
        for name, b in model.named_buffers():
            if name.endswith("layer_scalar"): b.copy_(0.7 + 0.3 * torch.rand_like(b))


def save_base(folder, name="shared", **more):
    torch.manual_seed(0)
    made = MODELS[name] | more
    shaken = {k: made.pop(k) for k in ("size", "sharp") if k in made}
    model = transformers.Gemma4ForCausalLM(config(**made)).eval()
    shake(model, **shaken)
    model.save_pretrained(folder)
    return folder


def hf_logits(folder, ids, adapter=None):
    "What transformers computes, in float64: its own float32 is further from that than Tunix's."
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    if adapter:
        import peft
        model = peft.PeftModel.from_pretrained(model, str(adapter))
    with torch.no_grad(): return model.eval()(torch.tensor(ids)).logits.numpy()


def tokens(vocab=VOCAB): return np.random.default_rng(0).integers(3, vocab, (2, LENGTH))
def noise(x, size=0.05): return x + size * np.random.default_rng(x.size).normal(size=x.shape).astype(np.float32)


@nnx.jit
def _ask(model, ids):
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), (len(ids), LENGTH, LENGTH))
    return model(ids, positions=jnp.broadcast_to(jnp.arange(LENGTH), ids.shape), cache=None, attention_mask=mask)[0]


def ask(model, ids): return np.asarray(_ask(model, jnp.asarray(ids)))
def same(a, b): np.testing.assert_allclose(a, b, atol=1e-3, rtol=0)


@pytest.fixture(autouse=True)
def exact():
    "Matrix products in full float32, whatever the machine."
    with jax.default_matmul_precision("highest"): yield


@pytest.mark.parametrize("name", MODELS)
def test_the_same_logits_in_both_directions(name, tmp_path):
    base = save_base(tmp_path / "base", name)
    model, theirs = load_gemma4(base), hf_logits(base, tokens())
    same(ask(model, tokens()), theirs)
    nnx.update(model, jax.tree.map(noise, nnx.state(model, nnx.Param)))     # as if trained
    save_gemma4(model, base, tmp_path / "new")
    after = hf_logits(tmp_path / "new", tokens())
    same(ask(model, tokens()), after)
    assert np.abs(after - theirs).max() > 0.1
    assert read_header(tmp_path / "new/model.safetensors").keys() == read_header(base / "model.safetensors").keys()      # no dummies


def save_multimodal(folder, name="per_layer"):
    "A Gemma 4 with eyes, as transformers saves it."
    torch.manual_seed(0)
    eyes = transformers.Gemma4VisionConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=8, position_embedding_size=16)
    model = transformers.Gemma4ForConditionalGeneration(transformers.Gemma4Config(
        text_config=config(**MODELS[name]).to_dict(), vision_config=eyes.to_dict(), audio_config=None,
        **{f"{k}_token_id": VOCAB - i - 1 for i, k in enumerate(("boi", "eoi", "image", "video", "boa", "audio"))}, eoa_token_index=VOCAB - 7)).eval()
    shake(model.model.language_model)
    model.save_pretrained(folder)
    return folder, model


def test_a_multimodal_folder_gives_its_text_model_and_keeps_its_eyes(tmp_path):
    base, theirs = save_multimodal(tmp_path / "base", "shared")
    assert text_prefix(base) == "model.language_model."
    ids = np.random.default_rng(0).integers(3, VOCAB - 8, (2, LENGTH))      # no image among them
    model = load_gemma4(base)
    with torch.no_grad(): same(ask(model, ids), theirs.double()(torch.tensor(ids)).logits.numpy())
    nnx.update(model, jax.tree.map(noise, nnx.state(model, nnx.Param)))
    save_gemma4(model, base, tmp_path / "new")
    new = transformers.Gemma4ForConditionalGeneration.from_pretrained(tmp_path / "new", dtype=torch.float64).eval()
    with torch.no_grad(): same(ask(model, ids), new(torch.tensor(ids)).logits.numpy())
    before, after = read_tensors(base / "model.safetensors"), read_tensors(tmp_path / "new/model.safetensors")
    assert before.keys() == after.keys()
    kept = [k for k in before if "language_model" not in k]
    assert kept and all(np.array_equal(before[k], after[k]) for k in kept)


def test_shards_and_kept_dummies(tmp_path):
    "Several files, and a file that holds keys for shared layers, as published ones may: written back as they were."
    base = save_base(tmp_path / "base")
    t, c = load_file(base / "model.safetensors"), model_config(base)
    for i in range(3, 6):
        g = c["layer_types"][i] == "full_attention"
        for n in "kv": t[f"model.layers.{i}.self_attn.{n}_proj.weight"] = torch.randn(2 * (32 if g else 16), 48)
        t[f"model.layers.{i}.self_attn.k_norm.weight"] = torch.randn(32 if g else 16)
    names = sorted(t)
    files = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
    for f, part in files.items(): save_file({k: t[k] for k in part}, base / f, metadata={"format": "pt"})
    (base / "model.safetensors").unlink()
    (base / "model.safetensors.index.json").write_text(json.dumps(dict(metadata={}, weight_map={k: f for f, part in files.items() for k in part})))
    model = load_gemma4(base)
    same(ask(model, tokens()), hf_logits(base, tokens()))
    save_gemma4(model, base, tmp_path / "new", dtype="bfloat16")
    assert {f: set(read_header(tmp_path / "new" / f)) for f in files} == {f: set(part) for f, part in files.items()}
    assert model_config(tmp_path / "new")["dtype"] == "bfloat16"
    for f in files:
        for k, v in read_tensors(tmp_path / "new" / f).items(): np.testing.assert_allclose(v, t[k].numpy(), rtol=1 / 128)


def test_bfloat16(tmp_path):
    base = save_base(tmp_path / "base", "kv_heads", size=1)
    model = load_gemma4(base, dtype=jnp.bfloat16)
    assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(nnx.state(model, nnx.Param)))
    theirs = hf_logits(base, tokens())
    assert np.abs(ask(model, tokens()) - theirs).max() < 0.1 * np.abs(theirs).max()


@pytest.mark.parametrize("name, size", [("shared", dict(layers=4, every=2, shared=2)), ("keys_as_values", dict(layers=2, every=2))])
def test_greedy_sampling_is_generate(name, size, tmp_path):
    "Prompts of several lengths, padded, longer than the window and shorter, with the ring cache that Tunix uses."
    from tunix.generate import sampler
    from grpo_tutorials.core.chat import load_tokenizer
    base, tok = save_base(tmp_path / "base", name, vocab=1024, **size), load_tokenizer(checkpoint("sudoku"))
    model, c = load_gemma4(base), tunix_config(model_config(base))
    prompts = ["<bos>" + "def strategy(board):\n    return 1, 2, 3\n"[:n] for n in (4, 15, 28, 40)]
    s = sampler.Sampler(model, tok, sampler.CacheConfig(cache_size=64, num_layers=c.num_layers, num_kv_heads=c.num_kv_heads, head_dim=c.head_dim))
    out = s(input_strings=prompts, max_generation_steps=20, max_prompt_length=32, temperature=0.0, eos_tokens=[5, 7], echo=False)
    hf = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    for p, ours in zip(prompts, out.tokens):
        ids = tok.encode(p)
        theirs = hf.generate(torch.tensor([ids]), max_new_tokens=20, do_sample=False, eos_token_id=[5, 7], pad_token_id=0)[0, len(ids):].tolist()
        assert [int(i) for i in ours] == [i for i in theirs if i not in (5, 7)]


@pytest.mark.parametrize("name, size", [("shared", dict(layers=4, every=2, shared=2)), ("keys_as_values", dict(layers=2, every=2))])
def test_an_adapter_leaves_jax_and_comes_back(name, size, tmp_path):
    "Tunix with Qwix LoRA, transformers with PEFT, and the merged folder: the same logits; the way back gives the same factors."
    tunix = pytest.importorskip("grpo_tutorials.engines.tunix")
    base, mesh, rank = save_base(tmp_path / "base", name, **size), tunix.make_mesh(), 4
    policy = tunix.add_lora(load_gemma4(base, mesh), rank, 8.0, mesh)
    nnx.update(policy, jax.tree.map(lambda x: noise(x, 0.3), nnx.state(policy, nnx.LoRAParam)))
    factors = qwix_factors(nnx.state(policy, nnx.LoRAParam))
    matrices = {k.removesuffix(".weight") for k, (_, s) in read_header(base / "model.safetensors").items() if "_proj." in k and ".layers." in k and "per_layer" not in k}
    assert factors.keys() == matrices                               # every projection, and none for keys that a shared layer lacks
    to_peft(factors, tmp_path / "adapter", rank, 8.0, base=str(base))
    assert check_adapter(tmp_path / "adapter", base).ok
    theirs = hf_logits(base, tokens(), tmp_path / "adapter")
    same(ask(policy, tokens()), theirs)
    assert np.abs(theirs - hf_logits(base, tokens())).max() > 0.1
    merge(base, tmp_path / "adapter", tmp_path / "merged")
    same(hf_logits(tmp_path / "merged", tokens()), theirs)
    same(ask(load_gemma4(tmp_path / "merged"), tokens()), theirs)
    ours = ask(policy, tokens())
    nnx.update(policy, jax.tree.map(jnp.zeros_like, nnx.state(policy, nnx.LoRAParam)))
    load_qwix(policy, from_peft(tmp_path / "adapter")[0])
    np.testing.assert_array_equal(ask(policy, tokens()), ours)
    with pytest.raises(ValueError, match="carries a LoRA adapter"): save_gemma4(policy, base, tmp_path / "none")


def test_the_names_of_an_adapter_for_a_multimodal_model(tmp_path):
    tunix = pytest.importorskip("grpo_tutorials.engines.tunix")
    base, _ = save_multimodal(tmp_path / "base")
    mesh = tunix.make_mesh()
    policy = tunix.add_lora(load_gemma4(base, mesh), 4, 8.0, mesh)
    to_peft(qwix_factors(nnx.state(policy, nnx.LoRAParam), text_prefix(base)), tmp_path / "adapter", 4, 8.0)
    stats = check_adapter(tmp_path / "adapter", base)
    assert all("lora_B is zero" in p for p in stats.problems) and all(k.startswith("model.language_model.layers.") for k in stats.modules)
    load_qwix(policy, from_peft(tmp_path / "adapter")[0], prefix=text_prefix(base))


def change_tensors(base, **changes):
    t = load_file(base / "model.safetensors")
    for k, v in changes.items(): t.pop(k) if v is None else t.__setitem__(k, v)
    save_file(t, base / "model.safetensors", metadata={"format": "pt"})
    return base


def change_config(base, **changes):
    (base / "config.json").write_text(json.dumps(model_config(base) | changes))
    return base


@pytest.mark.parametrize("mend, message", [
    (lambda b: change_tensors(b, **{"model.layers.1.mlp.up_proj.weight": None}), "lack layers.1.mlp.up_proj.weight"),
    (lambda b: change_tensors(b, **{"model.layers.0.self_attn.k_proj.weight": None}), "lack layers.0.self_attn.k_proj.weight"),
    (lambda b: change_tensors(b, **{"model.layers.0.router.proj.weight": torch.ones(2)}), "no place"),
    (lambda b: change_tensors(b, **{"value_head.weight": torch.ones(2)}), "value_head.weight"),
    (lambda b: change_tensors(b, **{"model.embed_tokens.weight": None}), "embed_tokens.weight"),
    (lambda b: change_config(b, intermediate_size=32), "does not fit the weights"),
    (lambda b: change_config(b, num_hidden_layers=1, layer_types=["full_attention"]), "does not fit the weights"),
    (lambda b: change_config(b, model_type="gemma3_text"), "reads Gemma 4"),
    (lambda b: change_config(b, model_type="qwen3"), "qwen3"),
    (lambda b: change_config(b, quantization_config={"bits": 4}), "quantised"),
    (lambda b: change_config(b, enable_moe_block=True), "enable_moe_block"),
    (lambda b: change_config(b, layer_types=["full_attention"]), "layer_types"),
])
def test_what_does_not_fit_is_one_line(mend, message, tmp_path):
    base = mend(save_base(tmp_path / "base", "plain"))
    with pytest.raises(ValueError, match=message) as e: load_gemma4(base)
    assert "\n" not in str(e.value)


def test_a_mesh_that_does_not_divide_is_named():
    from grpo_tutorials.models.gemma4 import _place
    mesh = jax.sharding.AbstractMesh((4, 2), ("fsdp", "tp"))
    cut = lambda *spec: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
    assert _place("embedder", (412, 64), cut("tp", "fsdp"))
    with pytest.raises(ValueError, match="cuts 411 into 2: pad it to 412"): _place("embedder", (411, 64), cut("tp", "fsdp"))
    with pytest.raises(ValueError, match="into 8: pad it to 16"): _place("x", (9,), cut(("fsdp", "tp")))


def test_the_published_configurations():
    "As MaxText writes them down: E2B, E4B and 31B give Tunix's presets, 26B has experts and is refused."
    published = pytest.importorskip("maxtext.checkpoint_conversion.utils.hf_model_configs") if os.environ.get("CI", "").lower() != "true" else __import__("maxtext.checkpoint_conversion.utils.hf_model_configs", fromlist=["x"])
    from tunix.models.gemma4.model import ModelConfig
    for name in ("e2b", "e4b", "31b"):
        ours, theirs = tunix_config(getattr(published, f"gemma4_{name}_dict")), getattr(ModelConfig, f"gemma4_{name}")()
        for f in theirs.__dataclass_fields__:
            if f != "attention_pattern": assert getattr(ours, f) == getattr(theirs, f), f
        assert ours.attention_pattern == theirs.attention_pattern * (ours.num_layers // len(theirs.attention_pattern))
    with pytest.raises(ValueError, match="enable_moe_block"): tunix_config(published.gemma4_26b_dict)
