// The n-gram table: checks.
#include <algorithm>

#include "bindings.h"
#include "ngrams.h"

namespace cherenkov::cpu {

namespace {

using Longs = Array<const int64_t, 1>;

std::vector<int64_t> listed(const Longs& array) { return {array.data(), array.data() + array.shape(0)}; }

NgramHash make_hash(const Longs& multipliers, const Longs& sizes, const Longs& offsets, int64_t eos) {
    constexpr const char* what = "ngram hash";
    NgramHash hash{listed(multipliers), listed(sizes), listed(offsets), eos};
    need(!hash.multipliers.empty(), what, "there are no multipliers");
    need(hash.sizes.size() == hash.offsets.size(), what, "every head must have a size and an offset");
    const size_t orders = hash.multipliers.size() - 1;
    need(orders == 0 ? hash.sizes.empty() : hash.sizes.size() % orders == 0, what, "the heads do not go by orders");
    need(std::all_of(hash.sizes.begin(), hash.sizes.end(), [](int64_t size) { return size > 0; }), what,
         "a head has no rows");
    return hash;
}

void hash_rows(const NgramHash& hash, const std::vector<int64_t>& before, const Ids& tokens, const Array<int64_t, 2>& out) {
    const int count = side(tokens, 0);
    need(has_shape(out, {count, static_cast<int>(hash.sizes.size())}), "ngram rows", "the result must be [R, heads]");
    std::vector<int64_t> all = before;
    all.insert(all.end(), tokens.data(), tokens.data() + count);
    hash.rows(all.data(), static_cast<int>(all.size()), count, out.data());
}

void nibble_rows(const Array<const uint8_t, 2>& table, int group, const Longs& chosen, const Out<2>& out) {
    constexpr const char* what = "ngram values";
    const int dim = side(out, 1), groups = group > 0 ? dim / group : 0;
    need(group > 0 && group % 2 == 0 && dim % group == 0, what, "the values do not go by groups");
    need(table.shape(1) == static_cast<size_t>(dim / 2 + 4 * groups), what, "a row has another size");
    need(out.shape(0) == chosen.shape(0), what, "the result must have a row for each that is chosen");
    const auto rows = static_cast<int64_t>(table.shape(0));
    const NibbleRows nibbles{table.data(), static_cast<int64_t>(table.shape(1)), dim, group};
    for (size_t i = 0; i < chosen.shape(0); i++) {
        const int64_t row = chosen.data()[i];
        need(row >= 0 && row < rows, what, "there is no such row");
        nibbles.values(row, out.data() + i * static_cast<size_t>(dim));
    }
}

}  // namespace

void bind_ngrams(nb::module_& m) {
    nb::class_<NgramHash>(m, "NgramHash", "Which rows of the n-gram table tokens look up.")
        .def("__init__", [](NgramHash* self, const Longs& multipliers, const Longs& sizes, const Longs& offsets,
                            int64_t eos) { new (self) NgramHash(make_hash(multipliers, sizes, offsets, eos)); })
        .def("rows", &hash_rows, nb::arg(), nb::arg().noconvert(), nb::arg().noconvert());
    m.def("nibble_rows", &nibble_rows, nb::arg().noconvert(), nb::arg(), nb::arg().noconvert(), nb::arg().noconvert());
}

}  // namespace cherenkov::cpu
