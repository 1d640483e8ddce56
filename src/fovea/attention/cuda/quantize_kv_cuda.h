// Keys, values and queries as f8e4m3 on the GPU; includes no CUDA header. Built with FOVEA_CUDA
// only.
#pragma once

#include "fovea/attention/append_kv.h"
#include "fovea/attention/quantize_kv.h"

namespace fovea {

/// quantize_kv() and quantize_q() for tensors and tables in GPU memory, `from` in bf16 or f16, with
/// the same bits as on the CPU. Tables are read on the device and trusted. Throw kInvalidArgument
/// on shapes that do not fit, kUnsupported on strides or a head_dim that are not multiples of 8.
void quantize_kv_cuda(const KvView& from, const KvView& to, int64_t seq, int64_t first_page,
                      int64_t kv_len, const Context& context);
void quantize_q_cuda(const TensorView& from, const TensorView& scale, const TensorView& to,
                     const Context& context);

/// append_kv() on a GPU; rows are bf16 or f16.
void append_kv_cuda(const AppendKvTask& task, const Context& context);

}  // namespace fovea
