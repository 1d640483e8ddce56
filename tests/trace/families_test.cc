#include "fovea/trace/families.h"

#include <gtest/gtest.h>

#include "fovea/base/error.h"
#include "fovea/trace/kernel_name.h"
#include "fovea/trace/step_label.h"

namespace fovea::trace {
namespace {

TEST(KernelName, BaseNames) {
  const std::pair<const char*, const char*> cases[] = {
      {"flash_fwd_kernel", "flash_fwd_kernel"},
      {"void pytorch_flash::flash_fwd_kernel<Traits<64, 128>, true>(Params)", "flash_fwd_kernel"},
      {"void (anonymous namespace)::store_kvcache<2048l, 4>((anonymous namespace)::P)",
       "store_kvcache"},
      {"void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::X<2u> >(int)",
       "CatArrayBatchedCopy"},
      {"void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<C<1> > > >(P)",
       "FlashAttnFwdSm90"},
      {"void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(P::Params)",
       "cutlass_80_simt_sgemm_128x32_8x5_nn_align1"},
      {"void ck_tile::kentry<2, ck_tile::FmhaFwdKernel<X> >(K)", "FmhaFwdKernel"},
      {"_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelINS_4XxxxE",
       "FmhaBatchPrefillWithPagedKVCacheKernel"},
      {"_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassE",
       "Rmsnorm2dFwd"},
      {"_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64EEEvPT0_", "add_rmsnorm_quant_kernel"},
      {"_Z3fooPf", "foo"},
      {"_ZN", "_ZN"},
      {"_ZN99999foo", "_ZN99999foo"},
      {"Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"},
      {"", ""},
      {"void kernel<unclosed", "kernel"},
  };
  for (const auto& [name, base] : cases) EXPECT_EQ(kernel_base_name(name), base) << name;
}

TEST(KernelName, Glob) {
  EXPECT_TRUE(glob_match("flash_fwd*", "Flash_FWD_kernel"));
  EXPECT_TRUE(glob_match("*gemm*", "sm90_xmma_gemm_bf16"));
  EXPECT_TRUE(glob_match("*a*b*c", "xxaxxbxxbc"));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_FALSE(glob_match("a*b", "acbd"));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_FALSE(glob_match("_fwd_kernel", "_fwd_kernel_stage1"));
}

struct Case {
  const char* name;
  const char* family;
};

// Names as engines write them, of every family, and the look-alikes.
TEST(Families, Defaults) {
  const Case cases[] = {
      {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
       "communication"},
      {"void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(RankData*)", "communication"},
      {"void deep_ep::internode_ll::dispatch<true>(void*)", "communication"},
      {"void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<X>(P)",
       "communication"},
      {"void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, 0>(int)", "kv_write"},
      {"void vllm::concat_and_cache_mla_kernel<__nv_bfloat16>(int)", "kv_write"},
      {"void flashinfer::AppendPagedKVCacheKernel<128u, 16u>(P)", "kv_write"},
      {"set_mla_kv_buffer_kernel", "kv_write"},
      {"void tensorrt_llm::kernels::applyBiasRopeUpdateKVCacheV2<T>(P)", "kv_write"},
      {"create_flashinfer_kv_indices_triton", "other"},
      {"void flash::prepare_varlen_num_blocks_kernel<1, true>(int)", "other"},
      {"void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<"
       "flash::CollectiveMainloopFwdSm90<2>, flash::CollectiveEpilogueFwd<X> > > >(P)",
       "attention"},
      {"void flash::flash_fwd_splitkv_combine_kernel<T>(P)", "attention"},
      {"void flash::flash_fwd_splitkv_mla_kernel<T>(P)", "attention"},
      {"kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__",
       "attention"},
      {"void flashinfer::BatchPrefillWithPagedKVCacheKernel<X>(P)", "attention"},
      {"void flashinfer::BatchDecodeWithPagedKVCacheKernel<X>(P)", "attention"},
      {"void flashinfer::PersistentVariableLengthMergeStatesKernel<8u>(P)", "attention"},
      {"fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::P)", "attention"},
      {"fmhaSm100aKernel_QkvBfloat16OBfloat16H128PagedKvCausal", "attention"},
      {"void mmha::masked_multihead_attention_kernel<T>(P)", "attention"},
      {"kernel_unified_attention_2d", "attention"},
      {"kernel_unified_attention_3d", "attention"},
      {"reduce_segments", "attention"},
      {"_fwd_grouped_kernel_stage1", "attention"},
      {"_fwd_kernel_stage2", "attention"},
      {"_fwd_kernel", "attention"},
      {"void vllm::paged_attention_v2_reduce_kernel<T>(P)", "attention"},
      {"cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128",
       "attention"},
      {"void flash_attn_ext_f16<128, 128, 16, 4>(char const*)", "attention"},
      {"void vllm::merge_attn_states_kernel<float>(P)", "attention"},
      {"chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "linear_attention"},
      {"fused_recurrent_gated_delta_rule_fwd_kernel", "linear_attention"},
      {"void selective_scan_fwd_kernel<T>(P)", "linear_attention"},
      {"_causal_conv1d_update_kernel", "linear_attention"},
      {"void vllm::moe::topkGatingSoftmax<8, 128, 4, 16>(float const*)", "moe_routing"},
      {"void vllm::moe::moe_align_block_size_kernel<int>(P)", "moe_routing"},
      {"_finalize_matmul_scatter_bf16", "moe_routing"},
      {"_topk_forward", "moe_routing"},
      {"nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "matmul"},
      {"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas", "matmul"},
      {"ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_tn", "matmul"},
      {"void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<X> >(P)", "matmul"},
      {"void deep_gemm::sm90_fp8_gemm_1d2d_impl<X>(P)", "matmul"},
      {"void marlin::Marlin<T>(P)", "matmul"},
      {"_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "matmul"},
      {"bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x8x512u2_s6", "matmul"},
      {"fused_moe_kernel", "matmul"},
      {"Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT32x32x256", "matmul"},
      {"void mul_mat_vec_q<(ggml_type)12, 1>(void const*)", "matmul"},
      {"void vllm::fused_add_rms_norm_kernel<T, 8>(P)", "norm_rope_act"},
      {"void vllm::act_and_mul_kernel<T, silu>(P)", "norm_rope_act"},
      {"_ZN5aiter24add_rmsnorm_quant_kernelIDF16bE", "norm_rope_act"},
      {"triton_red_fused_add_rsqrt_0", "norm_rope_act"},
      {"triton_poi_fused_clone_scaled_dot_product_attention_transpose_3", "norm_rope_act"},
      {"per_token_group_quant_8bit_kernel", "quantise"},
      {"void vllm::dynamic_scaled_fp8_quant_kernel<T>(P)", "quantise"},
      {"void flashinfer::sampling::TopPSamplingFromProbKernel<X>(P)", "sampling"},
      {"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
       "at::native::ArgMaxOps<float> > >(P)",
       "sampling"},
      {"void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(X)>(P)",
       "copy"},
      {"void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(P)",
       "elementwise"},
      {"sparse_attention", "attention"},
      {"select_blocks", "selection"},
      {"block_statistics", "selection"},
      {"write_kv_pages", "kv_write"},
      {"gate_up_matmul", "matmul"},
      {"output_rms_norm", "norm_rope_act"},
      {"rope_table", "norm_rope_act"},
      {"residual_add", "elementwise"},
      {"sampling", "sampling"},
      {"bookkeeping", "other"},
      {"void fovea::cuda::prefill_kernel<fovea::cuda::PrefillTraits<__nv_bfloat16, 128, true> "
       ">(fovea::cuda::PrefillMaps, fovea::cuda::PrefillParams)",
       "attention"},
      {"_ZN5fovea4cuda14prefill_kernelINS0_13PrefillTraitsI13__nv_bfloat16Li128ELb1EEEEEv",
       "attention"},
      {"fovea::cuda::(anonymous namespace)::split_plan_kernel(fovea::cuda::PrefillParams, int)",
       "attention"},
      {"void fovea::cuda::(anonymous namespace)::combine_kernel<__half>(P, int)", "attention"},
      {"void fovea::cuda::select_kernel<fovea::cuda::SelectTraits<128, 2, 4> >(P)", "selection"},
      {"void fovea::cuda::(anonymous namespace)::block_stats_kernel<128>(P)", "selection"},
      {"fovea::cuda::(anonymous namespace)::prefix_kernel(P)", "selection"},
      // Look-alikes that name what they serve.
      {"void deep_gemm::sm90_fp8_mqa_logits<128u, 64u>(P)", "selection"},
      {"void deep_gemm::sm90_fp8_paged_mqa_logits<64u, 64u>(P)", "selection"},
      {"void vllm::topKPerRowDecode<1024, true>(float const*)", "selection"},
      {"void vllm::indexer_k_quant_and_cache_kernel<__nv_bfloat16>(P)", "kv_write"},
      {"_fused_qk_rope_cat_and_cache_mla_kernel", "kv_write"},
      {"_silu_mul_fp8_quant_deep_gemm", "norm_rope_act"},
      {"_ZN5aiter43fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_32E", "matmul"},
      {"_ZN5aiter27pa_bf16_noquant_gqa8_1tg_4wE", "attention"},
      {"_ZN5aiter30mla_pfl_bf16_a16w16_causal_subE", "attention"},
      {"void layer_norm::ln_fwd_kernel<layer_norm::Kernel_traits<P> >(P)", "norm_rope_act"},
      {"void tensorrt_llm::kernels::topKStage2Sampling<float, 256>(P)", "sampling"},
      {"_combine_sampled_and_draft_tokens_kernel", "sampling"},
      {"_prepare_prefill_inputs_kernel", "other"},
      {"void unary_gated_op_kernel<&op_silu, float>(float const*)", "elementwise"},
      {"write_req_to_token_pool_triton", "other"},
      {"triton_tem_fused_mm_3", "unknown"},
      {"triton_tem_fused_flex_attention_0", "unknown"},
      {"my_secret_kernel", "unknown"},
      {"", "unknown"},
  };
  const FamilyTable table;
  for (const Case& one : cases) EXPECT_EQ(table.family_of(one.name), one.family) << one.name;
}

TEST(Families, InductorTemplatesAreDecidedByTheirOperator) {
  const FamilyTable table;
  EXPECT_EQ(table.family_of("triton_tem_fused_0", "aten::addmm"), "matmul");
  EXPECT_EQ(table.family_of("triton_tem_fused_0", "flex_attention"), "attention");
  EXPECT_EQ(table.family_of("triton_tem_fused_0", "aten::copy_"), "unknown");
}

TEST(Families, UsersTableComesFirst) {
  FamilyTable table;
  table.extend(
      "# mine\nattention my_secret_*   other_secret\nrouter full:*<Router>*\n"
      "attention triton_tem_fused_7\n\n");
  EXPECT_EQ(table.family_of("my_secret_kernel"), "attention");
  EXPECT_EQ(table.family_of("void other_secret<int>(P)"), "attention");
  EXPECT_EQ(table.family_of("void gemm<Router>(P)"), "router");
  EXPECT_EQ(table.family_of("triton_tem_fused_7"), "attention");
  EXPECT_EQ(table.family_of("nvjet_tst"), "matmul");
}

TEST(Families, BadTableNamesTheLine) {
  FamilyTable table;
  try {
    table.extend("attention a*\n\nmatmul\n");
    FAIL() << "a family without a pattern was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("line 3"), std::string::npos) << error.what();
  }
  EXPECT_THROW(table.extend("attention full:"), Error);
}

struct LabelCase {
  const char* name;
  Phase phase;
  int64_t context_requests, context_tokens, generation_requests;
};

TEST(StepLabel, EnginesAnnotations) {
  const LabelCase cases[] = {
      {"execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
       Phase::kDecode, 0, 0, 32},
      {"execute_15360_context_15(sq15360sk15360sqsq1sqsk1)_generation_0(sq0sk0sqsq0sqsk0)",
       Phase::kPrefill, 15, 15360, 0},
      {"execute_context_2(512)_generation_8(8)", Phase::kMixed, 2, 512, 8},
      {"execute_context_1_generation_0", Phase::kPrefill, 1, -1, 0},
      {"step[EXTEND bs=15 toks=15360]", Phase::kPrefill, 15, 15360, 0},
      {"step[DECODE bs=8]", Phase::kDecode, 0, 0, 8},
      {"step[MIXED bs=3 toks=77]", Phase::kMixed, -1, 77, -1},
      {"decode[bs=8]", Phase::kDecode, 0, 0, 8},
      {"executeStep: 2 ctx reqs, 0 gen reqs", Phase::kPrefill, 2, -1, 0},
      {"step[IDLE]", Phase::kUnlabelled, -1, -1, -1},
      {"step[prefill bs=1 toks=512]", Phase::kPrefill, 1, 512, 0},
      {"[Executor] _forward_step 12: 1 ctx reqs, 100 ctx tokens, 3 gen reqs", Phase::kMixed, 1, 100,
       3},
      {"[Executor] _forward_step 13: 0 ctx reqs, 4 gen reqs", Phase::kDecode, 0, -1, 4},
      {"execute_new_2_cached_0", Phase::kPrefill, 2, -1, -1},
      {"execute_new_0_cached_9", Phase::kUnlabelled, -1, -1, -1},
      {"ProfilerStep#3", Phase::kUnlabelled, -1, -1, -1},
  };
  for (const LabelCase& one : cases) {
    const auto label = parse_step_label(one.name);
    ASSERT_TRUE(label.has_value()) << one.name;
    EXPECT_EQ(label->phase, one.phase) << one.name;
    EXPECT_EQ(label->context_requests, one.context_requests) << one.name;
    EXPECT_EQ(label->context_tokens, one.context_tokens) << one.name;
    EXPECT_EQ(label->generation_requests, one.generation_requests) << one.name;
  }
}

TEST(StepLabel, OtherNamesAreNoSteps) {
  for (const char* name :
       {"", "decode", "gpu_model_runner: forward", "execute_model", "## Call Compiled ##", "step",
        "nccl:all_reduce", "tokens[bs", "model[layer=3]"}) {
    EXPECT_FALSE(parse_step_label(name).has_value()) << name;
  }
  EXPECT_FALSE(parse_step_label(std::string(5000, 'x') + "step[DECODE]").has_value());
}

}  // namespace
}  // namespace fovea::trace
