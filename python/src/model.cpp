// SPDX-License-Identifier: Apache-2.0
// The extension graft_torch._model: stored_model (model.h) and the tokenizer for Python, by nanobind. Logits become
// tensors of PyTorch by DLPack, which share the memory that the engine wrote. Long calls release Python's lock.
#include "model.h"

#include <graft/io/load_model.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;

namespace graft::pytorch {
namespace {

using tensor = nb::ndarray<nb::pytorch>;

tensor tensor_of(const logit_rows& from, int device) {
  const std::uint8_t bits = static_cast<std::uint8_t>(bits_of(from.type));
  const nb::dlpack::dtype type{static_cast<std::uint8_t>(from.type == dtype::bf16 ? nb::dlpack::dtype_code::Bfloat
                                                                                  : nb::dlpack::dtype_code::Float),
                               bits, 1};
  auto owner = std::make_unique<std::shared_ptr<void>>(from.owner);
  const nb::capsule keeps(owner.release(), [](void* p) noexcept { delete static_cast<std::shared_ptr<void>*>(p); });
  const std::size_t shape[] = {static_cast<std::size_t>(from.rows), static_cast<std::size_t>(from.vocabulary)};
  return tensor(from.data, 2, shape, keeps, nullptr, type,
                from.on_gpu ? nb::device::cuda::value : nb::device::cpu::value, from.on_gpu ? device : 0);
}
std::unique_ptr<stored_model> load(const std::string& path, const std::string& device, int context) {
  const nb::gil_scoped_release free;
  if (device == "cpu") return load_on_cpu(path, context);
#if defined(GRAFT_TORCH_CUDA)
  return load_on_cuda(path, context, device == "cuda-f32");
#else
  throw std::runtime_error("this build of graft_torch has models for the CPU alone; build it where nvcc is installed");
#endif
}

// The tokenizer of a model's folder or GGUF file.
struct words {
  explicit words(const std::string& path) : of(taken(io::read_tokenizer(path))) {}
  static io::hf::tokenizer taken(result<io::hf::tokenizer> r) {
    if (!r) throw std::runtime_error(r.message());
    return std::move(*r);
  }
  std::vector<std::int64_t> encode(const std::string& text) const {
    auto made = of.encode(text);
    if (!made) throw std::runtime_error(made.message());
    return std::move(*made);
  }
  std::string decode(const std::vector<std::int64_t>& tokens) const { return of.decode(tokens); }
  io::hf::tokenizer of;
};

// What a call of generate() may change of the model's own settings.
struct requested_settings {
  std::optional<int> max_new_tokens{}, top_k{};
  std::optional<bool> sample{};
  std::optional<double> temperature{}, top_p{}, min_p{}, repetition_penalty{};
  std::optional<unsigned long long> seed{};
  std::optional<std::vector<int>> eos_tokens{};

  generation_settings over(generation_settings s) const {
    if (max_new_tokens) s.max_new_tokens = max_new_tokens;
    if (eos_tokens) s.eos_tokens = eos_tokens;
    s.sampling.sample = sample.value_or(s.sampling.sample);
    s.sampling.temperature = temperature.value_or(s.sampling.temperature);
    s.sampling.top_k = top_k.value_or(s.sampling.top_k);
    s.sampling.top_p = top_p.value_or(s.sampling.top_p);
    s.sampling.min_p = min_p.value_or(s.sampling.min_p);
    s.sampling.repetition_penalty = repetition_penalty.value_or(s.sampling.repetition_penalty);
    s.sampling.seed = seed.value_or(s.sampling.seed);
    return s;
  }
};

std::vector<stored_model::ids> generate(stored_model& m, const std::vector<stored_model::ids>& prompts,
                                        const requested_settings& r, const std::vector<stored_model::names>& which) {
  bool interrupted = false;
  std::vector<stored_model::ids> all;
  {
    const nb::gil_scoped_release free;
    all = m.generate(prompts, r.over(m.settings()), which, [&](std::size_t, std::int64_t) {
      const nb::gil_scoped_acquire held;
      interrupted = interrupted || PyErr_CheckSignals() != 0;
      return !interrupted;
    });
  }
  if (interrupted) throw nb::python_error();
  return all;
}

}  // namespace
}  // namespace graft::pytorch

NB_MODULE(_model, m) {
  using namespace graft::pytorch;
  nb::class_<requested_settings>(m, "Settings")
      .def(nb::init<>())
      .def_rw("max_new_tokens", &requested_settings::max_new_tokens, nb::arg().none())
      .def_rw("eos_tokens", &requested_settings::eos_tokens, nb::arg().none())
      .def_rw("sample", &requested_settings::sample, nb::arg().none())
      .def_rw("temperature", &requested_settings::temperature, nb::arg().none())
      .def_rw("top_k", &requested_settings::top_k, nb::arg().none())
      .def_rw("top_p", &requested_settings::top_p, nb::arg().none())
      .def_rw("min_p", &requested_settings::min_p, nb::arg().none())
      .def_rw("repetition_penalty", &requested_settings::repetition_penalty, nb::arg().none())
      .def_rw("seed", &requested_settings::seed, nb::arg().none());
  nb::class_<words>(m, "Tokenizer")
      .def(nb::init<const std::string&>())
      .def("encode", &words::encode)
      .def("decode", &words::decode);
  nb::class_<stored_model>(m, "StoredModel")
      .def("load_adapter", &stored_model::load_adapter, nb::call_guard<nb::gil_scoped_release>())
      .def("remove_adapter", &stored_model::remove_adapter, nb::call_guard<nb::gil_scoped_release>())
      .def("activate", &stored_model::activate, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("adapters", &stored_model::adapters)
      .def_prop_ro("active", &stored_model::active)
      .def_prop_ro("vocabulary", &stored_model::vocabulary)
      .def_prop_ro("context", &stored_model::context)
      .def("logits",
           [](stored_model& model, const std::vector<stored_model::ids>& sequences, bool last_only,
              const std::vector<stored_model::names>& which, int device) {
             graft::pytorch::logit_rows rows;
             {
               const nb::gil_scoped_release free;
               rows = model.logits(sequences, last_only, which);
             }
             return tensor_of(rows, device);
           })
      .def("generate", &generate);
  m.def("load", &load);
#if defined(GRAFT_TORCH_CUDA)
  m.attr("has_cuda") = true;
#else
  m.attr("has_cuda") = false;
#endif
}
