// SPDX-License-Identifier: Apache-2.0
#include <graft/core/bf16.h>
#include <graft/core/f16.h>
#include <graft/gpu.h>

#include <cmath>
#include <cstring>

#include "gpu_layer.h"

namespace test {

using namespace graft;

struct gpu_layer::interface {
  virtual ~interface() = default;
  virtual result<int> add(const layer_graphs&) = 0;
  virtual status set(const char*, const view&, int) = 0;
  virtual status set(const char*, double, int) = 0;
  virtual status size(const char*, long long, int) = 0;
  virtual status bind(const capacity&) = 0;
  virtual status forward(const view&, const mutable_view&) = 0;
  virtual status backward(const view&, const view&, const mutable_view&, const std::vector<gradient>&) = 0;
  virtual status replay(const view&, const mutable_view&, const std::function<status()>&) = 0;
  virtual status activate(const std::vector<int>&) = 0;
  virtual status replace(int, const named_values&) = 0;
  virtual status remove(int) = 0;
  virtual status parameters_changed() = 0;
  virtual status overwrite(const char*, const view&, int) = 0;
  virtual status merge(const mutable_view&, const mutable_view&) = 0;
  virtual status unmerge(const char*, const view&, const mutable_view&) = 0;
  virtual status enable(bool) = 0;
  virtual void train(bool) = 0;
  virtual long long saved_bytes(long long) = 0;
  virtual std::string describe(long long) const = 0;
  virtual status enable_autotuning(const std::string&) = 0;
  virtual int timed() const = 0;
  virtual long long launched() const = 0;
  virtual int planned(bool, long long) const = 0;
};

template <class T> class typed_layer : public gpu_layer::interface {
 public:
  typed_layer(const layer_graphs& graphs, execution_mode how) : layer_(graphs, how), first_(graphs) {
    static_cast<void>(cudaStreamCreate(&stream_));
    layer_.on(stream_);
  }
  ~typed_layer() override { static_cast<void>(cudaStreamDestroy(stream_)); }

  result<int> add(const layer_graphs& graphs) override { return layer_.add(graphs); }
  status set(const char* name, const view& v, int adapter) override {
    view on_device;
    if (v.quant != nullptr) {
      const std::string at = key(name, adapter);
      const result<view> placed = gpu::upload_quantized(stream_, v, tensors_[at] = gpu::buffer(), planes_[at]);
      if (!placed) return placed.failure();
      return bound_ = 0, layer_.set(name, *placed, adapter);
    }
    if (status s = upload(v, stored_as(name, v), tensors_[key(name, adapter)], on_device); !s) return s;
    if (of_base(name)) bound_ = 0;
    return layer_.set(name, on_device, adapter);
  }
  status set(const char* name, double v, int adapter) override { return layer_.set(name, v, adapter); }
  status size(const char* name, long long v, int adapter) override { return bound_ = 0, layer_.size(name, v, adapter); }
  status bind(const capacity& limits) override {
    limits_ = limits;
    if (status s = layer_.bind(limits); !s) return s;
    bound_ = limits.tokens;
    return ok;
  }
  status forward(const view& x, const mutable_view& y) override {
    mutable_view to;
    view from;
    if (status s = bring(x, y, from, to); !s) return s;
    const long long before = gpu::launch_count();
    if (status s = layer_.forward(from, to); !s) return s;
    launched_ = gpu::launch_count() - before;
    return download(to, y);
  }
  status backward(const view& x, const view& dy, const mutable_view& dx,
                  const std::vector<gradient>& gradients) override {
    view from, up;
    mutable_view down;
    if (status s = bring_in(x, from); !s) return s;
    if (status s = upload(dy, gpu::dtype_of<T>, dy_, up); !s) return s;
    if (dx.data != nullptr)
      if (status s = allocate_like(dx, gpu::dtype_of<T>, y_, down); !s) return s;
    std::vector<gradient> there;
    std::vector<gpu::buffer> memory(gradients.size());
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      mutable_view v;
      if (status s = allocate_like(gradients[i].into, dtype::f32, memory[i], v); !s) return s;
      there.push_back({gradients[i].name, v});
    }
    const long long before = gpu::launch_count();
    if (status s = layer_.backward(from, up, down, there); !s) return s;
    launched_ = gpu::launch_count() - before;
    for (std::size_t i = 0; i < gradients.size(); ++i)
      if (status s = download(there[i].into, gradients[i].into); !s) return s;
    return dx.data == nullptr ? status(ok) : download(down, dx);
  }
  status replay(const view& x, const mutable_view& y, const std::function<status()>& change) override {
    mutable_view to;
    view from;
    if (status s = bring(x, y, from, to); !s) return s;
    cudaGraph_t captured = nullptr;
    cudaGraphExec_t run = nullptr;
    if (status s = gpu::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture"); !s)
      return s;
    const status enqueued = layer_.forward(from, to);
    if (status s = gpu::check(cudaStreamEndCapture(stream_, &captured), "end of capture"); !s) return s;
    if (!enqueued) return enqueued;
    if (status s = gpu::check(cudaGraphInstantiate(&run, captured, 0), "instantiate"); !s) return s;
    status s = gpu::check(cudaGraphLaunch(run, stream_), "replay");
    if (s) s = change();
    if (s) s = poison(to);
    if (s) s = gpu::check(cudaGraphLaunch(run, stream_), "second replay");
    if (s) s = download(to, y);
    static_cast<void>(cudaGraphExecDestroy(run));
    static_cast<void>(cudaGraphDestroy(captured));
    return s;
  }
  status activate(const std::vector<int>& adapters) override { return layer_.activate(adapters); }
  status replace(int adapter, const named_values& values) override {
    named_values there = values;
    static int fresh = 0;  // the old tensors stay valid until the layer has replaced them
    const std::string mark = "!" + std::to_string(++fresh);
    for (auto& [name, v] : there.tensors)
      if (status s = upload(v, stored_as(name.c_str(), v), tensors_[key(name.c_str(), adapter) + mark], v); !s)
        return s;
    return layer_.replace(adapter, there);
  }
  status remove(int adapter) override { return layer_.remove(adapter); }
  status parameters_changed() override { return layer_.parameters_changed(); }
  status overwrite(const char* name, const view& v, int adapter) override {
    const auto n = static_cast<std::size_t>(v.count());
    if (stored_as(name, v) != dtype::f32) return fail("only float tensors are overwritten here");
    return gpu::check(cudaMemcpy(tensors_.at(key(name, adapter)).data(), v.data, n * 4, cudaMemcpyHostToDevice),
                      "write");
  }
  status merge(const mutable_view& weight, const mutable_view& bias) override {
    mutable_view w, b;
    if (status s = allocate_like(weight, dtype::f32, merged_weight_, w); !s) return s;
    if (bias.data != nullptr)
      if (status s = allocate_like(bias, dtype::f32, merged_bias_, b); !s) return s;
    if (status s = layer_.merge(w, b); !s) return s;
    if (bias.data != nullptr)
      if (status s = download(b, bias); !s) return s;
    return download(w, weight);
  }
  status unmerge(const char* what, const view& merged, const mutable_view& original) override {
    view from;
    mutable_view to;
    gpu::buffer in, out;
    if (status s = upload(merged, dtype::f32, in, from); !s) return s;
    if (status s = allocate_like(original, dtype::f32, out, to); !s) return s;
    if (status s = layer_.unmerge(what, from, to); !s) return s;
    return download(to, original);
  }
  status enable(bool adapter) override { return layer_.enable(adapter); }
  void train(bool on) override { layer_.train(on); }
  long long saved_bytes(long long tokens) override { return layer_.saved_bytes(tokens); }
  status enable_autotuning(const std::string& file) override { return layer_.enable_autotuning(file); }
  int timed() const override { return layer_.tuner() == nullptr ? 0 : layer_.tuner()->timed(); }
  std::string describe(long long tokens) const override { return layer_.describe(tokens).c_str(); }
  long long launched() const override { return launched_; }
  int planned(bool backward, long long tokens) const override {
    const auto* bound = backward ? layer_.bound_backward() : layer_.bound_forward();
    if (bound == nullptr) return -1;
    size_values s = bound->with.sizes;
    bound->g().sizes.set_tokens(s, tokens);
    return kernel_count(bound->g(), bound->in->launches(), s, gpu::dtype_of<T>);
  }

 private:
  static std::string key(const char* name, int adapter) { return std::string(name) + "#" + std::to_string(adapter); }
  bool of_base(const char* name) const { return first_.base_forward.find(name) >= 0; }
  dtype stored_as(const char* name, const view& v) const {
    if (v.type == dtype::i64) return v.type;
    const id at = first_.base_forward.find(name);
    return at >= 0 && first_.base_forward[at].what == op::base ? gpu::dtype_of<T> : dtype::f32;
  }
  status bring_in(const view& x, view& from) {
    if (const long long tokens = tokens_of(first_, x); tokens > bound_) {
      limits_.tokens = tokens;
      if (status s = bind(limits_); !s) return s;
    }
    return upload(x, x.type == dtype::i64 ? x.type : gpu::dtype_of<T>, x_, from);
  }
  status bring(const view& x, const mutable_view& y, view& from, mutable_view& to) {
    if (status s = bring_in(x, from); !s) return s;
    return allocate_like(y, gpu::dtype_of<T>, y_, to);
  }
  status upload(const view& v, dtype as, gpu::buffer& to, view& on_device) {
    const auto n = static_cast<std::size_t>(v.count());
    std::vector<char> bytes(n * static_cast<std::size_t>(bits_of(as)) / 8);
    for (std::size_t i = 0; i < n && as != dtype::i64; ++i) {
      const float f = static_cast<const float*>(v.data)[i];
      if (as == dtype::f32) reinterpret_cast<float*>(bytes.data())[i] = f;
      if (as == dtype::bf16) reinterpret_cast<bf16*>(bytes.data())[i] = narrow(f);
      if (as == dtype::f16) reinterpret_cast<f16*>(bytes.data())[i] = narrow_to_f16(f);
    }
    if (as == dtype::i64) std::memcpy(bytes.data(), v.data, bytes.size());
    // Memory of the exact size, so that memcheck sees accesses outside; the same memory where the size stays, because a
    // backward pass in training takes the x of its forward pass.
    if (to.bytes() != static_cast<long long>(bytes.size())) to = gpu::buffer();
    if (status s = to.reserve(static_cast<long long>(bytes.size())); !s) return s;
    on_device = v;
    on_device.data = to.data(), on_device.type = as;
    return gpu::check(cudaMemcpy(to.data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "upload");
  }
  status allocate_like(const mutable_view& like, dtype as, gpu::buffer& in, mutable_view& on_device) {
    in = gpu::buffer();
    if (status s = in.reserve(like.count() * bits_of(as) / 8); !s) return s;
    on_device = like;
    on_device.data = in.data(), on_device.type = as;
    return poison(on_device);
  }
  status poison(const mutable_view& v) {
    return gpu::check(cudaMemsetAsync(v.data, 0xff, static_cast<std::size_t>(v.count() * bits_of(v.type) / 8), stream_),
                      "poison");
  }
  status download(const mutable_view& from, const mutable_view& to) {
    const auto n = static_cast<std::size_t>(to.count());
    std::vector<char> bytes(n * static_cast<std::size_t>(bits_of(from.type)) / 8);
    if (status s = gpu::check(cudaStreamSynchronize(stream_), "waiting for the layer"); !s) return s;
    if (status s = gpu::check(cudaMemcpy(bytes.data(), from.data, bytes.size(), cudaMemcpyDeviceToHost), "download");
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

  gpu::executor<T> layer_;
  layer_graphs first_;
  cudaStream_t stream_ = nullptr;
  std::map<std::string, gpu::buffer> tensors_;
  std::map<std::string, quant_state> planes_;  // of quantized tensors
  gpu::buffer x_, dy_, y_, merged_weight_, merged_bias_;
  capacity limits_{};
  long long bound_ = 0, launched_ = 0;
};

std::string why_no_gpu() {
  int devices = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&devices); e != cudaSuccess) return cudaGetErrorString(e);
  return devices == 0 ? "no device was found" : "";
}

gpu_layer::gpu_layer(const layer_graphs& graphs, dtype type, execution_mode how) {
  switch (type) {
    case dtype::bf16: layer_ = std::make_unique<typed_layer<__nv_bfloat16>>(graphs, how); break;
    case dtype::f16: layer_ = std::make_unique<typed_layer<__half>>(graphs, how); break;
    default: layer_ = std::make_unique<typed_layer<float>>(graphs, how);
  }
}
gpu_layer::gpu_layer(gpu_layer&&) noexcept = default;
gpu_layer::~gpu_layer() = default;

result<int> gpu_layer::add(const layer_graphs& graphs) { return layer_->add(graphs); }
status gpu_layer::set(const char* name, const view& v, int adapter) { return layer_->set(name, v, adapter); }
status gpu_layer::set(const char* name, double v, int adapter) { return layer_->set(name, v, adapter); }
status gpu_layer::size(const char* name, long long v, int adapter) { return layer_->size(name, v, adapter); }
status gpu_layer::bind(const capacity& limits) { return layer_->bind(limits); }
status gpu_layer::forward(const view& x, const mutable_view& y) { return layer_->forward(x, y); }
status gpu_layer::backward(const view& x, const view& dy, const mutable_view& dx, const std::vector<gradient>& into) {
  return layer_->backward(x, dy, dx, into);
}
status gpu_layer::replay(const view& x, const mutable_view& y, const std::function<status()>& change) {
  return layer_->replay(x, y, change);
}
status gpu_layer::activate(const std::vector<int>& adapters) { return layer_->activate(adapters); }
status gpu_layer::replace(int adapter, const named_values& values) { return layer_->replace(adapter, values); }
status gpu_layer::remove(int adapter) { return layer_->remove(adapter); }
status gpu_layer::parameters_changed() { return layer_->parameters_changed(); }
status gpu_layer::overwrite(const char* name, const view& v, int adapter) {
  return layer_->overwrite(name, v, adapter);
}
status gpu_layer::merge(const mutable_view& weight, const mutable_view& bias) { return layer_->merge(weight, bias); }
status gpu_layer::unmerge(const char* what, const view& merged, const mutable_view& original) {
  return layer_->unmerge(what, merged, original);
}
status gpu_layer::enable(bool adapter) { return layer_->enable(adapter); }
void gpu_layer::train(bool on) { layer_->train(on); }
long long gpu_layer::saved_bytes(long long tokens) { return layer_->saved_bytes(tokens); }
status gpu_layer::enable_autotuning(const std::string& file) { return layer_->enable_autotuning(file); }
int gpu_layer::timed() const { return layer_->timed(); }
std::string gpu_layer::describe(long long tokens) const { return layer_->describe(tokens); }
long long gpu_layer::launched() const { return layer_->launched(); }
int gpu_layer::planned(bool backward, long long tokens) const { return layer_->planned(backward, tokens); }

}  // namespace test
