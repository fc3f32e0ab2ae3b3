// SPDX-License-Identifier: Apache-2.0
// The registry of the named adapters of a model or of a layer, as a value: which exist, which are active and in which
// order, which are merged, and which number the executor of a layer knows each by. A change edits a copy, which is kept
// only if everything else succeeds, so it is atomic.
#pragma once
#include <graft/model/adapter_composition.h>

namespace graft {

// How many adapters may be loaded, and the largest sum of their ranks.
struct adapter_capacity {
  int adapters = 64;
  long long rank = 4096;
};

// Returns the largest rank of an adapter's modules; 0 for methods without a rank.
inline long long rank_of(const adapter_set& a) {
  long long most = 0;
  for (const module_adapter& m : a.modules)
    if (const auto r = m.sizes.find("r"); r != m.sizes.end()) most = std::max(most, r->second);
  return most;
}

class adapter_registry {
 public:
  using names = std::vector<std::string>;

  adapter_capacity capacity{};
  bool enabled = true;
  composition rule = composition::peft;

  const names& active() const { return active_; }
  const names& merged() const { return merged_; }
  names all() const {
    names list;
    for (const entry& e : all_) list.push_back(e.name);
    return list;
  }
  const shared_adapter* find(std::string_view name) const {
    const auto at = find_entry(name);
    return at != all_.end() ? &at->adapter : nullptr;
  }

  // Fails if a name does not exist or is repeated.
  status check_names(const names& which) const {
    for (std::size_t i = 0; i < which.size(); ++i) {
      if (status s = expect(which[i]); !s) return s;
      for (std::size_t k = 0; k < i; ++k)
        if (which[k] == which[i]) return fail("adapter '", which[i].c_str(), "' is named twice");
    }
    return ok;
  }
  bool has(const shared_adapter& adapter) const {
    return std::any_of(all_.begin(), all_.end(), [&](const entry& e) { return e.adapter == adapter; });
  }
  // The number by which the executor of a layer knows this adapter, which is in the registry.
  int number_of(const shared_adapter& adapter) const {
    return std::find_if(all_.begin(), all_.end(), [&](const entry& e) { return e.adapter == adapter; })->number;
  }
  void set_number(const shared_adapter& adapter, int number) {
    for (entry& e : all_)
      if (e.adapter == adapter) e.number = number;
  }
  // The numbers of the adapters that are here and not in `other`.
  std::vector<int> ids_not_in(const adapter_registry& other) const {
    std::vector<int> list;
    for (const entry& e : all_)
      if (!other.has(e.adapter)) list.push_back(e.number);
    return list;
  }

  // Returns the error that says why training has no parameters.
  error has_no_parameters() const {
    const char* const so = ", so there is nothing to train; ";
    if (all_.empty())
      return fail("the model has no adapters", so, "load_adapter() or add_adapter() one, and activate() it");
    if (!merged_.empty())
      return fail("adapter '", merged_.front().c_str(), "' is merged into the weights", so, "unmerge() it");
    if (active_.empty()) return fail("none of the model's adapters is active", so, "activate() one of ", existing());
    if (!enabled) return fail("the model's adapters are disabled", so, "enable(true) them");
    return fail("the active adapters have no parameters", so, "activate() another one of ", existing());
  }

  status add(const std::string& name, shared_adapter adapter) {
    if (name.empty() || name == "__base__")
      return fail("an adapter needs a name of its own, which '", name.c_str(), "' is not");
    if (find(name) != nullptr)
      return fail("there is an adapter '", name.c_str(), "' already; replace() it, or give this one another name");
    all_.push_back({name, std::move(adapter)});
    return check_capacity();
  }
  status replace(const std::string& name, shared_adapter adapter) {
    if (status s = check_not_merged(name, "replaced"); !s) return s;
    entry_named(name).adapter = std::move(adapter);
    return check_capacity();
  }
  status remove(const std::string& name) {
    if (status s = check_not_merged(name, "removed"); !s) return s;
    std::erase_if(all_, [&](const entry& e) { return e.name == name; });
    std::erase(active_, name);
    return ok;
  }
  status rename(const std::string& from, const std::string& to) {
    if (status s = expect(from); !s) return s;
    if (to.empty() || to == "__base__" || find(to) != nullptr)
      return fail("'", to.c_str(), "' cannot be the name of an adapter here; choose one that is free");
    entry_named(from).name = to;
    std::replace(active_.begin(), active_.end(), from, to);
    std::replace(merged_.begin(), merged_.end(), from, to);
    return ok;
  }
  // Activating ends a merge, as in PEFT.
  status activate(const names& which) {
    if (status s = check_names(which); !s) return s;
    active_ = which;
    merged_.clear();
    return ok;
  }
  // Merges these adapters after those that are merged already.
  status merge(const names& which) {
    if (status s = check_names(which); !s) return s;
    for (const std::string& n : which)
      if (std::find(merged_.begin(), merged_.end(), n) == merged_.end()) merged_.push_back(n);
    return ok;
  }
  void unmerge() { merged_.clear(); }
  void clear() { all_.clear(), active_.clear(), merged_.clear(); }

 private:
  struct entry {
    std::string name;
    shared_adapter adapter;
    int number = 0;
  };
  std::vector<entry>::const_iterator find_entry(std::string_view name) const {
    return std::find_if(all_.begin(), all_.end(), [&](const entry& e) { return e.name == name; });
  }
  entry& entry_named(std::string_view name) { return all_[static_cast<std::size_t>(find_entry(name) - all_.begin())]; }
  text existing() const {
    text list;
    for (const entry& e : all_) list << (list.empty() ? "" : ", ") << e.name.c_str();
    return list;
  }
  status expect(const std::string& name) const {
    if (find(name) != nullptr) return ok;
    return fail("there is no adapter '", name.c_str(), "'; there are ", all_.empty() ? text("none") : existing());
  }
  status check_not_merged(const std::string& name, const char* done) const {
    if (status s = expect(name); !s) return s;
    if (std::find(merged_.begin(), merged_.end(), name) == merged_.end()) return ok;
    return fail("adapter '", name.c_str(), "' is merged into the weights; unmerge() before it is ", done);
  }
  status check_capacity() const {
    const auto n = static_cast<long long>(all_.size());
    if (n > capacity.adapters)
      return fail("there would be ", n, " adapters, and the capacity is ", capacity.adapters,
                  "; remove() one, or make the model or the layer with a larger adapter_capacity::adapters");
    long long rank = 0;
    for (const entry& e : all_) rank += rank_of(*e.adapter);
    if (rank > capacity.rank)
      return fail("the ranks of the adapters would be ", rank, " in total, and the capacity is ", capacity.rank,
                  "; remove() one, or make the model or the layer with a larger adapter_capacity::rank");
    return ok;
  }

  std::vector<entry> all_;  // in the order in which they were added
  names active_, merged_;   // in the order in which they act
};

}  // namespace graft
