// What the parts of the Python module share: checks, arrays, and weights with the Python objects they point into.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "ops.h"

namespace nb = nanobind;

namespace cherenkov::cpu {

using AnyMatrix = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;
template <typename T, int N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <int N>
using Const = Array<const float, N>;
template <int N>
using Out = Array<float, N>;
using Ids = Array<const int32_t, 1>;

// Raises cherenkov.errors.BackendError.
[[noreturn]] void refuse(const char* operation, const std::string& reason);

inline void need(bool holds, const char* operation, const char* reason) {
    if (!holds) refuse(operation, reason);
}

template <typename A>
bool has_shape(const A& array, std::initializer_list<int> shape) {
    size_t i = 0;
    for (const int side : shape)
        if (array.shape(i++) != static_cast<size_t>(side)) return false;
    return true;
}

template <typename A>
int side(const A& array, size_t i) { return static_cast<int>(array.shape(i)); }

// a * b, or -1, which no side has, unless it is positive and fits.
inline int times(int a, int b) {
    const int64_t product = static_cast<int64_t>(a) * b;
    return product > 0 && product <= std::numeric_limits<int>::max() ? static_cast<int>(product) : -1;
}

// A part of a state as it lies in memory: what was converted on the way in would be written to no avail.
template <typename A>
A state_of(nb::handle state, const char* part, const char* operation) {
    A array;
    need(nb::try_cast<A>(nb::getattr(state, part, nb::none()), array, false), operation,
         "a state is no C-contiguous float32 array of the right rank");
    return array;
}

struct Matrix {
    Weights w;
    AnyMatrix codes;
    std::optional<AnyMatrix> scales, biases;

    Matrix(AnyMatrix codes, std::optional<AnyMatrix> scales, std::optional<AnyMatrix> biases, int rows, int cols, int bits,
           int group);
};

// Weights of an operation, and the Python objects they point into.
template <typename T>
struct Held {
    T w;
    std::vector<nb::object> keep;
};

using HeldResidual = Held<GatedResidual>;
using HeldDelta = Held<DeltaNet>;
using HeldAttention = Held<SparseAttention>;
using HeldPle = Held<Ple>;
using HeldShared = Held<SharedExpert>;
using HeldFuse = Held<DraftFuse>;
using HeldHead = Held<Head>;

// Add the classes to the module.
void bind_weights(nb::module_& m);
void bind_engine(nb::module_& m);
void bind_ngrams(nb::module_& m);
void bind_sampling(nb::module_& m);

}  // namespace cherenkov::cpu
