// SPDX-License-Identifier: Apache-2.0
// Adapters of a serving engine: any number by name on disk, a bounded number of adapters and of bytes in memory. A
// request that names an adapter on disk has it loaded; the least recently used ones that no sequence runs with leave. A
// name may be given another folder: sequences keep the version that they began with, and the old version leaves when
// the last of them ends.
//
// Files are read in a thread of the store. The step loop takes what was read between two steps (loaded(), installed())
// and names what is to leave (leaving()), because only it may change the model.
#pragma once
#include <graft/core/name_suggestion.h>
#include <graft/core/result.h>
#include <graft/model/adapter_set.h>
#include <graft/model/serving/request.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <thread>

namespace graft::serving {

// A version of an adapter that is in memory. `id` is its name in the model and no other version's.
struct adapter_version {
  std::string name, folder, id;
  long long number = 0;
  int sequences = 0;  // sequences that run with it, guarded by the store
  long long used = 0;
  long long bytes = 0;  // of its tensors
};
using shared_version = std::shared_ptr<adapter_version>;

struct adapter_info {
  std::string name, folder;
  long long version = 0;  // version that is in memory; 0: none
  int sequences = 0;
  bool pinned = false, loading = false;
  long long bytes = 0;  // of its tensors, when it was read last; 0: it was not read yet
};

// Bytes of an adapter's tensors in host memory. A tensor that several modules share counts once.
inline long long memory_bytes(const adapter_set& a) {
  std::set<const void*> counted;
  long long all = 0;
  const auto add = [&](const adapter_tensor& t) {
    if (t.owner() == nullptr || !counted.insert(t.owner().get()).second) return;
    all += static_cast<long long>(t.indices != nullptr ? t.indices->size() * sizeof(std::int64_t)
                                                       : t.data->size() * sizeof(float));
  };
  for (const module_adapter& m : a.modules) {
    for (const auto& [name, t] : m.tensors) add(t);
    for (const auto& [name, t] : m.base) add(t);
  }
  return all;
}

class adapter_store {
 public:
  using load_function = std::function<result<adapter_set>(const std::string& folder)>;
  // The state of a request's adapters: all in memory, being loaded, or one of them failed.
  struct acquired {
    enum class kind : std::uint8_t { ready, pending, failed } what = kind::pending;
    std::vector<shared_version> versions{};
    failure_cause cause = failure_cause::none;
    std::string message{};
  };
  struct loaded_files {
    std::string name, folder;
    long long number = 0;
    result<adapter_set> adapter;
    long long bytes = 0;
    failure_cause cause = failure_cause::broken_adapter;  // if the adapter is none
  };
  struct limits {
    int adapters = 16;    // in memory at a time
    long long bytes = 0;  // of their tensors; 0: any number
  };

  // `wake` is called when something was loaded.
  adapter_store(const limits& resident, load_function load, std::function<void()> wake)
      : resident_(resident), load_(std::move(load)), wake_(std::move(wake)), loader_([this] { load_files(); }) {}
  adapter_store(const adapter_store&) = delete;
  adapter_store& operator=(const adapter_store&) = delete;
  ~adapter_store() {
    {
      const std::lock_guard guard(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    loader_.join();
  }

  // Adds a name without reading its folder.
  status add(const std::string& name, const std::string& folder, bool pinned = false) {
    const std::lock_guard guard(mutex_);
    if (name.empty() || name.find_first_of("+@") != std::string::npos)
      return fail("an adapter's name is not empty and has no + and no @, which '", name.c_str(), "' is not");
    if (all_.contains(name)) return fail("there is an adapter '", name.c_str(), "' already");
    all_[name] = {folder, pinned};
    order_.push_back(name);
    return ok;
  }
  // Reads the folder of a name, and returns when the adapter is in memory. `folder`: another one than before; not
  // given: the same one again. A version that cannot be loaded leaves the one before it. `cause`: of an error.
  status load(const std::string& name, const std::string& folder, std::chrono::milliseconds patience,
              failure_cause* cause = nullptr) {
    failure_cause unused{};
    failure_cause& why = cause != nullptr ? *cause : unused;
    why = failure_cause::none;
    std::unique_lock guard(mutex_);
    const auto at = all_.find(name);
    if (at == all_.end()) return why = failure_cause::unknown_adapter, unknown(name);
    if (at->second.replacing || at->second.queued)
      return fail("adapter '", name.c_str(), "' is being loaded; try again later");
    if (!folder.empty()) at->second.next_folder = folder;
    at->second.replacing = true;
    const long long begun = ++clock_;
    enqueue(name, at->second);
    const auto over = [&] {
      const auto now = all_.find(name);
      return ending_ || now == all_.end() || !now->second.replacing;
    };
    if (!changed_.wait_for(guard, patience, over))
      return fail("adapter '", name.c_str(), "' is still being loaded; it will be there when that ends");
    const auto now = all_.find(name);
    if (ending_)
      return why = failure_cause::shutting_down, fail("the server ends before '", name.c_str(), "' is loaded");
    if (now == all_.end())
      return why = failure_cause::unknown_adapter,
             fail("adapter '", name.c_str(), "' was unloaded while it was loaded");
    if (now->second.failed_at > begun) return why = now->second.cause, fail(now->second.message.c_str());
    return ok;
  }
  // Removes a name. Sequences that run with it go on.
  status remove(const std::string& name) {
    {
      const std::lock_guard guard(mutex_);
      const auto at = all_.find(name);
      if (at == all_.end()) return unknown(name);
      if (at->second.now != nullptr) retired_.push_back(std::move(at->second.now));
      all_.erase(at);
      std::erase(order_, name);
      std::erase(queue_, name);
    }
    changed_.notify_all();
    wake_();
    return ok;
  }
  status pin(const std::string& name, bool pinned) {
    const std::lock_guard guard(mutex_);
    const auto at = all_.find(name);
    if (at == all_.end()) return unknown(name);
    at->second.pinned = pinned;
    return ok;
  }
  // Checks that the names can be in memory together.
  status check(const std::vector<std::string>& names) const {
    const std::lock_guard guard(mutex_);
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (!all_.contains(names[i])) return unknown(names[i]);
      if (std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i), names[i]) !=
          names.begin() + static_cast<std::ptrdiff_t>(i))
        return fail("adapter '", names[i].c_str(), "' is named twice");
    }
    if (names.size() > static_cast<std::size_t>(resident_.adapters))
      return fail("the request names ", static_cast<long long>(names.size()), " adapters, and ", resident_.adapters,
                  " are in memory at a time");
    return ok;
  }
  std::vector<adapter_info> list() const {
    const std::lock_guard guard(mutex_);
    std::vector<adapter_info> out;
    for (const std::string& name : order_) {
      const entry& e = all_.at(name);
      out.push_back({name, e.folder, e.now != nullptr ? e.now->number : 0, e.now != nullptr ? e.now->sequences : 0,
                     e.pinned, e.queued, e.bytes});
    }
    return out;
  }
  long long now() {
    const std::lock_guard guard(mutex_);
    return ++clock_;
  }

  // ---- For the step loop.
  // Takes the current versions of all names for `sequences` sequences, or none of them. `since`: the now() when the
  // request came; older failures are forgotten, so that a folder that was mended is read again.
  acquired acquire(const std::vector<std::string>& names, int sequences, long long since) {
    const std::lock_guard guard(mutex_);
    acquired out;
    bool ready = true;
    for (const std::string& name : names) {
      const auto at = all_.find(name);
      if (at == all_.end())
        return {acquired::kind::failed, {}, failure_cause::unknown_adapter, unknown(name).what.c_str()};
      entry& e = at->second;
      if (e.now != nullptr) {
        e.now->used = ++clock_;
      } else if (e.failed_at > since) {
        return {acquired::kind::failed, {}, e.cause, e.message};
      } else {
        ready = false;
      }
    }
    if (!ready) {
      // They are read only if they can be in memory together; each would push out the other one for ever otherwise.
      if (const status s = fits_beside_pinned(names, 0); !s)
        return {acquired::kind::failed, {}, failure_cause::no_memory, s.message()};
      for (const std::string& name : names)
        if (entry& e = all_.at(name); e.now == nullptr && !e.queued) enqueue(name, e);
      return out;
    }
    out.what = acquired::kind::ready;
    for (const std::string& name : names) {
      out.versions.push_back(all_.at(name).now);
      out.versions.back()->sequences += sequences;
    }
    return out;
  }
  void release(const std::vector<shared_version>& versions) {
    const std::lock_guard guard(mutex_);
    for (const shared_version& v : versions) --v->sequences;
  }
  // Returns versions that have to leave: replaced or removed ones that no sequence runs with, and the least recently
  // used one if something was loaded and the capacity is used up. The caller removes them from the model.
  std::vector<shared_version> leaving() {
    const std::lock_guard guard(mutex_);
    std::vector<shared_version> out;
    std::erase_if(retired_, [&](shared_version& v) {
      if (v->sequences > 0) return false;
      --in_memory_, bytes_ -= v->bytes;
      out.push_back(std::move(v));
      return true;
    });
    if (!files_ || !files_->adapter || !fits_beside_pinned({files_->name}, files_->bytes)) return out;
    while (!has_room(files_->bytes)) {
      entry* oldest = nullptr;
      // A replacement needs no capacity of its own where the version before it may leave, be it pinned or not.
      for (auto& [name, e] : all_)
        if (e.now != nullptr && e.now->sequences == 0 && (!e.pinned || name == files_->name) &&
            (oldest == nullptr || e.now->used < oldest->now->used))
          oldest = &e;
      if (oldest == nullptr) break;
      --in_memory_, bytes_ -= oldest->now->bytes;
      out.push_back(std::exchange(oldest->now, nullptr));
    }
    return out;
  }
  // Returns what was read, if the capacity allows it or the reading failed.
  std::optional<loaded_files> loaded() {
    std::optional<loaded_files> out;
    {
      const std::lock_guard guard(mutex_);
      if (!files_) return out;
      const auto at = all_.find(files_->name);
      const bool is_wanted = at != all_.end() && at->second.number == files_->number;
      if (is_wanted && files_->adapter) {
        at->second.bytes = files_->bytes;
        if (const status s = fits_beside_pinned({files_->name}, files_->bytes); !s)
          files_->adapter = s.failure(), files_->cause = failure_cause::no_memory;
        else if (!has_room(files_->bytes))
          return out;
      }
      if (is_wanted) out.emplace(std::move(*files_));
      files_.reset();
    }
    changed_.notify_all();
    return out;
  }
  static std::string id_of(const loaded_files& f) { return f.name + "@" + std::to_string(f.number); }
  // Reports that the model has the adapter, or why it has not.
  void installed(const loaded_files& f, const status& done) {
    {
      const std::lock_guard guard(mutex_);
      auto made = std::make_shared<adapter_version>(
          adapter_version{f.name, f.folder, id_of(f), f.number, 0, ++clock_, f.bytes});
      const auto at = all_.find(f.name);
      if (done) ++in_memory_, bytes_ += f.bytes;
      if (at == all_.end() || at->second.number != f.number) {  // it was removed meanwhile
        if (done) retired_.push_back(std::move(made));
      } else {
        entry& e = at->second;
        e.queued = e.replacing = false, e.next_folder.clear();
        if (done) {
          if (e.now != nullptr) retired_.push_back(std::move(e.now));
          e.folder = f.folder, e.message.clear(), e.now = std::move(made);
        } else {
          e.message = done.message(), e.cause = f.cause, e.failed_at = ++clock_;
        }
      }
    }
    changed_.notify_all();
  }
  int in_memory() const {
    const std::lock_guard guard(mutex_);
    return in_memory_;
  }
  long long bytes_in_memory() const {
    const std::lock_guard guard(mutex_);
    return bytes_;
  }
  bool loading() const {
    const std::lock_guard guard(mutex_);
    return files_.has_value() || reading_ || !queue_.empty();
  }

 private:
  struct entry {
    std::string folder;
    bool pinned = false;
    bool queued = false;     // waits for the loader, is read, or waits for capacity
    bool replacing = false;  // load() waits
    std::string next_folder{};
    shared_version now{};
    long long number = 0;  // number of the last requested version
    std::string message{};
    failure_cause cause = failure_cause::none;
    long long failed_at = 0;
    long long bytes = 0;  // of what was read last
  };
  bool has_room(long long bytes) const {
    return in_memory_ < resident_.adapters && (resident_.bytes == 0 || bytes_ + bytes <= resident_.bytes);
  }
  // Checks that adapters fit into the memory together when everything that is not pinned has left. `at_least`: bytes
  // of the first one, which was just read.
  status fits_beside_pinned(const std::vector<std::string>& names, long long at_least) const {
    long long count = 0, bytes = 0, pinned = 0, pinned_bytes = 0;
    for (const std::string& name : names)
      ++count, bytes += std::max(all_.contains(name) ? all_.at(name).bytes : 0, std::exchange(at_least, 0));
    for (const auto& [name, e] : all_)
      if (e.now != nullptr && e.pinned && std::find(names.begin(), names.end(), name) == names.end())
        ++pinned, pinned_bytes += e.now->bytes;
    const bool fits = resident_.bytes == 0 || bytes + pinned_bytes <= resident_.bytes;
    if (fits && count + pinned <= resident_.adapters) return ok;
    const char* const together = count > 1 ? " together" : "";
    if (fits)
      return fail("there is no room for ", count, " more in memory beside ", pinned, " pinned adapters; there is for ",
                  resident_.adapters, " in all");
    if (bytes > resident_.bytes)
      return fail("the request's adapters have ", bytes, " bytes", together, ", and all in memory have at most ",
                  resident_.bytes);
    return fail("the request's adapters have ", bytes, " bytes", together, ", and beside the pinned ones there are ",
                resident_.bytes - pinned_bytes);
  }
  void enqueue(const std::string& name, entry& e) {
    e.queued = true, e.number = ++versions_;
    queue_.push_back(name);
    changed_.notify_all();
  }
  error unknown(const std::string& name) const {
    name_suggester meant(name.c_str());
    for (const auto& [known, e] : all_) meant.offer(known.c_str());
    return fail("there is no adapter '", name.c_str(), "'", meant.hint());
  }
  // The loader thread: reads one folder at a time, and the next one when the step loop took what was read.
  void load_files() {
    std::unique_lock guard(mutex_);
    for (;;) {
      changed_.wait(guard, [&] { return ending_ || (!queue_.empty() && !files_); });
      if (ending_) return;
      const std::string name = queue_.front();
      queue_.pop_front();
      const entry& e = all_.at(name);
      const std::string folder = e.next_folder.empty() ? e.folder : e.next_folder;
      const long long number = e.number;
      reading_ = true;
      guard.unlock();
      result<adapter_set> made = load_(folder);
      guard.lock();
      reading_ = false;
      const long long bytes = made ? memory_bytes(*made) : 0;
      files_.emplace(loaded_files{name, folder, number, std::move(made), bytes});
      guard.unlock();
      wake_();
      guard.lock();
    }
  }

  const limits resident_;
  load_function load_;
  std::function<void()> wake_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, entry> all_;
  std::vector<std::string> order_;  // names as they were added
  std::deque<std::string> queue_;   // names that wait for the loader
  std::optional<loaded_files> files_;
  std::vector<shared_version> retired_;
  long long clock_ = 0, versions_ = 0, bytes_ = 0;
  int in_memory_ = 0;
  bool ending_ = false, reading_ = false;
  std::thread loader_;  // last, since it uses all members before it
};

}  // namespace graft::serving
