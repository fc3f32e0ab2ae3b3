// SPDX-License-Identifier: Apache-2.0
// The state of an optimizer as a safetensors file: NAME.exp_avg and NAME.exp_avg_sq, PyTorch's names, in the shape of
// parameter NAME, and `step`. A run that is read back goes on with the same bits.
#pragma once
#include <graft/io/safetensors_write.h>
#include <graft/model/optimizer.h>

namespace graft::io {

// What belongs into the file; the views are of the optimizer and of `step`.
template <class Updates>
std::vector<tensor_view> optimizer_tensors(adamw_on<Updates>& optimizer, const std::int64_t& step) {
  std::vector<tensor_view> out{{"step", safetensors_type::i64, {}, std::as_bytes(std::span(&step, 1))}};
  for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const trained_parameter& p = optimizer.parameters()[i];
    std::vector<std::uint64_t> shape(p.value.size, p.value.size + p.value.rank);
    out.push_back({p.name + ".exp_avg", safetensors_type::f32, shape, std::as_bytes(optimizer.mean(i))});
    out.push_back({p.name + ".exp_avg_sq", safetensors_type::f32, shape, std::as_bytes(optimizer.mean_square(i))});
  }
  return out;
}

template <class Updates> status write_optimizer(const std::string& path, adamw_on<Updates>& optimizer) {
  if (status s = optimizer.fetch(); !s) return s;
  const std::int64_t step = optimizer.steps();
  return write_safetensors(path, optimizer_tensors(optimizer, step));
}

// Nothing changes unless the file holds the state of just these parameters.
template <class Updates> status read_optimizer(const safetensors& file, adamw_on<Updates>& optimizer) {
  std::int64_t step = 0;
  const std::vector<tensor_view> wanted = optimizer_tensors(optimizer, step);
  for (const tensor_view& w : wanted) {
    const result<tensor_view> t = file.find(w.name);
    if (!t) return t.failure();
    if (t->type != w.type || t->shape != w.shape)
      return fail_in(file.file, "tensor ", in_quotes(w.name), " is ", name_of(t->type), " ", shape_text(t->shape),
                     ", expected ", name_of(w.type), " ", shape_text(w.shape));
  }
  if (file.tensors.size() != wanted.size())
    return fail_in(file.file, "holds ", number(file.tensors.size()), " tensors, expected the ", number(wanted.size()),
                   " of the parameters that are trained");
  std::memcpy(&step, file.find("step")->data.data(), sizeof step);
  if (step < 0) return fail_in(file.file, "'step' is negative");
  const auto fill = [&](const std::string& name, std::span<float> to) {
    const std::span<const std::byte> from = file.find(name)->data;
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
  };
  for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
    fill(optimizer.parameters()[i].name + ".exp_avg", optimizer.mean(i));
    fill(optimizer.parameters()[i].name + ".exp_avg_sq", optimizer.mean_square(i));
  }
  optimizer.set_steps(step);
  return optimizer.send();
}

}  // namespace graft::io
