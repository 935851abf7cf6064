// The Python module cherenkov._native. It checks what would otherwise be read or written out of bounds, holds on to what
// the kernels point at, and releases the GIL. Callers are cherenkov/backends/native.py and the tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "ops.h"

namespace nb = nanobind;

namespace cherenkov::cpu {
namespace {

using AnyMatrix = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;
template <typename T, int N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <int N>
using Const = Array<const float, N>;
template <int N>
using Out = Array<float, N>;
using Ids = Array<const int32_t, 1>;

// Raises cherenkov.errors.BackendError.
[[noreturn]] void refuse(const char* operation, const std::string& reason) {
    const nb::object error = nb::module_::import_("cherenkov.errors").attr("BackendError")("native", operation, reason);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
    throw nb::python_error();
}

void need(bool holds, const char* operation, const char* reason) {
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
int times(int a, int b) {
    const int64_t product = static_cast<int64_t>(a) * b;
    return product > 0 && product <= std::numeric_limits<int>::max() ? static_cast<int>(product) : -1;
}

// A state as it lies in memory: what was converted on the way in would be written to no avail.
template <typename A>
A state_of(const nb::tuple& span, size_t i, const char* operation) {
    A array;
    need(i < nb::len(span) && nb::try_cast<A>(span[i], array, false), operation,
         "a state is no C-contiguous float32 array of the right rank");
    return array;
}

// --- matrices and weights ---------------------------------------------------------------------------------------------

struct Matrix {
    Weights w;
    AnyMatrix codes;
    std::optional<AnyMatrix> scales, biases;

    Matrix(AnyMatrix c, std::optional<AnyMatrix> s, std::optional<AnyMatrix> b, int rows, int cols, int bits, int group)
        : codes(std::move(c)), scales(std::move(s)), biases(std::move(b)) {
        const bool values = bits == 16 || bits == 32;
        need(values || bits == 2 || bits == 3 || bits == 4 || bits == 8, "matrix", "bits must be 2, 3, 4, 8, 16 or 32");
        need(rows > 0 && cols > 0, "matrix", "a matrix needs rows and columns");
        need(values || ((group == 32 || group == 64) && cols % group == 0), "matrix",
             "groups of codes must be 32 or 64 wide and divide the columns");
        need(values || (scales && biases), "matrix", "codes need scales and biases");
        w.rows = rows, w.cols = cols, w.bits = bits, w.group = values ? 0 : group;
        w.codes = bytes_of(codes, rows, static_cast<size_t>(cols) * static_cast<size_t>(bits) / 8, w.codes_stride);
        if (values) return;
        const auto width = static_cast<size_t>(cols / group) * 2;
        size_t stride = 0;
        w.scales = bytes_of(*scales, rows, width, w.scales_stride);
        w.biases = bytes_of(*biases, rows, width, stride);
        need(stride == w.scales_stride || rows == 1, "matrix", "scales and biases must be laid out alike");
    }

    static const uint8_t* bytes_of(const AnyMatrix& array, int rows, size_t row_bytes, size_t& stride) {
        const size_t item = array.itemsize();
        need(array.shape(0) == static_cast<size_t>(rows) && array.shape(1) * item == row_bytes, "matrix",
             "an array does not have the shape that bits and group imply");
        need(array.stride(1) == 1 || array.shape(1) == 1, "matrix", "rows must be contiguous");
        stride = static_cast<size_t>(array.stride(0)) * item;
        return static_cast<const uint8_t*>(array.data());
    }
};

// Weights of an operation, and the Python objects they point into.
template <typename T>
struct Held {
    T w;
    std::vector<nb::object> keep;
};

template <typename T>
const Weights& use(Held<T>& held, const nb::object& matrix) {
    held.keep.push_back(matrix);
    return nb::cast<const Matrix&>(matrix).w;
}

template <typename T>
const float* use(Held<T>& held, const Const<1>& array, int size, const char* operation) {
    need(side(array, 0) == size, operation, "a vector does not have the size that the matrices imply");
    held.keep.push_back(nb::cast(array));
    return array.data();
}

void need_shape(const Weights& w, int rows, int cols, const char* operation) {
    need(w.rows == rows && w.cols == cols, operation, "a matrix does not have the shape that the others imply");
}

using HeldResidual = Held<GatedResidual>;
HeldResidual make_residual(const Const<1>& norm, const nb::object& down, const nb::object& up, const nb::object& inject,
                           int streams, float eps) {
    HeldResidual held{};
    GatedResidual& w = held.w;
    w.down = use(held, down), w.up = use(held, up);
    need(streams > 0 && w.down.cols % streams == 0, "read_residual", "streams do not divide the residual");
    need_shape(w.up, w.down.cols, w.down.rows, "read_residual");
    w.streams = streams, w.hidden = w.down.cols / streams, w.eps = eps;
    w.norm = use(held, norm, w.down.cols, "read_residual");
    if (!inject.is_none()) {
        w.inject = use(held, inject);
        need_shape(w.inject, streams, w.down.cols, "read_residual");
    }
    return held;
}

using HeldDelta = Held<DeltaNet>;
HeldDelta make_delta(nb::kwargs args) {
    constexpr const char* op = "delta_net";
    HeldDelta held{};
    DeltaNet& w = held.w;
    const auto number = [&](const char* name) { return nb::cast<int>(args[name]); };
    w.key_heads = number("key_heads"), w.value_heads = number("value_heads");
    w.key_dim = number("key_dim"), w.value_dim = number("value_dim");
    w.eps = nb::cast<float>(args["eps"]);
    w.sigmoid_gate = nb::cast<bool>(args["sigmoid_gate"]);
    w.qkv = use(held, args["qkv"]), w.z = use(held, args["z"]), w.a = use(held, args["a"]), w.b = use(held, args["b"]);
    w.out = use(held, args["out"]);
    w.hidden = w.qkv.cols;
    need(w.key_heads > 0 && w.value_heads % w.key_heads == 0, op, "value heads must be a multiple of key heads");
    const int values = times(w.value_heads, w.value_dim), keys = times(2, times(w.key_heads, w.key_dim));
    need(keys > 0 && values > 0 && w.qkv.rows - keys == values, op,
         "a matrix does not have the shape that the others imply");
    need_shape(w.z, values, w.hidden, op);
    need_shape(w.a, w.value_heads, w.hidden, op);
    need_shape(w.b, w.value_heads, w.hidden, op);
    need_shape(w.out, w.out.rows, values, op);
    need(w.out.rows == w.hidden, op, "input and output must have one width");
    const auto conv = nb::cast<Const<2>>(args["conv"]);
    need(side(conv, 0) == w.qkv.rows && side(conv, 1) >= 1 && side(conv, 1) <= max_taps, op, "conv must be [C, 1..16]");
    w.conv = Taps(conv.data(), side(conv, 0), side(conv, 1));
    const auto a_log = nb::cast<Const<1>>(args["a_log"]);
    need(side(a_log, 0) == w.value_heads, op, "a_log must have one number per value head");
    for (int h = 0; h < w.value_heads; h++) w.rate.push_back(std::exp(a_log.data()[h]));
    w.dt_bias = use(held, nb::cast<Const<1>>(args["dt_bias"]), w.value_heads, op);
    w.norm = use(held, nb::cast<Const<1>>(args["norm"]), w.value_dim, op);
    return held;
}

using HeldAttention = Held<SparseAttention>;
HeldAttention make_attention(nb::kwargs args) {
    constexpr const char* op = "sparse_attention";
    HeldAttention held{};
    SparseAttention& w = held.w;
    const auto number = [&](const char* name) { return nb::cast<int>(args[name]); };
    w.heads = number("heads"), w.kv_heads = number("kv_heads"), w.head_dim = number("head_dim");
    w.index_heads = number("index_heads"), w.index_dim = number("index_dim");
    w.block = number("block"), w.budget = number("budget");
    w.eps = nb::cast<float>(args["eps"]);
    w.q = use(held, args["q"]), w.k = use(held, args["k"]), w.v = use(held, args["v"]), w.o = use(held, args["o"]);
    w.index = use(held, args["index"]);
    w.hidden = w.q.cols;
    need(w.kv_heads > 0 && w.heads % w.kv_heads == 0, op, "heads must be a multiple of KV heads");
    need(w.block > 0 && w.budget >= w.block && w.budget % w.block == 0, op, "the budget must be a multiple of the block");
    need(w.budget <= std::numeric_limits<int>::max() / 2, op, "the budget is too large");
    need(w.index_heads > 0 && w.index_heads < std::numeric_limits<int>::max(), op, "there must be index heads");
    need_shape(w.q, times(times(w.heads, w.head_dim), 2), w.hidden, op);
    need_shape(w.k, times(w.kv_heads, w.head_dim), w.hidden, op);
    need_shape(w.v, times(w.kv_heads, w.head_dim), w.hidden, op);
    need_shape(w.o, w.hidden, times(w.heads, w.head_dim), op);
    need_shape(w.index, times(w.index_heads + 1, w.index_dim), w.hidden, op);
    const auto bias = [&](const char* name, int size) {
        return args[name].is_none() ? nullptr : use(held, nb::cast<Const<1>>(args[name]), size, op);
    };
    w.q_bias = bias("q_bias", w.q.rows), w.k_bias = bias("k_bias", w.k.rows);
    w.v_bias = bias("v_bias", w.v.rows), w.o_bias = bias("o_bias", w.o.rows);
    const auto norm = [&](const char* name, int size) { return use(held, nb::cast<Const<1>>(args[name]), size, op); };
    w.q_norm = norm("q_norm", w.head_dim), w.k_norm = norm("k_norm", w.head_dim);
    w.index_q_norm = norm("index_q_norm", w.index_dim), w.index_k_norm = norm("index_k_norm", w.index_dim);
    const auto frequencies = nb::cast<Const<1>>(args["frequencies"]);
    w.frequencies.assign(frequencies.data(), frequencies.data() + frequencies.shape(0));
    need(2 * side(frequencies, 0) <= std::min(w.head_dim, w.index_dim), op, "the rotated part is wider than a head");
    return held;
}

using HeldPle = Held<Ple>;
HeldPle make_ple(nb::kwargs args) {
    constexpr const char* op = "ple";
    HeldPle held{};
    Ple& w = held.w;
    w.streams = nb::cast<int>(args["streams"]), w.dilation = nb::cast<int>(args["dilation"]);
    w.eps = nb::cast<float>(args["eps"]);
    w.key = use(held, args["key"]), w.value = use(held, args["value"]);
    w.hidden = w.value.rows;
    need_shape(w.key, times(w.streams, w.hidden), w.value.cols, op);
    w.norm_key = use(held, nb::cast<Const<1>>(args["norm_key"]), w.key.rows, op);
    w.norm_query = use(held, nb::cast<Const<1>>(args["norm_query"]), w.key.rows, op);
    w.norm_conv = use(held, nb::cast<Const<1>>(args["norm_conv"]), w.key.rows, op);
    const auto conv = nb::cast<Const<2>>(args["conv"]);
    need(side(conv, 0) == w.key.rows && side(conv, 1) >= 1 && side(conv, 1) <= max_taps, op, "conv must be [S*D, 1..16]");
    need(w.dilation > 0, op, "the dilation must be positive");
    w.conv = Taps(conv.data(), side(conv, 0), side(conv, 1));
    return held;
}

using HeldShared = Held<SharedExpert>;
HeldShared make_shared_expert(const nb::object& gate, const nb::object& up, const nb::object& down,
                              const nb::object& switch_) {
    HeldShared held{};
    SharedExpert& w = held.w;
    w.gate = use(held, gate), w.up = use(held, up), w.down = use(held, down), w.switch_ = use(held, switch_);
    need_shape(w.up, w.gate.rows, w.gate.cols, "experts");
    need_shape(w.down, w.gate.cols, w.gate.rows, "experts");
    need_shape(w.switch_, 1, w.gate.cols, "experts");
    return held;
}

using HeldFuse = Held<DraftFuse>;
HeldFuse make_fuse(const Const<1>& norm_embedding, const Const<1>& norm_hidden, const nb::object& fc_embedding,
                   const nb::object& fc_hidden, int streams, float eps) {
    HeldFuse held{};
    DraftFuse& w = held.w;
    w.fc_embedding = use(held, fc_embedding), w.fc_hidden = use(held, fc_hidden);
    w.hidden = w.fc_embedding.rows, w.streams = streams, w.eps = eps;
    need_shape(w.fc_embedding, w.hidden, w.hidden, "fuse");
    need_shape(w.fc_hidden, w.hidden, w.hidden, "fuse");
    w.norm_embedding = use(held, norm_embedding, w.hidden, "fuse");
    need(times(w.hidden, streams) > 0, "fuse", "there must be streams, and not too many");
    w.norm_hidden = use(held, norm_hidden, w.hidden * streams, "fuse");
    return held;
}

using HeldHead = Held<Head>;
HeldHead make_head(const nb::object& mixer, const nb::object& matrix) {
    HeldHead held{};
    held.keep.push_back(mixer);
    held.w.mixer = nb::cast<const HeldResidual&>(mixer).w;
    held.w.matrix = use(held, matrix);
    need(held.w.matrix.cols == held.w.mixer.hidden, "logits", "mixer and LM head must have one width");
    need(held.w.mixer.inject.rows == 0, "logits", "a final mixer injects nothing");
    return held;
}

Record make_record(int inter, int hidden, int bits, int group, size_t stride, const std::vector<size_t>& offsets) {
    constexpr const char* op = "experts";
    const bool values = bits == 16;
    need(offsets.size() == 9, op, "a record has nine offsets");
    need(values || bits == 2 || bits == 3 || bits == 4 || bits == 8, op, "bits must be 2, 3, 4, 8 or 16");
    need(inter > 0 && hidden > 0, op, "a record needs rows and columns");
    need(values || ((group == 32 || group == 64) && inter % group == 0 && hidden % group == 0), op,
         "groups of codes must be 32 or 64 wide and divide the columns");
    const size_t weights = static_cast<size_t>(inter) * static_cast<size_t>(hidden);
    const size_t codes = values ? weights * 2 : weights / 8 * static_cast<size_t>(bits);
    const size_t scales = values ? 0 : weights / static_cast<size_t>(group) * 2;
    for (size_t i = 0; i < 9; i++) {
        const size_t bytes = i < 3 ? codes : scales;
        need(offsets[i] <= stride && bytes <= stride - offsets[i], op, "a part lies outside the record");
    }
    Record record{inter, hidden, bits, group, stride, {}, {}, {}};
    for (size_t i = 0; i < 3; i++) {
        record.codes[i] = offsets[i];
        record.scales[i] = offsets[3 + 2 * i];
        record.biases[i] = offsets[4 + 2 * i];
    }
    return record;
}

// --- engine -----------------------------------------------------------------------------------------------------------

Precision precision_named(const std::string& name) {
    const char* names[] = {"float32", "bf16", "int16", "int8"};
    for (int i = 0; i < 4; i++)
        if (name == names[i]) return static_cast<Precision>(i);
    refuse("start", "precision must be float32, bf16, int16 or int8, not '" + name + "'");
}

const char* name_of(Precision precision) {
    switch (precision) {
        case Precision::bf16: return "bf16";
        case Precision::int16: return "int16";
        case Precision::int8: return "int8";
        default: return "float32";
    }
}

std::vector<std::string> isas() {
    const Kernels* tables[8];
    std::vector<std::string> names;
    for (int i = 0, n = usable_kernels(tables, 8); i < n; i++) names.emplace_back(tables[i]->name);
    return names;
}

template <typename State>
void need_span(const Span<State>& span, int rows, const char* operation) {
    need(span.start >= 0 && span.start <= span.stop && span.stop <= rows && span.position >= 0 &&
             span.position <= std::numeric_limits<int>::max() - (span.stop - span.start),
         operation, "a span lies outside the rows");
}

class Session {
public:
    Session(const std::string& isa, const std::string& precision, int threads) {
        const Kernels* kernels = find_kernels(isa.c_str());
        if (kernels == nullptr) refuse("start", "this machine or build has no '" + isa + "' kernels");
        need(threads > 0 && threads <= 1024, "start", "threads must be 1 to 1024");
        const Precision asked = precision.empty() ? kernels->preferred : precision_named(precision);
        engine_ = std::make_shared<Engine>(*kernels, offered(*kernels, asked), threads);
    }

    std::string isa() { return engine("isa")->k.name; }
    std::string precision() { return name_of(engine("precision")->precision); }
    int threads() { return engine("threads")->pool.threads(); }

    // An operation that another thread is at ends first: it holds the engine too.
    void close() {
        std::shared_ptr<Engine> last = std::move(engine_);
        nb::gil_scoped_release release;
        last.reset();
    }

    void linear(const Matrix& m, const Const<2>& x, const Out<2>& out) {
        need(side(x, 1) == m.w.cols && has_shape(out, {side(x, 0), m.w.rows}), "linear", "shapes do not fit");
        run("linear", [&](Engine& e) {
            Inputs in(e, x.data(), x.shape(1), side(x, 0), m.w.cols);
            const Product product{&m.w, &in, out.data(), out.shape(1)};
            multiply(e, &product, 1);
        });
    }

    void embed(const Matrix& table, int streams, const Ids& tokens, const Out<2>& wide) {
        need_tokens(tokens, table.w.rows, "embed");
        need(has_shape(wide, {side(tokens, 0), times(streams, table.w.cols)}), "embed", "shapes do not fit");
        run("embed", [&](Engine& e) {
            cpu::embed(e, table.w, streams, tokens.data(), side(tokens, 0), wide.data());
        });
    }

    void read_residual(const HeldResidual& held, const Const<2>& wide, const Out<2>& block,
                       const std::optional<Out<2>>& gain) {
        const GatedResidual& w = held.w;
        const int rows = side(wide, 0);
        need(side(wide, 1) == w.hidden * w.streams && has_shape(block, {rows, w.hidden}) &&
                 gain.has_value() == (w.inject.rows != 0) && (!gain || has_shape(*gain, {rows, w.streams})),
             "read_residual", "shapes do not fit");
        run("read_residual", [&](Engine& e) {
            cpu::read_residual(e, w, wide.data(), rows, block.data(), gain ? gain->data() : nullptr);
        });
    }

    void inject(const Out<2>& wide, const Const<2>& block, const Const<2>& gain) {
        const int rows = side(wide, 0), hidden = side(block, 1), streams = side(gain, 1);
        need(has_shape(block, {rows, hidden}) && has_shape(gain, {rows, streams}) && side(wide, 1) == hidden * streams,
             "inject", "shapes do not fit");
        run("inject", [&](Engine& e) {
            cpu::inject(e, wide.data(), block.data(), gain.data(), rows, streams, hidden);
        });
    }

    // spans: (start, stop, position, history, matrix)
    void delta_net(const HeldDelta& held, const Const<2>& x, const nb::list& spans, const Out<2>& out) {
        const DeltaNet& w = held.w;
        const int rows = side(x, 0);
        need(side(x, 1) == w.hidden && has_shape(out, {rows, w.hidden}), "delta_net", "shapes do not fit");
        std::vector<Span<DeltaState>> list;
        for (const nb::handle item : spans) {
            const auto t = nb::cast<nb::tuple>(item);
            const auto history = state_of<Out<2>>(t, 3, "delta_net");
            const auto matrix = state_of<Out<3>>(t, 4, "delta_net");
            need(has_shape(history, {w.conv.taps - 1, w.conv.channels}) &&
                     has_shape(matrix, {w.value_heads, w.key_dim, w.value_dim}),
                 "delta_net", "a state does not have the layer's shape");
            list.push_back({nb::cast<int>(t[0]), nb::cast<int>(t[1]), nb::cast<int>(t[2]),
                            {history.data(), matrix.data()}});
            need_span(list.back(), rows, "delta_net");
        }
        run("delta_net", [&](Engine& e) { cpu::delta_net(e, w, x.data(), rows, list, out.data()); });
    }

    // spans: (start, stop, position, keys, values, index_keys, block_keys)
    void sparse_attention(const HeldAttention& held, const Const<2>& x, const nb::list& spans, const Out<2>& out) {
        constexpr const char* op = "sparse_attention";
        const SparseAttention& w = held.w;
        const int rows = side(x, 0);
        need(side(x, 1) == w.hidden && has_shape(out, {rows, w.hidden}), op, "shapes do not fit");
        std::vector<Span<AttentionState>> list;
        for (const nb::handle item : spans) {
            const auto t = nb::cast<nb::tuple>(item);
            const auto keys = state_of<Out<3>>(t, 3, op), values = state_of<Out<3>>(t, 4, op);
            const auto index_keys = state_of<Out<2>>(t, 5, op), block_keys = state_of<Out<2>>(t, 6, op);
            const int tokens = side(keys, 0);
            need(has_shape(keys, {tokens, w.kv_heads, w.head_dim}) && has_shape(values, {tokens, w.kv_heads, w.head_dim}) &&
                     has_shape(index_keys, {tokens, w.index_dim}) && side(block_keys, 1) == w.index_dim,
                 op, "a cache does not have the layer's shape");
            list.push_back({nb::cast<int>(t[0]), nb::cast<int>(t[1]), nb::cast<int>(t[2]),
                            {keys.data(), values.data(), index_keys.data(), block_keys.data()}});
            const auto& span = list.back();
            need_span(span, rows, op);
            const int stop = span.position + span.stop - span.start;
            need(stop <= tokens && stop / w.block <= side(block_keys, 0), op, "the cache is full");
        }
        need(covered(list) == rows, op, "every row must belong to one span");
        if (rows == 0) return;
        run(op, [&](Engine& e) { cpu::sparse_attention(e, w, x.data(), rows, list, out.data()); });
    }

    // spans: (start, stop, position, history)
    void ple(const HeldPle& held, const Out<2>& wide, const Const<2>& features, const nb::list& spans) {
        const Ple& w = held.w;
        const int rows = side(wide, 0);
        need(side(wide, 1) == w.conv.channels && has_shape(features, {rows, w.key.cols}), "ple", "shapes do not fit");
        std::vector<Span<float*>> list;
        for (const nb::handle item : spans) {
            const auto t = nb::cast<nb::tuple>(item);
            const auto history = state_of<Out<2>>(t, 3, "ple");
            need(has_shape(history, {w.conv.taps == 1 ? 0 : times(w.conv.taps - 1, w.dilation), w.conv.channels}), "ple",
                 "a state does not have the layer's shape");
            list.push_back({nb::cast<int>(t[0]), nb::cast<int>(t[1]), nb::cast<int>(t[2]), history.data()});
            need_span(list.back(), rows, "ple");
        }
        run("ple", [&](Engine& e) { cpu::ple(e, w, wide.data(), features.data(), rows, list); });
    }

    void route(const Matrix& gate, bool normalise, const Const<2>& x, const Array<int32_t, 2>& ids,
               const Out<2>& weights) {
        const int rows = side(x, 0), top_k = side(ids, 1);
        need(side(x, 1) == gate.w.cols && has_shape(ids, {rows, top_k}) && has_shape(weights, {rows, top_k}) &&
                 top_k <= gate.w.rows,
             "route", "shapes do not fit");
        run("route", [&](Engine& e) {
            cpu::route(e, gate.w, top_k, normalise, x.data(), rows, ids.data(), weights.data());
        });
    }

    void expert_wave(const Record& record, const Array<const uint8_t, 2>& pool, const Ids& experts, const Ids& slots,
                     const Const<2>& x, const Array<const int32_t, 2>& ids, const Out<3>& each,
                     const nb::object& shared, const std::optional<Out<2>>& shared_out) {
        constexpr const char* op = "experts";
        const int rows = side(x, 0), top_k = side(ids, 1), count = side(experts, 0);
        const HeldShared* shared_expert = shared.is_none() ? nullptr : &nb::cast<const HeldShared&>(shared);
        need(side(x, 1) == record.hidden && has_shape(ids, {rows, top_k}) && has_shape(each, {rows, top_k, record.hidden}) &&
                 pool.shape(1) == record.stride && side(slots, 0) == count,
             op, "shapes do not fit");
        need((shared_expert != nullptr) == shared_out.has_value() &&
                 (!shared_out || (has_shape(*shared_out, {rows, record.hidden}) &&
                                  shared_expert->w.gate.cols == record.hidden)),
             op, "shapes do not fit");
        const auto negative = [](int32_t i) { return i < 0; };
        need(std::none_of(ids.data(), ids.data() + rows * top_k, negative) &&
                 std::none_of(experts.data(), experts.data() + count, negative),
             op, "an expert's id is negative");
        for (int i = 0; i < count; i++)
            need(slots.data()[i] >= 0 && slots.data()[i] < side(pool, 0), op, "a slot lies outside the pool");
        run(op, [&](Engine& e) {
            cpu::expert_wave(e, record, pool.data(), {experts.data(), slots.data(), count}, x.data(), ids.data(), rows,
                             top_k, each.data(), shared_expert != nullptr ? &shared_expert->w : nullptr,
                             shared_out ? shared_out->data() : nullptr);
        });
    }

    void combine_experts(const Const<3>& each, const Const<2>& weights, const Const<2>& shared_out, const Out<2>& out) {
        const int rows = side(each, 0), top_k = side(each, 1), hidden = side(each, 2);
        need(has_shape(weights, {rows, top_k}) && has_shape(shared_out, {rows, hidden}) && has_shape(out, {rows, hidden}),
             "experts", "shapes do not fit");
        run("experts", [&](Engine& e) {
            cpu::combine_experts(e, each.data(), weights.data(), shared_out.data(), rows, top_k, hidden, out.data());
        });
    }

    void fuse(const HeldFuse& held, const Matrix& table, const Ids& tokens, const Const<2>& wide, const Out<2>& out) {
        const DraftFuse& w = held.w;
        const int rows = side(tokens, 0), width = w.hidden * w.streams;
        need_tokens(tokens, table.w.rows, "fuse");
        need(table.w.cols == w.hidden && has_shape(wide, {rows, width}) && has_shape(out, {rows, width}), "fuse",
             "shapes do not fit");
        run("fuse", [&](Engine& e) { cpu::fuse(e, w, table.w, tokens.data(), wide.data(), rows, out.data()); });
    }

    void logits(const HeldHead& held, const Const<2>& wide, const Ids& rows, const Out<2>& out) {
        need_rows(held, wide, rows, "logits");
        need(has_shape(out, {side(rows, 0), held.w.matrix.rows}), "logits", "shapes do not fit");
        run("logits", [&](Engine& e) { cpu::logits(e, held.w, wide.data(), rows.data(), side(rows, 0), out.data()); });
    }

    void argmax(const HeldHead& held, const Const<2>& wide, const Ids& rows, const Array<int32_t, 1>& out) {
        need_rows(held, wide, rows, "argmax");
        need(has_shape(out, {side(rows, 0)}), "argmax", "shapes do not fit");
        run("argmax", [&](Engine& e) { cpu::argmax(e, held.w, wide.data(), rows.data(), side(rows, 0), out.data()); });
    }

private:
    const std::shared_ptr<Engine>& engine(const char* operation) {
        need(engine_ != nullptr, operation, "the backend is closed");
        return engine_;
    }

    template <typename F>
    void run(const char* operation, const F& f) {
        const std::shared_ptr<Engine> e = engine(operation);
        bool fits = true;
        {
            nb::gil_scoped_release release;
            const std::lock_guard turn(e->turn);
            try {
                e->scratch.reset();
                f(*e);
            } catch (const std::bad_alloc&) {
                fits = false;
            }
        }
        need(fits, operation, "there is not enough memory");
    }

    template <typename State>
    static int covered(const std::vector<Span<State>>& spans) {
        int rows = 0;
        for (const auto& span : spans) {
            if (span.start != rows) return -1;
            rows = span.stop;
        }
        return rows;
    }

    static void need_tokens(const Ids& tokens, int vocab, const char* operation) {
        const int32_t* data = tokens.data();
        need(std::all_of(data, data + tokens.shape(0), [&](int32_t t) { return t >= 0 && t < vocab; }), operation,
             "a token is not in the vocabulary");
    }

    static void need_rows(const HeldHead& held, const Const<2>& wide, const Ids& rows, const char* operation) {
        need(side(wide, 1) == held.w.mixer.hidden * held.w.mixer.streams, operation, "shapes do not fit");
        const int32_t* data = rows.data();
        need(std::all_of(data, data + rows.shape(0), [&](int32_t r) { return r >= 0 && r < side(wide, 0); }), operation,
             "a row is not in the residual");
    }

    std::shared_ptr<Engine> engine_;
};

}  // namespace
}  // namespace cherenkov::cpu

NB_MODULE(_native, m) {
    using namespace cherenkov::cpu;
    using nb::arg;
    m.doc() = "CPU kernels. See kernels/README.md; the Python side is cherenkov.backends.native.";
    m.def("isas", &isas, "Instruction sets that this machine and build can run, fastest first.");
    nb::class_<Matrix>(m, "Matrix")
        .def(nb::init<AnyMatrix, std::optional<AnyMatrix>, std::optional<AnyMatrix>, int, int, int, int>(),
             arg("codes").noconvert(), arg("scales").noconvert().none(), arg("biases").noconvert().none(), arg("rows"),
             arg("cols"), arg("bits"), arg("group"));
    nb::class_<HeldResidual>(m, "GatedResidual");
    m.def("gated_residual", &make_residual, arg("norm"), arg("down"), arg("up"), arg("inject").none(), arg("streams"),
          arg("eps"));
    nb::class_<HeldDelta>(m, "DeltaNet");
    m.def("delta_net", &make_delta);
    nb::class_<HeldAttention>(m, "SparseAttention");
    m.def("sparse_attention", &make_attention);
    nb::class_<HeldPle>(m, "Ple");
    m.def("ple", &make_ple);
    nb::class_<HeldShared>(m, "SharedExpert");
    m.def("shared_expert", &make_shared_expert, arg("gate"), arg("up"), arg("down"), arg("switch"));
    nb::class_<HeldFuse>(m, "DraftFuse");
    m.def("draft_fuse", &make_fuse, arg("norm_embedding"), arg("norm_hidden"), arg("fc_embedding"), arg("fc_hidden"),
          arg("streams"), arg("eps"));
    nb::class_<HeldHead>(m, "Head");
    m.def("head", &make_head, arg("mixer"), arg("matrix"));
    nb::class_<Record>(m, "Record")
        .def("__init__", [](Record* self, int inter, int hidden, int bits, int group, size_t stride,
                            const std::vector<size_t>& offsets) {
            new (self) Record(make_record(inter, hidden, bits, group, stride, offsets));
        }, arg("inter"), arg("hidden"), arg("bits"), arg("group"), arg("stride"), arg("offsets"));
    nb::class_<Session>(m, "Engine")
        .def(nb::init<const std::string&, const std::string&, int>(), arg("isa"), arg("precision"), arg("threads"))
        .def_prop_ro("isa", &Session::isa)
        .def_prop_ro("precision", &Session::precision)
        .def_prop_ro("threads", &Session::threads)
        .def("close", &Session::close)
        .def("linear", &Session::linear, arg(), arg().noconvert(), arg().noconvert())
        .def("embed", &Session::embed, arg(), arg(), arg().noconvert(), arg().noconvert())
        .def("read_residual", &Session::read_residual, arg(), arg().noconvert(), arg().noconvert(),
             arg().noconvert().none())
        .def("inject", &Session::inject, arg().noconvert(), arg().noconvert(), arg().noconvert())
        .def("delta_net", &Session::delta_net, arg(), arg().noconvert(), arg(), arg().noconvert())
        .def("sparse_attention", &Session::sparse_attention, arg(), arg().noconvert(), arg(), arg().noconvert())
        .def("ple", &Session::ple, arg(), arg().noconvert(), arg().noconvert(), arg())
        .def("route", &Session::route, arg(), arg(), arg().noconvert(), arg().noconvert(), arg().noconvert())
        .def("expert_wave", &Session::expert_wave, arg(), arg().noconvert(), arg().noconvert(), arg().noconvert(),
             arg().noconvert(), arg().noconvert(), arg().noconvert(), arg().none(), arg().noconvert().none())
        .def("combine_experts", &Session::combine_experts, arg().noconvert(), arg().noconvert(), arg().noconvert(),
             arg().noconvert())
        .def("fuse", &Session::fuse, arg(), arg(), arg().noconvert(), arg().noconvert(), arg().noconvert())
        .def("logits", &Session::logits, arg(), arg().noconvert(), arg().noconvert(), arg().noconvert())
        .def("argmax", &Session::argmax, arg(), arg().noconvert(), arg().noconvert(), arg().noconvert());
}
