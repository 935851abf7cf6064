// The Python module cherenkov._native. It checks what would otherwise be read or written out of bounds, holds on to what
// the kernels point at, and releases the GIL. Callers are cherenkov/backends/native.py and the tests.
#include "bindings.h"

#include "../io/bindings_io.h"
#include "bandwidth.h"
#include "bindings_flow.h"

namespace cherenkov::cpu {

void refuse(const char* operation, const std::string& reason) {
    const nb::object error = nb::module_::import_("cherenkov.errors").attr("BackendError")("native", operation, reason);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
    throw nb::python_error();
}

}  // namespace cherenkov::cpu

NB_MODULE(_native, m) {
    // What lives on at exit belongs to threads that outlive the interpreter, and a user can do nothing about it.
    nanobind::set_leak_warnings(false);
    m.doc() = "CPU kernels. See kernels/README.md; the Python side is cherenkov.backends.native.";
    cherenkov::cpu::bind_weights(m);
    cherenkov::cpu::bind_flow(m);
    cherenkov::cpu::bind_engine(m);
    cherenkov::io::bind_reads(m);
    cherenkov::cpu::bind_ngrams(m);
    cherenkov::cpu::bind_sampling(m);
    m.def("read_bandwidth", [](int threads) {
        cherenkov::cpu::need(threads > 0 && threads <= 1024, "read_bandwidth", "threads must be 1 to 1024");
        const nb::gil_scoped_release release;
        return cherenkov::cpu::read_bandwidth(threads);
    }, nb::arg("threads"), "Bytes a second that threads together read from memory, measured now.");
}
