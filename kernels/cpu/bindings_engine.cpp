// The operations as Python calls them: checked, one at a time, without the GIL.
#include <algorithm>
#include <memory>
#include <mutex>
#include <new>

#include "bindings_flow.h"
#include "bindings_stretch.h"

namespace cherenkov::cpu {
namespace {


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

// Spans are the tuples of cherenkov.backends.base: (start, stop, position, state).
std::vector<Span<DeltaState>> spans_of(const DeltaNet& w, const nb::sequence& spans, int rows) {
    constexpr const char* op = "delta_net";
    std::vector<Span<DeltaState>> list;
    for (const nb::handle item : spans) {
        const auto t = span_tuple(item, op);
        list.push_back({nb::cast<int>(t[0]), nb::cast<int>(t[1]), nb::cast<int>(t[2]), delta_state(w, t[3])});
        need_span(list.back(), rows, op);
    }
    need_cover(list, rows, op);
    return list;
}

std::vector<Span<AttentionState>> spans_of(const SparseAttention& w, const nb::sequence& spans, int rows) {
    constexpr const char* op = "sparse_attention";
    std::vector<Span<AttentionState>> list;
    for (const nb::handle item : spans) {
        const auto t = span_tuple(item, op);
        const Cache cache = attention_state(w, t[3]);
        list.push_back({nb::cast<int>(t[0]), nb::cast<int>(t[1]), nb::cast<int>(t[2]), cache.state});
        const auto& span = list.back();
        need_span(span, rows, op);
        need(span.position + span.stop - span.start <= cache.tokens, op, "the cache is full");
    }
    need_cover(list, rows, op);
    return list;
}

// The draft head and the pool that its experts are in, described and checked once. It points into itself.
class HeldDrafts {
public:
    // `experts` is (record, pool, slot table, the other record or None, tags or None).
    HeldDrafts(const HeldFuse& fuse, const Matrix& table, const HeldTrunk& trunk, const HeldHead& head, const nb::tuple& experts)
        : trunk(trunk), last(head.w), first{&fuse.w, &table.w, trunk.layers.data(), true}, keep_(experts) {
        need(trunk.layers.size() == 1 && trunk.layers[0].attention != nullptr, op,
             "a draft head is one layer with attention");
        need(table.w.cols == fuse.w.hidden && trunk.width == fuse.w.hidden * fuse.w.streams &&
                 last.mixer.hidden * last.mixer.streams == trunk.width && nb::len(experts) == 5,
             op, "shapes do not fit");
        need(last.matrix.rows <= table.w.rows, op, "what is guessed has no row in the embedding");
        record_ = nb::cast<const Record&>(experts[0]);
        const auto pool = nb::cast<Array<const uint8_t, 2>>(experts[1], false);
        const auto slots = nb::cast<Array<const int32_t, 2>>(experts[2], false);
        const bool mixed = !experts[3].is_none();
        std::optional<Tags> tags;
        if (mixed) lower_ = nb::cast<const Record&>(experts[3]), tags = nb::cast<Tags>(experts[4], false);
        here = checked_residency(trunk, checked_slots(record_, pool, mixed ? &lower_ : nullptr, tags, op), slots);
    }
    HeldDrafts(const HeldDrafts&) = delete;
    HeldDrafts& operator=(const HeldDrafts&) = delete;

    const HeldTrunk& trunk;
    const Head& last;
    const DraftHead first;
    Residency here{};

private:
    static constexpr const char* op = "draft";
    const nb::object keep_;
    Record record_, lower_;
};

class HeldEngine : public Turns {
public:
    HeldEngine(const std::string& isa, const std::string& precision, int threads) {
        const Kernels* kernels = find_kernels(isa.c_str());
        if (kernels == nullptr) refuse("start", "this machine or build has no '" + isa + "' kernels");
        need(threads > 0 && threads <= 1024, "start", "threads must be 1 to 1024");
        const Precision asked = precision.empty() ? kernels->preferred : precision_named(precision);
        engine_ = std::make_shared<Engine>(*kernels, offered(*kernels, asked), threads);
    }

    std::string isa() { return engine("isa")->k.name; }
    std::string precision() { return name_of(engine("precision")->usual); }
    int threads() { return engine("threads")->pool.threads(); }
    // Both while no operation runs.
    uint32_t regions() { return engine("regions")->pool.regions(); }
    size_t scratch_bytes() { return engine("scratch_bytes")->scratch.bytes(); }

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

    void delta_net(const HeldDelta& held, const Const<2>& x, const nb::sequence& spans, const Out<2>& out) {
        const DeltaNet& w = held.w;
        const int rows = side(x, 0);
        need(side(x, 1) == w.hidden && has_shape(out, {rows, w.hidden}), "delta_net", "shapes do not fit");
        const auto list = spans_of(w, spans, rows);
        run("delta_net", [&](Engine& e) { cpu::delta_net(e, w, x.data(), rows, list, out.data()); });
    }

    void settle(const HeldDelta& held, int position, const Out<1>& pending, const Out<3>& matrix) {
        const DeltaNet& w = held.w;
        need(position >= 0 && has_shape(pending, {static_cast<int>(pending_size(w))}) &&
                 has_shape(matrix, {w.value_heads, w.key_dim, w.value_dim}),
             "settle", "a state does not have the layer's shape");
        run("settle", [&](Engine& e) { cpu::settle(e, w, position, pending.data(), matrix.data()); });
    }

    void sparse_attention(const HeldAttention& held, const Const<2>& x, const nb::sequence& spans, const Out<2>& out) {
        const SparseAttention& w = held.w;
        const int rows = side(x, 0);
        need(side(x, 1) == w.hidden && has_shape(out, {rows, w.hidden}), "sparse_attention", "shapes do not fit");
        const auto list = spans_of(w, spans, rows);
        if (rows == 0) return;
        run("sparse_attention", [&](Engine& e) { cpu::sparse_attention(e, w, x.data(), rows, list, out.data()); });
    }

    // Mixer is DeltaNet or SparseAttention.
    template <typename Mixer>
    void mix(const HeldResidual& read, const Held<Mixer>& mixer, const Out<2>& wide, const nb::sequence& spans) {
        const int rows = side(wide, 0);
        need_injecting(read, wide, "mix");
        need(mixer.w.hidden == read.w.hidden, "mix", "shapes do not fit");
        const auto list = spans_of(mixer.w, spans, rows);
        if (rows == 0) return;
        run("mix", [&](Engine& e) { cpu::mix(e, read.w, mixer.w, wide.data(), rows, list); });
    }

    void ple(const HeldPle& held, const Out<2>& wide, const Const<2>& features, const nb::sequence& spans) {
        const Ple& w = held.w;
        const int rows = side(wide, 0);
        need(side(wide, 1) == w.conv.channels && has_shape(features, {rows, w.key.cols}), "ple", "shapes do not fit");
        std::vector<Span<float*>> list;
        for (const nb::handle item : spans) {
            const auto t = span_tuple(item, "ple");
            list.push_back({nb::cast<int>(t[0]), nb::cast<int>(t[1]), nb::cast<int>(t[2]), ple_state(w, t[3])});
            need_span(list.back(), rows, "ple");
        }
        need_cover(list, rows, "ple");
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

    // The ids that choose() would give; nothing else is kept.
    void likely(const HeldResidual& read, const Matrix& gate, bool normalise, const Const<2>& wide,
                const Array<int32_t, 2>& ids) {
        const int rows = side(wide, 0), top_k = side(ids, 1);
        need_injecting(read, wide, "likely");
        need(gate.w.cols == read.w.hidden && side(ids, 0) == rows && top_k > 0 && top_k <= gate.w.rows, "likely",
             "shapes do not fit");
        run("likely", [&](Engine& e) { cpu::likely(e, read.w, gate.w, top_k, normalise, wide.data(), rows, ids.data()); });
    }

    // Leaves the rest to expert_wave; the ids also go to `ids`.
    void choose(const HeldResidual& read, const Matrix& gate, bool normalise, const Const<2>& wide, HeldMixture& held,
                const Array<int32_t, 2>& ids) {
        const int rows = side(wide, 0), top_k = side(ids, 1);
        need_injecting(read, wide, "choose");
        need(gate.w.cols == read.w.hidden && side(ids, 0) == rows && top_k > 0 && top_k <= gate.w.rows, "choose",
             "shapes do not fit");
        const Busy busy(held);
        run("choose", [&](Engine& e) {
            Mixture& m = held.mixture;
            m.lay_out(rows, top_k, read.w.hidden, read.w.streams);
            cpu::choose(e, read.w, gate.w, normalise, wide.data(), m);
            m.finished = false;
            std::copy(m.ids, m.ids + static_cast<size_t>(rows) * static_cast<size_t>(top_k), ids.data());
        });
    }

    // The choice is the caller's: x [R, D], ids and weights [R, K].
    void enter(const Const<2>& x, const Array<const int32_t, 2>& ids, const Const<2>& weights, HeldMixture& held) {
        constexpr const char* op = "experts";
        const int rows = side(x, 0), top_k = side(ids, 1);
        const size_t pairs = static_cast<size_t>(rows) * static_cast<size_t>(top_k);
        need(has_shape(ids, {rows, top_k}) && has_shape(weights, {rows, top_k}), op, "shapes do not fit");
        need(std::none_of(ids.data(), ids.data() + pairs, [](int32_t i) { return i < 0; }), op,
             "an expert's id is negative");
        const Busy busy(held);
        run(op, [&](Engine&) {
            Mixture& m = held.mixture;
            m.lay_out(rows, top_k, side(x, 1), 0);
            std::copy(x.data(), x.data() + x.size(), m.x);
            std::copy(ids.data(), ids.data() + pairs, m.ids);
            std::copy(weights.data(), weights.data() + pairs, m.weights);
            m.finished = false;
        });
    }

    // Computes a wave of experts. When it was the last that was missing, adds the sum to the residual `target` [R, S*D], or
    // after enter() leaves it in `target` [R, D]; then the answer is true.
    bool expert_wave(HeldMixture& held, const HeldShared& shared, const Record& record,
                     const Array<const uint8_t, 2>& pool, const Ids& experts, const Ids& slots, const Out<2>& target,
                     const Record* lower, const std::optional<Tags>& tags) {
        constexpr const char* op = "experts";
        const Busy busy(held);
        Mixture& m = held.mixture;
        const int count = side(experts, 0);
        need(!m.finished, op, "this choice has had its experts already");
        const Slots here = checked_slots(record, pool, lower, tags, op);
        need(m.hidden == record.hidden && m.hidden == shared.w.gate.cols && side(slots, 0) == count && has_shape(target, {m.rows, m.hidden * std::max(m.streams, 1)}),
             op, "shapes do not fit");
        need(std::none_of(experts.data(), experts.data() + count, [](int32_t i) { return i < 0; }), op,
             "an expert's id is negative");
        for (int i = 0; i < count; i++)
            need((slots.data()[i] >= 0 && slots.data()[i] < here.count) || slots.data()[i] == left_out, op,
                 "a slot lies outside the pool");
        run(op, [&](Engine& e) {
            cpu::expert_wave(e, here, {experts.data(), slots.data(), count}, shared.w, m);
            if (m.missing == 0) cpu::finish_mixture(e, m, target.data());
        });
        return m.finished;
    }

    // Runs layers [first, last) until one lacks an expert; returns how many ran whole. See ops.h.
    int stretch(HeldTrunk& trunk, int first, int last, const nb::sequence& spans, const Out<2>& wide,
                const nb::sequence& features, const Record& record, const Array<const uint8_t, 2>& pool,
                const Array<const int32_t, 2>& table, HeldMixture& held, const Array<int32_t, 3>& ids,
                const Record* lower, const std::optional<Tags>& tags, HeldFlow* flow) {
        engine("stretch");
        const Busy busy(held);
        Reach reach;
        check_reach(reach, trunk, first, last, spans, wide, features);
        need(has_shape(ids, {last - first, side(wide, 0), trunk.top_k}), "stretch", "shapes do not fit");
        const Residency here = checked_residency(trunk, checked_slots(record, pool, lower, tags, "stretch"), table);
        if (flow != nullptr) need_flow(*flow, here, "stretch");
        int done = 0;
        run("stretch", [&](Engine& e) {
            const Course course{trunk.layers, first, last, reach.spans, wide.data(), side(wide, 0), reach.features, here};
            done = trunk.stretch.run(e, course, flow == nullptr ? nullptr : &flow->flow, held.mixture, ids.data());
        });
        return done;
    }

    // What a layer would choose if its input were `wide`, which is written to; its memory stays as it is. See ops.h.
    // Whether it was done; given up once it has begun `most` chunks, if that is not negative.
    bool rehearse(HeldTrunk& trunk, int layer, const nb::sequence& spans, const Out<2>& wide, const nb::sequence& features,
                  const Array<int32_t, 2>& ids, int most) {
        engine("rehearse");
        Reach reach;
        check_reach(reach, trunk, layer, layer + 1, spans, wide, features);
        need(has_shape(ids, {side(wide, 0), trunk.top_k}), "rehearse", "shapes do not fit");
        const Residency nothing{};
        bool done = true;
        run("rehearse", [&](Engine& e) {
            const Course course{trunk.layers, layer, layer + 1, reach.spans, wide.data(), side(wide, 0), reach.features, nothing};
            done = with_halt(e, [&, n = 0]() mutable { return most >= 0 && n++ >= most; },
                             [&] { trunk.stretch.rehearse(e, course, layer, wide.data(), ids.data()); });
        });
        return done;
    }

    void fuse(const HeldFuse& held, const Matrix& table, const Ids& tokens, const Const<2>& wide, const Out<2>& out) {
        const DraftFuse& w = held.w;
        const int rows = side(tokens, 0), width = w.hidden * w.streams;
        need_tokens(tokens, table.w.rows, "fuse");
        need(table.w.cols == w.hidden && has_shape(wide, {rows, width}) && has_shape(out, {rows, width}), "fuse",
             "shapes do not fit");
        run("fuse", [&](Engine& e) { cpu::fuse(e, w, table.w, tokens.data(), wide.data(), rows, out.data()); });
    }

    // A step of the draft head; false if an expert is missing. See ops.h.
    bool draft(const HeldDrafts& drafts, const Ids& tokens, const Const<2>& wide, const nb::sequence& spans, const Ids& ends,
               HeldMixture& held, const Array<int32_t, 2>& ids, const Out<2>& out) {
        constexpr const char* op = "draft";
        const int rows = side(tokens, 0), count = side(ends, 0);
        engine(op);
        const Busy busy(held);
        need_drafting(drafts, tokens, wide);
        need(has_shape(out, {count, drafts.trunk.width}) && has_shape(ids, {count, drafts.trunk.top_k}), op,
             "shapes do not fit");
        for (int i = 0; i < count; i++)
            need(ends.data()[i] >= (i == 0 ? 0 : ends.data()[i - 1] + 1) && ends.data()[i] < rows, op, "rows must ascend");
        const auto list = head_spans(drafts.trunk, spans, rows, 1);
        bool whole = false;
        run(op, [&](Engine& e) {
            whole = cpu::draft(e, drafts.first, tokens.data(), wide.data(), rows, list, ends.data(), count, drafts.here,
                               held.mixture, ids.data(), out.data());
        });
        return whole;
    }

    // The tokens that the draft head guesses for each span, one after the other; none if an expert is missing, and `all` are
    // needed. `ids` [depth, spans, K]. See ops.h.
    std::optional<std::vector<std::vector<int32_t>>> guess(const HeldDrafts& drafts, const Ids& tokens, const Const<2>& wide,
                                                           const nb::sequence& spans, HeldMixture& held,
                                                           const Array<int32_t, 3>& ids, bool all) {
        constexpr const char* op = "guess";
        const int rows = side(tokens, 0), depth = side(ids, 0), count = side(ids, 1);
        engine(op);
        const Busy busy(held);
        need_drafting(drafts, tokens, wide);
        need(side(ids, 2) == drafts.trunk.top_k, op, "shapes do not fit");
        const auto list = head_spans(drafts.trunk, spans, rows, depth);
        need(list.size() == static_cast<size_t>(count), op, "every sequence has its guesses");
        for (const auto& s : list) need(s.start < s.stop, op, "every sequence has a row");
        DraftHead head = drafts.first;
        head.all = all;
        bool whole = false;
        const auto each = static_cast<size_t>(count);
        std::vector<int32_t> found;
        run(op, [&](Engine& e) {
            residual_.resize(each * static_cast<size_t>(drafts.trunk.width));
            found.resize(each * static_cast<size_t>(depth));
            whole = cpu::guess(e, head, drafts.last, tokens.data(), wide.data(), rows, list, depth, drafts.here, held.mixture,
                               {found.data(), ids.data(), residual_.data()});
        });
        if (!whole) return std::nullopt;
        std::vector<std::vector<int32_t>> chains(each);
        for (size_t i = 0; i < found.size(); i++) chains[i % each].push_back(found[i]);
        return chains;
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
    std::vector<float> residual_;  // of the draft head; written in turn

    static void need_drafting(const HeldDrafts& drafts, const Ids& tokens, const Const<2>& wide) {
        need_tokens(tokens, drafts.first.table->rows, "draft");
        need(side(tokens, 0) > 0 && has_shape(wide, {side(tokens, 0), drafts.trunk.width}), "draft", "shapes do not fit");
    }

    // Those of the head's only layer, each with room for `more` rows less one behind its own.
    static std::vector<Span<AttentionState>> head_spans(const HeldTrunk& trunk, const nb::sequence& spans, int rows, int more) {
        std::vector<Span<AttentionState>> list;
        for (const auto& s : checked_spans(trunk, spans, rows, "draft", more - 1))
            list.push_back({s.start, s.stop, s.position, s.state->layers[0].attention});
        return list;
    }

    template <typename A>
    static void need_injecting(const HeldResidual& read, const A& wide, const char* operation) {
        need(read.w.inject.rows != 0, operation, "a final mixer injects nothing");
        need(side(wide, 1) == read.w.hidden * read.w.streams, operation, "shapes do not fit");
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
};

}  // namespace

void bind_engine(nb::module_& m) {
    using nb::arg;
    bind_stretch(m);
    m.def("isas", &isas, "Instruction sets that this machine and build can run, fastest first.");
    nb::class_<HeldMixture>(m, "Mixture").def(nb::init<>()).def_prop_ro("bytes", [](const HeldMixture& held) {
        return held.mixture.memory.bytes();
    }).def("weights", [](const HeldMixture& held, const Out<2>& out) {
        const Mixture& m = held.mixture;
        need(!held.busy && !m.finished && has_shape(out, {m.rows, m.top_k}), "experts", "this is no choice of that shape");
        std::copy(m.weights, m.weights + out.size(), out.data());
    });
    nb::class_<HeldDrafts>(m, "Drafts")
        .def(nb::init<const HeldFuse&, const Matrix&, const HeldTrunk&, const HeldHead&, const nb::tuple&>(),
             nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>());
    nb::class_<HeldEngine>(m, "Engine")
        .def(nb::init<const std::string&, const std::string&, int>(), arg("isa"), arg("precision"), arg("threads"))
        .def_prop_ro("isa", &HeldEngine::isa)
        .def_prop_ro("precision", &HeldEngine::precision)
        .def_prop_ro("threads", &HeldEngine::threads)
        .def_prop_ro("regions", &HeldEngine::regions)
        .def_prop_ro("scratch_bytes", &HeldEngine::scratch_bytes)
        .def("close", &HeldEngine::close)
        .def("linear", &HeldEngine::linear, arg(), arg().noconvert(), arg().noconvert())
        .def("embed", &HeldEngine::embed, arg(), arg(), arg().noconvert(), arg().noconvert())
        .def("read_residual", &HeldEngine::read_residual, arg(), arg().noconvert(), arg().noconvert(),
             arg().noconvert().none())
        .def("inject", &HeldEngine::inject, arg().noconvert(), arg().noconvert(), arg().noconvert())
        .def("delta_net", &HeldEngine::delta_net, arg(), arg().noconvert(), arg(), arg().noconvert())
        .def("settle", &HeldEngine::settle, arg(), arg(), arg().noconvert(), arg().noconvert())
        .def("sparse_attention", &HeldEngine::sparse_attention, arg(), arg().noconvert(), arg(), arg().noconvert())
        .def("ple", &HeldEngine::ple, arg(), arg().noconvert(), arg().noconvert(), arg())
        .def("route", &HeldEngine::route, arg(), arg(), arg().noconvert(), arg().noconvert(), arg().noconvert())
        .def("mix_delta", &HeldEngine::mix<DeltaNet>, arg(), arg(), arg().noconvert(), arg())
        .def("mix_attention", &HeldEngine::mix<SparseAttention>, arg(), arg(), arg().noconvert(), arg())
        .def("choose", &HeldEngine::choose, arg(), arg(), arg(), arg().noconvert(), arg(), arg().noconvert())
        .def("enter", &HeldEngine::enter, arg().noconvert(), arg().noconvert(), arg().noconvert(), arg())
        .def("expert_wave", &HeldEngine::expert_wave, arg(), arg(), arg(), arg().noconvert(), arg().noconvert(),
             arg().noconvert(), arg().noconvert(), arg().none() = nb::none(), arg().noconvert().none() = nb::none())
        .def("stretch", &HeldEngine::stretch, arg(), arg(), arg(), arg(), arg().noconvert(), arg(), arg(),
             arg().noconvert(), arg().noconvert(), arg(), arg().noconvert(), arg().none() = nb::none(),
             arg().noconvert().none() = nb::none(), arg().none() = nb::none())
        .def("rehearse", &HeldEngine::rehearse, arg(), arg(), arg(), arg().noconvert(), arg(), arg().noconvert(), arg() = -1)
        .def("likely", &HeldEngine::likely, arg(), arg(), arg(), arg().noconvert(), arg().noconvert())
        .def("fuse", &HeldEngine::fuse, arg(), arg(), arg().noconvert(), arg().noconvert(), arg().noconvert())
        .def("draft", &HeldEngine::draft, arg(), arg().noconvert(), arg().noconvert(), arg(), arg().noconvert(), arg(),
             arg().noconvert(), arg().noconvert())
        .def("guess", &HeldEngine::guess, arg(), arg().noconvert(), arg().noconvert(), arg(), arg(), arg().noconvert(), arg())
        .def("logits", &HeldEngine::logits, arg(), arg().noconvert(), arg().noconvert(), arg().noconvert())
        .def("argmax", &HeldEngine::argmax, arg(), arg().noconvert(), arg().noconvert(), arg().noconvert());
}

}  // namespace cherenkov::cpu
