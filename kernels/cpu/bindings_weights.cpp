// Weights as Python describes them: checked, and held on to.
#include <algorithm>
#include <cmath>

#include "bindings.h"

namespace cherenkov::cpu {
namespace {

const uint8_t* bytes_of(const AnyMatrix& array, int rows, size_t row_bytes, size_t& stride) {
    const size_t item = array.itemsize();
    need(array.shape(0) == static_cast<size_t>(rows) && array.shape(1) * item == row_bytes, "matrix",
         "an array does not have the shape that bits and group imply");
    need(array.stride(1) == 1 || array.shape(1) == 1, "matrix", "rows must be contiguous");
    stride = static_cast<size_t>(array.stride(0)) * item;
    return static_cast<const uint8_t*>(array.data());
}

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
    need(pending_size(w) > 0, op, "the heads are too large");
    return held;
}

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

}  // namespace

Matrix::Matrix(AnyMatrix c, std::optional<AnyMatrix> s, std::optional<AnyMatrix> b, int rows, int cols, int bits, int group)
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

void bind_weights(nb::module_& m) {
    using nb::arg;
    nb::class_<Matrix>(m, "Matrix")
        .def(nb::init<AnyMatrix, std::optional<AnyMatrix>, std::optional<AnyMatrix>, int, int, int, int>(),
             arg("codes").noconvert(), arg("scales").noconvert().none(), arg("biases").noconvert().none(), arg("rows"),
             arg("cols"), arg("bits"), arg("group"));
    nb::class_<HeldResidual>(m, "GatedResidual");
    m.def("gated_residual", &make_residual, arg("norm"), arg("down"), arg("up"), arg("inject").none(), arg("streams"),
          arg("eps"));
    nb::class_<HeldDelta>(m, "DeltaNet");
    m.attr("delta_chunk") = delta_chunk;
    m.attr("most_back") = most_back;
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
}

}  // namespace cherenkov::cpu
