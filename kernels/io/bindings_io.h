// The part of the Python module that reads records.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

namespace nb = nanobind;

namespace cherenkov::io {

void bind_reads(nb::module_& m);

}  // namespace cherenkov::io
