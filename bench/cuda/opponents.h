// SPDX-License-Identifier: Apache-2.0
// The opponent: cuBLASLt, with the quickest of the plans its heuristic offers, timed as it will be used.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace bench {

inline void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "bench: %s failed (%s)\n", what, cudaGetErrorString(cudaGetLastError()));
  std::exit(1);
}

// A captured sequence of calls, and its time in microseconds per call.
class replay {
 public:
  replay(cudaStream_t stream, int calls, const std::function<void(cudaStream_t)>& enqueue)
      : stream_(stream), calls_(calls) {
    cudaGraph_t graph;
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess, "capture");
    enqueue(stream);
    require(cudaStreamEndCapture(stream, &graph) == cudaSuccess, "end of capture");
    require(cudaGraphInstantiate(&exec_, graph, 0) == cudaSuccess, "instantiate");
    cudaGraphDestroy(graph);
    cudaEventCreate(&begin_), cudaEventCreate(&end_);
  }
  replay(const replay&) = delete;
  replay& operator=(const replay&) = delete;
  ~replay() { cudaGraphExecDestroy(exec_), cudaEventDestroy(begin_), cudaEventDestroy(end_); }

  void untimed() const { require(cudaGraphLaunch(exec_, stream_) == cudaSuccess, "replay"); }
  double microseconds() const {
    cudaEventRecord(begin_, stream_);
    untimed();
    cudaEventRecord(end_, stream_);
    require(cudaEventSynchronize(end_) == cudaSuccess, "replay");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin_, end_);
    return static_cast<double>(ms) * 1000 / calls_;
  }

 private:
  cudaStream_t stream_;
  int calls_;
  cudaGraphExec_t exec_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// y[m, n] = x[m, k] · w[n, k]ᵀ + beta · y, or w [k, n] and no transposition, in bf16 with float accumulation.
class lt_product {
 public:
  lt_product(cublasLtHandle_t handle, void* workspace, std::size_t bytes, int m, int n, int k, bool across = false)
      : handle_(handle), workspace_(workspace), bytes_(bytes) {
    const cublasOperation_t how = across ? CUBLAS_OP_N : CUBLAS_OP_T;
    const int width = across ? n : k;
    cublasLtMatmulDescCreate(&op_, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(op_, CUBLASLT_MATMUL_DESC_TRANSA, &how, sizeof how);
    cublasLtMatrixLayoutCreate(&w_, CUDA_R_16BF, static_cast<uint64_t>(width), static_cast<uint64_t>(across ? k : n),
                               width);
    cublasLtMatrixLayoutCreate(&x_, CUDA_R_16BF, static_cast<uint64_t>(k), static_cast<uint64_t>(m), k);
    cublasLtMatrixLayoutCreate(&y_, CUDA_R_16BF, static_cast<uint64_t>(n), static_cast<uint64_t>(m), n);
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes_, sizeof bytes_);
    require(cublasLtMatmulAlgoGetHeuristic(handle, op_, w_, x_, y_, y_, preference, most, plans_, &found_) ==
                    CUBLAS_STATUS_SUCCESS &&
                found_ > 0,
            "cuBLASLt's heuristic");
    cublasLtMatmulPreferenceDestroy(preference);
  }
  void run(cudaStream_t stream, const void* x, const void* w, void* y, float beta) const {
    const float one = 1;
    require(cublasLtMatmul(handle_, op_, &one, w, w_, x, x_, &beta, y, y_, y, y_, &plans_[best_].algo, workspace_,
                           bytes_, stream) == CUBLAS_STATUS_SUCCESS,
            "cublasLtMatmul");
  }
  // Keeps the quickest plan; `enqueue` runs a few calls as they will be timed.
  void choose(cudaStream_t stream, int calls, const std::function<void(cudaStream_t)>& enqueue) {
    double least = 1e30;
    int winner = 0;
    for (best_ = 0; best_ < found_; ++best_) {
      const replay r(stream, calls, enqueue);
      double us = 1e30;
      for (int i = 0; i < 5; ++i) us = std::min(us, r.microseconds());
      if (us < least) least = us, winner = best_;
    }
    best_ = winner;
  }

 private:
  static constexpr int most = 16;
  cublasLtHandle_t handle_;
  void* workspace_;
  std::size_t bytes_;
  cublasLtMatmulDesc_t op_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, y_ = nullptr;
  cublasLtMatmulHeuristicResult_t plans_[most];  // not a vector: nvcc 13.0 stumbles over one of this unnamed struct
  int found_ = 0, best_ = 0;
};

}  // namespace bench
