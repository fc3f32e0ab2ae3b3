// SPDX-License-Identifier: Apache-2.0
#include <graft/core/bf16.h>
#include <graft/core/f16.h>

#include <cmath>
#include <cstring>

#include "gpu_instances.h"
#include "gpu_layer.h"

namespace test {

using namespace graft;

struct gpu_layer::interface {
  virtual ~interface() = default;
  virtual int add(const layer_graphs&) = 0;
  virtual status set(const char*, const view&, int) = 0;
  virtual status set(const char*, double, int) = 0;
  virtual status size(const char*, long long, int) = 0;
  virtual status prepare(const view&, bool) = 0;
  virtual status forward(const view&, const mutable_view&) = 0;
  virtual status replay(const view&, const mutable_view&, int) = 0;
  virtual status activate(const std::vector<int>&) = 0;
  virtual status merge(const mutable_view&, const mutable_view&) = 0;
  virtual status unmerge(const char*, const view&, const mutable_view&) = 0;
  virtual void enable(bool) = 0;
  virtual std::string describe(long long) const = 0;
};

template <class T> class typed_layer : public gpu_layer::interface {
 public:
  typed_layer(const layer_graphs& graphs, backend how) : layer_(graphs, how), first_(graphs) {
    static_cast<void>(cudaStreamCreate(&stream_));
  }
  ~typed_layer() override { static_cast<void>(cudaStreamDestroy(stream_)); }

  int add(const layer_graphs& graphs) override { return layer_.add(graphs); }
  status set(const char* name, const view& v, int adapter) override {
    const id at = first_.base_forward.find(name);
    const dtype as = at >= 0 && first_.base_forward[at].what == op::base ? cuda::dtype_of<T> : dtype::f32;
    cuda::buffer& to = tensors_[std::string(name) + "#" + std::to_string(adapter)];
    view on_device;
    if (status s = upload(v, as, to, on_device); !s) return s;
    prepared_ = 0;
    return layer_.set(name, on_device, adapter);
  }
  status set(const char* name, double v, int adapter) override { return prepared_ = 0, layer_.set(name, v, adapter); }
  status size(const char* name, long long v, int adapter) override {
    return prepared_ = 0, layer_.size(name, v, adapter);
  }
  status prepare(const view& x, bool fold) override {
    view like = x;
    if (x.type != dtype::i64) like.type = cuda::dtype_of<T>;
    if (status s = layer_.prepare(stream_, like, fold); !s) return s;
    prepared_ = x.size[0];
    return ok;
  }
  status forward(const view& x, const mutable_view& y) override {
    mutable_view to;
    view from;
    if (status s = bring(x, y, from, to); !s) return s;
    if (status s = layer_.forward(stream_, from, to); !s) return s;
    return download(to, y);
  }
  status replay(const view& x, const mutable_view& y, int then_activate) override {
    mutable_view to;
    view from;
    if (status s = bring(x, y, from, to); !s) return s;
    cudaGraph_t captured = nullptr;
    cudaGraphExec_t run = nullptr;
    if (status s = cuda::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture"); !s)
      return s;
    const status enqueued = layer_.forward(stream_, from, to);
    if (status s = cuda::check(cudaStreamEndCapture(stream_, &captured), "end of capture"); !s) return s;
    if (!enqueued) return enqueued;
    if (status s = cuda::check(cudaGraphInstantiate(&run, captured, 0), "instantiate"); !s) return s;
    status s = cuda::check(cudaGraphLaunch(run, stream_), "replay");
    if (s) s = layer_.activate(stream_, {then_activate});
    if (s) s = poison(to);
    if (s) s = cuda::check(cudaGraphLaunch(run, stream_), "second replay");
    if (s) s = download(to, y);
    static_cast<void>(cudaGraphExecDestroy(run));
    static_cast<void>(cudaGraphDestroy(captured));
    return s;
  }
  status activate(const std::vector<int>& adapters) override { return layer_.activate(stream_, adapters); }
  status merge(const mutable_view& weight, const mutable_view& bias) override {
    mutable_view w, b;
    if (status s = room(weight, dtype::f32, merged_weight_, w); !s) return s;
    if (bias.data != nullptr)
      if (status s = room(bias, dtype::f32, merged_bias_, b); !s) return s;
    if (status s = layer_.merge(stream_, w, b); !s) return s;
    if (bias.data != nullptr)
      if (status s = download(b, bias); !s) return s;
    return download(w, weight);
  }
  status unmerge(const char* what, const view& merged, const mutable_view& original) override {
    view from;
    mutable_view to;
    cuda::buffer in, out;
    if (status s = upload(merged, dtype::f32, in, from); !s) return s;
    if (status s = room(original, dtype::f32, out, to); !s) return s;
    if (status s = layer_.unmerge(stream_, what, from, to); !s) return s;
    return download(to, original);
  }
  void enable(bool adapter) override { layer_.enable(adapter); }
  std::string describe(long long tokens) const override { return layer_.describe(tokens).c_str(); }

 private:
  status bring(const view& x, const mutable_view& y, view& from, mutable_view& to) {
    if (x.size[0] > prepared_)
      if (status s = prepare(x, true); !s) return s;
    if (status s = upload(x, x.type == dtype::i64 ? x.type : cuda::dtype_of<T>, x_, from); !s) return s;
    return room(y, cuda::dtype_of<T>, y_, to);
  }
  status upload(const view& v, dtype as, cuda::buffer& to, view& on_device) {
    const auto n = static_cast<std::size_t>(v.count());
    std::vector<char> bytes(n * static_cast<std::size_t>(bits_of(as)) / 8);
    for (std::size_t i = 0; i < n && as != dtype::i64; ++i) {
      const float f = static_cast<const float*>(v.data)[i];
      if (as == dtype::f32) reinterpret_cast<float*>(bytes.data())[i] = f;
      if (as == dtype::bf16) reinterpret_cast<bf16*>(bytes.data())[i] = narrow(f);
      if (as == dtype::f16) reinterpret_cast<f16*>(bytes.data())[i] = narrow_to_f16(f);
    }
    if (as == dtype::i64) std::memcpy(bytes.data(), v.data, bytes.size());
    to = cuda::buffer();
    if (status s = to.reserve(static_cast<long long>(bytes.size())); !s) return s;
    on_device = v;
    on_device.data = to.data(), on_device.type = as;
    return cuda::check(cudaMemcpy(to.data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "upload");
  }
  status room(const mutable_view& like, dtype as, cuda::buffer& in, mutable_view& on_device) {
    in = cuda::buffer();
    if (status s = in.reserve(like.count() * bits_of(as) / 8); !s) return s;
    on_device = like;
    on_device.data = in.data(), on_device.type = as;
    return poison(on_device);
  }
  status poison(const mutable_view& v) {
    return cuda::check(
        cudaMemsetAsync(v.data, 0xff, static_cast<std::size_t>(v.count() * bits_of(v.type) / 8), stream_), "poison");
  }
  status download(const mutable_view& from, const mutable_view& to) {
    const auto n = static_cast<std::size_t>(to.count());
    std::vector<char> bytes(n * static_cast<std::size_t>(bits_of(from.type)) / 8);
    if (status s = cuda::check(cudaStreamSynchronize(stream_), "waiting for the layer"); !s) return s;
    if (status s = cuda::check(cudaMemcpy(bytes.data(), from.data, bytes.size(), cudaMemcpyDeviceToHost), "download");
        !s)
      return s;
    for (std::size_t i = 0; i < n; ++i) {
      float& f = static_cast<float*>(to.data)[i];
      if (from.type == dtype::f32) f = reinterpret_cast<const float*>(bytes.data())[i];
      if (from.type == dtype::bf16) f = widen(reinterpret_cast<const bf16*>(bytes.data())[i]);
      if (from.type == dtype::f16) f = widen(reinterpret_cast<const f16*>(bytes.data())[i]);
    }
    return ok;
  }

  cuda::executor<T> layer_;
  layer_graphs first_;
  cudaStream_t stream_ = nullptr;
  std::map<std::string, cuda::buffer> tensors_;
  cuda::buffer x_, y_, merged_weight_, merged_bias_;
  long long prepared_ = 0;
};

std::string why_no_gpu() {
  int devices = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&devices); e != cudaSuccess) return cudaGetErrorString(e);
  return devices == 0 ? "no device was found" : "";
}

gpu_layer::gpu_layer(const layer_graphs& graphs, dtype type, backend how) {
  switch (type) {
    case dtype::bf16: layer_ = std::make_unique<typed_layer<__nv_bfloat16>>(graphs, how); break;
    case dtype::f16: layer_ = std::make_unique<typed_layer<__half>>(graphs, how); break;
    default: layer_ = std::make_unique<typed_layer<float>>(graphs, how);
  }
}
gpu_layer::gpu_layer(gpu_layer&&) noexcept = default;
gpu_layer::~gpu_layer() = default;

int gpu_layer::add(const layer_graphs& graphs) { return layer_->add(graphs); }
status gpu_layer::set(const char* name, const view& v, int adapter) { return layer_->set(name, v, adapter); }
status gpu_layer::set(const char* name, double v, int adapter) { return layer_->set(name, v, adapter); }
status gpu_layer::size(const char* name, long long v, int adapter) { return layer_->size(name, v, adapter); }
status gpu_layer::prepare(const view& x, bool fold) { return layer_->prepare(x, fold); }
status gpu_layer::forward(const view& x, const mutable_view& y) { return layer_->forward(x, y); }
status gpu_layer::replay(const view& x, const mutable_view& y, int then) { return layer_->replay(x, y, then); }
status gpu_layer::activate(const std::vector<int>& adapters) { return layer_->activate(adapters); }
status gpu_layer::merge(const mutable_view& weight, const mutable_view& bias) { return layer_->merge(weight, bias); }
status gpu_layer::unmerge(const char* what, const view& merged, const mutable_view& original) {
  return layer_->unmerge(what, merged, original);
}
void gpu_layer::enable(bool adapter) { layer_->enable(adapter); }
std::string gpu_layer::describe(long long tokens) const { return layer_->describe(tokens); }

}  // namespace test
