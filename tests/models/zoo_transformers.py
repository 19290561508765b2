"""More models of transformers: text, speech, vision, video, several of these, time series."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.models.zoo import (
    DECODER,
    FOLLOWS,
    HIDDEN,
    SEQ2SEQ,
    SIZES,
    VISION,
    VOCABULARY,
    WORDS,
    Entry,
    padded,
    transformer,
    words,
)

CLASSES = 4


def model(
    name: str, inputs: Any, *, loss: Any = None, method: Any = "torch.export", **config: Any
) -> Entry:
    """A model of transformers under its own loss, or the given one."""
    return Entry("transformers", transformer(name, inputs, **config), loss=loss, method=method)


def classes(batch_size: int) -> Tensor:
    return torch.randint(0, CLASSES, (batch_size,))


def images(batch_size: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(batch_size, 3, 32, 32), "labels": classes(batch_size)}


def segmented(batch_size: int) -> dict[str, Tensor]:
    labels = torch.randint(0, CLASSES, (batch_size, 32, 32))
    return {"pixel_values": torch.randn(batch_size, 3, 32, 32), "labels": labels}


def photos(batch_size: int) -> dict[str, Tensor]:
    """Images with nothing to say about them: the loss is ours."""
    return {"pixel_values": torch.randn(batch_size, 3, 64, 64)}


def clips(batch_size: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(batch_size, 4, 3, 16, 16), "labels": classes(batch_size)}


def sounds(batch_size: int) -> dict[str, Tensor]:
    return {"input_values": torch.randn(batch_size, 400), "labels": words(batch_size)[:, :3]}


def spoken(batch_size: int) -> dict[str, Tensor]:
    return {"input_values": torch.randn(batch_size, 400), "labels": classes(batch_size)}


def spectra(batch_size: int) -> dict[str, Tensor]:
    return {"input_values": torch.randn(batch_size, 32, 16), "labels": classes(batch_size)}


def plain_words(batch_size: int) -> dict[str, Tensor]:
    """Without a mask: these models take none, or make sizes of it."""
    return {"input_ids": words(batch_size), "labels": words(batch_size)}


def documents(batch_size: int) -> dict[str, Tensor]:
    boxes = torch.randint(0, 100, (batch_size, WORDS, 4)).sort(-1).values
    return padded(batch_size) | {"bbox": boxes}


def captioned_images(batch_size: int) -> dict[str, Tensor]:
    return padded(batch_size) | {"pixel_values": torch.randn(batch_size, 3, 16, 16)}


def series(batch_size: int) -> dict[str, Tensor]:
    past = torch.randn(batch_size, 16, 2)
    return {"past_values": past, "future_values": torch.randn(batch_size, 4, 2)}


def timed_series(batch_size: int) -> dict[str, Tensor]:
    return {
        "past_values": torch.randn(batch_size, 19),
        "past_time_features": torch.randn(batch_size, 19, 1),
        "past_observed_mask": torch.ones(batch_size, 19),
        "future_values": torch.randn(batch_size, 4),
        "future_time_features": torch.randn(batch_size, 4, 1),
    }


def episodes(batch_size: int) -> dict[str, Tensor]:
    return {
        "states": torch.randn(batch_size, 5, 6),
        "actions": torch.randn(batch_size, 5, 2),
        "rewards": torch.randn(batch_size, 5, 1),
        "returns_to_go": torch.randn(batch_size, 5, 1),
        "timesteps": torch.arange(5).repeat(batch_size, 1),
        "attention_mask": torch.ones(batch_size, 5),
    }


def imitate(output: Any, batch: Any) -> Tensor:
    return functional.mse_loss(output["action_preds"], batch["actions"])


def find_boxes(output: Any, batch: Any) -> Any:
    """Detection without the matching of boxes, which is solved outside torch."""
    return output["logits"].logsumexp(-1).mean() + output["pred_boxes"].pow(2).mean()


ENCODER = {k: v for k, v in SIZES.items() if k != "vocab_size"}
SPEECH = ENCODER | {
    "vocab_size": VOCABULARY,
    "conv_dim": (16, 16),
    "conv_kernel": (10, 4),
    "conv_stride": (5, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "num_labels": CLASSES,
    "layerdrop": 0.0,
    "mask_time_prob": 0.0,
    "pad_token_id": 0,
}
STAGES = {"embed_dim": 16, "depths": (1, 1), "num_heads": (2, 4), "window_size": 4,
          "image_size": 32, "patch_size": 2, "num_labels": CLASSES}  # fmt: skip
EXPERTS = DECODER | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
RESIDUAL = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16],
            "depths": [1, 1], "layer_type": "basic", "out_features": ["stage2"]}  # fmt: skip

TRANSFORMERS: dict[str, Entry] = {
    # Text
    "ALBERT": model("Albert.ForMaskedLM", padded, embedding_size=16, **SIZES),
    "DeBERTa-v2": model("DebertaV2.ForMaskedLM", padded, relative_attention=True,
                        pos_att_type=["p2c", "c2p"], max_position_embeddings=16, **SIZES),
    "XLNet": model("XLNet.LMHeadModel", padded, vocab_size=VOCABULARY, d_model=HIDDEN, n_layer=2,
                   n_head=4, d_inner=64),
    "Longformer": model("Longformer.ForMaskedLM", padded, attention_window=4,
                        max_position_embeddings=32, pad_token_id=0, **SIZES),
    "Funnel": model("Funnel.ForMaskedLM", padded, vocab_size=VOCABULARY, d_model=HIDDEN, n_head=4,
                    d_head=8, d_inner=64, block_sizes=[1, 1], num_decoder_layers=1),
    "FNet": model("FNet.ForMaskedLM", plain_words,
                  **{k: v for k, v in SIZES.items() if k != "num_attention_heads"}),
    "Perceiver": model("Perceiver.ForMaskedLM", lambda b: {"inputs": words(b), "labels": words(b)},
                       vocab_size=VOCABULARY, d_model=HIDDEN, d_latents=16, num_latents=4,
                       num_blocks=1, num_self_attends_per_block=2, num_self_attention_heads=2,
                       num_cross_attention_heads=2, max_position_embeddings=WORDS),
    "Bloom": model("Bloom.ForCausalLM", padded, vocab_size=VOCABULARY, hidden_size=HIDDEN,
                   n_layer=2, n_head=4, use_cache=False),
    "Gemma-2": model("Gemma2.ForCausalLM", padded, head_dim=8, sliding_window=4, **DECODER),
    "Marian": model("Marian.MTModel", padded, max_position_embeddings=32,
                    **SEQ2SEQ | {"pad_token_id": 0, "decoder_start_token_id": 0}),
    "LayoutLM": model("LayoutLM.ForMaskedLM", documents, max_2d_position_embeddings=128, **SIZES),
    # Experts
    "Qwen2-MoE": model("Qwen2Moe.ForCausalLM", padded, shared_expert_intermediate_size=32,
                       **EXPERTS),
    "OLMoE": model("Olmoe.ForCausalLM", padded, **EXPERTS),
    "DeepSeek-V3": model("DeepseekV3.ForCausalLM", padded, n_routed_experts=4, n_group=2,
                         topk_group=1, num_experts_per_tok=2, moe_intermediate_size=32,
                         q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8,
                         v_head_dim=8, first_k_dense_replace=1,
                         **DECODER | {"num_key_value_heads": 4}),
    # State space
    "Mamba": model("Mamba.ForCausalLM", plain_words, vocab_size=VOCABULARY, hidden_size=HIDDEN,
                   state_size=4, num_hidden_layers=2, use_cache=False),
    "Mamba-2": model("Mamba2.ForCausalLM", plain_words, vocab_size=VOCABULARY, hidden_size=HIDDEN,
                     state_size=4, num_hidden_layers=2, num_heads=8, head_dim=8, n_groups=1,
                     chunk_size=4, use_cache=False),
    # Speech
    "Wav2Vec2 CTC": model("Wav2Vec2.ForCTC", sounds, ctc_loss_reduction="mean",
                          method=FOLLOWS, **SPEECH),
    "HuBERT": model("Hubert.ForSequenceClassification", spoken, **SPEECH),
    "AST": model("AST.ForAudioClassification", spectra, max_length=32, num_mel_bins=16,
                 patch_size=8, num_labels=CLASSES, **ENCODER),
    # Vision
    "ViT": model("ViT.ForImageClassification", images,
                 **VISION | {"image_size": 32, "num_labels": CLASSES}),
    "Swin": model("Swin.ForImageClassification", images, drop_path_rate=0.0, **STAGES),
    "ConvNeXt": model("ConvNext.ForImageClassification", images, hidden_sizes=[8, 16],
                      depths=[1, 1], num_stages=2, num_labels=CLASSES),
    "EfficientNet": model("EfficientNet.ForImageClassification", images, width_coefficient=0.25,
                          depth_coefficient=0.3, hidden_dim=320, num_labels=CLASSES,
                          drop_connect_rate=0.0),
    "SegFormer": model("Segformer.ForSemanticSegmentation", segmented, hidden_sizes=[8, 16, 16, 16],
                       depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 2],
                       decoder_hidden_size=16, num_labels=CLASSES, drop_path_rate=0.0),
    "DETR": model("Detr.ForObjectDetection", photos, loss=find_boxes, use_timm_backbone=False,
                  use_pretrained_backbone=False, backbone_config=RESIDUAL, num_queries=5,
                  num_labels=CLASSES, dropout=0.0,
                  **{k: v for k, v in SEQ2SEQ.items() if k.startswith(("d_", "enc", "dec"))
                     and k != "decoder_start_token_id"}),
    "YOLOS": model("Yolos.ForObjectDetection", photos, loss=find_boxes, num_labels=CLASSES,
                   num_detection_tokens=5,
                   **VISION | {"image_size": [64, 64], "patch_size": 16}),
    "VideoMAE": model("VideoMAE.ForVideoClassification", clips, num_frames=4, tubelet_size=2,
                      num_labels=CLASSES, **VISION),
    # Several of these
    "BLIP": model("Blip.ForConditionalGeneration", captioned_images,
                  text_config=SIZES | {"encoder_hidden_size": HIDDEN, "max_position_embeddings": 32,
                                       "bos_token_id": 1, "sep_token_id": 2, "pad_token_id": 0},
                  vision_config=VISION, projection_dim=16),
    "ViLT": model("Vilt.ForQuestionAnswering",
                  lambda b: {k: v for k, v in captioned_images(b).items() if k != "labels"}
                  | {"labels": torch.rand(b, CLASSES)}, num_labels=CLASSES, **SIZES | VISION),
    # Time series and decisions
    "PatchTST": model("PatchTST.ForPrediction", series, num_input_channels=2, context_length=16,
                      prediction_length=4, patch_length=4, patch_stride=4, d_model=16,
                      num_hidden_layers=2, num_attention_heads=2, ffn_dim=32),
    "time series transformer": model(
        "TimeSeriesTransformer.ForPrediction", timed_series, prediction_length=4,
        context_length=12, lags_sequence=[1, 2, 7], num_time_features=1, d_model=16,
        encoder_layers=1, decoder_layers=1, encoder_ffn_dim=32, decoder_ffn_dim=32,
        encoder_layerdrop=0.0, decoder_layerdrop=0.0),
    "decision transformer": model("DecisionTransformer.Model", episodes, loss=imitate, state_dim=6,
                                  act_dim=2, max_ep_len=16, hidden_size=HIDDEN, n_layer=2, n_head=4,
                                  n_positions=32),
}  # fmt: skip
