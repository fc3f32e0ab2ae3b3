// SPDX-License-Identifier: Apache-2.0
// AdamW state as a safetensors file: NAME.exp_avg and NAME.exp_avg_sq in the shape of parameter NAME (PyTorch's names),
// and `step`. A training run that reads it back continues with the same bits.
#pragma once
#include <graft/io/safetensors/writer.h>
#include <graft/model/optimizer.h>

namespace graft::io {

// The tensors of the file, as views of the optimizer's memory and of `step`.
template <class Updates>
std::vector<tensor_view> optimizer_tensors(basic_adamw<Updates>& optimizer, const std::int64_t& step) {
  std::vector<tensor_view> out{{"step", safetensors_type::i64, {}, std::as_bytes(std::span(&step, 1))}};
  for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const trained_parameter& p = optimizer.parameters()[i];
    std::vector<std::uint64_t> shape(p.value.size, p.value.size + p.value.rank);
    out.push_back({p.name + ".exp_avg", safetensors_type::f32, shape, std::as_bytes(optimizer.mean(i))});
    out.push_back({p.name + ".exp_avg_sq", safetensors_type::f32, shape, std::as_bytes(optimizer.mean_square(i))});
  }
  return out;
}

template <class Updates> status write_optimizer(const std::string& path, basic_adamw<Updates>& optimizer) {
  if (status s = optimizer.fetch(); !s) return s;
  const std::int64_t step = optimizer.steps();
  return write_safetensors(path, optimizer_tensors(optimizer, step));
}

// Restores the state. The optimizer is unchanged unless the file holds the state of exactly its parameters.
template <class Updates> status read_optimizer(const safetensors& file, basic_adamw<Updates>& optimizer) {
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
