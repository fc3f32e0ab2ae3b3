// SPDX-License-Identifier: Apache-2.0
// The named adapters of a model as a value: which there are, which of them act and in which order, which are merged. A
// model changes a copy of it and takes the copy when everything else went well, so that a change happens whole or not
// at all.
#pragma once
#include <graft/model/together.h>

namespace graft {

// How many adapters there is room for, and how large their ranks may be together.
struct adapter_capacity {
  int adapters = 64;
  long long rank = 4096;
};

// The largest rank of an adapter's modules; 0 for methods that have none.
inline long long rank_of(const adapter_set& a) {
  long long most = 0;
  for (const module_adapter& m : a.modules)
    if (const auto r = m.sizes.find("r"); r != m.sizes.end()) most = std::max(most, r->second);
  return most;
}

class named_adapters {
 public:
  using names = std::vector<std::string>;

  adapter_capacity room{};
  bool enabled = true;
  chain how = chain::peft;

  const names& active() const { return active_; }
  const names& merged() const { return merged_; }
  names all() const {
    names list;
    for (const entry& e : all_) list.push_back(e.name);
    return list;
  }
  const shared_adapter* find(std::string_view name) const {
    const auto at = where(name);
    return at != all_.end() ? &at->is : nullptr;
  }

  // Each is one of them, and named once.
  status knows(const names& which) const {
    for (std::size_t i = 0; i < which.size(); ++i) {
      if (status s = expect(which[i]); !s) return s;
      for (std::size_t k = 0; k < i; ++k)
        if (which[k] == which[i]) return fail("adapter '", which[i].c_str(), "' is named twice");
    }
    return ok;
  }
  bool has(const shared_adapter& is) const {
    return std::any_of(all_.begin(), all_.end(), [&](const entry& e) { return e.is == is; });
  }

  status add(const std::string& name, shared_adapter is) {
    if (name.empty() || name == "__base__")
      return fail("an adapter needs a name of its own, which '", name.c_str(), "' is not");
    if (find(name) != nullptr)
      return fail("there is an adapter '", name.c_str(), "' already; replace() it, or give this one another name");
    all_.push_back({name, std::move(is)});
    return fits();
  }
  status replace(const std::string& name, shared_adapter is) {
    if (status s = free_of_merging(name, "replaced"); !s) return s;
    edit(name).is = std::move(is);
    return fits();
  }
  status remove(const std::string& name) {
    if (status s = free_of_merging(name, "removed"); !s) return s;
    std::erase_if(all_, [&](const entry& e) { return e.name == name; });
    std::erase(active_, name);
    return ok;
  }
  status rename(const std::string& from, const std::string& to) {
    if (status s = expect(from); !s) return s;
    if (to.empty() || to == "__base__" || find(to) != nullptr)
      return fail("'", to.c_str(), "' cannot be the name of an adapter here; choose one that is free");
    edit(from).name = to;
    std::replace(active_.begin(), active_.end(), from, to);
    std::replace(merged_.begin(), merged_.end(), from, to);
    return ok;
  }
  // Ends a merge, as in PEFT.
  status activate(const names& which) {
    if (status s = knows(which); !s) return s;
    active_ = which;
    merged_.clear();
    return ok;
  }
  // Behind those that are merged already.
  status merge(const names& which) {
    if (status s = knows(which); !s) return s;
    for (const std::string& n : which)
      if (std::find(merged_.begin(), merged_.end(), n) == merged_.end()) merged_.push_back(n);
    return ok;
  }
  void unmerge() { merged_.clear(); }
  void clear() { all_.clear(), active_.clear(), merged_.clear(); }

 private:
  struct entry {
    std::string name;
    shared_adapter is;
  };
  std::vector<entry>::const_iterator where(std::string_view name) const {
    return std::find_if(all_.begin(), all_.end(), [&](const entry& e) { return e.name == name; });
  }
  entry& edit(std::string_view name) { return all_[static_cast<std::size_t>(where(name) - all_.begin())]; }
  status expect(const std::string& name) const {
    if (find(name) != nullptr) return ok;
    text known;
    for (const entry& e : all_) known << (known.empty() ? "" : ", ") << e.name.c_str();
    return fail("there is no adapter '", name.c_str(), "'; there are ", known.empty() ? "none" : known.c_str());
  }
  status free_of_merging(const std::string& name, const char* done) const {
    if (status s = expect(name); !s) return s;
    if (std::find(merged_.begin(), merged_.end(), name) == merged_.end()) return ok;
    return fail("adapter '", name.c_str(), "' is merged into the weights; unmerge() before it is ", done);
  }
  status fits() const {
    const auto n = static_cast<long long>(all_.size());
    if (n > room.adapters)
      return fail("there would be ", n, " adapters, and there is room for ", room.adapters,
                  "; remove() one, or make the model with a larger model_options::adapters");
    long long rank = 0;
    for (const entry& e : all_) rank += rank_of(*e.is);
    if (rank > room.rank)
      return fail("the ranks of the adapters would be ", rank, " together, and there is room for ", room.rank,
                  "; remove() one, or make the model with a larger model_options::rank");
    return ok;
  }

  std::vector<entry> all_;  // in the order in which they came
  names active_, merged_;   // in the order in which they act
};

}  // namespace graft
