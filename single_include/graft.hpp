// SPDX-License-Identifier: Apache-2.0
// Graft 0.1.0, the language in one header: adapters as formulas, blocks, the graphs derived from them, plans,
// compile<> and explain<>. It needs a C++20 compiler and no library. Backends and file readers are in the full library,
// whose headers take the place of this one: a program includes either. Written by cmake/generate_single_header.py.
#pragma once
#ifdef GRAFT_VERSION
#error "graft.hpp and the headers below graft/ are the same library: include only one of them"
#endif
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <type_traits>

namespace graft {
template <class T> class sequence {
 public:
  constexpr sequence() = default;
  constexpr explicit sequence(int n) : p_(n > 0 ? new T[static_cast<unsigned>(n)]{} : nullptr), n_(n), capacity_(n) {}
  constexpr sequence(int n, const T& value) : sequence(n) {
    for (int i = 0; i < n; ++i) p_[i] = value;
  }
  constexpr sequence(const sequence& o)
      : p_(o.n_ > 0 ? new T[static_cast<unsigned>(o.n_)]{} : nullptr), n_(o.n_), capacity_(o.n_) {
    for (int i = 0; i < n_; ++i) p_[i] = o.p_[i];
  }
  constexpr sequence(sequence&& o) noexcept : p_(o.p_), n_(o.n_), capacity_(o.capacity_) {
    o.p_ = nullptr, o.n_ = o.capacity_ = 0;
  }
  constexpr sequence& operator=(const sequence& o) {
    if (this == &o) return *this;
    n_ = 0;
    reserve(o.n_);
    for (int i = 0; i < o.n_; ++i) p_[i] = o.p_[i];
    n_ = o.n_;
    return *this;
  }
  constexpr sequence& operator=(sequence&& o) noexcept {
    T* const mine = p_;
    const int capacity = capacity_;
    p_ = o.p_, n_ = o.n_, capacity_ = o.capacity_;
    o.p_ = mine, o.n_ = 0, o.capacity_ = capacity;
    return *this;
  }
  constexpr ~sequence() { delete[] p_; }
  [[gnu::noinline]] constexpr void push(const T& value) {
    if (n_ < capacity_) {
      p_[n_++] = value;
      return;
    }
    T* const before = p_;  // `value` may refer to an element of it
    capacity_ = n_ < 8 ? 8 : 2 * n_;
    p_ = new T[static_cast<unsigned>(capacity_)]{};
    for (int i = 0; i < n_; ++i) p_[i] = static_cast<T&&>(before[i]);
    p_[n_++] = value;
    delete[] before;
  }
  constexpr T& extend() {
    reserve(n_ < capacity_ ? capacity_ : n_ < 8 ? 8 : 2 * n_);
    return p_[n_++];
  }
  constexpr void reserve(int capacity) {
    if (capacity <= capacity_) return;
    T* const p = new T[static_cast<unsigned>(capacity)]{};
    for (int i = 0; i < n_; ++i) p[i] = static_cast<T&&>(p_[i]);
    delete[] p_;
    p_ = p, capacity_ = capacity;
  }
  constexpr void pop() { --n_; }
  constexpr void clear() { n_ = 0; }
  constexpr int size() const { return n_; }
  constexpr bool empty() const { return n_ == 0; }
  constexpr T& operator[](int i) { return p_[i]; }
  constexpr const T& operator[](int i) const { return p_[i]; }
  constexpr T& back() { return p_[n_ - 1]; }
  constexpr T* data() { return p_; }
  constexpr const T* data() const { return p_; }
  constexpr T* begin() { return p_; }
  constexpr T* end() { return p_ + n_; }
  constexpr const T* begin() const { return p_; }
  constexpr const T* end() const { return p_ + n_; }
 private:
  T* p_ = nullptr;
  int n_ = 0, capacity_ = 0;
};
}  // namespace graft
namespace graft {
constexpr std::size_t array_size(long long n) { return static_cast<std::size_t>(n > 0 ? n : 1); }
}  // namespace graft
namespace graft {
enum class op : unsigned char {
  input, ids, base, frozen, index, param, scalar, saved, constant, number, eye, zero,
  add, sub, mul, div, minimum, maximum,
  sqrt, exp, log, sin, cos, tanh, erf, sigmoid, relu, silu, gelu, gelu_tanh, heaviside, detach,
  matmul, row_dot, sum_to,
  transpose, permute, reshape, slice, pad, concat, repeat, fold_columns, strict_upper, skew, unskew,
  inverse, neumann, neumann_grad,
  rotate, rotate_grad,
  kron, row_kron,
  gather, scatter, scatter_elements, gather_elements,
  softmax, topk_softmax, softmax_grad, normalize, normalize_grad,
  im2col, col2im,
  rope, dropout, cross_entropy, cross_entropy_grad, attention, attention_grad, cached_attention,
  circulant, orthonormal,
  route, dispatch, combine, grouped_matmul, grouped_wgrad,
  state,
  all_reduce_sum, all_reduce_max,
  host,
};
enum class op_class : unsigned char {
  leaf,
  pointwise,
  product,
  reduction,
  layout,
  algebra,
  rotation,
  lookup,
  rowwise,
  attention,
  collective,
  opaque
};
enum class stage : unsigned char { load, parameter, call };
enum class axis_flow : unsigned char {
  none,               // a leaf
  elementwise,        // every axis stays, and nothing mixes
  mix_last,           // the last axis mixes within itself, the others stay
  mix_last_of_first,  // as `mix_last`, but only the first operand has rows; the others are read whole
  mix_last_of_two,    // as `mix_last_of_first`, but the first and the third operand have rows
  mix_matrix,         // rows and columns mix, the first two axes stay
  product,            // a matrix product
  transpose,          // rows and columns are swapped
  permute,            // the four axes in another order
  reshape,            // the outermost axis stays outermost
  mix_axis,           // the axis that k[0] names mixes; the others stay
  row_to_matrix,      // rows become matrices
  matrix_to_row,      // matrices become rows
  gather,             // one row per id
  row_labels,         // the last axis of the first operand mixes; the second has one id per row
  im2col,             // an image becomes a matrix of patches
  routed,             // rows of tokens, or rows in the order of the experts that the tokens of a chunk choose
  all,                // everything mixes
  reduce,           // axes that the result does not have are summed
  scatter_add,      // rows are summed by id
  sum_into_blocks,  // rows are summed into blocks
  scatter_values,   // values are scattered by an index
  col2im,           // patches become an image
  routed_sum,       // as `routed`; rows of an expert, or those of the experts of a token, are summed
};
enum class linearity : unsigned char {
  no,
  in_all,    // if all operands are partial sums
  in_each,   // if exactly one operand is
  in_first,  // if the first operand is
};
enum class axis_split : unsigned char { no, parts, summands, sums };
enum class source : unsigned char { generated, tensor, integers, scalar };
struct op_traits {
  const char* name = "";   // as explain() and the errors print it
  const char* infix = "";  // printed between the two operands if not empty
  op_class kind = op_class::leaf;
  signed char arity = 0;
  axis_flow axes = axis_flow::none;
  stage known_at = stage::load;     // stage of leaves; other values have the latest stage of their operands
  source from = source::generated;  // leaves
  linearity linear_in = linearity::no;
  axis_split sharding = axis_split::no;
  bool reads_memory = false;  // operands must be stored in memory on every target
};
namespace detail {
constexpr op_traits with_rules(op_traits r, linearity linear_in, axis_split sharding = axis_split::no) {
  r.linear_in = linear_in, r.sharding = sharding;
  return r;
}
constexpr op_traits reading_memory(op_traits r) {
  r.reads_memory = true;
  return r;
}
constexpr op_traits list_traits(op o) {
  using enum op_class;
  using enum stage;
  switch (o) {
    case op::input: return {"input", "", leaf, 0, axis_flow::none, call, source::tensor};
    case op::ids: return {"ids", "", leaf, 0, axis_flow::none, call, source::integers};
    case op::state: return {"state", "", leaf, 0, axis_flow::none, call, source::tensor};
    case op::base: return {"base", "", leaf, 0, axis_flow::none, load, source::tensor};
    case op::frozen: return {"frozen", "", leaf, 0, axis_flow::none, load, source::tensor};
    case op::index: return {"index", "", leaf, 0, axis_flow::none, load, source::integers};
    case op::param: return {"param", "", leaf, 0, axis_flow::none, parameter, source::tensor};
    case op::scalar: return {"scalar", "", leaf, 0, axis_flow::none, parameter, source::scalar};
    case op::constant: return {"constant", "", leaf, 0, axis_flow::none, load};
    case op::number: return {"number", "", leaf, 0, axis_flow::none, load};
    case op::eye: return {"I", "", leaf, 0, axis_flow::none, load};
    case op::zero: return {"0", "", leaf, 0, axis_flow::none, load};
    case op::saved: return {"saved", "", leaf, 0, axis_flow::none, parameter, source::tensor};
    case op::add: return with_rules({"add", " + ", pointwise, 2, axis_flow::elementwise}, linearity::in_all);
    case op::sub: return with_rules({"sub", " - ", pointwise, 2, axis_flow::elementwise}, linearity::in_all);
    case op::mul: return with_rules({"mul", " * ", pointwise, 2, axis_flow::elementwise}, linearity::in_each);
    case op::div: return with_rules({"div", " / ", pointwise, 2, axis_flow::elementwise}, linearity::in_first);
    case op::minimum: return {"min", "", pointwise, 2, axis_flow::elementwise};
    case op::maximum: return {"max", "", pointwise, 2, axis_flow::elementwise};
    case op::sqrt: return {"sqrt", "", pointwise, 1, axis_flow::elementwise};
    case op::exp: return {"exp", "", pointwise, 1, axis_flow::elementwise};
    case op::log: return {"log", "", pointwise, 1, axis_flow::elementwise};
    case op::sin: return {"sin", "", pointwise, 1, axis_flow::elementwise};
    case op::cos: return {"cos", "", pointwise, 1, axis_flow::elementwise};
    case op::tanh: return {"tanh", "", pointwise, 1, axis_flow::elementwise};
    case op::erf: return {"erf", "", pointwise, 1, axis_flow::elementwise};
    case op::sigmoid: return {"sigmoid", "", pointwise, 1, axis_flow::elementwise};
    case op::relu: return {"relu", "", pointwise, 1, axis_flow::elementwise};
    case op::silu: return {"silu", "", pointwise, 1, axis_flow::elementwise};
    case op::gelu: return {"gelu", "", pointwise, 1, axis_flow::elementwise};
    case op::gelu_tanh: return {"gelu_tanh", "", pointwise, 1, axis_flow::elementwise};
    case op::heaviside: return {"heaviside", "", pointwise, 1, axis_flow::elementwise};
    case op::detach: return with_rules({"const", "", pointwise, 1, axis_flow::elementwise}, linearity::in_all);
    case op::matmul:
      return reading_memory(with_rules({"matmul", " @ ", product, 2, axis_flow::product}, linearity::in_each));
    case op::row_dot:
      return with_rules({"row_dot", "", reduction, 2, axis_flow::mix_last}, linearity::in_each, axis_split::sums);
    case op::sum_to: return with_rules({"sum_to", "", reduction, 1, axis_flow::reduce}, linearity::in_all);
    case op::transpose: return with_rules({"transpose", "", layout, 1, axis_flow::transpose}, linearity::in_all);
    case op::permute: return with_rules({"permute", "", layout, 1, axis_flow::permute}, linearity::in_all);
    case op::reshape: return with_rules({"reshape", "", layout, 1, axis_flow::reshape}, linearity::in_all);
    case op::slice: return with_rules({"slice", "", layout, 1, axis_flow::mix_axis}, linearity::in_all);
    case op::pad: return with_rules({"pad", "", layout, 1, axis_flow::mix_axis}, linearity::in_all);
    case op::concat: return with_rules({"concat", "", layout, 2, axis_flow::mix_axis}, linearity::in_all);
    case op::repeat: return with_rules({"repeat", "", layout, 1, axis_flow::mix_last}, linearity::in_all);
    case op::fold_columns:
      return with_rules({"fold_columns", "", layout, 1, axis_flow::mix_last}, linearity::in_all, axis_split::summands);
    case op::strict_upper: return with_rules({"strict_upper", "", layout, 1, axis_flow::mix_matrix}, linearity::in_all);
    case op::skew: return with_rules({"skew", "", layout, 1, axis_flow::row_to_matrix}, linearity::in_all);
    case op::unskew: return with_rules({"unskew", "", layout, 1, axis_flow::matrix_to_row}, linearity::in_all);
    case op::circulant: return with_rules({"circulant", "", layout, 1, axis_flow::mix_matrix}, linearity::in_all);
    case op::inverse: return {"inverse", "", algebra, 1, axis_flow::mix_matrix};
    case op::orthonormal: return {"orthonormal", "", algebra, 1, axis_flow::mix_matrix};
    case op::neumann: return {"neumann", "", algebra, 1, axis_flow::mix_matrix};
    case op::neumann_grad: return {"neumann_grad", "", algebra, 2, axis_flow::mix_matrix};
    case op::rotate:
      return reading_memory(with_rules({"rotate", "", rotation, 2, axis_flow::mix_last_of_first}, linearity::in_first,
                                       axis_split::parts));
    case op::rotate_grad:
      return with_rules({"rotate_grad", "", rotation, 3, axis_flow::sum_into_blocks}, linearity::no, axis_split::parts);
    case op::kron: return with_rules({"kron", "", algebra, 2, axis_flow::all}, linearity::in_each);
    case op::row_kron: return with_rules({"row_kron", "", algebra, 2, axis_flow::mix_last}, linearity::in_each);
    case op::gather: return with_rules({"gather", "", lookup, 2, axis_flow::gather}, linearity::in_first);
    case op::scatter: return with_rules({"scatter", "", lookup, 2, axis_flow::scatter_add}, linearity::in_first);
    case op::scatter_elements:
      return with_rules({"scatter_elements", "", lookup, 2, axis_flow::scatter_values}, linearity::in_first);
    case op::gather_elements:
      return with_rules({"gather_elements", "", lookup, 2, axis_flow::all}, linearity::in_first);
    case op::softmax: return {"softmax", "", rowwise, 1, axis_flow::mix_last};
    case op::topk_softmax: return {"topk_softmax", "", rowwise, 1, axis_flow::mix_last};
    case op::softmax_grad: return {"softmax_grad", "", rowwise, 2, axis_flow::mix_last};
    case op::normalize: return reading_memory({"normalize", "", rowwise, 2, axis_flow::mix_last_of_first});
    case op::normalize_grad: return {"normalize_grad", "", rowwise, 3, axis_flow::mix_last_of_two};
    case op::rope:
      return with_rules({"rope", "", rowwise, 2, axis_flow::mix_last}, linearity::in_first, axis_split::parts);
    case op::dropout: return {"dropout", "", pointwise, 3, axis_flow::mix_last_of_first};
    case op::cross_entropy:
      return with_rules({"cross_entropy", "", rowwise, 2, axis_flow::row_labels}, linearity::no, axis_split::summands);
    case op::cross_entropy_grad:
      return with_rules({"cross_entropy_grad", "", rowwise, 3, axis_flow::row_labels}, linearity::no,
                        axis_split::parts);
    case op::attention:
      return with_rules({"attention", "", attention, 2, axis_flow::all}, linearity::no, axis_split::parts);
    case op::attention_grad:
      return with_rules({"attention_grad", "", attention, 3, axis_flow::all}, linearity::no, axis_split::parts);
    case op::cached_attention:
      return with_rules({"cached_attention", "", attention, 3, axis_flow::all}, linearity::no, axis_split::parts);
    case op::route: return {"route", "", lookup, 1, axis_flow::routed};
    case op::dispatch: return {"dispatch", "", lookup, 2, axis_flow::routed};
    case op::combine: return {"combine", "", lookup, 2, axis_flow::routed_sum};
    case op::grouped_matmul: return reading_memory({"grouped_matmul", "", product, 3, axis_flow::routed});
    case op::grouped_wgrad: return reading_memory({"grouped_wgrad", "", product, 3, axis_flow::routed_sum});
    case op::im2col: return with_rules({"im2col", "", layout, 1, axis_flow::im2col}, linearity::in_all);
    case op::col2im: return with_rules({"col2im", "", layout, 1, axis_flow::col2im}, linearity::in_all);
    case op::all_reduce_sum: return {"all_reduce_sum", "", collective, 1, axis_flow::all};
    case op::all_reduce_max: return {"all_reduce_max", "", collective, 1, axis_flow::all};
    case op::host: return {"host", "", opaque, 1, axis_flow::all};
  }
  return {"?", "", opaque, 0, axis_flow::all};
}
struct op_rows {
  op_traits of[static_cast<int>(op::host) + 1]{};
  constexpr op_rows() {
    for (int i = 0; i <= static_cast<int>(op::host); ++i) of[i] = list_traits(static_cast<op>(i));
  }
};
inline constexpr op_rows table{};  // a table look-up costs constant evaluation fewer steps than the switch
}  // namespace detail
constexpr const op_traits& traits_of(op o) { return detail::table.of[static_cast<int>(o)]; }
constexpr bool is_leaf(op o) { return traits_of(o).kind == op_class::leaf; }
constexpr bool is_pointwise(op o) { return traits_of(o).kind == op_class::pointwise; }
constexpr bool is_named(op o) { return traits_of(o).from != source::generated; }
constexpr bool is_routed(op o) {
  return traits_of(o).axes == axis_flow::routed || traits_of(o).axes == axis_flow::routed_sum;
}
constexpr bool accumulates_result(op o) { return traits_of(o).axes >= axis_flow::reduce; }
}  // namespace graft
namespace graft {
inline constexpr int dyn = -1;
struct dim {
  int v = 1;
  constexpr bool is_static() const { return v >= 0; }
  constexpr int entry() const { return -1 - v; }
  friend constexpr bool operator==(dim, dim) = default;
};
constexpr dim entry_dim(int index) { return {-1 - index}; }
}  // namespace graft
namespace graft {
inline constexpr long long saturated = std::numeric_limits<long long>::max();
constexpr long long saturating_multiply(long long a, long long b) {
  return b > 0 && a > saturated / b ? saturated : a * b;
}
constexpr long long saturating_add(long long a, long long b) { return b > 0 && a > saturated - b ? saturated : a + b; }
}  // namespace graft
namespace graft {
struct text {
  static constexpr int capacity = 1023;
  char s[capacity + 1]{};
  int n = 0;
  constexpr text() = default;
  constexpr text(const char* t) { *this << t; }
  constexpr text& operator<<(char c) {
    if (n < capacity) s[n++] = c;
    return *this;
  }
  [[gnu::noinline]] constexpr text& operator<<(const char* t) {
    while (*t != '\0') *this << *t++;
    return *this;
  }
  constexpr text& operator<<(const text& t) { return *this << t.s; }
  [[gnu::noinline]] constexpr text& operator<<(long long v) {
    char digits[24]{};
    int k = 0;
    unsigned long long u = v < 0 ? 0ULL - static_cast<unsigned long long>(v) : static_cast<unsigned long long>(v);
    if (v < 0) *this << '-';
    do digits[k++] = static_cast<char>('0' + u % 10);
    while ((u /= 10) != 0);
    while (k > 0) *this << digits[--k];
    return *this;
  }
  constexpr text& operator<<(int v) { return *this << static_cast<long long>(v); }
  constexpr const char* c_str() const { return s; }
  constexpr bool empty() const { return n == 0; }
};
constexpr bool same_text(const char* a, const char* b) {
  while (*a != '\0' && *a == *b) ++a, ++b;
  return *a == *b;
}
constexpr bool contains(const char* where, const char* what) {
  for (; *where != '\0'; ++where) {
    const char *w = where, *q = what;
    while (*q != '\0' && *w == *q) ++w, ++q;
    if (*q == '\0') return true;
  }
  return *what == '\0';
}
}  // namespace graft
namespace graft {
struct path_entry {
  int above = -1;
  const char* word = "";
  int length = 0;
};
struct path_table {
  const path_entry* e = nullptr;
  int count = 0;
  [[gnu::noinline]] constexpr const char* strip_prefix(int path, const char* full) const {
    if (path <= 0) return full;
    full = strip_prefix(e[path].above, full);
    if (full == nullptr) return nullptr;
    for (int i = 0; i < e[path].length; ++i)
      if (full[i] != e[path].word[i]) return nullptr;
    return full[e[path].length] == '.' ? full + e[path].length + 1 : nullptr;
  }
  constexpr bool same(int path, const path_table& other, int there) const {
    if (path <= 0 || there <= 0) return path <= 0 && there <= 0;
    const path_entry &p = e[path], &q = other.e[there];
    bool equal = p.length == q.length;
    for (int i = 0; equal && i < p.length; ++i) equal = p.word[i] == q.word[i];
    return equal && same(p.above, other, q.above);
  }
  constexpr bool is(int path, const char* name, const char* full) const {
    const char* const rest = strip_prefix(path, full);
    return rest != nullptr && same_text(rest, name);
  }
  [[gnu::cold]] constexpr void print(text& t, int path) const {
    if (path <= 0) return;
    print(t, e[path].above);
    for (int i = 0; i < e[path].length; ++i) t << e[path].word[i];
    t << '.';
  }
  constexpr int order(int p, int q) const {
    if (p == q) return 0;
    if (p <= 0 || q <= 0) return p <= 0 ? -1 : 1;
    if (const int above = order(e[p].above, e[q].above); above != 0) return above;
    int i = 0;
    while (i < e[p].length && i < e[q].length && e[p].word[i] == e[q].word[i]) ++i;
    const int a = i < e[p].length ? e[p].word[i] : 0, b = i < e[q].length ? e[q].word[i] : 0;
    return a < b ? -1 : 1;
  }
  [[gnu::cold, gnu::noinline]] constexpr text full(int path, const char* name) const {
    text t;
    print(t, path), t << name;
    return t;
  }
};
}  // namespace graft
namespace graft {
struct size_entry {
  enum class kind : unsigned char { name, sum, difference, product, quotient, triangle, window, butterfly };
  kind what = kind::name;
  dim a{}, b{}, c{}, d{};  // window: size, kernel, stride, padding
  const char* name = "";
  int path = 0;
  int index = -1;       // names: index in size_values
  int nominal = 0;      // assumed by cost comparisons while the number is unknown; 0: not stated
  bool tokens = false;  // counts the rows of a call
  constexpr int assumed() const { return nominal > 0 ? nominal : 16; }
};
inline constexpr int max_names = 192;
inline constexpr long long unknown = -1;
struct size_values {
  long long v[max_names];
  constexpr size_values() : v{} {
    for (long long& x : v) x = unknown;
  }
};
struct size_table {
  const size_entry* e = nullptr;
  int count = 0;
  path_table paths{};
  constexpr long long value(dim d, const size_values& s) const { return value(d, s, false); }
  constexpr long long nominal(dim d) const {
    const long long n = value(d, {}, true);
    return n > 0 ? n : 1;
  }
  [[gnu::noinline]] constexpr long long value(dim d, const size_values& named, bool nominal) const {
    if (d.is_static()) return d.v;
    const size_entry& t = e[d.entry()];
    if (t.what == size_entry::kind::name) return nominal ? t.assumed() : named.v[t.index];
    const long long a = value(t.a, named, nominal), b = value(t.b, named, nominal);
    if (a == unknown || b == unknown) return unknown;
    switch (t.what) {
      case size_entry::kind::name: break;
      case size_entry::kind::sum: return saturating_add(a, b);
      case size_entry::kind::difference: return a < b ? unknown : a - b;
      case size_entry::kind::product: return saturating_multiply(a, b);
      case size_entry::kind::quotient: return b == 0 ? unknown : a / b;
      case size_entry::kind::triangle:
        return a < 2 ? 0 : a % 2 == 0 ? saturating_multiply(a / 2, a - 1) : saturating_multiply(a, a / 2);
      case size_entry::kind::butterfly:
        return b <= 1 ? a : a % 2 != 0 || b > 32 ? 0 : saturating_multiply(a, 1LL << (b - 1));
      case size_entry::kind::window: {
        const long long stride = value(t.c, named, nominal), pad = value(t.d, named, nominal);
        const long long padded = pad == unknown ? unknown : saturating_add(a, saturating_multiply(2, pad));
        return stride <= 0 || pad == unknown || padded < b ? unknown : (padded - b) / stride + 1;
      }
    }
    return unknown;
  }
  constexpr bool solve(dim d, long long n, size_values& s) const {
    if (d.is_static()) return d.v == n;
    const size_entry& t = e[d.entry()];
    if (t.what == size_entry::kind::name) {
      if (s.v[t.index] == unknown) s.v[t.index] = n;
      return s.v[t.index] == n;
    }
    const long long a = value(t.a, s), b = value(t.b, s);
    using enum size_entry::kind;
    if (t.what == sum && (a == unknown) != (b == unknown))
      return a == unknown ? n > b && solve(t.a, n - b, s) : n > a && solve(t.b, n - a, s);
    if (t.what == difference && (a == unknown) != (b == unknown))
      return a == unknown ? solve(t.a, saturating_add(n, b), s) : a > n && solve(t.b, a - n, s);
    if (t.what == product && a > 0 && b == unknown) return n % a == 0 && solve(t.b, n / a, s);
    if (t.what == product && b > 0 && a == unknown) return n % b == 0 && solve(t.a, n / b, s);
    if (t.what == quotient && a > 0 && b == unknown) return n > 0 && a % n == 0 && solve(t.b, a / n, s);
    if (t.what == quotient && b > 0 && a == unknown) return solve(t.a, saturating_multiply(n, b), s);
    if (t.what == triangle && a == unknown) {
      for (long long k = 1; k * (k - 1) / 2 <= n; ++k)
        if (k * (k - 1) / 2 == n && n > 0) return solve(t.a, k, s);
      return false;
    }
    const long long now = value(d, s);
    return now == unknown || now == n;
  }
  [[gnu::noinline]] constexpr int find(const char* full) const {
    for (int i = 0; i < count; ++i)
      if (e[i].what == size_entry::kind::name && paths.is(e[i].path, e[i].name, full)) return e[i].index;
    return -1;
  }
  constexpr int find_like(const size_table& other, const size_entry& name) const {
    for (int i = 0; i < count; ++i)
      if (e[i].index >= 0 && same_text(e[i].name, name.name) && paths.same(e[i].path, other.paths, name.path))
        return e[i].index;
    return -1;
  }
  [[gnu::noinline]] constexpr bool has_token_rows(dim d) const {
    if (d.is_static()) return false;
    const size_entry& t = e[d.entry()];
    return t.what == size_entry::kind::name ? t.tokens : has_token_rows(t.a) || has_token_rows(t.b);
  }
  constexpr void set_tokens(size_values& s, long long n) const {
    for (int i = 0; i < count; ++i)
      if (e[i].tokens) s.v[e[i].index] = n;
  }
  constexpr long long tokens(const size_values& s) const {
    for (int i = 0; i < count; ++i)
      if (e[i].tokens) return s.v[e[i].index];
    return unknown;
  }
  [[gnu::noinline]] constexpr int order(dim p, dim q) const {
    auto sign = [](long long n) { return n < 0 ? -1 : n > 0 ? 1 : 0; };
    if (p == q) return 0;
    if (p.is_static() || q.is_static())
      return p.is_static() && q.is_static() ? sign(p.v - q.v) : p.is_static() ? -1 : 1;
    const size_entry &s = e[p.entry()], &t = e[q.entry()];
    if (s.what != t.what) return sign(static_cast<int>(s.what) - static_cast<int>(t.what));
    if (s.what == size_entry::kind::name) {
      const char *a = s.name, *b = t.name;
      while (*a != '\0' && *a == *b) ++a, ++b;
      return *a != *b ? sign(*a - *b) : paths.order(s.path, t.path);
    }
    if (const int first = order(s.a, t.a); first != 0) return first;
    if (const int second = order(s.b, t.b); second != 0) return second;
    if (const int third = order(s.c, t.c); third != 0) return third;
    return order(s.d, t.d);
  }
};
}  // namespace graft
namespace graft {
using id = int;
inline constexpr id none_id = -1;
struct node {
  op what = op::zero;
  bool ta = false, tb = false;  // operand a, b is transposed; gather, scatter: columns instead of rows
  bool sum = false;             // matmul: the products of all matrices are summed; others: see is_shard()
  bool orthogonal = false;      // the formula states that the inverse is the transpose
  bool from_base = false;       // is a base tensor, or is computed from one
  signed char rank = 4;         // leaves: number of axes in a file
  id a = none_id, b = none_id, c = none_id;
  dim d[4]{};                    // sizes, right aligned
  dim k[4]{{0}, {0}, {0}, {0}};  // integer arguments of an op: terms, top-k, axes, kernel, stride, padding
  double value = 0;              // constants
  const char* name = "";
  int path = 0;  // leaves: entry of the path table
  int line = 0;
  constexpr dim rows() const { return d[2]; }
  constexpr dim cols() const { return d[3]; }
  constexpr id operand(int i) const { return i == 0 ? a : i == 1 ? b : c; }
};
enum class formula_error : unsigned char {
  none,
  too_many_sizes,
  name_is_taken,
  size_is_negative,
  not_on_experts,
  not_differentiable
};
struct failure {
  formula_error what = formula_error::none;
  id at = none_id;
  int line = 0;
  const char* name = "";  // the leaf or size that the error names; not_on_experts: the method
  int number = 0;         // size_is_negative: the size
};
struct requirement {
  enum class kind : unsigned char { inner, same, square, divides, at_most };
  kind what = kind::same;
  dim lhs{}, rhs{};
  id at = none_id;
  int line = 0;
};
struct output {
  id at = none_id;
  const char* name = "";
  int path = 0;
  bool of_input = false;
};
struct graph {
  const node* n = nullptr;
  int size = 0;
  size_table sizes{};
  const requirement* need = nullptr;
  int needs = 0;
  const output* out = nullptr;
  int outs = 0;
  failure bad{};
  constexpr const node& operator[](id i) const { return n[i]; }
  constexpr const path_table& paths() const { return sizes.paths; }
  constexpr text name(id i) const { return paths().full(n[i].path, n[i].name); }
  [[gnu::cold]] constexpr text output_name(int k) const {
    text t;
    paths().print(t, out[k].path), t << (out[k].of_input ? "d" : "") << out[k].name;
    return t;
  }
  [[gnu::noinline]] constexpr id find(const char* full) const {
    for (id i = 0; i < size; ++i)
      if (is_leaf(n[i].what) && paths().is(n[i].path, n[i].name, full)) return i;
    return none_id;
  }
  constexpr int find_output(const char* full) const {
    for (int k = 0; k < outs; ++k) {
      const char* const rest = paths().strip_prefix(out[k].path, full);
      if (rest == nullptr || (out[k].of_input && *rest != 'd')) continue;
      if (same_text(out[k].of_input ? rest + 1 : rest, out[k].name)) return k;
    }
    return -1;
  }
  constexpr id result(const char* full) const {
    const int k = find_output(full);
    return k < 0 ? none_id : out[k].at;
  }
};
struct graph_counts {
  int nodes = 0, sizes = 0, paths = 0, needs = 0, outs = 0;
};
constexpr graph_counts counts_of(const graph& g) { return {g.size, g.sizes.count, g.paths().count, g.needs, g.outs}; }
template <int Nodes, int Sizes, int Paths, int Needs, int Outs> struct stored_graph {
  graph_counts of{};
  node n[array_size(Nodes)]{};
  size_entry sizes[array_size(Sizes)]{};
  path_entry paths[array_size(Paths)]{};
  requirement need[array_size(Needs)]{};
  output out[array_size(Outs)]{};
  failure bad{};
  constexpr bool fits() const {
    return of.nodes <= Nodes && of.sizes <= Sizes && of.paths <= Paths && of.needs <= Needs && of.outs <= Outs;
  }
  constexpr operator graph() const {
    return {n, of.nodes, {sizes, of.sizes, {paths, of.paths}}, need, of.needs, out, of.outs, bad};
  }
};
template <int Nodes, int Sizes, int Paths, int Needs, int Outs>
constexpr stored_graph<Nodes, Sizes, Paths, Needs, Outs> store_graph(const graph& from) {
  stored_graph<Nodes, Sizes, Paths, Needs, Outs> g;
  g.of = counts_of(from);
  if (!g.fits()) return g;
  for (int i = 0; i < g.of.nodes; ++i) g.n[i] = from.n[i];
  for (int i = 0; i < g.of.sizes; ++i) g.sizes[i] = from.sizes.e[i];
  for (int i = 0; i < g.of.paths; ++i) g.paths[i] = from.paths().e[i];
  for (int i = 0; i < g.of.needs; ++i) g.need[i] = from.need[i];
  for (int i = 0; i < g.of.outs; ++i) g.out[i] = from.out[i];
  g.bad = from.bad;
  return g;
}
constexpr bool is_shard(const node& v) { return v.sum && v.what != op::matmul; }
constexpr bool same_shape(const node& p, const node& q) {
  for (int i = 0; i < 4; ++i)
    if (p.d[i].v != q.d[i].v) return false;
  return true;
}
constexpr bool is_scalar(const node& v) {
  for (int i = 3; i >= 0; --i)
    if (v.d[i].v != 1) return false;
  return true;
}
[[gnu::noinline]] constexpr long long element_count(const graph& g, id i, const size_values& s) {
  long long n = 1;
  for (dim d : g[i].d) {
    const long long v = g.sizes.value(d, s);
    if (v == unknown) return unknown;
    n = saturating_multiply(n, v);
  }
  return n;
}
constexpr long long nominal_count(const graph& g, id i) {
  long long n = 1;
  for (dim d : g.n[i].d)
    if (d.v != 1) n = saturating_multiply(n, g.sizes.nominal(d));
  return n;
}
}  // namespace graft
namespace graft {
struct builder {
  sequence<node> n;
  sequence<size_entry> size_list;
  sequence<path_entry> path_list;
  sequence<requirement> need;
  sequence<output> out;
  failure bad{};
  int names = 0;  // named sizes so far
  static constexpr int buckets = 64;
  sequence<int> first{buckets};  // head of each hash chain: node + 1, or 0
  sequence<int> next;            // by node: the next node of its chain + 1, or 0
  [[gnu::cold, gnu::noinline]] constexpr builder() { path_list.push({}); }
  [[gnu::cold, gnu::noinline]] constexpr builder(const builder&) = default;
  [[gnu::cold, gnu::noinline]] constexpr builder(builder&&) = default;
  [[gnu::cold, gnu::noinline]] constexpr builder& operator=(const builder&) = default;
  [[gnu::cold, gnu::noinline]] constexpr builder& operator=(builder&&) = default;
  [[gnu::cold, gnu::noinline]] constexpr ~builder() = default;
  constexpr path_table paths() const { return {path_list.data(), path_list.size()}; }
  constexpr size_table sizes() const { return {size_list.data(), size_list.size(), paths()}; }
  constexpr operator graph() const {
    return {n.data(), n.size(), sizes(), need.data(), need.size(), out.data(), out.size(), bad};
  }
  constexpr id find(const char* full) const { return graph(*this).find(full); }
  constexpr id result(const char* full) const { return graph(*this).result(full); }
  constexpr int path(int above, const char* words) {
    while (*words != '\0') {
      int length = 0;
      while (words[length] != '\0' && words[length] != '.') ++length;
      above = word(above, words, length);
      words += length + (words[length] == '.' ? 1 : 0);
    }
    return above;
  }
  [[gnu::cold, gnu::noinline]] constexpr int word(int above, const char* text, int length) {
    for (int i = 0; i < path_list.size(); ++i) {
      const path_entry& p = path_list[i];
      bool equal = p.above == above && p.length == length;
      for (int k = 0; equal && k < length; ++k) equal = p.word[k] == text[k];
      if (equal) return i;
    }
    path_list.push({above, text, length});
    return path_list.size() - 1;
  }
  [[gnu::cold, gnu::noinline]] constexpr dim entry(size_entry t) {
    const size_entry* const entries = size_list.data();
    for (int i = 0, count = size_list.size(); i < count; ++i) {
      const size_entry& o = entries[i];
      if (o.what == t.what && o.a.v == t.a.v && o.b.v == t.b.v && o.c.v == t.c.v && o.d.v == t.d.v &&
          o.path == t.path && same_text(o.name, t.name))
        return entry_dim(i);
    }
    if (t.what == size_entry::kind::name) {
      if (names == max_names) return stop({formula_error::too_many_sizes, none_id, 0, t.name}), dim{1};
      t.index = names++;
    }
    size_list.push(t);
    return entry_dim(size_list.size() - 1);
  }
  [[gnu::cold, gnu::noinline]] constexpr dim derived_size(size_entry::kind what, dim a, dim b, dim c = {}, dim d = {}) {
    size_entry t;
    t.what = what, t.a = a, t.b = b, t.c = c, t.d = d, t.nominal = 1;
    return entry(t);
  }
  constexpr dim size_named(const char* name, int path, int nominal, bool tokens = false) {
    size_entry t;
    t.name = name, t.path = path, t.nominal = nominal, t.tokens = tokens;
    const dim d = entry(t);
    if (d.is_static()) return d;
    size_entry& e = size_list[d.entry()];
    if (e.nominal < nominal) e.nominal = nominal;
    e.tokens = e.tokens || tokens;
    return d;
  }
  constexpr bool is_size(dim d, size_entry::kind what) const {
    return !d.is_static() && size_list[d.entry()].what == what;
  }
  constexpr bool divided_by(dim q, dim divisor) const {
    return is_size(q, size_entry::kind::quotient) && size_list[q.entry()].b == divisor;
  }
  constexpr void sort_operands(dim& a, dim& b) const {
    if (sizes().order(b, a) >= 0) return;
    const dim t = a;
    a = b, b = t;
  }
  [[gnu::cold, gnu::noinline]] constexpr dim times(dim a, dim b) {
    if (a.is_static() && b.is_static()) return {a.v * b.v};
    if (a == dim{1}) return b;
    if (b == dim{1}) return a;
    if (divided_by(a, b)) return size_list[a.entry()].a;
    if (divided_by(b, a)) return size_list[b.entry()].a;
    sort_operands(a, b);
    return derived_size(size_entry::kind::product, a, b);
  }
  constexpr dim over(dim a, dim b, int line = 0) {
    if (b == dim{1}) return a;
    if (a == b) return {1};
    require(requirement::kind::divides, a, b, none_id, line);
    if (a.is_static() && b.is_static()) return {b.v > 0 ? a.v / b.v : 1};
    if (is_size(a, size_entry::kind::product)) {
      const size_entry& t = size_list[a.entry()];
      if (t.a == b) return t.b;
      if (t.b == b) return t.a;
    }
    return derived_size(size_entry::kind::quotient, a, b);
  }
  constexpr dim plus(dim a, dim b) {
    if (a.is_static() && b.is_static()) return {a.v + b.v};
    if (a == dim{0}) return b;
    if (b == dim{0}) return a;
    sort_operands(a, b);
    return derived_size(size_entry::kind::sum, a, b);
  }
  constexpr dim minus(dim a, dim b, int line = 0) {
    if (b == dim{0}) return a;
    if (a == b) return {0};
    require(requirement::kind::at_most, b, a, none_id, line);
    if (a.is_static() && b.is_static()) return {a.v > b.v ? a.v - b.v : 0};
    return derived_size(size_entry::kind::difference, a, b);
  }
  constexpr dim triangle(dim a) {
    return a.is_static() ? dim{a.v * (a.v - 1) / 2} : derived_size(size_entry::kind::triangle, a, {});
  }
  constexpr dim butterfly(dim block, dim factors) {
    return factors == dim{1} ? block : derived_size(size_entry::kind::butterfly, block, factors);
  }
  constexpr dim window(dim length, dim kernel, dim stride, dim pad) {
    return derived_size(size_entry::kind::window, length, kernel, stride, pad);
  }
  constexpr void stop(const failure& f) {
    if (bad.what == formula_error::none) bad = f;
  }
  [[gnu::cold, gnu::noinline]] constexpr void require(requirement::kind k, dim lhs, dim rhs, id at, int line) {
    if (k != requirement::kind::divides && lhs == rhs) return;
    if (k == requirement::kind::divides && lhs.is_static() && rhs.is_static() && rhs.v > 0 && lhs.v % rhs.v == 0)
      return;
    for (requirement& r : need)
      if (r.what == k && r.lhs == lhs && r.rhs == rhs && r.at == at) {
        if (line > 0 && (r.line == 0 || line < r.line)) r.line = line;
        return;
      }
    need.push({k, lhs, rhs, at, line});
  }
  static constexpr bool same(const node& p, const node& q) {
    if (p.what != q.what || p.a != q.a || p.b != q.b || p.c != q.c || p.ta != q.ta || p.tb != q.tb || p.sum != q.sum)
      return false;
    if (p.value != q.value || p.path != q.path || !same_shape(p, q)) return false;
    for (int i = 0; i < 4; ++i)
      if (p.k[i].v != q.k[i].v) return false;
    if (is_named(p.what) && p.rank != q.rank) return false;
    return (!is_leaf(p.what) && p.what != op::host) || same_text(p.name, q.name);
  }
  static constexpr int bucket_of(const node& v) {
    return (static_cast<int>(v.what) + 7 * (v.a + 1) + 13 * (v.b + 1) + 5 * (v.c + 1) + 3 * v.path) % buckets;
  }
  [[gnu::cold, gnu::noinline]] constexpr id emit(const node& v) {
    node* const nodes = n.data();
    for (int i = first[bucket_of(v)]; i > 0; i = next[i - 1])
      if (nodes[i - 1].what == v.what && same(nodes[i - 1], v)) {
        node& old = nodes[i - 1];  // the smallest line counts, so that evaluation order does not matter
        if (v.line > 0 && (old.line == 0 || v.line < old.line)) old.line = v.line;
        return i - 1;
      }
    return append(v);
  }
  constexpr id append(const node& v) {
    int& bucket = first[bucket_of(v)];
    n.push(v), next.push(bucket);
    node* const made = n.data();
    made[n.size() - 1].from_base = v.what == op::base || (v.a >= 0 && made[v.a].from_base) ||
                                   (v.b >= 0 && made[v.b].from_base) || (v.c >= 0 && made[v.c].from_base);
    return bucket = n.size(), bucket - 1;
  }
  constexpr void reserve(int nodes) { n.reserve(nodes), next.reserve(nodes); }
  constexpr void add_output(id i, const char* name, int path = 0, bool of_input = false) {
    out.push({i, name, path, of_input});
  }
  [[gnu::cold, gnu::noinline]] constexpr node shaped(op o, id like, id a, id b = none_id, id c = none_id,
                                                     int line = 0) const {
    node v{};
    v.what = o;
    v.a = a;
    v.b = b;
    v.c = c;
    const node& shape = n[like];
    for (int i = 0; i < 4; ++i) v.d[i] = shape.d[i];
    v.line = line;
    return v;
  }
  [[gnu::cold, gnu::noinline]] constexpr id leaf(op o, const char* name, int path, int rank, dim d0, dim d1, dim d2,
                                                 dim d3, int line = 0) {
    node v{};
    v.what = o;
    v.name = name;
    v.path = path;
    v.rank = static_cast<signed char>(rank);
    v.d[0] = d0, v.d[1] = d1, v.d[2] = d2, v.d[3] = d3;
    v.line = line;
    const int before = n.size();
    const id made = emit(v);
    const node* const nodes = n.data();
    if (made == before && is_named(o))
      for (id i = 0; i < before; ++i)
        if (nodes[i].path == path && nodes[i].a < 0 && is_named(nodes[i].what) && same_text(nodes[i].name, name))
          stop({formula_error::name_is_taken, i, line, name});
    return made;
  }
  [[gnu::cold, gnu::noinline]] constexpr id constant(double value) {
    node v{};
    v.what = op::constant;
    v.value = value;
    v.name = "constant";
    return emit(v);
  }
  constexpr id number(dim d, int line = 0) {
    if (d.is_static()) return constant(d.v);
    node v{};
    v.what = op::number;
    v.k[0] = d;
    v.name = "number";
    v.line = line;
    return emit(v);
  }
  constexpr id zero_like(id like) {
    node v = shaped(op::zero, like, none_id);
    v.name = "0";
    return emit(v);
  }
  constexpr bool is(id i, op o) const { return i >= 0 && n[i].what == o; }
  constexpr bool is_value(id i, double value) const { return is(i, op::constant) && n[i].value == value; }
};
}  // namespace graft
namespace graft {
namespace detail {
struct table_copier {
  const graph& from;
  builder& to;
  sequence<int> size_at, path_at;  // index of an entry in `to`, plus 1; 0: not copied
  constexpr table_copier(const graph& f, builder& t)
      : from(f), to(t), size_at(f.sizes.count, 0), path_at(f.paths().count, 0) {}
  [[gnu::cold, gnu::noinline]] constexpr int path(int p) {
    if (p <= 0) return 0;
    if (path_at[p] == 0) {
      const path_entry& e = from.paths().e[p];
      const int above = path(e.above);
      path_at[p] = to.word(above, e.word, e.length) + 1;
    }
    return path_at[p] - 1;
  }
  [[gnu::cold, gnu::noinline]] constexpr dim size(dim d) {
    if (d.is_static()) return d;
    int& at = size_at[d.entry()];
    if (at == 0) {
      size_entry e = from.sizes.e[d.entry()];
      e.a = size(e.a), e.b = size(e.b), e.c = size(e.c), e.d = size(e.d), e.path = path(e.path);
      at = to.entry(e).entry() + 1;
    }
    return entry_dim(at - 1);
  }
  [[gnu::cold, gnu::noinline]] constexpr node moved(node v, const id* new_id) {
    if (v.a >= 0) v.a = new_id[v.a];
    if (v.b >= 0) v.b = new_id[v.b];
    if (v.c >= 0) v.c = new_id[v.c];
    for (int i = 0; i < 4; ++i) {
      if (v.d[i].v < 0) v.d[i] = size(v.d[i]);
      if (v.k[i].v < 0) v.k[i] = size(v.k[i]);
    }
    if (v.path > 0) v.path = path(v.path);
    return v;
  }
};
constexpr bool comes_before(const text& a, const text& b) {
  int i = 0;
  while (a.s[i] != '\0' && a.s[i] == b.s[i]) ++i;
  return a.s[i] < b.s[i];
}
}  // namespace detail
[[gnu::cold]] constexpr builder canonical(const graph& from) {
  builder g;
  detail::table_copier tables(from, g);
  g.reserve(from.size);
  sequence<id> new_id(from.size, none_id), stack(from.size);
  id *const to = new_id.data(), *const open = stack.data();
  auto visit = [&](id root) {
    int depth = 0;
    open[depth++] = root;
    while (depth > 0) {
      const id i = open[depth - 1];
      const node& v = from.n[i];
      if (v.a >= 0 && to[v.a] < 0) {
        open[depth++] = v.a;
      } else if (v.b >= 0 && to[v.b] < 0) {
        open[depth++] = v.b;
      } else if (v.c >= 0 && to[v.c] < 0) {
        open[depth++] = v.c;
      } else {
        --depth;
        if (to[i] < 0) to[i] = g.append(tables.moved(v, to));
      }
    }
  };
  for (int k = 0; k < from.outs; ++k) visit(from.out[k].at);
  for (;;) {  // inputs that nothing reads are added in the order of their names
    id next = none_id;
    for (id i = 0; i < from.size; ++i)
      if (from[i].what == op::input && to[i] < 0)
        if (next < 0 || detail::comes_before(from.name(i), from.name(next))) next = i;
    if (next < 0) break;
    visit(next);
  }
  for (int k = 0; k < from.outs; ++k) {
    const output& o = from.out[k];
    g.add_output(to[o.at], o.name, tables.path(o.path), o.of_input);
  }
  sequence<requirement> sorted;
  auto before = [&](const requirement& p, const requirement& q) {
    if (p.at != q.at) return p.at < q.at;
    if (p.what != q.what) return p.what < q.what;
    if (const int lhs = from.sizes.order(p.lhs, q.lhs); lhs != 0) return lhs < 0;
    if (const int rhs = from.sizes.order(p.rhs, q.rhs); rhs != 0) return rhs < 0;
    return p.line < q.line;
  };
  for (int i = 0; i < from.needs; ++i) {
    requirement r = from.need[i];
    r.at = r.at >= 0 ? to[r.at] : none_id;
    sorted.push(r);
    for (int k = i; k > 0 && before(sorted[k], sorted[k - 1]); --k) {
      const requirement t = sorted[k];
      sorted[k] = sorted[k - 1], sorted[k - 1] = t;
    }
  }
  for (const requirement& r : sorted) {
    const dim lhs = tables.size(r.lhs), rhs = tables.size(r.rhs);
    bool noted = false;
    for (const requirement& q : g.need) noted = noted || (q.what == r.what && q.lhs == lhs && q.rhs == rhs);
    if (!noted) g.need.push({r.what, lhs, rhs, r.at, r.line});
  }
  g.bad = from.bad;
  if (g.bad.at >= 0) g.bad.at = to[from.bad.at];
  return g;
}
}  // namespace graft
namespace graft::make_node {
[[gnu::cold, gnu::noinline]] constexpr id pointwise(builder& g, op o, id a, id b, int line = 0) {
  node v = g.shaped(o, a, a, b, none_id, line);
  dim p[4]{}, q[4]{};
  const node& right = g.n[b];
  for (int i = 0; i < 4; ++i) {
    p[i] = v.d[i], q[i] = right.d[i];
    if (p[i].v == 1) v.d[i] = q[i];
  }
  const id made = g.emit(v);
  for (int i = 0; i < 4; ++i)
    if (p[i].v != 1 && q[i].v != 1 && p[i].v != q[i].v) g.require(requirement::kind::same, p[i], q[i], made, line);
  return made;
}
constexpr id unary(builder& g, op o, id a, int line = 0) { return g.emit(g.shaped(o, a, a, none_id, none_id, line)); }
constexpr id zero_of(builder& g, id a, id b) {  // zeros of the broadcast shape of a and b
  node v = g.shaped(op::zero, a, none_id);
  for (int i = 0; i < 4; ++i)
    if (g.n[a].d[i] == dim{1}) v.d[i] = g.n[b].d[i];
  v.name = "0";
  return g.emit(v);
}
constexpr bool broadcasts_to(const builder& g, id a, id b) {  // true where the broadcast shape of a and b is that of a
  const node &p = g.n[a], &q = g.n[b];
  for (int i = 0; i < 4; ++i)
    if (q.d[i].v != 1 && p.d[i].v != q.d[i].v) return false;
  return true;
}
[[gnu::cold, gnu::noinline]] constexpr id add(builder& g, id a, id b, int line = 0) {
  if (g.is(a, op::zero) && broadcasts_to(g, b, a)) return b;
  if (g.is(b, op::zero) && broadcasts_to(g, a, b)) return a;
  return pointwise(g, op::add, a, b, line);
}
[[gnu::cold, gnu::noinline]] constexpr id sub(builder& g, id a, id b, int line = 0) {
  if (g.is(b, op::zero) && broadcasts_to(g, a, b)) return a;
  return pointwise(g, op::sub, a, b, line);
}
[[gnu::cold, gnu::noinline]] constexpr id mul(builder& g, id a, id b, int line = 0) {
  if (g.is_value(a, 1) && broadcasts_to(g, b, a)) return b;
  if (g.is_value(b, 1) && broadcasts_to(g, a, b)) return a;
  if (g.is(a, op::zero) || g.is(b, op::zero)) return zero_of(g, a, b);
  if (g.is(a, op::constant) && g.is(b, op::constant)) return g.constant(g.n[a].value * g.n[b].value);
  return pointwise(g, op::mul, a, b, line);
}
[[gnu::cold, gnu::noinline]] constexpr id div(builder& g, id a, id b, int line = 0) {
  if (g.is_value(b, 1) && broadcasts_to(g, a, b)) return a;
  if (g.is(a, op::zero)) return zero_of(g, a, b);
  return pointwise(g, op::div, a, b, line);
}
constexpr id negate(builder& g, id a) { return mul(g, g.constant(-1), a); }
[[gnu::cold, gnu::noinline]] constexpr id matmul(builder& g, id a, id b, bool ta = false, bool tb = false, int line = 0,
                                                 bool sum = false) {
  while (g.is(a, op::transpose)) a = g.n[a].a, ta = !ta;
  while (g.is(b, op::transpose)) b = g.n[b].a, tb = !tb;
  const node p = g.n[a], q = g.n[b];
  if (p.what == op::eye && !tb && !sum) return b;
  node v = g.shaped(op::matmul, a, a, b, none_id, line);
  v.ta = ta, v.tb = tb, v.sum = sum;
  v.d[2] = ta ? p.d[3] : p.d[2];
  v.d[3] = tb ? q.d[2] : q.d[3];
  for (int i = 0; i < 2; ++i) v.d[i] = sum ? dim{1} : p.d[i] == dim{1} ? q.d[i] : p.d[i];
  if (p.what == op::zero || q.what == op::zero) {
    v.what = op::zero;
    v.a = v.b = none_id;
    v.ta = v.tb = v.sum = false;
    v.name = "0";
  }
  const id made = g.emit(v);
  g.require(requirement::kind::inner, ta ? p.d[2] : p.d[3], tb ? q.d[3] : q.d[2], made, line);
  for (int i = 0; i < 2; ++i)
    if (p.d[i] != dim{1} && q.d[i] != dim{1}) g.require(requirement::kind::same, p.d[i], q.d[i], made, line);
  return made;
}
constexpr id row_dot(builder& g, id a, id b, int line = 0) {
  node v = g.shaped(op::row_dot, a, a, b, none_id, line);
  v.d[3] = dim{1};
  const id made = g.emit(v);
  for (int i = 0; i < 4; ++i) g.require(requirement::kind::same, g.n[a].d[i], g.n[b].d[i], made, line);
  return made;
}
constexpr id sum_to(builder& g, id a, id like) {
  if (broadcasts_to(g, like, a)) return a;
  return g.emit(g.shaped(op::sum_to, like, a));
}
[[gnu::cold, gnu::noinline]] constexpr id transpose(builder& g, id a, int line = 0) {
  if (g.is(a, op::transpose)) return g.n[a].a;
  node v = g.shaped(op::transpose, a, a, none_id, none_id, line);
  v.d[2] = g.n[a].d[3], v.d[3] = g.n[a].d[2];
  if (g.is(a, op::zero)) v.what = op::zero, v.a = none_id, v.name = "0";
  return g.emit(v);
}
[[gnu::cold, gnu::noinline]] constexpr id reshape(builder& g, id a, dim d0, dim d1, dim d2, dim d3, int line = 0) {
  while (g.is(a, op::reshape)) a = g.n[a].a;
  node v = g.shaped(op::reshape, a, a, none_id, none_id, line);
  v.d[0] = d0, v.d[1] = d1, v.d[2] = d2, v.d[3] = d3;
  if (same_shape(v, g.n[a])) return a;
  if (g.is(a, op::zero)) v.what = op::zero, v.a = none_id, v.name = "0";
  return g.emit(v);
}
constexpr id reshape_like(builder& g, id a, id like) {
  const node& s = g.n[like];
  return reshape(g, a, s.d[0], s.d[1], s.d[2], s.d[3]);
}
constexpr id as_row(builder& g, id column) { return reshape(g, column, {1}, {1}, {1}, g.n[column].d[2]); }
constexpr id permute(builder& g, id a, int p0, int p1, int p2, int p3, int line = 0) {
  if (p0 == 0 && p1 == 1 && p2 == 2 && p3 == 3) return a;
  if (p0 == 0 && p1 == 1) return transpose(g, a, line);
  node v = g.shaped(op::permute, a, a, none_id, none_id, line);
  const int from[4] = {p0, p1, p2, p3};
  for (int i = 0; i < 4; ++i) v.k[i] = {from[i]}, v.d[i] = g.n[a].d[from[i]];
  return g.emit(v);
}
constexpr id unpermute(builder& g, id a, const node& attributes) {
  int back[4]{};
  for (int i = 0; i < 4; ++i) back[attributes.k[i].v] = i;
  return permute(g, a, back[0], back[1], back[2], back[3]);
}
constexpr id slice(builder& g, id a, int axis, dim from, dim size, int line = 0) {
  if (g.n[a].d[axis] == size) return a;
  if (const node inner = g.n[a]; inner.what == op::slice && inner.k[0].v == axis)  // a slice of a slice is one slice
    return slice(g, inner.a, axis, g.plus(inner.k[1], from), size, line);
  node v = g.shaped(op::slice, a, a, none_id, none_id, line);
  v.k[0] = {axis}, v.k[1] = from, v.d[axis] = size;
  const id made = g.emit(v);
  g.require(requirement::kind::at_most, g.plus(from, size), g.n[a].d[axis], made, line);
  return made;
}
constexpr id pad(builder& g, id a, id like, const node& attributes) {
  node v = g.shaped(op::pad, like, a);
  v.k[0] = attributes.k[0], v.k[1] = attributes.k[1];
  return g.emit(v);
}
constexpr id pad(builder& g, id a, int axis, dim from, dim size, int line = 0) {
  node v = g.shaped(op::pad, a, a, none_id, none_id, line);
  v.k[0] = {axis}, v.k[1] = from, v.d[axis] = size;
  const id made = g.emit(v);
  g.require(requirement::kind::at_most, g.plus(from, g.n[a].d[axis]), size, made, line);
  return made;
}
constexpr id concat(builder& g, id a, id b, int axis, int line = 0) {
  node v = g.shaped(op::concat, a, a, b, none_id, line);
  v.k[0] = {axis}, v.d[axis] = g.plus(g.n[a].d[axis], g.n[b].d[axis]);
  const id made = g.emit(v);
  for (int i = 0; i < 4; ++i)
    if (i != axis) g.require(requirement::kind::same, g.n[a].d[i], g.n[b].d[i], made, line);
  return made;
}
constexpr id repeat(builder& g, id a, dim cols, int line = 0) {
  if (g.n[a].d[3] == cols) return a;
  node v = g.shaped(op::repeat, a, a, none_id, none_id, line);
  v.d[3] = cols;
  return g.emit(v);
}
constexpr id fold_columns(builder& g, id a, dim cols, int line = 0) {
  if (g.n[a].d[3] == cols) return a;
  node v = g.shaped(op::fold_columns, a, a, none_id, none_id, line);
  v.d[3] = cols;
  return g.emit(v);
}
constexpr id skew(builder& g, id packed, dim b, int line = 0) {
  const node& p = g.n[packed];
  node v = g.shaped(op::skew, packed, packed, none_id, none_id, line);
  v.d[0] = {1}, v.d[1] = p.d[2], v.d[2] = b, v.d[3] = b;
  const id made = g.emit(v);
  g.require(requirement::kind::same, g.n[packed].d[3], g.triangle(b), made, line);
  return made;
}
constexpr id unskew(builder& g, id full, id like) { return g.emit(g.shaped(op::unskew, like, full)); }
constexpr id circulant(builder& g, id a, bool mirrored, int line = 0) {
  node v = g.shaped(op::circulant, a, a, none_id, none_id, line);
  v.d[2] = g.n[a].d[3], v.d[3] = g.times(g.n[a].d[2], g.n[a].d[3]), v.tb = mirrored;
  return g.emit(v);
}
constexpr id circulant_sum(builder& g, id squares, id like, bool mirrored) {
  node v = g.shaped(op::circulant, like, squares);
  v.ta = true, v.tb = mirrored;
  return g.emit(v);
}
constexpr void require_one_matrix(builder& g, id a, id made, int line) {
  for (int i = 0; i < 2; ++i) g.require(requirement::kind::same, g.n[a].d[i], dim{1}, made, line);
}
constexpr id kron(builder& g, id a, id b, int line = 0) {
  node v = g.shaped(op::kron, a, a, b, none_id, line);
  v.d[2] = g.times(g.n[a].d[2], g.n[b].d[2]);
  v.d[3] = g.times(g.n[a].d[3], g.n[b].d[3]);
  const id made = g.emit(v);
  require_one_matrix(g, a, made, line), require_one_matrix(g, b, made, line);
  return made;
}
[[gnu::cold, gnu::noinline]] constexpr id row_kron(builder& g, id a, id b, int line = 0) {
  node v = g.shaped(op::row_kron, a, a, b, none_id, line);
  v.d[3] = g.times(g.n[a].d[3], g.n[b].d[3]);
  const id made = g.emit(v);
  g.require(requirement::kind::same, g.n[a].d[2], g.n[b].d[2], made, line);
  require_one_matrix(g, a, made, line), require_one_matrix(g, b, made, line);
  return made;
}
constexpr id gather(builder& g, id w, id ids, bool by_column) {
  node v = g.shaped(op::gather, w, w, ids);
  v.ta = by_column;
  v.d[2] = g.n[ids].d[3];
  v.d[3] = by_column ? g.n[w].d[2] : g.n[w].d[3];
  const id made = g.emit(v);
  require_one_matrix(g, w, made, 0);
  return made;
}
constexpr id scatter(builder& g, id rows, id ids, bool by_column, id like) {
  node v = g.shaped(op::scatter, like, rows, ids);
  v.ta = by_column;
  return g.emit(v);
}
constexpr id scatter_elements(builder& g, id values, id index, dim rows, dim cols, int line = 0) {
  node v = g.shaped(op::scatter_elements, values, values, index, none_id, line);
  v.d[0] = v.d[1] = {1}, v.d[2] = rows, v.d[3] = cols;
  const id made = g.emit(v);
  require_one_matrix(g, values, made, line);
  g.require(requirement::kind::same, g.n[values].d[3], dim{1}, made, line);
  g.require(requirement::kind::same, g.n[values].d[2], g.n[index].d[3], made, line);
  g.require(requirement::kind::same, g.n[index].d[2], dim{2}, made, line);
  return made;
}
constexpr id gather_elements(builder& g, id from, id index, id like) {
  return g.emit(g.shaped(op::gather_elements, like, from, index));
}
constexpr id gather_element_column(builder& g, id from, id index, int line = 0) {
  node v = g.shaped(op::gather_elements, from, from, index, none_id, line);
  v.d[0] = v.d[1] = v.d[3] = {1}, v.d[2] = g.n[index].d[3];
  const id made = g.emit(v);
  require_one_matrix(g, from, made, line);
  g.require(requirement::kind::same, g.n[index].d[2], dim{2}, made, line);
  return made;
}
struct patch_geometry {
  dim kernel_h{1}, kernel_w{1}, stride{1}, pad{0};
};
constexpr id im2col(builder& g, id image, patch_geometry s) {
  const node& p = g.n[image];
  node v = g.shaped(op::im2col, image, image);
  v.k[0] = s.kernel_h, v.k[1] = s.kernel_w, v.k[2] = s.stride, v.k[3] = s.pad;
  const dim oh = g.window(p.d[2], s.kernel_h, s.stride, s.pad), ow = g.window(p.d[3], s.kernel_w, s.stride, s.pad);
  v.d[0] = {1}, v.d[1] = p.d[0], v.d[2] = g.times(oh, ow);
  v.d[3] = g.times(p.d[1], g.times(s.kernel_h, s.kernel_w));
  return g.emit(v);
}
constexpr id col2im(builder& g, id rows, id image, const node& from) {
  node v = g.shaped(op::col2im, image, rows);
  for (int i = 0; i < 4; ++i) v.k[i] = from.k[i];
  return g.emit(v);
}
constexpr id square(builder& g, op o, id a, id b, dim terms, int line) {
  g.require(requirement::kind::square, g.n[a].d[2], g.n[a].d[3], a, line);
  node v = g.shaped(o, a, a, b, none_id, line);
  v.k[0] = terms;
  return g.emit(v);
}
constexpr id inverse(builder& g, id a, int line = 0) { return square(g, op::inverse, a, none_id, {0}, line); }
constexpr id neumann(builder& g, id q, dim terms, int line = 0) {
  return square(g, op::neumann, q, none_id, terms, line);
}
constexpr id neumann_grad(builder& g, id q, id t, dim terms) { return square(g, op::neumann_grad, q, t, terms, 0); }
constexpr id rotate(builder& g, id x, id blocks, bool transposed, int line = 0) {
  if (g.is(x, op::zero)) return x;
  node v = g.shaped(op::rotate, x, x, blocks, none_id, line);
  v.tb = transposed;
  const id made = g.emit(v);
  const node p = g.n[x], q = g.n[blocks];
  g.require(requirement::kind::square, q.d[2], q.d[3], blocks, line);
  if (q.d[1] == dim{1})
    g.require(requirement::kind::divides, p.d[3], q.d[3], made, line);
  else
    g.require(requirement::kind::inner, p.d[3], g.times(q.d[1], q.d[3]), made, line);
  if (q.d[0] != dim{1}) g.require(requirement::kind::divides, p.d[3], g.butterfly(q.d[3], q.d[0]), made, line);
  return made;
}
constexpr id rotate_grad(builder& g, id x, id t, id blocks, bool transposed) {
  node v = g.shaped(op::rotate_grad, blocks, x, t, blocks);
  v.tb = transposed;
  return g.emit(v);
}
constexpr id topk_softmax(builder& g, id a, dim k, int line = 0) {
  node v = g.shaped(op::topk_softmax, a, a, none_id, none_id, line);
  v.k[0] = k;
  return g.emit(v);
}
constexpr id normalize(builder& g, id x, id eps, bool rms, int line = 0) {
  node v = g.shaped(op::normalize, x, x, eps, none_id, line);
  v.k[0] = {rms ? 1 : 0};
  return g.emit(v);
}
constexpr id normalize_grad(builder& g, id x, id eps, id t, bool rms) {
  node v = g.shaped(op::normalize_grad, x, x, eps, t);
  v.k[0] = {rms ? 1 : 0};
  return g.emit(v);
}
}  // namespace graft::make_node
namespace graft {
struct extent {
  builder* g = nullptr;
  dim d{};
  constexpr extent(int value) : d{value} {}
  constexpr extent(builder* b, dim size) : g(b), d(size) {}
};
constexpr builder* builder_of(builder* a, builder* b) { return a != nullptr ? a : b; }
constexpr extent operator*(extent a, extent b) {
  builder* g = builder_of(a.g, b.g);
  return g == nullptr ? extent(a.d.v * b.d.v) : extent(g, g->times(a.d, b.d));
}
struct divisor {  // the right operand of / or -, with its source line
  extent e;
  int line;
  constexpr divisor(extent by, int where = __builtin_LINE()) : e(by), line(where) {}
  constexpr divisor(int by, int where = __builtin_LINE()) : e(by), line(where) {}
};
constexpr extent operator/(extent a, divisor b) {
  builder* g = builder_of(a.g, b.e.g);
  return g == nullptr ? extent(a.d.v / b.e.d.v) : extent(g, g->over(a.d, b.e.d, b.line));
}
constexpr extent operator+(extent a, extent b) {
  builder* g = builder_of(a.g, b.g);
  return g == nullptr ? extent(a.d.v + b.d.v) : extent(g, g->plus(a.d, b.d));
}
constexpr extent operator-(extent a, divisor b) {
  builder* g = builder_of(a.g, b.e.g);
  return g == nullptr ? extent(a.d.v - b.e.d.v) : extent(g, g->minus(a.d, b.e.d, b.line));
}
struct ex {
  builder* g = nullptr;
  id i = none_id;
  constexpr const node& operator*() const { return g->n[i]; }
  constexpr extent rows() const { return {g, g->n[i].d[2]}; }
  constexpr extent cols() const { return {g, g->n[i].d[3]}; }
};
struct operand {  // an operand with its source line
  ex e;
  int line;
  constexpr operand(ex value, int where = __builtin_LINE()) : e(value), line(where) {}
};
constexpr ex operator*(ex a, operand b) {
  builder& g = *a.g;
  const node &p = *a, &q = *b.e;
  if (is_scalar(p) || is_scalar(q)) return {&g, make_node::mul(g, a.i, b.e.i, b.line)};
  if (p.d[3] == dim{1} && p.d[2] == q.d[2] && q.d[3] != dim{1}) return {&g, make_node::mul(g, a.i, b.e.i, b.line)};
  return {&g, make_node::matmul(g, a.i, b.e.i, false, false, b.line)};
}
constexpr ex operator+(ex a, operand b) { return {a.g, make_node::add(*a.g, a.i, b.e.i, b.line)}; }
constexpr ex operator-(ex a, operand b) { return {a.g, make_node::sub(*a.g, a.i, b.e.i, b.line)}; }
constexpr ex operator/(ex a, operand b) { return {a.g, make_node::div(*a.g, a.i, b.e.i, b.line)}; }
constexpr ex mul(ex a, operand b) { return {a.g, make_node::mul(*a.g, a.i, b.e.i, b.line)}; }
constexpr operand same_as(operand like, double s) { return {{like.e.g, like.e.g->constant(s)}, like.line}; }
constexpr ex operator*(double s, operand b) { return same_as(b, s).e * b; }
constexpr ex operator+(double s, operand b) { return same_as(b, s).e + b; }
constexpr ex operator-(double s, operand b) { return same_as(b, s).e - b; }
constexpr ex operator/(double s, operand b) { return same_as(b, s).e / b; }
constexpr ex operator*(operand a, double s) { return s * a; }
constexpr ex operator+(operand a, double s) { return a.e + same_as(a, s); }
constexpr ex operator-(operand a, double s) { return a.e - same_as(a, s); }
constexpr ex operator/(operand a, double s) { return a.e / same_as(a, s); }
constexpr ex operator-(operand a) { return -1.0 * a; }
constexpr ex& operator+=(ex& a, operand b) { return a = a + b; }
constexpr ex& operator-=(ex& a, operand b) { return a = a - b; }
constexpr ex& operator*=(ex& a, operand b) { return a = a * b; }
constexpr ex& operator/=(ex& a, operand b) { return a = a / b; }
constexpr ex max(ex a, operand b) { return {a.g, make_node::pointwise(*a.g, op::maximum, a.i, b.e.i, b.line)}; }
constexpr ex min(ex a, operand b) { return {a.g, make_node::pointwise(*a.g, op::minimum, a.i, b.e.i, b.line)}; }
constexpr ex t(operand a) { return {a.e.g, make_node::transpose(*a.e.g, a.e.i, a.line)}; }
constexpr ex sqrt(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::sqrt, a.e.i, a.line)}; }
constexpr ex exp(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::exp, a.e.i, a.line)}; }
constexpr ex log(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::log, a.e.i, a.line)}; }
constexpr ex sin(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::sin, a.e.i, a.line)}; }
constexpr ex cos(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::cos, a.e.i, a.line)}; }
constexpr ex erf(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::erf, a.e.i, a.line)}; }
constexpr ex silu(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::silu, a.e.i, a.line)}; }
constexpr ex gelu(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::gelu, a.e.i, a.line)}; }
constexpr ex gelu_tanh(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::gelu_tanh, a.e.i, a.line)}; }
constexpr ex tanh(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::tanh, a.e.i, a.line)}; }
constexpr ex sigmoid(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::sigmoid, a.e.i, a.line)}; }
constexpr ex relu(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::relu, a.e.i, a.line)}; }
constexpr ex detach(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::detach, a.e.i, a.line)}; }
constexpr ex row_dot(ex a, operand b) { return {a.g, make_node::row_dot(*a.g, a.i, b.e.i, b.line)}; }
constexpr ex row_norm(operand a) { return sqrt({row_dot(a.e, a), a.line}); }
constexpr ex col_norm(operand a) {
  const ex column = row_norm({t(a), a.line});
  return t({column, a.line});
}
constexpr ex strict_upper(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::strict_upper, a.e.i, a.line)}; }
constexpr ex inverse(operand a) { return {a.e.g, make_node::inverse(*a.e.g, a.e.i, a.line)}; }
constexpr ex orthonormal(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::orthonormal, a.e.i, a.line)}; }
constexpr ex skew(ex packed, extent b, int line = __builtin_LINE()) {
  return {packed.g, make_node::skew(*packed.g, packed.i, b.d, line)};
}
constexpr ex circulant(ex rows, bool mirrored = false, int line = __builtin_LINE()) {
  return {rows.g, make_node::circulant(*rows.g, rows.i, mirrored, line)};
}
constexpr ex neumann(ex q, extent terms, int line = __builtin_LINE()) {
  return {q.g, make_node::neumann(*q.g, q.i, terms.d, line)};
}
constexpr ex kron(ex a, operand b) { return {a.g, make_node::kron(*a.g, a.i, b.e.i, b.line)}; }
constexpr ex repeat(ex a, extent cols, int line = __builtin_LINE()) {
  return {a.g, make_node::repeat(*a.g, a.i, cols.d, line)};
}
constexpr ex softmax(operand a) { return {a.e.g, make_node::unary(*a.e.g, op::softmax, a.e.i, a.line)}; }
constexpr ex topk_softmax(ex a, extent k, int line = __builtin_LINE()) {
  return {a.g, make_node::topk_softmax(*a.g, a.i, k.d, line)};
}
constexpr ex reshape(ex a, extent d0, extent d1, extent d2, extent d3, int line = __builtin_LINE()) {
  const node v = *a;
  const dim first = a.g->times(v.d[0], v.d[1]), second = a.g->times(v.d[2], v.d[3]);
  const dim third = a.g->times(d0.d, d1.d), fourth = a.g->times(d2.d, d3.d);
  const id made = make_node::reshape(*a.g, a.i, d0.d, d1.d, d2.d, d3.d, line);
  a.g->require(requirement::kind::same, a.g->times(first, second), a.g->times(third, fourth), made, line);
  return {a.g, made};
}
constexpr ex reshape(ex a, extent d1, extent d2, extent d3) { return reshape(a, 1, d1, d2, d3); }
constexpr ex reshape(ex a, extent rows, extent cols) { return reshape(a, 1, 1, rows, cols); }
constexpr ex permute(ex a, int p0, int p1, int p2, int p3, int line = __builtin_LINE()) {
  return {a.g, make_node::permute(*a.g, a.i, p0, p1, p2, p3, line)};
}
constexpr ex slice(ex a, int axis, extent from, extent size, int line = __builtin_LINE()) {
  return {a.g, make_node::slice(*a.g, a.i, axis, from.d, size.d, line)};
}
constexpr ex concat(ex a, ex b, int axis = 3, int line = __builtin_LINE()) {
  return {a.g, make_node::concat(*a.g, a.i, b.i, axis, line)};
}
constexpr ex scatter_elements(ex values, ex index, extent rows, extent cols, int line = __builtin_LINE()) {
  return {values.g, make_node::scatter_elements(*values.g, values.i, index.i, rows.d, cols.d, line)};
}
constexpr ex gather_elements(ex from, ex index, int line = __builtin_LINE()) {
  return {from.g, make_node::gather_element_column(*from.g, from.i, index.i, line)};
}
[[deprecated("call scatter_elements")]] constexpr ex place(ex values, ex index, extent rows, extent cols,
                                                           int line = __builtin_LINE()) {
  return scatter_elements(values, index, rows, cols, line);
}
[[deprecated("call gather_elements")]] constexpr ex pick(ex from, ex index, int line = __builtin_LINE()) {
  return gather_elements(from, index, line);
}
constexpr ex unrotate(ex w, operand blocks) {
  return {w.g, make_node::rotate(*w.g, w.i, blocks.e.i, true, blocks.line)};
}
constexpr ex rotate(ex w, operand blocks) {
  return {w.g, make_node::rotate(*w.g, w.i, blocks.e.i, false, blocks.line)};
}
constexpr ex orthogonal(ex a) {
  a.g->n[a.i].orthogonal = true;
  return a;
}
constexpr ex host(const char* name, operand a) {
  node v = a.e.g->shaped(op::host, a.e.i, a.e.i, none_id, none_id, a.line);
  v.name = name;
  return {a.e.g, a.e.g->emit(v)};
}
constexpr ex host_rows(const char* name, extent rows, operand a) {
  node v = a.e.g->shaped(op::host, a.e.i, a.e.i, none_id, none_id, a.line);
  v.name = name;
  v.tb = true;
  v.d[2] = rows.d;
  return {a.e.g, a.e.g->emit(v)};
}
struct leaf_name {
  const char* s;
  int line;
  constexpr leaf_name(const char* name, int where = __builtin_LINE()) : s(name), line(where) {}
};
struct scope {
  builder* g;
  int path = 0;
  dim experts{};  // 1: not of experts
  constexpr scope in(const char* name) const { return {g, g->path(path, name), experts}; }
  constexpr scope shared() const { return {g, path}; }
  constexpr extent size(const char* name, int value = dyn, int nominal = 0) const {
    if (value == dyn) return {g, g->size_named(name, path, nominal)};
    if (value < 0) g->stop({formula_error::size_is_negative, none_id, 0, name, value});
    return {g, dim{value < 0 ? 1 : value}};
  }
  constexpr extent tokens(int nominal = 4096) const { return {g, g->size_named("tokens", 0, nominal, true)}; }
  constexpr extent triangle(extent b) const { return {g, g->triangle(b.d)}; }
  constexpr ex leaf(op o, leaf_name name, int rank, extent d0, extent d1, extent d2, extent d3) const {
    if (experts == dim{1} || o == op::scalar)
      return {g, g->leaf(o, name.s, path, rank, d0.d, d1.d, d2.d, d3.d, name.line)};
    if (rank == 2) return {g, g->leaf(o, name.s, path, 3, {1}, experts, d2.d, d3.d, name.line)};
    if (rank != 1) g->stop({formula_error::not_on_experts, none_id, name.line, name.s});
    const id columns = g->leaf(o, name.s, path, 2, {1}, {1}, experts, d2.d, name.line);
    return {g, make_node::reshape(*g, columns, {1}, experts, d2.d, d3.d, name.line)};
  }
  constexpr ex param(leaf_name name, extent n) const { return leaf(op::param, name, 1, 1, 1, n, 1); }
  constexpr ex param(leaf_name name, extent rows, extent cols) const {
    return leaf(op::param, name, 2, 1, 1, rows, cols);
  }
  constexpr ex param(leaf_name name, extent d1, extent d2, extent d3) const {
    return leaf(op::param, name, 3, 1, d1, d2, d3);
  }
  constexpr ex param(leaf_name name, extent d0, extent d1, extent d2, extent d3) const {
    return leaf(op::param, name, 4, d0, d1, d2, d3);
  }
  constexpr ex frozen(leaf_name name, extent n) const { return leaf(op::frozen, name, 1, 1, 1, n, 1); }
  constexpr ex frozen(leaf_name name, extent rows, extent cols) const {
    return leaf(op::frozen, name, 2, 1, 1, rows, cols);
  }
  constexpr ex frozen(leaf_name name, extent d1, extent d2, extent d3) const {
    return leaf(op::frozen, name, 3, 1, d1, d2, d3);
  }
  constexpr ex frozen(leaf_name name, extent d0, extent d1, extent d2, extent d3) const {
    return leaf(op::frozen, name, 4, d0, d1, d2, d3);
  }
  constexpr ex index(leaf_name name, extent n) const { return shared().leaf(op::index, name, 2, 1, 1, 2, n); }
  constexpr ex scalar(leaf_name name) const { return leaf(op::scalar, name, 0, 1, 1, 1, 1); }
  constexpr ex constant(double v) const { return {g, g->constant(v)}; }
  constexpr ex number(extent n, int line = __builtin_LINE()) const { return {g, g->number(n.d, line)}; }
  constexpr ex eye(extent n) const { return {g, g->leaf(op::eye, "I", 0, 2, {1}, {1}, n.d, n.d)}; }
};
}  // namespace graft
namespace graft {
template <class A>
concept adapter_formula = requires(scope p, ex W) {
  {A::weight(p, W)};
  {A::name};
};
struct base_tensors {
  ex weight{}, bias{};
};
struct dropout_weight_parts {
  ex whole, dropped;
};
template <class... Adapters> struct adapter_list {};
namespace detail {
template <class...> struct join;
template <class... A> struct join<adapter_list<A...>> { using type = adapter_list<A...>; };
template <class... A, class... B, class... More> struct join<adapter_list<A...>, adapter_list<B...>, More...> {
  using type = typename join<adapter_list<A..., B...>, More...>::type;
};
}  // namespace detail
template <class... Lists> using join_adapters = typename detail::join<Lists...>::type;
enum class with_bias : unsigned char { either, always, never };
constexpr bool allows(with_bias rule, bool bias) {
  return rule == with_bias::either || (rule == with_bias::always) == bias;
}
template <class A> constexpr with_bias bias_rule() {
  if constexpr (requires { A::only; })
    return A::only;
  else
    return with_bias::either;
}
struct formula {
  const char* name = "";
  ex (*weight)(scope, ex) = nullptr;
  ex (*bias)(scope, ex, base_tensors) = nullptr;                          // null: it stays as it is
  long long (*size)(const char*, long long out, long long in) = nullptr;  // null: no size depends on the layer's
  ex (*input_gradient_weight)(scope, ex) = nullptr;                       // null: dx = dy W'
  ex (*weight_with_base)(scope, ex, ex) = nullptr;
  dropout_weight_parts (*dropout_parts)(scope, ex) = nullptr;  // null: dropout acts on all that is added
  bool rotates_input = false;
  bool trains_bias = false;  // the base layer's own bias is a parameter too, as PEFT's `bias` says
  constexpr ex adapted_bias(scope p, ex b, base_tensors base) const {
    if (trains_bias && (*b).what == op::base) base.bias = b = p.param("base_layer.bias", b.rows());
    return bias == nullptr ? b : bias(p, b, base);
  }
  constexpr ex compose_weight(scope p, ex W, ex base) const {
    return weight_with_base != nullptr ? weight_with_base(p, W, base) : weight(p, W);
  }
  constexpr long long adapter_size(const char* what, long long out, long long in) const {
    return size == nullptr ? unknown : size(what, out, in);
  }
};
namespace detail {
constexpr bool acts_per_expert(const builder& g, id i) {
  const node& v = g.n[i];
  switch (v.what) {
    case op::matmul: return !v.sum;
    case op::transpose:
    case op::row_dot:
    case op::repeat:
    case op::fold_columns:
    case op::strict_upper:
    case op::inverse:
    case op::neumann:
    case op::orthonormal:
    case op::softmax: return true;
    case op::reshape: return is_leaf(g.n[v.a].what) && v.d[1] == g.n[v.a].d[2];  // a vector per expert
    case op::slice:
    case op::concat: return v.k[0].v >= 2;
    default: return is_pointwise(v.what) && v.what != op::dropout;
  }
}
template <class A, class Function> constexpr auto captured_on(scope p, ex W, Function f) {
  const dim experts = (*W).d[1];
  if (experts == dim{1}) return f(p);
  p.experts = experts;
  const int before = p.g->n.size();
  const auto made = f(p);
  if constexpr (!requires { A::reads_all_experts; })
    for (id i = before; i < p.g->n.size(); ++i) {
      const node v = p.g->n[i];
      bool of_expert = false;
      for (int k = 0; k < 3; ++k) of_expert = of_expert || (v.operand(k) >= 0 && !is_scalar(p.g->n[v.operand(k)]));
      if (of_expert && !acts_per_expert(*p.g, i)) p.g->stop({formula_error::not_on_experts, i, v.line, A::name});
    }
  return made;
}
template <class A> struct formula_functions {
  [[gnu::cold]] static constexpr ex weight(scope p, ex W) {
    return captured_on<A>(p, W, [=](scope of) { return A::weight(of, W); });
  }
  [[gnu::cold]] static constexpr ex weight_with_base(scope p, ex W, ex base) {
    return captured_on<A>(p, W, [=](scope of) { return A::weight_with_base(of, W, base); });
  }
  [[gnu::cold]] static constexpr ex bias(scope p, ex b, base_tensors base) {
    if constexpr (requires { A::bias(p, b, base); })
      return A::bias(p, b, base);
    else
      return A::bias(p, b);
  }
  [[gnu::cold]] static constexpr dropout_weight_parts dropout_parts(scope p, ex W) {
    return captured_on<A>(p, W, [=](scope of) { return A::dropout_parts(of, W); });
  }
  [[gnu::cold]] static constexpr ex input_gradient_weight(scope p, ex W) {
    return captured_on<A>(p, W, [=](scope of) { return A::input_gradient_weight(of, W); });
  }
};
}  // namespace detail
template <class A> constexpr bool changes_bias() {
  return requires(scope p, ex b) { A::bias(p, b); }
  || requires(scope p, ex b, base_tensors base) { A::bias(p, b, base); };
}
template <class A> constexpr formula formula_of() {
  formula f{A::name, &detail::formula_functions<A>::weight};
  if constexpr (changes_bias<A>()) f.bias = &detail::formula_functions<A>::bias;
  if constexpr (requires(scope p, ex W) { A::dropout_parts(p, W); })
    f.dropout_parts = &detail::formula_functions<A>::dropout_parts;
  if constexpr (requires { A::size("", 1LL, 1LL); }) f.size = &A::size;
  if constexpr (requires(scope p, ex W) { A::input_gradient_weight(p, W); })
    f.input_gradient_weight = &detail::formula_functions<A>::input_gradient_weight;
  if constexpr (requires(scope p, ex W) { A::weight_with_base(p, W, W); })
    f.weight_with_base = &detail::formula_functions<A>::weight_with_base;
  if constexpr (requires { A::rotates_input; }) f.rotates_input = A::rotates_input;
  return f;
}
}  // namespace graft
namespace graft {
template <int Rank = dyn> struct adalora {
  static constexpr const char *name = "AdaLoRA", *method = "adalora", *kinds = "linear";
  using sample = adalora<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.param("lora_A", r, W.cols()), B = p.param("lora_B", W.rows(), r), E = p.param("lora_E", r, 1);
    return W + p.scalar("scaling") * (B * (E * A));
  }
};
using adalora_forms = adapter_list<adalora<>>;
}  // namespace graft
namespace graft {
template <int Entries = dyn, int Ranks = dyn, int Directions = dyn> struct adamss {
  static constexpr const char *name = "AdaMSS", *method = "adamss", *kinds = "linear";
  static constexpr with_bias only = with_bias::never;
  using sample = adamss<1024, 8, 64>;
  static constexpr ex update(scope p, extent out, ex right) {
    auto n = p.size("num_indices", Entries, 4096), k = p.size("subspace_ranks", Ranks, 5);
    auto B = scatter_elements(p.param("adamss_B", n), p.index("adamss_indices", n), out, k);
    return B * (p.param("adamss_A", k, right.rows()) * right);
  }
  static constexpr extent directions(scope p) { return p.size("directions", Directions, 100); }
  static constexpr ex weight(scope p, ex W) {
    return W + update(p, W.rows(), p.frozen("adamss_right", directions(p), W.cols()));
  }
};
template <int Entries = dyn, int Ranks = dyn, int Directions = dyn> struct adamss_with_bias {
  using without = adamss<Entries, Ranks, Directions>;
  static constexpr const char *name = "AdaMSS", *method = "adamss_with_bias", *kinds = "linear";
  static constexpr with_bias only = with_bias::always;
  using sample = adamss_with_bias<1024, 8, 64>;
  static constexpr ex weight(scope p, ex W) { return without::weight(p, W); }
  static constexpr ex bias(scope p, ex b) {
    return b + without::update(p, b.rows(), p.frozen("adamss_right_of_bias", without::directions(p)));
  }
};
using adamss_forms = adapter_list<adamss<>, adamss_with_bias<>>;
}  // namespace graft
namespace graft {
struct beft {
  static constexpr const char *name = "BEFT", *method = "beft", *kinds = "linear";
  using sample = beft;
  static constexpr ex weight(scope, ex W) { return W; }
  static constexpr ex bias(scope p, ex b) { return b + t(p.param("beft_bias", 1, b.rows())); }
};
using beft_forms = adapter_list<beft>;
}  // namespace graft
namespace graft {
template <int Block = 4, int Factors = 1> struct boft {
  static constexpr const char *name = "BOFT", *method = "boft", *kinds = "linear";
  using sample = boft<4, 2>;
  static constexpr ex weight(scope p, ex W) {
    auto b = p.size("b", Block, 8), m = p.size("m", Factors, 2);
    auto R = p.param("boft_R", m, W.cols() / b, b, b);
    auto S = 0.5 * (R - t(R)), I = p.eye(b);
    return p.param("boft_s", W.rows(), 1) * unrotate(W, orthogonal((I - S) * inverse(I + S)));
  }
};
using boft_forms = adapter_list<boft<dyn, dyn>>;
}  // namespace graft
namespace graft {
enum class c3a_gradient : unsigned char { as_peft, exact };
template <int Block = dyn, c3a_gradient Gradient = c3a_gradient::as_peft> struct c3a {
  static constexpr const char *name = "C3A", *method = "c3a", *kinds = "linear";
  using sample = c3a<32, Gradient>;
  static constexpr ex update(scope p, ex W, bool mirrored) {
    auto b = p.size("block_size", Block, 256);
    auto kernel = p.param("c3a_kernel", W.rows() / b, W.cols() / b, b) / p.number(W.cols());
    return reshape(circulant(kernel, mirrored), W.rows(), W.cols());
  }
  static constexpr ex weight(scope p, ex W) { return W + update(p, W, false); }
  static constexpr ex input_gradient_weight(scope p, ex W) requires(Gradient == c3a_gradient::as_peft) {
    return W + update(p, W, true);
  }
};
using c3a_forms = adapter_list<c3a<>>;
}  // namespace graft
namespace graft {
template <int Rank = dyn> struct deft {
  static constexpr const char *name = "DEFT", *method = "deft", *kinds = "linear";
  using sample = deft<16>;
  static constexpr ex directions(scope p, ex W) { return p.param("deft_P", W.rows(), p.size("r", Rank)); }
  static constexpr ex weight(scope p, ex W) {
    auto P = directions(p, W), R = p.param("deft_R", P.cols(), W.cols());
    return W + P * (p.scalar("scaling") * R - t(relu(P)) * W);
  }
  static constexpr dropout_weight_parts dropout_parts(scope p, ex W) {
    auto P = directions(p, W), R = p.param("deft_R", P.cols(), W.cols());
    return {W - P * (t(relu(P)) * W), P * (p.scalar("scaling") * R)};
  }
};
template <int Rank = dyn> struct deft_removal {
  static constexpr const char *name = "DEFT (PaRa)", *method = "deft_removal", *kinds = "linear";
  using sample = deft_removal<16>;
  static constexpr ex weight(scope p, ex W) {
    auto P = deft<Rank>::directions(p, W);
    return W - P * (t(relu(P)) * W);
  }
};
template <int Rank = dyn> struct deft_qr {
  static constexpr const char *name = "DEFT (QR)", *method = "deft_qr", *kinds = "linear";
  using sample = deft_qr<16>;
  static constexpr ex weight(scope p, ex W) {
    auto Q = orthonormal(deft<Rank>::directions(p, W)), R = p.param("deft_R", Q.cols(), W.cols());
    return W + Q * (p.scalar("scaling") * R - t(Q) * W);
  }
  static constexpr dropout_weight_parts dropout_parts(scope p, ex W) {
    auto Q = orthonormal(deft<Rank>::directions(p, W)), R = p.param("deft_R", Q.cols(), W.cols());
    return {W - Q * (t(Q) * W), Q * (p.scalar("scaling") * R)};
  }
};
template <int Rank = dyn> struct deft_qr_removal {
  static constexpr const char *name = "DEFT (PaRa, QR)", *method = "deft_qr_removal", *kinds = "linear";
  using sample = deft_qr_removal<16>;
  static constexpr ex weight(scope p, ex W) {
    auto Q = orthonormal(deft<Rank>::directions(p, W));
    return W - Q * (t(Q) * W);
  }
};
using deft_forms = adapter_list<deft<>, deft_removal<>, deft_qr<>, deft_qr_removal<>>;
}  // namespace graft
namespace graft {
template <int Rank = dyn> struct delora {
  static constexpr const char *name = "DeLoRA", *method = "delora", *kinds = "linear";
  using sample = delora<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.param("delora_A", r, W.cols()), B = p.param("delora_B", W.rows(), r);
    auto least = p.constant(1e-4), lambda = p.param("delora_lambda", 1);
    auto D = lambda / p.number(r) / mul(max(row_norm(A), least), max(row_norm(t(B)), least));
    return W + mul(B * (D * A), t(p.frozen("delora_w_norm", W.cols())));
  }
};
using delora_forms = adapter_list<delora<>>;
}  // namespace graft
namespace graft {
template <int Rank = dyn> struct lora {
  static constexpr const char *name = "LoRA", *method = "lora", *kinds = "linear conv2d";
  using sample = lora<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.param("lora_A.weight", r, W.cols()), B = p.param("lora_B.weight", W.rows(), r);
    return W + p.scalar("scaling") * (B * A);
  }
};
template <int Rank = dyn> struct lora_with_bias {
  static constexpr const char *name = "LoRA with bias", *method = "lora_with_bias", *kinds = "linear conv2d";
  using sample = lora_with_bias<16>;
  static constexpr ex weight(scope p, ex W) { return lora<Rank>::weight(p, W); }
  static constexpr ex bias(scope p, ex b) { return b + p.scalar("scaling") * p.param("lora_B.bias", b.rows()); }
};
template <int Rank = dyn> struct lora_embedding {
  static constexpr const char *name = "LoRA", *method = "lora_embedding", *kinds = "embedding";
  using sample = lora_embedding<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.param("lora_embedding_A", r, W.rows()), B = p.param("lora_embedding_B", W.cols(), r);
    return W + p.scalar("scaling") * (t(A) * t(B));
  }
};
template <int Rank = dyn> struct lora_on_experts {
  static constexpr const char *name = "LoRA", *method = "lora_on_experts", *kinds = "experts";
  static constexpr bool reads_all_experts = true;
  using sample = lora_on_experts<16>;
  static constexpr ex weight(scope p, ex W) {
    const extent r = p.size("r", Rank), E{p.g, (*W).d[1]}, out = W.rows(), in = W.cols();
    const ex stored_A = p.shared().param("lora_A.weight", E * r, in),
             stored_B = p.shared().param("lora_B.weight", out, r * E);
    const ex A = reshape(stored_A, E, r, in), B = permute(reshape(stored_B, out, r, E), 0, 3, 1, 2);
    return W + p.scalar("scaling") * (B * A);
  }
};
using lora_forms = adapter_list<lora<>, lora_with_bias<>, lora_embedding<>, lora_on_experts<>>;
}  // namespace graft
namespace graft {
template <int Rank = dyn> struct dora {
  static constexpr const char *name = "DoRA", *method = "dora", *kinds = "linear conv2d";
  using sample = dora<16>;
  static constexpr ex weight(scope p, ex W) {
    auto m = p.param("lora_magnitude_vector", W.rows());
    auto V = lora<Rank>::weight(p, W);
    return (m / detach(row_norm(V))) * V;
  }
  static constexpr ex weight_with_base(scope p, ex W, ex base) {
    auto m = p.param("lora_magnitude_vector", W.rows());
    return (m / detach(row_norm(lora<Rank>::weight(p, base)))) * lora<Rank>::weight(p, W);
  }
};
template <int Rank = dyn> struct dora_embedding {
  static constexpr const char *name = "DoRA", *method = "dora_embedding", *kinds = "embedding";
  using sample = dora_embedding<16>;
  static constexpr ex weight(scope p, ex W) { return weight_with_base(p, W, W); }
  static constexpr ex weight_with_base(scope p, ex W, ex base) {
    auto m = t(p.param("lora_magnitude_vector", W.cols()));
    return mul(lora_embedding<Rank>::weight(p, W), m / detach(col_norm(lora_embedding<Rank>::weight(p, base))));
  }
};
using dora_forms = adapter_list<dora<>, dora_embedding<>>;
}  // namespace graft
namespace graft {
template <int Frequencies = dyn> struct fourierft {
  static constexpr const char *name = "FourierFT", *method = "fourierft", *kinds = "linear";
  using sample = fourierft<256>;
  static constexpr ex weight(scope p, ex W) {
    auto n = p.size("n_frequency", Frequencies, 1000);
    auto v = p.param("fourierft_spectrum", n);
    auto P = p.frozen("fourierft_rows", W.rows(), n + n), Q = p.frozen("fourierft_columns", n + n, W.cols());
    return W + p.scalar("scaling") * (P * mul(concat(v, v, 2), Q));
  }
};
using fourierft_forms = adapter_list<fourierft<>>;
}  // namespace graft
namespace graft {
struct frod_diagonal {
  static constexpr const char *name = "FRoD, diagonal", *method = "frod_diagonal", *kinds = "linear";
  using sample = frod_diagonal;
  static constexpr ex scaled(scope p, ex W) {
    return mul(p.frozen("frod_U", W.rows(), W.cols()), t(p.param("frod_lambda_l", W.cols())));
  }
  static constexpr ex basis(scope p, ex W) { return p.frozen("frod_V", W.cols(), W.cols()); }
  static constexpr ex weight(scope p, ex W) { return scaled(p, W) * t(basis(p, W)); }
};
template <int Entries = dyn> struct frod {
  static constexpr const char *name = "FRoD", *method = "frod", *kinds = "linear";
  using sample = frod<4096>;
  static constexpr ex weight(scope p, ex W) {
    auto n = p.size("num_indices", Entries, 4096);
    auto U = p.frozen("frod_U", W.rows(), W.cols());
    auto S = scatter_elements(p.param("frod_lambda_s_values", n), p.index("frod_s_indices", n), W.cols(), W.cols());
    return (frod_diagonal::scaled(p, W) + U * S) * t(frod_diagonal::basis(p, W));
  }
};
using frod_forms = adapter_list<frod<>, frod_diagonal>;
}  // namespace graft
namespace graft {
enum class glora_part : unsigned char { low_rank, numbers, none };
struct glora_formula {
  glora_part of_weight, of_both, of_bias;
  int rank, numbers, bias_numbers;
  static constexpr ex broadcast_to(ex numbers, extent n) { return t(repeat(t(numbers), n)); }
  [[gnu::cold, gnu::noinline]] constexpr ex factor(scope p, ex W, bool shifts) const {
    if (of_weight == glora_part::numbers)
      return broadcast_to(p.param(shifts ? "glora_B.X" : "glora_A.X", p.size("glora_numbers", numbers, 1)), W.rows());
    auto r = p.size("r", rank);
    auto down = p.param(shifts ? "glora_B.Xd" : "glora_A.Xd", W.rows(), r);
    return down * p.param(shifts ? "glora_B.Xu" : "glora_A.Xu", r, W.cols());
  }
  [[gnu::cold, gnu::noinline]] constexpr ex weight_with_base(scope p, ex W, ex base) const {
    if (of_weight == glora_part::none) return W;
    const ex A = factor(p, W, false), B = factor(p, W, true);
    const ex shift = of_weight == glora_part::numbers ? repeat(B, W.cols()) : B;
    return (W.i == base.i ? mul(W, 1.0 + A) : W + mul(base, A)) + shift;
  }
  constexpr ex of_outputs(scope p, leaf_name leaf, extent n) const {
    return broadcast_to(p.param(leaf, p.size("glora_bias_numbers", bias_numbers, 1)), n);
  }
  [[gnu::cold, gnu::noinline]] constexpr ex bias(scope p, ex b, base_tensors base) const {
    ex now = b;
    if (of_bias == glora_part::numbers) {
      const ex D = of_outputs(p, "glora_D.X", b.rows());
      now = b.i == base.bias.i ? mul(b, 1.0 + D) : b + mul(base.bias, D);
      now = now + of_outputs(p, "glora_E.X", b.rows());
    }
    if (of_both == glora_part::none) return now;
    const extent in = base.weight.cols();
    if (of_both == glora_part::numbers) return now + base.weight * p.param("glora_C.X", in, 1);
    auto r = p.size("r", rank);
    return now + base.weight * (p.param("glora_C.Xd", in, r) * p.param("glora_C.Xu", r, 1));
  }
};
template <int Rank = dyn, glora_part OfWeight = glora_part::low_rank, glora_part OfBoth = glora_part::low_rank,
          glora_part OfBias = glora_part::numbers, int Numbers = dyn, int BiasNumbers = dyn>
struct glora {
  static_assert(OfBias != glora_part::low_rank);
  static constexpr glora_part of_weight = OfWeight, of_both = OfBoth, of_bias = OfBias;
  static constexpr bool changes_bias = OfBoth != glora_part::none || OfBias != glora_part::none;
  static constexpr const char* methods[3][3][2] = {
      {{"glora", "glora_unshifted"}, {"glora_column", "glora_column_unshifted"}, {"glora_uncoupled", "glora_weight"}},
      {{"glora_numbers", "glora_numbers_unshifted"},
       {"glora_numbers_column", "glora_numbers_column_unshifted"},
       {"glora_numbers_uncoupled", "glora_numbers_weight"}},
      {{"glora_bias", "glora_bias_unshifted"},
       {"glora_bias_column", "glora_bias_column_unshifted"},
       {"glora_bias_uncoupled", "glora_nothing"}}};
  static constexpr const char *name = "GLoRA", *kinds = "linear",
                              *method = methods[static_cast<int>(OfWeight)][static_cast<int>(OfBoth)]
                                               [OfBias == glora_part::numbers ? 0 : 1];
  static constexpr with_bias only = changes_bias ? with_bias::always : with_bias::either;
  using sample = glora<16, OfWeight, OfBoth, OfBias, 1, 1>;
  static constexpr glora_formula form{OfWeight, OfBoth, OfBias, Rank, Numbers, BiasNumbers};
  static constexpr ex weight(scope p, ex W) { return form.weight_with_base(p, W, W); }
  static constexpr ex weight_with_base(scope p, ex W, ex base) { return form.weight_with_base(p, W, base); }
  static constexpr ex bias(scope p, ex b, base_tensors base) requires(changes_bias) { return form.bias(p, b, base); }
};
template <glora_part OfWeight>
using glora_group = adapter_list<glora<dyn, OfWeight, glora_part::low_rank, glora_part::numbers>,
                                 glora<dyn, OfWeight, glora_part::numbers, glora_part::numbers>,
                                 glora<dyn, OfWeight, glora_part::none, glora_part::numbers>,
                                 glora<dyn, OfWeight, glora_part::low_rank, glora_part::none>,
                                 glora<dyn, OfWeight, glora_part::numbers, glora_part::none>>;
using glora_forms =
    join_adapters<glora_group<glora_part::low_rank>, glora_group<glora_part::numbers>, glora_group<glora_part::none>,
                  adapter_list<glora<dyn, glora_part::low_rank, glora_part::none, glora_part::none>,
                               glora<dyn, glora_part::numbers, glora_part::none, glora_part::none>>>;
}  // namespace graft
namespace graft {
template <int Rank = dyn, int Blocks = dyn> struct gralora {
  static constexpr const char *name = "GraLoRA", *method = "gralora", *kinds = "linear";
  using sample = gralora<16, 2>;
  static constexpr ex diagonal(scope p, ex stack, extent k, extent a, extent b) {
    auto blocks = mul(reshape(p.eye(k), k, 1, k, 1), permute(stack, 0, 3, 1, 2));
    return reshape(blocks, k * b, k * a);
  }
  static constexpr ex down(scope p, ex W) {
    auto r = p.size("r", Rank), k = p.size("gralora_k", Blocks, 2), in = W.cols() / k;
    auto A = diagonal(p, p.param("gralora_A", k, in, r), k, in, r);
    return reshape(permute(reshape(A, k, k, r / k, k * in), 1, 0, 2, 3), k * r, W.cols());
  }
  static constexpr ex up(scope p, ex W) {
    auto r = p.size("r", Rank), k = p.size("gralora_k", Blocks, 2), out = W.rows() / k;
    return reshape(diagonal(p, p.param("gralora_B", k, r, out), k, r, out), W.rows(), k * r);
  }
  static constexpr ex weight(scope p, ex W) { return W + p.scalar("scaling") * (up(p, W) * down(p, W)); }
};
template <int Rank = dyn, int Blocks = dyn, int Hybrid = dyn> struct gralora_hybrid {
  static constexpr const char *name = "GraLoRA (hybrid)", *method = "gralora_hybrid", *kinds = "linear";
  using sample = gralora_hybrid<16, 2, 8>;
  static constexpr ex weight(scope p, ex W) {
    using blocks = gralora<Rank, Blocks>;
    auto h = p.size("hybrid_r", Hybrid, 8);
    auto A = p.param("gralora_A_general.weight", h, W.cols()), B = p.param("gralora_B_general.weight", W.rows(), h);
    return W + p.scalar("scaling") * (concat(blocks::up(p, W), B, 3) * concat(blocks::down(p, W), A, 2));
  }
};
using gralora_forms = adapter_list<gralora<>, gralora_hybrid<>>;
}  // namespace graft
namespace graft {
template <int Rank = dyn> struct hira {
  static constexpr const char *name = "HiRA", *method = "hira", *kinds = "linear conv2d";
  using sample = hira<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.param("hira_A", r, W.cols()), B = p.param("hira_B", W.rows(), r);
    return mul(W, 1.0 + B * A);
  }
};
template <int Rank = dyn> struct hira_embedding {
  static constexpr const char *name = "HiRA", *method = "hira_embedding", *kinds = "embedding";
  using sample = hira_embedding<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.param("hira_embedding_A", r, W.rows()), B = p.param("hira_embedding_B", W.cols(), r);
    return mul(W, 1.0 + t(A) * t(B));
  }
};
using hira_forms = adapter_list<hira<>, hira_embedding<>>;
}  // namespace graft
namespace graft {
template <int Rank = dyn> struct hra {
  static constexpr const char *name = "HRA", *method = "hra", *kinds = "linear";
  using sample = hra<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto u = p.param("hra_u", W.cols(), r), U = u / col_norm(u);
    auto T = inverse(0.5 * p.eye(r) + strict_upper(t(U) * U));
    return W * orthogonal(p.eye(W.cols()) - U * T * t(U));
  }
};
template <int Rank = dyn> struct hra_gram_schmidt {
  static constexpr const char *name = "HRA (Gram-Schmidt)", *method = "hra_gram_schmidt", *kinds = "linear";
  using sample = hra_gram_schmidt<16>;
  static constexpr ex weight(scope p, ex W) {
    auto u = p.param("hra_u", W.cols(), p.size("r", Rank));
    return W * orthogonal(p.eye(W.cols()) - u * (2.0 * inverse(t(u) * u)) * t(u));
  }
};
using hra_forms = adapter_list<hra<>, hra_gram_schmidt<>>;
}  // namespace graft
namespace graft {
struct ia3 {
  static constexpr const char *name = "IA3", *method = "ia3", *kinds = "linear";
  using sample = ia3;
  static constexpr ex weight(scope p, ex W) { return p.param("ia3_l", W.rows(), 1) * W; }
  static constexpr ex bias(scope p, ex b) { return mul(p.param("ia3_l", b.rows(), 1), b); }
};
struct ia3_feedforward {
  static constexpr const char *name = "IA3 (feed-forward)", *method = "ia3_feedforward", *kinds = "linear";
  using sample = ia3_feedforward;
  static constexpr ex weight(scope p, ex W) { return mul(W, p.param("ia3_l", 1, W.cols())); }
};
using ia3_forms = adapter_list<ia3, ia3_feedforward>;
}  // namespace graft
namespace graft {
struct ln_tuning {
  static constexpr const char *name = "LN tuning", *method = "ln_tuning", *kinds = "layer_norm rms_norm";
  using sample = ln_tuning;
  static constexpr with_bias only = with_bias::always;
  static constexpr ex weight(scope p, ex w) { return p.param("ln_tuning_layers.weight", w.rows()); }
  static constexpr ex bias(scope p, ex b) { return p.param("ln_tuning_layers.bias", b.rows()); }
};
struct ln_tuning_weight {
  static constexpr const char *name = "LN tuning (weight)", *method = "ln_tuning_weight",
                              *kinds = "layer_norm rms_norm";
  using sample = ln_tuning_weight;
  static constexpr with_bias only = with_bias::never;
  static constexpr ex weight(scope p, ex w) { return ln_tuning::weight(p, w); }
};
using ln_tuning_forms = adapter_list<ln_tuning, ln_tuning_weight>;
}  // namespace graft
namespace graft {
template <int Rank = dyn> struct loha {
  static constexpr const char *name = "LoHa", *method = "loha", *kinds = "linear conv2d";
  using sample = loha<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A1 = p.param("hada_w1_a", W.rows(), r), B1 = p.param("hada_w1_b", r, W.cols());
    auto A2 = p.param("hada_w2_a", W.rows(), r), B2 = p.param("hada_w2_b", r, W.cols());
    return W + p.scalar("scaling") * mul(A1 * B1, A2 * B2);
  }
};
enum class loha_gradient : unsigned char { as_peft, exact };
template <int Rank = dyn, loha_gradient Gradient = loha_gradient::as_peft> struct loha_conv {
  static constexpr const char *name = "LoHa (effective)", *method = "loha_conv", *kinds = "conv2d";
  using sample = loha_conv<16, Gradient>;
  static constexpr ex right(scope p, ex W, const char* core, const char* b) {
    auto r = p.size("r", Rank), kh = p.size("kernel_h"), kw = p.size("kernel_w");
    auto T = reshape(p.param(core, r, r, kh, kw), r, r, kh * kw);
    return reshape(t(p.param(b, r, W.cols() / (kh * kw))) * T, r, W.cols());
  }
  static constexpr ex factor(ex A, ex own, ex other) {
    auto exact = t(A) * own;
    if (Gradient == loha_gradient::exact) return exact;
    return exact + (t(A) - detach(t(A))) * (other - own);
  }
  static constexpr ex weight(scope p, ex W) {
    auto A1 = p.param("hada_w1_a", p.size("r", Rank), W.rows()), A2 = p.param("hada_w2_a", p.size("r", Rank), W.rows());
    auto R1 = right(p, W, "hada_t1", "hada_w1_b"), R2 = right(p, W, "hada_t2", "hada_w2_b");
    return W + p.scalar("scaling") * mul(factor(A1, R1, R2), factor(A2, R2, R1));
  }
};
using loha_forms = adapter_list<loha<>, loha_conv<>>;
}  // namespace graft
namespace graft {
struct kronecker_factors {
  long long m, n;
};
constexpr kronecker_factors factorize(long long size, long long f) {
  if (f > 0 && size % f == 0) return {f, size / f};
  const long long limit = f < 0 ? size : f;
  kronecker_factors best{1, size};
  while (best.m < best.n) {
    long long next = best.m + 1;
    while (size % next != 0) ++next;
    if (next > limit || next + size / next > best.m + best.n) break;
    best = {next, size / next};
  }
  return best.m > best.n ? kronecker_factors{best.n, best.m} : best;
}
enum class lokr_form : unsigned char { full, low_rank };
template <int Rank = dyn, int Factor = -1, lokr_form First = lokr_form::full, lokr_form Second = lokr_form::low_rank>
struct lokr {
  static constexpr bool low1 = First == lokr_form::low_rank, low2 = Second == lokr_form::low_rank;
  static constexpr const char *name = "LoKr", *kinds = "linear";
  static constexpr const char* method =
      low1 ? (low2 ? "lokr_both_low" : "lokr_first_low") : (low2 ? "lokr" : "lokr_both_full");
  using sample = lokr<16, Factor, First, Second>;
  static constexpr ex weight(scope p, ex W) {
    auto a = p.size("a"), c = p.size("c"), b = W.rows() / a, d = W.cols() / c;
    auto low = [&](const char* left, extent rows, const char* right, extent cols) {
      auto r = p.size("r", Rank);
      return p.param(left, rows, r) * p.param(right, r, cols);
    };
    auto w1 = !low1 ? p.param("lokr_w1", a, c) : low("lokr_w1_a", a, "lokr_w1_b", c);
    auto w2 = !low2 ? p.param("lokr_w2", b, d) : low("lokr_w2_a", b, "lokr_w2_b", d);
    return W + p.scalar("scaling") * kron(w1, w2);
  }
  static constexpr long long size(const char* what, long long out, long long in) {
    if (same_text(what, "a")) return factorize(out, Factor).m;
    return same_text(what, "c") ? factorize(in, Factor).m : unknown;
  }
};
using lokr_forms = adapter_list<lokr<>, lokr<dyn, -1, lokr_form::full, lokr_form::full>,
                                lokr<dyn, -1, lokr_form::low_rank, lokr_form::full>,
                                lokr<dyn, -1, lokr_form::low_rank, lokr_form::low_rank>>;
}  // namespace graft
namespace graft {
template <int Rank = dyn> struct miss {
  static constexpr const char *name = "MiSS", *method = "miss", *kinds = "linear";
  using sample = miss<16>;
  static constexpr ex weight(scope p, ex W) {
    auto D = p.param("miss_block", p.size("r", Rank), W.rows());
    return W + repeat(t(D), W.cols());
  }
};
template <int Rank = dyn, int MiniRank = dyn> struct miss_mini {
  static constexpr const char *name = "MiSS (mini)", *method = "miss_mini", *kinds = "linear";
  using sample = miss_mini<16, 16>;
  static constexpr ex weight(scope p, ex W) {
    auto D = p.param("miss_block", p.size("r", Rank), p.size("mini_r", MiniRank));
    return W + repeat(t(repeat(D, W.rows())), W.cols());
  }
};
template <int Rank = dyn> struct miss_bat {
  static constexpr const char *name = "MiSS (bat)", *method = "miss_bat", *kinds = "linear";
  using sample = miss_bat<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank), row_blocks = W.rows() / r, col_blocks = W.cols() / r;
    auto B = p.param("miss_block", row_blocks, r, r);
    auto blocks = reshape(W, row_blocks, r * col_blocks, r);
    auto scaled = reshape(blocks * (p.eye(r) + B), row_blocks, r, W.cols());
    return reshape(scaled + repeat(B, W.cols()), W.rows(), W.cols());
  }
};
using miss_forms = adapter_list<miss<>, miss_mini<>, miss_bat<>>;
}  // namespace graft
namespace graft {
struct none {
  static constexpr const char *name = "none", *method = "none",
                              *kinds = "linear embedding conv2d layer_norm rms_norm experts";
  using sample = none;
  static constexpr ex weight(scope, ex W) { return W; }
};
}  // namespace graft
namespace graft {
enum class oft_blocks : unsigned char { separate, shared };
enum class oft_constraint : unsigned char { free, projected };
template <int Block = 32, oft_blocks Blocks = oft_blocks::separate, oft_constraint Constraint = oft_constraint::free>
struct oft {
  static constexpr bool is_shared = Blocks == oft_blocks::shared,
                        is_projected = Constraint == oft_constraint::projected;
  static constexpr const char *name = "OFT (Cayley)", *kinds = "linear";
  static constexpr bool rotates_input = true;
  static constexpr const char* method =
      is_shared ? (is_projected ? "oft_shared_projected" : "oft_shared") : (is_projected ? "oft_projected" : "oft");
  using sample = oft<32, Blocks, Constraint>;
  static constexpr ex generator(scope p, ex W) {
    auto b = p.size("b", Block, 32);
    auto n = W.cols() / b;
    auto v = p.param("oft_R.weight", is_shared ? extent(1) : n, p.triangle(b));
    if (is_projected) {
      auto limit = p.scalar("coft_limit") / row_norm(v);
      v = v + detach(min(p.constant(1), limit) * v - v);
    }
    return skew(v, b);
  }
  static constexpr ex weight(scope p, ex W) {
    auto Q = generator(p, W), I = p.eye(Q.cols());
    return unrotate(W, orthogonal((I - Q) * inverse(I + Q)));
  }
};
template <int Block = 32, int Terms = 5, oft_blocks Blocks = oft_blocks::separate,
          oft_constraint Constraint = oft_constraint::free>
struct oft_neumann {
  using exact = oft<Block, Blocks, Constraint>;
  static constexpr const char *name = "OFT (Cayley-Neumann)", *kinds = "linear";
  static constexpr bool rotates_input = true;
  static constexpr const char* method =
      exact::is_shared ? (exact::is_projected ? "oft_neumann_shared_projected" : "oft_neumann_shared")
                       : (exact::is_projected ? "oft_neumann_projected" : "oft_neumann");
  using sample = oft_neumann<32, 5, Blocks, Constraint>;
  static constexpr ex weight(scope p, ex W) {
    auto Q = exact::generator(p, W);
    return unrotate(W, neumann(Q, p.size("terms", Terms, 5)));
  }
};
template <oft_blocks Blocks, oft_constraint Constraint>
using oft_pair = adapter_list<oft<dyn, Blocks, Constraint>, oft_neumann<dyn, dyn, Blocks, Constraint>>;
using oft_forms = join_adapters<
    oft_pair<oft_blocks::separate, oft_constraint::free>, oft_pair<oft_blocks::shared, oft_constraint::free>,
    oft_pair<oft_blocks::separate, oft_constraint::projected>, oft_pair<oft_blocks::shared, oft_constraint::projected>>;
}  // namespace graft
namespace graft {
template <int Frozen = dyn, int Trained = dyn> struct osf {
  static constexpr const char *name = "OSF", *method = "osf", *kinds = "linear";
  using sample = osf<64, 64>;
  static constexpr ex without_gradient_of(ex whole, ex part) { return whole + (detach(part) - part); }
  static constexpr ex weight(scope p, ex W) {
    auto k = p.size("frozen_rank", Frozen, 2048), n = p.size("trainable_rank", Trained, 2048);
    auto U_high = p.frozen("osf_U_high", W.rows(), k), V_high = p.frozen("osf_V_high", k, W.cols());
    auto U = p.param("osf_svd_params.U_low", W.rows(), n), V = p.param("osf_svd_params.V_low", n, W.cols());
    auto left = without_gradient_of(U, U_high * (t(U_high) * U));
    auto right = without_gradient_of(V, (V * t(V_high)) * V_high);
    return mul(U_high, t(p.frozen("osf_S_high", k))) * V_high +
           mul(left, t(p.param("osf_svd_params.S_low", n))) * right;
  }
};
using osf_forms = adapter_list<osf<>>;
}  // namespace graft
namespace graft {
enum class peanut_activation : unsigned char { relu, gelu, gelu_tanh, silu, tanh };
struct peanut_formula {
  int rank, depth;
  peanut_activation activation;
  [[gnu::cold, gnu::noinline]] constexpr ex active(ex h) const {
    switch (activation) {
      case peanut_activation::relu: return relu(h);
      case peanut_activation::gelu: return gelu(h);
      case peanut_activation::gelu_tanh: return gelu_tanh(h);
      case peanut_activation::silu: return silu(h);
      case peanut_activation::tanh: return tanh(h);
    }
    return h;
  }
  [[gnu::cold, gnu::noinline]] constexpr ex weight(scope p, ex W) const {
    constexpr const char* encoders[] = {"peanut_encoders.0.weight", "peanut_encoders.1.weight"};
    constexpr const char* decoders[] = {"peanut_decoders.0.weight", "peanut_decoders.1.weight"};
    auto r = p.size("r", rank);
    ex read[2] = {W, W}, h = active(p.param("peanut_A.weight", r, W.rows()) * W);
    for (int i = 0; i < depth; ++i) read[i] = h, h = active(p.param(encoders[i], r, r) * h);
    for (int i = 0; i < depth; ++i) h = active(p.param(decoders[i], r, r) * h) + read[depth - 1 - i];
    return W + p.scalar("scaling") * (p.param("peanut_B.weight", W.rows(), r) * h);
  }
};
template <int Rank = dyn, int Depth = 0, peanut_activation Activation = peanut_activation::relu> struct peanut {
  static_assert(0 <= Depth && Depth <= 2);
  static constexpr const char* methods[5][3] = {{"peanut", "peanut_1", "peanut_2"},
                                                {"peanut_gelu", "peanut_gelu_1", "peanut_gelu_2"},
                                                {"peanut_gelu_tanh", "peanut_gelu_tanh_1", "peanut_gelu_tanh_2"},
                                                {"peanut_silu", "peanut_silu_1", "peanut_silu_2"},
                                                {"peanut_tanh", "peanut_tanh_1", "peanut_tanh_2"}};
  static constexpr const char *name = "PEANuT", *kinds = "linear",
                              *method = methods[static_cast<int>(Activation)][Depth];
  using sample = peanut<16, Depth, Activation>;
  static constexpr ex weight(scope p, ex W) { return peanut_formula{Rank, Depth, Activation}.weight(p, W); }
};
template <peanut_activation Activation>
using peanut_group = adapter_list<peanut<dyn, 0, Activation>, peanut<dyn, 1, Activation>, peanut<dyn, 2, Activation>>;
using peanut_forms = join_adapters<peanut_group<peanut_activation::relu>, peanut_group<peanut_activation::gelu>,
                                   peanut_group<peanut_activation::gelu_tanh>, peanut_group<peanut_activation::silu>,
                                   peanut_group<peanut_activation::tanh>>;
}  // namespace graft
namespace graft {
enum class psoft_rotation : unsigned char { cayley, neumann, bounded, free };
enum class psoft_magnitudes : unsigned char { none, inputs, outputs, both };
struct psoft_formula {
  psoft_rotation parametrization;
  bool scales_inputs, scales_outputs;
  int rank, terms;
  [[gnu::cold, gnu::noinline]] constexpr ex rotation(scope p, extent r) const {
    if (parametrization == psoft_rotation::free) return p.param("psoft_R.weight", r, r);
    auto packed = t(p.param("psoft_R.weight", p.triangle(r)));
    if (parametrization == psoft_rotation::bounded) {  // ‖Q‖ = sqrt(2) ‖packed‖
      auto norm = sqrt(2.0 * row_dot(packed, packed));
      packed = min(p.constant(1), p.scalar("cayley_neumann_eps") / (norm + 1e-12)) * packed;
    }
    auto Q = skew(packed, r), I = p.eye(r);
    if (parametrization != psoft_rotation::cayley) return neumann(Q, p.size("num_cayley_neumann_terms", terms, 5));
    return (I + Q) * inverse(I - Q);
  }
  [[gnu::cold, gnu::noinline]] constexpr ex weight(scope p, ex W) const {
    auto r = p.size("r", rank);
    auto A = p.frozen("psoft_A", r, W.cols()), B = p.frozen("psoft_B", W.rows(), r);
    auto R = rotation(p, r);
    if (scales_outputs) R = p.param("psoft_R.vector_b", r) * R;
    if (scales_inputs) R = mul(R, t(p.param("psoft_R.vector_a", r)));
    return W + p.scalar("scaling") * (B * ((R - p.eye(r)) * A));
  }
};
template <int Rank = dyn, psoft_rotation Rotation = psoft_rotation::cayley,
          psoft_magnitudes Magnitudes = psoft_magnitudes::both, int Terms = dyn>
struct psoft {
  static constexpr bool scales_inputs = Magnitudes == psoft_magnitudes::inputs || Magnitudes == psoft_magnitudes::both,
                        scales_outputs =
                            Magnitudes == psoft_magnitudes::outputs || Magnitudes == psoft_magnitudes::both;
  static constexpr const char* methods[4][4] = {
      {"psoft_plain", "psoft_inputs", "psoft_outputs", "psoft"},
      {"psoft_neumann_plain", "psoft_neumann_inputs", "psoft_neumann_outputs", "psoft_neumann"},
      {"psoft_bounded_plain", "psoft_bounded_inputs", "psoft_bounded_outputs", "psoft_bounded"},
      {"psoft_free_plain", "psoft_free_inputs", "psoft_free_outputs", "psoft_free"}};
  static constexpr const char *name = "PSOFT", *kinds = "linear",
                              *method = methods[static_cast<int>(Rotation)][static_cast<int>(Magnitudes)];
  using sample = psoft<16, Rotation, Magnitudes, 5>;
  static constexpr ex weight(scope p, ex W) {
    return psoft_formula{Rotation, scales_inputs, scales_outputs, Rank, Terms}.weight(p, W);
  }
};
template <psoft_rotation Rotation>
using psoft_group =
    adapter_list<psoft<dyn, Rotation>, psoft<dyn, Rotation, psoft_magnitudes::inputs>,
                 psoft<dyn, Rotation, psoft_magnitudes::outputs>, psoft<dyn, Rotation, psoft_magnitudes::none>>;
using psoft_forms = join_adapters<psoft_group<psoft_rotation::cayley>, psoft_group<psoft_rotation::neumann>,
                                  psoft_group<psoft_rotation::bounded>, psoft_group<psoft_rotation::free>>;
}  // namespace graft
namespace graft {
template <int Rank = dyn> struct pvera {
  static constexpr const char *name = "PVeRA", *method = "pvera", *kinds = "linear";
  using sample = pvera<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank), both = r * extent(2);
    auto A = slice(p.frozen("pvera_A", both, W.cols()), 2, 0, r), B = p.frozen("pvera_B", W.rows(), r);
    auto mean = slice(p.param("pvera_lambda_d", both), 2, 0, r);
    return W + (p.param("pvera_lambda_b", W.rows()) * B) * (mean * A);
  }
};
using pvera_forms = adapter_list<pvera<>>;
}  // namespace graft
namespace graft {
enum class randlora_shape : unsigned char { tall, wide };
template <int Rank = dyn, randlora_shape Shape = randlora_shape::tall> struct randlora {
  static constexpr bool is_wide = Shape == randlora_shape::wide;
  static constexpr const char *name = is_wide ? "RandLoRA (wide)" : "RandLoRA",
                              *method = is_wide ? "randlora_wide" : "randlora", *kinds = "linear";
  using sample = randlora<16, Shape>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank), n = p.size("num_bases", dyn, 256);
    auto shorter = is_wide ? W.rows() : W.cols(), longer = is_wide ? W.cols() : W.rows();
    auto A = p.frozen("randlora_A", r, 1, shorter), B = reshape(p.frozen("randlora_B", longer, n, r), longer, n * r);
    auto lambda = reshape(p.param("randlora_lambda", r, n), 1, r, n, 1), gamma = p.param("randlora_gamma", n, shorter);
    auto scaled = reshape(mul(lambda, mul(A, gamma)), n * r, shorter);
    return W + p.scalar("scaling") * (is_wide ? t(scaled) * t(B) : B * scaled);
  }
  static constexpr long long size(const char* what, long long out, long long in) {
    if (!same_text(what, "num_bases") || Rank < 1) return unknown;
    return ((is_wide ? out : in) + Rank - 1) / Rank;
  }
};
using randlora_forms = adapter_list<randlora<>, randlora<dyn, randlora_shape::wide>>;
}  // namespace graft
namespace graft {
template <int Rank = dyn> struct residual_lora {
  static constexpr const char *name = "LoRA on a residual", *method = "residual_lora", *kinds = "linear";
  using sample = residual_lora<16>;
  static constexpr ex residual(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.frozen("initial_A", r, W.cols()), B = p.frozen("initial_B", W.rows(), r);
    return W - p.scalar("scaling") * (B * A);
  }
  static constexpr ex weight(scope p, ex W) { return lora<Rank>::weight(p, residual(p, W)); }
  static constexpr dropout_weight_parts dropout_parts(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.param("lora_A.weight", r, W.cols()), B = p.param("lora_B.weight", W.rows(), r);
    return {residual(p, W), p.scalar("scaling") * (B * A)};
  }
};
template <int Rank = dyn> struct residual_dora {
  static constexpr const char *name = "DoRA on a residual", *method = "residual_dora", *kinds = "linear";
  using sample = residual_dora<16>;
  static constexpr ex weight(scope p, ex W) { return dora<Rank>::weight(p, residual_lora<Rank>::residual(p, W)); }
  static constexpr ex weight_with_base(scope p, ex W, ex base) {
    return dora<Rank>::weight_with_base(p, residual_lora<Rank>::residual(p, W), residual_lora<Rank>::residual(p, base));
  }
  static constexpr dropout_weight_parts dropout_parts(scope p, ex W) {
    auto R = residual_lora<Rank>::residual(p, W);
    return {R, dora<Rank>::weight(p, R) - R};
  }
};
using residual_forms = adapter_list<residual_lora<>, residual_dora<>>;
}  // namespace graft
namespace graft {
template <int Variant, int Group = dyn> struct road {
  static_assert(Variant == 1 || Variant == 2 || Variant == 4);
  static constexpr const char* name = Variant == 1 ? "RoAd 1" : Variant == 2 ? "RoAd 2" : "RoAd 4";
  static constexpr const char *method = Variant == 1 ? "road_1" : Variant == 2 ? "road_2" : "road_4", *kinds = "linear";
  using sample = road<Variant, 64>;
  static constexpr extent half(scope p) { return p.size("half_group", Group == dyn ? dyn : Group / 2, 32); }
  static constexpr ex blocks(scope p, extent out) {
    auto h = half(p), g = h + h, n = out / g;
    auto values = [&](const char* of) {  // one number per pair, one per output, or two per output
      if (Variant == 1) return reshape(p.param(of, out / 2), 1, n, h, 1);
      if (Variant == 2) return reshape(p.param(of, out), 1, n, g, 1);
      return reshape(p.param(of, 2 * out), n, 2, g, 1);
    };
    auto use = [&](ex v, int which) { return Variant == 4 ? reshape(slice(v, 1, which, 1), 1, n, g, 1) : v; };
    auto part = [&](ex v, int which) { return Variant == 1 ? v : slice(v, 2, which == 0 ? extent(0) : h, h); };
    auto theta = values("road_theta"), alpha = values("road_alpha");
    auto c = mul(use(alpha, 0), cos(use(theta, 0))), s = mul(use(alpha, 1), sin(use(theta, 1)));
    auto diagonal = [&](ex v) { return mul(v, p.eye(h)); };
    auto first = concat(diagonal(part(c, 0)), diagonal(part(s, 1)), 3);
    return concat(first, concat(diagonal(-part(s, 0)), diagonal(part(c, 1)), 3), 2);
  }
  static constexpr ex weight(scope p, ex W) { return t(rotate(t(W), blocks(p, W.rows()))); }
  static constexpr ex bias(scope p, ex b) { return t(rotate(t(b), blocks(p, b.rows()))); }
};
using road_forms = adapter_list<road<1>, road<2>, road<4>>;
}  // namespace graft
namespace graft {
template <int Entries> constexpr ex with_entries(scope p, ex W, leaf_name values, leaf_name index) {
  auto n = p.size("num_indices", Entries, 4096);
  return W + scatter_elements(p.param(values, n), p.index(index, n), W.rows(), W.cols());
}
template <int Entries = dyn> struct shira {
  static constexpr const char *name = "SHiRA", *method = "shira", *kinds = "linear";
  using sample = shira<4096>;
  static constexpr ex weight(scope p, ex W) { return with_entries<Entries>(p, W, "shira_weight", "shira_indices"); }
};
using shira_forms = adapter_list<shira<>>;
}  // namespace graft
namespace graft {
template <int Entries = dyn> struct supertuning {
  static constexpr const char *name = "Super-Tuning", *method = "supertuning", *kinds = "linear";
  using sample = supertuning<4096>;
  static constexpr ex weight(scope p, ex W) {
    return with_entries<Entries>(p, W, "supertuning_values", "supertuning_indices");
  }
};
template <int Entries = dyn, int Rank = dyn> struct supertuning_with_lora {
  static constexpr const char *name = "Super-Tuning with LoRA", *method = "supertuning_with_lora", *kinds = "linear";
  using sample = supertuning_with_lora<4096, 16>;
  static constexpr dropout_weight_parts dropout_parts(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.param("supertuning_lora_A.weight", r, W.cols()), B = p.param("supertuning_lora_B.weight", W.rows(), r);
    return {supertuning<Entries>::weight(p, W), p.scalar("scaling") * (B * A)};
  }
  static constexpr ex weight(scope p, ex W) {
    const dropout_weight_parts both = dropout_parts(p, W);
    return both.whole + both.dropped;
  }
};
using supertuning_forms = adapter_list<supertuning<>, supertuning_with_lora<>>;
}  // namespace graft
namespace graft {
template <int Rank = dyn, int Length = dyn> struct tinylora {
  static constexpr const char *name = "TinyLoRA", *method = "tinylora", *kinds = "linear embedding";
  using sample = tinylora<2, 64>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank), u = p.size("u", Length, 64);
    auto A = p.frozen("tinylora_A", r, W.cols()), B = p.frozen("tinylora_B", W.rows(), r);
    auto P = reshape(p.frozen("tinylora_P", u, r, r), u, r * r);
    return W + B * (reshape(t(p.param("tinylora_v", u)) * P, r, r) * A);
  }
};
using tinylora_forms = adapter_list<tinylora<>>;
}  // namespace graft
namespace graft {
template <int Tokens = dyn> struct trainable_tokens {
  static constexpr const char *name = "Trainable tokens", *method = "trainable_tokens", *kinds = "embedding linear";
  using sample = trainable_tokens<8>;
  static constexpr ex weight(scope p, ex W) {
    auto n = p.size("trained_tokens", Tokens);
    auto S = p.frozen("selected", W.rows(), n), R = p.frozen("trainable_tokens_original", n, W.cols());
    return W + S * (p.param("trainable_tokens_delta", n, W.cols()) - R);
  }
};
using trainable_tokens_forms = adapter_list<trainable_tokens<>>;
}  // namespace graft
namespace graft {
template <int Rank = dyn, int Length = dyn> struct unilora {
  static constexpr const char *name = "Uni-LoRA", *method = "unilora", *kinds = "linear";
  using sample = unilora<4, 256>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto theta = p.param("unilora_theta_d", p.size("theta_d_length", Length, 256));
    auto at_A = p.index("unilora_indices_A", r * W.cols()), at_B = p.index("unilora_indices_B", W.rows() * r);
    auto A = mul(reshape(gather_elements(theta, at_A), r, W.cols()), p.frozen("unilora_scales_A", r, W.cols()));
    auto B = mul(reshape(gather_elements(theta, at_B), W.rows(), r), p.frozen("unilora_scales_B", W.rows(), r));
    return W + B * A;
  }
};
using unilora_forms = adapter_list<unilora<>>;
}  // namespace graft
namespace graft {
template <int Rank = dyn, int TopK = 2> struct vblora {
  static constexpr const char *name = "VB-LoRA", *method = "vblora", *kinds = "linear";
  using sample = vblora<4, 2>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank), n = p.size("num_vectors", dyn, 256), L = p.size("vector_length", dyn, 256);
    auto k = p.size("topk", TopK, 2), in_parts = W.cols() / L, out_parts = W.rows() / L;
    auto bank = p.param("vblora_vector_bank", n, L);
    auto to_A = reshape(p.param("vblora_logits_A", r, in_parts, n), r * in_parts, n);
    auto to_B = reshape(p.param("vblora_logits_B", out_parts, r, n), out_parts * r, n);
    auto A = reshape(topk_softmax(to_A, k) * bank, r, W.cols());
    auto B = reshape(t(reshape(topk_softmax(to_B, k) * bank, out_parts, r, L)), W.rows(), r);
    return W + B * A;
  }
};
using vblora_forms = adapter_list<vblora<dyn, dyn>>;
}  // namespace graft
namespace graft {
template <int Rank = dyn> struct vera {
  static constexpr const char *name = "VeRA", *method = "vera", *kinds = "linear";
  using sample = vera<16>;
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r", Rank);
    auto A = p.frozen("vera_A", r, W.cols()), B = p.frozen("vera_B", W.rows(), r);
    return W + (p.param("vera_lambda_b", W.rows()) * B) * (p.param("vera_lambda_d", r) * A);
  }
};
using vera_forms = adapter_list<vera<>>;
}  // namespace graft
namespace graft {
template <int Frequencies = dyn, int Taps = dyn> struct waveft {
  static constexpr const char *name = "WaveFT", *method = "waveft", *kinds = "linear";
  using sample = waveft<256, 4>;
  static constexpr ex weight(scope p, ex W) {
    auto n = p.size("n_frequency", Frequencies, 2592), taps = p.size("taps", Taps, 4);
    auto values = mul(p.param("waveft_spectrum", n), p.frozen("waveft_taps", n, taps));
    auto at = p.index("waveft_indices", n * taps);
    return W + p.scalar("scaling") * scatter_elements(reshape(values, n * taps, 1), at, W.rows(), W.cols());
  }
};
using waveft_forms = adapter_list<waveft<>>;
}  // namespace graft
namespace graft {
using all_adapters =
    join_adapters<adapter_list<none>, lora_forms, dora_forms, adalora_forms, oft_forms, boft_forms, hra_forms,
                  ia3_forms, loha_forms, lokr_forms, vera_forms, miss_forms, vblora_forms, delora_forms, gralora_forms,
                  road_forms, c3a_forms, randlora_forms, hira_forms, psoft_forms, beft_forms, deft_forms, peanut_forms,
                  shira_forms, supertuning_forms, fourierft_forms, waveft_forms, unilora_forms, frod_forms,
                  adamss_forms, pvera_forms, tinylora_forms, glora_forms, osf_forms, ln_tuning_forms,
                  trainable_tokens_forms, residual_forms>;
template <class Adapter> struct adapter_type { using type = Adapter; };
template <class F, class... Adapters> constexpr void for_each_adapter(F f, adapter_list<Adapters...>) {
  (f(adapter_type<Adapters>{}), ...);
}
template <class F> constexpr void for_each_adapter(F f) { for_each_adapter(f, all_adapters{}); }
constexpr bool lists(const char* words, const char* word) {
  for (const char* at = words; *at != '\0';) {
    const char* w = word;
    while (*w != '\0' && *at == *w) ++at, ++w;
    if (*w == '\0' && (*at == ' ' || *at == '\0')) return true;
    while (*at != ' ' && *at != '\0') ++at;
    while (*at == ' ') ++at;
  }
  return false;
}
template <class Adapter> constexpr bool is_main_form() {
  bool first = true, before = true;
  for_each_adapter([&]<class Other>(adapter_type<Other>) {
    before = before && !same_text(Other::method, Adapter::method);
    first = first && !(before && same_text(Other::name, Adapter::name) && same_text(Other::kinds, Adapter::kinds));
  });
  return first;
}
}  // namespace graft
namespace graft {
inline constexpr const char* erased_name = "type_erased_adapter";
struct erased {
  static constexpr const char* name = "type-erased";
  static constexpr ex weight(scope, ex W) { return host(erased_name, W); }
};
}  // namespace graft
#define GRAFT_VERSION_MAJOR 0
#define GRAFT_VERSION_MINOR 1
#define GRAFT_VERSION_PATCH 0
#define GRAFT_VERSION (GRAFT_VERSION_MAJOR * 10000 + GRAFT_VERSION_MINOR * 100 + GRAFT_VERSION_PATCH)
namespace graft {
enum class dtype : unsigned char {
  f32,
  f64,
  bf16,
  f16,
  i64,
  nf4,
  fp4,
  int8,
  u2,
  u3,
  u4,
  u8,
  f4_e2m1,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  ggml
};
struct bf16 {
  std::uint16_t bits = 0;
};
struct f16 {
  std::uint16_t bits = 0;
};
template <int Block> struct nf4 {};
struct int8 {};
template <class Storage> struct storage;
template <> struct storage<float> {
  using compute = float;
  static constexpr dtype type = dtype::f32;
};
template <> struct storage<double> {
  using compute = double;
  static constexpr dtype type = dtype::f64;
};
template <> struct storage<bf16> {
  using compute = float;
  static constexpr dtype type = dtype::bf16;
};
template <> struct storage<f16> {
  using compute = float;
  static constexpr dtype type = dtype::f16;
};
template <int Block> struct storage<nf4<Block>> {
  static constexpr int block = Block;
  using compute = float;
  static constexpr dtype type = dtype::nf4;
};
template <> struct storage<int8> {
  using compute = float;
  static constexpr dtype type = dtype::int8;
};
constexpr const char* name_of(dtype t) {
  switch (t) {
    case dtype::f32: return "f32";
    case dtype::f64: return "f64";
    case dtype::bf16: return "bf16";
    case dtype::f16: return "f16";
    case dtype::i64: return "i64";
    case dtype::nf4: return "nf4";
    case dtype::fp4: return "fp4";
    case dtype::int8: return "int8";
    case dtype::u2: return "u2";
    case dtype::u3: return "u3";
    case dtype::u4: return "u4";
    case dtype::u8: return "u8";
    case dtype::f4_e2m1: return "f4_e2m1";
    case dtype::f8_e4m3: return "f8_e4m3";
    case dtype::f8_e5m2: return "f8_e5m2";
    case dtype::f8_e8m0: return "f8_e8m0";
    case dtype::ggml: return "ggml";
  }
  return "?";
}
constexpr bool is_floating(dtype t) {
  return t == dtype::f32 || t == dtype::f64 || t == dtype::bf16 || t == dtype::f16;
}
constexpr int bits_of(dtype t) {
  switch (t) {
    case dtype::f64:
    case dtype::i64: return 64;
    case dtype::f32: return 32;
    case dtype::bf16:
    case dtype::f16: return 16;
    case dtype::int8:
    case dtype::u8:
    case dtype::f8_e4m3:
    case dtype::f8_e5m2:
    case dtype::f8_e8m0: return 8;
    case dtype::nf4:
    case dtype::fp4:
    case dtype::u4:
    case dtype::f4_e2m1: return 4;
    case dtype::u3: return 3;
    case dtype::u2: return 2;
    case dtype::ggml: break;  // a ggml type states its bytes per block instead
  }
  return 0;
}
}  // namespace graft
namespace graft {
struct quant_state;  // scales of a quantized weight: core/quant_format.h
template <class Void> struct basic_view {
  Void* data = nullptr;
  dtype type = dtype::f32;
  long long size[4] = {1, 1, 1, 1};
  int rank = 0;
  long long strides[4] = {0, 0, 0, 0};  // in elements; 0: row-major
  const quant_state* quant = nullptr;   // state of quantized weights, which must outlive the view
  constexpr long long count() const {
    long long n = 1;
    for (int i = 0; i < rank; ++i) n *= size[i];
    return n;
  }
  constexpr long long stride(int axis) const {
    if (strides[axis] != 0) return strides[axis];
    long long n = 1;
    for (int i = axis + 1; i < rank; ++i) n *= size[i];
    return n;
  }
  [[gnu::noinline]] constexpr bool contiguous() const {
    long long n = 1;
    for (int i = rank - 1; i >= 0; n *= size[i--])
      if (size[i] > 1 && stride(i) != n) return false;
    return true;
  }
  constexpr basic_view transposed() const {
    basic_view t = *this;
    if (rank < 2) return t;
    for (int i = 0; i < rank; ++i) t.strides[i] = stride(i);
    for (long long(*of)[4] : {&t.size, &t.strides}) {
      const long long last = (*of)[rank - 1];
      (*of)[rank - 1] = (*of)[rank - 2];
      (*of)[rank - 2] = last;
    }
    return t;
  }
  template <class To>
  constexpr operator To() const requires(std::is_same_v<To, basic_view<const void>> && !std::is_const_v<Void>) {
    return {data, type, {size[0], size[1], size[2], size[3]}, rank, {strides[0], strides[1], strides[2], strides[3]},
            quant};
  }
};
using view = basic_view<const void>;
using mutable_view = basic_view<void>;
template <class Element> inline constexpr bool is_index = false;
template <> inline constexpr bool is_index<long> = sizeof(long) == 8;
template <> inline constexpr bool is_index<long long> = true;
template <class Element> constexpr dtype dtype_of() {
  if constexpr (requires { storage<Element>::type; }) {
    return storage<Element>::type;
  } else {
    static_assert(is_index<Element>,
                  "graft: a view is of float, double, bf16 or f16, or of std::int64_t for indices: copy other numbers "
                  "into one of these");
    return dtype::i64;
  }
}
template <class Element, class... Sizes> constexpr view view_of(const Element* data, Sizes... sizes) {
  return {data, dtype_of<Element>(), {static_cast<long long>(sizes)...}, static_cast<int>(sizeof...(sizes))};
}
template <class Element, class... Sizes> constexpr mutable_view view_into(Element* data, Sizes... sizes) {
  return {data, dtype_of<Element>(), {static_cast<long long>(sizes)...}, static_cast<int>(sizeof...(sizes))};
}
[[gnu::cold]] constexpr text shape_of(const view& v) {
  text t;
  t << '[';
  for (int i = 0; i < v.rank; ++i) t << (i > 0 ? ", " : "") << v.size[i];
  t << ']';
  return t;
}
}  // namespace graft
namespace graft {
enum class scale_granularity : unsigned char { nothing, tensor, row, block, flat_block, row_flat_block, column_group };
struct quant_format {
  dtype type = dtype::f32;
  scale_granularity scaled = scale_granularity::nothing;
  int block = 0;              // elements that share a scale; 0: `scaled` alone says how many do
  int block_rows = 1;         // rows that share the scale of a block (FP8 in square blocks)
  dtype scales = dtype::f32;  // u8: the scales are quantized (double quantization)
  int second_block = 0;       // scales that share one second scale; 0: no double quantization
  dtype second_scales = dtype::f32;
  int block_bytes = 0;  // ggml: bytes of a block, scale included
  int block_type = 0;   // ggml: type number of the block layout
  constexpr bool plain() const { return scaled == scale_granularity::nothing && is_floating(type); }
  friend constexpr bool operator==(const quant_format&, const quant_format&) = default;
};
template <class Storage> constexpr quant_format quant_format_of() { return {storage<Storage>::type}; }
template <class Storage>
requires(storage<Storage>::type == dtype::int8) constexpr quant_format quant_format_of() {
  return {dtype::int8, scale_granularity::row};
}
template <class Storage>
requires(storage<Storage>::type == dtype::nf4) constexpr quant_format quant_format_of() {
  return {dtype::nf4, scale_granularity::flat_block, storage<Storage>::block};
}
struct scale_counts {
  long long scales = 0, second_scales = 0;
};
constexpr scale_counts scale_counts_of(const quant_format& e, long long rows, long long cols) {
  auto parts = [](long long n, long long of) { return of > 0 ? (n + of - 1) / of : 1; };
  scale_counts n;
  switch (e.scaled) {
    case scale_granularity::nothing: break;
    case scale_granularity::tensor: n.scales = 1; break;
    case scale_granularity::row: n.scales = rows; break;
    case scale_granularity::block:
    case scale_granularity::column_group:
      n.scales = e.block_bytes > 0 ? 0 : parts(rows, e.block_rows) * parts(cols, e.block);
      break;
    case scale_granularity::flat_block:
    case scale_granularity::row_flat_block: n.scales = parts(rows * cols, e.block); break;
  }
  if (e.second_block > 0) n.second_scales = parts(n.scales, e.second_block);
  return n;
}
constexpr bool has_zero_points(const quant_format& e) {
  return e.type == dtype::u2 || e.type == dtype::u3 || e.type == dtype::u4 || e.type == dtype::u8;
}
constexpr long long quantized_bytes(const quant_format& e, long long rows, long long cols) {
  if (e.block_bytes > 0) return rows * ((cols + e.block - 1) / e.block) * e.block_bytes;
  return (rows * cols * bits_of(e.type) + 7) / 8;
}
constexpr long long bytes_of(const quant_format& e, long long rows, long long cols) {
  const scale_counts n = scale_counts_of(e, rows, cols);
  return quantized_bytes(e, rows, cols) + n.scales * bits_of(e.scales) / 8 +
         n.second_scales * bits_of(e.second_scales) / 8 + (has_zero_points(e) ? n.scales : 0);
}
constexpr float rounded_product(float a, float b) {
  const double exact = static_cast<double>(a) * static_cast<double>(b);
  auto rounded = static_cast<float>(exact);
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDA_ARCH__)
  if (!std::is_constant_evaluated()) {
#if defined(__x86_64__)
    asm("" : "+x"(rounded));
#elif defined(__aarch64__)
    asm("" : "+w"(rounded));
#else
    asm("" : "+m"(rounded));
#endif
  }
#endif
  return rounded;
}
constexpr float abs_max(const float* from, long long n) {
  float most = 0;
  for (long long i = 0; i < n; ++i) {
    const float size = from[i] < 0 ? -from[i] : from[i];
    most = size > most ? size : most;
  }
  return most;
}
struct quant_state {
  quant_format format{};
  const void* scales = nullptr;
  const float* second_scales = nullptr;
  const float* second_codebook = nullptr;      // value of each of the 256 quantized scales
  float offset = 0;                            // added to each dequantized scale
  float tensor_scale = 1;                      // multiplies each scale that is an 8-bit float (NVFP4)
  const unsigned char* zeros = nullptr;        // one per scale, in the same order
  const std::int32_t* column_group = nullptr;  // the group of each column (GPTQ's g_idx)
};
struct weight_view {
  quant_format format{};
  long long rows = 0, cols = 0;
  long long row_stride = 0, col_stride = 1;  // strides of plain weights, in elements
  const void* data = nullptr;
  const quant_state* quant = nullptr;
  constexpr weight_view transposed() const {  // requires a plain weight
    weight_view t = *this;
    t.rows = cols, t.cols = rows, t.row_stride = col_stride, t.col_stride = row_stride;
    return t;
  }
};
constexpr weight_view weight_of(const view& v, long long rows, long long cols) {
  weight_view w{{v.type}, rows, cols, cols, 1, v.data, v.quant};
  if (v.quant != nullptr)
    w.format = v.quant->format;
  else if (!v.contiguous())
    w.row_stride = v.stride(v.rank - 2), w.col_stride = v.stride(v.rank - 1);
  return w;
}
constexpr weight_view weight_of(const view& v) {
  const long long cols = v.size[v.rank - 1];
  return weight_of(v, cols > 0 ? v.count() / cols : 0, cols);
}
constexpr long long quantized_bytes(const view& v) {
  const weight_view w = weight_of(v);
  return quantized_bytes(w.format, w.rows, w.cols);
}
}  // namespace graft
namespace graft {
constexpr const char* name_of(stage s) {
  return s == stage::load ? "load" : s == stage::parameter ? "parameter" : "data";
}
struct stages {
  sequence<stage> of;
  sequence<bool> has_token_rows;  // the value has a row, or several, for every token
};
[[gnu::cold]] constexpr stages schedule(const graph& g) {
  stages s{sequence<stage>(g.size, stage::load), sequence<bool>(g.size, false)};
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    s.of[i] = traits_of(v.what).known_at;
    for (int k = 0; k < 3; ++k)
      if (v.operand(k) >= 0 && s.of[v.operand(k)] > s.of[i]) s.of[i] = s.of[v.operand(k)];
    for (dim d : v.d)
      s.has_token_rows[i] = s.has_token_rows[i] || (s.of[i] == stage::call && g.sizes.has_token_rows(d));
  }
  return s;
}
}  // namespace graft
namespace graft {
struct node_set {
  sequence<bool> in;
  constexpr node_set() = default;
  constexpr explicit node_set(int nodes) : in(nodes) {}
  constexpr bool operator[](id i) const { return i >= 0 && i < in.size() && in[i]; }
  constexpr void add(id i) { in[i] = true; }
};
template <class Starts> constexpr node_set dependents(const graph& g, Starts starts, bool through_detach = true) {
  node_set s(g.size);
  bool* const in = s.in.data();
  for (id i = 0; i < g.size; ++i) {
    const node& v = g.n[i];
    in[i] = starts(v) || ((through_detach || v.what != op::detach) &&
                          ((v.a >= 0 && in[v.a]) || (v.b >= 0 && in[v.b]) || (v.c >= 0 && in[v.c])));
  }
  return s;
}
constexpr node_set reachable(const graph& g) {
  node_set s(g.size);
  for (id i = 0; i < g.size; ++i) s.in[i] = g[i].what == op::input;
  for (int k = 0; k < g.outs; ++k) s.add(g.out[k].at);
  bool* const in = s.in.data();
  for (id i = g.size - 1; i >= 0; --i) {
    const node& v = g.n[i];
    if (!in[i]) continue;
    if (v.a >= 0) in[v.a] = true;
    if (v.b >= 0) in[v.b] = true;
    if (v.c >= 0) in[v.c] = true;
  }
  return s;
}
constexpr node_set dependencies(const graph& g, id root) {
  node_set s(root + 1);
  bool* const in = s.in.data();
  if (root >= 0) in[root] = true;
  for (id i = root; i >= 0; --i) {
    if (!in[i]) continue;
    const node& v = g.n[i];
    if (v.a >= 0) in[v.a] = true;
    if (v.b >= 0) in[v.b] = true;
    if (v.c >= 0) in[v.c] = true;
  }
  return s;
}
constexpr bool contains(const graph& g, id root, op what) {
  if (root < 0 || g.n[root].what == what) return root >= 0;
  if (g.n[root].a < 0) return false;
  const node_set s = dependencies(g, root);
  const bool* const in = s.in.data();
  for (id i = 0; i <= root; ++i)
    if (in[i] && g.n[i].what == what) return true;
  return false;
}
constexpr bool is_output(const graph& g, id i) {
  for (int k = 0; k < g.outs; ++k)
    if (g.out[k].at == i) return true;
  return false;
}
constexpr id unshaped(const graph& g, id i) {
  while (i >= 0 && g[i].what == op::reshape) i = g[i].a;
  return i;
}
constexpr id base_leaf(const graph& g, id i) {
  i = unshaped(g, i);
  return i >= 0 && g[i].what == op::base ? i : none_id;
}
}  // namespace graft
namespace graft {
enum class launch_slot : unsigned char { none, prologue, mainloop, branch, epilogue, reduce, standalone };
constexpr const char* name_of(launch_slot s) {
  constexpr const char* names[] = {"", "prologue", "mainloop", "low-rank branch", "epilogue", "reduce", ""};
  return names[static_cast<int>(s)];
}
}  // namespace graft
namespace graft {
inline constexpr int max_concat_parts = 4;
struct concat_part {
  id value = none_id;
  bool has_rope = false;  // RoPE by the row's position is applied
};
struct rowwise_launch {
  struct capabilities {
    bool fused = false;  // norms with gain, and concatenated heads, are one launch
  };
  struct work {
    sequence<id> host;  // by launch: the node in whose launch it runs; none: its own
  };
  id result = none_id;
  id norm = none_id, scale = none_id;            // a norm or its gradient, and w
  id grad_output = none_id, residual = none_id;  // operands of a gradient: t and h
  sequence<concat_part> parts;                   // values that are concatenated along the columns
  id table = none_id, positions = none_id;       // cosines and sines by position, and the positions of the rows
  sequence<id> inside;                           // nodes in order of computation; the result is the last one
  constexpr bool found() const { return inside.size() > 1; }
  constexpr id anchor() const { return norm >= 0 ? norm : result; }
  constexpr const char* name(const graph&) const { return norm >= 0 ? "rowwise" : "elementwise"; }
  template <class Facts> constexpr int kernels(const Facts& in) const {
    return element_count(in.g, result, in.s) == 0 ? 0 : 1;
  }
  template <class Planner> static constexpr void match(Planner& by);
  template <class Planner> static constexpr void add(Planner& by, int index, id i);
};
namespace detail {
struct rowwise_matcher {
  const graph& g;
  const stages& when;
  const sequence<int>& readers;
  const node_set& free;  // nodes that no other launch computes
  rowwise_launch out{};
  id angles = none_id;
  int has_rope = 0;
  constexpr bool data(id i) const { return i >= 0 && when.of[i] == stage::call; }
  constexpr bool has_one_reader(id i) const { return free[i] && readers[i] == 1; }
  [[gnu::cold]] constexpr bool scaled_norm(id i) {
    const node& v = g[i];
    if (v.what != op::mul) return false;
    const bool left = data(v.a) && g[v.a].what == op::normalize;
    const id norm = left ? v.a : v.b, scale = left ? v.b : v.a;
    if (!data(norm) || g[norm].what != op::normalize || !has_one_reader(norm) || data(scale)) return false;
    if (has_several_rows(scale) || g[scale].d[3] != g[norm].d[3]) return false;
    out.norm = norm, out.scale = scale;
    return out.inside.push(norm), out.inside.push(i), true;
  }
  [[gnu::cold]] constexpr bool norm_gradient(id i) {
    id at = i;
    if (g[i].what == op::add)
      for (int k = 0; k < 2 && at == i; ++k)
        if (const id o = g[i].operand(k), h = g[i].operand(1 - k); g[o].what == op::normalize_grad && has_one_reader(o))
          if (data(h) && same_shape(g[h], g[i])) at = o, out.residual = h;
    const node& v = g[at];
    if (v.what != op::normalize_grad) return false;
    out.norm = at, out.grad_output = v.c;
    const node& t = g[v.c];
    if (t.what == op::mul && data(v.c) && has_one_reader(v.c)) {
      const bool left = data(t.a);
      const id value = left ? t.a : t.b, scale = left ? t.b : t.a;
      if (!data(scale) && !has_several_rows(scale) && g[scale].d[3] == t.d[3] && same_shape(g[value], t))
        out.grad_output = value, out.scale = scale, out.inside.push(v.c);
    }
    out.inside.push(at);
    if (at != i) out.inside.push(i);
    return true;
  }
  constexpr bool has_several_rows(id i) const {
    return g[i].d[0] != dim{1} || g[i].d[1] != dim{1} || g[i].d[2] != dim{1};
  }
  [[gnu::cold]] constexpr void part(id i) {
    const node& v = g[i];
    const bool applies_rope = data(i) && v.what == op::rope && !v.tb && has_one_reader(i) && free[v.b] &&
                              g[v.b].what == op::gather && !data(g[v.b].a) && (angles < 0 || angles == v.b);
    if (!applies_rope) return out.parts.push({i, false});
    angles = v.b, ++has_rope;
    out.parts.push({v.a, true}), out.inside.push(i);
  }
  [[gnu::cold]] constexpr void concat_parts_of(id i, bool root) {
    const node& v = g[i];
    const bool can_join = data(i) && v.what == op::concat && v.k[0] == dim{3} && (root || has_one_reader(i));
    if (!can_join) return part(i);
    concat_parts_of(v.a, false), concat_parts_of(v.b, false);
    out.inside.push(i);
  }
  [[gnu::cold]] constexpr bool is_concat(id i) {
    const node& v = g[i];
    if (v.what != op::concat || v.k[0] != dim{3} || v.d[0] != dim{1} || v.d[1] != dim{1}) return false;
    concat_parts_of(i, true);
    if (out.parts.size() > max_concat_parts || (angles >= 0 && readers[angles] != has_rope)) return false;
    for (const concat_part& p : out.parts)
      if (!data(p.value)) return false;
    if (angles < 0) return true;
    out.table = g[angles].a, out.positions = g[angles].b;
    sequence<id> with;
    with.push(angles);
    for (const id n : out.inside) with.push(n);
    out.inside = with;
    return true;
  }
};
}  // namespace detail
[[gnu::cold]] constexpr rowwise_launch rowwise_launch_at(const graph& g, const stages& when,
                                                         const sequence<int>& readers, const node_set& free, id i) {
  detail::rowwise_matcher r{g, when, readers, free};
  if (r.scaled_norm(i) || r.norm_gradient(i) || r.is_concat(i)) {
    r.out.result = i;
    return static_cast<rowwise_launch&&>(r.out);
  }
  return {};
}
template <class Planner> [[gnu::cold]] constexpr void rowwise_launch::match(Planner& by) {
  node_set free = by.free_nodes();
  auto& all = by.p.template all<rowwise_launch>();
  for (id i = by.g.size - 1; by.template can<rowwise_launch>().fused && i >= 0; --i) {
    if (!free[i]) continue;
    rowwise_launch r = rowwise_launch_at(by.g, by.p.when, by.readers, free, i);
    if (!r.found()) continue;
    for (const id n : r.inside) by.template claim<rowwise_launch>(n, all.size()), free.in[n] = false;
    all.push(static_cast<rowwise_launch&&>(r));
  }
  by.template work<rowwise_launch>().host = sequence<id>(all.size(), none_id);
}
template <class Planner> [[gnu::cold]] constexpr void rowwise_launch::add(Planner& by, int index, id i) {
  const rowwise_launch& r = by.p.template all<rowwise_launch>()[index];
  if (r.result != i || by.template work<rowwise_launch>().host[index] >= 0) return;
  if (!by.template computed<rowwise_launch>(r.inside, index)) return;
  by.template open<rowwise_launch>(index);
  for (const id n : r.inside)
    by.add(n, n == r.anchor() ? launch_slot::standalone : r.norm >= 0 ? launch_slot::epilogue : launch_slot::prologue);
}
}  // namespace graft
namespace graft {
struct target;
template <class Function> class target_function {
 public:
  constexpr target_function() = default;
  template <class F>
  requires(std::is_convertible_v<F, Function*>) constexpr target_function(F f) : function_(f), has_(true) {}
  constexpr explicit operator bool() const { return has_; }
  template <class... Args> constexpr auto operator()(Args&&... args) const {
    return function_(static_cast<Args&&>(args)...);
  }
 private:
  Function* function_ = nullptr;
  bool has_ = false;
};
}  // namespace graft
namespace graft {
constexpr const char* launch_name_of(const node& v) {
  switch (traits_of(v.what).kind) {
    case op_class::product: return "GEMM";
    case op_class::lookup: return accumulates_result(v.what) ? "reduce" : "gather";
    case op_class::rotation: return accumulates_result(v.what) ? "reduce" : "rotation";
    case op_class::rowwise: return "rowwise";
    case op_class::attention: return "attention";
    case op_class::reduction: return "reduce";
    case op_class::pointwise:
    case op_class::layout: return "elementwise";
    case op_class::leaf:
    case op_class::algebra: return "small matrices";
    case op_class::collective: return "collective";
    case op_class::opaque: return "host function";
  }
  return "";
}
struct nodes_launch {
  struct capabilities {
    target_function<bool(op)> runs{};
    target_function<int(const graph&, id, const size_values&, dtype, const target&)> kernels{};
    long long flop_factor = 1;
  };
  struct work {};
  id first = none_id;   // the node it is named after
  bool joined = false;  // several nodes run here one after the other
  constexpr id anchor() const { return first; }
  constexpr const char* name(const graph& g) const {
    const op_class kind = traits_of(g[first].what).kind;
    return joined && kind != op_class::attention && !stands_alone(kind) ? "small matrices" : launch_name_of(g[first]);
  }
  static constexpr bool stands_alone(op_class kind) { return kind == op_class::opaque || kind == op_class::collective; }
  template <class Facts> static constexpr int kernels_of(const Facts& in, id i) {
    const auto& of = in.p.to.template can<nodes_launch>().kernels;
    return !of ? 1 : of(in.g, i, in.s, in.type, in.p.to);
  }
  template <class Facts> constexpr int kernels(const Facts& in) const { return kernels_of(in, first); }
};
struct rows_launch {
  struct capabilities {};
  struct work {};
  id around = none_id;  // a product with the base weight, a look-up or a norm, where it has one
  constexpr id anchor() const { return around; }
  constexpr const char* name(const graph& g) const { return launch_name_of(g[around]); }
  template <class Facts> constexpr int kernels(const Facts& in) const { return nodes_launch::kernels_of(in, around); }
};
}  // namespace graft
namespace graft {
struct attention_launch {
  struct capabilities {
    target_function<bool(const graph&, id, const size_values&, dtype, const target&)> fuses_heads{};
  };
  struct work {};
  id node = none_id;
  int heads = -1;  // index of its rowwise_launch; -1: none
  constexpr id anchor() const { return node; }
  constexpr const char* name(const graph& g) const { return launch_name_of(g[node]); }
  template <class Facts> constexpr int kernels(const Facts& in) const {
    const bool separate =
        heads >= 0 && !in.p.to.template can<attention_launch>().fuses_heads(in.g, node, in.s, in.type, in.p.to);
    return nodes_launch::kernels_of(in, node) + (separate ? 1 : 0);
  }
  template <class Planner> [[gnu::cold]] static constexpr void match(Planner& by) {
    const graph& g = by.g;
    auto& all = by.p.template all<attention_launch>();
    const auto& rows = by.p.template all<rowwise_launch>();
    const bool takes_heads = static_cast<bool>(by.template can<attention_launch>().fuses_heads);
    for (id i = 0; i < g.size; ++i) {
      if (traits_of(g[i].what).kind != op_class::attention || !by.is_free(i)) continue;
      int heads = takes_heads && g[i].what == op::cached_attention ? by.template claimed<rowwise_launch>(g[i].a) : -1;
      if (heads >= 0 && (rows[heads].result != g[i].a || by.readers[g[i].a] != 1)) heads = -1;
      if (heads >= 0) by.template work<rowwise_launch>().host[heads] = i;
      by.template claim<attention_launch>(i, all.size());
      all.push({i, heads});
    }
  }
  template <class Planner> [[gnu::cold]] static constexpr void add(Planner& by, int index, id) {
    const attention_launch a = by.p.template all<attention_launch>()[index];
    sequence<id> before;
    if (a.heads >= 0) before = by.p.template all<rowwise_launch>()[a.heads].inside;
    if (a.heads >= 0 ? !by.template computed<rowwise_launch>(before, a.heads) : !by.computed(a.node)) return;
    by.template open<attention_launch>(index);
    for (const id n : before) by.add(n, launch_slot::prologue);
    by.add(a.node, launch_slot::standalone);
  }
};
}  // namespace graft
namespace graft {
struct expert_gemm {
  struct capabilities {
    bool adds_branch = false;  // the kernel of grouped products adds a second product to the first
  };
  struct work {};
  id base = none_id, branch = none_id, result = none_id;
  constexpr id anchor() const { return result; }
  constexpr const char* name(const graph&) const { return "grouped GEMM"; }
  template <class Facts> constexpr int kernels(const Facts& in) const {
    return element_count(in.g, result, in.s) == 0 ? 0 : 1;
  }
  template <class Planner> [[gnu::cold]] static constexpr void match(Planner& by) {
    if (!by.template can<expert_gemm>().adds_branch) return;
    auto& all = by.p.template all<expert_gemm>();
    for (id i = 0; i < by.g.size; ++i) {
      const node& v = by.g[i];
      if (v.what != op::add || !by.is_free(i) || !is_product(by, v.a) || !is_product(by, v.b)) continue;
      const node &a = by.g[v.a], &b = by.g[v.b];
      if (a.c != b.c || !same_shape(a, v) || !same_shape(b, v)) continue;
      const bool first_is_branch = reads_product(by.g, v.a) && !reads_product(by.g, v.b);
      const expert_gemm made{first_is_branch ? v.b : v.a, first_is_branch ? v.a : v.b, i};
      for (const id n : {made.base, made.branch, made.result}) by.template claim<expert_gemm>(n, all.size());
      all.push(made);
    }
  }
  template <class Planner> [[gnu::cold]] static constexpr void add(Planner& by, int index, id) {
    const expert_gemm one = by.p.template all<expert_gemm>()[index];
    sequence<id> nodes;
    for (const id n : {one.base, one.branch, one.result}) nodes.push(n);
    if (!by.template computed<expert_gemm>(nodes, index)) return;
    by.template open<expert_gemm>(index);
    by.add(one.base, launch_slot::mainloop), by.add(one.branch, launch_slot::branch),
        by.add(one.result, launch_slot::epilogue);
  }
 private:
  template <class Planner> static constexpr bool is_product(const Planner& by, id i) {
    return by.g[i].what == op::grouped_matmul && by.is_free(i) && by.readers[i] == 1;
  }
  static constexpr bool reads_product(const graph& g, id i) {
    return g[unshaped(g, g[i].a)].what == op::grouped_matmul;
  }
};
}  // namespace graft
namespace graft {
namespace detail {
constexpr bool one_matrix(const node& v) { return v.d[0] == dim{1} && v.d[1] == dim{1}; }
}  // namespace detail
struct wgrad_launch {
  struct capabilities {
    bool has_kernel = false;        // there is a wgrad kernel
    bool fuses_into_dgrad = false;  // wgrads run in the launch of a dgrad (gemm.h)
    target_function<bool(long long columns, dtype, const target&)> operand_is_padded{};
  };
  struct work {
    sequence<int> host;  // by wgrad: the product whose launch it runs in; -1: none
  };
  bool found = false;
  id result = none_id, product = none_id;  // the product is the result or its operand
  id left = none_id, right = none_id;      // Z and Q: D = leftᵀ right, or by_column d = Σ left ⊙ right
  bool by_column = false;
  id factor = none_id;                   // one number, or none
  id scaled = none_id, scale = none_id;  // left ⊙ scale, which the launch stores too; scale is precomputed
  constexpr id anchor() const { return product; }
  constexpr const char* name(const graph&) const { return "GEMM"; }
  template <class Facts> constexpr int kernels(const Facts& in) const {
    return element_count(in.g, result, in.s) == 0 ? 0 : 1;
  }
  template <class F> constexpr void each_wgrad(int index, F f) const { f(index); }
  template <class Planner> constexpr void add_nodes(Planner& by) const {
    by.add(product, launch_slot::reduce);
    if (result != product) by.add(result, launch_slot::epilogue);
    if (scaled >= 0) by.add(scaled, launch_slot::prologue);
  }
  template <class Planner> static constexpr void match(Planner& by);
  template <class Planner> static constexpr void add(Planner& by, int index, id i);
};
[[gnu::cold]] constexpr wgrad_launch wgrad_at(const graph& g, const stages& when, const sequence<int>& readers, id i) {
  auto data = [&](id k) { return k >= 0 && when.of[k] == stage::call; };
  wgrad_launch s;
  s.result = s.product = i;
  if (g[i].what == op::sum_to && data(g[i].a)) {
    const node &v = g[i], &m = g[v.a];
    const bool over_tokens = detail::one_matrix(m) && v.d[2] == dim{1} && v.d[3] == m.d[3] && v.d[3] != dim{1};
    if (!over_tokens || m.what != op::mul || readers[v.a] != 1 || !data(m.a) || !data(m.b)) return {};
    if (!same_shape(g[m.a], m) || !same_shape(g[m.b], m)) return {};
    s.product = v.a, s.left = m.a, s.right = m.b, s.by_column = s.found = true;
    return s;
  }
  if (const node& v = g[i]; v.what == op::mul && data(v.a) != data(v.b)) {
    s.product = data(v.a) ? v.a : v.b, s.factor = data(v.a) ? v.b : v.a;
    if (!is_scalar(g[s.factor]) || readers[s.product] != 1) return {};
  }
  const node& v = g[s.product];
  auto is_available = [&](id k) { return data(k) || g[k].what == op::base; };
  if (v.what != op::matmul || !v.ta || v.tb || v.sum || !is_available(v.a) || !is_available(v.b)) return {};
  if (!detail::one_matrix(v) || !detail::one_matrix(g[v.a]) || !detail::one_matrix(g[v.b])) return {};
  s.left = v.a, s.right = v.b, s.found = true;
  return s;
}
constexpr bool is_call_input(const graph& g, id i) {
  return is_leaf(g[i].what) && traits_of(g[i].what).known_at == stage::call;
}
[[gnu::cold]] constexpr bool absorb_scaled_operand(const graph& g, const stages& when, id n, wgrad_launch& s) {
  const node& v = g[n];
  if (!s.by_column || s.scaled >= 0 || v.what != op::mul || when.of[n] != stage::call) return false;
  for (int k = 0; k < 2; ++k) {
    const id x = v.operand(k), f = v.operand(1 - k);
    if ((x != s.left && x != s.right) || when.of[f] == stage::call || g[f].d[2] != dim{1}) continue;
    const id other = x == s.left ? s.right : s.left;
    if (!detail::one_matrix(g[f]) || g[f].d[3] != g[x].d[3] || !is_leaf(g[other].what)) continue;
    s.left = x, s.right = other, s.scaled = n, s.scale = f;
    return true;
  }
  return false;
}
struct wgrad_readers {
  sequence<int> times;
  node_set product_of;
  explicit constexpr wgrad_readers(int nodes) : times(nodes, 0), product_of(nodes) {}
  constexpr void add(const wgrad_launch& s) {
    if (s.by_column) return;
    ++times[s.left], ++times[s.right];
    product_of.add(s.product);
  }
};
template <class Planner> [[gnu::cold]] constexpr void wgrad_launch::match(Planner& by) {
  auto& all = by.p.template all<wgrad_launch>();
  for (id i = by.g.size - 1; by.template can<wgrad_launch>().has_kernel && i >= 0; --i) {
    if (!by.is_free(i)) continue;
    const wgrad_launch s = wgrad_at(by.g, by.p.when, by.readers, i);
    if (!s.found) continue;
    for (const id n : {s.result, s.product}) by.template claim<wgrad_launch>(n, all.size());
    all.push(s);
  }
  by.template work<wgrad_launch>().host = sequence<int>(all.size(), -1);
}
template <class Planner> [[gnu::cold]] constexpr void wgrad_launch::add(Planner& by, int index, id i) {
  const wgrad_launch s = by.p.template all<wgrad_launch>()[index];
  if ((s.result != i && s.scaled != i) || by.template work<wgrad_launch>().host[index] >= 0) return;
  if (!by.computed(s.product)) return;
  by.template open<wgrad_launch>(index);
  s.add_nodes(by);
}
}  // namespace graft
namespace graft {
struct low_rank_branch {
  id a = none_id, b = none_id;  // precomputed; none where op::fold_columns computes U, or op::repeat expands it (MiSS)
  bool a_rank_major = true;     // A is stored [rank, in], else [in, rank]
  bool b_out_major = true;      // B is stored [out, rank], else [rank, out]
  bool minus = false;
  id factor = none_id;          // one number, or none
  id s = none_id;               // U, the shrink result
  bool computes_shrink = true;  // false: an earlier launch computed U from x with dropout, and there is no A
  bool stores_shrink = false;   // U is stored, because it is an output or later launches read it
  bool expands = true;          // adds U Bᵀ; false: U is only stored, and there is no B
  dim rank{};
};
struct epilogue_step {
  op what = op::mul;
  id operand = none_id;  // one value per output column, or one number
};
struct gemm_slot_capabilities {
  bool reads_nn_weight = false;        // GEMMs read stored weights [in, out] as well as [out, in]
  bool fuses_prologue = true;          // they apply a factor per column of x
  bool prologue_with_branch = false;   // they also do so with low-rank branches
  bool fuses_input_rotation = false;   // the rotation of x belongs to the launch of the GEMM that reads it
  bool fuses_output_rotation = false;  // the rotation of dx = dy W belongs to its launch
};
struct gemm_slots {
  bool found = false;
  id result = none_id, x = none_id, weight = none_id;
  id prologue = none_id, scaled = none_id;  // a factor per column of x, and x ⊙ prologue
  id input_rotation = none_id;              // x R, which the launch computes before the GEMM; not inside
  bool weight_is_nt = true;                 // W is stored [out, in], else [in, out]
  sequence<low_rank_branch> branches;
  sequence<epilogue_step> epilogue_steps;  // in the order they are applied
  id pre_epilogue = none_id;               // accumulators that the launch stores, because they have other readers
  id output_rotation = none_id;  // the accumulators whose rotation by R is the result; pre_epilogue if they are stored
  op act = op::detach;           // activation after the steps; detach: none
  id residual = none_id;         // has the shape of the result, added last
  sequence<id> inside;           // every node of the launch, the result included
};
constexpr bool exposes_shrink(const gemm_slots& p) {
  bool any = false;
  for (const low_rank_branch& b : p.branches) any = any || b.stores_shrink || !b.computes_shrink;
  return any;
}
constexpr long long rotation_width(long long factors, long long block) {
  return factors < 1 || factors > 16 ? 1 << 20 : block << (factors - 1);
}
namespace detail {
constexpr bool is_activation(op o) { return o == op::relu || o == op::silu || o == op::gelu || o == op::gelu_tanh; }
struct gemm_matcher {
  const graph& g;
  const stages& when;
  const sequence<int>& readers;  // how often a value is read; being an output counts as one reader
  const wgrad_readers& sums;
  const node_set& shrinks;  // U of branches with dropout
  id result;
  bool with_branches = true;
  gemm_slots out{};
  constexpr bool data(id i) const { return i >= 0 && when.of[i] == stage::call; }
  constexpr bool is_precomputed(id i) const { return i >= 0 && when.of[i] != stage::call; }
  constexpr bool has_one_reader(id i) const { return readers[i] == 1; }
  constexpr int outputs(id i) const {  // how many outputs node i is
    int n = 0;
    for (int k = 0; k < g.outs; ++k) n += g.out[k].at == i ? 1 : 0;
    return n;
  }
  [[gnu::cold]] constexpr bool stores_shrink(id i) const {
    const int others = sums.times[i] + outputs(i);
    if (others == 0 || readers[i] != others + 1) return false;
    for (id s = i + 1; s < result; ++s)
      if (sums.product_of[s] && (g[s].a == i || g[s].b == i) && reaches(s)) return false;
    return true;
  }
  [[gnu::cold]] constexpr bool also_stored(id i, id reader) const {
    if (readers[i] < 2) return false;
    int by_reader = 0;
    for (id r = i + 1; r < g.size; ++r)
      for (int k = 0; k < 3; ++k) {
        if (g[r].operand(k) != i) continue;
        if (r != reader && reaches(r)) return false;
        by_reader += r == reader ? 1 : 0;
      }
    return by_reader == 1;
  }
  [[gnu::cold]] constexpr bool reaches(id from) const {  // true where the result depends on node `from`
    node_set above(g.size);
    above.add(from);
    for (id n = from + 1; n <= result; ++n)
      for (int k = 0; k < 3; ++k)
        if (const id o = g[n].operand(k); o >= 0 && above[o]) above.add(n);
    return above[result];
  }
  constexpr bool product(id i) const {
    const node& v = g[i];
    return v.what == op::matmul && !v.ta && !v.sum && data(v.a) && is_precomputed(v.b) && one_matrix(v) &&
           one_matrix(g[v.b]);
  }
  constexpr bool per_column(id i) const { return is_precomputed(i) && one_matrix(g[i]) && g[i].d[2] == dim{1}; }
  constexpr bool take(id i) { return out.inside.push(i), true; }
  [[gnu::cold]] constexpr bool branch(id i, bool minus, id factor) {
    const node& v = g[i];
    if (with_branches && v.what == op::matmul && shrinks[v.a]) {
      out.branches.push({none_id, v.b, true, v.tb, minus, factor, v.a, false, false, true, g[v.a].d[3]});
      return take(i);
    }
    const bool stores = stores_shrink(v.a);
    if (!with_branches || is_leaf(g[v.a].what) || (!has_one_reader(v.a) && !stores)) return false;
    const node& s = g[v.a];
    const bool low_rank = product(v.a), folded = s.what == op::fold_columns && data(s.a) && one_matrix(s) && !stores;
    if (!low_rank && (!folded || v.what == op::repeat)) return false;
    if (out.x >= 0 && out.x != s.a) return false;  // the branch reads another x
    low_rank_branch b;
    b.b = v.b, b.b_out_major = v.tb, b.minus = minus, b.factor = factor, b.rank = s.d[3], b.s = v.a,
    b.stores_shrink = stores;
    if (low_rank) b.a = s.b, b.a_rank_major = s.tb;
    out.x = s.a;
    out.branches.push(b);
    return take(v.a) && take(i);
  }
  [[gnu::cold]] constexpr bool term(id i, bool minus, id factor, bool root) {
    const node& v = g[i];
    if (!data(i) || is_leaf(v.what) || (!root && !has_one_reader(i))) return false;
    if ((v.what == op::add || v.what == op::sub) && data(v.a) && data(v.b) && factor < 0)
      return term(v.a, minus, factor, false) && term(v.b, minus != (v.what == op::sub), factor, false) && take(i);
    if (v.what == op::mul && factor < 0) {
      const id value = data(v.a) ? v.a : v.b, number = data(v.a) ? v.b : v.a;
      return is_precomputed(number) && is_scalar(g[number]) && term(value, minus, number, false) && take(i);
    }
    const bool repeated = v.what == op::repeat && data(v.a) && one_matrix(v);
    if (!product(i) && !repeated) return false;
    if (branch(i, minus, factor)) return true;
    if (repeated) return false;
    if (out.weight >= 0 || minus || factor >= 0 || (out.x >= 0 && out.x != v.a)) return false;
    out.x = v.a, out.weight = v.b, out.weight_is_nt = v.tb;
    return take(i);
  }
  [[gnu::cold]] constexpr bool affine(id i, bool root) {
    const node& v = g[i];
    if (!data(i) || is_leaf(v.what) || (!root && !has_one_reader(i))) return false;
    const bool any = v.what == op::add || v.what == op::sub || v.what == op::mul || v.what == op::div;
    const bool left = any && data(v.a) && per_column(v.b);
    const bool right = (v.what == op::add || v.what == op::mul) && per_column(v.a) && data(v.b);
    if (!left && !right) return term(i, false, none_id, root);
    const id below = left ? v.a : v.b;
    if (also_stored(below, i))
      out.pre_epilogue = below;
    else if (!has_one_reader(below))
      return false;
    if (out.pre_epilogue == below ? !term(below, false, none_id, true) : !affine(below, false)) return false;
    out.epilogue_steps.push({v.what, left ? v.b : v.a});
    return take(i);
  }
  [[gnu::cold]] constexpr bool activated(id i, bool root) {
    const node& v = g[i];
    if (!is_activation(v.what)) return affine(i, root);
    if ((!root && !has_one_reader(i)) || !affine(v.a, false)) return false;
    out.act = v.what;
    return take(i);
  }
  [[gnu::cold]] constexpr bool rotated_result(id i) {
    const node& v = g[i];
    if (!data(v.a) || !is_precomputed(v.b) || !one_matrix(v)) return false;
    const bool others = also_stored(v.a, i);
    if ((!others && !has_one_reader(v.a)) || !term(v.a, false, none_id, true)) return false;
    if (out.weight < 0 || out.weight_is_nt || !out.branches.empty() || base_leaf(g, out.weight) < 0) return false;
    out.output_rotation = v.a, out.pre_epilogue = others ? v.a : none_id;
    return take(i);
  }
  [[gnu::cold]] constexpr bool with_residual(id i) {
    const gemm_slots before = out;
    if (activated(i, true) && out.weight >= 0) return true;
    const node v = g[i];
    if (v.what != op::add || !data(v.a) || !data(v.b) || !same_shape(g[v.a], v) || !same_shape(g[v.b], v)) return false;
    for (int k = 0; k < 2; ++k) {
      out = before;
      if (activated(v.operand(k), false) && out.weight >= 0) {
        out.residual = v.operand(1 - k);
        absorb_residual_branches();
        return take(i);
      }
    }
    return false;
  }
  [[gnu::cold]] constexpr void absorb_residual_branches() {
    while (out.epilogue_steps.empty() && out.act == op::detach) {
      const id sum = out.residual;
      const node& v = g[sum];
      if (v.what != op::add || !has_one_reader(sum) || !data(v.a) || !data(v.b)) return;
      if (!same_shape(g[v.a], v) || !same_shape(g[v.b], v)) return;
      bool taken = false;
      for (int k = 0; k < 2 && !taken; ++k) {
        const id summand = v.operand(k);
        taken = product(summand) && has_one_reader(summand) && branch(summand, false, none_id);
        if (taken) out.residual = v.operand(1 - k), take(sum);
      }
      if (!taken) return;
    }
  }
  [[gnu::cold]] constexpr void read_prologue(bool with_branch, bool norms) {
    if (is_leaf(g[out.x].what) || (!with_branch && !out.branches.empty())) return;
    const node& v = g[out.x];
    int uses = 1;
    for (const low_rank_branch& b : out.branches) uses += b.computes_shrink ? 1 : 0;
    if (v.what != op::mul || readers[out.x] != uses) return;
    const bool left = data(v.a) && per_column(v.b), right = per_column(v.a) && data(v.b);
    if (!left && !right) return;
    if (norms && g[left ? v.a : v.b].what == op::normalize) return;
    take(out.x);
    out.scaled = out.x, out.prologue = left ? v.b : v.a, out.x = left ? v.a : v.b;
  }
  [[gnu::cold]] constexpr void read_rotation() {
    const node& v = g[out.x];
    if (v.what != op::rotate || out.prologue >= 0 || !out.branches.empty()) return;
    if (!has_one_reader(out.x) || !data(v.a) || !is_precomputed(v.b) || !one_matrix(v)) return;
    out.input_rotation = out.x, out.x = v.a;
  }
};
[[gnu::cold]] constexpr sequence<int> count_readers(const graph& g, const node_set& live) {
  sequence<int> readers(g.size, 0);
  for (id i = 0; i < g.size; ++i)
    for (int k = 0; live[i] && k < 3; ++k)
      if (const id o = g[i].operand(k); o >= 0) ++readers[o];
  for (int k = 0; k < g.outs; ++k) ++readers[g.out[k].at];
  return readers;
}
}  // namespace detail
[[gnu::cold]] constexpr gemm_slots gemm_at(const graph& g, const stages& when, const sequence<int>& readers,
                                           const wgrad_readers& sums, const node_set& shrinks, id i,
                                           const gemm_slot_capabilities& can, bool norms) {
  if (!when.has_token_rows[i] || !detail::one_matrix(g[i])) return {};
  for (const bool with_branches : {true, false}) {
    detail::gemm_matcher r{g, when, readers, sums, shrinks, i, with_branches};
    const bool rotates = g[i].what == op::rotate && can.fuses_output_rotation;
    if (rotates ? !r.rotated_result(i) : !r.with_residual(i)) continue;
    if (exposes_shrink(r.out) && r.out.branches.size() > 1) continue;  // U of several branches is one matrix
    const bool weight_is_nn = !r.out.weight_is_nt && base_leaf(g, r.out.weight) >= 0;  // the launch reads it as stored
    if (weight_is_nn && !can.reads_nn_weight) return {};
    r.out.found = true, r.out.result = i;
    if (can.fuses_prologue) r.read_prologue(can.prologue_with_branch, norms);
    if (can.fuses_input_rotation) r.read_rotation();
    return static_cast<gemm_slots&&>(r.out);
  }
  return {};
}
[[gnu::cold]] constexpr long long branch_rank(const graph& g, const gemm_slots& p, const size_values& s) {
  long long rank = 0;
  for (const low_rank_branch& b : p.branches) {
    const long long r = g.sizes.value(b.rank, s);
    if (r == unknown) return unknown;
    rank += r;
  }
  return rank;
}
}  // namespace graft
namespace graft {
struct dropout_gemm {
  struct capabilities {
    bool has_kernel = false;  // narrow GEMMs apply dropout
  };
  struct work {};
  static constexpr bool by_nodes = true;
  enum class form : unsigned char { none, shrink, sum, expand };
  form form_kind = form::none;
  id result = none_id, wide = none_id;  // wide: x, or `other` of an expand
  id product = none_id, dropout = none_id;
  id narrow = none_id;            // T, [tokens, rank]
  id factor = none_id;            // A, which is precomputed
  bool factor_rank_major = true;  // A is stored [rank, columns], else [columns, rank]
  sequence<id> inside{};          // every node of the launch
  constexpr bool found() const { return form_kind != form::none; }
  constexpr id anchor() const { return product; }
  constexpr const char* name(const graph&) const { return "GEMM"; }
  template <class Facts> constexpr int kernels(const Facts& in) const {
    return element_count(in.g, result, in.s) == 0 ? 0 : 1;
  }
  template <class Planner> static constexpr void match(Planner& by);
  template <class Planner> static constexpr void add(Planner& by, int index, id i);
};
namespace detail {
struct dropout_matcher {
  const graph& g;
  const stages& when;
  const sequence<int>& readers;
  constexpr bool data(id i) const { return i >= 0 && when.of[i] == stage::call; }
  constexpr bool is_precomputed(id i) const { return i >= 0 && when.of[i] != stage::call && one_matrix(g[i]); }
  constexpr bool drops(id i) const {
    return data(i) && g[i].what == op::dropout && readers[i] == 1 && when.has_token_rows[i] && one_matrix(g[i]);
  }
  constexpr bool multiplies(id i) const { return data(i) && g[i].what == op::matmul && !g[i].sum && one_matrix(g[i]); }
  constexpr bool is_narrow(id i) const {
    int times = 0;
    for (id r = i + 1; r < g.size; ++r)
      if (multiplies(r))
        times += (g[r].a == i && (g[r].ta || is_precomputed(g[r].b)) ? 1 : 0) + (g[r].b == i && g[r].ta ? 1 : 0);
    for (int k = 0; k < g.outs; ++k) times += g.out[k].at == i ? 1 : 0;
    return times == readers[i];
  }
  static constexpr dropout_gemm with_nodes(dropout_gemm d) {
    const bool is_expand = d.form_kind == dropout_gemm::form::expand;
    d.inside.push(is_expand ? d.product : d.dropout), d.inside.push(is_expand ? d.dropout : d.product);
    if (is_expand) d.inside.push(d.result);
    return d;
  }
  constexpr dropout_gemm at(id i) const {
    using form = dropout_gemm::form;
    const node& v = g[i];
    if (multiplies(i) && !v.ta && drops(v.a) && is_precomputed(v.b) && is_narrow(i))
      return with_nodes({form::shrink, i, g[v.a].a, i, v.a, none_id, v.b, v.tb});
    if (multiplies(i) && v.ta && !v.tb && drops(v.b) && data(v.a) && when.has_token_rows[v.a] && one_matrix(g[v.a]))
      return with_nodes({form::sum, i, g[v.b].a, i, v.b, v.a});
    for (int k = 0; v.what == op::add && data(i) && one_matrix(v) && k < 2; ++k) {
      const id term = v.operand(k), other = v.operand(1 - k), p = drops(term) ? g[term].a : none_id;
      if (!multiplies(p) || readers[p] != 1 || g[p].ta || !is_precomputed(g[p].b) || !data(g[p].a)) continue;
      if (!data(other) || !same_shape(g[other], v)) continue;
      return with_nodes({form::expand, i, other, p, term, g[p].a, g[p].b, !g[p].tb});
    }
    return {};
  }
};
}  // namespace detail
[[gnu::cold]] constexpr sequence<dropout_gemm> find_dropout_gemms(const graph& g, const stages& when,
                                                                  const sequence<int>& readers, sequence<int>& of) {
  sequence<dropout_gemm> all;
  const detail::dropout_matcher r{g, when, readers};
  for (id i = 0; i < g.size; ++i) {
    const dropout_gemm d = r.at(i);
    if (!d.found()) continue;
    bool free = true;
    for (const id n : d.inside) free = free && of[n] < 0;
    if (!free) continue;
    for (const id n : d.inside) of[n] = all.size();
    all.push(d);
  }
  return all;
}
[[gnu::cold]] constexpr node_set dropout_shrinks(const graph& g, const sequence<dropout_gemm>& dropout_gemms) {
  node_set shrinks(g.size);
  for (const dropout_gemm& d : dropout_gemms)
    if (d.form_kind == dropout_gemm::form::shrink) shrinks.add(d.result);
  return shrinks;
}
namespace detail {
constexpr bool is_bare(const gemm_slots& p) {
  return p.branches.empty() && p.epilogue_steps.empty() && p.act == op::detach && p.prologue < 0 &&
         p.input_rotation < 0 && p.output_rotation < 0 && p.pre_epilogue < 0;
}
}  // namespace detail
[[gnu::cold]] constexpr sequence<gemm_slots> with_dropout_shrinks(const graph& g, const sequence<int>& readers,
                                                                  const sequence<dropout_gemm>& dropout_gemms,
                                                                  sequence<gemm_slots> products) {
  sequence<int> narrow(g.size, 0);  // how many dropout GEMMs read a value as T
  for (const dropout_gemm& d : dropout_gemms)
    if (d.narrow >= 0) ++narrow[d.narrow];
  node_set gone(products.size());
  for (int k = 0; k < products.size(); ++k) {
    const gemm_slots& t = products[k];
    if (narrow[t.result] == 0 || narrow[t.result] != readers[t.result] || !detail::is_bare(t) || t.residual >= 0)
      continue;
    for (gemm_slots& host : products) {
      if (host.x != t.x || !detail::is_bare(host) || host.weight_is_nt || base_leaf(g, host.weight) < 0) continue;
      if (dependencies(g, host.result)[t.result]) continue;  // it depends on T itself
      low_rank_branch branch;
      branch.a = t.weight, branch.a_rank_major = t.weight_is_nt, branch.s = t.result, branch.rank = g[t.result].d[3];
      branch.stores_shrink = true, branch.expands = false;
      host.branches.push(branch);
      for (const id i : t.inside) host.inside.push(i);
      gone.add(k);
      break;
    }
  }
  sequence<gemm_slots> left;
  for (int k = 0; k < products.size(); ++k)
    if (!gone[k]) left.push(products[k]);
  return left;
}
template <class Planner> [[gnu::cold]] constexpr void dropout_gemm::match(Planner& by) {
  if (!by.template can<dropout_gemm>().has_kernel) return;
  sequence<int> of(by.g.size, -1);
  by.p.template all<dropout_gemm>() = find_dropout_gemms(by.g, by.p.when, by.readers, of);
  for (id i = 0; i < by.g.size; ++i)
    if (of[i] >= 0) by.template claim<dropout_gemm>(i, of[i]), ++by.readers[i];
}
template <class Planner> [[gnu::cold]] constexpr void dropout_gemm::add(Planner& by, int index, id i) {
  const dropout_gemm& d = by.p.template all<dropout_gemm>()[index];
  if (d.result != i || !by.template computed<dropout_gemm>(d.inside, index)) return;
  by.template open<dropout_gemm>(index);
  for (const id n : d.inside)
    by.add(n, by.g[n].what == op::matmul    ? (d.form_kind == form::sum ? launch_slot::reduce : launch_slot::mainloop)
              : d.form_kind == form::expand ? launch_slot::epilogue
                                            : launch_slot::prologue);
}
}  // namespace graft
namespace graft {
inline constexpr int max_expression_steps = 48, max_expression_operands = 16, max_expression_depth = 8;
inline constexpr int max_expression_depth_by_token = 6;
namespace detail {
constexpr bool is_elementwise_function(op o) { return is_pointwise(o) && o != op::dropout; }
constexpr bool is_elementwise_or_transpose(op o) { return is_elementwise_function(o) || o == op::transpose; }
struct expression_size {
  int steps = 1, operands = 0, depth = 1;
};
constexpr expression_size size_of_expression(const graph& g, const node_set& inside, id root) {
  sequence<expression_size> of(root + 1, expression_size{1, 1, 1});  // initially the size of a value that is read
  for (id i = 0; i <= root; ++i) {
    if (!inside[i]) continue;
    expression_size s{1, 0, 0};
    for (int k = 0, before = 0; k < 3; ++k) {
      const id o = g[i].operand(k);
      if (o < 0) continue;
      s.steps += of[o].steps, s.operands += of[o].operands;
      s.depth = of[o].depth + before > s.depth ? of[o].depth + before : s.depth;
      ++before;
    }
    of[i] = s;
    if (s.steps > max_expression_steps) of[i].steps = max_expression_steps + 1;
    if (s.operands > max_expression_operands) of[i].operands = max_expression_operands + 1;
  }
  return of[root];
}
}  // namespace detail
struct expression_finder {
  const graph& g;
  const stages& when;
  const sequence<int>& readers;
  node_set free;           // nodes that no launch computes yet
  node_set recomputed{};   // unclaimed nodes that every reader recomputes
  node_set from_memory{};  // operands of expressions, which must be stored
  [[gnu::cold]] constexpr expression_finder(const graph& of, const stages& s, const sequence<int>& counted,
                                            const node_set& not_taken)
      : g(of), when(s), readers(counted), free(not_taken), recomputed(of.size), from_memory(of.size) {
    sequence<id> origin(g.size, none_id);
    for (id i = 0; i < g.size; ++i) {
      if (when.of[i] == stage::call) origin[i] = i;
      if (can_join(i, i) && when.has_token_rows[i]) origin[i] = origin_of(i, origin);
      recomputed.in[i] = origin[i] >= 0 && origin[i] != i;
    }
    for (id r = 0; r < g.size; ++r)
      for (int k = 0; when.of[r] == stage::call && k < 3; ++k)
        if (const id o = g[r].operand(k); recomputed[o]) recomputed.in[o] = can_join(o, r);
    for (int k = 0; k < g.outs; ++k) recomputed.in[g.out[k].at] = false;
    for (id i = g.size - 1; i >= 0; --i)  // a node with one reader that is computed once needs no recomputation
      if (recomputed[i] && readers[i] == 1 && !read_again(i)) recomputed.in[i] = false;
  }
  [[gnu::cold]] constexpr sequence<id> at(id root) {
    sequence<id> nodes;
    node_set inside(g.size);
    inside.add(root);
    nodes.push(root);
    const bool has_token_rows = when.has_token_rows[root], sums = !has_token_rows && g[root].what == op::sum_to;
    const int deepest = has_token_rows ? max_expression_depth_by_token : max_expression_depth;
    for (id n = root - 1; n >= 0 && (sums || can_join(root, root)); --n) {
      if (!can_join(n, root) || !all_inside(n, root, inside)) continue;
      inside.add(n);
      const detail::expression_size s = detail::size_of_expression(g, inside, root);
      if (s.steps > max_expression_steps || s.operands > max_expression_operands || s.depth > deepest)
        inside.in[n] = false;
      else
        nodes.push(n);
    }
    for (const id n : nodes)
      for (int k = 0; k < 3; ++k)
        if (const id o = g[n].operand(k); o >= 0 && !inside[o]) from_memory.add(o), recomputed.in[o] = false;
    for (const id n : nodes)
      if (!recomputed[n]) free.in[n] = false;
    if (nodes.size() == 1) nodes.clear();
    return nodes;
  }
 private:
  constexpr bool can_join(id n, id root) const {
    if (!free[n] || !free[root] || when.has_token_rows[n] != when.has_token_rows[root]) return false;
    return when.has_token_rows[root] ? detail::is_elementwise_function(g[n].what) &&
                                           detail::is_elementwise_function(g[root].what) && same_shape(g[n], g[root])
                                     : detail::is_elementwise_or_transpose(g[n].what);
  }
  constexpr id origin_of(id i, const sequence<id>& origin) const {
    id one = none_id;
    for (int k = 0; k < 3; ++k) {
      const id o = g[i].operand(k);
      if (o < 0 || when.of[o] != stage::call) continue;
      if (!same_shape(g[o], g[i]) || (one >= 0 && one != origin[o])) return i;
      one = origin[o];
    }
    return one < 0 ? i : one;
  }
  constexpr bool read_again(id i) const {
    for (id r = i + 1; r < g.size; ++r)
      for (int k = 0; recomputed[r] && k < 3; ++k)
        if (g[r].operand(k) == i) return true;
    return false;
  }
  constexpr bool all_inside(id n, id root, const node_set& inside) const {
    int times = 0;
    for (id r = n + 1; r <= root; ++r)
      for (int k = 0; inside[r] && k < 3; ++k) times += g[r].operand(k) == n ? 1 : 0;
    if (times == 0 || recomputed[n]) return times > 0;
    return times == readers[n] && !from_memory[n] && !read_again(n);
  }
};
struct expression_launch {
  struct capabilities {
    bool fused = false;  // pointwise operations are fused
    target_function<bool(const graph&, id, const size_values&, dtype, const target&)> gate_wgrad_is_fused{};
  };
  struct work {
    sequence<sequence<id>> expressions;
    sequence<int> second;  // by expression: the other expression of its launch; -1: none
  };
  id root = none_id;
  id paired_root = none_id;       // the second value that it computes from the operands of the first
  int gate_wgrads[2] = {-1, -1};  // column wgrads of these two values, possibly fused: indices of wgrad_launch
  constexpr id anchor() const { return root; }
  constexpr const char* name(const graph& g) const { return launch_name_of(g[root]); }
  template <class F> constexpr void each_wgrad(int, F f) const {
    for (const int k : gate_wgrads)
      if (k >= 0) f(k);
  }
  template <class Facts> constexpr int kernels(const Facts& in) const {
    const auto& fused = in.p.to.template can<expression_launch>().gate_wgrad_is_fused;
    const bool separate = gate_wgrads[0] >= 0 && (!fused || !fused(in.g, root, in.s, in.type, in.p.to));
    return nodes_launch::kernels_of(in, root) + (separate ? 2 : 0);
  }
  template <class Planner> [[gnu::cold]] static constexpr void match(Planner& by) {
    if (!by.template can<expression_launch>().fused) return;
    auto& all = by.template work<expression_launch>().expressions;
    expression_finder finder(by.g, by.p.when, by.readers, by.free_nodes());
    for (id i = by.g.size - 1; i >= 0; --i) {
      if (!finder.free[i] || finder.recomputed[i]) continue;
      sequence<id> nodes = finder.at(i);
      if (!nodes.empty()) all.push(static_cast<sequence<id>&&>(nodes));
    }
    for (int e = 0; e < all.size(); ++e)
      for (const id n : all[e])
        if (n == all[e][0] || (by.is_free(n) && !finder.from_memory[n])) by.template claim<expression_launch>(n, e);
    find_pairs(by);
  }
  template <class Planner> [[gnu::cold]] static constexpr void add(Planner& by, int index, id i) {
    const auto& w = by.template work<expression_launch>();
    if (w.expressions[index][0] != i || !by.computed(w.expressions[index])) return;
    auto& all = by.p.template all<expression_launch>();
    by.template open<expression_launch>(all.size());
    all.push({i});
    add_nodes(by, index);
    const int second = w.second[index];
    if (second < 0 || by.p.launch_of[w.expressions[second][0]] >= 0) return;
    all.back().paired_root = w.expressions[second][0];
    add_nodes(by, second);
    all.back().add_gate_wgrads(by);
  }
 private:
  template <class Planner> [[gnu::cold]] static constexpr void find_pairs(Planner& by) {
    const graph& g = by.g;
    const sequence<sequence<id>>& all = by.template work<expression_launch>().expressions;
    sequence<int>& second = by.template work<expression_launch>().second;
    second = sequence<int>(all.size(), -1);
    sequence<bool> taken(all.size(), false);
    sequence<node_set> reads;
    for (const sequence<id>& nodes : all) {
      node_set inside(g.size), from(g.size);
      for (const id n : nodes) inside.add(n);
      for (const id n : nodes)
        for (int k = 0; k < 3; ++k)
          if (const id o = g[n].operand(k); o >= 0 && !inside[o]) from.add(o);
      reads.push(static_cast<node_set&&>(from));
    }
    for (int e = 0; e < all.size(); ++e)
      for (int other = 0; other < all.size() && !taken[e] && second[e] < 0; ++other) {
        if (other == e || taken[other] || second[other] >= 0 || !by.p.when.has_token_rows[all[e][0]]) continue;
        bool fits = by.p.when.has_token_rows[all[other][0]] && same_shape(g[all[e][0]], g[all[other][0]]), made = false;
        for (id i = 0; i < g.size; ++i) {
          if (reads[e][i]) fits = fits && reads[other][i], made = made || by.member(i);
          if (reads[other][i] && !reads[e][i]) fits = fits && !by.member(i);
        }
        if (fits && made) second[e] = other, taken[other] = true;
      }
  }
  template <class Planner> [[gnu::cold]] static constexpr void add_nodes(Planner& by, int e) {
    const sequence<id>& nodes = by.template work<expression_launch>().expressions[e];
    for (int k = nodes.size() - 1; k >= 0; --k)
      by.add(nodes[k], launch_slot::standalone, by.template claimed<expression_launch>(nodes[k]) == e);
  }
  template <class Planner> [[gnu::cold]] constexpr void add_gate_wgrads(Planner& by) {
    const graph& g = by.g;
    const auto& sums = by.p.template all<wgrad_launch>();
    const id both[2] = {root, paired_root};
    int found[2] = {-1, -1};
    for (int b = 0; b < 2; ++b)
      for (int k = 0; k < sums.size(); ++k)
        if (const wgrad_launch& s = sums[k];
            s.by_column && s.scaled >= 0 && s.left == both[b] && by.readers[both[b]] == 2 && is_leaf(g[s.right].what))
          found[b] = k;
    bool by_silu = false;
    by.each_node([&](id n) { by_silu = by_silu || g[n].what == op::silu; });
    if (found[0] < 0 || found[1] < 0 || !by_silu) return;
    for (int b = 0; b < 2; ++b) sums[gate_wgrads[b] = found[b]].add_nodes(by);
  }
};
}  // namespace graft
namespace graft {
struct low_rank_update {
  bool found = false;
  id base = none_id, product = none_id, left = none_id, right = none_id;
  bool left_transposed = false, right_by_row = false;  // P is stored [rank, out]; Q is stored [in, rank]
  bool adds = false;                                   // W' is W + P Q
};
constexpr bool is_update_elementwise(const graph& g, id i) {
  return is_pointwise(g[i].what) && g[i].what != op::dropout && !is_scalar(g[i]);
}
namespace detail {
constexpr bool find_updated(const graph& g, id w, id i, low_rank_update& to) {
  if (is_scalar(g[i])) return !g[i].from_base;
  if (!same_shape(g[w], g[i])) return false;
  const node& v = g[i];
  if (v.what == op::base) return to.base < 0 && (to.base = i, true);
  if (v.what == op::matmul) {
    if (to.product >= 0 || v.sum || g[v.a].from_base || g[v.b].from_base) return false;
    to.product = i, to.left = v.a, to.right = v.b, to.left_transposed = v.ta, to.right_by_row = v.tb;
    return true;
  }
  if (!is_update_elementwise(g, i)) return false;
  for (int k = 0; k < 3; ++k)
    if (const id o = v.operand(k); o >= 0 && !find_updated(g, w, o, to)) return false;
  return true;
}
}  // namespace detail
[[gnu::cold]] constexpr low_rank_update low_rank_update_at(const graph& g, id w) {
  low_rank_update to;
  if (w < 0 || g[w].d[0] != dim{1} || g[w].d[1] != dim{1} || !detail::find_updated(g, w, w, to)) return {};
  to.found = to.base >= 0 && to.product >= 0 && to.product != w;
  to.adds = g[w].what == op::add && (g[w].a == to.base || g[w].b == to.base) &&
            (g[w].a == to.product || g[w].b == to.product);
  return to.found ? to : low_rank_update{};
}
}  // namespace graft
namespace graft {
struct fused_wgrad_shape {
  int columns = 0, rank = 0;      // columns of Z and of Q; columns 0: no wgrad; rank 0: a sum per column
  bool waits_for_shrink = false;  // Q is the shrink result of the GEMM
  friend constexpr bool operator==(const fused_wgrad_shape&, const fused_wgrad_shape&) = default;
};
struct gemm_problem {
  dtype type = dtype::bf16;
  long long m = 0;
  int n = 0, k = 0;
  int rank = 0;                      // total rank of the low-rank branches; 0: none
  bool aligned = true;               // all pointers are multiples of 16 bytes
  bool plain = true;                 // neither activation nor residual
  bool epilogue_steps = false;       // there is a factor or a summand per output column
  bool prologue = false;             // there is a factor per column of x
  bool nn = false;                   // W is stored [in, out] and read in that layout
  bool stores_shrink = false;        // U is stored besides y
  bool stores_pre_epilogue = false;  // the accumulators before the epilogue are stored besides y
  bool outputs_shrink = false;       // U is an output of the graph, without padding
  bool shrink_input = false;         // U comes from an earlier launch, without padding
  long long output_rotation = 0;     // columns that the rotation of y mixes; 0: there is none
  fused_wgrad_shape fused_wgrads[2]{};
  quant_format stored{};  // format of a quantized weight
  constexpr bool stores_extra() const { return stores_shrink || stores_pre_epilogue; }
};
constexpr gemm_problem shape_of(const graph& g, const gemm_slots& p, const size_values& s, dtype type,
                                const quant_format& stored = {}) {
  auto size = [&](id i, int axis) { return g.sizes.value(g[i].d[axis], s); };
  gemm_problem shape;
  shape.type = type;
  shape.m = size(p.result, 2);
  shape.n = static_cast<int>(size(p.weight, p.weight_is_nt ? 2 : 3));
  shape.k = static_cast<int>(size(p.weight, p.weight_is_nt ? 3 : 2));
  shape.rank = static_cast<int>(branch_rank(g, p, s));
  shape.plain = p.act == op::detach && p.residual < 0;
  shape.epilogue_steps = !p.epilogue_steps.empty();
  shape.prologue = p.prologue >= 0;
  shape.nn = !p.weight_is_nt && (base_leaf(g, p.weight) >= 0 || low_rank_update_at(g, p.weight).found);
  if (base_leaf(g, p.weight) >= 0) shape.stored = stored;
  for (const low_rank_branch& b : p.branches) {
    shape.stores_shrink = shape.stores_shrink || b.stores_shrink;
    shape.outputs_shrink = shape.outputs_shrink || (b.stores_shrink && is_output(g, b.s));
    shape.shrink_input = shape.shrink_input || !b.computes_shrink;
  }
  shape.stores_pre_epilogue = p.pre_epilogue >= 0;
  if (p.output_rotation >= 0) shape.output_rotation = rotation_width(size(g[p.result].b, 0), size(g[p.result].b, 3));
  return shape;
}
constexpr fused_wgrad_shape shape_of(const graph& g, const gemm_slots& host, const wgrad_launch& sum,
                                     const size_values& s) {
  const int left = static_cast<int>(g.sizes.value(g[sum.left].d[3], s)),
            right = static_cast<int>(g.sizes.value(g[sum.right].d[3], s));
  if (sum.by_column) return {left, 0, false};
  const id shrink = host.branches.empty() ? none_id : host.branches[0].s;
  return {left >= right ? left : right, left >= right ? right : left,
          shrink >= 0 && (sum.left == shrink || sum.right == shrink)};
}
}  // namespace graft
namespace graft {
struct kronecker_chain {
  struct capabilities {
    int max_size = 0;  // largest matrix; 0: there is no kernel
  };
  struct work {};
  static constexpr bool by_nodes = true;
  id result = none_id, between = none_id;  // D, and L Z or Z R
  id z = none_id, left = none_id, right = none_id;
  bool left_transposed = false, right_transposed = false;  // stored as Lᵀ, as Rᵀ
  id x = none_id, other = none_id;                         // X, and X Rᵀ; none: there are no gradients
  id left_sum = none_id, right_sum = none_id;              // E, F
  constexpr bool found() const { return result >= 0; }
  constexpr bool sums() const { return x >= 0; }
  constexpr sequence<id> inside() const {
    sequence<id> all;
    all.push(between), all.push(result);
    if (sums()) all.push(other), all.push(left_sum), all.push(right_sum);
    return all;
  }
  constexpr id anchor() const { return result; }
  constexpr const char* name(const graph&) const { return "GEMM"; }
  template <class Facts> constexpr int kernels(const Facts& in) const;
  template <class Planner> static constexpr void match(Planner& by);
  template <class Planner> static constexpr void add(Planner& by, int index, id i);
};
namespace detail {
struct chain_matcher {
  const graph& g;
  const stages& when;
  const sequence<int>& readers;
  constexpr bool is_precomputed(id i) const { return when.of[i] != stage::call && one_matrix(g[i]); }
  constexpr bool is_stack(id i) const {
    return when.of[i] == stage::call && g[i].d[0] == dim{1} && g[i].d[1] != dim{1};
  }
  constexpr bool multiplies(id i) const {
    return i >= 0 && g[i].what == op::matmul && when.of[i] == stage::call && !is_output(g, i);
  }
  constexpr kronecker_chain at(id i) const {
    const node& v = g[i];
    if (!multiplies(i) || v.sum || !is_stack(i)) return {};
    kronecker_chain c;
    const bool right_last = is_stack(v.a) && is_precomputed(v.b);
    c.between = right_last ? v.a : v.b;
    if ((!right_last && !(is_precomputed(v.a) && is_stack(v.b))) || !multiplies(c.between)) return {};
    const node& m = g[c.between];
    if (m.sum || (right_last ? v.ta || m.tb || !is_precomputed(m.a) || !is_stack(m.b)
                             : v.tb || m.ta || !is_precomputed(m.b) || !is_stack(m.a)))
      return {};
    c.z = right_last ? m.b : m.a;
    c.left = right_last ? m.a : v.a, c.left_transposed = right_last ? m.ta : v.ta;
    c.right = right_last ? v.b : m.b, c.right_transposed = right_last ? v.tb : m.tb;
    if (readers[c.between] == 1) return c.result = i, c;
    if (right_last) match_wgrads(c);
    if (c.sums()) c.result = i;
    return c;
  }
  constexpr void match_wgrads(kronecker_chain& c) const {
    id e = none_id, f = none_id, u = none_id;
    for (id i = c.between + 1; i < g.size; ++i) {
      const node& v = g[i];
      if (v.what != op::matmul || !v.sum || when.of[i] != stage::call) continue;
      if (v.a == c.between && v.ta && !v.tb && is_stack(v.b)) f = i;
      if (v.a == c.z && !v.ta && v.tb && multiplies(v.b)) e = i, u = v.b;
    }
    if (e < 0 || f < 0 || readers[c.between] != 2 || readers[u] != 1 || g[u].sum) return;
    const node& v = g[u];
    if (v.a != g[f].b || v.b != c.right || v.ta || v.tb == c.right_transposed) return;
    c.x = v.a, c.other = u, c.left_sum = e, c.right_sum = f;
  }
};
}  // namespace detail
[[gnu::cold]] constexpr sequence<kronecker_chain> find_kronecker_chains(const graph& g, const stages& when,
                                                                        const sequence<int>& readers,
                                                                        sequence<int>& of) {
  sequence<kronecker_chain> all;
  const detail::chain_matcher r{g, when, readers};
  for (id i = 0; i < g.size; ++i) {
    const kronecker_chain c = r.at(i);
    if (!c.found()) continue;
    bool free = true;
    for (const id n : c.inside()) free = free && of[n] < 0;
    if (!free) continue;
    for (const id n : c.inside()) of[n] = all.size();
    all.push(c);
  }
  return all;
}
struct chain_sizes {
  long long left_rows = 0, rows = 0, columns = 0,
            right_columns = 0;  // L is [left_rows, rows], R [columns, right_columns]
};
constexpr chain_sizes chain_sizes_of(const graph& g, const kronecker_chain& c, const size_values& s) {
  auto size = [&](id i, int axis) { return g.sizes.value(g[i].d[axis], s); };
  return {size(c.result, 2), size(c.z, 2), size(c.z, 3), size(c.result, 3)};
}
constexpr bool fuses_chain(const graph& g, const kronecker_chain& c, const size_values& s, dtype type,
                           const kronecker_chain::capabilities& can) {
  const chain_sizes n = chain_sizes_of(g, c, s);
  const long long most = can.max_size;
  return (type == dtype::bf16 || type == dtype::f16) && n.left_rows <= most && n.rows <= most && n.columns <= most &&
         n.right_columns <= most && n.columns % 8 == 0 && n.right_columns % 8 == 0;
}
template <class Facts> constexpr int kronecker_chain::kernels(const Facts& in) const {
  if (fuses_chain(in.g, *this, in.s, in.type, in.p.to.template can<kronecker_chain>()))
    return element_count(in.g, result, in.s) == 0 ? 0 : sums() ? 2 : 1;
  int n = 0;
  for (const id i : inside()) n += nodes_launch::kernels_of(in, i);
  return n;
}
template <class Planner> [[gnu::cold]] constexpr void kronecker_chain::match(Planner& by) {
  if (by.template can<kronecker_chain>().max_size == 0) return;
  sequence<int> of(by.g.size, -1);
  by.p.template all<kronecker_chain>() = find_kronecker_chains(by.g, by.p.when, by.readers, of);
  for (id i = 0; i < by.g.size; ++i)
    if (of[i] >= 0) by.template claim<kronecker_chain>(i, of[i]);
}
template <class Planner> [[gnu::cold]] constexpr void kronecker_chain::add(Planner& by, int index, id i) {
  const kronecker_chain& c = by.p.template all<kronecker_chain>()[index];
  if (c.result != i || !by.template computed<kronecker_chain>(c.inside(), index)) return;
  by.template open<kronecker_chain>(index);
  for (const id n : c.inside())
    by.add(n, n == c.result                         ? launch_slot::mainloop
              : n == c.left_sum || n == c.right_sum ? launch_slot::reduce
                                                    : launch_slot::prologue);
}
}  // namespace graft
namespace graft {
inline constexpr int max_stack_steps = 16, max_stack_operands = 8, max_stack_slots = 12;
struct matrix_stack {
  struct capabilities {
    int max_size = 0;  // largest matrix; 0: there is no kernel
  };
  struct work {};
  sequence<id> inside, operands;     // nodes in order of computation; what they read, without scalars
  sequence<int> slot, operand_slot;  // the matrix slot of each node and operand; a slot is reused after its last reader
  int slots = 0;
  constexpr id anchor() const { return inside[inside.size() - 1]; }
  constexpr const char* name(const graph&) const { return "GEMM"; }
  template <class Facts> constexpr int kernels(const Facts& in) const;
  template <class Planner> static constexpr void match(Planner& by);
  template <class Planner> static constexpr void add(Planner& by, int index, id i);
};
namespace detail {
struct stack_matcher {
  const graph& g;
  const stages& when;
  const node_set& free;  // nodes that no other launch computes
  constexpr bool square(id i) const {
    const node& v = g[i];
    return v.d[2] == v.d[3] && v.d[2] != dim{1};
  }
  constexpr bool reads(const node& like, id o) const { return same_shape(g[o], like) || is_scalar(g[o]); }
  constexpr bool can_join(id i) const {
    const node& v = g[i];
    if (!free[i] || when.has_token_rows[i]) return false;
    if (v.what == op::unskew) return square(v.a);
    if (!square(i)) return false;
    if (v.what == op::matmul) return !v.sum && same_shape(g[v.a], v) && same_shape(g[v.b], v);
    if (v.what == op::transpose || v.what == op::strict_upper) return true;
    return (v.what == op::add || v.what == op::sub || v.what == op::mul) && reads(v, v.a) && reads(v, v.b);
  }
  [[gnu::cold]] constexpr bool closed(const node_set& in) const {
    node_set after(g.size);
    for (id i = 0; i < g.size; ++i)
      for (int k = 0; k < 3; ++k)
        if (const id o = g[i].operand(k); o >= 0) {
          if (in[i] && !in[o] && after[o]) return false;
          if ((in[o] || after[o]) && !in[i]) after.add(i);
        }
    return true;
  }
  [[gnu::cold]] constexpr void assign_slots(matrix_stack& s) const {
    sequence<int> last(g.size, -1);  // the step that reads it last
    node_set known(g.size);
    for (int k = 0; k < s.inside.size(); ++k)
      for (int n = 0; n < 3; ++n)
        if (const id o = g[s.inside[k]].operand(n); o >= 0) last[o] = k;
    for (const id i : s.inside) known.add(i);
    sequence<int> busy;  // by slot: the step of its last reader
    for (const id i : s.inside)
      for (int n = 0; n < 3; ++n)
        if (const id o = g[i].operand(n); o >= 0 && !known[o] && !is_scalar(g[o]))
          known.add(o), s.operands.push(o), s.operand_slot.push(busy.size()), busy.push(last[o]);
    for (int k = 0; k < s.inside.size(); ++k) {
      int at = 0;
      while (at < busy.size() && busy[at] >= k) ++at;
      if (at == busy.size()) busy.push(k);
      s.slot.push(at), busy[at] = last[s.inside[k]];
    }
    s.slots = busy.size();
  }
  [[gnu::cold]] constexpr bool fits(const matrix_stack& s, const node_set& in) const {
    int products = 0;
    for (const id i : s.inside) products += g[i].what == op::matmul ? 1 : 0;
    return products > 1 && s.inside.size() <= max_stack_steps && s.operands.size() <= max_stack_operands &&
           s.slots <= max_stack_slots && closed(in);
  }
};
}  // namespace detail
[[gnu::cold]] constexpr sequence<matrix_stack> find_matrix_stacks(const graph& g, const stages& when,
                                                                  const node_set& free, sequence<int>& of) {
  sequence<matrix_stack> all;
  const detail::stack_matcher f{g, when, free};
  sequence<id> root(g.size, none_id);  // connected nodes have one root
  for (id i = 0; i < g.size; ++i) {
    if (!f.can_join(i)) continue;
    root[i] = i;
    for (int k = 0; k < 3; ++k)
      if (const id o = g[i].operand(k); o >= 0 && root[o] >= 0 && root[o] != root[i]) {
        const id from = root[i], to = root[o];
        for (id& r : root) r = r == from ? to : r;
      }
  }
  for (id first = 0; first < g.size; ++first) {
    if (root[first] < 0) continue;
    matrix_stack s;
    node_set in(g.size);
    for (id i = first; i < g.size; ++i)
      if (root[i] == root[first]) s.inside.push(i), in.add(i);
    const id mine = root[first];
    for (id& r : root) r = r == mine ? none_id : r;
    f.assign_slots(s);
    if (!f.fits(s, in)) continue;
    for (const id i : s.inside) of[i] = all.size();
    all.push(static_cast<matrix_stack&&>(s));
  }
  return all;
}
constexpr bool fuses_stack(const graph& g, const matrix_stack& s, const size_values& sizes,
                           const matrix_stack::capabilities& can) {
  for (const id i : s.inside)
    if (g[i].what == op::matmul) return g.sizes.value(g[i].d[3], sizes) <= can.max_size;
  return false;
}
template <class Facts> constexpr int matrix_stack::kernels(const Facts& in) const {
  if (fuses_stack(in.g, *this, in.s, in.p.to.template can<matrix_stack>()))
    return element_count(in.g, anchor(), in.s) == 0 ? 0 : 1;
  int n = 0;
  for (const id i : inside) n += nodes_launch::kernels_of(in, i);
  return n;
}
template <class Planner> [[gnu::cold]] constexpr void matrix_stack::match(Planner& by) {
  if (by.template can<matrix_stack>().max_size == 0) return;
  sequence<int> of(by.g.size, -1);
  by.p.template all<matrix_stack>() = find_matrix_stacks(by.g, by.p.when, by.free_nodes(), of);
  for (id i = 0; i < by.g.size; ++i)
    if (of[i] >= 0) by.template claim<matrix_stack>(i, of[i]);
}
template <class Planner> [[gnu::cold]] constexpr void matrix_stack::add(Planner& by, int index, id) {
  const matrix_stack& s = by.p.template all<matrix_stack>()[index];
  if (!by.template computed<matrix_stack>(s.inside, index)) return;
  by.template open<matrix_stack>(index);
  for (const id n : s.inside) by.add(n, launch_slot::standalone);
}
}  // namespace graft
namespace graft {
constexpr bool can_be_grouped(const gemm_slots& p) {
  return p.pre_epilogue < 0 && !exposes_shrink(p) && p.weight_is_nt && p.prologue < 0 && p.residual < 0;
}
[[gnu::cold]] constexpr sequence<sequence<int>> group_products(const sequence<gemm_slots>& products, int most) {
  sequence<sequence<int>> groups;
  for (int k = 0; k < products.size(); ++k) {
    sequence<int> single;
    single.push(k);
    groups.push(single);
  }
  node_set taken(products.size());
  for (int k = products.size() - 1; k >= 0; --k) {  // products are stored from the last one to the first
    if (taken[k] || !can_be_grouped(products[k])) continue;
    sequence<int> group;
    for (int other = k; other >= 0 && group.size() < most; --other)
      if (!taken[other] && products[other].x == products[k].x && can_be_grouped(products[other])) group.push(other);
    for (const int member : group) taken.add(member), groups[member] = group;
  }
  return groups;
}
constexpr id gate_of(const graph& g, const sequence<int>& readers, const gemm_slots& p, const gemm_slots& q) {
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    const bool of_both =
        v.what == op::mul && ((v.a == p.result && v.b == q.result) || (v.a == q.result && v.b == p.result));
    if (!of_both || readers[p.result] != 1 || readers[q.result] != 1) continue;
    bool same = true;
    for (int axis = 0; axis < 4; ++axis)
      same = same && v.d[axis] == g[p.result].d[axis] && v.d[axis] == g[q.result].d[axis];
    if (same) return i;
  }
  return none_id;
}
[[gnu::cold]] constexpr sequence<int> wgrad_fusion(const graph& g, const sequence<gemm_slots>& products,
                                                   const sequence<wgrad_launch>& sums, bool target_can) {
  sequence<int> fused_wgrads(sums.size(), -1);
  if (!target_can) return fused_wgrads;
  auto hosts_column_wgrad = [&](const gemm_slots& p) {
    return p.branches.empty() && !p.weight_is_nt && p.prologue >= 0 && base_leaf(g, p.weight) >= 0;
  };
  auto hosts = [&](const gemm_slots& p) {
    const bool branches = p.branches.size() == 1 && p.branches[0].stores_shrink && !p.weight_is_nt && p.prologue < 0;
    return (branches && base_leaf(g, p.weight) >= 0) || hosts_column_wgrad(p);
  };
  node_set inside(g.size);  // the nodes of all possible hosts
  for (const gemm_slots& p : products)
    for (const id i : p.inside)
      if (hosts(p)) inside.add(i);
  const node_set after = [&] {
    node_set s = inside;
    for (id i = 0; i < g.size; ++i)
      for (int k = 0; k < 3; ++k)
        if (const id o = g[i].operand(k); o >= 0 && s[o]) s.add(i);
    return s;
  }();
  sequence<unsigned> taken(products.size(), 0);  // bit 0: a wgrad that waits for T, bit 1: one that does not
  for (const bool own : {true, false})           // wgrads of the product's own branch come first
    for (int at = 0; at < products.size(); ++at) {
      const gemm_slots& p = products[at];
      if (!hosts(p)) continue;
      const node_set needed = dependencies(g, p.result);
      node_set made(g.size);  // computed by this launch
      for (const id i : p.inside) made.add(i);
      const bool columnwise = hosts_column_wgrad(p);
      const id shrink = columnwise ? none_id : p.branches[0].s;
      auto ready = [&](id i) { return i == shrink || !after[i] || (needed[i] && !made[i]); };
      for (int k = sums.size() - 1; k >= 0; --k) {
        const wgrad_launch& s = sums[k];
        if (s.by_column != columnwise || s.scaled >= 0 || fused_wgrads[k] >= 0 || needed[s.product]) continue;
        const bool waits_for_shrink = s.left == shrink || s.right == shrink;
        if (own && !waits_for_shrink && s.left != p.x && s.right != p.x) continue;
        const unsigned bit = waits_for_shrink ? 1 : 2;
        if ((taken[at] & bit) != 0 || !ready(s.left) || !ready(s.right)) continue;
        if (g[s.left].d[2] != g[p.result].d[2] || g[s.right].d[2] != g[p.result].d[2]) continue;
        fused_wgrads[k] = at, taken[at] |= bit;
      }
    }
  return fused_wgrads;
}
struct gemm_launch {
  struct capabilities : gemm_slot_capabilities {
    int max_branch_rank = 0;    // largest rank of a branch inside a GEMM; larger ones are folded
    int max_grouped_gemms = 1;  // most products of a grouped GEMM
    bool fuses_gates = false;   // grouped GEMMs of two products multiply their results (SwiGLU)
    int resident_pairs = 0;     // clusters of two CTAs of the GEMM kernel that are resident at once
    target_function<int(const gemm_problem&, const target&)> kernels{};
    target_function<text(const gemm_problem&, const target&)> why_several{};
    target_function<int(const gemm_problem*, int count, const target&)> grouped_kernels{};
    target_function<int(const gemm_problem*, const target&)> gated_kernels{};
    target_function<bool(const graph&, const id* rotations, int count, const size_values&, dtype, const target&)>
        rotations_share_kernel{};
    target_function<bool(const gemm_problem&, const target&)> rotation_is_fused{};
  };
  struct work {
    sequence<gemm_slots> products;
    sequence<sequence<int>> groups;
    sequence<id> gates;
  };
  id around = none_id;             // the product with the base weight, or the result
  int product = 0, grouped = 0;    // index of the first product in launch_plan::products, and how many follow it
  id gated = none_id;              // the elementwise product of its two results, which is stored instead of them
  int fused_wgrads[2] = {-1, -1};  // wgrads that run in its launch: indices of wgrad_launch
  constexpr id anchor() const { return around; }
  constexpr const char* name(const graph&) const { return "GEMM"; }
  template <class F> constexpr void each_wgrad(int, F f) const {
    for (const int k : fused_wgrads)
      if (k >= 0) f(k);
  }
  template <class Plan, class F> constexpr void each_further_read(const Plan& p, F f) const {
    each_product([&](int k) { f(p.products[k].x), f(p.products[k].residual); });
  }
  template <class F> constexpr void each_product(F f) const {
    for (int k = product; k <= product + grouped; ++k) f(k);
  }
  template <class Facts> constexpr int kernels(const Facts& in) const {
    const auto& can = in.p.to.template can<gemm_launch>();
    const target& to = in.p.to;
    sequence<gemm_problem> all;
    each_product([&](int k) { all.push(shape_of(in.g, in.p.products[k], in.s, in.type, in.stored)); });
    int n = 0;
    for (int k = 0; k < 2; ++k)
      if (fused_wgrads[k] >= 0)
        all[0].fused_wgrads[k] =
            shape_of(in.g, in.p.products[product], in.p.template all<wgrad_launch>()[fused_wgrads[k]], in.s);
    for (int k = 0; k < all.size(); ++k)
      if (all[k].output_rotation != 0 && (!can.rotation_is_fused || !can.rotation_is_fused(all[k], to)))
        n += nodes_launch::kernels_of(in, in.p.products[product + k].result);
    const int rotations = rotation_kernels(in);  // with rotations the products read different inputs
    const bool gates = gated >= 0 && rotations == 0 && can.gated_kernels,
               can_join = grouped > 0 && can.grouped_kernels &&
                          (rotations == 0 || in.stored.plain());  // quantized grouped GEMMs need one input
    int joint = gates ? can.gated_kernels(all.begin(), to) : 0;
    n += rotations + (gated >= 0 && joint == 0 ? 1 : 0);
    if (joint == 0 && can_join) joint = can.grouped_kernels(all.begin(), all.size(), to);
    if (joint > 0) return n + joint;
    for (const gemm_problem& one : all) n += !can.kernels ? 1 : can.kernels(one, to);
    return n;
  }
  template <class Facts> constexpr text why_several(const Facts& in) const {
    const auto& why = in.p.to.template can<gemm_launch>().why_several;
    return !why ? text{} : why(shape_of(in.g, in.p.products[product], in.s, in.type, in.stored), in.p.to);
  }
  template <class Facts> constexpr int rotation_kernels(const Facts& in) const {
    sequence<id> rotations;
    int n = 0;
    each_product([&](int k) {
      const gemm_slots& of = in.p.products[k];
      if (of.input_rotation < 0) return;
      rotations.push(of.input_rotation);
      n += nodes_launch::kernels_of(in, of.input_rotation);
    });
    const auto& shared = in.p.to.template can<gemm_launch>().rotations_share_kernel;
    return n > 0 && shared && shared(in.g, rotations.begin(), rotations.size(), in.s, in.type, in.p.to) ? 1 : n;
  }
  template <class Planner> [[gnu::cold]] static constexpr void match(Planner& by) {
    const graph& g = by.g;
    const auto& can = by.template can<gemm_launch>();
    auto& w = by.template work<gemm_launch>();
    auto& sums = by.p.template all<wgrad_launch>();
    const auto& dropouts = by.p.template all<dropout_gemm>();
    const auto claim_all = [&](int k) {
      for (const id inside : w.products[k].inside) by.template claim<gemm_launch>(inside, k);
      if (const id x = w.products[k].input_rotation; x >= 0) by.template claim<gemm_launch>(x, k);
    };
    wgrad_readers by_sums(g.size);
    for (const wgrad_launch& s : sums) by_sums.add(s);
    const node_set shrinks = dropout_shrinks(g, dropouts);
    for (id i = g.size - 1; i >= 0; --i) {
      if (!by.is_free(i)) continue;
      const gemm_slots s =
          gemm_at(g, by.p.when, by.readers, by_sums, shrinks, i, can, by.template can<rowwise_launch>().fused);
      if (!s.found) continue;
      w.products.push(s), claim_all(w.products.size() - 1);
    }
    w.products = with_dropout_shrinks(g, by.readers, dropouts, static_cast<sequence<gemm_slots>&&>(w.products));
    for (int k = 0; k < w.products.size(); ++k) claim_all(k);
    for (int k = 0; k < sums.size(); ++k)
      for (id i = 0; i < g.size; ++i)
        if (by.is_free(i) && absorb_scaled_operand(g, by.p.when, i, sums[k])) by.template claim<wgrad_launch>(i, k);
    by.template work<wgrad_launch>().host =
        wgrad_fusion(g, w.products, sums, by.template can<wgrad_launch>().fuses_into_dgrad);
    w.groups = group_products(w.products, can.max_grouped_gemms);
    w.gates = sequence<id>(w.products.size(), none_id);
    for (int k = 0; can.fuses_gates && k < w.products.size(); ++k)
      if (w.groups[k].size() == 2 && w.groups[k][0] == k)
        if (const id gate = gate_of(g, by.readers, w.products[k], w.products[w.groups[k][1]]);
            gate >= 0 && by.is_free(gate))
          w.gates[k] = gate, by.template claim<gemm_launch>(gate, k);
  }
  template <class Planner> [[gnu::cold]] static constexpr void add(Planner& by, int index, id i) {
    const auto& w = by.template work<gemm_launch>();
    if (w.products[index].result != i) return;
    const sequence<int>& group = w.groups[index];
    for (const int member : group)
      if (!inputs_computed(by, member)) return;
    auto& all = by.p.template all<gemm_launch>();
    by.template open<gemm_launch>(all.size());
    all.push({i, by.p.products.size(), group.size() - 1});
    for (const int member : group) all.back().add_product(by, member);
    if (const id gate = w.gates[group[0]]; gate >= 0) all.back().gated = gate, by.add(gate, launch_slot::epilogue);
  }
 private:
  template <class Planner> [[gnu::cold]] static constexpr bool inputs_computed(const Planner& by, int member) {
    const gemm_slots& s = by.template work<gemm_launch>().products[member];
    const auto& sums = by.p.template all<wgrad_launch>();
    if (!by.template computed<gemm_launch>(s.inside, member)) return false;
    if (s.input_rotation >= 0 && !by.template computed<gemm_launch>(s.input_rotation, member)) return false;
    for (int k = 0; k < sums.size(); ++k)
      if (by.template work<wgrad_launch>().host[k] == member &&
          !by.template computed<gemm_launch>(sums[k].product, member))
        return false;
    return true;
  }
  template <class Planner> [[gnu::cold]] constexpr void add_product(Planner& by, int index) {
    const graph& g = by.g;
    const gemm_slots& s = by.template work<gemm_launch>().products[index];
    by.p.products.push(s);
    node_set inside(g.size);
    for (const id i : s.inside) inside.add(i);
    const id x = s.prologue >= 0 ? s.scaled : s.input_rotation >= 0 ? s.input_rotation : s.x;
    if (s.input_rotation >= 0) by.add(s.input_rotation, launch_slot::prologue);
    for (id i = 0; i < g.size; ++i) {
      if (!inside[i]) continue;
      const node& v = g[i];
      const bool base = v.what == op::matmul && v.b == s.weight && v.a == x;
      const bool branch = v.what == op::fold_columns || v.what == op::repeat || v.what == op::matmul;
      by.add(i, base            ? launch_slot::mainloop
                : branch        ? launch_slot::branch
                : i == s.scaled ? launch_slot::prologue
                                : launch_slot::epilogue);
      if (base && product == by.p.products.size() - 1) around = i;
    }
    const auto& host = by.template work<wgrad_launch>().host;
    for (int k = 0, n = 0; k < host.size(); ++k)
      if (host[k] == index) fused_wgrads[n++] = k, by.p.template all<wgrad_launch>()[k].add_nodes(by);
  }
};
}  // namespace graft
namespace graft {
template <class... Kinds> struct kind_list {
  static constexpr int count = sizeof...(Kinds);
  template <class Kind>
  static constexpr int index_of = [] {
    int k = 0, found = -1;
    ((found = std::is_same_v<Kind, Kinds> ? k : found, ++k), ...);
    return found;
  }();
  template <class F> static constexpr void each(F f) { (f(static_cast<Kinds*>(nullptr)), ...); }
  template <class F> static constexpr void only(int k, F f) {
    ((k == index_of<Kinds> ? f(static_cast<Kinds*>(nullptr)) : void()), ...);
  }
  template <template <class> class For> struct values : For<Kinds>... {};
};
using launch_kinds = kind_list<dropout_gemm, kronecker_chain, wgrad_launch, gemm_launch, expert_gemm, matrix_stack,
                               rowwise_launch, expression_launch, attention_launch, nodes_launch, rows_launch>;
namespace detail {
template <class Kind> struct capabilities_of { typename Kind::capabilities capabilities{}; };
template <class Kind> struct work_of { typename Kind::work work{}; };
template <class Kind> struct list_of { sequence<Kind> list; };
}  // namespace detail
}  // namespace graft
namespace graft {
namespace detail {
struct planner;  // plan/fuse.h
}
struct target {
  enum class work : unsigned char { by_rows, by_products, by_nodes };  // how nodes are gathered into launches
  const char* name = "";
  work granularity = work::by_rows;
  target_function<void(const detail::planner&)> fuse_products{};
  int capability = 0;                  // CUDA compute capability, 90 for 9.0; 0: a CPU
  int sm_count = 0;                    // SMs
  double bytes_per_second = 0;         // memory bandwidth of a long copy; 0: unknown
  double flops_per_second = 0;         // peak flop/s of GEMMs; 0: unknown
  double launch_overhead_seconds = 0;  // per kernel in a sequence of kernels
  launch_kinds::values<detail::capabilities_of> capabilities{};
  template <class Kind> constexpr const typename Kind::capabilities& can() const {
    return static_cast<const detail::capabilities_of<Kind>&>(capabilities).capabilities;
  }
  template <class Kind> constexpr typename Kind::capabilities& can() {
    return static_cast<detail::capabilities_of<Kind>&>(capabilities).capabilities;
  }
  constexpr bool is_graph_break(op what) const {
    return what == op::host || (can<nodes_launch>().runs && !can<nodes_launch>().runs(what));
  }
  constexpr bool is_cpu() const { return capability == 0; }
};
inline constexpr target cpu_target{.name = "cpu"};
inline constexpr target eager_target{.name = "eager", .granularity = target::work::by_nodes};
}  // namespace graft
namespace graft {
template <class Layer, const target& To = cpu_target> struct plan_of;  // plan/facts.h
namespace detail {
template <class Layer> struct without_adapter;
}
namespace diagnostic {
template <std::size_t N> struct str { char s[N]{}; };
template <str> struct expression {};
template <char...> struct spelled {};
#if defined(__clang__)
template <class, int... I> struct positions {};
template <const text& T, int... I> constexpr spelled<T.s[I]...> letters(positions<int, I...>) { return {}; }
template <const text& T> constexpr auto quoted() { return letters<T>(__make_integer_seq<positions, int, T.n>{}); }
#else
template <const text& T> constexpr auto quoted() {
  constexpr auto cut = [] {
    str<array_size(T.n + 1)> r{};
    for (int i = 0; i < T.n; ++i) r.s[i] = T.s[i];
    return r;
  }();
  return expression<cut>{};
}
#endif
template <class...> inline constexpr bool supported = false;
template <class Layer, class Adapter, class Expression, int formula_line, long long left_columns, long long right_rows>
struct inner_sizes_differ : plan_of<Layer> {
  static_assert(left_columns == right_rows,
                "graft: this matrix product does not fit: make the columns of the left operand equal to the rows of "
                "the right operand (inner_sizes_differ lists layer, adapter, expression, line of the formula, columns, "
                "rows)");
};
template <class Layer, class Adapter, class Expression, int formula_line, long long left, long long right>
struct sizes_differ : plan_of<Layer> {
  static_assert(left == right,
                "graft: these operands do not fit: make the two sizes equal (sizes_differ lists layer, adapter, "
                "expression, line of the formula, size on the left, size on the right)");
};
template <class Layer, class Adapter, class Expression, int formula_line, long long rows, long long columns>
struct matrix_is_not_square : plan_of<Layer> {
  static_assert(rows == columns,
                "graft: an inverse, a Neumann series or a rotation needs square matrices: make rows and columns equal "
                "(matrix_is_not_square lists layer, adapter, matrix, line of the formula, rows, columns)");
};
template <class Layer, class Adapter, class Expression, int formula_line, long long size, long long divisor>
struct size_is_not_divisible : plan_of<Layer> {
  static_assert(divisor > 0 && size % (divisor > 0 ? divisor : 1) == 0,
                "graft: this division leaves a remainder: choose a block size or factor that divides the size of the "
                "layer (size_is_not_divisible lists layer, adapter, expression, line of the formula, size, divisor)");
};
template <class Layer, class Adapter, class Expression, int formula_line, long long size, long long limit>
struct size_is_too_large : plan_of<Layer> {
  static_assert(size <= limit,
                "graft: this takes more than there is: choose a start and a size within the operand "
                "(size_is_too_large lists layer, adapter, expression, line of the formula, size, limit)");
};
template <class Layer, class Adapter, class Expression, int formula_line, long long size>
struct size_is_not_positive : plan_of<Layer> {
  static_assert(size > 0,
                "graft: this size must be at least 1, or dyn where it is known only at run time (size_is_not_positive "
                "lists layer, adapter, tensor or size, line of the formula, value)");
};
template <class Layer, class Adapter, class Expression, int formula_line, long long size, long long expected>
struct formula_changes_the_shape : plan_of<Layer> {
  static_assert(size == expected,
                "graft: the formula must return a weight of the shape of W and a bias of the shape of b "
                "(formula_changes_the_shape lists layer, adapter, expression, line of the formula, size, expected "
                "size)");
};
template <class Layer, class Adapter, class Expression, int formula_line, int graph_breaks>
struct host_function_breaks_the_graph : plan_of<Layer> {
  static_assert(graph_breaks == 0,
                "graft: fullgraph, but a host function cannot become part of a kernel: write it with the operations of "
                "the language, or drop fullgraph and run the layer in eager mode (host_function_breaks_the_graph lists "
                "layer, adapter, expression, line of the formula, number of breaks)");
};
template <class Layer, class Adapter, class Expression, int formula_line, int graph_breaks>
struct type_erased_adapter_breaks_the_graph : plan_of<Layer> {
  static_assert(graph_breaks == 0,
                "graft: fullgraph, but the formula of a type-erased adapter is not known while compiling: name the "
                "adapter's type in the layer, or drop fullgraph and run the layer in eager mode "
                "(type_erased_adapter_breaks_the_graph lists layer, adapter, expression, line of the formula, number "
                "of breaks)");
};
template <class Layer, class Adapter, class Expression, int formula_line, int graph_breaks>
struct data_dependent_size_breaks_the_graph : plan_of<Layer> {
  static_assert(graph_breaks == 0,
                "graft: fullgraph, but a number of rows depends on the data: keep every row and multiply the unwanted "
                "ones by 0, or drop fullgraph and run the layer in eager mode (data_dependent_size_breaks_the_graph "
                "lists layer, adapter, expression, line of the formula, number of breaks)");
};
template <class Layer, class Adapter, class Reason, int kernels> struct more_than_one_kernel : plan_of<Layer> {
  static_assert(
      kernels == 1,
      "graft: one_kernel, but a forward call takes more kernels on this target: change what the reason names, "
      "or drop one_kernel (more_than_one_kernel lists layer, adapter, reason, number of kernels)");
};
template <class Layer, class Type> struct not_an_element_type : plan_of<Layer> {
  static_assert(supported<Type>,
                "graft: this is not an element type: use float, double, bf16, nf4<Block> or int8 (not_an_element_type "
                "lists layer, type)");
};
template <class Layer, class Type> struct not_an_adapter : plan_of<detail::without_adapter<Layer>> {
  static_assert(supported<Type>,
                "graft: this is not an adapter: it needs a static constexpr const char* name and a static constexpr ex "
                "weight(scope, ex) that the compiler can evaluate (not_an_adapter lists layer, type)");
};
template <class Layer, class Type> struct not_a_block : plan_of<Layer> {
  static_assert(supported<Type>,
                "graft: this is not a block: it needs a static constexpr const char* name and a static constexpr ex "
                "run(block_scope, ex) that the compiler can evaluate (not_a_block lists a stand-in, type)");
};
template <class Layer, class Adapter, class Expression, int formula_line> struct not_differentiable : plan_of<Layer> {
  static_assert(supported<Expression>,
                "graft: training, but this has no gradient: write it with the operations of the language, or put "
                "detach() around it to make it a constant of the backward pass (not_differentiable lists layer, "
                "adapter, expression, line of the formula)");
};
template <class Layer, class Block, class Expression, int formula_line, int operations>
struct no_kernel_on_this_target : plan_of<Layer> {
  static_assert(
      supported<Expression>,
      "graft: fullgraph, but this target has no kernel for an operation of the block: choose a target that has "
      "one, such as the CPU (no_kernel_on_this_target lists block, block, expression, line of the formula, "
      "number of such operations)");
};
template <class Layer, class Block, class Method, int formula_line>
struct not_on_experts : plan_of<detail::without_adapter<Layer>> {
  static_assert(supported<Method>,
                "graft: this method does not exist on the experts of a mixture: its formula has tensors that are no "
                "matrices, or operations that are not those of one expert's matrix, or it changes the bias: use LoRA, "
                "DoRA or another method there (not_on_experts lists a stand-in, block, method, line of the formula)");
};
template <class Layer, class Adapter> struct formula_is_too_large : plan_of<detail::without_adapter<Layer>> {
  static_assert(supported<Adapter>,
                "graft: this formula, or what is derived from it, takes more steps than the compiler allows for a "
                "constant expression: shorten the formula, or raise the limit (g++: -fconstexpr-ops-limit, "
                "-fconstexpr-depth; clang: -fconstexpr-steps, -fconstexpr-depth) (formula_is_too_large lists layer, "
                "adapter)");
};
template <class Layer, class Adapter, int names>
struct formula_has_too_many_sizes : plan_of<detail::without_adapter<Layer>> {
  static_assert(supported<Adapter>,
                "graft: this formula names more sizes than a graph holds: express some of them by others "
                "(formula_has_too_many_sizes lists layer, adapter, names that a graph holds)");
};
template <class Layer, class Adapter, class Name, int formula_line>
struct name_is_taken : plan_of<detail::without_adapter<Layer>> {
  static_assert(supported<Name>,
                "graft: two tensors of this formula have one name but differ in kind or shape: give the second one "
                "another name; \"weight\", \"bias\" and \"x\" belong to the layer itself (name_is_taken lists layer, "
                "adapter, name, line of the formula)");
};
}  // namespace diagnostic
}  // namespace graft
namespace graft {
[[gnu::cold, gnu::noinline]] constexpr long long chain_cost(const graph& g, id w) {
  const node& v = g[w];
  const long long own_count = nominal_count(g, w);
  switch (v.what) {
    case op::add:
    case op::sub: return chain_cost(g, v.a) + chain_cost(g, v.b);
    case op::div: return chain_cost(g, v.a);
    case op::mul:
      if (nominal_count(g, v.a) < own_count) return chain_cost(g, v.b);
      if (nominal_count(g, v.b) < own_count) return chain_cost(g, v.a);
      if (g[v.a].what == op::matmul && g[v.b].what == op::matmul) {
        const node &p = g[v.a], &q = g[v.b];
        const long long rank =
            g.sizes.nominal(p.ta ? g[p.a].d[2] : g[p.a].d[3]) * g.sizes.nominal(q.ta ? g[q.a].d[2] : g[q.a].d[3]);
        return rank * (g.sizes.nominal(v.d[2]) + g.sizes.nominal(v.d[3]));
      }
      return own_count;
    case op::matmul: return chain_cost(g, v.a) + chain_cost(g, v.b);
    case op::transpose: return chain_cost(g, v.a);
    case op::rotate: return chain_cost(g, v.a) + nominal_count(g, v.b);
    case op::repeat: return chain_cost(g, v.a) + g.sizes.nominal(v.d[3]);
    case op::kron:
      return nominal_count(g, v.a) * g.sizes.nominal(g[v.b].d[2]) +
             nominal_count(g, v.b) * g.sizes.nominal(g[v.a].d[3]);
    default: return own_count;
  }
}
[[gnu::cold, gnu::noinline]] constexpr long long base_count(const graph& g, id w) {
  if (!g.n[w].from_base) return 0;
  const node_set s = dependencies(g, w);
  const bool* const in = s.in.data();
  long long most = 0;
  for (id i = 0; i <= w; ++i)
    if (in[i] && g.n[i].what == op::base && nominal_count(g, i) > most) most = nominal_count(g, i);
  return most;
}
constexpr bool worth_precomputing(const graph& g, id w) {
  const long long own_count = nominal_count(g, w);
  if (is_leaf(g.n[w].what) || own_count > chain_cost(g, w)) return false;
  const long long base = base_count(g, w);
  return base == 0 || 4 * own_count <= base;
}
constexpr bool has_shape_of(const builder& g, id a, id w) { return same_shape(g.n[a], g.n[w]); }
constexpr bool is_column(const builder& g, id a) { return g.n[a].d[3] == dim{1} && g.n[a].d[1] == dim{1}; }
constexpr bool is_row(const builder& g, id a) { return g.n[a].d[2] == dim{1} && g.n[a].d[1] == dim{1}; }
constexpr id apply(builder& g, id w, id x, bool transposed = false);
constexpr id absorb_factor(builder& g, op scale_op, id m, id f);
[[gnu::cold, gnu::noinline]] constexpr id apply_kron(builder& g, id w1, id w2, id x) {
  const node p = g.n[w1], q = g.n[w2], in = g.n[x];
  const dim tokens = g.times(in.d[1], in.d[2]);
  const id blocks = make_node::reshape(g, x, {1}, tokens, p.d[3], q.d[3]);  // [tokens, c, d]
  const id right = make_node::matmul(g, blocks, w2, false, true);           // [tokens, c, b]
  const id left = make_node::matmul(g, w1, right);                          // [tokens, a, b]
  return make_node::reshape(g, left, in.d[0], in.d[1], in.d[2], g.times(p.d[2], q.d[2]));
}
[[gnu::cold]] constexpr id apply_scaled(builder& g, op scale_op, id w, id v, id x, bool transposed) {
  if (is_scalar(g.n[v]) && g.is(w, op::kron) && !transposed) {  // s (w1 ⊗ w2) = (s w1) ⊗ w2
    const node k = g.n[w];
    return apply_kron(g, scale_op == op::mul ? make_node::mul(g, k.a, v) : make_node::div(g, k.a, v), k.b, x);
  }
  if (!is_scalar(g.n[v]) || scale_op == op::div)  // simplify() moves scalars that multiply
    if (const id absorbed = absorb_factor(g, scale_op, w, v); absorbed >= 0) return apply(g, absorbed, x, transposed);
  const bool column = is_column(g, v);
  const id factor_row = column ? make_node::as_row(g, v) : v;
  const bool on_output = column != transposed;
  auto scale = [&](id a) {
    return scale_op == op::mul ? make_node::mul(g, a, factor_row) : make_node::div(g, a, factor_row);
  };
  return is_scalar(g.n[v]) || on_output ? scale(apply(g, w, x, transposed)) : apply(g, w, scale(x), transposed);
}
[[gnu::cold, gnu::noinline]] constexpr id apply_hadamard(builder& g, id m1, id m2, id x) {
  const node p = g.n[m1], q = g.n[m2];
  auto rows = [&](id a, bool flipped) { return flipped ? make_node::transpose(g, a) : a; };
  const id left = make_node::row_kron(g, rows(p.a, p.ta), rows(q.a, q.ta));
  const id right = make_node::row_kron(g, rows(p.b, !p.tb), rows(q.b, !q.tb));
  return make_node::matmul(g, make_node::matmul(g, x, right), left, false, true);
}
constexpr id expand_identity(builder& g, id w) {
  const node v = g.n[w];
  if (v.what != op::matmul || v.ta || v.tb) return none_id;
  const node sum = g.n[v.b];
  if ((sum.what != op::sub && sum.what != op::add) || !g.is(sum.a, op::eye) || !g.is(sum.b, op::matmul)) return none_id;
  const node low = g.n[sum.b];
  const id left = make_node::matmul(g, v.a, low.a, false, low.ta);
  const id branch = make_node::matmul(g, left, low.b, false, low.tb);
  return sum.what == op::sub ? make_node::sub(g, v.a, branch) : make_node::add(g, v.a, branch);
}
[[gnu::cold]] constexpr id absorb_factor(builder& g, op scale_op, id m, id f) {
  const node v = g.n[m];
  if (v.from_base) return none_id;
  auto scaled = [&](id operand, bool flipped) {  // `flipped`: the product reads the operand transposed
    const id factor_row = flipped ? make_node::transpose(g, f) : f;
    return scale_op == op::mul ? make_node::mul(g, operand, factor_row) : make_node::div(g, operand, factor_row);
  };
  switch (v.what) {
    case op::matmul:
      if (v.sum) return none_id;
      if (is_row(g, f)) return make_node::matmul(g, v.a, scaled(v.b, v.tb), v.ta, v.tb, v.line);
      return make_node::matmul(g, scaled(v.a, v.ta), v.b, v.ta, v.tb, v.line);
    case op::mul:
    case op::div: {
      const bool first = v.what == op::mul && !has_shape_of(g, v.a, m);
      const id other = first ? v.a : v.b;
      const id inner = absorb_factor(g, scale_op, first ? v.b : v.a, f);
      if (inner < 0) return none_id;
      const bool is_factor = !has_shape_of(g, other, m) && !is_scalar(g.n[other]);
      return is_factor ? absorb_factor(g, v.what, inner, other) : make_node::pointwise(g, v.what, inner, other, v.line);
    }
    case op::add:
    case op::sub: {
      if (!has_shape_of(g, v.a, m) || !has_shape_of(g, v.b, m)) return none_id;
      const id left = absorb_factor(g, scale_op, v.a, f),
               right = left < 0 ? none_id : absorb_factor(g, scale_op, v.b, f);
      return right < 0 ? none_id : make_node::pointwise(g, v.what, left, right, v.line);
    }
    case op::transpose: {
      const id below = absorb_factor(g, scale_op, v.a, make_node::transpose(g, f));
      return below < 0 ? none_id : make_node::transpose(g, below, v.line);
    }
    default: return none_id;
  }
}
constexpr id apply(builder& g, id w, id x, bool transposed) {
  const node v = g.n[w];
  if (v.what == op::eye) return x;
  if (!worth_precomputing(g, w)) switch (v.what) {
      case op::add:
      case op::sub:
        if (!has_shape_of(g, v.a, w) || !has_shape_of(g, v.b, w)) break;
        return make_node::pointwise(g, v.what, apply(g, v.a, x, transposed), apply(g, v.b, x, transposed), v.line);
      case op::mul:
        if (is_scalar(g.n[v.a]) || (!has_shape_of(g, v.a, w) && (is_column(g, v.a) || is_row(g, v.a))))
          return apply_scaled(g, op::mul, v.b, v.a, x, transposed);
        if (is_scalar(g.n[v.b]) || (!has_shape_of(g, v.b, w) && (is_column(g, v.b) || is_row(g, v.b))))
          return apply_scaled(g, op::mul, v.a, v.b, x, transposed);
        if (!transposed && g.is(v.a, op::matmul) && g.is(v.b, op::matmul)) return apply_hadamard(g, v.a, v.b, x);
        break;
      case op::div:
        if (is_scalar(g.n[v.b]) || (!has_shape_of(g, v.b, w) && (is_column(g, v.b) || is_row(g, v.b))))
          return apply_scaled(g, op::div, v.a, v.b, x, transposed);
        break;
      case op::matmul: {
        const id expanded = expand_identity(g, w);
        if (expanded >= 0) return apply(g, expanded, x, transposed);
        if (transposed) return apply(g, v.b, apply(g, v.a, x, !v.ta), !v.tb);
        return apply(g, v.a, apply(g, v.b, x, v.tb), v.ta);
      }
      case op::transpose: return apply(g, v.a, x, !transposed);
      case op::rotate:
        if (transposed) return make_node::rotate(g, apply(g, v.a, x, true), v.b, v.tb, v.line);
        return apply(g, v.a, make_node::rotate(g, x, v.b, !v.tb, v.line), false);
      case op::repeat:
        if (transposed) return make_node::repeat(g, apply(g, v.a, x, true), v.d[3]);
        return apply(g, v.a, make_node::fold_columns(g, x, g.n[v.a].d[3]), false);
      case op::kron:
        if (!transposed) return apply_kron(g, v.a, v.b, x);
        break;
      default: break;
    }
  return make_node::matmul(g, x, w, false, !transposed, v.line);
}
[[gnu::cold]] constexpr id select(builder& g, id w, id ids, bool by_column = false) {
  const node v = g.n[w];
  switch (v.what) {
    case op::add:
    case op::sub:
      if (!has_shape_of(g, v.a, w) || !has_shape_of(g, v.b, w)) break;
      return make_node::pointwise(g, v.what, select(g, v.a, ids, by_column), select(g, v.b, ids, by_column), v.line);
    case op::mul:
    case op::div: {
      const bool first = v.what == op::mul && !has_shape_of(g, v.a, w);
      const id factor = first ? v.a : v.b, matrix = first ? v.b : v.a;
      if (!has_shape_of(g, factor, w) && !is_scalar(g.n[factor]))
        if (const id absorbed = absorb_factor(g, v.what, matrix, factor); absorbed >= 0)
          return select(g, absorbed, ids, by_column);
      if (has_shape_of(g, factor, w) || by_column || (!is_scalar(g.n[factor]) && !is_row(g, factor))) break;
      return make_node::pointwise(g, v.what, select(g, matrix, ids, by_column), factor, v.line);
    }
    case op::matmul:
      if (by_column) return make_node::matmul(g, select(g, v.b, ids, !v.tb), v.a, false, !v.ta);
      return make_node::matmul(g, select(g, v.a, ids, v.ta), v.b, false, v.tb);
    case op::transpose: return select(g, v.a, ids, !by_column);
    case op::rotate:
      if (by_column) break;
      return make_node::rotate(g, select(g, v.a, ids, false), v.b, v.tb, v.line);
    default: break;
  }
  return make_node::gather(g, w, ids, by_column);
}
}  // namespace graft
namespace graft {
constexpr id pushed_transpose(builder& g, id i) {
  if (!g.is(i, op::transpose)) return i;
  const node v = g.n[g.n[i].a];
  auto t = [&](id a) { return make_node::transpose(g, a); };
  if (v.what == op::add) return make_node::add(g, t(v.a), t(v.b));
  if (v.what == op::sub) return make_node::sub(g, t(v.a), t(v.b));
  if (v.what == op::mul && is_scalar(g.n[v.a])) return make_node::mul(g, v.a, t(v.b));
  if (v.what == op::matmul && !v.sum) return make_node::matmul(g, v.b, v.a, !v.tb, !v.ta, v.line);
  return i;
}
[[gnu::cold]] constexpr id row_inner(builder& g, id p, id q, int budget = 12) {
  p = pushed_transpose(g, p);
  q = pushed_transpose(g, q);
  const node v = g.n[p];
  if (budget > 0) switch (v.what) {
      case op::add:
      case op::sub: {
        const id left = row_inner(g, v.a, q, budget - 1), right = row_inner(g, v.b, q, budget - 1);
        return v.what == op::add ? make_node::add(g, left, right) : make_node::sub(g, left, right);
      }
      case op::mul:
        if (is_scalar(g.n[v.a])) return make_node::mul(g, v.a, row_inner(g, v.b, q, budget - 1));
        if (is_scalar(g.n[v.b])) return make_node::mul(g, v.b, row_inner(g, v.a, q, budget - 1));
        break;
      case op::matmul:
        if (!v.ta && nominal_count(g, v.a) < nominal_count(g, p) && !g.n[p].from_base) {
          const node r = g.n[q];
          auto times_A = [&](id m) { return make_node::matmul(g, m, v.b, false, !v.tb); };
          if (r.what == op::add || r.what == op::sub) {
            const id left = row_inner(g, p, r.a, budget - 1), right = row_inner(g, p, r.b, budget - 1);
            return r.what == op::add ? make_node::add(g, left, right) : make_node::sub(g, left, right);
          }
          if (r.what == op::mul && is_scalar(g.n[r.a])) return make_node::mul(g, r.a, row_inner(g, p, r.b, budget - 1));
          if (r.what == op::matmul && !r.ta && nominal_count(g, r.a) < nominal_count(g, q)) {
            const id gram = make_node::matmul(g, r.b, v.b, r.tb, !v.tb);  // A Aᵀ, r x r
            return make_node::row_dot(g, v.a, make_node::matmul(g, r.a, gram));
          }
          return make_node::row_dot(g, v.a, times_A(q));
        }
        break;
      default: break;
    }
  const node r = g.n[q];
  const bool splits =
      r.what == op::add || r.what == op::sub || (r.what == op::mul && is_scalar(g.n[r.a])) ||
      (r.what == op::matmul && !r.ta && nominal_count(g, r.a) < nominal_count(g, q) && !g.n[q].from_base);
  if (budget > 0 && splits) return row_inner(g, q, p, budget - 1);
  return make_node::row_dot(g, p, q);
}
[[gnu::cold]] constexpr bool can_add_matrices(const builder& g, id first, const node& v, const sequence<bool>& data) {
  const node& u = g.n[first];
  if (u.what != op::matmul || u.a != v.a || u.ta != v.ta || u.sum || v.sum) return false;
  const bool known = data[u.a] && !data[u.b] && !data[v.b] && u.tb == v.tb && same_shape(g.n[u.b], g.n[v.b]);
  return known || (data[u.b] && data[v.b] && nominal_count(g, u.b) < nominal_count(g, first));
}
constexpr id add_product(builder& g, op sum_op, id sum, const node& product, const sequence<bool>& data) {
  const node u = g.n[sum];
  if (can_add_matrices(g, sum, product, data)) {
    const bool same = u.tb == product.tb;
    auto as_read = [&](const node& m) { return m.tb && !same ? make_node::transpose(g, m.b) : m.b; };
    const id left = as_read(u), right = as_read(product);
    const id both = make_node::pointwise(g, sum_op, left, right, product.line);
    return make_node::matmul(g, u.a, both, u.ta, same && u.tb, product.line);
  }
  if (u.what != op::add) return none_id;
  if (const id right = add_product(g, sum_op, u.b, product, data); right >= 0)
    return make_node::add(g, u.a, right, u.line);
  if (const id left = add_product(g, sum_op, u.a, product, data); left >= 0)
    return make_node::add(g, left, u.b, u.line);
  return none_id;
}
[[gnu::cold]] constexpr id move_scalar(builder& g, const node& v, int k, const sequence<bool>& data) {
  const id scaled = v.operand(k), other = v.operand(1 - k);
  if (!g.is(scaled, op::mul) || !data[scaled]) return none_id;
  const node m = g.n[scaled];
  const id s = is_scalar(g.n[m.a]) ? m.a : m.b, rest = is_scalar(g.n[m.a]) ? m.b : m.a;
  if (!is_scalar(g.n[s]) || data[s]) return none_id;
  const bool takes_it = !data[other] && !g.n[other].from_base;
  const id with = takes_it ? make_node::mul(g, s, other) : other;
  const id product = make_node::matmul(g, k == 0 ? rest : with, k == 0 ? with : rest, v.ta, v.tb, v.line, v.sum);
  return takes_it ? product : make_node::mul(g, product, s);
}
[[gnu::cold]] constexpr id rebuild(builder& g, const node& v, const sequence<bool>& data) {
  switch (v.what) {
    case op::row_dot:
      if (v.a == v.b && g.n[v.a].from_base && !is_leaf(g.n[v.a].what)) return row_inner(g, v.a, v.b);
      break;
    case op::add:
    case op::sub: {
      const node p = g.n[v.b];
      if (p.what != op::matmul) break;
      if (const id folded = add_product(g, v.what, v.a, p, data); folded >= 0) return folded;
      break;
    }
    case op::mul: {
      const bool first = is_scalar(g.n[v.a]);
      const id s = first ? v.a : v.b, m = first ? v.b : v.a;
      if (is_scalar(g.n[s]) && g.is(m, op::matmul) && !data[s]) {
        const node p = g.n[m];
        if (data[p.a] && !data[p.b] && !g.n[p.b].from_base)
          return make_node::matmul(g, p.a, make_node::mul(g, s, p.b), p.ta, p.tb, p.line, p.sum);
      }
      break;
    }
    case op::matmul:
      for (int k = 0; k < 2; ++k)
        if (const id simpler = move_scalar(g, v, k, data); simpler >= 0) return simpler;
      break;
    default: break;
  }
  return g.emit(v);
}
template <class Rule> [[gnu::cold]] constexpr builder rewrite(const builder& from, Rule rule) {
  builder g;
  g.size_list = from.size_list, g.path_list = from.path_list, g.names = from.names;
  g.bad = from.bad;
  const node_set live = reachable(from);
  sequence<id> moved_to(from.n.size(), none_id);
  sequence<bool> data;
  g.reserve(from.n.size()), data.reserve(from.n.size());
  id* const to = moved_to.data();
  const node* const nodes = from.n.data();
  for (id i = 0, end = from.n.size(); i < end; ++i) {
    if (!live.in[i]) continue;
    node v = nodes[i];
    if (v.a >= 0) v.a = to[v.a];
    if (v.b >= 0) v.b = to[v.b];
    if (v.c >= 0) v.c = to[v.c];
    to[i] = rule(g, v, data);
    if (v.orthogonal) g.n[to[i]].orthogonal = true;
    const node* const made = g.n.data();
    for (id k = data.size(), size = g.n.size(); k < size; ++k) {
      const node& m = made[k];
      data.push((m.a < 0 && traits_of(m.what).known_at == stage::call) || (m.a >= 0 && data[m.a]) ||
                (m.b >= 0 && data[m.b]) || (m.c >= 0 && data[m.c]));
    }
  }
  for (const output& o : from.out) g.add_output(to[o.at], o.name, o.path, o.of_input);
  for (requirement r : from.need) {
    r.at = r.at >= 0 ? to[r.at] : none_id;
    g.need.push(r);
  }
  if (g.bad.at >= 0) g.bad.at = to[from.bad.at];
  return g;
}
constexpr builder simplify(const builder& from) { return canonical(rewrite(from, rebuild)); }
[[gnu::cold]] constexpr id rebuild_norm(builder& g, const node& v, const sequence<bool>& data) {
  return v.what == op::row_dot ? rebuild(g, v, data) : g.emit(v);
}
constexpr builder simplify_norms(const builder& from) { return canonical(rewrite(from, rebuild_norm)); }
constexpr id value_rule(builder& g, const node& v, const sequence<bool>&) {
  switch (v.what) {
    case op::detach: return v.a;
    case op::sub: return v.a == v.b ? g.zero_like(v.a) : make_node::sub(g, v.a, v.b, v.line);
    case op::add:
      if (g.is(v.b, op::sub) && g.n[v.b].b == v.a) return g.n[v.b].a;
      return make_node::add(g, v.a, v.b, v.line);
    case op::mul: return make_node::mul(g, v.a, v.b, v.line);
    case op::div: return make_node::div(g, v.a, v.b, v.line);
    case op::matmul: return make_node::matmul(g, v.a, v.b, v.ta, v.tb, v.line, v.sum);
    case op::transpose: return make_node::transpose(g, v.a, v.line);
    case op::reshape: return make_node::reshape(g, v.a, v.d[0], v.d[1], v.d[2], v.d[3], v.line);
    default: return g.emit(v);
  }
}
constexpr builder values_only(const builder& from) { return canonical(rewrite(from, value_rule)); }
}  // namespace graft
namespace graft {
namespace detail {
constexpr bool is_one_matrix(const node& v) { return v.d[0] == dim{1} && v.d[1] == dim{1}; }
constexpr bool is_stored(const builder& g, id i) {
  while (g.is(i, op::reshape)) i = g.n[i].a;
  return is_leaf(g.n[i].what);
}
constexpr id as_single_matmul(builder& g, const node& v) {
  if (v.what != op::mul) return none_id;
  const node p = g.n[v.a], q = g.n[v.b];
  if (p.what == op::matmul && q.what == op::matmul && same_shape(p, q) && is_one_matrix(v)) {
    auto rows = [&](id a, bool flipped) { return flipped ? make_node::transpose(g, a) : a; };
    return make_node::matmul(g, make_node::row_kron(g, rows(p.a, p.ta), rows(q.a, q.ta)),
                             make_node::row_kron(g, rows(p.b, !p.tb), rows(q.b, !q.tb)), false, true, v.line);
  }
  for (int k = 0; k < 2; ++k)
    if (const node m = g.n[v.operand(1 - k)]; is_scalar(g.n[v.operand(k)]) && m.what == op::matmul) {
      auto scaled = [&](id f) {
        const node shape = g.n[f];
        if (shape.what != op::reshape) return make_node::mul(g, v.operand(k), f);
        const id below = make_node::mul(g, v.operand(k), shape.a);  // fuses with the operation below the reshape
        return make_node::reshape(g, below, shape.d[0], shape.d[1], shape.d[2], shape.d[3], shape.line);
      };
      if (is_stored(g, m.a)) return make_node::matmul(g, m.a, scaled(m.b), m.ta, m.tb, v.line, m.sum);
      return make_node::matmul(g, scaled(m.a), m.b, m.ta, m.tb, v.line, m.sum);
    }
  return none_id;
}
constexpr id as_single_reduction(builder& g, const node& v, const sequence<bool>& data) {
  if (!g.is(v.a, op::mul) || !is_one_matrix(g.n[v.a]) || v.d[3] != dim{1} || v.d[2] != g.n[v.a].d[2]) return none_id;
  const node m = g.n[v.a];
  for (int k = 0; k < 2; ++k) {
    const id a = m.operand(1 - k);
    const node sum = g.n[m.operand(k)];
    if (data[a] || sum.what != op::matmul || !sum.ta || sum.tb || sum.sum || !same_shape(g.n[a], m)) continue;
    const node branch = g.n[sum.a];
    if (!data[sum.a] || !data[sum.b] || branch.what != op::matmul || branch.ta || branch.sum || data[branch.b])
      continue;
    const id p = branch.tb ? make_node::transpose(g, branch.b) : branch.b;
    const id both =
        make_node::mul(g, make_node::matmul(g, branch.a, make_node::matmul(g, sum.b, a, false, true), true), p);
    node columns = g.shaped(op::sum_to, both, both);
    columns.d[2] = {1};
    return make_node::reshape(g, g.emit(columns), v.d[0], v.d[1], v.d[2], v.d[3], v.line);
  }
  return none_id;
}
constexpr id pull_out_column_factor(builder& g, const node& v, const sequence<bool>& data) {
  if (v.what != op::matmul || v.sum || !data[v.a] || !g.is(v.b, op::mul)) return none_id;
  const node m = g.n[v.b];
  for (int k = 0; k < 2; ++k) {
    const id f = m.operand(k), rest = m.operand(1 - k);
    if (is_scalar(g.n[f]) || data[f] || !same_shape(g.n[rest], m)) continue;
    if (v.tb && !data[rest] && is_column(g, f) && is_leaf(g.n[rest].what))
      return make_node::mul(g, make_node::matmul(g, v.a, rest, v.ta, v.tb, v.line), make_node::as_row(g, f));
    if (!v.tb && v.ta && data[rest] && is_row(g, f))
      return make_node::mul(g, make_node::matmul(g, v.a, rest, v.ta, v.tb, v.line), f);
  }
  return none_id;
}
constexpr id split_outer_product(builder& g, const node& v, const sequence<bool>& data) {
  for (int k = 0; k < 2; ++k) {
    const id z = v.operand(k);
    const node m = g.n[v.operand(1 - k)];
    if (m.what != op::mul || !data[z] || data[v.operand(1 - k)] || !same_shape(g.n[z], v)) continue;
    if (same_shape(g.n[m.a], m) || same_shape(g.n[m.b], m)) continue;
    return make_node::mul(g, make_node::mul(g, z, m.a, v.line), m.b, v.line);
  }
  return none_id;
}
constexpr id pull_out_scalar(builder& g, const node& v, const sequence<bool>& data) {
  if (!v.ta || v.tb || v.sum || !data[v.b] || !g.is(v.a, op::matmul)) return none_id;
  const node z = g.n[v.a];
  if (z.ta || z.sum || !data[z.a] || data[z.b] || !g.is(z.b, op::mul)) return none_id;
  const node m = g.n[z.b];
  for (int k = 0; k < 2; ++k)
    if (is_scalar(g.n[m.operand(k)]) && is_stored(g, m.operand(1 - k)))
      return make_node::mul(g, m.operand(k),
                            make_node::matmul(g, make_node::matmul(g, z.a, m.operand(1 - k), false, z.tb), v.b, true),
                            v.line);
  return none_id;
}
[[gnu::cold]] constexpr id rebuild_folded(builder& g, const node& v, const sequence<bool>& data) {
  auto is_parameter = [&](id i) { return i < 0 || !data[i]; };
  id made = none_id;
  if (is_parameter(v.a) && is_parameter(v.b) && v.a >= 0) made = as_single_matmul(g, v);
  if (v.what == op::sum_to) made = as_single_reduction(g, v, data);
  if (v.what == op::matmul) made = pull_out_column_factor(g, v, data);
  if (v.what == op::matmul && made < 0) made = pull_out_scalar(g, v, data);
  if (v.what == op::mul && made < 0) made = split_outer_product(g, v, data);
  return made >= 0 ? made : g.emit(v);
}
}  // namespace detail
constexpr builder simplify_folded(const builder& from) { return simplify(rewrite(from, detail::rebuild_folded)); }
}  // namespace graft
namespace graft {
enum class routed_by : unsigned char { token, expert, both, row };
inline constexpr int mixed_axis = -1, summed_axis = -2;
constexpr bool by_expert(const node& v) { return v.k[0] == dim{static_cast<int>(routed_by::expert)}; }
constexpr int axis_after(const graph& g, const node& v, int which, int axis) {
  const bool reduced = v.d[axis] == dim{1} && g[v.operand(which)].d[axis] != dim{1};
  switch (traits_of(v.what).axes) {
    case axis_flow::none: return mixed_axis;
    case axis_flow::elementwise: return axis;
    case axis_flow::mix_last: return axis < 3 ? axis : mixed_axis;
    case axis_flow::mix_last_of_first: return which == 0 && axis < 3 ? axis : mixed_axis;
    case axis_flow::mix_last_of_two: return which != 1 && axis < 3 ? axis : mixed_axis;
    case axis_flow::mix_matrix: return axis < 2 ? axis : mixed_axis;
    case axis_flow::product: {
      if (axis < 2) return v.sum ? summed_axis : axis;
      const bool transposed = which == 0 ? v.ta : v.tb;
      const bool inner = (which == 0) == ((axis == 3) != transposed);
      return inner ? summed_axis : which == 0 ? 2 : 3;
    }
    case axis_flow::transpose: return axis < 2 ? axis : 5 - axis;
    case axis_flow::permute:
      for (int i = 0; i < 4; ++i)
        if (v.k[i].v == axis) return i;
      return mixed_axis;
    case axis_flow::reshape: {  // the outermost axis stays outermost, possibly with a multiple of its size
      const node& a = g[v.a];
      int from = 0, to = 0;
      while (from < 3 && a.d[from] == dim{1}) ++from;
      while (to < 3 && v.d[to] == dim{1}) ++to;
      return axis == from ? to : mixed_axis;
    }
    case axis_flow::mix_axis: return v.k[0].v == axis ? mixed_axis : axis;
    case axis_flow::row_to_matrix: return axis == 2 ? 1 : mixed_axis;
    case axis_flow::matrix_to_row: return axis == 1 ? 2 : mixed_axis;
    case axis_flow::gather: return which == 1 && axis == 3 ? 2 : mixed_axis;
    case axis_flow::row_labels: return which == 1 ? (axis == 3 ? 2 : mixed_axis) : axis < 3 ? axis : mixed_axis;
    case axis_flow::im2col: return axis == 0 ? 1 : mixed_axis;
    case axis_flow::col2im: return axis == 1 ? 0 : mixed_axis;
    case axis_flow::reduce: return reduced ? summed_axis : axis;
    case axis_flow::scatter_add: return axis == (which == 0 ? 2 : 3) ? summed_axis : mixed_axis;
    case axis_flow::sum_into_blocks: return which < 2 && axis < 3 ? summed_axis : mixed_axis;
    case axis_flow::scatter_values: return which == 0 && axis == 2 ? summed_axis : mixed_axis;
    case axis_flow::routed:
    case axis_flow::
        routed_sum: {  // tokens, and the rows that they send to experts, are one axis: each token has k rows
      const bool of_experts =
          v.what == op::grouped_matmul ? which == 1 : v.what == op::dispatch && which == 0 && by_expert(v);
      if (axis != 2 || of_experts) return mixed_axis;
      return v.what == op::grouped_wgrad || (v.what == op::combine && by_expert(v)) ? summed_axis : axis;
    }
    case axis_flow::all: return mixed_axis;
  }
  return mixed_axis;
}
}  // namespace graft
namespace graft {
inline constexpr const char* experts_name = "experts";
namespace router_loss_names {
inline constexpr const char *row_weights = "row_weights", *counts = "router_counts", *sums = "router_sums",
                            *sums_gradient = "drouter_sums";
}
namespace make_node {
constexpr id route(builder& g, id scores, dim k, int line = 0) {
  node v = g.shaped(op::route, scores, scores, none_id, none_id, line);
  v.k[0] = k, v.d[2] = g.times(g.n[scores].d[2], k), v.d[3] = dim{3};
  const id made = g.emit(v);
  g.require(requirement::kind::at_most, k, g.n[scores].d[3], made, line);
  require_one_matrix(g, scores, made, line);
  return made;
}
constexpr id dispatch(builder& g, id from, id routing, routed_by routed, int line = 0) {
  node v = g.shaped(op::dispatch, from, from, routing, none_id, line);
  v.k[0] = dim{static_cast<int>(routed)};
  v.d[0] = v.d[1] = dim{1}, v.d[2] = g.n[routing].d[2];
  if (routed == routed_by::both) v.d[3] = dim{1};
  if (g.is(from, op::zero)) v.what = op::zero, v.a = v.b = none_id, v.k[0] = dim{0}, v.name = "0";
  return g.emit(v);
}
constexpr id combine(builder& g, id rows, id routing, routed_by routed, id like, int line = 0) {
  node v = g.shaped(op::combine, like, rows, routing, none_id, line);
  v.k[0] = dim{static_cast<int>(routed)};
  return g.emit(v);
}
constexpr id grouped_matmul(builder& g, id rows, id w, id routing, bool tb, int line = 0) {
  while (g.is(w, op::transpose)) w = g.n[w].a, tb = !tb;
  const node p = g.n[rows], q = g.n[w];
  if (q.d[1] == dim{1}) return matmul(g, rows, w, false, tb, line);
  node v = g.shaped(op::grouped_matmul, rows, rows, w, routing, line);
  v.tb = tb, v.d[3] = tb ? q.d[2] : q.d[3];
  if (p.what == op::zero || q.what == op::zero)
    v.what = op::zero, v.a = v.b = v.c = none_id, v.tb = false, v.name = "0";
  const id made = g.emit(v);
  g.require(requirement::kind::inner, p.d[3], tb ? q.d[3] : q.d[2], made, line);
  g.require(requirement::kind::same, p.d[2], g.n[routing].d[2], made, line);
  return made;
}
constexpr id grouped_wgrad(builder& g, id a, id b, id routing, id like) {
  return g.emit(g.shaped(op::grouped_wgrad, like, a, b, routing));
}
}  // namespace make_node
}  // namespace graft
namespace graft {
struct attention_options {
  double soft_cap = 0;  // 0: none
  bool sinks = false;
};
constexpr attention_options attention_options_of(const node& v) { return {v.value, v.k[2] == dim{1}}; }
}  // namespace graft
namespace graft::make_node {
constexpr id rope(builder& g, id x, id angles, bool back, int line = 0) {
  node v = g.shaped(op::rope, x, x, angles, none_id, line);
  v.tb = back;
  const id made = g.emit(v);
  const node p = g.n[x], q = g.n[angles];
  g.require(requirement::kind::divides, p.d[3], q.d[3], made, line);
  g.require(requirement::kind::divides, q.d[3], dim{2}, made, line);
  for (int i = 0; i < 3; ++i) g.require(requirement::kind::same, p.d[i], q.d[i], made, line);
  return made;
}
constexpr id attention(builder& g, id qkv, id range, id cache, dim queries, dim head, int line = 0,
                       const attention_options& with = {}) {
  node v = g.shaped(cache < 0 ? op::attention : op::cached_attention, qkv, qkv, range, cache, line);
  v.k[0] = head, v.d[3] = queries;
  v.value = with.soft_cap, v.k[2] = {with.sinks ? 1 : 0};
  const id made = g.emit(v);
  const node all = g.n[qkv], rows = g.n[range];
  if (cache >= 0 || !(rows.d[2] == dim{5})) g.require(requirement::kind::same, rows.d[2], dim{3}, made, line);
  g.require(requirement::kind::same, rows.d[3], all.d[2], made, line);
  require_one_matrix(g, qkv, made, line);
  const dim sinks = with.sinks ? g.over(queries, head, line) : dim{0};
  const dim both = g.minus(g.minus(all.d[3], sinks, line), queries, line);
  g.require(requirement::kind::divides, queries, head, made, line);
  g.require(requirement::kind::divides, both, g.times(dim{2}, head), made, line);
  g.require(requirement::kind::divides, g.times(dim{2}, queries), both, made, line);
  if (cache >= 0) g.require(requirement::kind::same, g.n[cache].d[3], both, made, line);
  return made;
}
constexpr id attention_grad(builder& g, id qkv, id range, id t, id forward) {
  node v = g.shaped(op::attention_grad, qkv, qkv, range, t);
  v.k[0] = g.n[forward].k[0], v.k[1] = g.n[forward].k[1], v.k[2] = g.n[forward].k[2], v.value = g.n[forward].value;
  return g.emit(v);
}
constexpr id dropout(builder& g, id x, id seed, id rate, dim salt, int line = 0) {
  node v = g.shaped(op::dropout, x, x, seed, rate, line);
  v.k[0] = salt;
  return g.emit(v);
}
constexpr id cross_entropy(builder& g, id logits, id labels, int line = 0) {
  node v = g.shaped(op::cross_entropy, logits, logits, labels, none_id, line);
  v.d[3] = dim{1};
  const id made = g.emit(v);
  g.require(requirement::kind::same, g.n[labels].d[3], g.n[logits].d[2], made, line);
  require_one_matrix(g, logits, made, line);
  return made;
}
constexpr id cross_entropy_grad(builder& g, id logits, id labels, id t) {
  return g.emit(g.shaped(op::cross_entropy_grad, logits, logits, labels, t));
}
}  // namespace graft::make_node
namespace graft {
struct adjoints {
  builder& g;
  node_set wanted;  // nodes that lead to an input or a parameter
  sequence<id> d;
  [[gnu::cold, gnu::noinline]] constexpr void push(id to, id value) {
    if (!wanted[to]) return;
    const id fitted = make_node::sum_to(g, value, to);
    d[to] = d[to] < 0 ? fitted : added(d[to], fitted);
  }
  constexpr id added(id sum, id more) {
    const node v = g.n[sum];
    if (g.is(more, op::dropout)) return make_node::add(g, sum, more);
    if (v.what == op::dropout) return make_node::add(g, more, sum);
    return v.what == op::add && g.is(v.b, op::dropout) ? make_node::add(g, added(v.a, more), v.b)
                                                       : make_node::add(g, sum, more);
  }
  constexpr id half_quotient(id t, id v) { return make_node::div(g, make_node::mul(g, g.constant(0.5), t), v); }
  constexpr id gaussian(id x, double k, double c) {
    const id square = make_node::mul(g, g.constant(-k), make_node::mul(g, x, x));
    return make_node::mul(g, g.constant(c), make_node::unary(g, op::exp, square));
  }
  constexpr id silu_slope(id x, id y) {
    const id s = make_node::unary(g, op::sigmoid, x), rest = make_node::sub(g, g.constant(1), s);
    return make_node::add(g, s, make_node::mul(g, y, rest));
  }
  constexpr id gelu_slope(id x) {
    const id inner = make_node::unary(g, op::erf, make_node::mul(g, g.constant(0.70710678118654752440), x));
    const id cumulative = make_node::add(g, g.constant(0.5), make_node::mul(g, g.constant(0.5), inner));
    return make_node::add(g, cumulative, make_node::mul(g, x, gaussian(x, 0.5, 0.39894228040143267794)));
  }
  constexpr id gelu_tanh_slope(id x) {
    const double c = 0.79788456080286535588, k = 0.044715;
    const id square = make_node::mul(g, x, x);
    const id u = make_node::mul(g, x, make_node::add(g, g.constant(c), make_node::mul(g, g.constant(c * k), square)));
    const id du = make_node::add(g, g.constant(c), make_node::mul(g, g.constant(3 * c * k), square));
    const id curve = make_node::unary(g, op::tanh, u);
    const id half = make_node::mul(g, g.constant(0.5), make_node::add(g, curve, g.constant(1)));
    const id rest = make_node::sub(g, g.constant(1), make_node::mul(g, curve, curve));
    return make_node::add(g, half,
                          make_node::mul(g, g.constant(0.5), make_node::mul(g, x, make_node::mul(g, rest, du))));
  }
  [[gnu::cold]] constexpr void matmul(const node& v, id t) {
    const node p = g.n[v.a], q = g.n[v.b];
    auto product = [&](id a, id b, bool ta, bool tb, const node& like) {
      bool shared = false;
      for (int i = 0; i < 2; ++i)
        shared = shared || (like.d[i] == dim{1} && (g.n[a].d[i] != dim{1} || g.n[b].d[i] != dim{1}));
      return make_node::matmul(g, a, b, ta, tb, v.line, shared);
    };
    if (wanted[v.a]) push(v.a, v.ta ? product(v.b, t, v.tb, true, p) : product(t, v.b, false, !v.tb, p));
    if (wanted[v.b]) push(v.b, v.tb ? product(t, v.a, true, v.ta, q) : product(v.a, t, !v.ta, false, q));
  }
  constexpr void orthonormal(id q, const node& v, id t) {
    const dim n = v.d[3];
    const id m = make_node::negate(g, make_node::matmul(g, t, q, true, false));
    const id above = make_node::unary(g, op::strict_upper, make_node::transpose(g, m));
    const id diagonal = make_node::mul(g, m, g.leaf(op::eye, "I", 0, 2, {1}, {1}, n, n));
    const id sym = make_node::add(g, make_node::add(g, above, make_node::transpose(g, above)), diagonal);
    const id back = make_node::inverse(g, make_node::matmul(g, q, v.a, true, false));
    push(v.a, make_node::matmul(g, make_node::add(g, t, make_node::matmul(g, q, sym)), back, false, true));
  }
  constexpr void rotated(const node& v, id t) {
    const id dx = wanted[v.a] ? make_node::rotate(g, t, v.b, !v.tb) : none_id;
    const bool from_dx = dx >= 0 && g.n[v.b].orthogonal && g.n[v.b].d[0] == dim{1};
    if (wanted[v.b]) {
      const id sum = make_node::rotate_grad(g, v.a, from_dx ? dx : t, v.b, v.tb);
      push(v.b, !from_dx ? sum : v.tb ? make_node::matmul(g, v.b, sum) : make_node::matmul(g, sum, v.b));
    }
    if (dx >= 0) push(v.a, dx);
  }
  constexpr void kron(const node& v, id t) {
    const node p = g.n[v.a], q = g.n[v.b];
    const id blocks =
        make_node::permute(g, make_node::reshape(g, t, p.d[2], q.d[2], p.d[3], q.d[3]), 0, 2, 1, 3);  // [a, c, b, d]
    const id flat = make_node::reshape(g, blocks, {1}, {1}, g.times(p.d[2], p.d[3]), g.times(q.d[2], q.d[3]));
    const id w1 = make_node::reshape(g, v.a, {1}, {1}, g.times(p.d[2], p.d[3]), {1});
    const id w2 = make_node::reshape(g, v.b, {1}, {1}, g.times(q.d[2], q.d[3]), {1});
    push(v.a, make_node::reshape_like(g, make_node::matmul(g, flat, w2), v.a));
    push(v.b, make_node::reshape_like(g, make_node::matmul(g, flat, w1, true, false), v.b));
  }
  constexpr void row_kron(const node& v, id t) {
    const node p = g.n[v.a], q = g.n[v.b];
    const id cube = make_node::reshape(g, t, {1}, v.d[2], p.d[3], q.d[3]);
    const id a = make_node::reshape(g, v.a, {1}, v.d[2], p.d[3], {1}),
             b = make_node::reshape(g, v.b, {1}, v.d[2], q.d[3], {1});
    push(v.a, make_node::reshape_like(g, make_node::matmul(g, cube, b), v.a));
    push(v.b, make_node::reshape_like(g, make_node::matmul(g, cube, a, true, false), v.b));
  }
  [[gnu::cold]] constexpr void visit(id i, id t) {
    const node v = g.n[i];
    switch (v.what) {
      case op::input:
      case op::ids:
      case op::state:
      case op::base:
      case op::frozen:
      case op::index:
      case op::param:
      case op::scalar:
      case op::constant:
      case op::number:
      case op::eye:
      case op::zero:
      case op::saved:
      case op::detach:
      case op::route:  // the choice of experts is not differentiable
      case op::heaviside: return;
      case op::add: push(v.a, t), push(v.b, t); return;
      case op::sub: push(v.a, t), push(v.b, make_node::negate(g, t)); return;
      case op::mul:
        if (wanted[v.a]) push(v.a, make_node::mul(g, t, v.b));
        if (wanted[v.b]) push(v.b, make_node::mul(g, t, v.a));
        return;
      case op::div:
        if (wanted[v.a]) push(v.a, make_node::div(g, t, v.b));
        if (wanted[v.b]) push(v.b, make_node::negate(g, make_node::div(g, make_node::mul(g, t, i), v.b)));
        return;
      case op::minimum:
        push(v.a, make_node::mul(g, t, make_node::unary(g, op::heaviside, make_node::sub(g, v.b, v.a))));
        push(v.b, make_node::mul(g, t, make_node::unary(g, op::heaviside, make_node::sub(g, v.a, v.b))));
        return;
      case op::maximum:
        push(v.a, make_node::mul(g, t, make_node::unary(g, op::heaviside, make_node::sub(g, v.a, v.b))));
        push(v.b, make_node::mul(g, t, make_node::unary(g, op::heaviside, make_node::sub(g, v.b, v.a))));
        return;
      case op::sqrt: push(v.a, half_quotient(t, i)); return;
      case op::exp: push(v.a, make_node::mul(g, t, i)); return;
      case op::log: push(v.a, make_node::div(g, t, v.a)); return;
      case op::sin: push(v.a, make_node::mul(g, t, make_node::unary(g, op::cos, v.a))); return;
      case op::cos: push(v.a, make_node::negate(g, make_node::mul(g, t, make_node::unary(g, op::sin, v.a)))); return;
      case op::erf: push(v.a, make_node::mul(g, t, gaussian(v.a, 1.0, 2 * 0.56418958354775628695))); return;
      case op::tanh: push(v.a, make_node::mul(g, t, make_node::sub(g, g.constant(1), make_node::mul(g, i, i)))); return;
      case op::sigmoid:
        push(v.a, make_node::mul(g, t, make_node::mul(g, i, make_node::sub(g, g.constant(1), i))));
        return;
      case op::relu: push(v.a, make_node::mul(g, t, make_node::unary(g, op::heaviside, v.a))); return;
      case op::silu: push(v.a, make_node::mul(g, t, silu_slope(v.a, i))); return;
      case op::gelu: push(v.a, make_node::mul(g, t, gelu_slope(v.a))); return;
      case op::gelu_tanh: push(v.a, make_node::mul(g, t, gelu_tanh_slope(v.a))); return;
      case op::matmul: matmul(v, t); return;
      case op::row_dot: push(v.a, make_node::mul(g, t, v.b)), push(v.b, make_node::mul(g, t, v.a)); return;
      case op::transpose: push(v.a, make_node::transpose(g, t)); return;
      case op::reshape: push(v.a, make_node::reshape_like(g, t, v.a)); return;
      case op::permute: push(v.a, make_node::unpermute(g, t, v)); return;
      case op::slice: push(v.a, make_node::pad(g, t, v.a, v)); return;
      case op::pad: push(v.a, make_node::slice(g, t, v.k[0].v, v.k[1], g.n[v.a].d[v.k[0].v])); return;
      case op::concat: {
        const int axis = v.k[0].v;
        const dim first = g.n[v.a].d[axis], second = g.n[v.b].d[axis];
        if (wanted[v.a]) push(v.a, make_node::slice(g, t, axis, {0}, first));
        if (wanted[v.b]) push(v.b, make_node::slice(g, t, axis, first, second));
        return;
      }
      case op::repeat: push(v.a, make_node::fold_columns(g, t, g.n[v.a].d[3])); return;
      case op::fold_columns: push(v.a, make_node::repeat(g, t, g.n[v.a].d[3])); return;
      case op::strict_upper: push(v.a, make_node::unary(g, op::strict_upper, t)); return;
      case op::skew: push(v.a, make_node::unskew(g, t, v.a)); return;
      case op::circulant:
        push(v.a, v.ta ? make_node::circulant(g, t, v.tb) : make_node::circulant_sum(g, t, v.a, v.tb));
        return;
      case op::inverse:
        push(v.a, make_node::negate(g, make_node::matmul(g, make_node::matmul(g, i, t, true), i, false, true)));
        return;
      case op::orthonormal: orthonormal(i, v, t); return;
      case op::neumann: push(v.a, make_node::neumann_grad(g, v.a, t, v.k[0])); return;
      case op::rotate: rotated(v, t); return;
      case op::kron: kron(v, t); return;
      case op::row_kron: row_kron(v, t); return;
      case op::gather: push(v.a, make_node::scatter(g, t, v.b, v.ta, v.a)); return;
      case op::scatter_elements: push(v.a, make_node::gather_elements(g, t, v.b, v.a)); return;
      case op::gather_elements: push(v.a, g.emit(g.shaped(op::scatter_elements, v.a, t, v.b))); return;
      case op::softmax:
      case op::topk_softmax: push(v.a, g.emit(g.shaped(op::softmax_grad, i, i, t))); return;
      case op::normalize: push(v.a, make_node::normalize_grad(g, v.a, v.b, t, v.k[0] == dim{1})); return;
      case op::rope: push(v.a, make_node::rope(g, t, v.b, !v.tb)); return;
      case op::dropout: push(v.a, make_node::dropout(g, t, v.b, v.c, v.k[0])); return;
      case op::cross_entropy: push(v.a, make_node::cross_entropy_grad(g, v.a, v.b, t)); return;
      case op::attention: push(v.a, make_node::attention_grad(g, v.a, v.b, t, i)); return;
      case op::dispatch: push(v.a, make_node::combine(g, t, v.b, static_cast<routed_by>(v.k[0].v), v.a)); return;
      case op::combine: push(v.a, make_node::dispatch(g, t, v.b, static_cast<routed_by>(v.k[0].v))); return;
      case op::grouped_matmul:
        if (wanted[v.a]) push(v.a, make_node::grouped_matmul(g, t, v.b, v.c, !v.tb));
        if (wanted[v.b]) push(v.b, make_node::grouped_wgrad(g, v.tb ? t : v.a, v.tb ? v.a : t, v.c, v.b));
        return;
      case op::im2col: push(v.a, make_node::col2im(g, t, v.a, v)); return;
      case op::sum_to:
      case op::unskew:
      case op::neumann_grad:
      case op::rotate_grad:
      case op::scatter:
      case op::softmax_grad:
      case op::normalize_grad:
      case op::grouped_wgrad:
      case op::col2im:
      case op::cross_entropy_grad:
      case op::attention_grad:
      case op::cached_attention:
      case op::all_reduce_sum:
      case op::all_reduce_max:
      case op::host: g.stop({formula_error::not_differentiable, i, v.line}); return;
    }
  }
};
[[gnu::cold]] constexpr builder grad(const builder& f) {
  builder g = f;
  const id y = f.result("y");
  const node_set wanted = dependents(
      f, [](const node& v) { return v.what == op::param || v.what == op::input; }, false);
  const int before = f.n.size();
  adjoints a{g, wanted, sequence<id>(before, none_id)};
  const node shape = f.n[y];
  const int rank = shape.d[0] == dim{1} && shape.d[1] == dim{1} ? 2 : 4;
  a.d[y] = g.leaf(op::input, "dy", 0, rank, shape.d[0], shape.d[1], shape.d[2], shape.d[3]);
  for (const output& o : f.out)
    if (same_text(o.name, router_loss_names::sums))
      a.push(o.at, g.leaf(op::input, router_loss_names::sums_gradient, 0, 2, {1}, {1}, {1}, f.n[o.at].d[3]));
  for (id i = before - 1; i >= 0; --i)
    if (a.d[i] >= 0) a.visit(i, a.d[i]);
  g.out.clear();
  for (id i = 0; i < before; ++i) {
    const node v = f.n[i];
    if (v.what != op::param && v.what != op::input) continue;
    g.add_output(a.d[i] >= 0 ? a.d[i] : g.zero_like(i), v.name, v.path, v.what == op::input);
  }
  return g;
}
}  // namespace graft
namespace graft {
constexpr id apply_by_rows(builder& g, id w, id x, bool transposed = false);
namespace detail {
constexpr id rows_as_matrices(builder& g, id x, dim height, dim width) {
  return make_node::reshape(g, x, g.times(g.n[x].d[1], g.n[x].d[2]), {1}, height, width);
}
constexpr id matrices_as_rows(builder& g, id matrices, id x, dim width) {
  const node in = g.n[x];
  return make_node::reshape(g, matrices, in.d[0], in.d[1], in.d[2], width);
}
struct paired_rows {
  id a = none_id, c = none_id;
  sequence<id> factors;  // their product is f; each has both axes k and n, or one of them
};
[[gnu::cold]] constexpr paired_rows find_paired_rows(const builder& g, id stack) {
  paired_rows p;
  const node shape = g.n[stack];
  while (g.is(stack, op::mul)) {
    const node m = g.n[stack];
    const bool first = g.n[m.a].d[3] == dim{1} && same_shape(g.n[m.b], shape);
    if (!first && !(g.n[m.b].d[3] == dim{1} && same_shape(g.n[m.a], shape))) {
      const bool a_first = g.n[m.a].d[2] == dim{1};
      p.a = a_first ? m.a : m.b, p.c = a_first ? m.b : m.a;
      break;
    }
    p.factors.push(first ? m.a : m.b);
    stack = first ? m.b : m.a;
  }
  if (p.a < 0 || g.n[p.a].d[2] != dim{1} || g.n[p.c].d[1] != dim{1} || g.n[p.a].d[3] != shape.d[3] ||
      g.n[p.c].d[3] != shape.d[3])
    p.a = none_id;
  return p;
}
[[gnu::cold]] constexpr id apply_paired_rows(builder& g, id w, id x, bool transposed) {
  const node stack = g.n[g.n[w].a];
  if (stack.what != op::mul || stack.d[0] != dim{1} || stack.d[1] == dim{1}) return none_id;
  const paired_rows p = find_paired_rows(g, g.n[w].a);
  if (p.a < 0) return none_id;
  const dim k = stack.d[1], n = stack.d[2], width = stack.d[3];
  const id a = make_node::reshape(g, p.a, {1}, {1}, k, width);
  auto scaled = [&](id s) {  // [rows, 1, k, n]
    for (const id f : p.factors) s = make_node::mul(g, s, make_node::reshape(g, f, {1}, {1}, g.n[f].d[1], g.n[f].d[2]));
    return s;
  };
  if (!transposed) {
    const id each = make_node::mul(g, rows_as_matrices(g, x, {1}, width), p.c);  // [rows, 1, n, i]
    const id s = scaled(make_node::transpose(g, make_node::matmul(g, each, a, false, true)));
    return matrices_as_rows(g, s, x, g.n[w].d[2]);
  }
  const id s = make_node::transpose(g, scaled(rows_as_matrices(g, x, k, n)));
  const id each = make_node::mul(g, make_node::matmul(g, s, a), p.c);
  const id flat = matrices_as_rows(g, each, x, g.times(n, width));
  return make_node::fold_columns(g, flat, width);
}
[[gnu::cold]] constexpr id apply_circulants(builder& g, id w, id x, bool transposed) {
  const node squares = g.n[g.n[w].a];
  if (squares.what != op::circulant || squares.ta || squares.d[0] != dim{1} || (transposed && !squares.tb))
    return none_id;
  const node kernels = g.n[squares.a];  // [1, m, n, b]
  const dim m = kernels.d[1], n = kernels.d[2], b = kernels.d[3], in = transposed ? m : n, out = transposed ? n : m;
  const id kernel = transposed ? make_node::permute(g, squares.a, 0, 2, 1, 3) : squares.a;
  const id wide = make_node::circulant(g, rows_as_matrices(g, x, in, b), !squares.tb);  // [rows, 1, b, in b]
  const id y = make_node::transpose(
      g, make_node::matmul(g, wide, make_node::reshape(g, kernel, {1}, {1}, out, g.times(in, b)), false, true));
  return matrices_as_rows(g, y, x, transposed ? g.n[w].d[3] : g.n[w].d[2]);
}
constexpr id diagonal_of(const builder& g, id i) {
  if (!g.is(i, op::mul)) return none_id;
  const node m = g.n[i];
  return g.is(m.b, op::eye) ? m.a : g.is(m.a, op::eye) ? m.b : none_id;
}
[[gnu::cold]] constexpr id rotate_by_diagonals(builder& g, id z, id blocks, bool transposed) {
  const node all = g.n[blocks];
  if (all.what != op::concat || all.k[0] != dim{2} || all.d[0] != dim{1} || all.d[1] == dim{1}) return none_id;
  const node upper = g.n[all.a], lower = g.n[all.b];
  for (const node* v : {&upper, &lower})
    if (v->what != op::concat || v->k[0] != dim{3}) return none_id;
  const id d11 = diagonal_of(g, upper.a), d22 = diagonal_of(g, lower.b);
  const id d12 = diagonal_of(g, transposed ? lower.a : upper.b), d21 = diagonal_of(g, transposed ? upper.b : lower.a);
  for (const id d : {d11, d12, d21, d22})
    if (d < 0 || g.n[d].d[3] != dim{1}) return none_id;
  const node in = g.n[z];
  const dim n = all.d[1], h = g.n[upper.a].d[2];
  const id halves = make_node::reshape(g, z, g.times(in.d[1], in.d[2]), n, {2}, h);
  const id z1 = make_node::slice(g, halves, 2, {0}, {1}), z2 = make_node::slice(g, halves, 2, {1}, {1});
  auto times = [&](id half, id d) {
    return make_node::mul(g, half, make_node::reshape(g, d, {1}, g.n[d].d[1], {1}, h));
  };
  const id y1a = times(z1, d11), y1b = times(z2, d21), y2a = times(z1, d12), y2b = times(z2, d22);
  const id y1 = make_node::add(g, y1a, y1b), y2 = make_node::add(g, y2a, y2b);
  return make_node::reshape_like(g, make_node::concat(g, y1, y2, 2), z);
}
constexpr id rotate_rows(builder& g, id z, id blocks, bool transposed, int line) {
  const id pairs = rotate_by_diagonals(g, z, blocks, transposed);
  return pairs >= 0 ? pairs : make_node::rotate(g, z, blocks, transposed, line);
}
constexpr id apply_scaled_by_rows(builder& g, op scale_op, id w, id v, id x, bool transposed) {
  const bool column = is_column(g, v);
  const id factor_row = column ? make_node::as_row(g, v) : v;
  auto scale = [&](id a) {
    return scale_op == op::mul ? make_node::mul(g, a, factor_row) : make_node::div(g, a, factor_row);
  };
  if (is_scalar(g.n[v]) || column != transposed) return scale(apply_by_rows(g, w, x, transposed));
  return apply_by_rows(g, w, scale(x), transposed);
}
constexpr bool is_factor(const builder& g, id v, id w) {
  return is_scalar(g.n[v]) || (!has_shape_of(g, v, w) && (is_column(g, v) || is_row(g, v)));
}
}  // namespace detail
constexpr id apply_by_rows(builder& g, id w, id x, bool transposed) {
  const node v = g.n[w];
  switch (v.what) {
    case op::eye: return x;
    case op::add:
    case op::sub: {
      if (!has_shape_of(g, v.a, w) || !has_shape_of(g, v.b, w)) break;
      const id left = apply_by_rows(g, v.a, x, transposed), right = apply_by_rows(g, v.b, x, transposed);
      return make_node::pointwise(g, v.what, left, right, v.line);
    }
    case op::mul:
      if (detail::is_factor(g, v.a, w)) return detail::apply_scaled_by_rows(g, op::mul, v.b, v.a, x, transposed);
      if (detail::is_factor(g, v.b, w)) return detail::apply_scaled_by_rows(g, op::mul, v.a, v.b, x, transposed);
      if (!transposed && g.is(v.a, op::matmul) && g.is(v.b, op::matmul)) return apply_hadamard(g, v.a, v.b, x);
      break;
    case op::div:
      if (detail::is_factor(g, v.b, w)) return detail::apply_scaled_by_rows(g, op::div, v.a, v.b, x, transposed);
      break;
    case op::matmul:
      if (transposed) return apply_by_rows(g, v.b, apply_by_rows(g, v.a, x, !v.ta), !v.tb);
      return apply_by_rows(g, v.a, apply_by_rows(g, v.b, x, v.tb), v.ta);
    case op::transpose: return apply_by_rows(g, v.a, x, !transposed);
    case op::rotate:
      if (transposed) return detail::rotate_rows(g, apply_by_rows(g, v.a, x, true), v.b, v.tb, v.line);
      return apply_by_rows(g, v.a, detail::rotate_rows(g, x, v.b, !v.tb, v.line), false);
    case op::repeat:
      if (transposed) return make_node::repeat(g, apply_by_rows(g, v.a, x, true), v.d[3]);
      return apply_by_rows(g, v.a, make_node::fold_columns(g, x, g.n[v.a].d[3]), false);
    case op::kron:
      if (!transposed) return apply_kron(g, v.a, v.b, x);
      break;
    case op::reshape: {
      if (const id y = detail::apply_paired_rows(g, w, x, transposed); y >= 0) return y;
      if (const id y = detail::apply_circulants(g, w, x, transposed); y >= 0) return y;
      break;
    }
    default: break;
  }
  return make_node::matmul(g, x, w, false, !transposed, v.line);
}
}  // namespace graft
namespace graft {
enum class lowering : unsigned char { literal, fast, by_rows };
enum class bias : bool { no, yes };
constexpr id product_with(builder& g, id matrix, id x, lowering level) {
  switch (level) {
    case lowering::literal: break;
    case lowering::fast: return apply(g, matrix, x);
    case lowering::by_rows: return apply_by_rows(g, matrix, x);
  }
  return make_node::matmul(g, x, matrix, false, true);
}
struct linear_kind {  // y = x W'ᵀ + b'
  static constexpr const char* name = "linear";
  static constexpr extent outputs(scope p) { return p.size("out", dyn, 4096); }
  static constexpr ex weight(scope p) {
    return p.leaf(op::base, "weight", 2, 1, 1, outputs(p), p.size("in", dyn, 4096));
  }
  static constexpr ex matrix(scope, ex W) { return W; }
  static constexpr ex stored(scope, ex M) { return M; }
  static constexpr ex input(scope p, ex M) { return p.leaf(op::input, "x", 2, 1, 1, p.tokens(), M.cols()); }
  static constexpr ex run(scope p, ex M, ex b, ex x, lowering level) {
    builder& g = *p.g;
    return {&g, make_node::add(g, product_with(g, M.i, x.i, level), make_node::as_row(g, b.i))};
  }
};
struct conv2d_kind {  // y = im2col(x) W'ᵀ + b' (im2col); `tokens` counts images
  static constexpr const char* name = "conv2d";
  static constexpr extent outputs(scope p) { return p.size("out", dyn, 256); }
  static constexpr ex weight(scope p) {
    return p.leaf(op::base, "weight", 4, outputs(p), p.size("channels", dyn, 256), p.size("kernel_h", dyn, 3),
                  p.size("kernel_w", dyn, 3));
  }
  static constexpr ex matrix(scope p, ex W) {
    const node v = *W;
    return {p.g, make_node::reshape(*p.g, W.i, {1}, {1}, v.d[0], p.g->times(v.d[1], p.g->times(v.d[2], v.d[3])))};
  }
  static constexpr ex stored(scope p, ex M) { return {p.g, make_node::reshape_like(*p.g, M.i, weight(p).i)}; }
  static constexpr ex input(scope p, ex) {
    const node w = *weight(p);
    const extent height = p.size("height", dyn, 32), width = p.size("width", dyn, 32);
    return p.leaf(op::input, "x", 4, p.tokens(8), {p.g, w.d[1]}, height, width);
  }
  static constexpr ex run(scope p, ex M, ex b, ex x, lowering level) {
    builder& g = *p.g;
    const node w = *weight(p);
    const make_node::patch_geometry s{w.d[2], w.d[3], p.size("stride", dyn, 1).d, p.size("padding", dyn, 1).d};
    const id rows = make_node::im2col(g, x.i, s);
    const id product = product_with(g, M.i, rows, level);
    const id planes = make_node::transpose(g, make_node::add(g, product, make_node::as_row(g, b.i)));
    const node v = *x;
    return {&g, make_node::reshape(g, planes, v.d[0], w.d[0], g.window(v.d[2], s.kernel_h, s.stride, s.pad),
                                   g.window(v.d[3], s.kernel_w, s.stride, s.pad))};
  }
};
struct embedding_kind {  // y = W'[ids]
  static constexpr const char* name = "embedding";
  static constexpr extent outputs(scope p) { return p.size("dim", dyn, 4096); }
  static constexpr ex weight(scope p) {
    return p.leaf(op::base, "weight", 2, 1, 1, p.size("vocab", dyn, 4096), outputs(p));
  }
  static constexpr ex matrix(scope, ex W) { return W; }
  static constexpr ex stored(scope, ex M) { return M; }
  static constexpr ex input(scope p, ex) { return p.leaf(op::ids, "x", 1, 1, 1, 1, p.tokens()); }
  static constexpr ex run(scope p, ex M, ex, ex ids, lowering level) {
    builder& g = *p.g;
    return {&g, level == lowering::literal ? make_node::gather(g, M.i, ids.i, false) : select(g, M.i, ids.i)};
  }
};
template <bool Rms> struct norm_kind {  // y = normalize(x) ⊙ w' + b'
  static constexpr const char* name = Rms ? "rms_norm" : "layer_norm";
  static constexpr extent outputs(scope p) { return p.size("n", dyn, 4096); }
  static constexpr ex weight(scope p) { return p.leaf(op::base, "weight", 1, 1, 1, outputs(p), 1); }
  static constexpr ex matrix(scope, ex w) { return w; }
  static constexpr ex stored(scope, ex w) { return w; }
  static constexpr ex input(scope p, ex) { return p.leaf(op::input, "x", 2, 1, 1, p.tokens(), outputs(p)); }
  static constexpr ex run(scope p, ex w, ex b, ex x, lowering) {
    builder& g = *p.g;
    const id unit = make_node::normalize(g, x.i, p.scalar("eps").i, Rms);
    return {&g, make_node::add(g, make_node::mul(g, unit, make_node::as_row(g, w.i)), make_node::as_row(g, b.i))};
  }
};
template <bool StoredInOut> struct experts_kind {
  static constexpr const char* name = "experts";
  static constexpr extent outputs(scope p) { return p.size("out", dyn, 4096); }
  static constexpr ex weight(scope p) {
    const extent out = outputs(p), in = p.size("in", dyn, 4096), count = p.size("experts", dyn, 8);
    return p.leaf(op::base, "weight", 3, 1, count, StoredInOut ? in : out, StoredInOut ? out : in);
  }
  static constexpr ex matrix(scope, ex W) { return StoredInOut ? t(W) : W; }
  static constexpr ex stored(scope, ex M) { return StoredInOut ? t(M) : M; }
  static constexpr ex input(scope p, ex M) {
    return p.leaf(op::input, "x", 3, 1, p.size("experts"), p.tokens(), M.cols());
  }
  static constexpr ex run(scope p, ex M, ex, ex x, lowering level) {
    return {p.g, product_with(*p.g, M.i, x.i, level)};
  }
};
struct kind_rules {
  const char* name = "";
  extent (*outputs)(scope) = nullptr;
  ex (*weight)(scope) = nullptr;      // the weight as it is stored
  ex (*matrix)(scope, ex) = nullptr;  // the stored weight in the shape that formulas see
  ex (*stored)(scope, ex) = nullptr;  // a weight of that shape in the stored one
  ex (*input)(scope, ex) = nullptr;   // the leaf that a call supplies
  ex (*run)(scope, ex matrix, ex bias, ex x, lowering) = nullptr;
};
template <class Kind> constexpr kind_rules rules_of() {
  return {Kind::name, &Kind::outputs, &Kind::weight, &Kind::matrix, &Kind::stored, &Kind::input, &Kind::run};
}
}  // namespace graft
namespace graft {
struct unmerging {
  builder g;
  bool possible = true;
  sequence<id> saved_from;
};
[[gnu::cold]] constexpr unmerging unmerge(const builder& merge, const char* base, const char* out) {
  unmerging u{merge, true, {}};
  builder& g = u.g;
  id at = merge.result(out);
  const id w = merge.find(base);
  const node_set has_w =
      dependents(merge, [&](const node& v) { return v.what == op::base && same_text(v.name, base); });
  if (w < 0 || merge.n[w].what != op::base || !has_w[at]) {
    u.possible = false;
    return u;
  }
  const node shape = merge.n[at];
  id rhs = g.leaf(op::input, "merged", 0, merge.n[w].rank, shape.d[0], shape.d[1], shape.d[2], shape.d[3]);
  auto other = [&](id i) {
    if (!has_w[i]) return i;
    node v = g.shaped(op::saved, i, none_id);
    v.name = "saved", v.k[0] = {u.saved_from.size()};
    u.saved_from.push(i);
    return g.emit(v);
  };
  while (at != w && u.possible) {
    const node v = merge.n[at];
    const bool left = v.b < 0 || (has_w[v.a] && (!has_w[v.b] || same_shape(merge.n[v.a], v)));
    const id next = left ? v.a : v.b;
    switch (v.what) {
      case op::add: rhs = make_node::sub(g, rhs, other(left ? v.b : v.a)); break;
      case op::sub: rhs = left ? make_node::add(g, rhs, other(v.b)) : make_node::sub(g, other(v.a), rhs); break;
      case op::mul: rhs = make_node::div(g, rhs, other(left ? v.b : v.a)); break;
      case op::div: left ? void(rhs = make_node::mul(g, rhs, other(v.b))) : void(u.possible = false); break;
      case op::transpose: rhs = make_node::transpose(g, rhs); break;
      case op::reshape: rhs = make_node::reshape_like(g, rhs, v.a); break;
      case op::matmul: {
        if (!left || v.ta) {
          u.possible = false;
          break;
        }
        const id m = other(v.b);
        rhs = merge.n[v.b].orthogonal ? make_node::matmul(g, rhs, m, false, !v.tb)
                                      : make_node::matmul(g, rhs, make_node::inverse(g, m), false, v.tb);
        break;
      }
      case op::rotate:
        rhs = merge.n[v.b].orthogonal ? make_node::rotate(g, rhs, v.b, !v.tb)
                                      : make_node::rotate(g, rhs, make_node::inverse(g, v.b), v.tb);
        break;
      default: u.possible = false; break;
    }
    at = next;
  }
  g.out.clear();
  g.add_output(rhs, base);
  u.g = canonical(u.g);
  return u;
}
}  // namespace graft
namespace graft {
namespace detail {
constexpr bool are_matrices(const builder& g, id a, id b) {
  for (const id i : {a, b})
    if (g.n[i].d[0] != dim{1} || g.n[i].d[1] != dim{1}) return false;
  return true;
}
}  // namespace detail
constexpr id reassociate_wgrad(builder& g, const node& v, const sequence<bool>& data) {
  if (v.what != op::matmul || v.sum || !detail::are_matrices(g, v.a, v.b)) return g.emit(v);
  for (int k = 0; k < 2; ++k) {
    const id at = v.operand(k), factor = v.operand(1 - k);
    if (!data[at] || data[factor] || !g.is(at, op::matmul)) continue;
    const node sum = g.n[at];  // dᵀ x
    if (!sum.ta || sum.tb || sum.sum || !data[sum.a] || !data[sum.b] || !detail::are_matrices(g, sum.a, sum.b))
      continue;
    const bool transposed_sum = k == 0 ? v.ta : v.tb;  // xᵀ d
    const id d = transposed_sum ? sum.b : sum.a, x = transposed_sum ? sum.a : sum.b;
    if (k == 0) {
      const id narrow = make_node::matmul(g, x, factor, false, v.tb, v.line);
      return make_node::matmul(g, d, narrow, true, false, v.line);
    }
    const id narrow = make_node::matmul(g, d, factor, false, !v.ta, v.line);
    return make_node::matmul(g, narrow, x, true, false, v.line);
  }
  return g.emit(v);
}
constexpr builder reassociate_wgrads(const builder& from) { return canonical(rewrite(from, reassociate_wgrad)); }
}  // namespace graft
namespace graft {
struct layer_formula {
  kind_rules kind{};
  formula adapter{};
  bool has_bias = false;
  const formula* extra = nullptr;
  const char* const* extra_paths = nullptr;
  int extra_count = 0;
};
template <class Kind, class Adapter, bool Bias> constexpr layer_formula layer_of() {
  return {rules_of<Kind>(), formula_of<Adapter>(), Bias};
}
constexpr layer_formula without_adapter(layer_formula f) {
  f.adapter = formula_of<none>(), f.extra_count = 0;
  return f;
}
constexpr ex base_bias(const layer_formula& f, scope p) {
  const extent n = f.kind.outputs(p);
  if (f.has_bias) return p.leaf(op::base, "bias", 1, 1, 1, n, 1);
  return {p.g, p.g->leaf(op::zero, "0", 0, 2, {1}, {1}, n.d, {1})};
}
constexpr ex adapted_weight(const layer_formula& f, scope p) {
  const ex base = f.kind.matrix(p, f.kind.weight(p));
  ex w = f.adapter.weight(p, base);
  for (int i = 0; i < f.extra_count; ++i) w = f.extra[i].compose_weight(p.in(f.extra_paths[i]), w, base);
  return w;
}
[[gnu::cold]] constexpr ex adapted_bias(const layer_formula& f, scope p) {
  const base_tensors base{f.kind.matrix(p, f.kind.weight(p)), base_bias(f, p)};
  ex b = f.adapter.adapted_bias(p, base.bias, base);
  for (int i = 0; i < f.extra_count; ++i) b = f.extra[i].adapted_bias(p.in(f.extra_paths[i]), b, base);
  return b;
}
constexpr builder simplified(const builder& g, lowering level) {
  switch (level) {
    case lowering::literal: break;
    case lowering::fast: return simplify(g);
    case lowering::by_rows: return simplify_norms(g);
  }
  return canonical(g);
}
constexpr builder capture(const layer_formula& f, lowering level, bool keep_gradients) {
  builder g;
  const scope p{&g};
  g.add_output(adapted_weight(f, p).i, "weight");
  g.add_output(adapted_bias(f, p).i, "bias");
  if (!keep_gradients) g = rewrite(g, value_rule);
  const id w = g.result("weight"), b = g.result("bias");
  g.out.clear();
  const ex x = f.kind.input(p, {&g, w});
  g.add_output(f.kind.run(p, {&g, w}, {&g, b}, x, level).i, "y");
  return simplified(g, level);
}
[[gnu::cold]] constexpr id with_detached_parameters(builder& g, id root) {
  const node_set needed = dependencies(g, root);
  sequence<id> moved_to(root + 1, none_id);
  for (id i = 0; i <= root; ++i) {
    if (!needed[i]) continue;
    node v = g.n[i];
    if (v.a >= 0) v.a = moved_to[v.a];
    if (v.b >= 0) v.b = moved_to[v.b];
    if (v.c >= 0) v.c = moved_to[v.c];
    moved_to[i] = v.what == op::param ? make_node::unary(g, op::detach, i) : g.emit(v);
  }
  return moved_to[root];
}
constexpr builder capture_to_differentiate(const layer_formula& f, lowering level) {
  if (f.adapter.input_gradient_weight == nullptr) return capture(f, level, true);
  builder g;
  const scope p{&g};
  const ex w = adapted_weight(f, p), b = adapted_bias(f, p), x = f.kind.input(p, w);
  const ex seen = f.adapter.input_gradient_weight(p, f.kind.matrix(p, f.kind.weight(p)));
  const ex zero_bias{&g, make_node::zero_of(g, b.i, b.i)};
  const ex fixed = level == lowering::by_rows ? ex{&g, with_detached_parameters(g, seen.i)} : detach(seen);
  const ex y = f.kind.run(p, w, b, detach(x), level) + f.kind.run(p, fixed, zero_bias, x, level);
  g.add_output(y.i, "y");
  return simplified(g, level);
}
constexpr builder capture_literal(const layer_formula& f) { return capture(f, lowering::literal, true); }
constexpr builder capture_forward(const layer_formula& f) { return capture(f, lowering::fast, false); }
constexpr builder capture_folded(const layer_formula& f) { return values_only(capture(f, lowering::literal, false)); }
constexpr builder capture_literal_backward(const layer_formula& f) {
  return canonical(grad(capture_to_differentiate(f, lowering::literal)));
}
constexpr builder capture_backward(const layer_formula& f) {
  return simplify(rewrite(grad(capture_to_differentiate(f, lowering::fast)), value_rule));
}
constexpr builder capture_forward_by_rows(const layer_formula& f) { return capture(f, lowering::by_rows, false); }
constexpr builder capture_backward_by_rows(const layer_formula& f) {
  return simplify_norms(rewrite(grad(capture_to_differentiate(f, lowering::by_rows)), value_rule));
}
constexpr builder capture_forward_folded(const layer_formula& f) {
  return simplify_folded(rewrite(capture(f, lowering::literal, false), value_rule));
}
constexpr builder capture_backward_folded(const layer_formula& f) {
  builder g;
  const scope p{&g};
  const ex w = adapted_weight(f, p), b = adapted_bias(f, p), x = f.kind.input(p, w);
  const ex zero_bias{&g, make_node::zero_of(g, b.i, b.i)};
  const ex y =
      f.kind.run(p, w, b, detach(x), lowering::fast) + f.kind.run(p, detach(w), zero_bias, x, lowering::literal);
  g.add_output(y.i, "y");
  return simplify_folded(reassociate_wgrads(simplify(rewrite(grad(simplify(g)), value_rule))));
}
constexpr builder capture_weight(const layer_formula& f) {
  builder g;
  const scope p{&g};
  g.add_output(f.kind.stored(p, adapted_weight(f, p)).i, "weight");
  const ex b = adapted_bias(f, p);
  if ((*b).what != op::zero) g.add_output(b.i, "bias");
  return canonical(g);
}
constexpr builder capture_unmerge_weight(const layer_formula& f) {
  return unmerge(capture_weight(f), "weight", "weight").g;
}
constexpr builder capture_unmerge_bias(const layer_formula& f) { return unmerge(capture_weight(f), "bias", "bias").g; }
constexpr builder capture_merge(const layer_formula& f) {
  builder g = capture_weight(f);
  for (const id i : unmerge(g, "weight", "weight").saved_from) g.add_output(i, "saved");
  return g;
}
struct unmerge_facts {
  bool weight = false, bias = false;  // whether the formula can be solved for W, and for b
  int saved = 0;                      // number of values of the merge that unmerging the weight needs
};
constexpr unmerge_facts unmerge_facts_of(const layer_formula& f) {
  const builder g = capture_weight(f);
  const unmerging w = unmerge(g, "weight", "weight"), b = unmerge(g, "bias", "bias");
  return {w.possible, b.possible && b.saved_from.empty(), w.saved_from.size()};
}
template <builder (*Function)(const layer_formula&), class Layer> struct captured {
  static constexpr auto preallocated = store_graph<48, 32, 8, 16, 16>(Function(Layer::value));
  static constexpr graph_counts n = preallocated.of;
  static constexpr auto exact() {
    if constexpr (preallocated.fits())
      return store_graph<n.nodes, n.sizes, n.paths, n.needs, n.outs>(preallocated);
    else
      return store_graph<n.nodes, n.sizes, n.paths, n.needs, n.outs>(Function(Layer::value));
  }
  static constexpr auto stored = exact();
};
template <class Kind, class Adapter, bool Bias> struct derived {
  static constexpr layer_formula value = layer_of<Kind, Adapter, Bias>();
  static constexpr graph literal = captured<capture_literal, derived>::stored;
  static constexpr graph literal_backward = captured<capture_literal_backward, derived>::stored;
  static constexpr graph forward = captured<capture_forward, derived>::stored;
  static constexpr graph folded = captured<capture_folded, derived>::stored;
  static constexpr graph backward = captured<capture_backward, derived>::stored;
  static constexpr graph merge = captured<capture_merge, derived>::stored;
  static constexpr graph unmerge_weight = captured<capture_unmerge_weight, derived>::stored;
  static constexpr graph unmerge_bias = captured<capture_unmerge_bias, derived>::stored;
  static constexpr unmerge_facts unmerging = unmerge_facts_of(value);
};
}  // namespace graft
namespace graft {
struct named_size {
  const char* name;
  int value;
};
template <int Out, int In, class Element = float, class Adapter = none, bias Bias = bias::no> struct linear {
  using kind = linear_kind;
  using adapter = Adapter;
  using element = Element;
  static constexpr bool has_bias = Bias == bias::yes;
  static constexpr named_size sizes[2] = {{"out", Out}, {"in", In}};
};
template <int Vocabulary, int Dim, class Element = float, class Adapter = none> struct embedding {
  using kind = embedding_kind;
  using adapter = Adapter;
  using element = Element;
  static constexpr bool has_bias = false;
  static constexpr named_size sizes[2] = {{"vocab", Vocabulary}, {"dim", Dim}};
};
template <int Out, int Channels, int Kernel, class Element = float, class Adapter = none, bias Bias = bias::no,
          int Stride = 1, int Padding = 0>
struct conv2d {
  using kind = conv2d_kind;
  using adapter = Adapter;
  using element = Element;
  static constexpr bool has_bias = Bias == bias::yes;
  static constexpr named_size sizes[6] = {{"out", Out},         {"channels", Channels}, {"kernel_h", Kernel},
                                          {"kernel_w", Kernel}, {"stride", Stride},     {"padding", Padding}};
};
template <int N, class Element = float, class Adapter = none, bias Bias = bias::yes> struct layer_norm {
  using kind = norm_kind<false>;
  using adapter = Adapter;
  using element = Element;
  static constexpr bool has_bias = Bias == bias::yes;
  static constexpr named_size sizes[1] = {{"n", N}};
};
template <int N, class Element = float, class Adapter = none> struct rms_norm {
  using kind = norm_kind<true>;
  using adapter = Adapter;
  using element = Element;
  static constexpr bool has_bias = false;
  static constexpr named_size sizes[1] = {{"n", N}};
};
template <class Layer> using derived_of = derived<typename Layer::kind, typename Layer::adapter, Layer::has_bias>;
template <class Layer> using base_of = derived<typename Layer::kind, none, Layer::has_bias>;
template <class Layer> constexpr size_values static_sizes(const graph& g) {
  size_values s;
  long long out = unknown, in = unknown;
  for (const named_size& n : Layer::sizes) {
    if (n.value == dyn) continue;
    if (const int index = g.sizes.find(n.name); index >= 0) s.v[index] = n.value;
    if (same_text(n.name, "out")) out = n.value;
    if (same_text(n.name, "in")) in = n.value;
  }
  if (out == unknown || in == unknown) return s;
  constexpr formula f = formula_of<typename Layer::adapter>();
  for (int i = 0; i < g.sizes.count; ++i)
    if (const size_entry& e = g.sizes.e[i]; e.index >= 0 && s.v[e.index] == unknown)
      s.v[e.index] = f.adapter_size(e.name, out, in);
  return s;
}
}  // namespace graft
namespace graft {
enum class row_dependence : unsigned char {
  none,   // does not depend on the call's data
  chunk,  // a chunk of its rows depends on those rows of its operands only
  sum,    // one value for all rows, accumulated over chunks
  whole,  // needs all rows of an operand at once, or depends on sums
};
struct row_flow {
  sequence<row_dependence> dependence_of;
  sequence<int> axis;   // the token axis; -1: none
  sequence<int> round;  // a round computes its whole values first, then its chunks and sums
  int rounds = 0;
};
namespace detail {
constexpr int token_axis(const graph& g, const node& v) {
  int axis = 0;
  while (axis < 3 && v.d[axis] == dim{1}) ++axis;
  return g.sizes.has_token_rows(v.d[axis]) ? axis : -1;
}
[[gnu::noinline]] constexpr bool read_by_chunk(const graph& g, const row_flow& f, id i, int k) {
  const id o = g[i].operand(k);
  if (o < 0 || f.axis[o] < 0 || (f.dependence_of[o] == row_dependence::none && !is_leaf(g[o].what))) return false;
  const int after = axis_after(g, g[i], k, f.axis[o]);
  return f.dependence_of[i] == row_dependence::chunk
             ? after == f.axis[i]
             : f.dependence_of[i] == row_dependence::sum && after == summed_axis;
}
}  // namespace detail
[[gnu::cold]] constexpr row_flow find_row_flow(const graph& g, const stages& when, const node_set& live) {
  row_flow f{sequence<row_dependence>(g.size, row_dependence::none), sequence<int>(g.size, -1),
             sequence<int>(g.size, 0)};
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    if (!live[i] || when.of[i] != stage::call) continue;
    if (is_leaf(v.what)) {
      f.axis[i] = detail::token_axis(g, v);
      continue;
    }
    int passes = -1, sums = 0, others = 0;  // the axis that an operand maps to; operands that are summed; all others
    const int outermost = detail::token_axis(g, v);
    for (int k = 0; k < 3; ++k) {
      const id o = v.operand(k);
      if (o < 0 || when.of[o] != stage::call) continue;
      const int after = f.axis[o] < 0 ? mixed_axis : axis_after(g, v, k, f.axis[o]);
      if (after >= 0 && after == outermost) passes = after;
      sums += after == summed_axis ? 1 : 0, others += after != summed_axis ? 1 : 0;
    }
    const bool adds = v.what == op::matmul || accumulates_result(v.what);
    f.dependence_of[i] = passes >= 0 && v.what != op::host ? row_dependence::chunk
                         : sums > 0 && others == 0 && adds ? row_dependence::sum
                                                           : row_dependence::whole;
    f.axis[i] = outermost;
    for (int k = 0; k < 3; ++k) {
      const id o = v.operand(k);
      if (o < 0 || f.dependence_of[o] == row_dependence::none) continue;
      const bool same_round = f.dependence_of[o] == row_dependence::whole ||
                              (f.dependence_of[o] == row_dependence::chunk && detail::read_by_chunk(g, f, i, k));
      const int after = f.round[o] + (same_round ? 0 : 1);
      if (after > f.round[i]) f.round[i] = after;
    }
    if (f.round[i] + 1 > f.rounds) f.rounds = f.round[i] + 1;
  }
  return f;
}
}  // namespace graft
namespace graft {
struct launch {
  int kind = 0, index = 0;
  int first = 0, count = 0;  // the launch has nodes [first, first + count) of launch_plan::nodes
  template <class Kind> constexpr bool is() const { return kind == launch_kinds::index_of<Kind>; }
};
struct launch_plan {
  target to{};
  stages when{};
  node_set live{};
  row_flow rows{};
  sequence<launch> launches;
  sequence<id> nodes;  // the nodes of all launches, in order of computation
  launch_kinds::values<detail::list_of> lists;
  sequence<gemm_slots> products;  // of all gemm_launches
  sequence<int> launch_of;        // by node; -1: precomputed, or a leaf
  sequence<launch_slot> slot_of;
  int breaks = 0;  // nodes that no launch can hold
  id first_break = none_id;
  template <class Kind> constexpr const sequence<Kind>& all() const {
    return static_cast<const detail::list_of<Kind>&>(lists).list;
  }
  template <class Kind> constexpr sequence<Kind>& all() { return static_cast<detail::list_of<Kind>&>(lists).list; }
  template <class Kind> constexpr const Kind* as(const launch& l) const {
    return l.is<Kind>() ? &all<Kind>()[l.index] : nullptr;
  }
  template <class F> constexpr void visit(const launch& l, F f) const {
    launch_kinds::only(l.kind, [&]<class Kind>(Kind*) { f(all<Kind>()[l.index]); });
  }
  constexpr id anchor_of(const launch& l) const {
    id at = none_id;
    visit(l, [&](const auto& one) { at = one.anchor(); });
    return at;
  }
  constexpr const char* name_of(const graph& g, const launch& l) const {
    const char* name = "";
    visit(l, [&](const auto& one) { name = one.name(g); });
    return name;
  }
  template <class F> constexpr void each_wgrad(const launch& l, F f) const {
    visit(l, [&]<class Kind>(const Kind& one) {
      if constexpr (requires { one.each_wgrad(0, f); }) one.each_wgrad(l.index, f);
    });
  }
};
constexpr bool reads_by_chunk(const graph& g, const launch_plan& p, id i, int k) {
  return detail::read_by_chunk(g, p.rows, i, k);
}
constexpr bool crosses_launches(const graph& g, const launch_plan& p, id i) {
  for (id r = i + 1; r < g.size; ++r)
    for (int k = 0; p.live[r] && k < 3; ++k)
      if (g[r].operand(k) == i)
        if (p.launch_of[r] != p.launch_of[i] ||
            (p.launches[p.launch_of[i]].is<rows_launch>() && !reads_by_chunk(g, p, r, k)))
          return true;
  return false;
}
}  // namespace graft
namespace graft {
namespace detail {
struct planner {
  const graph& g;
  launch_plan& p;
  constexpr bool member(id i) const { return p.live[i] && p.when.of[i] == stage::call && !is_leaf(g[i].what); }
  template <class Kind> constexpr void open(int index) {
    p.launches.push({launch_kinds::index_of<Kind>, index, p.nodes.size()});
  }
  template <class Kind> constexpr void open(const Kind& one) {
    open<Kind>(p.all<Kind>().size());
    p.all<Kind>().push(one);
  }
  constexpr void add(id i, launch_slot where, bool owns = true) {
    if (owns) p.launch_of[i] = p.launches.size() - 1;
    p.slot_of[i] = where;
    p.nodes.push(i);
    ++p.launches.back().count;
  }
  constexpr bool is_anchor(id i) const {
    const node& v = g[i];
    if (p.rows.dependence_of[i] != row_dependence::chunk) return false;
    if (traits_of(v.what).kind == op_class::rowwise || traits_of(v.what).axes == axis_flow::gather) return true;
    if (v.what != op::matmul || p.when.of[v.b] == stage::call) return false;
    const long long base = base_count(g, v.b);
    return base > 0 && 4 * nominal_count(g, v.b) > base;
  }
  [[gnu::cold]] constexpr void fuse_rows() {
    p.rows = find_row_flow(g, p.when, p.live);
    for (int round = 0; round < p.rows.rounds; ++round) {
      bool opened = false;
      for (id i = 0; i < g.size; ++i)
        if (member(i) && p.rows.round[i] == round && p.rows.dependence_of[i] == row_dependence::whole &&
            g[i].what != op::reshape) {
          const bool standalone = nodes_launch::stands_alone(traits_of(g[i].what).kind);
          if (!opened || standalone) open(nodes_launch{i, true});
          opened = !standalone;
          add(i, launch_slot::standalone);
        }
      id anchor = none_id, first = none_id;
      for (id i = 0; i < g.size; ++i)
        if (member(i) && p.rows.round[i] == round && p.rows.dependence_of[i] != row_dependence::whole) {
          if (first < 0) first = i;
          const bool better = anchor < 0 || (g[i].what == op::matmul && g[anchor].what != op::matmul);
          if (is_anchor(i) && better) anchor = i;
        }
      if (first < 0) continue;
      const id at = anchor >= 0 ? anchor : first;
      open(rows_launch{at});
      for (id i = 0; i < g.size; ++i)
        if (member(i) && p.rows.round[i] == round && p.rows.dependence_of[i] != row_dependence::whole)
          add(i, p.rows.dependence_of[i] == row_dependence::sum ? launch_slot::reduce
                 : i == anchor                                  ? launch_slot::mainloop
                                                                : launch_slot::branch);
      assign_slots(p.launches.size() - 1, anchor);
    }
  }
  [[gnu::cold]] constexpr void assign_slots(int launch, id anchor) {
    for (id i = 0; i < g.size; ++i) {
      if (p.launch_of[i] != launch || p.slot_of[i] != launch_slot::branch) continue;
      for (int k = 0; k < 3; ++k)
        if (const id o = g[i].operand(k); o >= 0 && p.launch_of[o] == launch)
          if (p.slot_of[o] == launch_slot::mainloop || p.slot_of[o] == launch_slot::epilogue)
            p.slot_of[i] = launch_slot::epilogue;
      if (anchor < 0) p.slot_of[i] = launch_slot::epilogue;
    }
    if (anchor < 0) return;
    node_set before(g.size);
    before.add(anchor);
    for (id i = anchor; i >= 0; --i)
      for (int k = 0; before[i] && k < 3; ++k)
        if (const id o = g[i].operand(k); o >= 0 && p.launch_of[o] == launch && p.slot_of[o] != launch_slot::reduce)
          before.add(o), p.slot_of[o] = launch_slot::prologue;
  }
  [[gnu::cold]] constexpr void mark_nodes_whole() {
    p.rows = {sequence<row_dependence>(g.size, row_dependence::none), sequence<int>(g.size, -1),
              sequence<int>(g.size, 0)};
    for (id i = 0; i < g.size; ++i)
      if (member(i)) p.rows.dependence_of[i] = row_dependence::whole;
  }
  [[gnu::cold]] constexpr void launch_each_node() {
    mark_nodes_whole();
    for (id i = 0; i < g.size; ++i)
      if (member(i) && g[i].what != op::reshape) open(nodes_launch{i}), add(i, launch_slot::standalone);
  }
};
}  // namespace detail
[[gnu::cold]] constexpr launch_plan fuse(const graph& g, const target& to = cpu_target) {
  launch_plan p;
  detail::planner m{g, p};
  p.to = to;
  p.when = schedule(g);
  p.live = reachable(g);
  p.launch_of = sequence<int>(g.size, -1);
  p.slot_of = sequence<launch_slot>(g.size, launch_slot::none);
  for (id i = 0; i < g.size; ++i)
    if (p.live[i] && to.is_graph_break(g[i].what)) {
      ++p.breaks;
      if (p.first_break < 0) p.first_break = i;
    }
  if (to.granularity == target::work::by_rows)
    m.fuse_rows();
  else if (to.fuse_products)  // by_nodes: it still plans the kinds that are matched by nodes
    to.fuse_products(m);
  else
    m.launch_each_node();
  return p;
}
}  // namespace graft
namespace graft {
struct plan_fingerprint {
  sequence<unsigned> words;
  unsigned long long key = 14695981039346656037ULL;  // FNV-1a over the words
  constexpr void add(unsigned w) {
    words.push(w);
    for (unsigned k = 0; k < 4; ++k) key = (key ^ ((w >> (8 * k)) & 0xffU)) * 1099511628211ULL;
  }
  friend constexpr bool operator==(const plan_fingerprint& a, const plan_fingerprint& b) {
    if (a.words.size() != b.words.size()) return false;
    for (int i = 0; i < a.words.size(); ++i)
      if (a.words[i] != b.words[i]) return false;
    return true;
  }
};
constexpr plan_fingerprint fingerprint_of(const graph& g, const launch_plan& p) {
  plan_fingerprint out;
  sequence<unsigned> position(g.size, 0);
  unsigned next = 0;
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    if (!p.live[i] || p.when.of[i] != stage::call) continue;
    position[i] = next++;
    const unsigned flags = (v.ta ? 0x100U : 0U) | (v.tb ? 0x200U : 0U) | (v.sum ? 0x400U : 0U);
    out.add(static_cast<unsigned>(v.what) | flags | (static_cast<unsigned>(p.slot_of[i]) << 16U));
    out.add(static_cast<unsigned>(p.launch_of[i]));
    for (int k = 0; k < 3; ++k) {
      const id o = v.operand(k);
      out.add(o < 0 ? 0xffffffffU : p.when.of[o] == stage::call ? position[o] : 0xfffffffeU);
    }
    for (const dim argument : v.k)  // axes and norm kinds are kernel properties, sizes are not
      if (argument.is_static()) out.add(static_cast<unsigned>(argument.v));
    if (traits_of(v.what).kind == op_class::attention && v.value != 0) out.add(0xfffffffdU);  // a soft cap of any size
  }
  return out;
}
}  // namespace graft
namespace graft {
struct device {  // peak rates of a machine, for the roofline of a cost
  const char* name;
  double flops_per_second, bytes_per_second;
};
struct cost {
  long long load_flops = 0, parameter_flops = 0, flops = 0;  // once per load, per change of parameters, per call
  long long bytes = 0;                                       // moved by a call
  long long precomputed_bytes = 0;    // bytes of load- and parameter-stage values that calls read
  long long largest_precomputed = 0;  // elements of the largest precomputed value
  constexpr double roofline_seconds(device d) const {
    const double compute = static_cast<double>(flops) / d.flops_per_second;
    const double move = static_cast<double>(bytes) / d.bytes_per_second;
    return compute > move ? compute : move;
  }
};
[[gnu::cold]] constexpr long long flops_of(const graph& g, id i, const size_values& s) {
  const node& v = g[i];
  const long long n = element_count(g, i, s);
  auto size = [&](id a, int k) { return g.sizes.value(g[a].d[k], s); };
  switch (traits_of(v.what).kind) {
    case op_class::leaf:
    case op_class::layout:
    case op_class::lookup: return 0;
    case op_class::pointwise: return v.what == op::detach ? 0 : n;
    case op_class::product: {
      if (v.what == op::grouped_matmul) return saturating_multiply(saturating_multiply(2, size(v.a, 3)), n);
      if (v.what == op::grouped_wgrad)
        return saturating_multiply(saturating_multiply(2 * size(v.a, 3), size(v.b, 3)), size(v.a, 2));
      const long long inner = size(v.a, v.ta ? 2 : 3);
      const long long matrices = v.sum ? size(v.a, 0) * size(v.a, 1) : 1;
      return saturating_multiply(saturating_multiply(2 * inner, matrices), n);
    }
    case op_class::reduction: return saturating_multiply(v.what == op::row_dot ? 2 : 1, element_count(g, v.a, s));
    case op_class::rotation: {
      const id blocks = v.what == op::rotate ? v.b : v.c;
      const long long each =
          saturating_multiply(saturating_multiply(2 * size(blocks, 3), size(blocks, 0)), element_count(g, v.a, s));
      return v.what == op::rotate ? each : saturating_multiply(3, each);
    }
    case op_class::algebra:
      if (v.what == op::kron || v.what == op::row_kron) return n;
      if (v.what == op::inverse || v.what == op::orthonormal) return saturating_multiply(2 * size(v.a, 3), n);
      return saturating_multiply(saturating_multiply(2 * size(v.a, 3), g.sizes.value(v.k[0], s)), n);
    case op_class::rowwise: return saturating_multiply(8, n);
    case op_class::attention: {  // assumes one sequence: a row attends to half of the rows, or to the whole KV cache
      const long long width = size(v.what == op::attention_grad ? v.c : i, 3), rows = size(v.a, 2);
      if (v.what == op::cached_attention)
        return saturating_multiply(saturating_multiply(4 * rows, size(v.c, 2)), width);
      return saturating_multiply(saturating_multiply((v.what == op::attention ? 2 : 5) * rows, rows), width);
    }
    case op_class::collective:
    case op_class::opaque: return 0;
  }
  return 0;
}
[[gnu::cold]] constexpr long long call_flops(const graph& g, const size_values& s) {
  long long flops = 0;
  sequence<bool> data(g.size, false);
  for (id i = 0; i < g.size; ++i) {
    const node& v = g.n[i];
    data[i] = traits_of(v.what).known_at == stage::call;
    for (int k = 0; k < 3 && !data[i]; ++k) data[i] = v.operand(k) >= 0 && data[v.operand(k)];
    if (data[i]) flops = saturating_add(flops, flops_of(g, i, s));
  }
  return flops;
}
[[gnu::cold]] constexpr cost cost_of(const graph& g, const size_values& s, const quant_format& stored, dtype moved) {
  cost c;
  const stages when = schedule(g);
  const node_set live = reachable(g);
  node_set counted(g.size);
  auto bytes = [&](id i, dtype t) {
    const long long n = element_count(g, i, s);
    return saturating_add(saturating_multiply(n / 8, bits_of(t)), (n % 8 * bits_of(t) + 7) / 8);
  };
  auto stored_bytes = [&](id i) {
    const long long n = element_count(g, i, s), cols = g.sizes.value(g[i].d[3], s);
    if (stored.plain()) return bytes(i, stored.type);
    return cols == 0 || n == cols || n > (1LL << 50) ? bytes(i, moved) : bytes_of(stored, n / cols, cols);
  };
  auto add = [](long long& to, long long n) { to = saturating_add(to, n); };
  auto count_read = [&](id i) {
    i = unshaped(g, i);
    if (i < 0 || counted[i]) return;
    const node& v = g[i];
    const bool computed = !is_leaf(v.what);
    if (computed ? when.of[i] == stage::call : traits_of(v.what).from == source::generated) return;
    counted.add(i);
    if (traits_of(v.what).from == source::integers)
      add(c.bytes, bytes(i, dtype::i64));
    else
      add(c.bytes, v.what == op::base ? stored_bytes(i) : bytes(i, moved));
    if (!computed) return;
    add(c.precomputed_bytes, bytes(i, moved));
    if (element_count(g, i, s) > c.largest_precomputed) c.largest_precomputed = element_count(g, i, s);
  };
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    if (!live[i] || is_leaf(v.what)) continue;
    const long long f = flops_of(g, i, s);
    add(when.of[i] == stage::call ? c.flops : when.of[i] == stage::parameter ? c.parameter_flops : c.load_flops, f);
    if (when.of[i] != stage::call || v.what == op::reshape) continue;
    if (v.what == op::grouped_matmul && when.of[v.b] != stage::call) {
      const long long experts = g.sizes.value(g[v.b].d[1], s), rows = g.sizes.value(g[v.a].d[2], s);
      const id w = unshaped(g, v.b);
      if (rows < experts && experts > 0 && !counted[w]) {
        counted.add(w),
            add(c.bytes, saturating_multiply(bytes(w, g[w].what == op::base ? stored.type : moved) / experts, rows));
        if (!is_leaf(g[w].what)) add(c.precomputed_bytes, bytes(w, moved));
      }
    }
    const bool by_row = traits_of(v.what).axes == axis_flow::gather;  // a look-up reads only the rows that the ids name
    if (by_row) add(c.bytes, bytes(i, moved));
    for (int o = by_row ? 1 : 0; o < 3; ++o) count_read(v.operand(o));
  }
  for (int k = 0; k < g.outs; ++k) add(c.bytes, bytes(g.out[k].at, moved));
  return c;
}
[[gnu::cold]] constexpr double training_step_work(const graph& g, const size_values& s,
                                                  const sequence<bool>& reused = {}) {
  const stages when = schedule(g);
  const node_set live = reachable(g);
  double work = 0;
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    const bool is_reused = !reused.empty() && reused[i] && when.of[i] == stage::parameter;
    if (!live[i] || is_leaf(v.what) || v.what == op::reshape || when.of[i] == stage::load || is_reused) continue;
    double elements = static_cast<double>(element_count(g, i, s));
    for (int k = 0; k < 3; ++k)
      if (v.operand(k) >= 0) elements += static_cast<double>(element_count(g, v.operand(k), s));
    work += static_cast<double>(flops_of(g, i, s)) + 8 * elements;
  }
  return work;
}
inline constexpr long long large_weight = 1LL << 19;
constexpr bool worth_folding(long long branch_flops, long long folded_flops, bool widens, long long elements) {
  const double most = widens ? 1.25 : elements < large_weight ? 1.1 : 1.05;
  return folded_flops > 0 && static_cast<double>(branch_flops) > most * static_cast<double>(folded_flops);
}
}  // namespace graft
namespace graft {
[[gnu::cold]] constexpr size_values sizes_for(const graph& to, const graph& from, const size_values& s) {
  size_values t;
  for (int i = 0; i < to.sizes.count; ++i) {
    const size_entry& e = to.sizes.e[i];
    if (e.index < 0) continue;
    if (const int index = from.sizes.find_like(to.sizes, e); index >= 0) t.v[e.index] = s.v[index];
  }
  return t;
}
constexpr size_values with_nominals(const graph& g, size_values s) {
  for (int i = 0; i < g.sizes.count; ++i)
    if (const size_entry& e = g.sizes.e[i]; e.index >= 0 && s.v[e.index] == unknown) s.v[e.index] = e.assumed();
  return s;
}
struct launch_facts {
  const graph& g;
  const launch_plan& p;
  const size_values& s;
  dtype type;  // the element type of weights and activations
  const quant_format& stored;
};
[[gnu::cold]] constexpr sequence<id> padded_operands(const graph& g, const launch_plan& p, const launch& of,
                                                     const size_values& s, dtype type) {
  sequence<id> found;
  const auto& is_padded = p.to.can<wgrad_launch>().operand_is_padded;
  if (!is_padded) return found;
  node_set seen(g.size);
  for (const launch& l : p.launches) {
    p.each_wgrad(l, [&](int sum) {
      const wgrad_launch& w = p.all<wgrad_launch>()[sum];
      for (const id i : {w.left, w.right}) {
        if (w.by_column || seen[i] || !is_call_input(g, i)) continue;
        if (!is_padded(g.sizes.value(g[i].d[3], s), type, p.to)) continue;
        seen.add(i);
        if (&l == &of) found.push(i);
      }
    });
    if (&l == &of) break;
  }
  return found;
}
constexpr int kernel_count(const graph& g, const launch_plan& p, const launch& l, const size_values& s, dtype type,
                           const quant_format& stored) {
  int n = 0;
  p.visit(l, [&](const auto& one) { n = one.kernels(launch_facts{g, p, s, type, stored}); });
  for (const id i : padded_operands(g, p, l, s, type)) n += element_count(g, i, s) == 0 ? 0 : 1;
  return n;
}
constexpr int kernel_count(const graph& g, const launch_plan& p, const size_values& s, dtype type,
                           const quant_format& stored = {}) {
  int n = 0;
  for (const launch& l : p.launches) n += kernel_count(g, p, l, s, type, stored);
  return n;
}
[[gnu::cold]] constexpr bool folds(const graph& branch, const launch_plan& branched, const launch_plan& folded,
                                   const size_values& s) {
  auto one_product = [](const launch_plan& p) { return p.products.size() == 1 && p.launches.size() == 1; };
  if (!one_product(folded)) return false;
  for (const launch& l : branched.launches)
    if (branch[branched.anchor_of(l)].what == op::rotate) return true;
  for (const gemm_slots& product : branched.products)
    if (product.input_rotation >= 0) return true;
  const bool inside = branched.products.size() == 1 && branched.products[0].residual < 0;
  return !inside || branch_rank(branch, branched.products[0], with_nominals(branch, s)) >
                        branched.to.can<gemm_launch>().max_branch_rank;
}
[[gnu::cold]] constexpr bool folds(const target& to, const graph& branch, const graph& folded, const size_values& s,
                                   dtype stored = dtype::bf16) {
  const size_values of_branch = with_nominals(branch, s),
                    of_folded = with_nominals(folded, sizes_for(folded, branch, of_branch));
  if (to.granularity == target::work::by_nodes) return false;
  if (to.granularity == target::work::by_rows) {
    const long long plain = call_flops(folded, of_folded), tokens = folded.sizes.tokens(of_folded);
    const long long elements = tokens > 0 ? plain / tokens / 2 : 0;
    const bool widens = bits_of(stored) < bits_of(dtype::f32);
    for (id i = 0; !widens && elements >= large_weight && i < branch.size; ++i)
      if (branch[i].what == op::rotate && branch.sizes.value(branch[branch[i].b].d[0], of_branch) > 1) return true;
    return worth_folding(call_flops(branch, of_branch), plain, widens, elements);
  }
  return folds(branch, fuse(branch, to), fuse(folded, to), s);
}
[[gnu::cold]] constexpr long long weighted_flops(const graph& g, const launch_plan& p, const size_values& s) {
  constexpr long long narrow = 64;
  const long long slower = p.to.can<nodes_launch>().flop_factor;
  long long flops = call_flops(g, s);
  for (const launch& l : p.launches) {
    const id i = p.anchor_of(l);
    const node& v = g[i];
    if (!l.is<nodes_launch>() || l.count != 1 || v.what != op::matmul) continue;
    if (g.sizes.value(v.d[2], s) <= narrow || g.sizes.value(v.d[3], s) <= narrow) continue;
    flops = saturating_add(flops, saturating_multiply(slower - 1, flops_of(g, i, s)));
  }
  return flops;
}
struct training_graphs {  // with saved tensors as outputs of forward and inputs of backward
  graph forward, backward;
};
[[gnu::cold]] constexpr bool trains_folded(const target& to, const training_graphs& usual,
                                           const training_graphs& in_weight, size_values s) {
  if (to.granularity != target::work::by_products) return false;
  const launch_plan branched = fuse(usual.forward, to), plain = fuse(in_weight.forward, to);
  if (branched.products.size() != 1 || plain.products.size() != 1 || plain.launches.size() != 1) return false;
  const id weight = plain.products[0].weight;
  if (!low_rank_update_at(in_weight.forward, weight).found) return false;
  const bool computed = branched.launches.size() == 1 && base_leaf(usual.forward, branched.products[0].weight) < 0;
  if (!computed && branch_rank(usual.forward, branched.products[0], s) <= to.can<gemm_launch>().max_branch_rank)
    return false;
  const size_values mine = sizes_for(in_weight.forward, usual.forward, s);
  if (!computed &&
      in_weight.forward.sizes.tokens(mine) < in_weight.forward.sizes.value(in_weight.forward[weight].d[3], mine))
    return false;
  auto flops = [&](const training_graphs& t, const launch_plan& forward) {
    return saturating_add(weighted_flops(t.forward, forward, sizes_for(t.forward, usual.forward, s)),
                          weighted_flops(t.backward, fuse(t.backward, to), sizes_for(t.backward, usual.forward, s)));
  };
  return flops(in_weight, plain) < flops(usual, branched);
}
}  // namespace graft
namespace graft {
[[gnu::cold]] constexpr void print(text& t, const size_table& z, dim d, bool nested = false) {
  if (d.is_static()) {
    t << d.v;
    return;
  }
  const size_entry& e = z.e[d.entry()];
  using enum size_entry::kind;
  if (e.what == name) return z.paths.print(t, e.path), void(t << e.name);
  if (nested) t << '(';
  switch (e.what) {
    case name: break;
    case sum: print(t, z, e.a, true), t << " + ", print(t, z, e.b, true); break;
    case difference: print(t, z, e.a, true), t << " - ", print(t, z, e.b, true); break;
    case product: print(t, z, e.a, true), t << ' ', print(t, z, e.b, true); break;
    case quotient: print(t, z, e.a, true), t << '/', print(t, z, e.b, true); break;
    case triangle: print(t, z, e.a, true), t << '(', print(t, z, e.a, true), t << "-1)/2"; break;
    case window: t << "out_", print(t, z, e.a); break;
    case butterfly: print(t, z, e.a, true), t << " 2^(", print(t, z, e.b, true), t << "-1)"; break;
  }
  if (nested) t << ')';
}
[[gnu::cold]] constexpr void print_shape(text& t, const graph& g, id i) {
  const node& v = g[i];
  int first = 0;
  if (is_leaf(v.what) && v.rank == 1) {
    t << '[', print(t, g.sizes, v.what == op::ids ? v.d[3] : v.d[2]), t << ']';
    return;
  }
  while (first < 2 && v.d[first] == dim{1}) ++first;
  t << '[';
  for (int k = first; k < 4; ++k) {
    if (k > first) t << ", ";
    print(t, g.sizes, v.d[k]);
  }
  t << ']';
}
struct print_style {
  const bool* named = nullptr;
  int depth = 12;
};
constexpr bool needs_parentheses(op child, op parent, bool right) {
  auto sum = [](op o) { return o == op::add || o == op::sub; };
  auto factor = [](op o) { return o == op::mul || o == op::div; };
  if (traits_of(child).infix[0] == '\0' || traits_of(parent).kind == op_class::leaf) return false;
  if (sum(parent)) return sum(child) && right && parent == op::sub;
  if (factor(parent)) return !factor(child) || (right && (parent == op::div || child == op::div));
  if (parent == op::matmul) return child != op::matmul || right;
  return parent == op::transpose;
}
[[gnu::cold]] constexpr void print_number(text& t, double v) {
  if (v < 0) t << '-', v = -v;
  int exponent = 0;
  if (v > 0 && v < 1e-4)
    while (v < 1) v *= 10, --exponent;
  const auto whole = static_cast<long long>(v);
  t << whole;
  double rest = v - static_cast<double>(whole);
  if (rest > 1e-7) t << '.';
  for (int k = 0; k < 6 && rest > 1e-7; ++k) {
    rest *= 10;
    const auto digit = static_cast<int>(rest);
    t << digit;
    rest -= digit;
  }
  if (exponent < 0) t << 'e' << exponent;
}
[[gnu::cold]] constexpr void print(text& t, const graph& g, id i, print_style style = {}, op parent = op::zero,
                                   bool right = false, bool root = true) {
  const node& v = g[i];
  if (v.what == op::constant) return print_number(t, v.value);
  if (v.what == op::number) return print(t, g.sizes, v.k[0], true);
  if (v.what == op::saved) return void(t << v.name << v.k[0].v);
  if (is_leaf(v.what)) return g.paths().print(t, v.path), void(t << v.name);
  if (!root && (style.depth == 0 || (style.named != nullptr && style.named[i]))) {
    t << 't' << i;
    return;
  }
  --style.depth;
  const op_traits r = traits_of(v.what);
  auto inner = [&](id o, op around, bool on_right) { print(t, g, o, style, around, on_right, false); };
  if (v.what == op::reshape) return inner(v.a, parent, right);
  if (v.what == op::transpose) {
    inner(v.a, op::transpose, false), t << "'";
    return;
  }
  if (r.infix[0] != '\0') {
    const bool wrap = needs_parentheses(v.what, parent, right);
    if (wrap) t << '(';
    inner(v.a, v.ta ? op::transpose : v.what, false), t << (v.ta ? "'" : "") << r.infix;
    inner(v.b, v.tb ? op::transpose : v.what, true), t << (v.tb ? "'" : "") << (wrap ? ")" : "");
    return;
  }
  t << (v.what == op::host ? v.name : r.name);
  if (v.what == op::rotate && v.tb) t << "_back";
  if (v.what == op::gather && v.ta) t << "_columns";
  if (v.what == op::circulant) t << (v.tb ? "_mirrored" : "") << (v.ta ? "_sum" : "");
  t << '(';
  for (int k = 0; k < r.arity; ++k) {
    if (k > 0) t << ", ";
    inner(v.operand(k), op::zero, false);
  }
  if (v.what == op::neumann || v.what == op::topk_softmax) t << ", ", print(t, g.sizes, v.k[0]);
  if (traits_of(v.what).axes == axis_flow::mix_axis) t << ", axis " << v.k[0].v;
  if (v.what == op::slice) t << " from ", print(t, g.sizes, v.k[1]), t << " size ", print(t, g.sizes, v.d[v.k[0].v]);
  if (v.what == op::permute)
    for (const dim axis : v.k) t << ", " << axis.v;
  if (v.what == op::repeat || v.what == op::fold_columns) t << ", ", print(t, g.sizes, v.d[3]);
  t << ')';
}
[[gnu::cold]] constexpr text expression(const graph& g, id i, print_style style = {}) {
  text t;
  print(t, g, i, style);
  return t;
}
}  // namespace graft
namespace graft {
[[gnu::cold]] constexpr void print_shaped(text& t, const graph& g, id i, int depth) {
  if (is_leaf(g[i].what))
    print(t, g, i);
  else
    t << '(', print(t, g, i, {nullptr, depth}), t << ')';
  print_shape(t, g, i);
}
[[gnu::cold]] constexpr text shaped(const graph& g, id i) {
  text t;
  if (i >= 0) print_shaped(t, g, i, 3);
  return t;
}
[[gnu::cold]] constexpr text located(const graph& g, id i) {
  if (i < 0 || is_leaf(g[i].what)) return shaped(g, i);
  text t;
  print(t, g, i, {nullptr, 3});
  for (int k = 0; k < traits_of(g[i].what).arity; ++k) {
    t << (k == 0 ? " with " : " and ");
    print_shaped(t, g, g[i].operand(k), 1);
  }
  return t;
}
[[gnu::cold]] constexpr text located(const graph& g, const requirement& r) {
  if (r.at >= 0) return located(g, r.at);
  text t;
  print(t, g.sizes, r.lhs, true), t << (r.what == requirement::kind::divides ? " / " : " = "),
      print(t, g.sizes, r.rhs, true);
  return t;
}
[[gnu::cold]] constexpr text describe(const graph& g, const requirement& r, const size_values& s) {
  text t;
  const long long lhs = g.sizes.value(r.lhs, s), rhs = g.sizes.value(r.rhs, s);
  switch (r.what) {
    case requirement::kind::inner: t << "inner sizes differ: " << lhs << " and " << rhs; break;
    case requirement::kind::same: t << "sizes differ: " << lhs << " and " << rhs; break;
    case requirement::kind::square:
      t << "the matrix is not square: " << lhs << " rows and " << rhs << " columns";
      break;
    case requirement::kind::at_most: t << lhs << " is more than " << rhs; break;
    case requirement::kind::divides: t << rhs << " does not divide " << lhs; break;
  }
  t << " in " << located(g, r);
  if (r.line > 0) t << ", line " << r.line << " of the formula";
  return t;
}
constexpr bool holds(const graph& g, const requirement& r, const size_values& s) {
  const long long lhs = g.sizes.value(r.lhs, s), rhs = g.sizes.value(r.rhs, s);
  if (lhs == unknown || rhs == unknown) return true;  // cannot be decided before the size is bound
  if (r.what == requirement::kind::at_most) return lhs <= rhs;
  return r.what == requirement::kind::divides ? rhs > 0 && lhs % rhs == 0 : lhs == rhs;
}
[[gnu::cold]] constexpr const requirement* first_violated(const graph& g, const size_values& s) {
  for (int i = 0; i < g.needs; ++i)
    if (!holds(g, g.need[i], s)) return &g.need[i];
  return nullptr;
}
[[gnu::cold]] constexpr long long smallest_size(const graph& g, id i, const size_values& s) {
  long long least = unknown;
  for (dim d : g[i].d)
    if (const long long n = g.sizes.value(d, s); n != unknown && (least == unknown || n < least)) least = n;
  return least;
}
[[gnu::cold]] constexpr id first_empty(const graph& g, const size_values& s) {
  for (int i = 0; i < g.size; ++i) {
    if (!is_leaf(g.n[i].what)) continue;
    if (const long long n = smallest_size(g, static_cast<id>(i), s); n != unknown && n < 1) return static_cast<id>(i);
  }
  return none_id;
}
}  // namespace graft
namespace graft {
[[gnu::cold]] constexpr text why_several_kernels(const graph& g, const launch_plan& p, const launch& l,
                                                 const size_values& s, dtype type, const quant_format& stored) {
  text why;
  p.visit(l, [&]<class Kind>(const Kind& one) {
    const launch_facts facts{g, p, s, type, stored};
    if constexpr (requires { one.why_several(facts); })
      if (kernel_count(g, p, l, s, type, stored) > 1) why = one.why_several(facts);
  });
  return why;
}
[[gnu::cold]] constexpr text why_several_kernels(const graph& g, const launch_plan& p, const size_values& s, dtype type,
                                                 const quant_format& stored, int most = 4) {
  text t;
  if (p.launches.size() == 1) t = why_several_kernels(g, p, p.launches[0], s, type, stored);
  if (!t.empty()) return t;
  for (int k = 0; k < p.launches.size() && k < most; ++k) {
    const launch& l = p.launches[k];
    const int n = kernel_count(g, p, l, s, type, stored);
    if (k > 0) t << "; ";
    t << "launch " << k << " computes ", print(t, g, p.nodes[l.first + l.count - 1], {nullptr, 4});
    if (n > 1) t << " in " << n << " kernels";
    const text why = why_several_kernels(g, p, l, s, type, stored);
    if (!why.empty()) t << ", because " << why;
  }
  if (p.launches.size() > most) t << "; and " << p.launches.size() - most << " more";
  return t;
}
}  // namespace graft
namespace graft {
namespace detail {
template <class Element> struct element_traits {  // any other type raises not_an_element_type
  using type = float;
  static constexpr dtype stored = dtype::f32;
  static constexpr quant_format format{};
};
template <class Element>
requires requires { storage<Element>::type; }
struct element_traits<Element> {
  using type = typename storage<Element>::compute;
  static constexpr quant_format format = quant_format_of<Element>();
  static constexpr dtype stored =
      format.plain() ? storage<Element>::type : dtype::bf16;  // the type that GEMMs read dequantized values as
};
struct plan_facts {
  int launches = 0, breaks = 0;
  id first_break = none_id;
  unsigned long long key = 0;
};
constexpr plan_facts facts_of(const graph& g, const target& to) {
  const launch_plan p = fuse(g, to);
  return {p.launches.size(), p.breaks, p.first_break, fingerprint_of(g, p).key};
}
template <class Derived, const target& To> struct plans {
  static constexpr plan_facts forward = facts_of(Derived::forward, To);
  static constexpr plan_facts folded = facts_of(Derived::folded, To);
  static constexpr plan_facts backward = facts_of(Derived::backward, To);
};
}  // namespace detail
template <class Layer, const target& To> struct plan_of {
  using layer = Layer;
  using real = typename detail::element_traits<typename Layer::element>::type;
  using d = derived_of<Layer>;
  static constexpr const target& runs_on = To;
  static constexpr bool is_quantized = !detail::element_traits<typename Layer::element>::format.plain();
  static constexpr bool prefers_folding = folds(To, d::forward, d::folded, static_sizes<Layer>(d::forward),
                                                detail::element_traits<typename Layer::element>::stored);
  static constexpr bool folded = prefers_folding && !is_quantized;
  static constexpr long long folded_bytes = [] {
    if (!folded) return 0LL;
    constexpr dtype stored =
        To.is_cpu() ? storage<real>::type : detail::element_traits<typename Layer::element>::stored;
    const graph& g = d::folded;
    const size_values s = static_sizes<Layer>(g);
    for (id i = 0; i < g.size; ++i)
      if (g[i].what == op::base && same_text(g[i].name, "weight")) {
        for (const dim size : g[i].d)
          if (g.sizes.value(size, s) == unknown) return static_cast<long long>(unknown);
        return element_count(g, i, s) * bits_of(stored) / 8;
      }
    return static_cast<long long>(unknown);
  }();
  static constexpr graph forward_graph() { return folded ? d::folded : d::forward; }
  static constexpr int kernels_at(long long tokens) {
    if (!To.can<gemm_launch>().kernels && !To.can<nodes_launch>().kernels)  // every launch is one kernel
      return folded ? detail::plans<d, To>::folded.launches : detail::plans<d, To>::forward.launches;
    const graph& g = folded ? d::folded : d::forward;
    using numbers = detail::element_traits<typename Layer::element>;
    return kernel_count(g, fuse(g, To), sizes_of_call(tokens), numbers::stored,
                        is_quantized ? numbers::format : quant_format{});
  }
  static constexpr text why_several_kernels(long long tokens = 0) {
    const graph& g = folded ? d::folded : d::forward;
    using numbers = detail::element_traits<typename Layer::element>;
    return graft::why_several_kernels(g, fuse(g, To), sizes_of_call(tokens), numbers::stored,
                                      is_quantized ? numbers::format : quant_format{});
  }
  static constexpr int kernels = kernels_at(0);
  static constexpr int graph_breaks = detail::plans<d, To>::forward.breaks;
  static constexpr unsigned long long key =
      folded ? detail::plans<d, To>::folded.key : detail::plans<d, To>::forward.key;
  static constexpr bool mergeable = d::merge.bad.what == formula_error::none;
  static constexpr bool unmergeable = d::unmerging.weight && d::unmerging.saved == 0;
  static constexpr int saved_for_unmerge = d::unmerging.saved;
 private:
  static constexpr size_values sizes_of_call(long long tokens) {
    const graph& g = folded ? d::folded : d::forward;
    size_values s = with_nominals(g, static_sizes<Layer>(g));
    if (tokens > 0) g.sizes.set_tokens(s, tokens);
    return s;
  }
};
}  // namespace graft
namespace graft {
template <class Layer> constexpr bool static_sizes_known() {
  for (const named_size& n : Layer::sizes)
    if (n.value == dyn) return false;
  const size_table& z = derived_of<Layer>::literal.sizes;
  const size_values s = static_sizes<Layer>(derived_of<Layer>::literal);
  for (int i = 0; i < z.count; ++i)
    if (z.e[i].index >= 0 && s.v[z.e[i].index] == unknown && !z.e[i].tokens) return false;
  return true;
}
template <class Layer> constexpr size_values sizes_at(const graph& g, long long tokens) {
  size_values s = static_sizes<Layer>(g);
  g.sizes.set_tokens(s, tokens);
  return s;
}
template <class Layer> constexpr cost cost_for(const graph& g, long long tokens) {
  using numbers = detail::element_traits<typename Layer::element>;
  return cost_of(g, sizes_at<Layer>(g, tokens), numbers::format, numbers::stored);
}
template <class Layer> constexpr cost branch_cost(long long tokens) {
  return cost_for<Layer>(derived_of<Layer>::forward, tokens);
}
template <class Layer> constexpr cost folded_cost(long long tokens) {
  return cost_for<Layer>(derived_of<Layer>::folded, tokens);
}
template <class Layer, const target& To = cpu_target> constexpr cost forward_cost(long long tokens) {
  return plan_of<Layer, To>::folded ? folded_cost<Layer>(tokens) : branch_cost<Layer>(tokens);
}
template <class Layer> constexpr cost backward_cost(long long tokens) {
  return cost_for<Layer>(derived_of<Layer>::backward, tokens);
}
}  // namespace graft
namespace graft {
struct fullgraph {};   // requires that there is no graph break
struct training {};    // requires a gradient for every parameter
struct one_kernel {};  // requires one kernel per forward call on the target
template <const target& Target> struct for_target {};
namespace detail {
template <class A, class B> inline constexpr bool same_type = false;
template <class A> inline constexpr bool same_type<A, A> = true;
template <class Wanted, class... Options> inline constexpr bool has_option = (same_type<Wanted, Options> || ...);
template <class T> struct type_is {
  using type = T;  // names a diagnostic without instantiating it, which would raise its error
};
template <bool> struct constant {};
template <class Layer> struct without_adapter : Layer { using adapter = none; };
template <class... Options> struct chosen { static constexpr const target& to = cpu_target; };
template <class Option, class... Options> struct chosen<Option, Options...> : chosen<Options...> {};
template <const target& Target, class... Options> struct chosen<for_target<Target>, Options...> {
  static constexpr const target& to = Target;
};
constexpr builder capture_formula(const layer_formula& f) {
  builder g;
  const scope p{&g};
  const ex W = f.kind.matrix(p, f.kind.weight(p)), b = base_bias(f, p);
  const ex adapted[2] = {f.adapter.weight(p, W), f.adapter.adapted_bias(p, b, {W, b})}, base[2] = {W, b};
  g.add_output(adapted[0].i, "weight"), g.add_output(adapted[1].i, "bias");
  g.add_output(base[0].i, "base weight"), g.add_output(base[1].i, "base bias");
  return canonical(g);
}
template <class Layer> struct captured_formula {
  static constexpr graph g = captured<capture_formula, derived_of<Layer>>::stored;
};
struct shape_change {
  int output = -1, axis = 0;
};
constexpr shape_change changed_shape(const graph& g, const size_values& s) {
  for (int k = 0; k < 2; ++k)
    for (int axis = 0; axis < 4; ++axis) {
      const long long now = g.sizes.value(g[g.out[k].at].d[axis], s),
                      before = g.sizes.value(g[g.out[k + 2].at].d[axis], s);
      if (now != unknown && before != unknown && now != before) return {k, axis};
    }
  return {};
}
constexpr bool formula_works(const layer_formula& f) { return !capture_formula(f).n.empty(); }
constexpr bool forward_works(const layer_formula& f) { return fuse(capture_forward(f)).launches.size() >= 0; }
constexpr bool folded_works(const layer_formula& f) { return !capture_folded(f).n.empty(); }
constexpr bool literal_backward_works(const layer_formula& f) { return !capture_literal_backward(f).n.empty(); }
constexpr bool backward_works(const layer_formula& f) { return !capture_backward(f).n.empty(); }
constexpr bool unmerge_works(const layer_formula& f) { return unmerge_facts_of(f).saved >= 0; }
template <class Derived>
concept formula_evaluates = requires {
  typename constant<formula_works(Derived::value)>;
};
template <class Layer> inline constexpr bool is_large = captured_formula<Layer>::g.size > 40;
template <class Derived>
concept derivations_evaluate = requires {
  typename constant<forward_works(Derived::value)>;
  typename constant<folded_works(Derived::value)>;
  typename constant<literal_backward_works(Derived::value)>;
  typename constant<backward_works(Derived::value)>;
  typename constant<unmerge_works(Derived::value)>;
};
template <class Layer>
concept graphs_evaluate = !is_large<Layer> || derivations_evaluate<derived_of<Layer>>;
void as_expression(ex);  // never defined; used in a requires-expression
template <class Layer>
concept has_formula = adapter_formula<typename Layer::adapter> && requires(scope p, ex W) {
  as_expression(Layer::adapter::weight(p, W));
} && formula_evaluates<derived_of<Layer>>;
template <std::size_t N> constexpr named_size first_invalid_size(const named_size (&sizes)[N]) {
  for (const named_size& n : sizes)
    if (n.value != dyn && n.value < (same_text(n.name, "padding") ? 0 : 1)) return n;
  return {nullptr, 0};
}
template <class Layer> struct checks {
  static constexpr graph g = captured_formula<Layer>::g;
  static constexpr size_values sizes = static_sizes<Layer>(g);
  static constexpr named_size wrong = first_invalid_size(Layer::sizes);
  static constexpr id empty = first_empty(g, sizes);
  static constexpr const requirement* violated = first_violated(g, sizes);
  static constexpr shape_change changed = changed_shape(g, sizes);
};
template <class Layer> struct wrong_size {
  static constexpr text where = checks<Layer>::wrong.name;
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> struct faulty_name {
  static constexpr text where = checks<Layer>::g.bad.name;
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> struct empty_tensor {
  using check = checks<Layer>;
  static constexpr text where = located(check::g, check::empty);
  static constexpr int line = check::g[check::empty].line;
  static constexpr long long size = smallest_size(check::g, check::empty, check::sizes);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> struct size_mistake {
  using check = checks<Layer>;
  static constexpr requirement r = *check::violated;
  static constexpr long long lhs = check::g.sizes.value(r.lhs, check::sizes);
  static constexpr long long rhs = check::g.sizes.value(r.rhs, check::sizes);
  static constexpr text where = located(check::g, r);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> struct shape_mistake {
  using check = checks<Layer>;
  static constexpr id at = check::g.out[check::changed.output].at;
  static constexpr id base = check::g.out[check::changed.output + 2].at;
  static constexpr int line = check::g[at].line;
  static constexpr long long now = check::g.sizes.value(check::g[at].d[check::changed.axis], check::sizes);
  static constexpr long long expected = check::g.sizes.value(check::g[base].d[check::changed.axis], check::sizes);
  static constexpr text where = shaped(check::g, at);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> struct graph_break {
  static constexpr plan_facts facts = plans<derived_of<Layer>, cpu_target>::forward;
  static constexpr node at = derived_of<Layer>::forward[facts.first_break];
  static constexpr text where = located(derived_of<Layer>::forward, facts.first_break);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Plan> struct several_kernels {
  static constexpr text where = Plan::why_several_kernels();
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> struct no_gradient {
  static constexpr failure at = grad(capture_literal(derived_of<Layer>::value)).bad;
  static constexpr text where = located(derived_of<Layer>::literal, at.at);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Layer> constexpr auto size_verdict() {
  using A = typename Layer::adapter;
  using m = size_mistake<Layer>;
  using enum requirement::kind;
  using namespace diagnostic;
  if constexpr (m::r.what == inner)
    return type_is<inner_sizes_differ<Layer, A, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else if constexpr (m::r.what == same)
    return type_is<sizes_differ<Layer, A, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else if constexpr (m::r.what == square)
    return type_is<matrix_is_not_square<Layer, A, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else if constexpr (m::r.what == at_most)
    return type_is<size_is_too_large<Layer, A, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else
    return type_is<size_is_not_divisible<Layer, A, typename m::words, m::r.line, m::lhs, m::rhs>>{};
}
template <class Layer> constexpr auto fault_verdict() {
  using A = typename Layer::adapter;
  constexpr failure bad = captured_formula<Layer>::g.bad;
  if constexpr (bad.what == formula_error::too_many_sizes)
    return type_is<diagnostic::formula_has_too_many_sizes<Layer, A, max_names>>{};
  else if constexpr (bad.what == formula_error::name_is_taken)
    return type_is<diagnostic::name_is_taken<Layer, A, typename faulty_name<Layer>::words, bad.line>>{};
  else
    return type_is<
        diagnostic::size_is_not_positive<Layer, A, typename faulty_name<Layer>::words, bad.line, bad.number>>{};
}
template <class Layer> constexpr auto break_verdict() {
  using A = typename Layer::adapter;
  using m = graph_break<Layer>;
  constexpr int count = m::facts.breaks;
  if constexpr (same_text(m::at.name, erased_name))
    return type_is<diagnostic::type_erased_adapter_breaks_the_graph<Layer, A, typename m::words, m::at.line, count>>{};
  else if constexpr (m::at.tb)
    return type_is<diagnostic::data_dependent_size_breaks_the_graph<Layer, A, typename m::words, m::at.line, count>>{};
  else
    return type_is<diagnostic::host_function_breaks_the_graph<Layer, A, typename m::words, m::at.line, count>>{};
}
template <class Layer, class... Options> constexpr auto verdict() {
  constexpr bool requires_fullgraph = has_option<fullgraph, Options...>,
                 requires_training = has_option<training, Options...>, one = has_option<one_kernel, Options...>;
  using A = typename Layer::adapter;
  using element = typename Layer::element;
  if constexpr (!has_formula<Layer>) {
    return type_is<diagnostic::not_an_adapter<Layer, A>>{};
  } else if constexpr (!requires { storage<element>::type; }) {
    return type_is<diagnostic::not_an_element_type<Layer, element>>{};
  } else if constexpr (captured_formula<Layer>::g.bad.what != formula_error::none) {
    return fault_verdict<Layer>();
  } else if constexpr (!graphs_evaluate<Layer>) {
    return type_is<diagnostic::formula_is_too_large<Layer, A>>{};
  } else if constexpr (checks<Layer>::wrong.name != nullptr) {
    return type_is<
        diagnostic::size_is_not_positive<Layer, A, typename wrong_size<Layer>::words, 0, checks<Layer>::wrong.value>>{};
  } else if constexpr (checks<Layer>::empty >= 0) {
    using m = empty_tensor<Layer>;
    return type_is<diagnostic::size_is_not_positive<Layer, A, typename m::words, m::line, m::size>>{};
  } else if constexpr (checks<Layer>::violated != nullptr) {
    return size_verdict<Layer>();
  } else if constexpr (checks<Layer>::changed.output >= 0) {
    using m = shape_mistake<Layer>;
    return type_is<diagnostic::formula_changes_the_shape<Layer, A, typename m::words, m::line, m::now, m::expected>>{};
  } else if constexpr (requires_fullgraph && plans<derived_of<Layer>, cpu_target>::forward.breaks > 0) {
    return break_verdict<Layer>();
  } else if constexpr (requires_training && derived_of<Layer>::backward.bad.what == formula_error::not_differentiable) {
    using m = no_gradient<Layer>;
    return type_is<diagnostic::not_differentiable<Layer, A, typename m::words, m::at.line>>{};
  } else if constexpr (one && plan_of<Layer, chosen<Options...>::to>::kernels != 1) {
    using planned = plan_of<Layer, chosen<Options...>::to>;
    using m = several_kernels<planned>;
    return type_is<diagnostic::more_than_one_kernel<Layer, A, typename m::words, planned::kernels>>{};
  } else {
    return type_is<plan_of<Layer, chosen<Options...>::to>>{};
  }
}
template <class Layer, class... Options> struct checked_compile {
  using verdict = decltype(detail::verdict<Layer, Options...>());
};
}  // namespace detail
template <class Layer, class... Options>
using compile = typename detail::checked_compile<Layer, Options...>::verdict::type;
template <class Layer> inline constexpr bool mergeable = compile<Layer>::mergeable;
template <class Layer> inline constexpr bool unmergeable = compile<Layer>::unmergeable;
}  // namespace graft
namespace graft {
namespace detail {
struct slot_writer {
  text& t;
  text last{};
  int times = 0, listed = 0;
  constexpr void add(const text& entry) {
    if (times > 0 && same_text(last.c_str(), entry.c_str())) return void(++times);
    flush(), last = entry, times = 1;
  }
  constexpr void flush() {
    if (times == 0) return;
    t << (listed++ > 0 ? " + " : "");
    times > 1 ? t << times << " x " << last.c_str() : t << last.c_str();
    times = 0;
  }
};
constexpr text words_of(const graph& g, id i) {
  const node& v = g[i];
  text t;
  const bool adds = v.what == op::add || v.what == op::sub, scales = v.what == op::mul || v.what == op::div;
  auto is_shared = [&](id o) { return is_scalar(g[o]) || g[o].d[2] == dim{1}; };
  const id other = !adds && !scales ? none_id : !is_shared(v.b) && is_shared(v.a) ? v.a : v.b;
  if (other >= 0 && is_scalar(g[other])) return t << (adds ? "shift" : "scale");
  if (other >= 0 && g[other].d[2] == dim{1}) {
    t << (adds ? "bias[" : "scale["), print(t, g.sizes, g[other].d[3]);
    return t << ']';
  }
  if (adds) return t << "residual";
  if (scales) return t << "gate";
  switch (v.what) {
    case op::rotate: return t << "rotation";
    case op::rotate_grad: return t << "rotation wgrad";
    case op::sum_to: return t << "column sum";
    case op::silu: return t << "SiLU";
    case op::gelu:
    case op::gelu_tanh: return t << "GELU";
    case op::relu: return t << "ReLU";
    default: return t << traits_of(v.what).name;
  }
}
constexpr void describe_branch(text& t, const graph& g, const sequence<id>& ops, id main) {
  node_set inside(g.size), shrinks(g.size);
  for (const id i : ops) inside.add(i);
  int low_rank = 0, recomputed = 0, ranks = 0;
  for (const id i : ops) {
    if (g[i].what != op::matmul) continue;
    id b = unshaped(g, g[i].b);
    if (b >= 0 && g[b].what == op::transpose) b = unshaped(g, g[b].a);
    if (b >= 0 && g[b].what == op::base) {
      ++recomputed;
      continue;
    }
    ++low_rank;
    id a = unshaped(g, g[i].a);
    while (a >= 0 && inside[a] && g[a].what != op::matmul) a = unshaped(g, g[a].a);
    if (a >= 0 && inside[a]) shrinks.add(a);
  }
  auto print_rank = [&](dim d) { t << (ranks++ > 0 ? " + " : d.is_static() ? " r" : " "), print(t, g.sizes, d); };
  t << (low_rank > 0 ? "low-rank branch" : recomputed > 0 ? "recomputed product" : "branch");
  for (const id i : ops)
    if (shrinks[i]) print_rank(g[i].d[3]);
  for (const id i : ops) {
    if (ranks > 0 || low_rank == 0 || g[i].what != op::matmul) continue;
    const dim made = g[i].d[3];
    const bool is_expand = main >= 0 && (made == g[main].d[3] || (g[main].a >= 0 && made == g[g[main].a].d[3]));
    print_rank(is_expand ? g[g[i].a].d[3] : made);
  }
  slot_writer w{t};
  for (const id i : ops)
    if (const op_class kind = traits_of(g[i].what).kind; g[i].what != op::matmul && kind != op_class::pointwise) {
      if (w.times == 0 && w.listed == 0) t << (low_rank > 0 ? " with " : ": ");
      w.add(words_of(g, i));
    }
  w.flush();
  if (low_rank > 0 && recomputed > 0) t << ", recomputed product";
}
constexpr void count_operations(text& t, const graph& g, const sequence<id>& ops) {
  node_set counted(g.size);
  int listed = 0;
  for (const id i : ops) {
    if (counted[i]) continue;
    int times = 0;
    for (const id k : ops)
      if (g[k].what == g[i].what) ++times, counted.add(k);
    t << (listed++ > 0 ? ", " : "");
    if (times > 1) t << times << ' ';
    t << (g[i].what == op::sum_to ? "sum" : traits_of(g[i].what).name);
  }
}
}  // namespace detail
constexpr void describe_launch(text& t, const graph& g, const launch_plan& p, const launch& l) {
  node_set branch(g.size);
  id main = none_id;
  for (int n = 0; n < l.count; ++n) {
    const id i = p.nodes[l.first + n];
    if (p.slot_of[i] == launch_slot::branch) branch.add(i);
    if (p.slot_of[i] == launch_slot::mainloop) main = i;
  }
  auto in_branch = [&](id i) {
    i = unshaped(g, i);
    return i >= 0 && branch[i];
  };
  sequence<id> alone;
  bool plain = true;  // elementwise operations and layouts only
  for (int n = 0; n < l.count; ++n)
    if (const id i = p.nodes[l.first + n]; p.slot_of[i] == launch_slot::standalone && g[i].what != op::reshape) {
      alone.push(i);
      plain = plain && (is_pointwise(g[i].what) || traits_of(g[i].what).kind == op_class::layout);
    }
  const char* const name = p.name_of(g, l);
  t << (!alone.empty() && plain && same_text(name, "small matrices") ? "elementwise" : name);
  for (const launch_slot s : {launch_slot::prologue, launch_slot::mainloop, launch_slot::branch, launch_slot::epilogue,
                              launch_slot::reduce}) {
    sequence<id> ops;
    int wgrads = 0;
    for (int n = 0; n < l.count; ++n) {
      const id i = p.nodes[l.first + n];
      if (p.slot_of[i] != s || g[i].what == op::reshape) continue;
      const bool adds = g[i].what == op::add || g[i].what == op::sub;
      if (s == launch_slot::epilogue && adds && (in_branch(g[i].a) || in_branch(g[i].b))) continue;
      if (s == launch_slot::reduce && g[i].what == op::matmul)
        ++wgrads;
      else
        ops.push(i);
    }
    const bool said = s == launch_slot::mainloop && ops.size() == 1 &&
                      (traits_of(g[ops[0]].what).kind != op_class::product || g[ops[0]].what == op::matmul);
    if (wgrads > 0) wgrads == 1 ? t << ", fused wgrad" : t << ", " << wgrads << " fused wgrads";
    if (ops.empty() || said) continue;
    t << ", ";
    if (s == launch_slot::branch) {
      detail::describe_branch(t, g, ops, main);
      continue;
    }
    if (s != launch_slot::reduce) t << name_of(s) << ": ";
    detail::slot_writer w{t};
    for (const id i : ops) w.add(detail::words_of(g, i));
    w.flush();
  }
  if (alone.empty()) return;
  t << ": ";
  detail::count_operations(t, g, alone);
}
constexpr void print_si(text& t, long long n) {  // prints 33554432 as 33.6 M
  constexpr const char* units[] = {" ", " k", " M", " G", " T"};
  int u = 0;
  double v = static_cast<double>(n);
  while (v >= 1000 && u < 4) v /= 1000, ++u;
  const auto tenths = static_cast<long long>(v * 10 + 0.5);
  t << tenths / 10;
  if (u > 0 && tenths < 1000) t << '.' << tenths % 10;
  t << units[u];
}
constexpr node_set printed_by_name(const graph& g, const launch_plan& p) {
  node_set named(g.size);
  sequence<int> readers(g.size, 0);
  for (id r = 0; r < g.size; ++r)
    for (int o = 0; p.live[r] && g[r].what != op::reshape && o < 3; ++o) {
      const id a = unshaped(g, g[r].operand(o));
      if (a < 0 || is_leaf(g[a].what)) continue;
      const bool earlier = p.when.of[a] != p.when.of[r];
      const bool elsewhere = p.when.of[a] == stage::call && p.launch_of[a] != p.launch_of[r];
      const bool again = readers[a]++ > 0 && g[a].what != op::transpose;
      if (earlier || elsewhere || again) named.add(a);
    }
  return named;
}
constexpr node_set shared_values(const graph& g) {
  const node_set live = reachable(g);
  sequence<int> readers(g.size, 0);
  node_set named(g.size);
  for (id r = 0; r < g.size; ++r)
    for (int o = 0; live[r] && o < 3; ++o) {
      const id a = g[r].operand(o);
      if (a < 0 || is_leaf(g[a].what) || g[a].what == op::transpose || g[a].what == op::reshape) continue;
      named.in[a] = ++readers[a] > 1;
    }
  return named;
}
template <class Sink> constexpr void explain_outputs(const graph& g, const char* title, Sink&& line) {
  const node_set named = shared_values(g);
  const print_style style{named.in.data(), 16};
  auto equation = [&](id i, const char* name) {
    text t;
    t << "  " << title << "  ";
    name == nullptr ? t << 't' << i : t << name;
    print_shape(t, g, i);
    t << " = ";
    print(t, g, i, style);
    line(t);
  };
  for (id i = 0; i < g.size; ++i)
    if (named[i]) equation(i, nullptr);
  for (int k = 0; k < g.outs; ++k)
    if (!same_text(g.out[k].name, "saved")) equation(g.out[k].at, g.output_name(k).c_str());
}
template <class Sink, class More>
constexpr void explain_graph(const graph& g, const launch_plan& p, const char* title, int kernels, const cost* price,
                             Sink&& line, More&& more) {
  const node_set named = printed_by_name(g, p);
  const print_style style{named.in.data(), 12};
  text head;
  head << "  " << title << " on " << p.to.name << ": " << kernels << (kernels == 1 ? " kernel" : " kernels");
  if (price != nullptr) {
    head << ", ", print_si(head, price->flops), head << "flop, ", print_si(head, price->bytes), head << "B per call";
    if (price->parameter_flops + price->load_flops > 0) {
      head << "; once per change of the parameters ", print_si(head, price->parameter_flops), head << "flop";
      head << ", precomputed ", print_si(head, price->precomputed_bytes), head << 'B';
    }
  }
  if (p.breaks > 0) head << ", " << p.breaks << " graph break" << (p.breaks == 1 ? "" : "s");
  line(head);
  auto assignment = [&](id i, text& t) { t << 't' << i, print_shape(t, g, i), t << " = ", print(t, g, i, style); };
  for (const stage s : {stage::load, stage::parameter})
    for (id i = 0; i < g.size; ++i)
      if (p.live[i] && named[i] && p.when.of[i] == s) {
        text t;
        t << (s == stage::load ? "    once per load        " : "    once per parameters  ");
        assignment(i, t);
        line(t);
      }
  for (int k = 0; k < p.launches.size(); ++k) {
    const launch& l = p.launches[k];
    text t;
    t << "    launch " << k << ": ";
    describe_launch(t, g, p, l);
    more(t, k);
    line(t);
    for (id i = 0; i < g.size; ++i) {
      if (p.launch_of[i] != k) continue;
      int as = -1;
      for (int o = 0; o < g.outs; ++o)
        if (i == (p.launch_of[g.out[o].at] >= 0 ? g.out[o].at : unshaped(g, g.out[o].at))) as = o;
      if (!named[i] && as < 0) continue;
      text v;
      v << "      ";
      if (as >= 0) v << g.output_name(as) << " = ";
      assignment(i, v);
      line(v);
    }
  }
  for (id i = 0; i < g.size; ++i)
    if (p.live[i] && p.to.is_graph_break(g[i].what)) {
      text t;
      t << "    graph break: " << located(g, i) << ", line " << g[i].line << " of the formula";
      line(t);
    }
}
template <class Sink>
constexpr void explain_graph(const graph& g, const launch_plan& p, const char* title, int kernels, const cost* price,
                             Sink&& line) {
  explain_graph(g, p, title, kernels, price, line, [](text&, int) {});
}
namespace detail {
template <class Layer, const target& To> struct explained {
  template <class Sink> static constexpr void explain_quantized(Sink&& line) {
    constexpr quant_format format = element_traits<typename Layer::element>::format;
    text t;
    t << "  weight    " << name_of(format.type);
    if (format.block > 0) t << " in blocks of " << format.block;
    const graph& g = derived_of<Layer>::forward;
    const size_values s = with_nominals(g, static_sizes<Layer>(g));
    for (id i = 0; i < g.size; ++i) {
      if (g[i].what != op::base || !same_text(g[i].name, "weight")) continue;
      const long long n = element_count(g, i, s), cols = g.sizes.value(g[i].d[3], s),
                      bytes = bytes_of(format, n / cols, cols);
      const long long hundredths = (bytes * 800 + n / 2) / n;
      t << ", " << hundredths / 100 << '.' << hundredths / 10 % 10 << hundredths % 10
        << " bits per weight with scales: ";
      print_si(t, bytes), t << 'B';
      if (To.bytes_per_second <= 0) continue;
      const auto tenths = static_cast<long long>(static_cast<double>(bytes) / To.bytes_per_second * 1e7 + 0.5);
      t << ", which " << To.name << " cannot read in less than " << tenths / 10 << '.' << tenths % 10 << " us";
    }
    line(t);
    if (plan_of<Layer, To>::prefers_folding)
      line(
          text("            the adapter would be folded into a copy of the weight; of a quantized weight it stays a "
               "low-rank branch"));
  }
  template <class Sink> static constexpr void write(Sink&& line, long long tokens) {
    using d = derived_of<Layer>;
    text head;
    head << Layer::adapter::name << " on " << Layer::kind::name;
    for (const named_size& s : Layer::sizes) {
      head << ' ' << s.name << '=';
      s.value == dyn ? head << "dyn" : head << s.value;
    }
    head << ' ' << name_of(storage<typename Layer::element>::type);
    if (tokens != dyn) head << ", " << tokens << " tokens";
    line(head);
    using facts = plan_of<Layer, To>;
    if constexpr (facts::is_quantized) explain_quantized(line);
    explain_outputs(d::merge, "formula ", line);
    const bool priced = tokens != dyn && static_sizes_known<Layer>();
    constexpr bool folded = facts::folded;
    auto pass = [&](const graph& g, const char* title, const cost& price) {
      const launch_plan p = fuse(g, To);
      size_values s = with_nominals(g, static_sizes<Layer>(g));
      if (tokens != dyn) g.sizes.set_tokens(s, tokens);
      using numbers = element_traits<typename Layer::element>;
      const quant_format stored = facts::is_quantized ? numbers::format : quant_format{};
      const int kernels = kernel_count(g, p, s, numbers::stored, stored);
      explain_graph(g, p, title, kernels, priced ? &price : nullptr, line, [&](text& t, int k) {
        const text why = why_several_kernels(g, p, p.launches[k], s, numbers::stored, stored);
        if (!why.empty())
          t << ", " << kernel_count(g, p, p.launches[k], s, numbers::stored, stored) << " kernels, because " << why;
      });
    };
    pass(folded ? d::folded : d::forward, folded ? "forward (folded)" : "forward",
         priced ? forward_cost<Layer, To>(tokens) : cost{});
    if (d::backward.bad.what == formula_error::none)
      pass(d::backward, "backward", priced ? backward_cost<Layer>(tokens) : cost{});
    if (d::unmerging.weight)
      explain_outputs(d::unmerge_weight, "unmerge ", line);
    else
      line(text("  unmerge   the formula replaces the weight: keep the base"));
    for (int k = 0, kept = 0; k < d::merge.outs; ++k) {
      if (!same_text(d::merge.out[k].name, "saved")) continue;
      text t;
      t << "            saved" << kept++ << " is the value at the merge of ";
      const node_set named = shared_values(d::merge);
      print(t, d::merge, d::merge.out[k].at, {named.in.data(), 8});
      line(t);
    }
  }
};
}  // namespace detail
template <class Layer, const target& To = cpu_target, class Sink>
requires requires(Sink& line, const text& t) { line(t); }
constexpr void explain(Sink&& line, long long tokens = dyn) { detail::explained<Layer, To>::write(line, tokens); }
}  // namespace graft
namespace graft {
enum class drawing : unsigned char { graphviz, mermaid };
template <class Sink> constexpr void draw_node(const graph& g, id i, drawing format, Sink&& line) {
  const node& v = g[i];
  text t;
  const bool leaf = is_leaf(v.what);
  t << "    n" << i;
  if (format == drawing::graphviz)
    t << (leaf ? " [shape=ellipse, label=\"" : " [label=\"");
  else
    t << (leaf ? "([\"" : "[\"");
  if (v.what == op::constant)
    print(t, g, i);
  else
    leaf ? t << g.name(i) : t << traits_of(v.what).name;
  t << ' ', print_shape(t, g, i);
  if (format == drawing::graphviz)
    t << "\"];";
  else
    t << (leaf ? "\"])" : "\"]");
  line(t);
}
template <class Sink> constexpr void draw(const graph& g, const launch_plan& p, drawing format, Sink&& line) {
  const bool graphviz = format == drawing::graphviz;
  auto visible = [&](id i) { return i >= 0 && p.live[i] && g[i].what != op::reshape; };  // a reshape is not drawn
  line(text(graphviz ? "digraph plan {\n  rankdir=TB; node [shape=box, fontname=Helvetica];" : "flowchart TB"));
  for (id i = 0; i < g.size; ++i)
    if (visible(i) && p.launch_of[i] < 0) draw_node(g, i, format, line);
  for (int k = 0; k < p.launches.size(); ++k) {
    const launch& l = p.launches[k];
    text t;
    t << "  subgraph " << (graphviz ? "cluster_" : "k") << k;
    t << (graphviz ? " { label=\"" : "[\"") << "launch " << k << ": " << p.name_of(g, l);
    t << (graphviz ? "\";" : "\"]");
    line(t);
    for (int n = 0; n < l.count; ++n)
      if (visible(p.nodes[l.first + n])) draw_node(g, p.nodes[l.first + n], format, line);
    line(text(graphviz ? "  }" : "  end"));
  }
  for (id i = 0; i < g.size; ++i)
    for (int o = 0; visible(i) && o < 3; ++o)
      if (const id a = unshaped(g, g[i].operand(o)); a >= 0) {
        text t;
        t << "  n" << a << (graphviz ? " -> n" : " --> n") << i;
        if (graphviz) t << ';';
        line(t);
      }
  for (int k = 0; k < g.outs; ++k) {
    text t;
    t << "  n" << unshaped(g, g.out[k].at) << (graphviz ? " -> out_" : " --> out_") << k;
    if (graphviz)
      t << "; out_" << k << " [shape=plaintext, label=\"" << g.output_name(k) << "\"];";
    else
      t << "[/\"" << g.output_name(k) << "\"/]";
    line(t);
  }
  if (graphviz) line(text("}"));
}
}  // namespace graft
namespace graft {
struct dropout_kinds {
  bool elements = false, rows = false, whole = false, blocks = false;
  bool rescaled = false;  // the remaining rows are divided by the fraction that remains
  constexpr bool any() const { return elements || rows || whole || blocks; }
  constexpr bool changes_sum() const { return elements || rows || whole; }  // y is no product of x and one weight
  friend constexpr bool operator==(const dropout_kinds&, const dropout_kinds&) = default;
};
constexpr ex keep_mask_of(ex zeros, ex seed, ex rate, int salt, int line) {
  builder& g = *zeros.g;
  const id ones = make_node::add(g, zeros.i, g.constant(1), line);
  return {&g, make_node::unary(g, op::heaviside, make_node::dropout(g, ones, seed.i, rate.i, {salt}, line), line)};
}
template <class Mask> constexpr ex mask_rotation_blocks(ex W, ex made, id first, Mask mask) {
  builder& g = *W.g;
  sequence<id> replaced;
  for (id i = 0; i <= made.i; ++i) replaced.push(i);
  for (id i = first; i <= made.i; ++i) {
    node v = g.n[i];
    if (v.what == op::rotate && v.a == W.i) {
      const node r = g.n[v.b];
      const ex R{&g, v.b}, I{&g, g.leaf(op::eye, "I", 0, 2, {1}, {1}, r.d[2], r.d[3])};
      const ex zeros{&g, g.leaf(op::zero, "0", 0, 4, r.d[0], r.d[1], {1}, {1})};
      v.b = (mul(mask(zeros), R - I) + I).i;
    } else {
      id* const operand[3] = {&v.a, &v.b, &v.c};
      for (id* const o : operand)
        if (*o >= first) *o = replaced[*o];
    }
    replaced[i] = g.emit(v);
  }
  return {&g, replaced[made.i]};
}
}  // namespace graft
namespace graft {
struct adapter_rule {
  const char* pattern = "";
  formula adapter{};  // without a weight function the weight stays as it is
  const char* name = "";
  bool trains_bias = false;  // the bias of the layer is a parameter
  dropout_kinds drops{};     // dropout of the adapter in training
};
namespace detail {
constexpr bool matches_whole(const char* pattern, const char* path) {
  for (; *pattern != '*'; ++pattern, ++path) {
    if (*pattern != *path) return false;
    if (*pattern == '\0') return true;
  }
  for (;; ++path) {
    if (matches_whole(pattern + 1, path)) return true;
    if (*path == '\0') return false;
  }
}
}  // namespace detail
constexpr bool fits(const char* pattern, const char* path) {
  if (detail::matches_whole(pattern, path)) return true;
  for (; *path != '\0'; ++path)
    if (*path == '.' && detail::matches_whole(pattern, path + 1)) return true;
  return false;
}
struct adapter_rules {
  const adapter_rule* list = nullptr;
  int count = 0;
  constexpr sequence<adapter_rule> at(const char* path) const {
    sequence<adapter_rule> found;
    for (int i = 0; i < count; ++i) {
      if (!fits(list[i].pattern, path)) continue;
      if (list[i].name[0] == '\0') found.clear();
      found.push(list[i]);
    }
    return found;
  }
};
template <std::size_t N> struct path_pattern {
  char text[N]{};
  constexpr path_pattern(const char (&from)[N]) {
    for (std::size_t i = 0; i < N; ++i) text[i] = from[i];
  }
};
template <path_pattern Pattern, class Adapter> struct target_modules {
  static constexpr auto pattern = Pattern;
  static constexpr adapter_rule rule() { return {pattern.text, formula_of<Adapter>()}; }
};
}  // namespace graft
namespace graft {
constexpr id apply_experts(builder& g, id w, id x, id routing, bool transposed = false);
namespace detail {
constexpr bool is_expert_column(const builder& g, id a) { return g.n[a].d[3] == dim{1}; }
constexpr bool is_expert_factor(const builder& g, id a, id w) {
  return !has_shape_of(g, a, w) && (g.n[a].d[2] == dim{1} || g.n[a].d[3] == dim{1});
}
constexpr id scale_rows(builder& g, op scale_op, id rows, id factors, id routing) {
  return make_node::pointwise(g, scale_op, rows, make_node::dispatch(g, factors, routing, routed_by::expert));
}
[[gnu::cold]] constexpr id apply_scaled_experts(builder& g, op scale_op, id w, id f, id x, id routing,
                                                bool transposed) {
  const node v = g.n[w];
  const bool shared = g.n[f].d[1] == dim{1};  // all experts have the same factor
  if (v.what == op::matmul && !v.from_base && !v.ta && !v.sum && is_expert_column(g, f)) {
    const id left = make_node::pointwise(g, scale_op, v.a, f);
    return apply_experts(g, make_node::matmul(g, left, v.b, false, v.tb), x, routing, transposed);
  }
  const bool column = is_expert_column(g, f) && !is_scalar(g.n[f]);
  const id factor_row = column ? make_node::reshape(g, f, {1}, g.n[f].d[1], {1}, g.n[f].d[2]) : f;
  auto scale = [&](id a) {
    return shared ? make_node::pointwise(g, scale_op, a, factor_row) : scale_rows(g, scale_op, a, factor_row, routing);
  };
  if (is_scalar(g.n[f]) || column != transposed) return scale(apply_experts(g, w, x, routing, transposed));
  return apply_experts(g, w, scale(x), routing, transposed);
}
}  // namespace detail
constexpr id apply_experts(builder& g, id w, id x, id routing, bool transposed) {
  const node v = g.n[w];
  auto of = [&](id m, id rows, bool flipped) { return apply_experts(g, m, rows, routing, flipped); };
  auto scaled = [&](op scale_op, id m, id f) {
    return detail::apply_scaled_experts(g, scale_op, m, f, x, routing, transposed);
  };
  if (v.what == op::eye) return x;
  if (!worth_precomputing(g, w)) switch (v.what) {
      case op::add:
      case op::sub:
        if (!has_shape_of(g, v.a, w) || !has_shape_of(g, v.b, w)) break;
        return make_node::pointwise(g, v.what, of(v.a, x, transposed), of(v.b, x, transposed), v.line);
      case op::mul:
        if (detail::is_expert_factor(g, v.a, w) && has_shape_of(g, v.b, w)) return scaled(op::mul, v.b, v.a);
        if (detail::is_expert_factor(g, v.b, w) && has_shape_of(g, v.a, w)) return scaled(op::mul, v.a, v.b);
        break;
      case op::div:
        if (detail::is_expert_factor(g, v.b, w) && has_shape_of(g, v.a, w)) return scaled(op::div, v.a, v.b);
        break;
      case op::matmul:
        if (v.sum) break;
        if (transposed) return of(v.b, of(v.a, x, !v.ta), !v.tb);
        return of(v.a, of(v.b, x, v.tb), v.ta);
      case op::transpose: return of(v.a, x, !transposed);
      case op::repeat:
        if (transposed) return make_node::repeat(g, of(v.a, x, true), v.d[3]);
        return of(v.a, make_node::fold_columns(g, x, g.n[v.a].d[3]), false);
      default: break;
    }
  return make_node::grouped_matmul(g, x, w, routing, !transposed, v.line);
}
}  // namespace graft
namespace graft {
struct block_options {
  adapter_rules adapters{};
  const char* const* facts = nullptr;  // switches that are on in the model's configuration: "attention_bias"
  int fact_count = 0;
  bool cached = false;            // attention reads and writes a KV cache (decode)
  bool dropped = false;           // dropout is active (training)
  op activation = op::detach;     // activation of the feed-forward layers; detach: the architecture's own
  double attention_soft_cap = 0;  // soft cap of attention scores; 0: none
  lowering level = lowering::fast;
};
struct expert_choice {
  ex scores, weights;
  extent k;
  bool normalized = false;
};
struct block_scope {
  builder* g;
  const block_options* options;
  int path = 0;
  id routing = none_id;
  dim expert_count{};
  constexpr scope root() const { return {g, 0}; }
  constexpr scope at(const char* name) const { return scope{g, path}.in(name); }
  constexpr block_scope in(const char* name) const {
    block_scope below = *this;
    below.path = at(name).path;
    return below;
  }
  constexpr bool has(const char* fact) const {
    for (int i = 0; i < options->fact_count; ++i)
      if (same_text(options->facts[i], fact)) return true;
    return false;
  }
  constexpr extent size(const char* name) const {
    constexpr named_number usual[] = {{"hidden", 4096},
                                      {"intermediate", 11008},
                                      {"heads", 32},
                                      {"kv_heads", 8},
                                      {"head_dim", 128},
                                      {"vocab", 32000},
                                      {"context", 4096},
                                      {"embedding", 512},
                                      {"rotary_dim", 64},
                                      {"experts", 64},
                                      {"experts_per_token", 4},
                                      {"moe_intermediate", 1408},
                                      {"shared_intermediate", 5632}};
    for (const named_number& n : usual)
      if (same_text(n.name, name)) return root().size(name, dyn, n.value);
    return root().size(name);
  }
  constexpr ex linear(const char* name, ex x, extent out, bias has_bias = bias::no, int line = __builtin_LINE()) const {
    if (routing >= 0) return project(name, expert_weight({name, line}, out, x.cols()), x, has_bias, line);
    const ex W = at(name).leaf(op::base, {"weight", line}, 2, 1, 1, out, x.cols());
    return project(name, W, x, has_bias, line);
  }
  constexpr ex conv1d(const char* name, ex x, extent out, bias has_bias = bias::yes,
                      int line = __builtin_LINE()) const {
    if (routing >= 0 && has("experts_out_in")) return linear(name, x, out, has_bias, line);
    if (routing >= 0) return project(name, t({expert_weight({name, line}, x.cols(), out), line}), x, has_bias, line);
    if (has("stored_out_in")) return linear(name, x, out, has_bias, line);
    const ex W = at(name).leaf(op::base, {"weight", line}, 2, 1, 1, x.cols(), out);
    return project(name, t({W, line}), x, has_bias, line);
  }
  constexpr ex embedding(const char* name, ex ids, extent rows, extent dim, int line = __builtin_LINE()) const {
    const layer l = layer_at(name);
    const ex W = adapted(l, at(name).leaf(op::base, {"weight", line}, 2, 1, 1, rows, dim));
    const bool literal = options->level == lowering::literal;
    return {g, literal ? make_node::gather(*g, W.i, ids.i, false) : select(*g, W.i, ids.i)};
  }
  constexpr ex rms_norm(const char* name, ex x, double plus = 0, int line = __builtin_LINE()) const {
    const ex w = norm_weight(name, x.cols(), line);
    return mul(normalized_rows(x, true, line), {t({plus == 0 ? w : plus + w, line}), line});
  }
  constexpr ex layer_norm(const char* name, ex x, bias has_bias = bias::yes, int line = __builtin_LINE()) const {
    const ex w = norm_weight(name, x.cols(), line);
    const ex scaled = mul(normalized_rows(x, false, line), {t({w, line}), line});
    return with_bias(name, scaled, has_bias, line);
  }
  constexpr ex head_norm(const char* name, ex x, extent head, double plus = 0, int line = __builtin_LINE()) const {
    const ex per_head = reshape(x, 1, x.rows(), x.cols() / divisor(head, line), head, line);
    return reshape(rms_norm(name, per_head, plus, line), 1, 1, x.rows(), x.cols(), line);
  }
  template <class One>
  constexpr ex experts(const char* name, ex x, const expert_choice& by, One one, int line = __builtin_LINE()) const {
    const id table = make_node::route(*g, by.scores.i, by.k.d, line);
    if (has("router_loss")) measure_balance(by.scores, table, line);
    block_scope e{g, options, at(name).path, table, by.scores.cols().d};
    const ex y = one(e, ex{g, make_node::dispatch(*g, x.i, table, routed_by::token, line)});
    ex weight{g, make_node::dispatch(*g, by.weights.i, table, routed_by::both, line)};
    if (by.normalized) {
      const id sums = make_node::combine(*g, weight.i, table, routed_by::token, rows_of(x, 1).i, line);
      weight = weight / at_line({g, make_node::dispatch(*g, sums, table, routed_by::token, line)}, line);
    }
    const ex like = rows_of(x, y.cols());
    return {g, make_node::combine(*g, mul(weight, at_line(y, line)).i, table, routed_by::token, like.i, line)};
  }
  constexpr ex expert_bias(const char* name, ex y, int line = __builtin_LINE()) const {
    const ex b = scope{g, path}.leaf(op::base, {name, line}, 2, 1, 1, extent{g, expert_count}, y.cols());
    const id each = make_node::reshape(*g, b.i, {1}, expert_count, {1}, y.cols().d, line);
    return {g, make_node::add(*g, y.i, make_node::dispatch(*g, each, routing, routed_by::expert, line), line)};
  }
  constexpr ex rope(ex x, int line = __builtin_LINE()) const {
    if (has("no_rope")) return x;
    const bool partial = has("partial_rotary");
    const ex table = root().frozen({"rotary", line}, size("context"), size(partial ? "rotary_dim" : "head_dim"));
    const id angles = make_node::gather(*g, table.i, positions().i, false);
    if (!partial) return {g, make_node::rope(*g, x.i, angles, false, line)};
    const extent head = size("head_dim"), rotary = size("rotary_dim"), heads = x.cols() / divisor(head, line);
    const ex per_head = reshape(x, 1, x.rows(), heads, head, line);
    const ex first = reshape(slice(per_head, 3, 0, rotary, line), 1, 1, x.rows(), heads * rotary, line);
    const ex rotated =
        reshape({g, make_node::rope(*g, first.i, angles, false, line)}, 1, x.rows(), heads, rotary, line);
    const ex rest = slice(per_head, 3, rotary, head - divisor(rotary, line), line);
    return reshape(concat(rotated, rest, 3, line), 1, 1, x.rows(), x.cols(), line);
  }
  constexpr ex attention(ex q, ex k, ex v, ex sinks = {}, int line = __builtin_LINE()) const {
    return attention(concat(concat(q, k, 3, line), v, 3, line), q.cols(), sinks, line);
  }
  constexpr ex attention(ex qkv, extent queries, ex sinks = {}, int line = __builtin_LINE()) const {
    if (has("attention_factor")) {
      const extent others = qkv.cols() - divisor(queries, line);
      const ex q = slice(qkv, 3, 0, queries, line), kv = slice(qkv, 3, queries, others, line);
      qkv = concat(mul(root().scalar("attention_factor"), {q, line}), kv, 3, line);
    }
    const bool drops = options->dropped && has("attention_dropout");
    const ex ranges = root().leaf(op::ids, {"attention_range", line}, 2, 1, 1, drops ? 5 : 3, qkv.rows());
    id cache = none_id;
    if (options->cached)
      cache = root()
                  .leaf(op::state, {"kv_cache", line}, 2, 1, 1, root().size("cache_slots", dyn, 4096),
                        qkv.cols() - divisor(queries, line))
                  .i;
    const bool has_sinks = sinks.g != nullptr;
    if (has_sinks) {  // every row has the sinks as further columns, so that their gradient is a sum over rows
      const dim width = (*qkv).cols(), whole = g->plus(width, (*sinks).rows());
      const id right = make_node::pad(*g, make_node::as_row(*g, sinks.i), 3, width, whole, line);
      qkv = {g, make_node::add(*g, make_node::pad(*g, qkv.i, 3, {0}, whole, line), right, line)};
    }
    return {g, make_node::attention(*g, qkv.i, ranges.i, cache, queries.d, size("head_dim").d, line,
                                    {options->attention_soft_cap, has_sinks})};
  }
  constexpr ex dropout(const char* name, ex x, int line = __builtin_LINE()) const {
    if (!options->dropped) return x;
    const ex seed = root().leaf(op::ids, "seed", 1, 1, 1, 1, 1);
    return {g, make_node::dropout(*g, x.i, seed.i, root().scalar("dropout").i, {salt(path, name)}, line)};
  }
  constexpr ex activated(ex x, op usual, int line = __builtin_LINE()) const {
    return {g, make_node::unary(*g, options->activation == op::detach ? usual : options->activation, x.i, line)};
  }
  constexpr ex soft_capped(ex x, const char* cap, int line = __builtin_LINE()) const {
    if (!has(cap)) return x;
    const ex c = root().scalar({cap, line});
    return mul(c, {tanh({x / graft::operand{c, line}, line}), line});
  }
  constexpr ex positions() const { return root().leaf(op::ids, "positions", 1, 1, 1, 1, root().tokens()); }
  constexpr ex cross_entropy(ex logits, int line = __builtin_LINE()) const {
    const ex labels = root().leaf(op::ids, {"labels", line}, 1, 1, 1, 1, root().tokens());
    return {g, make_node::cross_entropy(*g, logits.i, labels.i, line)};
  }
 private:
  struct named_number {
    const char* name;
    int value;
  };
  struct layer {
    scope here;
    sequence<adapter_rule> by;
    constexpr scope of(const adapter_rule& a) const { return a.name[0] == '\0' ? here : here.in(a.name); }
  };
  struct product {
    bool literal;
    int line;
    id routing = none_id;
    constexpr ex operator()(ex w, ex x) const {
      if (routing >= 0)
        return {x.g, literal ? make_node::grouped_matmul(*x.g, x.i, w.i, routing, true, line)
                             : apply_experts(*x.g, w.i, x.i, routing)};
      return {x.g, literal ? make_node::matmul(*x.g, x.i, w.i, false, true, line) : apply(*x.g, w.i, x.i)};
    }
  };
  constexpr layer layer_at(const char* name) const {
    const scope here = at(name);
    text full = g->paths().full(here.path, "");
    full.s[full.n > 0 ? full.n - 1 : 0] = '\0';  // removes the last dot
    return {here, options->adapters.at(full.c_str())};
  }
  static constexpr ex adapted(const layer& l, ex base) {
    ex W = base;
    for (const adapter_rule& a : l.by)
      if (a.adapter.weight != nullptr) W = a.adapter.compose_weight(l.of(a), W, base);
    return W;
  }
  constexpr ex project(const char* name, ex base, ex x, bias has_bias, int line) const {
    const layer l = layer_at(name);
    const product times{options->level == lowering::literal, line, routing};
    bool drops = false;
    for (const adapter_rule& a : l.by) drops = drops || (options->dropped && a.drops.any());
    if (!drops) return with_bias(name, apply_with_input_gradient_weight(l, base, x, times), has_bias, line, base);
    ex W = base, y{};
    bool summed = false;  // y holds the product with W and the branch of an adapter
    for (const adapter_rule& a : l.by) {
      if (a.adapter.weight == nullptr) continue;
      const id first = g->n.size();
      ex next = a.adapter.compose_weight(l.of(a), W, base);
      if (a.drops.blocks)
        next = mask_rotation_blocks(W, next, first,
                                    [&](ex zeros) { return keep_mask(l.of(a), "block_dropout", zeros, line); });
      if (summed || a.drops.changes_sum()) {
        if (!summed) y = times(W, x);
        y = y + branch_with_dropout(a, l.of(a), W, next, x, times, line), summed = true;
      }
      W = next;
    }
    return with_bias(name, summed ? y : times(W, x), has_bias, line, base);
  }
  constexpr ex apply_with_input_gradient_weight(const layer& l, ex base, ex x, product times) const {
    const ex W = adapted(l, base);
    bool has_input_gradient_weight = false;
    for (const adapter_rule& a : l.by)
      has_input_gradient_weight = has_input_gradient_weight || a.adapter.input_gradient_weight != nullptr;
    if (!has_input_gradient_weight) return times(W, x);
    const ex fixed = detach(x), zero_with_gradient = x - fixed;
    ex seen = base, back = times(base, zero_with_gradient);
    for (const adapter_rule& a : l.by) {
      if (a.adapter.weight == nullptr) continue;
      const ex next = a.adapter.input_gradient_weight != nullptr ? a.adapter.input_gradient_weight(l.of(a), seen)
                                                                 : a.adapter.compose_weight(l.of(a), seen, base);
      const node v = *next;
      const bool adds = v.what == op::add && v.a == seen.i;
      back = adds ? back + times(detach(ex{g, v.b}), zero_with_gradient) : times(detach(next), zero_with_gradient);
      seen = next;
    }
    return times(W, fixed) + back;
  }
  constexpr ex apply_delta(ex W, ex next, ex x, product times) const {
    const node v = *next;
    if (v.what == op::add && v.a == W.i) return times({g, v.b}, x);
    if (v.what == op::sub && v.a == W.i) return -times({g, v.b}, x);
    return times(next, x) - times(W, x);
  }
  constexpr ex branch_with_dropout(const adapter_rule& a, scope p, ex W, ex next, ex x, product times, int line) const {
    const ex seen = a.drops.elements ? dropped(p, x, line) : x;
    ex more{};
    if (a.drops.elements && a.adapter.dropout_parts != nullptr) {
      const dropout_weight_parts parts = a.adapter.dropout_parts(p, W);
      more = apply_delta(W, parts.whole, x, times) + times(parts.dropped, seen);
    } else {
      more = apply_delta(W, next, seen, times);
    }
    if (a.drops.rows) {
      const extent n = more.cols();
      ex rows = keep_mask(p, "rank_dropout", {g, g->leaf(op::zero, "0", 0, 2, {1}, {1}, {1}, n.d)}, line);
      if (a.drops.rescaled) rows = mul(p.number(n) / row_dot(rows, {rows, line}), {rows, line});
      more = mul(rows, {more, line});
    }
    if (a.drops.whole)
      more = mul(keep_mask(p, "module_dropout", {g, g->leaf(op::zero, "0", 0, 2, {1}, {1}, {1}, {1})}, line),
                 {more, line});
    return more;
  }
  constexpr ex keep_mask(scope p, const char* rate, ex zeros, int line) const {
    const ex seed = root().leaf(op::ids, "seed", 1, 1, 1, 1, 1);
    return keep_mask_of(zeros, seed, p.scalar(rate), salt(p.path, rate), line);
  }
  constexpr ex dropped(scope p, ex x, int line) const {
    const ex seed = root().leaf(op::ids, "seed", 1, 1, 1, 1, 1);
    return {g, make_node::dropout(*g, x.i, seed.i, p.scalar("dropout").i, {salt(p.path, "dropout")}, line)};
  }
  constexpr ex expert_weight(leaf_name name, extent rows, extent cols) const {
    return scope{g, path}.leaf(op::base, name, 3, 1, extent{g, expert_count}, rows, cols);
  }
  static constexpr graft::operand at_line(ex a, int line) { return {a, line}; }
  constexpr void measure_balance(ex scores, id table, int line) const {
    const id weights = root().leaf(op::state, {router_loss_names::row_weights, line}, 2, 1, 1, root().tokens(), 1).i;
    const dim experts = scores.cols().d;
    const id chosen = make_node::dispatch(*g, weights, table, routed_by::token, line);
    const id like = g->leaf(op::zero, "0", 0, 3, {1}, experts, {1}, {1});
    const id counts = make_node::combine(*g, chosen, table, routed_by::expert, like, line);
    const id sums = make_node::matmul(*g, weights, softmax(scores).i, true, false, line);
    g->add_output(make_node::reshape(*g, counts, {1}, {1}, {1}, experts, line), router_loss_names::counts);
    g->add_output(sums, router_loss_names::sums);
  }
  constexpr ex rows_of(ex x, extent cols) const {
    return {g, g->leaf(op::zero, "0", 0, 2, {1}, {1}, x.rows().d, cols.d)};
  }
  constexpr ex with_bias(const char* name, ex y, bias has_bias, int line, ex weight = {}) const {
    const layer l = layer_at(name);
    if (routing >= 0) {  // biases of experts are not adapted (expert_bias)
      for (const adapter_rule& a : l.by)
        if (a.adapter.bias != nullptr || a.trains_bias)
          g->stop({formula_error::not_on_experts, none_id, line, a.adapter.name});
      return y;
    }
    const extent n = y.cols();
    bool trained = false;
    for (const adapter_rule& a : l.by) trained = trained || a.trains_bias;
    ex b{g, g->leaf(op::zero, "0", 0, 2, {1}, {1}, n.d, {1})};
    if (has_bias == bias::yes) b = l.here.leaf(trained ? op::param : op::base, {"bias", line}, 1, 1, 1, n, 1);
    const base_tensors base{weight, b};
    for (const adapter_rule& a : l.by) b = a.adapter.adapted_bias(l.of(a), b, base);
    return {g, make_node::add(*g, y.i, make_node::as_row(*g, b.i), line)};
  }
  constexpr ex norm_weight(const char* name, extent n, int line) const {
    return adapted(layer_at(name), at(name).leaf(op::base, {"weight", line}, 1, 1, 1, n, 1));
  }
  constexpr ex normalized_rows(ex x, bool rms, int line) const {
    return {g, make_node::normalize(*g, x.i, root().scalar("eps").i, rms, line)};
  }
  constexpr int salt(int where, const char* name) const {
    const text full = g->paths().full(where, name);
    unsigned hash = 2166136261U;
    for (const char* c = full.c_str(); *c != '\0'; ++c) hash = (hash ^ static_cast<unsigned char>(*c)) * 16777619U;
    return static_cast<int>(hash >> 2U);
  }
};
}  // namespace graft
namespace graft {
struct block_formula {
  const char* name = "";
  ex (*run)(block_scope, ex) = nullptr;
  bool takes_ids = false;  // x is token ids; else rows of activations
  bool loss = false;       // the result is the cross entropy of each row against its label
};
struct architecture {
  const char* name = "";
  const char* layers = "";
  block_formula embed, block, head;
};
template <class Model> constexpr block_formula block_of() { return {Model::name, &Model::run}; }
template <class Model> constexpr architecture architecture_of() {
  return {
      Model::name, Model::layers, {Model::name, &Model::embed, true}, block_of<Model>(), {Model::name, &Model::head}};
}
constexpr block_formula with_loss(block_formula f) {
  f.loss = true;
  return f;
}
template <class Block, class... Rules> struct adapted : Block {
  static constexpr adapter_rule rules[sizeof...(Rules) + 1] = {Rules::rule()..., {}};
  static constexpr adapter_rules adapters{rules, sizeof...(Rules)};
};
[[gnu::cold]] constexpr void infer_adapter_sizes(const graph& g, const adapter_rules& rules, size_values& s) {
  for (int k = 0; k < g.sizes.count; ++k) {
    const size_entry& e = g.sizes.e[k];
    if (e.index < 0 || s.v[e.index] != unknown) continue;
    for (int path = e.path; path > 0 && s.v[e.index] == unknown; path = g.paths().e[path].above) {
      const id w = g.find(g.paths().full(path, "weight").c_str());
      if (w < 0) continue;
      text layer = g.paths().full(path, "");
      layer.s[layer.n - 1] = '\0';  // removes the last dot
      for (const adapter_rule& a : rules.at(layer.c_str()))
        if (s.v[e.index] == unknown)
          s.v[e.index] = a.adapter.adapter_size(e.name, g.sizes.value(g[w].d[2], s), g.sizes.value(g[w].d[3], s));
    }
  }
}
[[gnu::cold]] constexpr builder capture(const block_formula& f, const block_options& options) {
  builder g;
  const block_scope m{&g, &options};
  const scope p = m.root();
  const ex x = f.takes_ids ? p.leaf(op::ids, "x", 1, 1, 1, 1, p.tokens())
                           : p.leaf(op::input, "x", 2, 1, 1, p.tokens(), m.size("hidden"));
  const ex y = f.run(m, x);
  g.add_output(f.loss ? m.cross_entropy(y).i : y.i, "y");
  return g;
}
[[gnu::cold]] constexpr builder capture_forward(const block_formula& f, const block_options& options) {
  return simplify(rewrite(capture(f, options), value_rule));
}
[[gnu::cold]] constexpr builder capture_backward(const block_formula& f, const block_options& options) {
  const builder forward = simplify(capture(f, options));
  builder back = grad(forward);
  if (f.loss) back.add_output(forward.result("y"), "y");
  return simplify(rewrite(back, value_rule));
}
}  // namespace graft
namespace graft {
struct attention_form {
  bias in = bias::no, out = bias::no;  // in: bias of q_proj, k_proj and v_proj; out: bias of o_proj
  bool norms_heads = false;            // an RMS norm on each head of queries and keys
  double plus = 0;                     // constant added to the weights of these norms
  ex sinks{};                          // block_scope::attention
};
constexpr attention_form configured_attention(const block_scope& m) {
  return {bias{m.has("attention_bias")}, bias{m.has("output_bias")}};
}
constexpr ex self_attention(const block_scope& m, ex x, const attention_form& form) {
  const block_scope s = m.in("self_attn");
  const extent d = m.size("head_dim"), heads = m.size("heads") * d, kv = m.size("kv_heads") * d;
  const auto rotated = [&](const char* norm, ex y) {
    return m.rope(form.norms_heads ? s.head_norm(norm, y, d, form.plus) : y);
  };
  auto q = rotated("q_norm", s.linear("q_proj", x, heads, form.in));
  auto k = rotated("k_norm", s.linear("k_proj", x, kv, form.in));
  auto v = s.linear("v_proj", x, kv, form.in);
  return s.linear("o_proj", m.attention(q, k, v, form.sinks), x.cols(), form.out);
}
constexpr ex gated_layer(const block_scope& m, ex x, extent inner, bias has_bias = bias::no, op activation = op::silu) {
  auto gate = m.linear("gate_proj", x, inner, has_bias), up = m.linear("up_proj", x, inner, has_bias);
  return m.linear("down_proj", mul(m.activated(gate, activation), up), x.cols(), has_bias);
}
}  // namespace graft
namespace graft {
struct gemma {
  static constexpr const char *name = "gemma", *layers = "model.layers";
  static constexpr ex embed(block_scope m, ex ids) {
    auto h = m.embedding("model.embed_tokens", ids, m.size("vocab"), m.size("hidden"));
    return sqrt(m.root().number(h.cols())) * h;
  }
  static constexpr ex run(block_scope m, ex h) {
    h = h + self_attention(m, m.rms_norm("input_layernorm", h, 1), configured_attention(m));
    auto x = m.rms_norm("post_attention_layernorm", h, 1);
    return h + gated_layer(m.in("mlp"), x, m.size("intermediate"), bias::no, op::gelu_tanh);
  }
  static constexpr ex head(block_scope m, ex h) {
    return m.linear("lm_head", m.rms_norm("model.norm", h, 1), m.size("vocab"));
  }
};
}  // namespace graft
namespace graft {
struct gemma2 : gemma {
  static constexpr const char* name = "gemma2";
  static constexpr ex run(block_scope m, ex h) {
    auto attended = self_attention(m, m.rms_norm("input_layernorm", h, 1), configured_attention(m));
    return feed_forward(m, h + m.rms_norm("post_attention_layernorm", attended, 1));
  }
  static constexpr ex head(block_scope m, ex h) { return m.soft_capped(gemma::head(m, h), "logit_soft_cap"); }
 protected:
  static constexpr ex feed_forward(block_scope m, ex h) {
    auto x = m.rms_norm("pre_feedforward_layernorm", h, 1);
    auto down = gated_layer(m.in("mlp"), x, m.size("intermediate"), bias::no, op::gelu_tanh);
    return h + m.rms_norm("post_feedforward_layernorm", down, 1);
  }
};
}  // namespace graft
namespace graft {
struct gemma3 : gemma2 {
  static constexpr const char* name = "gemma3_text";
  static constexpr ex run(block_scope m, ex h) {
    attention_form form = configured_attention(m);
    form.norms_heads = true, form.plus = 1;
    auto attended = self_attention(m, m.rms_norm("input_layernorm", h, 1), form);
    return feed_forward(m, h + m.rms_norm("post_attention_layernorm", attended, 1));
  }
};
}  // namespace graft
namespace graft {
struct gpt2 {
  static constexpr const char *name = "gpt2", *layers = "transformer.h";
  static constexpr ex embed(block_scope m, ex ids) {
    auto h = m.embedding("transformer.wte", ids, m.size("vocab"), m.size("hidden"));
    auto position = m.embedding("transformer.wpe", m.positions(), m.size("context"), m.size("hidden"));
    return m.dropout("transformer.drop", h + position);
  }
  static constexpr ex run(block_scope m, ex h) {
    const extent hidden = h.cols();
    auto x = m.layer_norm("ln_1", h);
    auto qkv = m.conv1d("attn.c_attn", x, 3 * hidden);
    h = h + m.dropout("attn.resid_dropout", m.conv1d("attn.c_proj", m.attention(qkv, hidden), hidden));
    x = m.layer_norm("ln_2", h);
    x = m.activated(m.conv1d("mlp.c_fc", x, m.size("intermediate")), op::gelu_tanh);
    return h + m.dropout("mlp.dropout", m.conv1d("mlp.c_proj", x, hidden));
  }
  static constexpr ex head(block_scope m, ex h) {
    return m.linear("lm_head", m.layer_norm("transformer.ln_f", h), m.size("vocab"));
  }
};
}  // namespace graft
namespace graft {
struct llama {
  static constexpr const char *name = "llama", *layers = "model.layers";
  static constexpr ex embed(block_scope m, ex ids) {
    return m.embedding("model.embed_tokens", ids, m.size("vocab"), m.size("hidden"));
  }
  static constexpr ex run(block_scope m, ex h) {
    h = h + self_attention(m, m.rms_norm("input_layernorm", h), configured_attention(m));
    auto x = m.rms_norm("post_attention_layernorm", h);
    return h + gated_layer(m.in("mlp"), x, m.size("intermediate"), bias{m.has("mlp_bias")});
  }
  static constexpr ex head(block_scope m, ex h) {
    return m.linear("lm_head", m.rms_norm("model.norm", h), m.size("vocab"));
  }
};
struct mistral : llama {
  static constexpr const char* name = "mistral";
};
}  // namespace graft
namespace graft {
constexpr ex gated_experts(block_scope m, const char* name, ex x, const expert_choice& by) {
  return m.experts(name, x, by, [&](block_scope e, ex rows) {
    const extent inner = e.size("moe_intermediate");
    auto both = e.linear("gate_up_proj", rows, 2 * inner);
    auto gate = slice(both, 3, 0, inner), up = slice(both, 3, inner, inner);
    return e.linear("down_proj", mul(e.activated(gate, op::silu), up), x.cols());
  });
}
constexpr expert_choice softmax_router(block_scope m, const char* name, ex x, bool over_chosen) {
  const extent k = m.size("experts_per_token");
  auto scores = m.linear(name, x, m.size("experts"));
  return {scores, over_chosen ? topk_softmax(scores, k) : softmax(scores), k};
}
struct mixtral : llama {
  static constexpr const char* name = "mixtral";
  static constexpr ex run(block_scope m, ex h) {
    h = h + self_attention(m, m.rms_norm("input_layernorm", h), {});
    auto x = m.rms_norm("post_attention_layernorm", h);
    return h + gated_experts(m, "mlp.experts", x, softmax_router(m, "mlp.gate", x, true));
  }
};
}  // namespace graft
namespace graft {
struct gpt_oss : llama {
  static constexpr const char* name = "gpt_oss";
  static constexpr ex run(block_scope m, ex h) {
    const extent hidden = h.cols();
    const bias b{m.has("attention_bias")};
    const ex sinks = m.at("self_attn").leaf(op::base, "sinks", 1, 1, 1, m.size("heads"), 1);
    h = h + self_attention(m, m.rms_norm("input_layernorm", h), {.in = b, .out = b, .sinks = sinks});
    auto x = m.rms_norm("post_attention_layernorm", h);
    const extent k_experts = m.size("experts_per_token");
    auto scores = m.linear("mlp.router", x, m.size("experts"), bias::yes);
    return h +
           m.experts("mlp.experts", x, {scores, topk_softmax(scores, k_experts), k_experts}, [&](block_scope e, ex r) {
             const extent inner = e.size("moe_intermediate"), rows = r.rows();
             const ex limit = m.root().scalar("swiglu_limit"), alpha = m.root().scalar("swiglu_alpha");
             auto both = e.expert_bias("gate_up_proj_bias", e.conv1d("gate_up_proj", r, 2 * inner));
             auto pairs = reshape(both, rows, inner, 2);
             auto gate = min(reshape(slice(pairs, 3, 0, 1), rows, inner), limit);
             auto up = max(min(reshape(slice(pairs, 3, 1, 1), rows, inner), limit), -1.0 * limit);
             auto swiglu = mul(1.0 + up, mul(gate, sigmoid(mul(alpha, gate))));
             return e.expert_bias("down_proj_bias", e.conv1d("down_proj", swiglu, hidden));
           });
  }
};
}  // namespace graft
namespace graft {
struct granite : llama {
  static constexpr const char* name = "granite";
  static constexpr ex embed(block_scope m, ex ids) {
    return m.root().scalar("embedding_multiplier") * llama::embed(m, ids);
  }
  static constexpr ex run(block_scope m, ex h) {
    auto by = m.root().scalar("residual_multiplier");
    h = h + by * self_attention(m, m.rms_norm("input_layernorm", h), configured_attention(m));
    auto x = m.rms_norm("post_attention_layernorm", h);
    return h + by * gated_layer(m.in("mlp"), x, m.size("intermediate"), bias{m.has("mlp_bias")});
  }
  static constexpr ex head(block_scope m, ex h) { return llama::head(m, h) / m.root().scalar("logits_scaling"); }
};
}  // namespace graft
namespace graft {
struct olmo2 : llama {
  static constexpr const char* name = "olmo2";
  static constexpr ex run(block_scope m, ex h) {
    const extent hidden = h.cols(), d = m.size("head_dim"), heads = m.size("heads") * d, kv = m.size("kv_heads") * d;
    const bias in_attention{m.has("attention_bias")}, in_output{m.has("output_bias")};
    auto q = m.rope(m.rms_norm("self_attn.q_norm", m.linear("self_attn.q_proj", h, heads, in_attention)));
    auto k = m.rope(m.rms_norm("self_attn.k_norm", m.linear("self_attn.k_proj", h, kv, in_attention)));
    auto v = m.linear("self_attn.v_proj", h, kv, in_attention);
    auto attended = m.linear("self_attn.o_proj", m.attention(q, k, v), hidden, in_output);
    h = h + m.rms_norm("post_attention_layernorm", attended);
    return h + m.rms_norm("post_feedforward_layernorm", gated_layer(m.in("mlp"), h, m.size("intermediate")));
  }
};
}  // namespace graft
namespace graft {
struct opt {
  static constexpr const char *name = "opt", *layers = "model.decoder.layers";
  static constexpr ex embed(block_scope m, ex ids) {
    const extent hidden = m.size("hidden"), rows = m.size("context");
    auto table = m.at("model.decoder.embed_positions").leaf(op::base, "weight", 2, 1, 1, rows + 2, hidden);
    const bool projected = m.has("projected");
    auto h = m.embedding("model.decoder.embed_tokens", ids, m.size("vocab"), projected ? m.size("embedding") : hidden);
    if (projected) h = m.linear("model.decoder.project_in", h, hidden);
    return h + ex{m.g, make_node::gather(*m.g, slice(table, 2, 2, rows).i, m.positions().i, false)};
  }
  static constexpr ex run(block_scope m, ex h) {
    const extent hidden = h.cols();
    const bool before = m.has("norm_before");
    const bias b{m.has("attention_bias")};
    auto norm = [&](const char* path, ex x) { return m.layer_norm(path, x); };
    auto x = before ? norm("self_attn_layer_norm", h) : h;
    auto q = m.linear("self_attn.q_proj", x, hidden, b), k = m.linear("self_attn.k_proj", x, hidden, b);
    auto v = m.linear("self_attn.v_proj", x, hidden, b);
    h = h + m.dropout("self_attn", m.linear("self_attn.out_proj", m.attention(q, k, v), hidden, b));
    if (!before) h = norm("self_attn_layer_norm", h);
    x = before ? norm("final_layer_norm", h) : h;
    x = m.activated(m.linear("fc1", x, m.size("intermediate"), b), op::relu);
    h = h + m.dropout("fc2", m.linear("fc2", x, hidden, b));
    return before ? h : norm("final_layer_norm", h);
  }
  static constexpr ex head(block_scope m, ex h) {
    if (m.has("final_norm")) h = m.layer_norm("model.decoder.final_layer_norm", h);
    if (m.has("projected")) h = m.linear("model.decoder.project_out", h, m.size("embedding"));
    return m.linear("lm_head", h, m.size("vocab"));
  }
};
}  // namespace graft
namespace graft {
struct phi3 : llama {
  static constexpr const char* name = "phi3";
  static constexpr ex run(block_scope m, ex h) {
    const extent hidden = h.cols(), d = m.size("head_dim"), heads = m.size("heads") * d, kv = m.size("kv_heads") * d,
                 inner = m.size("intermediate");
    auto qkv = m.linear("self_attn.qkv_proj", m.rms_norm("input_layernorm", h), heads + 2 * kv);
    auto q = m.rope(slice(qkv, 3, 0, heads)), k = m.rope(slice(qkv, 3, heads, kv));
    auto v = slice(qkv, 3, heads + kv, kv);
    h = h + m.dropout("resid_attn_dropout", m.linear("self_attn.o_proj", m.attention(q, k, v), hidden));
    auto gate_up = m.linear("mlp.gate_up_proj", m.rms_norm("post_attention_layernorm", h), 2 * inner);
    auto gate = slice(gate_up, 3, 0, inner), up = slice(gate_up, 3, inner, inner);
    auto down = m.linear("mlp.down_proj", mul(m.activated(gate, op::silu), up), hidden);
    return h + m.dropout("resid_mlp_dropout", down);
  }
};
}  // namespace graft
namespace graft {
struct qwen2 : llama {
  static constexpr const char* name = "qwen2";
  static constexpr ex run(block_scope m, ex h) {
    h = h + self_attention(m, m.rms_norm("input_layernorm", h), {.in = bias::yes});
    return h + gated_layer(m.in("mlp"), m.rms_norm("post_attention_layernorm", h), m.size("intermediate"));
  }
};
}  // namespace graft
namespace graft {
struct qwen2_moe : llama {
  static constexpr const char* name = "qwen2_moe";
  static constexpr ex run(block_scope m, ex h) {
    h = h + self_attention(m, m.rms_norm("input_layernorm", h), {.in = bias{m.has("attention_bias")}});
    auto x = m.rms_norm("post_attention_layernorm", h);
    if (!m.has("sparse_layer")) return h + gated_layer(m.in("mlp"), x, m.size("intermediate"));
    auto chosen = gated_experts(m, "mlp.experts", x, softmax_router(m, "mlp.gate", x, m.has("router_over_chosen")));
    auto shared = gated_layer(m.in("mlp.shared_expert"), x, m.size("shared_intermediate"));
    return h + (chosen + mul(sigmoid(m.linear("mlp.shared_expert_gate", x, 1)), shared));
  }
};
}  // namespace graft
namespace graft {
constexpr ex attention_with_head_norms(block_scope m, ex h) {
  attention_form form = configured_attention(m);
  form.norms_heads = true;
  return h + self_attention(m, m.rms_norm("input_layernorm", h), form);
}
struct qwen3 : llama {
  static constexpr const char* name = "qwen3";
  static constexpr ex run(block_scope m, ex h) {
    h = attention_with_head_norms(m, h);
    return h + gated_layer(m.in("mlp"), m.rms_norm("post_attention_layernorm", h), m.size("intermediate"));
  }
};
}  // namespace graft
namespace graft {
struct qwen3_moe : llama {
  static constexpr const char* name = "qwen3_moe";
  static constexpr ex run(block_scope m, ex h) {
    h = attention_with_head_norms(m, h);
    auto x = m.rms_norm("post_attention_layernorm", h);
    if (!m.has("sparse_layer")) return h + gated_layer(m.in("mlp"), x, m.size("intermediate"));
    return h + gated_experts(m, "mlp.experts", x, softmax_router(m, "mlp.gate", x, m.has("router_over_chosen")));
  }
};
}  // namespace graft
namespace graft {
struct smollm3 : llama {
  static constexpr const char* name = "smollm3";
};
}  // namespace graft
namespace graft {
struct saved_pair {
  builder forward;              // outputs of the layer, then the saved tensors
  builder backward;             // reads the saved values as inputs, in that order
  sequence<id> leaf;            // the backward graph's leaf for each saved tensor
  int attention_out = -1;       // number of the saved attention output; -1: no attention, or several
  sequence<bool> is_routing{};  // the value is a routing table, whose numbers of rows no 16-bit type holds
};
constexpr int saved_rank(const node& v) { return v.d[0] == dim{1} && v.d[1] == dim{1} ? 2 : 4; }
constexpr text saved_name(int number) {
  int power = 1;
  while (number / power >= 10) power *= 10;
  text t;
  for (; power > 0; power /= 10) t << number / power % 10 << '.';
  t << "saved";
  return t;
}
[[gnu::cold]] constexpr builder requested_outputs(const graph& from, const sequence<bool>& requested) {
  sequence<output> out;
  for (int k = 0; k < from.outs; ++k)
    if (requested[k]) out.push(from.out[k]);
  graph part = from;
  part.out = out.data(), part.outs = out.size();
  part.need = nullptr, part.needs = 0;  // requirements are checked on the whole graph; their nodes may be missing here
  return canonical(part);
}
[[gnu::cold]] constexpr sequence<id> same_nodes(const graph& in, const graph& of) {
  builder all;  // takes both graphs and makes equal nodes once
  sequence<id> at_in(in.size, none_id), at_of(of.size, none_id);
  detail::table_copier in_tables(in, all), of_tables(of, all);
  for (id i = 0; i < in.size; ++i) at_in[i] = all.emit(in_tables.moved(in[i], at_in.data()));
  for (id i = 0; i < of.size; ++i) at_of[i] = all.emit(of_tables.moved(of[i], at_of.data()));
  sequence<id> from_in(all.n.size(), none_id), same(of.size, none_id);
  for (id i = 0; i < in.size; ++i) from_in[at_in[i]] = i;
  for (id i = 0; i < of.size; ++i) same[i] = from_in[at_of[i]];
  return same;
}
namespace detail {
constexpr bool cheap_to_recompute(const graph& g, const stages& when, id i) {
  const node& v = g[i];
  if (v.what == op::matmul) {  // a row read as a matrix, times a shared matrix (LoKr): as large as the row, few flops
    const id row = when.of[v.a] == stage::call ? v.a : v.b, other = row == v.a ? v.b : v.a;
    return !v.sum && when.of[other] != stage::call && g[row].what == op::reshape && g.sizes.has_token_rows(v.d[1]) &&
           !g.sizes.has_token_rows(g[g[row].a].d[1]);
  }
  if (v.what == op::route) return false;
  const op_class kind = traits_of(v.what).kind;
  return kind == op_class::pointwise || kind == op_class::layout || kind == op_class::rowwise ||
         kind == op_class::lookup;
}
struct recompute_cut {
  const graph &backward, &forward;
  const sequence<id>& same;  // for every node of backward the equal node of forward, or none_id
  stages when;
  node_set shared, saved;
  sequence<id> origin;  // none_id: the value comes with the call, or is precomputed
  constexpr bool cheap_to_recompute(id i) const { return detail::cheap_to_recompute(backward, when, i); }
  constexpr void find() {
    for (id i = 0; i < backward.size; ++i) {
      const node& v = backward[i];
      if (!shared[i] || when.of[i] != stage::call || is_leaf(v.what)) continue;
      origin[i] = i;
      if (!cheap_to_recompute(i)) continue;
      id one = none_id;
      bool several = false;
      for (int k = 0; k < 3; ++k) {
        const id o = v.operand(k) >= 0 ? origin[v.operand(k)] : none_id;
        several = several || (o >= 0 && one >= 0 && o != one);
        if (o >= 0) one = o;
      }
      if (!several) origin[i] = one;
    }
    auto save_origin = [&](id i) {
      if (i >= 0 && origin[i] >= 0) saved.add(origin[i]);
    };
    for (int k = 0; k < backward.outs; ++k) save_origin(backward.out[k].at);
    for (id i = 0; i < backward.size; ++i)
      for (int k = 0; k < 3; ++k)
        if (!shared[i]) save_origin(backward[i].operand(k));
    for (id i = 0; i < backward.size; ++i) {
      if (!saved[i] || !cheap_to_recompute(i)) continue;
      bool is_recomputable = true;
      for (int k = 0; k < 3; ++k)
        if (const id o = backward[i].operand(k); o >= 0)
          is_recomputable = is_recomputable && (origin[o] < 0 || saved[origin[o]]);
      if (is_recomputable) saved.in[i] = false;
    }
    for (id i = 0; i < backward.size; ++i)
      if (saved[i])
        if (const id next = single_reader(i); next >= 0) saved.in[i] = false, saved.add(next);
    save_stored();
    drop_unread();
  }
  constexpr void save_stored() {
    node_set passes(backward.size);
    for (id i = 0; i < backward.size; ++i) {
      const node& v = backward[i];
      if (!shared[i] || when.of[i] != stage::call || is_leaf(v.what) || !cheap_to_recompute(i)) continue;
      id one = none_id;
      bool is_pass = traits_of(v.what).kind == op_class::rowwise;
      for (int k = 0; k < 3; ++k) {
        const id o = v.operand(k);
        if (o < 0 || when.of[o] != stage::call) continue;
        const id from = origin[o] >= 0 ? origin[o] : o;
        is_pass = is_pass || (passes[o] && !saved[o]) || (one >= 0 && from != one);
        one = from;
      }
      if (is_pass) passes.add(i);
      if (passes[i] && !saved[i] && v.what != op::dropout && is_read_outside(i) && is_stored(same[i])) saved.add(i);
    }
  }
  constexpr bool is_read_outside(id i) const {
    for (id r = i + 1; r < backward.size; ++r)
      for (int k = 0; k < 3; ++k)
        if (backward[r].operand(k) == i && (!shared[r] || (backward[r].what == op::dropout && is_read_outside(r))))
          return true;
    return false;
  }
  constexpr bool is_stored(id i) const {
    for (id r = i + 1; r < forward.size; ++r)
      for (int k = 0; k < 3; ++k)
        if (forward[r].operand(k) == i && traits_of(forward[r].what).reads_memory) return true;
    return false;
  }
  constexpr void drop_unread() {
    node_set read(backward.size);
    for (int k = 0; k < backward.outs; ++k) read.add(backward.out[k].at);
    for (id i = backward.size - 1; i >= 0; --i)
      for (int k = 0; k < 3; ++k)
        if (const id o = backward[i].operand(k); read[i] && !saved[i] && o >= 0) read.add(o);
    for (id i = 0; i < backward.size; ++i) saved.in[i] = saved[i] && read[i];
  }
  constexpr id single_reader(id i) const {
    id one = none_id;
    for (id r = i + 1; r < backward.size; ++r)
      for (int k = 0; k < 3; ++k)
        if (backward[r].operand(k) == i) {
          if (one >= 0) return none_id;
          one = r;
        }
    const bool goes_on = one >= 0 && shared[one] && cheap_to_recompute(one) && !is_output(backward, i) &&
                         same_shape(backward[one], backward[i]) && !saved[one];
    return goes_on ? one : none_id;
  }
};
constexpr int numbered_path(builder& g, int number) {
  constexpr const char* digits = "0123456789";
  const int above = number < 10 ? 0 : numbered_path(g, number / 10);
  return g.word(above, digits + number % 10, 1);
}
}  // namespace detail
[[gnu::cold]] constexpr saved_pair select_saved_tensors(const graph& forward, const graph& backward) {
  const sequence<id> same = same_nodes(forward, backward);
  detail::recompute_cut c{backward,
                          forward,
                          same,
                          schedule(backward),
                          node_set(backward.size),
                          node_set(backward.size),
                          sequence<id>(backward.size, none_id)};
  for (id i = 0; i < backward.size; ++i)
    if (same[i] >= 0) c.shared.add(i);
  c.find();
  saved_pair made;
  sequence<output> outputs;
  for (int k = 0; k < forward.outs; ++k) outputs.push(forward.out[k]);
  builder rest;
  detail::table_copier tables(backward, rest);
  sequence<id> moved_to(backward.size, none_id);
  int attentions = 0;
  for (id i = 0; i < backward.size; ++i) {
    const node& v = backward[i];
    attentions += v.what == op::attention || v.what == op::attention_grad ? 1 : 0;
    if (!c.saved[i]) {
      moved_to[i] = rest.append(tables.moved(v, moved_to.data()));
      continue;
    }
    outputs.push({same[i], "saved"});
    if (v.what == op::attention) made.attention_out = made.leaf.size();
    moved_to[i] = rest.leaf(op::input, "saved", detail::numbered_path(rest, made.leaf.size()), saved_rank(v),
                            tables.size(v.d[0]), tables.size(v.d[1]), tables.size(v.d[2]), tables.size(v.d[3]));
    made.leaf.push(moved_to[i]), made.is_routing.push(v.what == op::route);
  }
  for (int k = 0; k < backward.outs; ++k) {
    const output& o = backward.out[k];
    rest.add_output(moved_to[o.at], o.name, tables.path(o.path), o.of_input);
  }
  if (attentions != 2) made.attention_out = -1;
  made.backward = canonical(rest);
  for (int k = 0; k < made.leaf.size(); ++k) made.leaf[k] = made.backward.find(saved_name(k).c_str());
  graph whole = forward;
  whole.out = outputs.data(), whole.outs = outputs.size();
  made.forward = canonical(whole);
  return made;
}
}  // namespace graft
namespace graft {
template <class T>
concept block_type = requires(block_scope m, ex h) {
  {T::run(m, h)};
};
struct block_value {
  block_formula formula{};
  block_options options{};
};
template <class T, std::size_t N> constexpr int entries(const T (&)[N]) { return static_cast<int>(N); }
template <class Block> constexpr block_value value_of() {
  block_value v{block_of<Block>(), {}};
  if constexpr (requires { Block::adapters; }) v.options.adapters = Block::adapters;
  if constexpr (requires { Block::facts; }) {
    v.options.facts = Block::facts;
    v.options.fact_count = entries(Block::facts);
  }
  return v;
}
namespace detail {
constexpr builder block_written(const block_value& v) { return canonical(capture(v.formula, v.options)); }
constexpr builder block_forward(const block_value& v) { return capture_forward(v.formula, v.options); }
constexpr builder block_backward(const block_value& v) { return capture_backward(v.formula, v.options); }
template <builder (*Function)(const block_value&), class Block> struct captured_block {
  static constexpr graph_counts n = counts_of(Function(Block::value));
  static constexpr auto stored = store_graph<n.nodes, n.sizes, n.paths, n.needs, n.outs>(Function(Block::value));
};
template <class Block> struct block_element { using type = float; };
template <class Block>
requires requires { typename Block::element; }
struct block_element<Block> {
  using type = typename Block::element;
};
}  // namespace detail
template <class Block> struct derived_block {
  static constexpr block_value value = value_of<Block>();
  static constexpr graph written = detail::captured_block<detail::block_written, derived_block>::stored;
  static constexpr graph forward = detail::captured_block<detail::block_forward, derived_block>::stored;
  static constexpr graph backward = detail::captured_block<detail::block_backward, derived_block>::stored;
};
template <class Block> constexpr size_values block_sizes(const graph& g) {
  size_values s;
  if constexpr (requires { Block::sizes; })
    for (const named_size& n : Block::sizes)
      if (const int index = g.sizes.find(n.name); index >= 0 && n.value != dyn) s.v[index] = n.value;
  infer_adapter_sizes(g, derived_block<Block>::value.options.adapters, s);
  return s;
}
template <class Block> constexpr size_values block_sizes_at(const graph& g, long long tokens) {
  size_values s = with_nominals(g, block_sizes<Block>(g));
  g.sizes.set_tokens(s, tokens);
  return s;
}
template <block_type Block, const target& To> struct plan_of<Block, To> {
  using layer = Block;
  using element = typename detail::block_element<Block>::type;
  using d = derived_block<Block>;
  static constexpr const target& runs_on = To;
  static constexpr detail::plan_facts facts = detail::facts_of(d::forward, To);
  static constexpr graph forward_graph() { return d::forward; }
  static constexpr int kernels_at(long long tokens) {
    return kernel_count(d::forward, fuse(d::forward, To), block_sizes_at<Block>(d::forward, tokens),
                        storage<element>::type);
  }
  static constexpr int kernels = facts.launches;
  static constexpr text why_several_kernels(long long tokens = 4096) {
    return graft::why_several_kernels(d::forward, fuse(d::forward, To), block_sizes_at<Block>(d::forward, tokens),
                                      storage<element>::type, {});
  }
  static constexpr int graph_breaks = facts.breaks;
  static constexpr unsigned long long key = facts.key;
  static constexpr cost forward_cost(long long tokens) { return price(d::forward, tokens); }
  static constexpr cost backward_cost(long long tokens) { return price(d::backward, tokens); }
  static constexpr long long flops(long long tokens) { return forward_cost(tokens).flops; }
  static constexpr long long bytes(long long tokens) { return forward_cost(tokens).bytes; }
  static constexpr long long saved_bytes(long long tokens) {
    const saved_pair pair = select_saved_tensors(d::forward, d::backward);
    const graph g = pair.forward;
    const size_values s = block_sizes_at<Block>(g, tokens);
    long long elements = 0;
    for (int k = d::forward.outs; k < g.outs; ++k) elements += element_count(g, g.out[k].at, s);
    return elements * bits_of(computed) / 8;
  }
 private:
  static constexpr dtype computed = storage<typename storage<element>::compute>::type;
  static constexpr cost price(const graph& g, long long tokens) {
    return cost_of(g, block_sizes_at<Block>(g, tokens), quant_format_of<element>(), computed);
  }
};
}  // namespace graft
namespace graft::detail {
constexpr bool block_evaluates(const block_value& v) { return !capture(v.formula, v.options).n.empty(); }
constexpr bool both_passes_evaluate(const block_value& v) {
  return !block_forward(v).n.empty() && !block_backward(v).n.empty();
}
template <class Block>
concept captures = requires {
  typename constant<block_evaluates(value_of<Block>())>;
};
template <class Block>
concept derives = requires {
  typename constant<both_passes_evaluate(value_of<Block>())>;
};
struct nothing {
  static constexpr const char* name = "nothing";
  static constexpr ex run(block_scope, ex h) { return h; }
};
template <class Block> struct block_checks {
  static constexpr graph g = derived_block<Block>::written;
  static constexpr size_values sizes = block_sizes<Block>(g);
  static constexpr const requirement* violated = first_violated(g, sizes);
};
template <class Block> struct block_size_mistake {
  using check = block_checks<Block>;
  static constexpr requirement r = *check::violated;
  static constexpr long long lhs = check::g.sizes.value(r.lhs, check::sizes);
  static constexpr long long rhs = check::g.sizes.value(r.rhs, check::sizes);
  static constexpr text where = located(check::g, r);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Block> struct block_fault {
  static constexpr failure bad = block_checks<Block>::g.bad;
  static constexpr text where = bad.name;
  using words = decltype(diagnostic::quoted<where>());
};
template <class Block> struct block_break {
  static constexpr graph g = derived_block<Block>::forward;
  static constexpr plan_facts facts = plan_of<Block>::facts;
  static constexpr text where = located(g, facts.first_break);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Block, const target& To> struct block_without_kernel {
  static constexpr graph g = derived_block<Block>::forward;
  static constexpr plan_facts facts = plan_of<Block, To>::facts;
  static constexpr text where = located(g, facts.first_break);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Block> struct block_no_gradient {
  static constexpr failure at = grad(canonical(capture(value_of<Block>().formula, value_of<Block>().options))).bad;
  static constexpr text where = located(block_checks<Block>::g, at.at);
  using words = decltype(diagnostic::quoted<where>());
};
template <class Block> constexpr auto block_size_verdict() {
  using m = block_size_mistake<Block>;
  using enum requirement::kind;
  using namespace diagnostic;
  if constexpr (m::r.what == inner)
    return type_is<inner_sizes_differ<Block, Block, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else if constexpr (m::r.what == same)
    return type_is<sizes_differ<Block, Block, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else if constexpr (m::r.what == square)
    return type_is<matrix_is_not_square<Block, Block, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else if constexpr (m::r.what == at_most)
    return type_is<size_is_too_large<Block, Block, typename m::words, m::r.line, m::lhs, m::rhs>>{};
  else
    return type_is<size_is_not_divisible<Block, Block, typename m::words, m::r.line, m::lhs, m::rhs>>{};
}
template <class Block> constexpr auto block_fault_verdict() {
  using m = block_fault<Block>;
  if constexpr (m::bad.what == formula_error::too_many_sizes)
    return type_is<diagnostic::formula_has_too_many_sizes<nothing, Block, max_names>>{};
  else if constexpr (m::bad.what == formula_error::name_is_taken)
    return type_is<diagnostic::name_is_taken<nothing, Block, typename m::words, m::bad.line>>{};
  else if constexpr (m::bad.what == formula_error::not_on_experts)
    return type_is<diagnostic::not_on_experts<nothing, Block, typename m::words, m::bad.line>>{};
  else
    return type_is<diagnostic::size_is_not_positive<nothing, Block, typename m::words, m::bad.line, m::bad.number>>{};
}
template <class Block, class... Options> constexpr auto block_verdict() {
  constexpr bool requires_fullgraph = has_option<fullgraph, Options...>,
                 requires_training = has_option<training, Options...>, one = has_option<one_kernel, Options...>;
  if constexpr (!captures<Block>) {
    return type_is<diagnostic::not_a_block<nothing, Block>>{};
  } else if constexpr (block_checks<Block>::g.bad.what != formula_error::none) {
    return block_fault_verdict<Block>();
  } else if constexpr (!derives<Block>) {
    return type_is<diagnostic::formula_is_too_large<nothing, Block>>{};
  } else if constexpr (block_checks<Block>::violated != nullptr) {
    return block_size_verdict<Block>();
  } else if constexpr (requires_fullgraph && plan_of<Block>::graph_breaks > 0) {
    using m = block_break<Block>;
    return type_is<diagnostic::host_function_breaks_the_graph<Block, Block, typename m::words,
                                                              m::g[m::facts.first_break].line, m::facts.breaks>>{};
  } else if constexpr (requires_fullgraph && plan_of<Block, chosen<Options...>::to>::graph_breaks > 0) {
    using m = block_without_kernel<Block, chosen<Options...>::to>;
    return type_is<diagnostic::no_kernel_on_this_target<Block, Block, typename m::words,
                                                        m::g[m::facts.first_break].line, m::facts.breaks>>{};
  } else if constexpr (requires_training &&
                       derived_block<Block>::backward.bad.what == formula_error::not_differentiable) {
    using m = block_no_gradient<Block>;
    return type_is<diagnostic::not_differentiable<Block, Block, typename m::words, m::at.line>>{};
  } else if constexpr (one && plan_of<Block, chosen<Options...>::to>::kernels != 1) {
    using planned = plan_of<Block, chosen<Options...>::to>;
    using m = several_kernels<planned>;
    return type_is<diagnostic::more_than_one_kernel<Block, Block, typename m::words, planned::kernels>>{};
  } else {
    return type_is<plan_of<Block, chosen<Options...>::to>>{};
  }
}
template <block_type Block, class... Options> struct checked_compile<Block, Options...> {
  using verdict = decltype(block_verdict<Block, Options...>());
};
}  // namespace graft::detail
namespace graft::detail {
template <block_type Block, const target& To> struct explained<Block, To> {
  template <class Sink> static constexpr void write(Sink&& line, long long tokens) {
    using facts = plan_of<Block, To>;
    constexpr dtype stored = storage<typename facts::element>::type;
    const bool priced = tokens != dyn;
    text head;
    head << Block::name << " block " << name_of(stored);
    if (priced) {
      head << ", " << tokens << " tokens, ";
      print_si(head, facts::saved_bytes(tokens)), head << "B saved for backward";
    }
    line(head);
    auto pass = [&](const graph& g, const char* title, const cost& price) {
      const launch_plan p = fuse(g, To);
      size_values s = with_nominals(g, block_sizes<Block>(g));
      if (priced) g.sizes.set_tokens(s, tokens);
      explain_graph(g, p, title, kernel_count(g, p, s, stored), priced ? &price : nullptr, line);
    };
    pass(facts::d::forward, "forward", priced ? facts::forward_cost(tokens) : cost{});
    pass(facts::d::backward, "backward", priced ? facts::backward_cost(tokens) : cost{});
  }
};
}  // namespace graft::detail
namespace graft {
inline void print_line(const text& t) { std::puts(t.c_str()); }
template <class Layer, const target& To = cpu_target> void explain(long long tokens = dyn) {
  explain<Layer, To>(print_line, tokens);
}
template <class Layer, const target& To = cpu_target> void draw(drawing format = drawing::mermaid) {
  const graph g = plan_of<Layer, To>::forward_graph();
  draw(g, fuse(g, To), format, print_line);
}
}  // namespace graft
