// SPDX-License-Identifier: Apache-2.0
// One node on the device: from the values of its operands to its value, as backend/cpu/evaluate.h does it. sum_to,
// rotate_grad, scatter and unpatch add to what is there; the others overwrite, a product only when accumulate is 0.
// Everything is queued on the stream and nothing waits for it.
#pragma once
#include <graft/backend/cuda/algebra.cuh>
#include <graft/backend/cuda/layout.cuh>
#include <graft/backend/cuda/pointwise.cuh>
#include <graft/backend/cuda/rotate.cuh>
#include <graft/backend/cuda/rowwise.cuh>

namespace graft::cuda {

template <class Real> struct evaluator {
  const graph& g;
  const size_values& s;

  long long argument(const node& v, int k) const { return g.sizes.value(v.k[k], s); }
  window patch_window(const node& v, id image) const {
    const node& x = g[image];
    const long long kw = argument(v, 1), stride = argument(v, 2), pad = argument(v, 3);
    return {argument(v, 0), kw, stride, pad, (g.sizes.value(x.d[3], s) + 2 * pad - kw) / stride + 1};
  }

  // Elements of extra memory that node i needs while it is computed; it begins at a multiple of 8 bytes.
  long long scratch(id i) const {
    const node& v = g[i];
    auto sizes = [&](id o) { return shaped<Real>(g, o, s, nullptr); };
    if (v.what == op::inverse) return inverses<Real>::needs(sizes(v.a));
    if (v.what == op::neumann) return neumanns<Real>::needs(sizes(v.a));
    if (v.what == op::neumann_grad) return neumann_grads<Real>::needs(sizes(v.a), neumann_series(argument(v, 0)));
    if (v.what == op::rotate) return rotate_scratch(sizes(v.a), sizes(v.b));
    if (v.what == op::rotate_grad) return rotate_grad_scratch(sizes(v.a), sizes(v.c));
    return 0;
  }

  status operator()(cudaStream_t stream, id i, tensor<Real> out, const operands<Real>& x, Real* scratch,
                    int accumulate = 0) const;

  // The same wherever functors can be run: on a stream, or in a test by a loop on the host.
  template <class On>
  status run(const On& on, id i, tensor<Real> out, const operands<Real>& x, Real* scratch, int accumulate) const;
};

template <class Real>
template <class On>
status evaluator<Real>::run(const On& on, id i, tensor<Real> out, const operands<Real>& x, Real* scratch,
                            int accumulate) const {
  const node& v = g[i];
  const long long n = out.count();
  const char* const name = row(v.what).name;
  auto* const doubles = reinterpret_cast<double*>(scratch);
  switch (v.what) {
    case op::input:
    case op::ids:
    case op::base:
    case op::frozen:
    case op::param:
    case op::scalar:
    case op::kept: break;
    case op::constant: return on.elements(1, filled<Real>{out.p, static_cast<Real>(v.value)}, name);
    case op::zero: return on.elements(n, filled<Real>{out.p, Real(0)}, name);
    case op::eye: return on.elements(out.area(), identity<Real>{out}, name);
    case op::add:
    case op::sub:
    case op::mul:
    case op::div:
    case op::minimum: return on.elements(n, binary<Real>(v.what, out, x.a, x.b), name);
    case op::sqrt:
    case op::exp:
    case op::tanh:
    case op::sigmoid:
    case op::relu:
    case op::step:
    case op::detach: return on.elements(n, unary<Real>{v.what, out.p, x.a.p}, name);
    case op::matmul: return multiply(on, products_of(out, x.a, x.b, {v.ta, v.tb, v.sum, accumulate}));
    case op::row_dot: return on.rows(x.a.rows(), row_dots<Real>{out, x.a, x.b}, name);
    case op::sum_to: return sum_to(on, summed_to<Real>(out, x.a), name);
    case op::transpose: return on.elements(n, transposed<Real>{out, x.a}, name);
    case op::reshape: return on.elements(n, copied<Real>{out.p, x.a.p}, name);
    case op::swap_inner: return on.elements(n, inner_swapped<Real>{out, x.a}, name);
    case op::tile: return on.elements(n, tiled<Real>{out, x.a}, name);
    case op::fold: return on.elements(n, folded<Real>{out, x.a}, name);
    case op::upper: return on.elements(n, upper_part<Real>{out, x.a}, name);
    case op::skew: return on.elements(n, skewed<Real>{out, x.a}, name);
    case op::unskew: return on.elements(x.a.count(), unskewed<Real>{out, x.a}, name);
    case op::inverse: return on.matrices(x.a.matrices(), x.a.area(), inverses<Real>{out, x.a, doubles}, name);
    case op::neumann: {
      const neumanns<Real> f{out, x.a, neumann_series(argument(v, 0)), doubles};
      return on.matrices(x.a.matrices(), x.a.area(), f, name);
    }
    case op::neumann_grad: {
      const neumann_grads<Real> f{out, x.a, x.b, neumann_series(argument(v, 0)), doubles};
      return on.matrices(x.a.matrices(), x.a.area(), f, name);
    }
    case op::rotate: return rotate(on, out, x.a, x.b, v.tb, scratch);
    case op::rotate_grad: return rotate_grad(on, out, x.a, x.b, x.c, v.tb, scratch);
    case op::kron: return on.elements(out.area(), kronecker<Real>{out, x.a, x.b}, name);
    case op::row_kron: return on.elements(x.a.d[2] * out.d[3], row_kronecker<Real>{out, x.a, x.b}, name);
    case op::gather: return on.elements(out.area(), gathered<Real>{out, x.a, x.ids, v.ta}, name);
    case op::scatter: return on.rows(v.ta ? out.d[3] : out.d[2], scattered<Real>{out, x.a, x.ids, v.ta}, name);
    case op::topk_softmax: return on.rows(x.a.rows(), topk_softmaxes<Real>{out, x.a, argument(v, 0)}, name);
    case op::softmax_grad: return on.rows(x.a.rows(), softmax_grads<Real>{out, x.a, x.b}, name);
    case op::normalize: return on.rows(x.a.rows(), normalized<Real>{out, x.a, x.b.p, v.k[0] == dim{1}}, name);
    case op::normalize_grad: {
      return on.rows(x.a.rows(), normalize_grads<Real>{out, x.a, x.b.p, x.c, v.k[0] == dim{1}}, name);
    }
    case op::patches: return on.elements(n, patched<Real>{out, x.a, patch_window(v, v.a)}, name);
    case op::unpatch: return on.elements(n, unpatched<Real>{out, x.a, patch_window(v, i)}, name);
    case op::host: return fail("host function '", v.name, "' cannot run on the GPU");
  }
  return ok;
}

// Outside the class, so that a program may compile it once (extern template): behind it are all the kernels.
template <class Real>
status evaluator<Real>::operator()(cudaStream_t stream, id i, tensor<Real> out, const operands<Real>& x, Real* scratch,
                                   int accumulate) const {
  return run(on_stream{stream}, i, out, x, scratch, accumulate);
}

}  // namespace graft::cuda
