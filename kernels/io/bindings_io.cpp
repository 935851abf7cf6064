// Reads as Python calls them: cherenkov.experts.reader is the caller. The GIL is not held while anything waits.
#include "bindings_io.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>

#include <unistd.h>

#include "read_queue.h"
#include "xxh3.h"

namespace cherenkov::io {

namespace {

using Memory = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Sums = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr double patience = 0.05;  // seconds between looks at Ctrl-C
constexpr size_t shortest_checked = 241;

// The same records in fewer bits: descriptors, stride, checksums.
using Lower = std::tuple<int, int, size_t, std::optional<Sums>>;

class Reads {
public:
    Reads(int file, int direct, Memory memory, int threads, const std::optional<Sums>& sums, bool every_time,
          const std::optional<Lower>& lower)
        : memory_(std::move(memory)), slots_(static_cast<int>(memory_.shape(0))), process_(getpid()) {
        if (threads < 1 || threads > 64) throw std::invalid_argument("1 to 64 threads read");
        records_ = sums ? static_cast<int64_t>(sums->shape(0)) : std::numeric_limits<int64_t>::max();
        file_ = opened(file, direct, memory_.shape(1), sums, every_time);
        if (lower) {
            const auto& [low_file, low_direct, stride, low_sums] = *lower;
            if (stride > memory_.shape(1)) throw std::invalid_argument("records of fewer bits are longer than slots");
            if (low_sums && static_cast<int64_t>(low_sums->shape(0)) < records_) throw std::invalid_argument("too few checksums");
            lower_ = opened(low_file, low_direct, stride, low_sums, every_time);
        }
        queue_ = std::make_unique<ReadQueue>(*file_, memory_.data(), threads, lower_.get());
    }

    // A forked child has no readers, and the locks may be in any state: they are left as they are.
    ~Reads() {
        if (!orphaned()) return;
        (void)queue_.release();
        (void)file_.release();
        (void)lower_.release();
    }
    Reads(const Reads&) = delete;
    Reads& operator=(const Reads&) = delete;

    bool orphaned() const { return getpid() != process_; }
    uint64_t preads() const { return file_->preads() + (lower_ ? lower_->preads() : 0); }
    bool direct() const { return file_->is_direct(); }

    void submit(const std::vector<int64_t>& records, const std::vector<int>& slots, bool required, bool lower) {
        if (lower && !lower_) throw std::invalid_argument("there are no records of fewer bits");
        if (records.size() != slots.size()) throw std::invalid_argument("a slot for each record");
        for (const int64_t record : records)
            if (record < 0 || record >= records_) throw std::out_of_range("no such record");
        need_slots(slots);
        queue_->submit(records, slots, required, lower);
    }

    void promote(const std::vector<int>& slots) { queue_->promote(slots); }
    std::vector<int> cancel(const std::vector<int>& slots) { return queue_->cancel(slots); }
    int outstanding() { return queue_->outstanding(); }
    ReadQueue& queue() { return *queue_; }

    std::vector<std::tuple<int, int, double>> landed(bool wait) {
        std::vector<Landed> found;
        {
            const nb::gil_scoped_release release;
            found = queue_->landed(wait ? patience : 0);
        }
        while (wait && found.empty() && queue_->outstanding() != 0) {
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
            const nb::gil_scoped_release release;
            found = queue_->landed(patience);
        }
        std::vector<std::tuple<int, int, double>> answer;
        for (const Landed& l : found) answer.emplace_back(l.slot, l.status, l.seconds);
        return answer;
    }

    void close() {
        if (orphaned()) return;
        const nb::gil_scoped_release release;
        queue_->close();
    }

private:
    static std::unique_ptr<RecordFile> opened(int file, int direct, size_t stride, const std::optional<Sums>& sums,
                                              bool every_time) {
        std::vector<uint64_t> list;
        if (sums) list.assign(sums->data(), sums->data() + sums->shape(0));
        if (sums && stride < shortest_checked) throw std::invalid_argument("records are too short to be checked");
        return std::make_unique<RecordFile>(file, direct, stride, std::move(list), every_time);
    }

    void need_slots(const std::vector<int>& slots) const {
        for (const int slot : slots)
            if (slot < 0 || slot >= slots_) throw std::out_of_range("a slot lies outside the pool");
    }

    Memory memory_;
    const int slots_;
    const pid_t process_;
    int64_t records_ = 0;
    std::unique_ptr<RecordFile> file_, lower_;
    std::unique_ptr<ReadQueue> queue_;
};

}  // namespace

ReadQueue& queue_of(nb::handle reads) { return nb::cast<Reads&>(reads).queue(); }

void bind_reads(nb::module_& m) {
    nb::class_<Reads>(m, "Reads", "See cherenkov.experts.reads.")
        .def(nb::init<int, int, Memory, int, std::optional<Sums>, bool, std::optional<Lower>>(), nb::arg("file"),
             nb::arg("direct"), nb::arg("memory"), nb::arg("threads"), nb::arg("checksums").none(),
             nb::arg("every_time"), nb::arg("lower").none() = nb::none())
        .def_prop_ro("orphaned", &Reads::orphaned)
        .def_prop_ro("preads", &Reads::preads)
        .def_prop_ro("direct", &Reads::direct)
        .def_prop_ro("outstanding", &Reads::outstanding)
        .def("submit", &Reads::submit, nb::arg(), nb::arg(), nb::arg(), nb::arg() = false)
        .def("promote", &Reads::promote)
        .def("cancel", &Reads::cancel)
        .def("landed", &Reads::landed, nb::arg("wait"))
        .def("close", &Reads::close);
    m.def("xxh3_64", [](const Bytes& data, bool portable) {
        if (data.shape(0) < shortest_checked) throw std::invalid_argument("shorter than 241 bytes");
        const nb::gil_scoped_release release;
        return (portable ? xxh3_64_portable : xxh3_64)(data.data(), data.shape(0));
    }, nb::arg(), nb::arg("portable") = false, "The checksum of records, for tests.");
}

}  // namespace cherenkov::io
