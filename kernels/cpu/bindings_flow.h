// What goes on without the host where experts are missing, as Python holds it.
#pragma once
#include "bindings.h"
#include "flow.h"

namespace cherenkov::cpu {

// A flow, and the Python objects it points into.
struct HeldFlow {
    Flow flow;
    Flow::Memory memory;
    std::vector<nb::object> keep;
};

// It moves records in these slots.
void need_flow(const HeldFlow&, const Residency&, const char* operation);

void bind_flow(nb::module_& m);

}  // namespace cherenkov::cpu
