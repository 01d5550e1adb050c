from __future__ import annotations

import pytest
from tests.support.tiny_models import FAMILIES, tiny_config
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from selfspec_runtime.errors import UnsupportedModelError
from selfspec_runtime.families import RECURRENT_FAMILIES, check_family

ENCODERS = ("bert", "roberta", "electra", "roformer", "xlm-roberta", "bert-generation", "camembert")
ENCODER_DECODERS = ("bart", "t5", "pegasus", "whisper", "marian", "trocr", "mllama", "prophetnet")
MULTIMODAL = ("gemma3", "llava", "qwen2_vl", "phi4_multimodal", "llama4", "got_ocr2", "fuyu", "emu3", "moshi")


def refusal(config: PreTrainedConfig) -> str:
    with pytest.raises(UnsupportedModelError) as caught:
        check_family(config)
    return str(caught.value)


@pytest.mark.parametrize("family", [*FAMILIES, "gpt_neo", "gptj", "deepseek_v3", "nemotron", "stablelm"])
def test_decodable_families_pass(family: str) -> None:
    check_family(AutoConfig.for_model(family))


@pytest.mark.parametrize("family", sorted(RECURRENT_FAMILIES & set(CONFIG_MAPPING)))
def test_recurrent_families_are_refused_by_name(family: str) -> None:
    config = AutoConfig.for_model(family)
    if family == "lfm2":  # its default configuration lists attention only; published models do not
        config.layer_types[0] = "conv"
    message = refusal(config)
    assert repr(family) in message or repr(config.model_type) in message
    assert "rolled back" in message or "several models" in message


@pytest.mark.parametrize("family", ["bloom", "ctrl", "dbrx", "doge", "longcat_flash"])
def test_families_that_cannot_take_a_block_are_refused_by_name(family: str) -> None:
    assert repr(family) in refusal(AutoConfig.for_model(family))


def test_falcon_is_decodable_without_alibi_only() -> None:
    check_family(AutoConfig.for_model("falcon", alibi=False))
    assert "ALiBi" in refusal(AutoConfig.for_model("falcon", alibi=True))


def test_an_unknown_hybrid_is_caught_by_its_layer_kinds() -> None:
    config = tiny_config("llama")
    config.model_type = "newcomer"
    config.layer_types = ["full_attention", "gated_delta_net", "full_attention", "full_attention"]
    assert "'newcomer'" in refusal(config)
    assert "gated_delta_net" in refusal(config)


@pytest.mark.parametrize("setting", ["mamba_d_state", "ssm_state_size", "conv_L_cache", "linear_num_key_heads"])
def test_an_unknown_hybrid_without_layer_kinds_is_caught_by_its_settings(setting: str) -> None:
    config = tiny_config("llama")
    setattr(config, setting, 16)
    assert setting in refusal(config)


@pytest.mark.parametrize("setting", ["mamba_d_state", "use_mamba_kernels", "conv_kernel"])
def test_settings_that_are_switched_off_do_not_count(setting: str) -> None:
    config = tiny_config("llama")
    setattr(config, setting, 0)
    check_family(config)


def test_a_hybrid_family_whose_layers_are_all_attention_passes() -> None:
    config = AutoConfig.for_model("granitemoehybrid", num_hidden_layers=2, layer_types=["attention"] * 2)
    check_family(config)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_encoder_decoders_are_refused(family: str) -> None:
    assert "encoder-decoder" in refusal(AutoConfig.for_model(family))


@pytest.mark.parametrize("family", ENCODERS)
def test_encoders_are_refused(family: str) -> None:
    assert "encoder" in refusal(AutoConfig.for_model(family))


def test_an_encoder_family_used_as_a_decoder_passes() -> None:
    check_family(AutoConfig.for_model("bert", is_decoder=True))


@pytest.mark.parametrize("family", MULTIMODAL)
def test_multimodal_models_are_refused(family: str) -> None:
    assert "text-only" in refusal(AutoConfig.for_model(family))


@pytest.mark.parametrize("family", ["gemma3n_text", "gemma4_unified_assistant"])
def test_shared_keys_and_values_are_refused(family: str) -> None:
    assert "share keys and values" in refusal(AutoConfig.for_model(family))


def test_gemma4_is_refused_only_where_layers_share() -> None:
    check_family(AutoConfig.for_model("gemma4_text", num_kv_shared_layers=0))
    assert "num_kv_shared_layers" in refusal(AutoConfig.for_model("gemma4_text", num_kv_shared_layers=10))


@pytest.mark.parametrize("family", ["dory", "hrm_text"])
def test_looped_layers_are_refused(family: str) -> None:
    assert "several times per token" in refusal(AutoConfig.for_model(family))


@pytest.mark.parametrize("family", ["deepseek_v32", "deepseek_v4", "llama4_text", "axk2"])
def test_layer_kinds_that_are_not_plain_attention_are_refused(family: str) -> None:
    assert "layers of the kind" in refusal(AutoConfig.for_model(family))


@pytest.mark.parametrize("family", ["openai-gpt", "xlnet", "reformer", "cpmant"])
def test_families_without_a_cache_are_refused(family: str) -> None:
    assert "key/value cache" in refusal(AutoConfig.for_model(family))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("prefix_lm", True, "both directions"),
        ("use_bidirectional_attention", True, "looks ahead"),
        ("is_causal", False, "looks ahead"),
        ("architectures", ["LlamaForSequenceClassification"], "LlamaForSequenceClassification"),
        ("architectures", ["LLaDAModelLM"], "denoises"),
    ],
)
def test_decoders_that_do_not_predict_the_next_token_are_refused(name: str, value: object, reason: str) -> None:
    config = tiny_config("llama")
    setattr(config, name, value)
    assert reason in refusal(config)


def test_a_family_without_a_causal_model_is_refused() -> None:
    assert "no causal language model" in refusal(AutoConfig.for_model("vit"))


def test_a_checkpoint_with_its_own_code_is_left_to_the_loader() -> None:
    config = PreTrainedConfig(auto_map={"AutoModelForCausalLM": "modeling.Own"})
    config.model_type = "own"
    check_family(config)
