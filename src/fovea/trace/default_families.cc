#include "fovea/trace/families.h"

namespace fovea::trace {

// Order matters: what is often mistaken for attention (KV writes, communication, pointwise kernels
// that carry an attention operator in their name) comes before attention, and broad patterns come
// last.
std::string_view FamilyTable::default_text() {
  return R"(
# Operators, for kernels whose own name says nothing (inductor templates).
attention         op:*flex_attention* op:*scaled_dot_product* op:*flash_attn* op:*flash_attention*
matmul            op:aten::mm op:aten::bmm op:aten::addmm op:aten::baddbmm op:aten::linear
matmul            op:aten::matmul op:aten::_scaled_mm op:aten::_int_mm op:aten::_grouped_mm

# Choosing what sparse attention reads is its price but no attention: it has a family. Fovea's own
# kernels, and the indexers of DeepSeek's sparse attention.
selection         *mqa_logits* *topkperrow* *topk_per_row* *fast_topk* *topk_transform*
selection         select_blocks block_statistics full:*fovea*cuda*select_kernel*
selection         full:*fovea*cuda*block_stats_kernel* full:*fovea*cuda*pack_kernel*
selection         full:*fovea*cuda*sort_radii_kernel* full:*fovea*cuda*prefix_kernel*
selection         full:*fovea*cuda*reset_kernel*
attention         full:*fovea*cuda*prefill_kernel* full:*fovea*cuda*plan_kernel*
attention         full:*fovea*cuda*combine_kernel*
elementwise       residual_add
other             bookkeeping

communication     *nccl* *rccl* *all_reduce* *allreduce* *all_gather* *allgather* *reduce_scatter*
communication     *reducescatter* *all_to_all* *alltoall* *cross_device_reduce* *one_shot* *two_shot*
communication     *mnnvl* *custom_ar_* *multimem* *nvshmem* *mscclpp* *userbuffers* *oneshot* *twoshot* full:*deep_ep::*
communication     full:*flashinfer::trtllm_allreduce* *p2p_send* *p2p_recv* *barrier_all*

# Pages being written are memory traffic of the layer, not attention.
kv_write          *reshape_and_cache* *reshape_cache* *concat_and_cache* *store_kv* *storekv*
kv_write          *set_kv_buffer* *set_mla_kv* *kv_cache_store* *append_paged* *AppendPaged*
kv_write          *_and_cache* *zero_kv* *write_kv* *fill_kv* *update_kv* *UpdateKVCache*
kv_write          *set_rows* *quant_and_cache* *copy_to_kv* *save_kv* *cache_kernel_flash* *insert_kv*
copy              copy_next_input* *transfer_kernel* *swap_blocks* *copy_blocks* *gather_cache* *gather_and_*cache*
other             *kv_indices* *kv_indptr* *block_table* *slot_mapping* *prepare_varlen* *GetScheduler*
other             *req_to_token* alloc_extend* alloc_decode* *get_last_loc* *lookup_kernel*
other             *prepare_*inputs* *prepare_pos* *prepare_*slot* *post_update*
other             *prepare_*metadata* *get_mla_metadata* *mla_metadata*

# Fused pointwise and reduction kernels of inductor list every operator they touch, attention too.
sampling          triton_*argmax* triton_*multinomial*
norm_rope_act     triton_poi_* triton_red_* triton_per_* triton_for_*

linear_attention  *gated_delta* *delta_rule* fused_recurrent* *selective_scan* *selective_state*
linear_attention  *chunk_scan* *chunk_state* *state_passing* *bmm_chunk* *chunk_cumsum* *causal_conv1d*
linear_attention  chunk_fwd_kernel* chunk_bwd_kernel* chunk_local_cumsum* chunk_scaled_dot*
linear_attention  recompute_w_u* solve_tril* merge_16x16* *mamba* ssd_* _ssd* *lightning_att*
linear_attention  *linear_att* _fwd_diag_kernel _fwd_none_diag_kernel _fwd_kv_parallel _fwd_kv_reduce
linear_attention  *rwkv* *wkv* *kda_* *chunk_kda* *gdn_gating* *sigmoid_gating_delta* *ssm_scan*
linear_attention  *ssm_conv* *gated_linear* chunk_gla* *short_conv* *shortconv*

attention         flash_fwd* flash_bwd* *FlashAttn* *flash_att* compute_attn_ws* *compute_attn*
attention         BatchPrefill* BatchDecode* SinglePrefill* SingleDecode* *BatchMLA* *BatchPOD*
attention         *fmha* *mmha* *masked_multihead* xqa* *kernel_mha* *mha_fwd* *mha_bwd* *mha_varlen*
attention         *unified_attention_2d* *unified_attention_3d* kernel_unified_attention*
attention         reduce_segments* _fwd_kernel _fwd_kernel_stage* _fwd_grouped_kernel*
attention         _fwd_kernel_flash* _fwd_kernel_unified* _fwd_kernel_alibi _attn_fwd* _attn_bwd* attn_fwd*
attention         *paged_att* *pagedattention* pa_*
attention         *mla_decode* *mla_prefill* *mla_reduce* mla_* *flash_mla* *FlashMLA* *mla_combine*
attention         *sdpa* *scaled_dot_product* *FlashDecod* *flash_decod* *splitkv* *split_kv*
attention         *merge_attn* *merge_state* *MergeState* *attention_sink* *sparse_attn* *sparse_attention*
attention         *dense_attention* *decode_attention* *prefill_attention* *ragged_attention*
attention         *attention_kernel* *attention_fwd* *attention_forward* *block_sparse_att* fovea_attention*
attention         *PrefillWithKVCache* full:*BatchPagedAttention*
attention         *attention* fovea::attention* full:*fovea::attention::*

moe_routing       *topk_softmax* *topkgating* *topk_gating* *moe_align* *moe_sum* *grouped_topk*
moe_routing       _topk _topk_forward* _topk_backward* *combined_routing* *routing* *sum_bitmatrix*
moe_routing       *finalize_matmul_scatter* *moe_permute* *moe_unpermute* *expandInputRows* *moe_sort*
moe_routing       *finalizeMoe* *count_and_sort_expert* *expert_tokens* *moe_finalize* *ep_scatter*
moe_routing       *ep_gather* *moesorting* *moe_fused_gate* *moe_gating* *ExpertPrefixSum* *fused_gate*
moe_routing       *computeStridesTma* *expert_offset* *expert_bounds* *compute_expert* *num_tokens_per_expert*
moe_routing       *problem_sizes* *permute_tokens* *unpermute*

# An activation that quantises for a gemm names it.
norm_rope_act     *silu_mul* *silu_and_mul*
matmul            *fmoe* *batched_triton_kernel*
matmul            nvjet_* *gemm* *gemv* *splitkreduce* *splitk_reduce* *cublas* *matmul* *marlin*
matmul            *machete* bmm_* *fused_moe* *ck_moe* Cijk_* mul_mat* cutlass_* *scaled_mm* *_mm_kernel*
matmul            *wvsplitk* *llgemm* *w8a8_block* *s16816* *s1688* *s884* *MoeFCGemm* *moe_mix* *triton_mm*
matmul            _mm *_addmm* *persistent_matmul* dot_kernel* gemmk1* gemmSN* *DeviceGroupedConv* *wgrad*

norm_rope_act     *rmsnorm* *rms_norm* *layernorm* *layer_norm* *qk_norm* *qknorm* *rotary* *rope*
norm_rope_act     kn_entry_*cached* ln_fwd* ln_bwd* ln_parallel* *silu* *gelu* *swiglu* *act_and_mul* *act_mul* *doActivation* *relu2* *l2norm*

quantise          *quant* *fp8_cast* *cast_to_fp8* *cvt_fp16_to_fp4* *scaled_fp4* *fp32_to_fp8* *mxfp4_*
sampling          *sampling* *sampler* *argmax* full:*ArgMaxOps* *multinomial* *top_p* *topp* *top_k*
sampling          *penalt* *logits* *gumbel* *min_p* *rejection* *verify_tree* full:*exponential_kernel*
sampling          *build_tree* *random* *topkstage* *topk_log_softmax* *temperature* *bincount*
sampling          *sampled_* *curand*
moe_routing       *moe* *expert*

copy              *memcpy* *memset* *copybuffer* *fillbuffer* full:*direct_copy_kernel* *copy_kernel*
copy              full:*copy_kernel_cuda* *CatArray* *transpose* *gather_kernel* *index_select* *indexSelect*
copy              *scatter* *permute* *copy_page* *cpy_* *convert_unary* *concat*
norm_rope_act     *norm_kernel* norm_* *_norm_f32* *activation*
elementwise       *elementwise* reduce_kernel* full:*at::native::*SoftMax* *softmax* *soft_max* *bin_bcast*
elementwise       scale_f32* pad_f32* *cumsum* *masked_fill* *unary* *add_kernel* *mul_kernel*
other             *embedding* full:*at::native::* full:*rocprim* full:*cub::* full:*thrust::* *Device*Scan*
other             *Device*Sort* create_* compute_position* resolve_future* *k_get_rows*
)";
}

}  // namespace fovea::trace
