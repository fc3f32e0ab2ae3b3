// SPDX-License-Identifier: Apache-2.0
// The bare GEMM through cuBLASLt with float accumulation, y[m, n] = x[m, k] · w[n, k]ᵀ + beta y, or with w[k, n] (NN
// layout) instead. The fastest of the plans that its heuristic offers is chosen by timing them as they will be used.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <graft/backend/gpu/arch/error.h>
#include <graft/backend/gpu/runtime/device_memory.h>
#include <graft/backend/gpu/tile/elements.cuh>

#include <algorithm>
#include <functional>

namespace graft::gpu::bench_detail {

// Device time without the host's: calls are captured in a CUDA graph, and its replay is timed by CUDA events.
using enqueue_function = std::function<status(cudaStream_t)>;

class replay {
 public:
  replay() = default;
  replay(const replay&) = delete;
  replay& operator=(const replay&) = delete;
  ~replay() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_), cudaEventDestroy(begin_), cudaEventDestroy(end_);
  }
  status capture(cudaStream_t stream, int calls, const enqueue_function& enqueue) {
    stream_ = stream, calls_ = calls;
    cudaGraph_t graph = nullptr;
    if (status s = check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing"); !s) return s;
    const status queued = enqueue(stream);
    if (status s = check(cudaStreamEndCapture(stream, &graph), "the end of a capture"); !s || !queued)
      return queued ? s : queued;
    status made = check(cudaGraphInstantiate(&exec_, graph, 0), "instantiating a graph");
    cudaGraphDestroy(graph);
    if (made) made = check(cudaEventCreate(&begin_), "an event");
    if (made) made = check(cudaEventCreate(&end_), "an event");
    return made;
  }
  void untimed() const { static_cast<void>(cudaGraphLaunch(exec_, stream_)); }
  // Returns seconds per call; 0 if the device reports an error.
  double seconds() const {
    cudaEventRecord(begin_, stream_), untimed(), cudaEventRecord(end_, stream_);
    float ms = 0;
    if (cudaEventSynchronize(end_) != cudaSuccess || cudaEventElapsedTime(&ms, begin_, end_) != cudaSuccess) return 0;
    return static_cast<double>(ms) * 1e-3 / calls_;
  }

 private:
  cudaStream_t stream_ = nullptr;
  int calls_ = 1;
  cudaGraphExec_t exec_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

inline status check_blas(cublasStatus_t s, const char* what) {
  return s == CUBLAS_STATUS_SUCCESS ? status(ok) : status(fail("cuBLASLt: ", what, ": ", cublasLtGetStatusString(s)));
}

template <class T> class cublaslt_gemm {
 public:
  static constexpr cudaDataType type = sizeof(T) == 4                     ? CUDA_R_32F
                                       : std::is_same_v<T, __nv_bfloat16> ? CUDA_R_16BF
                                                                          : CUDA_R_16F;
  cublaslt_gemm() = default;
  cublaslt_gemm(const cublaslt_gemm&) = delete;
  cublaslt_gemm& operator=(const cublaslt_gemm&) = delete;
  ~cublaslt_gemm() {
    if (y_ != nullptr) cublasLtMatrixLayoutDestroy(y_);
    if (x_ != nullptr) cublasLtMatrixLayoutDestroy(x_);
    if (w_ != nullptr) cublasLtMatrixLayoutDestroy(w_);
    if (op_ != nullptr) cublasLtMatmulDescDestroy(op_);
    if (handle_ != nullptr) cublasLtDestroy(handle_);
  }
  status open(long long m, long long n, long long k, bool nn = false) {
    const cublasOperation_t weight_op = nn ? CUBLAS_OP_N : CUBLAS_OP_T;
    const long long width = nn ? n : k, height = nn ? k : n;
    if (status s = check_blas(cublasLtCreate(&handle_), "opening it"); !s) return s;
    if (status s = workspace_.reserve(workspace_bytes); !s) return s;
    cublasLtMatmulDescCreate(&op_, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(op_, CUBLASLT_MATMUL_DESC_TRANSA, &weight_op, sizeof weight_op);
    cublasLtMatrixLayoutCreate(&w_, type, static_cast<uint64_t>(width), static_cast<uint64_t>(height), width);
    cublasLtMatrixLayoutCreate(&x_, type, static_cast<uint64_t>(k), static_cast<uint64_t>(m), k);
    cublasLtMatrixLayoutCreate(&y_, type, static_cast<uint64_t>(n), static_cast<uint64_t>(m), n);
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulPreferenceCreate(&preference);
    const std::size_t bytes = workspace_bytes;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
    const status found =
        check_blas(cublasLtMatmulAlgoGetHeuristic(handle_, op_, w_, x_, y_, y_, preference, max_plans, plans_, &found_),
                   "its heuristic");
    cublasLtMatmulPreferenceDestroy(preference);
    return !found || found_ > 0 ? found : status(fail("cuBLASLt has no plan for this product"));
  }
  status run(cudaStream_t stream, const void* x, const void* w, void* y, float beta = 0) const {
    const float one = 1;
    return check_blas(cublasLtMatmul(handle_, op_, &one, w, w_, x, x_, &beta, y, y_, y, y_, &plans_[best_].algo,
                                     workspace_.data(), workspace_bytes, stream),
                      "a product");
  }
  // Chooses the fastest plan; `enqueue` runs the calls as they will be timed.
  status choose(cudaStream_t stream, int calls, const enqueue_function& enqueue) {
    double least = 1e30;
    int winner = 0;
    for (best_ = 0; best_ < found_; ++best_) {
      replay r;
      if (status s = r.capture(stream, calls, enqueue); !s) return s;
      double took = 1e30;
      for (int i = 0; i < 5; ++i) took = std::min(took, r.seconds());
      if (took > 0 && took < least) least = took, winner = best_;
    }
    best_ = winner;
    return ok;
  }

 private:
  static constexpr int max_plans = 16;
  static constexpr std::size_t workspace_bytes = 128U << 20U;
  cublasLtHandle_t handle_ = nullptr;
  buffer workspace_;
  cublasLtMatmulDesc_t op_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, y_ = nullptr;
  cublasLtMatmulHeuristicResult_t plans_[max_plans];  // an array: nvcc 13.0 rejects a vector of this unnamed struct
  int found_ = 0, best_ = 0;
};

}  // namespace graft::gpu::bench_detail
