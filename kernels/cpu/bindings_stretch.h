// The engine as Python holds it, and whole layers described to it: what the operations' bindings share.
#pragma once
#include <memory>
#include <mutex>
#include <new>

#if defined(_WIN32)
#include <process.h>
#else
#include <unistd.h>
#endif

#include "bindings.h"
#include "rounding.h"

namespace cherenkov::cpu {

template <typename State>
void need_span(const Span<State>& span, int rows, const char* operation) {
    need(span.start >= 0 && span.start <= span.stop && span.stop <= rows && span.position >= 0 &&
             span.position <= std::numeric_limits<int>::max() - (span.stop - span.start),
         operation, "a span lies outside the rows");
}

// What no span covers would be whatever the memory held.
template <typename State>
void need_cover(const std::vector<Span<State>>& spans, int rows, const char* operation) {
    int covered = 0;
    for (const auto& span : spans) {
        need(span.start == covered, operation, "every row must belong to one span");
        covered = span.stop;
    }
    need(covered == rows, operation, "every row must belong to one span");
}

// A mixture that Python holds from one call to the next, and the call that is at it.
struct HeldMixture {
    Mixture mixture;
    bool busy = false;
};

class Busy {
public:
    explicit Busy(HeldMixture& held) : held_(held) {
        need(!held.busy, "experts", "another thread is at this choice");
        held.busy = true;
    }
    ~Busy() { held_.busy = false; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

private:
    HeldMixture& held_;
};

// Operations run one at a time, without the GIL.
class Turns {
public:
    const std::shared_ptr<Engine>& engine(const char* operation) {
        need(engine_ != nullptr, operation, "the backend is closed");
        if (process() != owner_) renew();
        return engine_;
    }

    template <typename F>
    void run(const char* operation, const F& f) {
        const std::shared_ptr<Engine> e = engine(operation);
        bool fits = true;
        {
            nb::gil_scoped_release release;
            const std::lock_guard turn(e->turn);
            const PlainRounding plain;
            try {
                e->scratch.reset();
                f(*e);
            } catch (const std::bad_alloc&) {
                fits = false;
            }
        }
        need(fits, operation, "there is not enough memory");
    }

protected:
    std::shared_ptr<Engine> engine_;

private:
    static int process() {
#if defined(_WIN32)
        return _getpid();
#else
        return static_cast<int>(getpid());
#endif
    }
    // In a forked child, with the GIL: a thread that the child does not have may have been at an operation, so the engine
    // is left as it is for good, with its turn taken. One without threads replaces it.
    void renew() {
        const auto* old = new std::shared_ptr<Engine>(std::move(engine_));  // never freed
        engine_ = std::make_shared<Engine>((*old)->k, (*old)->precision, 1);
        owner_ = process();
    }

    int owner_ = process();
};

// Spans are the tuples of cherenkov.backends.operands: (start, stop, position, state).
nb::tuple span_tuple(nb::handle span, const char* operation);
// States as they lie in memory, checked against the layer's shape.
DeltaState delta_state(const DeltaNet&, nb::handle state);
float* ple_state(const Ple&, nb::handle state);
struct Cache {
    AttentionState state;
    int tokens;  // that fit
};
Cache attention_state(const SparseAttention&, nb::handle state);

// Every layer of a trunk, and the Python objects it points into.
struct HeldTrunk {
    std::vector<Layer> layers;
    std::vector<nb::object> keep;
    Stretch stretch;
    int width = 0, hidden = 0, top_k = 0, experts = 0;
};
// One sequence's memory of every layer of a trunk.
struct HeldMemory {
    Memory memory;
    std::vector<nb::object> keep;
    const HeldTrunk* trunk;
    int tokens;  // that fit
};

struct Reach {
    std::vector<Span<const Memory*>> spans;
    Features features;
    std::vector<nb::object> late;  // features that came during the call
};
// `more` rows must fit the caches behind these.
std::vector<Span<const Memory*>> checked_spans(const HeldTrunk&, const nb::sequence& spans, int rows, const char* operation,
                                               int more = 0);
// For layers [first, last). `features` are of all layers: arrays, None, or callables that return an array, which are called
// when a layer needs them.
void check_reach(Reach&, const HeldTrunk&, int first, int last, const nb::sequence& spans, const Out<2>& wide,
                 const nb::sequence& features);
using Tags = Array<const uint8_t, 1>;
Slots checked_slots(const Record&, const Array<const uint8_t, 2>& pool, const Record* lower, const std::optional<Tags>&,
                    const char* operation);
Residency checked_residency(const HeldTrunk&, const Slots&, const Array<const int32_t, 2>& table);

void bind_stretch(nb::module_& m);

}  // namespace cherenkov::cpu
