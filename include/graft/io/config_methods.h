// SPDX-License-Identifier: Apache-2.0
// The part of adapter_config.json that belongs to one method, and the rules between its keys: AdaLoRA's stored rank
// pattern is a list of kept triplets, OFT and BOFT want exactly one of two sizes, MiSS keeps its formula in
// init_weights. oft_block_size has no default: files without it are of the first OFT, whose formula differs; PEFT
// refuses them too.
#pragma once
#include <graft/io/config_common.h>

namespace graft::io {

inline void read_patterns(config_reader& in, adapter_config& c) {
  in.entries("rank_pattern", [&](const std::string& name, const json& v) {
    if (!v.is_whole() || v.whole == 0 || !fits_int(v))
      return in.reject("'rank_pattern' of ", in_quotes(name), " is ", found(v), ", expected a positive integer");
    c.rank_pattern.emplace_back(name, static_cast<int>(v.whole));
  });
  in.entries("alpha_pattern", [&](const std::string& name, const json& v) {
    if (!v.is_number() || !(v.real >= 0))
      return in.reject("'alpha_pattern' of ", in_quotes(name), " is ", found(v),
                       ", expected a number that is not negative");
    c.alpha_pattern.emplace_back(name, v.real);
  });
}

inline void read_init(config_reader& in, const char* other = nullptr) {
  const auto* v = in.at("init_weights");
  if (v == nullptr || v->is_boolean() || (other != nullptr && v->says(other))) return;
  in.expected("init_weights", *v, "true or false", other != nullptr ? " or " : "", other != nullptr ? other : "");
}

inline void read_lora(config_reader& in, adapter_config& c) {
  in.real("lora_alpha", c.alpha);
  in.real("lora_dropout", c.dropout, 1);
  in.flag("use_rslora", c.use_rslora);
  in.flag("use_dora", c.use_dora);
  in.flag("lora_bias", c.lora_bias);
  refuse_changed_base(in);
  if (c.use_dora && c.lora_bias)
    in.reject("'use_dora' and 'lora_bias' are both true, expected at most one, as in PEFT");
}

inline void read_adalora(config_reader& in, adapter_config& c) {
  adalora_fields& a = c.adalora;
  read_lora(in, c);
  if (c.use_dora) in.reject("'use_dora' is true, expected false for ADALORA, as in PEFT");
  if (c.lora_bias) in.reject("'lora_bias' is true, expected false for ADALORA");
  in.integer("init_r", a.init_r, 1);
  in.integer("target_r", a.target_r, 1);
  in.integer("tinit", a.tinit, 0);
  in.integer("tfinal", a.tfinal, 0);
  in.integer("deltaT", a.delta_t, 1);
  if (in.set("total_step") != nullptr) in.integer("total_step", a.total_step, 1);
  in.real("beta1", a.beta1, 1);
  in.real("beta2", a.beta2, 1);
  in.real("orth_reg_weight", a.orth_reg_weight);
  if (a.total_step != 0 && a.tinit >= static_cast<long long>(a.total_step) - a.tfinal)
    in.reject("'tinit' is ", a.tinit, ", expected less than total_step - tfinal = ", a.total_step - a.tfinal);
  in.entries("rank_pattern", [&](const std::string& name, const json& v) {
    const auto is_flag = [](const json& e) { return e.is_boolean(); };
    if (!v.is_list() || v.items.size() != static_cast<std::size_t>(a.init_r) ||
        !std::all_of(v.items.begin(), v.items.end(), is_flag))
      return in.reject("'rank_pattern' of ", in_quotes(name), " is ", found(v), ", expected a list of ", a.init_r,
                       " booleans, one for each of init_r");
    std::vector<bool>& flags = a.kept.emplace_back(name, std::vector<bool>{}).second;
    for (const json& e : v.items) flags.push_back(e.flag);
  });
}

inline void read_oft(config_reader& in, adapter_config& c) {
  if (in.at("oft_block_size") == nullptr)
    in.reject("the key 'oft_block_size' is missing, expected it: files of the first OFT cannot be read");
  in.integer("r", c.r, 0);
  in.integer("oft_block_size", c.oft.block_size, 0);
  if ((c.r == 0) == (c.oft.block_size == 0))
    in.reject("'r' is ", c.r, " and 'oft_block_size' is ", c.oft.block_size, ", expected exactly one of them to be 0");
  in.flag("coft", c.oft.coft);
  in.flag("block_share", c.oft.block_share);
  in.flag("use_cayley_neumann", c.oft.use_cayley_neumann);
  in.integer("num_cayley_neumann_terms", c.oft.num_cayley_neumann_terms, 1);
  in.real("eps", c.oft.eps);
  in.real("module_dropout", c.module_dropout, 1);
  read_init(in);
}

inline void read_boft(config_reader& in, adapter_config& c) {
  boft_fields& b = c.boft;
  in.integer("boft_block_size", b.block_size, 0);
  in.integer("boft_block_num", b.block_num, 0);
  in.integer("boft_n_butterfly_factor", b.n_butterfly_factor, 1, 30);
  in.real("boft_dropout", c.dropout, 1);
  if ((b.block_size == 0) == (b.block_num == 0))
    in.reject("'boft_block_size' is ", b.block_size, " and 'boft_block_num' is ", b.block_num,
              ", expected exactly one of them to be 0");
  read_init(in);
}

inline void read_loha(config_reader& in, adapter_config& c) {
  in.real("alpha", c.alpha);
  in.real("rank_dropout", c.rank_dropout, 1);
  in.real("module_dropout", c.module_dropout, 1);
  in.flag("use_effective_conv2d", c.use_effective_conv2d);
  read_patterns(in, c);
}

inline void read_lokr(config_reader& in, adapter_config& c) {
  read_loha(in, c);
  in.flag("decompose_both", c.lokr.decompose_both);
  in.flag("rank_dropout_scale", c.lokr.rank_dropout_scale);
  in.integer("decompose_factor", c.lokr.decompose_factor, -1);
  if (c.lokr.decompose_factor == 0) in.reject("'decompose_factor' is 0, expected -1 or a positive integer");
  read_init(in, "lycoris");
}

inline void read_ia3(config_reader& in, adapter_config& c) {
  read_names(in, "feedforward_modules", c.feedforward_modules);
  if (c.target_modules.kind != name_pattern::form::list) return;
  for (const std::string& n : c.feedforward_modules.names)
    if (std::find(c.target_modules.names.begin(), c.target_modules.names.end(), n) == c.target_modules.names.end())
      in.reject("'feedforward_modules' holds ", in_quotes(n), ", expected only names of 'target_modules'");
}

inline void read_vera(config_reader& in, adapter_config& c) {
  if (const auto* v = in.at("projection_prng_key"); v != nullptr && !v->is_whole())
    in.expected("projection_prng_key", *v, "an integer from 0 to 2^64-1");
  else if (v != nullptr)
    c.vera.projection_prng_key = v->whole;
  in.flag("save_projection", c.vera.save_projection);
  in.real("vera_dropout", c.dropout, 1);
  read_init(in);
}

inline void read_vblora(config_reader& in, adapter_config& c) {
  in.integer("num_vectors", c.vblora.num_vectors, 1);
  in.integer("vector_length", c.vblora.vector_length, 1);
  in.integer("topk", c.vblora.topk, 1);
  in.flag("save_only_topk_weights", c.vblora.save_only_topk_weights);
  in.real("vblora_dropout", c.dropout, 1);
  if (c.vblora.topk > c.vblora.num_vectors)
    in.reject("'topk' is ", c.vblora.topk, ", expected at most num_vectors = ", c.vblora.num_vectors);
}

inline void read_miss(config_reader& in, adapter_config& c) {
  in.integer("mini_r", c.miss.mini_r, 1);
  in.real("miss_dropout", c.dropout, 1);
  const auto* v = in.at("init_weights");
  if (v == nullptr || v->is_boolean()) return;
  if (v->says("mini"))
    c.miss.kind = miss_kind::mini;
  else if (v->says("bat"))
    c.miss.kind = miss_kind::bat;
  else
    in.expected("init_weights", *v, "true, false, \"mini\" or \"bat\"");
}

// A method of the program's own: every number of its file, by name.
inline void read_numbers(config_reader& in, adapter_config& c) {
  for (std::size_t i = 0; i < in.object.keys.size(); ++i)
    if (in.object.items[i].is_number()) c.numbers[in.object.keys[i]] = in.object.items[i].real;
}

inline void read_method(config_reader& in, adapter_config& c) {
  switch (c.type) {
    case peft_type::lora: return read_lora(in, c), read_patterns(in, c);
    case peft_type::adalora: return read_adalora(in, c);
    case peft_type::oft: return read_oft(in, c);
    case peft_type::boft: return read_boft(in, c);
    case peft_type::hra: return in.flag("apply_GS", c.apply_gs), read_init(in);
    case peft_type::ia3: return read_ia3(in, c);
    case peft_type::loha: return read_loha(in, c), read_init(in);
    case peft_type::lokr: return read_lokr(in, c);
    case peft_type::vera: return read_vera(in, c);
    case peft_type::ln_tuning: return;
    case peft_type::miss: return read_miss(in, c);
    case peft_type::vblora: return read_vblora(in, c);
    case peft_type::own: return read_numbers(in, c);
  }
}

}  // namespace graft::io
