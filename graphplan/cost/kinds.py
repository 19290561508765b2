"""Kinds of ops: which formula counts an op, and which part of the hardware bounds it.

The names are those of ATen ops without namespace and overload (`Op.kind`). An op that is not listed
counts as elementwise: it reads its operands once and writes its output once.
"""

from __future__ import annotations

from typing import Literal

from graphplan.nouns.opgraph import Op

Kind = Literal[
    "view",
    "matmul",
    "conv",
    "attention",
    "rnn",
    "embedding",
    "gather",
    "scatter",
    "norm",
    "softmax",
    "loss",
    "pool",
    "reduce",
    "sort",
    "copy",
    "elementwise",
]

COMPUTE_KINDS = frozenset({"matmul", "conv", "attention", "rnn"})
"""Kinds bound by arithmetic: FLOPs counters count these, and matrix units run them."""

_NAMES: dict[Kind, str] = {
    "view": """view reshape _reshape_alias _unsafe_view flatten unflatten squeeze unsqueeze permute
        transpose t mT movedim swapaxes expand expand_as slice select narrow split
        split_with_sizes chunk tensor_split unbind unfold diagonal detach alias getitem as_strided
        lift_fresh_copy lift view_as view_as_real view_as_complex real imag numpy_T adjoint
        sym_size sym_numel _assert_tensor_metadata item is_nonzero broadcast_to lift_fresh
        meshgrid unsafe_chunk unsafe_split hsplit vsplit dsplit""",
    "matmul": """linear matmul mm bmm addmm baddbmm addbmm addmv mv dot vdot inner outer tensordot
        einsum _scaled_mm bilinear chain_matmul _grouped_mm grouped_mm
        grouped_mm_fallback _scaled_grouped_mm linalg_vecdot
        linalg_matmul multi_dot linalg_multi_dot mkldnn_linear _addmm_activation addr ger kron
        _trilinear""",
    "conv": """conv1d conv2d conv3d convolution _convolution conv_transpose1d conv_transpose2d
        conv_transpose3d conv_tbc cudnn_convolution mkldnn_convolution miopen_convolution
        _slow_conv2d_forward _conv_depthwise2d conv_depthwise3d deform_conv2d""",
    "attention": """scaled_dot_product_attention _scaled_dot_product_flash_attention
        _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math
        flex_attention _native_multi_head_attention _flash_attention_forward""",
    "rnn": "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _cudnn_rnn",
    "embedding": "embedding embedding_bag _embedding_bag embedding_renorm",
    "gather": """index index_select gather take take_along_dim masked_select _unsafe_index
        repeat_interleave _index_select searchsorted bucketize nonzero""",
    "scatter": """scatter scatter_add scatter_reduce index_add index_put index_copy index_fill
        _unsafe_index_put masked_scatter index_reduce segment_reduce bincount histc one_hot
        select_scatter slice_scatter diagonal_scatter""",
    "norm": """layer_norm native_layer_norm batch_norm native_batch_norm _native_batch_norm_legit
        _native_batch_norm_legit_functional cudnn_batch_norm group_norm native_group_norm
        instance_norm rms_norm _fused_rms_norm norm linalg_vector_norm linalg_norm renorm
        _batch_norm_with_update weight_norm _weight_norm_interface cosine_similarity""",
    "softmax": """softmax _softmax log_softmax _log_softmax _safe_softmax logsumexp sparsemax
        masked_softmax _masked_softmax""",
    "loss": """cross_entropy_loss nll_loss nll_loss_nd nll_loss2d nll_loss_forward mse_loss l1_loss
        smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div
        cosine_embedding_loss hinge_embedding_loss margin_ranking_loss triplet_margin_loss ctc_loss
        poisson_nll_loss multi_margin_loss soft_margin_loss gaussian_nll_loss _ctc_loss
        linear_cross_entropy""",
    "pool": """max_pool1d max_pool2d max_pool3d max_pool2d_with_indices avg_pool1d avg_pool2d
        avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
        _adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d upsample_nearest1d
        upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_bicubic2d
        upsample_trilinear3d upsample_linear1d _upsample_nearest_exact2d grid_sampler
        grid_sampler_2d im2col col2im fractional_max_pool2d max_pool1d_with_indices
        _upsample_bilinear2d_aa _upsample_bicubic2d_aa affine_grid_generator""",
    "reduce": """sum mean var std var_mean std_mean amax amin max min prod any all argmax argmin
        logical_reduce count_nonzero cumsum cumprod cummax median nansum nanmean aminmax trace
        logcumsumexp""",
    "sort": "sort argsort topk kthvalue unique unique2 _unique2 unique_consecutive unique_dim mode",
    "copy": """cat concat concatenate stack hstack vstack clone contiguous copy repeat tile roll
        flip constant_pad_nd pad reflection_pad1d reflection_pad2d replication_pad2d zeros_like
        ones_like full_like zeros ones full arange empty empty_like new_zeros new_ones new_full
        pixel_shuffle pixel_unshuffle channel_shuffle tril triu to _to_copy type_as rot90
        scalar_tensor linspace eye _to_dtype rand randn rand_like randn_like randint bernoulli
        randperm float half bfloat16 double fill""",
}


def _split_names(names: str) -> frozenset[str]:
    return frozenset(names.split())


KIND_BY_NAME: dict[str, Kind] = {
    name: kind for kind, names in _NAMES.items() for name in _split_names(names)
}

FREE_BACKWARD = _split_names(
    "add sub cat concat concatenate stack hstack vstack clone contiguous copy alias detach"
)
"""Ops whose gradient is passed on as it comes, or as views of it."""

RESIZING_VIEWS = _split_names(
    "slice select narrow split split_with_sizes chunk tensor_split unbind unfold diagonal expand"
    " expand_as broadcast_to unsafe_chunk unsafe_split as_strided hsplit vsplit dsplit"
)
"""Views that show a part of a tensor, or more than it: their backward fills or sums a tensor."""

FLOPS_PER_ELEMENT: dict[str, int] = {
    "exp": 8, "log": 8, "sigmoid": 10, "tanh": 12, "gelu": 16, "silu": 12, "erf": 12,
    "softplus": 16, "mish": 24, "elu": 10, "selu": 10, "sin": 10, "cos": 10, "pow": 10, "sqrt": 4,
    "rsqrt": 4, "div": 4, "dropout": 6, "native_dropout": 6, "glu": 12, "hardswish": 4,
    "logsigmoid": 16,
}  # fmt: skip
"""Rough costs of elementwise functions; 1 where nothing is said."""

FLOPS_PER_ELEMENT_BY_KIND: dict[Kind, int] = {
    "norm": 8,
    "softmax": 12,
    "loss": 12,
    "reduce": 1,
    "pool": 4,
    "sort": 32,
    "embedding": 1,
    "scatter": 1,
}


OUR_NAMESPACES = frozenset({"aten", "prims", "operator", "_operator", "math", "torch", "builtins"})
"""Where ops live whose names this module knows, or that are elementwise."""


def has_formula(op: Op) -> bool:
    """Whether the work of an op is counted by what it does; else only its bytes are."""
    if op.kind in KIND_BY_NAME or op.alias is not None:
        return True
    return op.target.partition(".")[0] in OUR_NAMESPACES and op.size is not None


def classify_op(op: Op) -> Kind:
    """The kind of an op; an op whose output shares a storage is a view whatever its name."""
    if op.alias is not None:
        return "view"
    kind = KIND_BY_NAME.get(op.kind)
    if kind == "view" and op.kind in ("reshape", "flatten") and op.output is not None:
        return "copy"
    return kind or "elementwise"
