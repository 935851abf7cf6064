// Whole layers as Python describes them, and the memory of a sequence: checked once, then at hand.
#include "bindings_stretch.h"

#include <algorithm>

namespace cherenkov::cpu {

nb::tuple span_tuple(nb::handle span, const char* operation) {
    const auto t = nb::cast<nb::tuple>(span);
    need(nb::len(t) == 4, operation, "a span has a start, a stop, a position and a state");
    return t;
}

DeltaState delta_state(const DeltaNet& w, nb::handle state) {
    constexpr const char* op = "delta_net";
    const auto history = state_of<Out<2>>(state, "history", op);
    const auto matrix = state_of<Out<3>>(state, "matrix", op);
    const auto pending = state_of<Out<1>>(state, "pending", op);
    need(has_shape(history, {Ring::rows(w.conv.taps - 1), w.conv.channels}) &&
             has_shape(matrix, {w.value_heads, w.key_dim, w.value_dim}) &&
             has_shape(pending, {static_cast<int>(pending_size(w))}),
         op, "a state does not have the layer's shape");
    return {history.data(), matrix.data(), pending.data()};
}

float* ple_state(const Ple& w, nb::handle state) {
    const auto history = state_of<Out<2>>(state, "history", "ple");
    need(has_shape(history, {w.conv.taps == 1 ? 0 : times(w.conv.taps - 1, w.dilation) + most_back, w.conv.channels}), "ple",
         "a state does not have the layer's shape");
    return history.data();
}

Cache attention_state(const SparseAttention& w, nb::handle state) {
    constexpr const char* op = "sparse_attention";
    const auto keys = state_of<Out<3>>(state, "keys", op), values = state_of<Out<3>>(state, "values", op);
    const auto index_keys = state_of<Out<2>>(state, "index_keys", op);
    const auto block_keys = state_of<Out<2>>(state, "block_keys", op);
    const int tokens = side(keys, 0);
    need(has_shape(keys, {tokens, w.kv_heads, w.head_dim}) && has_shape(values, {tokens, w.kv_heads, w.head_dim}) &&
             has_shape(index_keys, {tokens, w.index_dim}) && side(block_keys, 1) == w.index_dim,
         op, "a cache does not have the layer's shape");
    const int64_t blocks = (static_cast<int64_t>(side(block_keys, 0)) + 1) * w.block - 1;  // tokens before one more ends
    return {{keys.data(), values.data(), index_keys.data(), block_keys.data()},
            static_cast<int>(std::min<int64_t>(tokens, blocks))};
}

namespace {

constexpr const char* op = "stretch";

// What of a layer's weights must agree with the rest of it and with the layers before.
void add_layer(HeldTrunk& trunk, const Layer& layer) {
    const GatedResidual& read = *layer.mixer_read;
    const int width = read.hidden * read.streams;
    if (trunk.layers.empty())
        trunk.width = width, trunk.hidden = read.hidden, trunk.top_k = layer.top_k, trunk.experts = layer.gate->rows;
    const int mixer = layer.delta != nullptr ? layer.delta->hidden : layer.attention->hidden;
    need(read.inject.rows != 0 && layer.moe_read->inject.rows != 0, op, "a final mixer injects nothing");
    need(width == trunk.width && read.hidden == trunk.hidden && layer.moe_read->hidden == trunk.hidden &&
             layer.moe_read->streams == read.streams && mixer == trunk.hidden && layer.gate->cols == trunk.hidden &&
             layer.gate->rows == trunk.experts && layer.shared->gate.cols == trunk.hidden &&
             (layer.ple == nullptr || layer.ple->conv.channels == width),
         op, "shapes do not fit");
    need(layer.top_k == trunk.top_k && layer.top_k > 0 && layer.top_k <= trunk.experts, op,
         "every layer must choose as many experts, and no more than there are");
    trunk.layers.push_back(layer);
}

// Layers are tuples (mixer_read, mixer, moe_read, gate, normalise, top_k, shared, ple or None).
HeldTrunk make_trunk(const nb::sequence& layers) {
    HeldTrunk trunk;
    for (const nb::handle item : layers) {
        const auto t = nb::cast<nb::tuple>(item);
        need(nb::len(t) == 8, op, "a layer has eight parts");
        Layer layer{};
        layer.mixer_read = &nb::cast<const HeldResidual&>(t[0]).w;
        if (nb::isinstance<HeldDelta>(t[1])) layer.delta = &nb::cast<const HeldDelta&>(t[1]).w;
        else layer.attention = &nb::cast<const HeldAttention&>(t[1]).w;
        layer.moe_read = &nb::cast<const HeldResidual&>(t[2]).w;
        layer.gate = &nb::cast<const Matrix&>(t[3]).w;
        layer.normalise = nb::cast<bool>(t[4]), layer.top_k = nb::cast<int>(t[5]);
        layer.shared = &nb::cast<const HeldShared&>(t[6]).w;
        if (!t[7].is_none()) layer.ple = &nb::cast<const HeldPle&>(t[7]).w;
        add_layer(trunk, layer);
        trunk.keep.push_back(nb::borrow(item));
    }
    need(!trunk.layers.empty(), op, "there must be layers");
    return trunk;
}

// States are those of cherenkov.backends.operands, one a layer; `ple` has one a layer too, or None.
HeldMemory make_memory(const nb::object& trunk, const nb::sequence& states, const nb::sequence& ple) {
    const auto& held = nb::cast<const HeldTrunk&>(trunk);
    HeldMemory memory{{}, {trunk}, &held, std::numeric_limits<int>::max()};
    need(nb::len(states) == held.layers.size() && nb::len(ple) == held.layers.size(), op, "every layer has a state");
    const auto keep = [&](nb::handle state, std::initializer_list<const char*> parts) {
        for (const char* part : parts) memory.keep.push_back(nb::getattr(state, part));
    };
    for (size_t i = 0; i < held.layers.size(); i++) {
        const Layer& layer = held.layers[i];
        Memory::Of of{};
        const nb::object state = states[i], history = ple[i];
        if (layer.delta != nullptr) {
            of.delta = delta_state(*layer.delta, state);
            keep(state, {"history", "matrix", "pending"});
        } else {
            const Cache cache = attention_state(*layer.attention, state);
            of.attention = cache.state, memory.tokens = std::min(memory.tokens, cache.tokens);
            keep(state, {"keys", "values", "index_keys", "block_keys"});
        }
        if (layer.ple != nullptr) {
            of.ple = ple_state(*layer.ple, history);
            keep(history, {"history"});
        }
        memory.memory.layers.push_back(of);
    }
    return memory;
}

// Distinct ids in each layer of [n, R, K], all layers together.
int64_t distinct_in_each(const Array<const int32_t, 3>& ids) {
    const size_t each = ids.shape(1) * ids.shape(2);
    std::vector<int32_t> sorted(each);
    int64_t count = 0;
    for (size_t i = 0; i < ids.shape(0); i++) {
        std::copy_n(ids.data() + i * each, each, sorted.begin());
        std::sort(sorted.begin(), sorted.end());
        count += std::unique(sorted.begin(), sorted.end()) - sorted.begin();
    }
    return count;
}

}  // namespace

std::vector<Span<const Memory*>> checked_spans(const HeldTrunk& trunk, const nb::sequence& spans, int rows,
                                               const char* operation, int more) {
    std::vector<Span<const Memory*>> found;
    for (const nb::handle item : spans) {
        const auto t = span_tuple(item, operation);
        const auto& held = nb::cast<const HeldMemory&>(t[3]);
        need(held.trunk == &trunk, operation, "a sequence belongs to another trunk");
        found.push_back({nb::cast<int>(t[0]), nb::cast<int>(t[1]), nb::cast<int>(t[2]), &held.memory});
        const auto& span = found.back();
        need_span(span, rows, operation);
        need(span.stop - span.start <= held.tokens - span.position - more, operation, "the cache is full");
    }
    need_cover(found, rows, operation);
    return found;
}

void check_reach(Reach& reach, const HeldTrunk& trunk, int first, int last, const nb::sequence& spans, const Out<2>& wide,
                 const nb::sequence& features) {
    const int rows = side(wide, 0), count = static_cast<int>(trunk.layers.size());
    need(first >= 0 && first < last && last <= count, op, "there are no such layers");
    need(rows > 0 && side(wide, 1) == trunk.width, op, "shapes do not fit");
    reach.spans = checked_spans(trunk, spans, rows, op);
    need(nb::len(features) == trunk.layers.size(), op, "every layer has features, or None");
    const auto checked = [&trunk, rows](nb::handle given, int layer) {
        Const<2> array;
        need(nb::try_cast<Const<2>>(given, array, false) &&
                 has_shape(array, {rows, trunk.layers[static_cast<size_t>(layer)].ple->key.cols}),
             op, "features do not have the layer's shape");
        return array.data();
    };
    for (int i = 0; i < count; i++) {
        const bool has = trunk.layers[static_cast<size_t>(i)].ple != nullptr && i >= first && i < last;
        const nb::object given = features[i];
        reach.features.here.push_back(has && PyCallable_Check(given.ptr()) == 0 ? checked(given, i) : nullptr);
    }
    reach.features.late = [&reach, &features, checked](int layer) {
        const nb::gil_scoped_acquire holding;
        reach.late.push_back(features[layer]());
        return checked(reach.late.back(), layer);
    };
}

Slots checked_slots(const Record& record, const Array<const uint8_t, 2>& pool, const Record* lower,
                    const std::optional<Tags>& tags, const char* operation) {
    need(pool.shape(1) == record.stride, operation, "slots are of another size than records");
    const Slots slots{pool.data(), side(pool, 0), &record, lower, tags ? tags->data() : nullptr};
    if (lower == nullptr) return slots;
    need(lower->inter == record.inter && lower->hidden == record.hidden && lower->stride <= record.stride, operation,
         "records of fewer bits are of another shape");
    need(tags && side(*tags, 0) == slots.count, operation, "a tag for each slot");
    return slots;
}

Residency checked_residency(const HeldTrunk& trunk, const Slots& slots, const Array<const int32_t, 2>& table) {
    need(slots.record->hidden == trunk.hidden, op, "records are of another shape");
    need(table.shape(0) >= trunk.layers.size() && side(table, 1) == trunk.experts, op,
         "the slot table is of another shape");
    return {slots, table.data(), trunk.experts};
}

void bind_stretch(nb::module_& m) {
    nb::class_<HeldTrunk>(m, "Trunk");
    nb::class_<HeldMemory>(m, "Memory");
    m.def("distinct_in_each", &distinct_in_each, nb::arg("ids"));
    m.def("trunk", &make_trunk, nb::arg("layers"));
    m.def("memory", &make_memory, nb::arg("trunk"), nb::arg("states"), nb::arg("ple"));
}

}  // namespace cherenkov::cpu
