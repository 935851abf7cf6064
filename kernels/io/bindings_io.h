// The part of the Python module that reads records.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

namespace nb = nanobind;

namespace cherenkov::io {

class ReadQueue;

void bind_reads(nb::module_& m);
// Of a `Reads` object, which keeps it alive.
ReadQueue& queue_of(nb::handle reads);

}  // namespace cherenkov::io
